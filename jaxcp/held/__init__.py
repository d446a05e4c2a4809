"""Held rows: what a calibration keeps of rows that its model was not fitted on."""
