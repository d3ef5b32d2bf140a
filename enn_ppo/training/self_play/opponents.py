"""Opponents: random actions, one policy, or several past policies of a run (players: see `entity_gym.pools.players`).

opponents = load_opponent("random", None, pool, device)   # or a run directory, a checkpoint, or "past" of a checkpoint
seated = SeatedVecEnv(pool, players_of(source), opponents)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from enn_ppo.checkpoints import Checkpoint, load_checkpoint, step_files
from enn_ppo.eval.policy import Acted, Policy, fit
from enn_ppo.training.tracking.run_dir import POOL
from entity_gym.actions.choices import random_actions
from entity_gym.batch import columns
from entity_gym.batch.vec_obs import VecAction, VecObs
from rogue_net import FrameKeys, keyed

#: Number of the current policy, and of uniformly random actions; the number of a past policy is its step.
LATEST, RANDOM = -1, -2


def load_opponent(
    spec: str, checkpoint: Checkpoint | None, pool: Any, device: torch.device, *, greedy: bool = False, seed: int = 0
) -> Opponents:
    """Make the opponent that a setting names, for the environments `pool`.

    `spec` is `random`; `past`, the run's policies before `checkpoint`, of which one is drawn for each episode; or a run directory
    or checkpoint.

    Raises:
        ValueError: there is no such checkpoint, its policy does not fit the environments, or the run has no earlier policies.
    """
    policies: dict[int, Policy | None] = {}
    if spec == "random":
        policies[RANDOM] = None
    else:
        spaces, generator = (pool.obs_space(), pool.action_space()), torch.Generator(device)
        try:
            for each in _past(checkpoint) if spec == "past" else [load_checkpoint(Path(spec))]:
                policies[each.step] = fit(each, *spaces, "this environment", generator, greedy=greedy)
        except ValueError as error:
            error.add_note("(an opponent is random, past, policies, or a run directory or checkpoint)")
            raise
    steps = np.array(list(policies))

    def draw(n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return steps[rng.integers(len(steps), size=n)]

    return Opponents(policies, draw, pool, seed)


def _past(checkpoint: Checkpoint | None) -> Iterator[Checkpoint]:
    """Snapshots of the checkpoint's pool, or else the run's checkpoints; only earlier ones, if there are any."""
    if checkpoint is None:
        raise ValueError("opponent=past needs a run directory, whose earlier policies play; give a checkpoint of a run")
    run_dir, self_play = checkpoint.path.parent.parent, checkpoint.trainer.get("self_play")
    known = self_play["pool"] if self_play and checkpoint.is_own else ()  # nothing checks what strangers write there
    # other snapshots in the folder belong to other checkpoints
    files = {step: file for step, file in reversed(step_files(run_dir / POOL)) if step in known}
    files = files or dict(reversed(step_files(checkpoint.path.parent)))
    files = {step: file for step, file in files.items() if step < checkpoint.step} or files
    if not files:
        raise ValueError(f"opponent=past: the run {run_dir} has neither snapshots nor checkpoints")
    for file in files.values():
        try:
            yield load_checkpoint(file)
        except ValueError:
            if file.exists():
                raise
            # else the training process has just removed it


class Opponents:
    """Several policies; one of them is drawn as the opponent in an environment when an episode begins.

    Args:
        policies: number -> policy, not changed, or None for uniformly random actions. The caller may add policies, and remove
            those that no environment faces.
        draw: draw(n, rng) -> (n,) numbers of the policies that n environments face next.
        pool: the environments.

    Attributes:
        faces: (N,) number of the policy that each environment faces.
        decided: of the last `act`: decisions of a policy, None for random actions, and the numbers of their frames.
    """

    def __init__(
        self,
        policies: Mapping[int, Policy | None],
        draw: Callable[[int, np.random.Generator], NDArray[np.int64]],
        pool: Any,
        seed: int = 0,
    ) -> None:
        self.policies = policies
        self.faces: NDArray[np.int64] = np.full(len(pool), next(iter(policies)), np.int64)
        self._draw, self._seed, self._action_space = draw, seed, pool.action_space()
        # its numbers differ from those of every environment: environment 0 uses (seed, 0)
        self._rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))
        self._num_acts = 0
        self.decided: list[tuple[Acted | None, NDArray[np.int64]]] = []

    def act(self, obs: VecObs, env_id: NDArray[np.int64]) -> dict[str, VecAction]:
        """Choose actions; see `entity_gym.pools.players.Opponents`."""
        begins = np.unique(env_id[obs.elapsed_step == 0])
        if len(begins):
            self.faces[begins] = self._draw(len(begins), self._rng)
        # from the number of calls, so that no generator state has to be saved; keys let the compiled program act
        key = np.random.SeedSequence((self._seed, 1, self._num_acts)).generate_state(1, np.uint64)
        keys = keyed(int(key.view(np.int64)[0]), torch.arange(len(obs)))
        self._num_acts += 1
        faced = self.faces[env_id]
        # several players of an environment remember for themselves
        own_keys = env_id + len(self.faces) * (np.arange(len(obs)) // len(np.unique(env_id)))
        numbers = np.unique(faced).tolist()
        rows = [np.flatnonzero(faced == number) for number in numbers]
        self.decided, parts = [], []
        for number, own in zip(numbers, rows, strict=True):
            policy, seen = self.policies[number], obs if len(numbers) == 1 else obs.gather(own)
            if policy is None:
                acted, actions = None, random_actions(seen, self._rng, self._action_space)
            else:
                acted = policy.act(seen, own_keys[own], generator=FrameKeys(keys[own].to(policy.device)))
                actions = acted.buffers
            self.decided.append((acted, own))
            parts.append(actions)
        if len(parts) == 1:
            return parts[0]
        # from frames by policy to frames as they are in `obs`
        joined: Any = columns.gather(columns.cat(parts), np.argsort(np.concatenate(rows)))
        return dict(joined)

    def faced(self, env_id: NDArray[np.int64]) -> Sequence[str]:
        """The opponent in each environment: `latest`, `random` or `step_<12 digits>`."""
        return [name_of(number) for number in self.faces[env_id].tolist()]

    def state(self) -> dict[str, Any]:
        """State for `load_state`."""
        return {
            "faces": self.faces.copy(),
            "random": self._rng.bit_generator.state,
            "num_acts": self._num_acts,
            "seed": self._seed,
            "policies": {number: policy.states.state() for number, policy in self.policies.items() if policy},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the opponents from `state()`; needs the same policies."""
        self.faces = np.array(state["faces"], np.int64)
        self._rng.bit_generator.state = state["random"]
        self._num_acts, self._seed = int(state["num_acts"]), int(state["seed"])
        for number, saved in state["policies"].items():
            if policy := self.policies[number]:
                policy.states.load_state(saved, policy.device)


def name_of(number: int) -> str:
    """Name of a policy: `latest`, `random`, or `step_<12 digits>`."""
    return {LATEST: "latest", RANDOM: "random"}.get(number, f"step_{number:012d}")
