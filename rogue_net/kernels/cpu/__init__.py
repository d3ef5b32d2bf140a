"""The transformer on CPUs: kernels in Numba for what is not a matrix product, `torch.mm` for what is."""
