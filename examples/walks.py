"""A world over NumPy arrays: walkers on a line go to their goals, all environments in one line of arithmetic.

    pool = entity_gym.ThreadedVecEnv(Walks, 64)
    python -m enn_ppo.train env.id=examples.walks:Walks env.kwargs.length=8

It implements `EnvSlots`, so every pool steps it, and it is trained like any other world.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from entity_gym import CategoricalActionSpace, Entity, EnvSlots, ObsSpace
from entity_gym.batch.ragged import RaggedBuffer, offsets_of
from entity_gym.batch.vec_obs import VecAction, VecActionMask, VecObs
from entity_gym.pools.slots import EnvIds, Run, SlotOptions, check_state

MAX_STEPS = 20


class Walks(EnvSlots):
    """A step to the left or to the right; 1 for the goal, which ends the episode.

    Args:
        num_envs, options: see `EnvSlots`.
        length: the goal is 1 to `length` steps away.
    """

    one_by_one = False  # a step takes microseconds: each thread gets a part of the environments

    def __init__(
        self,
        num_envs: int,
        options: SlotOptions = SlotOptions(),
        *,
        length: int = 4,
    ) -> None:
        space = ObsSpace({"Walker": Entity(["x"]), "Goal": Entity(["x"])})
        super().__init__(num_envs, options, space, {"walk": CategoricalActionSpace(["left", "right"])}, "Walks")
        self.length = length
        self.walker, self.goal, self.reward = np.zeros((3, num_envs), np.float32)
        self.done, self.truncated = np.zeros((2, num_envs), np.bool_)
        self.elapsed = np.zeros(num_envs, np.int64)
        self.final: dict[int, VecObs] = {}
        self.seed(0)

    def seed(self, seed: int) -> None:
        first = self.options.first_env
        self.rngs = [
            np.random.default_rng(np.random.SeedSequence((seed, number))) for number in range(first, first + len(self))
        ]

    def reset(self, ids: EnvIds, worker: int = 0) -> None:
        self._begin(ids)
        self.reward[ids], self.done[ids], self.truncated[ids] = 0, False, False
        self._forget(ids)

    def step(self, actions: Mapping[str, VecAction], ids: EnvIds, lo: int, hi: int, worker: int = 0) -> None:
        mine = ids[lo:hi]
        self._forget(mine)
        self.walker[mine] += 2 * actions["walk"][lo:hi].values[:, 0] - 1
        self.elapsed[mine] += 1
        there = self.walker[mine] == self.goal[mine]
        self.reward[mine] = there
        self.truncated[mine] = ~there & (self.elapsed[mine] == MAX_STEPS)
        self.done[mine] = there | self.truncated[mine]
        ended = mine[self.done[mine]]
        if self.options.autoreset and len(ended):
            kept = self.options.final_observations
            if kept != "none":
                for i in (ended if kept == "all" else ended[self.truncated[ended]]).tolist():
                    self.final[i] = self._show(np.array([i]), last=True)
            self._begin(ended)

    def collect(self, ids: EnvIds, run: Run) -> VecObs:
        obs = self._show(ids)
        finals = [self.final[i] for i in ids.tolist() if i in self.final]
        obs.final = VecObs.cat(finals) if finals else None
        return obs

    # ---- saving, which a world may leave out

    can_save = True

    def state(self) -> dict[str, Any]:
        arrays = {name: getattr(self, name).copy() for name in ARRAYS}
        return {"num_envs": len(self), **arrays, "random": [rng.bit_generator.state for rng in self.rngs]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        check_state(state, len(self), *ARRAYS)
        for name in ARRAYS:
            getattr(self, name)[:] = state[name]
        for rng, saved in zip(self.rngs, state["random"], strict=True):
            rng.bit_generator.state = saved
        self.final.clear()

    # ---- how it is done

    def _begin(self, ids: EnvIds) -> None:
        self.walker[ids], self.elapsed[ids] = 0, 0
        for i in ids.tolist():
            self.goal[i] = self.rngs[i].choice([-1, 1]) * self.rngs[i].integers(1, self.length + 1)

    def _forget(self, ids: EnvIds) -> None:
        """Drop last observations: they are reported once."""
        if self.final:
            for i in ids.tolist():
                self.final.pop(i, None)

    def _offers(self, ids: EnvIds, *, last: bool = False) -> dict[str, VecActionMask]:
        """The walker, entity 0, acts in every frame but those of episodes that are over."""
        over = np.full(len(ids), last) if self.options.autoreset else self.done[ids]
        actors = np.zeros((int((~over).sum()), 1), np.int64)
        return {"walk": VecActionMask(RaggedBuffer(actors, offsets_of((~over).astype(np.int64))))}

    def _show(self, ids: EnvIds, *, last: bool = False) -> VecObs:
        one_each = np.arange(len(ids) + 1)  # offsets: one entity of each type in every frame
        return VecObs(
            features={
                "Walker": RaggedBuffer(self.walker[ids][:, None], one_each),
                "Goal": RaggedBuffer(self.goal[ids][:, None], one_each),
            },
            action_masks=self._offers(ids, last=last),
            reward=self.reward[ids],
            done=self.done[ids],
            truncated=self.truncated[ids],
            env_id=ids.copy(),
            elapsed_step=self.elapsed[ids],
        )


#: Names of the arrays that change.
ARRAYS = ("walker", "goal", "reward", "done", "truncated", "elapsed")
