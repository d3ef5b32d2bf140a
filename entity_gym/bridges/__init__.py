"""Worlds that were written for other interfaces, and other interfaces for our worlds; nothing here is imported by itself."""
