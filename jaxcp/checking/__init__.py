"""Detectors of what cheats: learners, scores, and functions that change."""
