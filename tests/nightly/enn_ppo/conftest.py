"""As in tests/enn_ppo, no run draws its learning curve unless a test is about the picture."""

from tests.enn_ppo.conftest import curves, no_curves

__all__ = ["curves", "no_curves"]
