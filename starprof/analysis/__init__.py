"""Diagnosis: pure functions from a run's arrays and frames to a verdict. Nothing here draws or reads a clock."""
