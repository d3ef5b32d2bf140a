"""Attention on GPUs: kernels in Triton for frames of any length, and torch's varlen attention for long ones."""
