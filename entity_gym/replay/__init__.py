"""Replays: one HTML file that shows episodes, decisions and attention (docs/replays.md)."""
