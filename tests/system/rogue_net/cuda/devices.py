"""Where the tests of GPU kernels run: in Triton's interpreter on the CPU, or, where there is a GPU, on it."""

from __future__ import annotations

import pytest
import torch

INTERPRETED = pytest.param(
    "cpu", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled, not interpreted")
)
EACH_DEVICE = pytest.mark.parametrize("device", [INTERPRETED, pytest.param("cuda", marks=pytest.mark.gpu)])
