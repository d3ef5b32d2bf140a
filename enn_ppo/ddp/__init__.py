"""Training on the ranks that torchrun starts."""
