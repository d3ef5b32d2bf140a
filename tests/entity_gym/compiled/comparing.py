"""Observations of pools in forms that can be compared."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from entity_gym.actions import ActionSpace
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.vec_obs import VecObs
from entity_gym.compiled import CompiledEnvironment
from entity_gym.compiled.slots import CompiledSlots
from entity_gym.pools.pool import ThreadedVecEnv
from entity_gym.pools.slots import EnvSlots, SlotOptions, run_serially
from tests.entity_gym.pools.kinds_of_pools import play_together
from tests.worlds import actions_of_each, choose, frame, frames, open_choices


def meaning(obs: VecObs) -> dict[str, Any]:
    """Return all but `arrays` as plain values; a mask that closes nothing is as good as none."""
    return {
        "frames": frames(obs),
        "types": {name: (buffer.values.dtype, buffer.values.shape[1]) for name, buffer in obs.features.items()},
        "env_id": obs.env_id.tolist(),
        "elapsed_step": obs.elapsed_step.tolist(),
        "metrics": {name: (m.count, m.sum, m.min, m.max) for name, m in obs.metrics.items()},
        "info": {i: dict(info) for i, info in obs.end_of_episode_info.items()},
        "final": None if obs.final is None else meaning(obs.final),
    }


def of_environment(obs: VecObs, env_id: int) -> dict[str, Any]:
    """Return the frame of one environment in a batch, its last observation included."""
    place = obs.env_id.tolist().index(env_id)
    seen = frame(obs, place) | {"elapsed_step": int(obs.elapsed_step[place])}
    if obs.final is not None and env_id in obs.final.env_id:
        seen["final"] = of_environment(obs.final, env_id)
    return seen


def actions_in(
    obs: VecObs, env_ids: Sequence[int], streams: Sequence[np.random.Generator], space: Mapping[str, ActionSpace]
) -> dict[str, RaggedBuffer[np.int64]]:
    """Random actions for some environments of a batch, in the given order, each from its own stream."""
    places = [obs.env_id.tolist().index(i) for i in env_ids]
    actions: dict[str, RaggedBuffer[np.int64]] = {}
    for name, kind in space.items():
        choices = open_choices(obs, name, kind)
        rows = [[streams[i].choice(open_) for open_ in choices[k]] for k, i in zip(places, env_ids, strict=True)]
        actions |= choose(name, rows)
    return actions


class Playing:
    """Slots, stepped together with random actions."""

    def __init__(self, slots: EnvSlots, seed: int = 0) -> None:
        self.slots = slots
        self.ids = np.arange(len(slots), dtype=np.int64)
        self.rngs = [np.random.default_rng((seed, i)) for i in range(len(slots))]
        self.obs = self.reset(self.ids)

    def reset(self, ids: Any) -> VecObs:
        ids = np.asarray(ids, dtype=np.int64)
        self.slots.reset(ids)
        self.obs = self.show(self.ids if len(ids) == len(self.slots) else ids)
        return self.obs

    def show(self, ids: Any) -> VecObs:
        return self.slots.collect(np.asarray(ids, dtype=np.int64), run_serially)

    def step(self, ids: Any = None) -> VecObs:
        ids = self.ids if ids is None else np.asarray(ids, dtype=np.int64)
        shown = self.show(ids)
        actions = actions_of_each(shown, self.slots.action_space, [self.rngs[i] for i in ids])
        self.slots.check(actions, ids)
        self.slots.step(actions, ids, 0, len(ids))
        self.obs = self.show(ids)
        return self.obs


def play_pool(env: Any, num_envs: int = 6, steps: int = 60, **options: Any) -> list[VecObs]:
    """Play random steps in a pool, and return its observations."""
    with ThreadedVecEnv(env, num_envs, **options) as pool:
        return play_together(pool, steps)


def ordinary(env: CompiledEnvironment | type[CompiledEnvironment], num_envs: int, **options: Any) -> CompiledSlots:
    """The same source as ordinary Python."""
    return CompiledSlots(env, num_envs, SlotOptions(**options, compile=False))
