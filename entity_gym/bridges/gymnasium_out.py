"""Any entity environment as a `gymnasium.Env`, for libraries that know nothing of entities.

    env = to_gymnasium("MineSweeper", form="ragged")                    # as many rows as there are things
    env = to_gymnasium("MineSweeper")                                   # padded: one Dict of fixed arrays, with masks
    env = to_gymnasium(MyWorld, max_entities={"Robot": 4, "Box": 20})   # a Python world does not say how many there can be

    stable_baselines3.PPO("MultiInputPolicy", to_gymnasium("CherryPick")).learn(10_000)

Seeds, `reset(options={"env_info": ...})`, ends of episodes, images and infos are those of `GymnasiumEnv`, which has a padded
form, too: nested, and with a dictionary of actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.vec_obs import VecObs
from entity_gym.bridges.dense import Form
from entity_gym.bridges.dense_obs import Tree
from entity_gym.bridges.one_world import source_of
from entity_gym.bridges.ragged_form import RaggedForm
from entity_gym.environment import Environment
from entity_gym.errors import nearest

try:
    from gymnasium import spaces
except ImportError as error:
    raise ImportError(f'to_gymnasium needs Gymnasium ({error}): pip install "enn-ppo[gymnasium]"') from error

from entity_gym.bridges.gymnasium_form import GymnasiumEnv

GymnasiumFormName = Literal["padded", "ragged"]


def to_gymnasium(
    env: Any, form: GymnasiumFormName = "padded", render_mode: str | None = None, **options: Any
) -> PaddedEnv | RaggedEnv:
    """One environment as a `gymnasium.Env`.

    Args:
        env: what `make` takes: a name, "package.module:Class", a class or a function; or one `Environment`, which belongs to
            the result from now on.
        form: "padded", arrays of fixed shapes with masks (see `PaddedEnv`), for Stable-Baselines3 and others; or "ragged",
            rows whose number varies (see `RaggedEnv`).
        render_mode: "rgb_array", or None.
        options: those of `make` that concern one environment, and the environment's parameters. `max_entities` (type -> room)
            and `max_actors` (action -> room) are for the padded form, where the environment does not say how many there can
            be; an environment that shows more than that raises a ValueError.

    Raises:
        ValueError: for arguments that cannot be, and for worlds that do not fit in the form, saying what would.
    """
    if form not in get_args(GymnasiumFormName):
        raise ValueError(f"form is {form!r}; {nearest(form, get_args(GymnasiumFormName))}")
    made = PaddedEnv if form == "padded" else RaggedEnv
    one = made(source_of(env), render_mode, **options)
    if isinstance(env, Environment):
        one.spec = None  # Gymnasium would make another of it, with the same object inside
    return one


class PaddedEnv(GymnasiumEnv):
    """One environment with a flat Dict of arrays of fixed shapes, and one array for all actions.

    The observation of a world that is seen through its entities, where `max` is the room for those of a type:

        entities/<type>        (max, F) float32, 0 where nothing can be seen; types with features only
        mask/<type>            (max,) int8, 1 where there is an entity that can be seen
        global                 (G,) float32, the global features, if any
        actors/<action>        (A,) int64, who acts: a row in the list of all rows, type after type, -1: nobody; without
                               global actions
        action_mask/<action>   (A, C) int8, 1 where the actor may take the choice; (C,) where an action is one number

    A world that declares fixed arrays shows these instead: nested names are joined by "/", and single numbers are arrays of
    one; or only one array without a name, if it is that. A "." in names of types and actions becomes "/", too, since parts of
    PyTorch modules cannot be named so.

    An action is one number (`Discrete`) if there is one action with one actor; otherwise whole numbers (`MultiDiscrete`) for
    all actors of the first action of the action space, then for those of the second, and so on; or real ones (`Box`), where
    actions are continuous. Numbers of actors that there are not are ignored. To select an entity, it is its row, or the
    number of all rows for nobody, where that is a choice at all times. A choice that is not open becomes the next open one,
    unless `invalid_actions="raise"`.

    Args:
        env, render_mode, options: as in `to_gymnasium`.

    Raises:
        ValueError: if it is not known how many entities or actors there can be; for rows of players, whose number varies; for
            continuous actions beside others.
    """

    def __init__(self, env: Any, render_mode: str | None = None, **options: Any) -> None:
        super().__init__(env, render_mode, **options)
        self._is_padded = not any(name.partition(":")[0] == "obs" for name in self.env_spec.arrays)
        self._open: Mapping[str, NDArray[np.int8]] = {}  # what the last frame says is open
        name, by_name = self.env_spec.config.name, self.action_space
        self._actions = by_name.spaces if isinstance(by_name, spaces.Dict) else {}
        nested = self.observation_space
        try:
            self.action_space = self._one_space(name)
            if self._is_padded and isinstance(nested, spaces.Dict):
                room = {type_: entity.max or 0 for type_, entity in self.env_spec.entities.items()}
                masks = spaces.Dict({type_: spaces.MultiBinary(most) for type_, most in room.items()})
                nested = spaces.Dict(_with_mask(nested.spaces, masks))
            self.observation_space = _flat_space(nested, name)
        except ValueError:
            self.close()
            raise

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step.

        Raises:
            ValueError: for an action outside the space, or without a running episode.
        """
        return super().step(self._by_name(action) if self._actions else action)

    def action_masks(self) -> NDArray[np.bool_]:
        """(sum of C,) which choices are open now to every number of an action, as `MaskablePPO` of sb3-contrib wants it.

        To an actor that there is not, only choice 0 is open. Empty where actions are continuous.
        """
        if isinstance(self.action_space, spaces.Box):
            return np.zeros(0, np.bool_)
        if not self._open:  # everything is, at all times
            assert isinstance(self.action_space, spaces.Discrete)
            return np.ones(int(self.action_space.n), np.bool_)
        masks = []
        for name in self.env_spec.actions:
            mask = self._open[name]
            rows = mask.reshape(-1, mask.shape[-1]).astype(np.bool_)
            rows[~rows.any(axis=1), 0] = True
            masks.append(rows.ravel())
        return np.concatenate(masks)

    def _frame(self, obs: VecObs) -> tuple[Any, dict[str, Any]]:
        observation, info = super()._frame(obs)
        self._open = (observation if self._is_padded else info).get("action_mask", {})
        if self._is_padded:
            observation = _with_mask(observation, self._mask(observation))
        return _flat(observation), info

    def _mask(self, observation: Mapping[str, Tree]) -> dict[str, NDArray[np.int8]]:
        """Type -> (max,) 1 where there is an entity that can be seen."""
        visible = observation.get("visible", {})
        masks = {}
        for name, entity in self.env_spec.entities.items():
            mask = (np.arange(entity.max or 0) < observation["counts"][name]).astype(np.int8)
            masks[name] = mask & visible[name] if name in visible else mask
        return masks

    def _one_space(self, name: str) -> spaces.Space[Any]:
        """One space for all actions."""
        if not self._actions:
            return self.action_space
        parts = [self._actions[action] for action in self.env_spec.actions]
        whole = [part for part in parts if isinstance(part, spaces.MultiDiscrete)]
        real = [part for part in parts if isinstance(part, spaces.Box)]
        if whole and real:
            kinds = ", ".join(f"{each!r} is {action.kind}" for each, action in self.env_spec.actions.items())
            raise ValueError(
                f"{name} has actions that do not go into one array ({kinds}): use form='ragged', or "
                "entity_gym.bridges.gymnasium_form.GymnasiumEnv, which take a dictionary of them"
            )
        if whole:
            return spaces.MultiDiscrete(np.concatenate([part.nvec for part in whole]))
        low, high = (np.concatenate([bound.ravel() for bound in side]) for side in _bounds(real))
        return spaces.Box(low, high, dtype=np.float32)

    def _by_name(self, action: Any) -> dict[str, NDArray[Any]]:
        """Action -> its part of `action`, as `GymnasiumEnv` takes it."""
        given, wanted = np.asarray(action), self.action_space.shape
        if given.shape != wanted:
            raise ValueError(
                f"{self.env_spec.config.name}: the action has shape {given.shape}; expected {wanted}, the numbers of "
                f"{list(self.env_spec.actions)} one after another"
            )
        parts, begin = {}, 0
        for name in self.env_spec.actions:
            shape = self._actions[name].shape
            assert shape is not None
            end = begin + int(np.prod(shape))
            parts[name], begin = given[begin:end].reshape(shape), end
        return parts


class RaggedEnv(GymnasiumEnv):
    """One environment with rows whose number varies: `ragged_form` says what observations and actions are.

    Spaces are `Dict`s of `Sequence`s of `Box`, `MultiBinary` or `Discrete`, all of them stacked: in an observation each is one
    array. A world that declares fixed arrays is seen through its entities nevertheless.

    Args:
        env, render_mode, options: as in `to_gymnasium`.

    Raises:
        ValueError: for arguments that cannot be, room for entities or actors among them.
    """

    def __init__(self, env: Any, render_mode: str | None = None, **options: Any) -> None:
        for option in ("max_entities", "max_actors"):
            if options.get(option) is not None:
                raise ValueError(
                    f"{option} is for form='padded'; there is no limit with form='ragged', so leave it out"
                )
        super().__init__(env, render_mode, **options)

    def _make_form(self) -> Form:
        return RaggedForm(self.env_spec)


def _with_mask(nested: Mapping[str, Any], mask: Any) -> dict[str, Any]:
    """An observation, or its space, with `mask` in place of what says the same of counts and hidden entities."""
    return {"mask": mask, **{name: branch for name, branch in nested.items() if name not in ("counts", "visible")}}


def _flat(tree: Tree, path: str = "") -> Any:
    """An observation as the module says; an array that is all of it stays one."""
    if not isinstance(tree, dict):
        return np.atleast_1d(tree)
    flat: dict[str, Any] = {}
    for name, branch in tree.items():
        inner = _flat(branch, _joined(path, name))
        flat |= inner if isinstance(inner, dict) else {_joined(path, name): inner}
    return flat


def _flat_space(space: spaces.Space[Any], world: str, path: str = "") -> spaces.Space[Any]:
    """The space of `_flat` of what is in `space`."""
    if isinstance(space, spaces.Dict):
        flat: dict[str, spaces.Space[Any]] = {}
        for name, branch in space.spaces.items():
            key = _joined(path, name)
            inner = _flat_space(branch, world, key)
            more = inner.spaces if isinstance(inner, spaces.Dict) else {key: inner}
            if flat.keys() & more.keys():
                raise ValueError(f"{world} has several things called {sorted(flat.keys() & more.keys())}; rename some")
            flat |= more
        return spaces.Dict(flat)
    if isinstance(space, spaces.Box) and not space.shape:
        return spaces.Box(space.low.reshape(1), space.high.reshape(1), dtype=space.low.dtype.type)
    if isinstance(space, spaces.MultiBinary) and not space.shape:
        return spaces.MultiBinary(1)
    if isinstance(space, spaces.Sequence):
        raise ValueError(
            f"{world} shows a row for each player in {path!r}, and their number varies, so it has no padded form; "
            "use form='ragged', which shows its entities"
        )
    return space


def _joined(path: str, name: str) -> str:
    name = name.replace(".", "/")
    return f"{path}/{name}" if path else name


def _bounds(boxes: list[spaces.Box]) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    return [box.low for box in boxes], [box.high for box in boxes]
