"""Action masks of other libraries' environments: where an environment shows which choices are open, and how that is read.

Every environment is looked through in this order, and the first mask that is found is used:

    view: {action_mask: path}        the leaf of the observation that a view names
    observation["action_mask"]       RLlib, PettingZoo; it is then no feature
    action_masks()                   sb3-contrib: a method of the environment or of a wrapper
    info["action_mask"]              Gymnasium, PettingZoo
    info["action_masks"]
    info["valid_actions"]            numbers of the open choices

A mask has a flag for each choice, 1 where it is open, as bools or numbers, in an array or list. Where several actions are
taken at once, it is a tuple, list or dictionary in the form of the action space, or the flags of all actions, one after another.
None, or an info without a mask, leaves everything open.

A bridge makes a `MaskReader` for each environment, or group of agents with the same spaces, gives the observation space `.space`
in place of the environment's own to what makes features, and then per observation:

    masks = reader.read(observation, info)        # action -> (C,) bool; actions that are left out are open
    features.write(reader.rest(observation), row)

Shapes: C choices of an action.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
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
        is_taken_out: `rest` takes the mask out of observations, of which it is no feature.
        is_quiet: say and warn nothing, since another environment of the pool does.
    """

    def __init__(self, name: str, actions: GymActions, space: Any, env: Any = None, view: View | None = None) -> None:
        self.name, self.space, self.found, self.is_quiet = name, space, "", False
        self._actions = actions
        self._size = actions.num_choices
        self._members = dict(members_of(space)) if kind_of(space) == "Dict" else {}
        self._in_observation = self.is_taken_out = False
        self._method: Any = None
        has_own = view is not None and view.action_mask is not None
        self._may_be_in_info = self._size > 0 and not has_own
        self._looks = 2 if self._may_be_in_info else 0  # how many more infos are searched for lookalikes
        if has_own:
            self.found = "the action_mask of the view"
        elif self._size and size_of(self._members.get(IN_OBSERVATION)) == self._size:
            self.found, self._in_observation = f'observation["{IN_OBSERVATION}"]', True
            self.is_taken_out = view is None or IN_OBSERVATION not in {*view.paths(), *view.ignore}
            if self.is_taken_out:
                rest = {key: each for key, each in self._members.items() if key != IN_OBSERVATION}
                self.space = PlainSpace("Dict", spaces=rest)
        elif self._size and (method := method_of(env)) is not None:
            self.found, self._method = f"{METHOD}()", method

    def read(self, observation: Any, info: Mapping[str, Any]) -> Masks:
        """Return action -> (C,) bool, true where a choice is open; actions that are left out are open.

        Args:
            observation: of the next decision.
            info: that came with it.

        Raises:
            ValueError: for a mask that does not fit the actions, naming its place.
        """
        if self._looks:
            self._look(info)
        if self._in_observation:
            place, given = self.found, _member(observation, IN_OBSERVATION)
        elif self._method is not None:
            place, given = self.found, self._method()
        else:
            if not info or not self._may_be_in_info:
                return {}
            key = next((key for key in IN_INFO if info.get(key) is not None), None)
            if key is None or (key == VALID and not hasattr(info[key], "__len__")):  # their number is no mask
                return {}
            place, given = f'info["{key}"]', info[key]
            given = sorted(given) if isinstance(given, set | frozenset) else given
            if not self.found:
                self.found = place
                self._say()
        try:
            return self._actions.masks(given, are_numbers=place == f'info["{VALID}"]')
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None

    def rest(self, observation: Any) -> Any:
        """Return the observation without its mask, as `space` describes it; raises ValueError if there is none."""
        if not self.is_taken_out:
            return observation
        _member(observation, IN_OBSERVATION)
        return {key: value for key, value in observation.items() if key != IN_OBSERVATION}

    def _look(self, info: Mapping[str, Any]) -> None:
        """Say which mask is used, or warn of something that looks like a mask and is not."""
        self._looks -= 1
        if self.found:
            self._looks = 0
            self._say()
            return
        if any(info.get(key) is not None for key in IN_INFO):
            return
        like = [
            f'observation["{key}"]'
            for key, member in self._members.items()
            if _LOOKS_LIKE_ONE.search(str(key)) and (size_of(member) == self._size or key == IN_OBSERVATION)
        ]
        like += [f'info["{key}"]' for key, value in info.items() if self._fits(key, value)]
        if like:
            self._looks = 0
            if not self.is_quiet:
                warn_caller(
                    f"{self.name}: {' and '.join(like)} looks like an action mask, and closes nothing: actions that it forbids "
                    f"are taken, too. A mask is {self._size} flags, 1 where a choice is open, in "
                    f'observation["{IN_OBSERVATION}"], {METHOD}() or info["{IN_INFO[0]}"]: show it there, in a wrapper'
                )

    def _fits(self, key: Any, value: Any) -> bool:
        """Return whether a value of an info may be a mask, or the numbers of open choices."""
        if not _LOOKS_LIKE_ONE.search(str(key)) or not hasattr(value, "__len__") or isinstance(value, str | Mapping):
            return False
        try:
            flat = np.concatenate([np.ravel(each) for each in value]) if len(value) else np.zeros(0)
        except (ValueError, TypeError):  # not of numbers
            return False
        may_be_numbers = "mask" not in str(key).lower() and is_distinct(flat, self._size)
        return flat.dtype.kind in "biu" and (flat.size == self._size or may_be_numbers)

    def _say(self) -> None:
        if not self.is_quiet and (self.name, self.found) not in _said:
            _said.add((self.name, self.found))
            print(f"{self.name}: {self.found} closes actions", file=sys.stderr)


def method_of(env: Any) -> Any:
    """Return the method `action_masks` of an environment or of what it wraps; None without one."""
    try:
        return env.get_wrapper_attr(METHOD) if hasattr(env, "get_wrapper_attr") else getattr(env, METHOD, None)
    except AttributeError:
        return None


def size_of(space: Any) -> int:
    """Return how many numbers a value of a space has; -1 of one that is not fixed, or None."""
    kind = kind_of(space)
    if kind in GROUPS:
        sizes = [size_of(each) for _, each in members_of(space)]
        return -1 if -1 in sizes else sum(sizes)
    return int(np.prod(shape_of(space), dtype=np.int64)) if kind in FIXED else -1


def _member(observation: Any, key: str) -> Any:
    if not isinstance(observation, Mapping) or key not in observation:
        raise ValueError(f"the observation is {observation!r:.200}; expected a dictionary with {key!r}")
    return observation[key]
