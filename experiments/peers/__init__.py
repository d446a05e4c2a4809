"""What other libraries do of the same task."""
