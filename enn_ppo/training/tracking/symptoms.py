"""Symptoms of a training that does not learn, and the page that explains them."""

from __future__ import annotations

#: A page of the documentation; warnings about learning end with it.
PAGE = "https://enn-ppo.github.io/enn-ppo/when_it_does_not_learn/"
#: Progress of a run at which it is looked at.
LOOK_AT = 0.2
#: KL divergence in nats; in MineSweeper with its preset, the first update alone moves the policy by 1e-4.
LEAST_MOVE = 1e-5


class Symptoms:
    """Looks at a run when a fifth of it is done, for the one symptom that no learning run has: a policy that hardly moves.

    There are no warnings of entropy and explained variance near 0, or of large KL divergences: runs that have solved their world,
    or are about to, have them as well. A KL divergence of exactly 0 means that nothing was rewarded yet.

    Args:
        is_new: whether the run was not resumed. A resumed policy may have learned before.
        epochs: of an update. With one, `approx_kl` is that of the policy before the update.
    """

    def __init__(self, *, is_new: bool, epochs: int) -> None:
        self._largest = 0.0
        self._is_watching = is_new and epochs > 1

    def advice(self, approx_kl: float, progress: float) -> str | None:
        """Look at an update, of which `progress` is that of the run, 0 to 1; returns a sentence at most once in a run."""
        self._largest = max(self._largest, approx_kl)
        if not self._is_watching or progress < LOOK_AT:
            return None
        self._is_watching = False
        if not 0 < self._largest < LEAST_MOVE:
            return None
        return (
            f"approx_kl was at most {self._largest:.2g} so far: the policy hardly moves; take a larger optim.lr, more "
            f"optim.epochs or a smaller optim.batch_size: {PAGE}"
        )
