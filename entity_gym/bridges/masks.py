"""Action masks of other libraries' environments: where an environment shows which choices are open, and how that is read.

Every environment is looked through in this order, and the first mask that is found is used:

    observation["action_mask"]       RLlib, PettingZoo; it is then no feature. A view may name another key
    action_masks()                   sb3-contrib: a method of the environment or of a wrapper
    info["action_mask"]              Gymnasium, PettingZoo
    info["action_masks"]
    info["valid_actions"]            numbers of the open choices

A mask has a flag for each choice, 1 where it is open, as bools or numbers, in an array or list; of a set that a view selects, a
flag for each row. Where several actions are
taken at once, it is a tuple, list or dictionary in the form of the action space, or the flags of all actions, one after another.
None, or an info without a mask, leaves everything open.

A bridge makes a `MaskReader` for each environment, or group of agents with the same spaces, gives the observation space `.space`
in place of the environment's own to what makes features, and then per observation:

    observation, masks = reader.read(observation, info)        # masks: action -> (C,) bool; actions that are left out are open

Shapes: C choices of an action.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from entity_gym.bridges.gymnasium.actions import GymActions, Masks, is_distinct
from entity_gym.bridges.gymnasium.observations import FIXED, GROUPS, PlainSpace, kind_of, members_of, shape_of
from entity_gym.bridges.views.view import View
from entity_gym.errors import warn_caller

#: Key of the mask in an observation that is a Dict.
IN_OBSERVATION = "action_mask"
#: Method of an environment that returns the mask.
METHOD = "action_masks"
#: Key of an info with the numbers of the open choices.
VALID = "valid_actions"
#: Keys of an info with a mask, the preferred first.
IN_INFO = ("action_mask", "action_masks", VALID)

_LOOKS_LIKE_ONE = re.compile("mask|valid|legal|avail", re.IGNORECASE)
_said: set[tuple[str, str]] = set()  # (environment, place of its masks) that was told to the user


class MaskReader:
    """Finds the action masks of an environment, and reads them.

    Args:
        name: of the environment in messages.
        actions: that are closed by the masks.
        space: of the observations.
        env: may have a method `action_masks`; None: there is none to ask.
        view: how the observation is read, if there is a view.

    Attributes:
        found: the place of the masks, such as 'info["action_mask"]'; "" as long as there are none.
        space: of the observations without the mask.
        is_quiet: say and warn nothing, since another environment of the pool does.
    """

    def __init__(self, name: str, actions: GymActions, space: Any, env: Any = None, view: View | None = None) -> None:
        self.name, self.space, self.found, self.is_quiet = name, space, "", False
        self._actions = actions
        self._members = members_of(space) if kind_of(space) == "Dict" else {}
        own = None if view is None else view.action_mask
        self._key, self._in_observation = own or IN_OBSERVATION, False
        size = size_of(self._members.get(self._key))
        if own is not None and (size != actions.num_choices or not size):
            raise ValueError(
                f"the view's action_mask names {own!r}, which is {self._members.get(own)}; expected a key of the observation "
                f"with {actions.num_choices} flags, one for each choice"
            )
        self._is_taken_out = False
        self._method: Any = None
        self._looks = 2 if actions.num_choices else 0  # how many more infos are searched for lookalikes
        if actions.num_choices and size == actions.num_choices:
            self.found, self._in_observation = f'observation["{self._key}"]', True
            self._is_taken_out = view is None or self._key not in {*view.paths(), *view.ignore}
            if self._is_taken_out:
                self.space = PlainSpace("Dict", spaces={k: each for k, each in self._members.items() if k != self._key})
        elif actions.num_choices and (method := method_of(env)) is not None:
            self.found, self._method = f"{METHOD}()", method
        self._may_be_in_info = actions.num_choices > 0 and not self.found

    def read(self, observation: Any, info: Mapping[str, Any] | None) -> tuple[Any, Masks]:
        """Return the observation without its mask, as `space` describes it, and action -> (C,) bool, true where it is open.

        Args:
            observation: of the next decision.
            info: that came with it; None if nobody acts, so that there are no masks.

        Raises:
            ValueError: for a mask that does not fit the actions, naming its place.
        """
        if not (info or self.found or self._looks):
            return observation, {}
        place, given = self.found, None
        if self._in_observation:
            if not isinstance(observation, Mapping) or self._key not in observation:
                raise ValueError(f"the observation is {observation!r:.200}; expected a dictionary with {self._key!r}")
            given = observation[self._key]
            if self._is_taken_out:
                observation = {key: value for key, value in observation.items() if key != self._key}
        if info is None:
            return observation, {}
        if self._method is not None:
            given = self._method()
        elif self._may_be_in_info and info:
            key = next((key for key in IN_INFO if info.get(key) is not None), "")
            if key and (key != VALID or hasattr(info[key], "__len__")):  # the number of valid actions is no mask
                place, given = f'info["{key}"]', info[key]
                given = sorted(given) if isinstance(given, set | frozenset) else given
                self.found = self.found or place
        if self._looks:
            self._look(info)
        if given is None:
            return observation, {}
        try:
            return observation, self._actions.masks(given, are_numbers=place == f'info["{VALID}"]')
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None

    def _look(self, info: Mapping[str, Any]) -> None:
        """Say once which mask is used, or warn of something that looks like a mask and is not."""
        self._looks -= 1
        like = [] if self.found else list(self._lookalikes(info))
        if self.is_quiet or not (self.found or like):
            return
        self._looks = 0
        if like:
            warn_caller(
                f"{self.name}: {' and '.join(like)} looks like an action mask, and closes nothing: actions that it forbids are "
                f"taken, too. A mask is {self._actions.num_choices} flags, 1 where a choice is open, in "
                f'observation["{IN_OBSERVATION}"], {METHOD}() or info["{IN_INFO[0]}"]: show it there, in a wrapper'
            )
        elif (self.name, self.found) not in _said:
            _said.add((self.name, self.found))
            print(f"{self.name}: {self.found} closes actions", file=sys.stderr)

    def _lookalikes(self, info: Mapping[str, Any]) -> Iterator[str]:
        """Yield the places of what may be a mask, or the numbers of open choices, by its name and size."""
        size = self._actions.num_choices
        for key, member in self._members.items():
            if _LOOKS_LIKE_ONE.search(str(key)) and (size_of(member) == size or key == IN_OBSERVATION):
                yield f'observation["{key}"]'
        for key, value in info.items():
            if _LOOKS_LIKE_ONE.search(str(key)) and isinstance(value, list | tuple | set | np.ndarray) and len(value):
                flat = np.concatenate([np.ravel(each) for each in value])
                may_be_numbers = "mask" not in str(key).lower() and is_distinct(flat, size)
                if flat.dtype.kind in "biu" and (flat.size == size or may_be_numbers):
                    yield f'info["{key}"]'


def method_of(env: Any) -> Any:
    """Return the method `action_masks` of an environment or of what it wraps; None without one."""
    try:
        return env.get_wrapper_attr(METHOD) if hasattr(env, "get_wrapper_attr") else getattr(env, METHOD, None)
    except AttributeError:
        return None


def size_of(space: Any) -> int:
    """Return how many numbers a value of a space has; -1 of one that is not fixed, or None."""
    if kind_of(space) in GROUPS:
        sizes = [size_of(each) for each in members_of(space).values()]
        return -1 if -1 in sizes else sum(sizes)
    return int(np.prod(shape_of(space), dtype=np.int64)) if kind_of(space) in FIXED else -1
