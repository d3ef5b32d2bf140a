"""Normalization of rewards or returns by running statistics: the setting `ppo.normalize`.

Shapes: T steps, N environments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from enn_ppo.training.learning.moments import moments_of_all
from enn_ppo.training.ranks import ALONE, Ranks
from rogue_net.heads.heads import ValueHead
from rogue_net.inputs.normalization import Moments

MIN_DEVIATION = 1e-2  # of returns: constant returns do not amplify value errors


class RewardScale:
    """Divides rewards by the running standard deviation of their discounted sum.

        R_t = r_t + γ R_{t-1}        (R starts from 0 with every episode)        r_t / std(R)

    Source: Engstrom et al. 2020 (arXiv 2005.12729), section 3; OpenAI's baselines. Mean and variance are over all sums so far,
    in float64, merged by the parallel formula of Chan et al. 1979.
    """

    def __init__(self, num_envs: int, ranks: Ranks = ALONE) -> None:
        self._ranks = ranks  # each has `num_envs` environments
        self._first_env = ranks.rank * num_envs
        self._running = torch.zeros(num_envs, dtype=torch.float64)
        self._moments = Moments(*torch.zeros(3, dtype=torch.float64))  # of all sums

    def __call__(
        self, rewards: Tensor, ended: Tensor, gamma: float, begins: Tensor | None = None, env_id: Tensor | None = None
    ) -> Tensor:
        """Update the statistics with rewards, and return the scaled rewards.

        Args:
            rewards: (T, N), continuing the previous call's rewards.
            ended: (T, N) bool, the episode ended with the step.
            gamma: discount.
            begins: (N,) bool, the first step begins an episode; None: only after a step that ended one.
            env_id: (N,) int64, numbers of the environments among all ranks; an environment with several rollouts occurs once per
                rollout, oldest first. None: all environments of this rank, in order.
        """
        env_id = torch.arange(rewards.shape[1]) if env_id is None else env_id - self._first_env
        begins = torch.zeros(len(env_id), dtype=torch.bool) if begins is None else begins
        sums = torch.empty(rewards.shape, dtype=torch.float64)
        # computed on the CPU, which synchronises with the device once per update
        rewards_there, ended_there = rewards.double().cpu(), ended.cpu()
        for columns in _in_turn(env_id):
            running = self._running[env_id[columns]].masked_fill(begins[columns], 0.0)
            for t, (reward, end) in enumerate(zip(rewards_there[:, columns], ended_there[:, columns], strict=True)):
                running = reward + gamma * running
                sums[t, columns] = running
                running = running.masked_fill(end, 0.0)
            self._running[env_id[columns]] = running
        self._moments = self._moments.merged(moments_of_all(sums.flatten(), self._ranks))
        scaled: Tensor = rewards / self.deviation
        return scaled

    def measure(self, rewards: Tensor, ended: Tensor, gamma: float) -> None:
        """Replace the statistics by those of the (T, N) rewards of other environments; see `__call__`."""
        other = RewardScale(rewards.shape[1])
        other(rewards, ended, gamma)
        self._moments = other._moments

    def begin(self) -> None:
        """Start all running sums from 0, for new episodes."""
        self._running = torch.zeros_like(self._running)

    @property
    def deviation(self) -> float:
        """The divisor of rewards; 1 while the variance of their sums is 0."""
        deviation = float(self._moments.variance.sqrt())
        return deviation if deviation > 1e-8 else 1.0

    def state(self) -> dict[str, Any]:
        """State of the environments of all ranks, for `load_state`."""
        running = self._ranks.gather(self._running).flatten()
        count, mean, squares = (each.item() for each in self._moments)
        return {"running": running, "count": int(count), "mean": mean, "squares": squares}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `state()`; running sums start from 0 if the number of environments has changed."""
        own, size = len(self._running), self._ranks.size
        if len(state["running"]) == own * size:
            self._running = state["running"][own * self._ranks.rank :][:own].clone()
        numbers = [float(state[name]) for name in ("count", "mean", "squares")]
        self._moments = Moments(*torch.tensor(numbers, dtype=torch.float64))


def _in_turn(env_id: Tensor) -> list[Tensor]:
    """Group the columns of a rollout so that each group holds an environment at most once; usually one group."""
    if len(set(env_id.tolist())) == len(env_id):
        return [torch.arange(len(env_id))]
    before = (env_id.unsqueeze(1) == env_id).tril(-1).sum(1)  # columns of the same environment to the left
    return [(before == turn).nonzero()[:, 0] for turn in range(int(before.max()) + 1)]


def value_unit(normalize: str, saved: Mapping[str, Any] | None) -> float:
    """The reward that equals a value of 1.

    Args:
        normalize: the setting `ppo.normalize`.
        saved: `state()` of the reward or return scale; None: there is none.

    Raises:
        ValueError: `saved` is not the state of a reward scale.
    """
    if normalize != "rewards" or saved is None:
        return 1.0
    if "running" not in saved:
        raise ValueError(
            f"the checkpoint's trainer['scale'] has {list(saved)}, and ppo.normalize=rewards needs a reward scale"
        )
    scale = RewardScale(0)
    scale.load_state(saved)
    return scale.deviation


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
