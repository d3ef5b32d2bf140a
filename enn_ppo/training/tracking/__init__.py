"""Metrics of a run, and their logging."""
