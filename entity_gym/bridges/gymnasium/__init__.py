"""Bridges from and to Gymnasium."""
