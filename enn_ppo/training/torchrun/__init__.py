"""Distributed data parallel training with torchrun."""
