"""Behavioural cloning from recordings."""
