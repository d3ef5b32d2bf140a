"""Normalization of returns by running statistics: the setting `ppo.normalize`.

Shapes: T steps, N environments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from enn_ppo.training.ranks import ALONE, Ranks
from rogue_net.heads.heads import ValueHead

MIN_DEVIATION = 1e-2  # of returns: constant returns do not amplify value errors


class ReturnScale:
    """PopArt: sets a value head's mean and deviation to running estimates over the returns, see `ValueHead.rescale`.

    Both are exponential moving averages over updates with weight 1 - `decay`, corrected for their start at 0 (Kingma & Ba 2015,
    section 3). Rescaling keeps the head's values, except that a new head, whose value is constant, predicts the mean from then
    on: learning a large mean by gradient steps would take long.
    """

    def __init__(self, decay: float = 0.9) -> None:
        self._decay = decay
        self._weight = 0.0
        self._first = 0.0  # moments before the correction
        self._second = 0.0

    def __call__(self, returns: Tensor, head: ValueHead, ranks: Ranks = ALONE) -> bool:
        """Update the statistics with the (T, N) returns of this rank's part of a rollout, and rescale the head.

        Returns:
            Whether the head was new, so that its values changed to the mean.
        """
        is_new = self._weight == 0 and not bool(head.project.weight.any())
        keep, take = self._decay, 1 - self._decay
        self._weight = keep * self._weight + take
        returns = returns.double()
        moments = ranks.gather(torch.stack([returns.mean(), returns.square().mean()])).mean(0)
        first, second = moments.tolist()  # synchronises, once per update
        self._first = keep * self._first + take * first
        self._second = keep * self._second + take * second
        mean = self._first / self._weight
        variance = self._second / self._weight - mean**2
        deviation = max(variance**0.5 if variance > 0 else 0.0, MIN_DEVIATION)
        head.rescale(head.mean.new_tensor(mean), head.mean.new_tensor(deviation))
        if is_new:
            torch.nn.init.zeros_(head.project.bias)
        return is_new

    def state(self) -> dict[str, Any]:
        """State for `load_state`."""
        return {"weight": self._weight, "first": self._first, "second": self._second}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `state()`."""
        self._weight, self._first, self._second = state["weight"], state["first"], state["second"]
