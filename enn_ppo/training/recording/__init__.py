"""Recordings: files of observations, actions and rewards."""
