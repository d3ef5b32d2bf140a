"""Policy files and observations. Nothing that is read here is trusted, and nothing is executed."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

FORMAT = 8  # of the files that are read
DTYPES = {"F32": "<f4", "F64": "<f8", "I64": "<i8", "U8": "|u1", "BOOL": "|b1"}
GLOBAL, ACTORS = "__global__", "actors"  # the entity of the whole frame; in `after`: the actors before
Array: TypeAlias = "np.ndarray[Any, Any]"
PARTS = "features ids visible actions global_features type env id reward done truncated metrics end_of_episode_info "
PARTS += "player_rewards targets"  # of observations, of which the first five are read
OFFERED = "mask mask_after actor_ids actor_types actee_ids actee_types"


class PolicyError(ValueError):
    """A policy file or an observation that cannot be used; the message says why."""


def read_file(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return `spaces` and `config` of a policy file (docs/training.md), and its tensors but for the trainer's."""
    if not os.path.isfile(path):
        raise PolicyError(f"{path} is no file; give a policy file, which python -m enn_ppo.export RUN FILE writes")
    with open(path, "rb") as file:
        data = memoryview(file.read())
    try:
        start = 8 + int.from_bytes(data[:8], "little")
        if not 8 < start <= min(2**24, len(data)):
            raise ValueError("it is no safetensors file, or is cut short")
        header, content, tensors, end = json.loads(bytes(data[8:start])), data[start:], dict[str, Array](), 0
        metadata = header.pop("__metadata__", {})
        if (found := metadata.get("format", "none of enn-ppo")) != str(FORMAT):
            raise PolicyError(f"{path} has format {found:.80}, this runtime reads {FORMAT}: take one of its version")
        own, blank = (f'"hash":"{text}"'.encode() for text in (metadata["hash"], "0" * 64))
        digest = hashlib.sha256(bytes(data[:start]).replace(own, blank))
        digest.update(content)
        if digest.hexdigest() != metadata["hash"]:
            raise ValueError("its hash does not fit its content")
        for name, entry in sorted(header.items(), key=lambda item: tuple(item[1]["data_offsets"])):
            dtype, shape, (first, last) = np.dtype(DTYPES[entry["dtype"]]), entry["shape"], entry["data_offsets"]
            fits = first == end <= last <= len(content) and min(shape, default=0) >= 0
            if not fits or last - first != math.prod(shape) * dtype.itemsize:
                raise ValueError(f"the tensor {name!r} does not lie where its header says")
            if not name.startswith("trainer/"):
                tensor = np.frombuffer(content[first:last], dtype).reshape(shape)
                tensors[name] = tensor.astype(dtype.newbyteorder("="))  # a copy: the file's memory can go
                if not np.isfinite([tensor.min(initial=0), tensor.max(initial=0)]).all():  # NaN is both
                    raise ValueError(f"the tensor {name!r} is NaN or infinite")
            end = last
        if end != len(content):
            raise ValueError("there are bytes behind its tensors")
        return {name: json.loads(metadata[name]) for name in ("spaces", "config")}, tensors
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError) as error:
        message = f"{path} is no whole policy file: {error or type(error).__name__}"
        raise error if isinstance(error, PolicyError) else PolicyError(message) from error


class Offer(NamedTuple):
    """An action in a frame: who acts, and what is open to them."""

    actors: Array  # (A,) numbers of entities
    actees: Array  # (N,) those that may be selected
    is_open: Array  # (A, C) bool, or (A, N) for actions that select
    after: Array | None  # (A, N, C) bool: open to an actor that has selected one of the N actees of an earlier action


class Frame(NamedTuple):
    """An observation. Its E entities are numbered type by type, in the order of the spaces."""

    features: dict[str, Array]  # type -> (n, F) float32
    places: dict[str, slice]  # type -> its entities
    ids: list[Hashable | None]  # (E,) the world's own names; None: an entity has none
    visible: Array | None  # (E,) bool, false for what visible entities must not see; None: everything is visible
    offers: dict[str, Offer]  # by action; one that is not on offer is left out


class Spaces:
    """The spaces of a world.

    `features` of each type are (name, kind), the kind being None for plain numbers; `order` is that of decisions.
    """

    def __init__(self, spaces: Mapping[str, Any]) -> None:
        def of(names: list[str], kinds: list[dict[str, Any]]) -> list[Any]:
            by_name = {kind["name"]: kind for kind in kinds}
            return [(name, by_name.get(name)) for name in names]

        self.features = {each["name"]: of(each["features"], each.get("kinds", [])) for each in spaces["entities"]}
        self.globals = of(spaces["global_features"], spaces.get("global_kinds", []))
        self.actions, self.order = dict[str, dict[str, Any]](), list[str]()
        types = {each["name"]: each["type"] for each in spaces["actions"]}
        for k, each in enumerate(spaces["actions"]):
            action = self.actions[each["name"]] = {"after": [], "allowed": {}, "choices": []} | each
            action |= {"is_global": action["type"].startswith("Global"), "selects": action["type"].startswith("Select")}
            before = [name for name in action["after"] if types.get(name) == "SelectEntityActionSpace"]
            action |= {"at": f"heads.{k}", "selection": before[0] if len(before) == 1 else None}  # of a `mask_after`
        if self.globals or any(action["is_global"] for action in self.actions.values()):
            self.features[GLOBAL] = self.globals  # stands last in every frame
        while left := [name for name in self.actions if name not in self.order]:
            self.order.append([name for name in left if {*self.actions[name]["after"]} <= {ACTORS, *self.order}][0])

    def example(self, alone: str | None) -> dict[str, Any]:
        """An observation of two entities of each type, but one of the type `alone`, and of every action."""
        counts = {name: 1 if name == alone else 2 for name in self.features if name != GLOBAL}
        rows = {name: np.zeros((n, len(self.features[name])), np.float32) for name, n in counts.items()}
        ids = {name: [(name, k) for k in range(n)] for name, n in counts.items()}
        others: dict[str, Any] = {"actions": {n: {} for n in self.order}, "global_features": [0] * len(self.globals)}
        return {"features": rows, "ids": ids, **others}

    def read(self, observation: Any) -> Frame:
        """Read an observation: a mapping as in docs/protocol.md, or an object with its attributes; else a PolicyError."""
        given, names, shown, masks, everywhere, *_ = _parts(observation, PARTS, {})
        for name in {*given, *names, *shown} - (self.features.keys() - {GLOBAL}) | masks.keys() - self.actions.keys():
            raise PolicyError(f"{name!r} is unknown; types: {[*self.features]}, actions: {self.order}")
        features, places, ids = dict[str, Array](), dict[str, slice](), list[Hashable | None]()
        for name in self.features:
            rows = [list(everywhere)] if name == GLOBAL else given.get(name, ())
            rows = features[name] = self._rows(name, rows)
            places[name] = slice(len(ids), len(ids) + len(rows))
            ids.extend(names.get(name, [None] * len(rows)))
            if len(ids) != places[name].stop:
                raise PolicyError(f"{len(names[name])} ids for the {len(rows)} entities of type {name!r}")
        numbers = {id_: number for number, id_ in enumerate(ids) if id_ is not None}
        if len(numbers) + ids.count(None) != len(ids):
            raise PolicyError(f"ids are {ids!r:.200}; they must be unique across all types")
        visible = np.ones(len(ids), np.bool_)
        for name, flags in shown.items():
            visible[places[name]] = _flags(flags, (len(features[name]),), f"visible of {name!r}")
        frame = Frame(features, places, ids, visible if shown else None, {})
        for name in (name for name in self.order if name in masks):
            frame.offers[name] = self._offer(name, masks[name], frame, numbers)
        return frame

    def _rows(self, name: str, given: Any) -> Array:
        """The features of a type's entities, (n, F) float32."""
        kinds = self.features[name]
        try:
            rows = np.asarray(given, np.float32)
            rows = rows if len(rows) else np.zeros((0, len(kinds)), np.float32)
        except (TypeError, ValueError):
            rows = np.full((1, 1 + len(kinds)), np.nan)
        if rows.shape[1:] != (len(kinds),) or not np.isfinite(rows).all():
            raise PolicyError(f"features of {name!r}: {given!r:.200}; expected rows of finite {[n for n, _ in kinds]}")
        for values, (feature, kind) in zip(rows.T, kinds, strict=True):
            most = np.inf if kind is None or kind["type"] == "Angle" else kind.get("num", 2) - 1
            if most < np.inf and ((values % 1).any() or values.min(initial=0) < 0 or values.max(initial=0) > most):
                raise PolicyError(f"{feature!r} of {name!r} is {values.tolist()}; allowed are 0 to {most}")
        return rows

    def _offer(self, name: str, mask: Any, frame: Frame, numbers: dict[Hashable, int]) -> Offer:
        action, (given, after, *who) = self.actions[name], _parts(mask, OFFERED)
        actors, actees = np.array([len(frame.ids) - 1]), np.zeros(0, np.intp)
        if not action["is_global"]:
            actors = _found(f"actors of action {name!r}", who[0], who[1], frame, numbers)
        if action["selects"] and len(actors):
            actees = _found(f"actees of action {name!r}", who[2], who[3], frame, numbers)
        shape = len(actors), len(actees) if action["selects"] else len(action["choices"])
        is_open = np.ones(shape, np.bool_) if given is None else _flags(given, shape, f"the mask of {name!r}")
        is_open = is_open & (actors[:, None] != actees) if action.get("exclude_self") else is_open
        if after is not None:
            columns = len(frame.offers[action["selection"]].actees) if action["selection"] in frame.offers else 0
            after = _flags(after, (shape[0], columns, shape[1]), f"mask_after of {name!r}")
        return Offer(actors, actees, is_open, after)


def _parts(of: Any, names: str, default: Any = None) -> list[Any]:
    """The parts of a mapping, which may have no others, or of an object; `default` where one is left out."""
    if isinstance(of, Mapping) and (unknown := of.keys() - {*names.split()}):
        raise PolicyError(f"{[*unknown][0]!r} is unknown; allowed: {names}")
    found = [of.get(name) if isinstance(of, Mapping) else getattr(of, name, None) for name in names.split()]
    return [default if part is None else part for part in found]


def _found(what: str, ids: Any, types: Any, frame: Frame, numbers: dict[Hashable, int]) -> Array:
    """The numbers of entities that are listed by id or by type, or of all."""
    listed = [name for name in frame.places if name != GLOBAL] if types is None else types
    try:
        by_type = [number for name in listed for number in range(len(frame.ids))[frame.places[name]]]
        found = by_type if ids is None else [numbers[each] for each in ids]
    except (KeyError, TypeError) as error:
        raise PolicyError(f"{what}: nothing has the id or type {error}") from None
    if len({*found}) < len(found) or any(frame.ids[number] is None for number in found):
        raise PolicyError(f"{what} are {ids or types}; each must have an id, and be given once")
    return np.array(found, np.intp)


def _flags(given: Any, shape: tuple[int, ...], what: str) -> Array:
    """An array of bools; that of a single actor may lack the first dimension."""
    try:
        flags = np.asarray(given)
    except ValueError:  # rows of different lengths
        flags = np.asarray(None)
    flags = flags[None] if shape[0] == 1 and flags.shape == shape[1:] else flags
    flags = np.ones(shape, np.bool_) if 0 in shape and flags.size == 0 else flags
    if flags.shape != shape or flags.dtype != np.bool_:
        raise PolicyError(f"{what} is {given!r:.200}; expected true or false in the shape {shape}")
    return flags
