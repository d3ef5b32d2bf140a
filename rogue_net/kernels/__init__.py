"""Kernels: a folder for each device."""
