"""Batches of ragged observations on a device, and which of their tokens are a frame."""
