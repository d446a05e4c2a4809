"""What experiments share: options, timing, machines, networks, bars and reports."""
