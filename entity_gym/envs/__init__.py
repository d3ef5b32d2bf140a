"""Environments that come with the package, a module each."""
