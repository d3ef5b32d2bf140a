"""A network on CPUs as one program of kernels in Numba, which acts and learns without PyTorch's operations."""
