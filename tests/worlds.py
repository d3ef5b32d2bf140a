"""Tiny environments, and helpers to step any pool of them at random, for the tests of every package."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from entity_gym import (
    Action,
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Environment,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.vec_obs import VecObs

# --- Environments


class Script(Environment):
    """Shows the given observations one after the other, whatever it is told, and keeps what it was told.

    `reset` shows the first, `act` the next; behind the last one it starts again. An exception in the list is raised.
    """

    def __init__(
        self,
        observations: Sequence[Any],
        obs_space: ObsSpace | None = None,
        action_space: Mapping[str, ActionSpace] | None = None,
    ) -> None:
        self.observations = list(observations)
        self._obs_space = obs_space if obs_space is not None else ObsSpace()
        self._action_space = action_space if action_space is not None else {}
        self.received: list[Mapping[str, Action]] = []
        self.closed = 0
        self._next = 0

    def obs_space(self) -> ObsSpace:
        return self._obs_space

    def action_space(self) -> Mapping[str, ActionSpace]:
        return self._action_space

    def reset(self) -> Observation:
        return self._show()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.received.append(actions)
        return self._show()

    def close(self) -> None:
        self.closed += 1

    def _show(self) -> Observation:
        shown = self.observations[self._next % len(self.observations)]
        self._next += 1
        if isinstance(shown, Exception):
            raise shown
        return shown


class Zoo(Environment):
    """A world with all that observations can hold, at random: each type, mask, visibility list and action comes and goes.

    Episodes last 1 to 4 steps and end by truncation or by themselves. The reward adds up what it was told to do, so that
    trajectories depend on the actions. It can be saved.
    """

    def __init__(self, max_entities: int = 3) -> None:
        self.max_entities = max_entities
        self._left = 0
        self._step = 0

    def obs_space(self) -> ObsSpace:
        return ObsSpace(
            {"Scenery": Entity(["kind"]), "Stone": Entity([]), "Cat": Entity(["x", "y"]), "Dog": Entity(["x"])},
            global_features=["left"],
        )

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {
            "walk": CategoricalActionSpace(["stay", "left", "right"]),
            "chase": SelectEntityActionSpace(),
            "weather": GlobalCategoricalActionSpace(["sun", "rain"]),
        }

    def reset(self) -> Observation:
        self._left = int(self.rng.integers(1, 5))
        self._step = 0
        return self._observe(0.0, done=False)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self._left -= 1
        self._step += 1
        reward = 0.0
        if "walk" in actions:
            reward += float(np.sum(actions["walk"].actions))
        if "chase" in actions:
            reward += 0.5 * sum(actee[1] + 1 for actee in actions["chase"].actees if actee is not None)
        if "weather" in actions:
            reward += 0.25 * actions["weather"].action
        return self._observe(reward, done=self._left == 0)

    def state(self) -> dict[str, Any]:
        return {"left": self._left, "step": self._step}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._left, self._step = state["left"], state["step"]

    def _observe(self, reward: float, *, done: bool) -> Observation:
        rng = self.rng
        truncated = done and bool(rng.random() < 0.5)
        return Observation(
            **random_content(rng, self.max_entities),
            global_features=[self._left],
            reward=reward,
            done=done,
            truncated=truncated,
            metrics={"left": self._left},
            end_of_episode_info={"steps": self._step} if done else None,
        )


def random_content(rng: np.random.Generator, max_entities: int = 3) -> dict[str, Any]:
    """Features, ids, visibility and actions in the spaces of `Zoo`."""
    widths = {"Scenery": 1, "Stone": 0, "Cat": 2, "Dog": 1}
    counts = {name: int(rng.integers(0, max_entities + 1)) for name in widths}
    features = {name: rng.integers(-3, 4, (counts[name], width)).astype(float) for name, width in widths.items()}
    features = {name: rows for name, rows in features.items() if len(rows) or rng.random() < 0.5}
    ids = {name: [(name, i) for i in range(counts[name])] for name in ("Stone", "Cat", "Dog")}
    visible = {name: rng.random(counts[name]) < 0.7 for name in widths if rng.random() < 0.4}

    actions: dict[str, Any] = {}
    if rng.random() < 0.7:
        actors = _some(rng, ids["Cat"] + ids["Dog"])
        actions["walk"] = CategoricalActionMask(actor_ids=actors, mask=_random_mask(rng, len(actors), 3))
    if rng.random() < 0.7:
        actors, actees = _some(rng, ids["Dog"]), _some(rng, ids["Cat"] + ids["Stone"] + ids["Dog"])
        mask = _random_mask(rng, len(actors), len(actees))
        actions["chase"] = SelectEntityActionMask(actor_ids=actors, actee_ids=actees, mask=mask)
    if rng.random() < 0.7:
        mask = _random_mask(rng, 1, 2)
        actions["weather"] = GlobalCategoricalActionMask(mask=mask if mask is None or rng.random() < 0.5 else mask[0])
    return {"features": features, "ids": ids, "visible": visible, "actions": actions}


def _some(rng: np.random.Generator, ids: list[Any]) -> list[Any]:
    return [ids[i] for i in rng.permutation(len(ids)) if rng.random() < 0.6]


def _random_mask(rng: np.random.Generator, actors: int, columns: int) -> np.ndarray | None:
    """None, or a mask with at least one open column in every row."""
    if rng.random() < 0.4:
        return None
    mask = rng.random((actors, columns)) < 0.5
    if columns:
        mask[np.arange(actors), rng.integers(0, columns, actors)] = True
    return mask


# --- Playing


def random_actions(
    obs: VecObs, action_space: Mapping[str, ActionSpace], rng: np.random.Generator
) -> dict[str, RaggedBuffer[np.int64]]:
    """Valid actions for what `obs` offers, drawn uniformly: what `VecEnv.act` takes."""
    return actions_of_each(obs, action_space, [rng] * len(obs))


def open_choices(obs: VecObs, name: str, space: ActionSpace) -> list[list[list[int]]]:
    """Return for each frame and actor the values that the action may take."""
    mask = obs.action_masks[name]
    frames: list[list[list[int]]] = []
    for i in range(len(obs)):
        num_actors = mask.actors.size1()[i]
        if mask.actees is None:
            assert isinstance(space, CategoricalActionSpace | GlobalCategoricalActionSpace)
            columns = list(range(len(space.choices)))
        else:
            columns = mask.actees[i].values[:, 0].tolist()
        open_ = np.ones((num_actors, len(columns)), np.bool_)
        if mask.mask is not None:
            open_ = mask.mask[i].values.reshape(open_.shape)
        nobody = [-1]
        frames.append([[c for c, is_open in zip(columns, row, strict=True) if is_open] or nobody for row in open_])
    return frames


def actions_of_each(
    obs: VecObs, action_space: Mapping[str, ActionSpace], rngs: Sequence[np.random.Generator]
) -> dict[str, RaggedBuffer[np.int64]]:
    """Draw valid actions as `random_actions` does, with one generator for each frame."""
    actions: dict[str, RaggedBuffer[np.int64]] = {}
    for name, space in action_space.items():
        frames = open_choices(obs, name, space)
        drawn = [[rng.choice(open_) for open_ in frame] for rng, frame in zip(rngs, frames, strict=True)]
        actions |= choose(name, drawn)
    return actions


def choose(action: str, choices: Sequence[Sequence[int]]) -> dict[str, RaggedBuffer[np.int64]]:
    """`choices[i]` are the values of this action for the actors of environment i."""
    flat = np.array([c for row in choices for c in row], np.int64).reshape(-1, 1)
    return {action: RaggedBuffer.from_flattened(flat, [len(row) for row in choices])}


# --- Comparing


def frame(obs: VecObs, i: int) -> dict[str, Any]:
    """Frame `i` as plain values with everything spelled out: what is not masked is open, what is not hidden is visible."""

    def mask_of(mask: RaggedBuffer[np.bool_] | None, rows: int, columns: int) -> list[list[bool]]:
        return [[True] * columns] * rows if mask is None else mask[i].values.reshape(rows, columns).tolist()

    actions: dict[str, Any] = {}
    for name, mask in obs.action_masks.items():
        actors = mask.actors[i].values[:, 0].tolist()
        if mask.actees is not None:
            actees = mask.actees[i].values[:, 0].tolist()
            actions[name] = (actors, actees, mask_of(mask.mask, len(actors), len(actees)))
        else:
            rows = [[True]] * len(actors) if mask.mask is None else mask.mask[i].to_list()[0]
            actions[name] = (actors, ["open" if all(row) else row for row in rows])
    count = {name: buffer.size1()[i] for name, buffer in obs.features.items()}
    return {
        "features": {name: (buffer[i].values.shape, buffer[i].to_list()[0]) for name, buffer in obs.features.items()},
        "visible": {
            name: obs.visible[name][i].values[:, 0].tolist() if name in obs.visible else [True] * count[name]
            for name in obs.features
        },
        "actions": actions,
        "reward": float(obs.reward[i]),
        "done": bool(obs.done[i]),
        "truncated": bool(obs.truncated[i]),
        "info": obs.end_of_episode_info.get(int(obs.env_id[i])),
    }


def frames(obs: VecObs) -> list[dict[str, Any]]:
    return [frame(obs, i) for i in range(len(obs))]


def making(*envs: Environment) -> Callable[[], Environment]:
    """A `create_env` that hands out these environments."""
    given = iter(envs)
    return lambda: next(given)
