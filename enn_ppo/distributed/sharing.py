"""One group of runners that several runs share: one run for each policy.

The runs make the same calls in turn, that of the first policy first. A call that concerns the environments is executed when the
first run makes it; the others get the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from enn_ppo.callbacks import Callback, Update
from enn_ppo.sampling import Parameters
from enn_ppo.tracking.logger import Row
from entity_gym.actions import ActionSpace
from entity_gym.pools.episodes import Episode
from entity_gym.spaces import ObsSpace

if TYPE_CHECKING:
    from pathlib import Path

    from enn_ppo.distributed.group import RunnerGroup


class Shared:
    """The last calls of the first run, and their results."""

    def __init__(self) -> None:
        self._found: dict[str, Any] = {}

    def ask(self, first: bool, what: str, ask: Callable[[], Any]) -> Any:
        """The result of the call `what`, which is executed for the first policy that makes it."""
        if first or what not in self._found:
            self._found[what] = ask()
        return self._found[what]

    def forget(self, *names: str) -> None:
        """Forget these results: the calls are executed again."""
        for name in names:
            self._found.pop(name, None)


class SharedRunners:
    """The sampler of one of several policies. A `Sampler`.

    Args:
        group: the runners.
        policy: number of the policy.
        shared: results that all policies share.
    """

    def __init__(self, group: RunnerGroup, policy: int, shared: Shared) -> None:
        self._group, self._policy, self._shared = group, policy, shared
        self._first = policy == 0

    def _ask(self, what: str, ask: Callable[[], Any]) -> Any:
        return self._shared.ask(self._first, what, ask)

    def obs_space(self) -> ObsSpace:
        return self._group.obs_space()

    def action_space(self) -> Mapping[str, ActionSpace]:
        return self._group.action_space()

    def threads_report(self) -> str | None:
        return self._group.threads_report() if self._first else None

    def tell(self, say: Callable[[str], None]) -> None:
        if self._first:
            self._group.tell(say)

    def key(self, step: int) -> None:
        self._group.key(step)

    def configure(self, parameters: Parameters) -> None:
        if self._first:
            self._group.configure(parameters)

    def reset(self, seed: int, parameters: Parameters | None) -> None:
        if self._first:
            self._shared.forget("state")
            self._group.reset(seed, parameters)

    def collect(self, steps: int) -> Any:
        if self._first:
            self._shared.forget("state", "metrics")
        return self._ask("rollouts", lambda: self._group.collect(steps))

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = self._ask("state", self._group.state)
        return state

    def load_state(self, state: Mapping[str, Any]) -> str | None:
        problem: str | None = self._ask("problem", lambda: self._group.load_state(state))
        return problem

    def final_episodes(self) -> list[Episode]:
        episodes: list[list[Episode]] = self._ask("final", self._group.final_episodes_of_policies)
        return episodes[self._policy]

    def metrics(self) -> Row:
        row: Row = self._ask("metrics", self._group.metrics)
        return row

    def close(self) -> None:
        if self._first:
            self._group.close()


class PolicyCallback(Callback):
    """The user's callback, for the run of one of several policies.

    Args:
        callback: of the user.
        name: of the policy.
        first: whether it is the first policy.
        shared: results that all policies share.
    """

    def __init__(self, callback: Callback, name: str, first: bool, shared: Shared) -> None:
        self._callback, self._name, self._first, self._shared = callback, name, first, shared

    def on_update(self, update: Update) -> None:  # noqa: D102 - see Callback
        update.policy_name = self._name
        self._callback.on_update(update)

    def on_episode(self, episode: Episode) -> None:  # noqa: D102
        self._callback.on_episode(episode)

    def on_checkpoint(self, path: Path, step: int) -> None:  # noqa: D102
        self._callback.on_checkpoint(path, step)

    def env_info(self, progress: float, num_envs: int, rng: np.random.Generator) -> Mapping[str, Sequence[Any]] | None:  # noqa: D102
        info: Mapping[str, Sequence[Any]] | None = self._shared.ask(
            self._first, "env_info", lambda: self._callback.env_info(progress, num_envs, rng)
        )
        return info
