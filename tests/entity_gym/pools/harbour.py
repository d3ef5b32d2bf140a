"""A small world, compiled and over arrays, in which ships pick numbers, and other ships to tow."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from entity_gym import ActionSpace, ContinuousActionSpace, Entity, ObsSpace, SelectEntityActionSpace, compiled
from entity_gym.batch.vec_obs import VecAction
from entity_gym.compiled import Categorical, CompiledEnvironment, Continuous, SelectEntity, rand_float, rand_int
from entity_gym.pools.batch_env import BatchActors, BatchEnvironment, BatchObservation, BatchRandom, BatchStep, Rows

MAX_SHIPS, MAX_BUOYS = 3, 2
A_TENTH = 0.1  # float32 has one that is a little more


class Harbour(CompiledEnvironment):
    """One to three ships. What they do is paid so that every part of every action makes a difference.

    The reward adds up turn + 2 * thrust of every ship, 100 for each that tows nobody, 1000 for each that calls nobody, and
    the entity index of what is towed and called otherwise.
    """

    entities = {
        "Buoy": compiled.Entity([], max=MAX_BUOYS),
        "Ship": compiled.Entity(["x", "y"], max=MAX_SHIPS),
    }
    actions = {
        "steer": Continuous([-1.0, A_TENTH], [1.0, np.inf], ["turn", "thrust"], actors="Ship"),
        "tow": SelectEntity(actors="Ship", actees=["Buoy", "Ship"], exclude_self=True, nobody=True),
        "call": SelectEntity(max_actors=MAX_SHIPS, actees="Ship", masked=True, exclude_self=True),
        "flag": Categorical(["down", "up"], actors="Ship"),
    }
    parameters = {"ships": 0, "mute": False}
    max_steps = 4
    state = [("num_ships", np.int64), ("num_buoys", np.int64), ("place", np.float64, (MAX_SHIPS, 2))]

    def reset(s: Any) -> None:
        s.num_ships = s.ships if s.ships > 0 else 1 + rand_int(s, MAX_SHIPS)
        s.num_buoys = rand_int(s, MAX_BUOYS + 1)
        for i in range(MAX_SHIPS):
            s.place[i, 0] = rand_float(s)
            s.place[i, 1] = 0.0

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        reward = 0.0
        for i in range(s.num_ships):
            s.place[i, 0] += act.steer[i, 0]
            s.place[i, 1] += act.steer[i, 1]
            reward += act.steer[i, 0] + 2.0 * act.steer[i, 1]
            reward += 100.0 if act.tow[i] < 0 else float(act.tow[i])
            reward += 1000.0 if act.call[i] < 0 else float(act.call[i])
        return reward, False, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Buoy = s.num_buoys
        obs.n.Ship = s.num_ships
        obs.n.call = s.num_ships
        for i in range(s.num_ships):
            obs.Ship[i, 0] = s.place[i, 0]
            obs.Ship[i, 1] = s.place[i, 1]
            obs.call.actors[i] = s.num_buoys + i
            for j in range(s.num_ships):
                obs.call.mask[i, j] = not s.mute and (i + j) % 2 == 0 or i == j


class Tug(CompiledEnvironment):
    """One ship that only steers, which is the plainest form."""

    entities = {"Ship": compiled.Entity(["x"], max=1)}
    actions = {"steer": Continuous([-1.0], [1.0], actors="Ship")}
    max_steps = 3
    state = [("x", np.float64)]

    def reset(s: Any) -> None:
        s.x = 0.0

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        s.x += act.steer[0, 0]
        return s.x, False, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Ship = 1
        obs.Ship[0, 0] = s.x


class Armada(BatchEnvironment):
    """As many ships in environment i as `counts[i]`, which steer, and tow those that are open to them."""

    counts = (1, 3, 0, 2)
    pairs: np.ndarray | None = None  # (I,) the mask of all environments
    spaces: Mapping[str, ActionSpace] = {
        "steer": ContinuousActionSpace([-1.0], [1.0]),
        "tow": SelectEntityActionSpace(exclude_self=True),
    }

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.x = np.zeros((num_envs, MAX_SHIPS))
        self.told: list[Mapping[str, VecAction]] = []

    def obs_space(self) -> ObsSpace:
        return ObsSpace({"Buoy": Entity(["x"]), "Ship": Entity(["x"])})

    def action_space(self) -> Mapping[str, ActionSpace]:
        return self.spaces

    def reset(self, ids: np.ndarray, rng: BatchRandom) -> None:
        self.x[ids] = 0.0

    def step(self, ids: np.ndarray, actions: Mapping[str, VecAction], rng: BatchRandom) -> BatchStep:
        self.told.append(actions)
        no = np.zeros(len(ids), np.bool_)
        return BatchStep(np.array([row.sum() for row in actions["steer"]]), no, no)

    def observe(self, ids: np.ndarray) -> BatchObservation:
        counts = np.array(self.counts)[ids]
        ships = Rows(np.concatenate([self.x[i, :k, None] for i, k in zip(ids, counts, strict=True)]), counts)
        mask = None
        if self.pairs is not None:
            starts = np.concatenate([[0], np.cumsum(np.square(self.counts))])
            mask = Rows(np.concatenate([self.pairs[starts[i] : starts[i + 1]] for i in ids]), np.square(counts))
        return BatchObservation(
            features={"Buoy": np.zeros((len(ids), 1, 1)), "Ship": ships},
            actions={"steer": BatchActors(actors="Ship"), "tow": BatchActors(actors="Ship", actees="Ship", mask=mask)},
        )
