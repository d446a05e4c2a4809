"""Seconds, memory and compilation, beside what else does the same."""
