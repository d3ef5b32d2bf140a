"""Relative positions: what entities of a frame see of where the others stand."""
