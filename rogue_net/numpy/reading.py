"""Policy files and observations. Nothing that is read here is trusted, and nothing is executed.

A policy file is a safetensors file whose header also holds the spaces and the settings:

    8 bytes      n, unsigned, little-endian
    n bytes      JSON: tensor -> {"dtype", "shape", "data_offsets"}, and "__metadata__" -> texts
    the rest     the numbers of the tensors, little-endian
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

FORMAT = 7  # of the files that are read
DTYPES = {"F32": "<f4", "F64": "<f8", "I64": "<i8", "U8": "|u1", "BOOL": "|b1"}
HEADER_BYTES = 2**24
GLOBAL, ACTORS = "__global__", "actors"  # the entity of the whole frame; in `after`: the actors before

Array: TypeAlias = "np.ndarray[Any, Any]"
Feature = tuple[str, Any]  # name and kind: None for a plain number, else its JSON


class PolicyError(ValueError):
    """A policy file or an observation that cannot be used; the message says why."""


def read_file(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return `spaces` and `config` of a policy file, and copies of its tensors without the trainer's.

    Raises:
        PolicyError: the file has another format, is damaged, or holds numbers that are not finite.
    """
    if not os.path.isfile(path):
        raise PolicyError(f"{path} is no file; give a policy file, which python -m enn_ppo.export RUN FILE writes")
    with open(path, "rb") as file:
        data = memoryview(file.read())
    try:
        start = 8 + int.from_bytes(data[:8], "little")
        if not 8 < start <= min(8 + HEADER_BYTES, len(data)):
            raise ValueError("it is no safetensors file, or is cut short")
        header, content = json.loads(bytes(data[8:start])), data[start:]
        metadata = header.pop("__metadata__", {})
        if metadata.get("format") != str(FORMAT):
            found = f"format {metadata['format']:.80}" if "format" in metadata else "no format of enn-ppo"
            raise PolicyError(f"{path} has {found}, and this runtime reads {FORMAT}: take the runtime of its version")
        own, blank = (f'"hash":"{text}"'.encode() for text in (metadata["hash"], "0" * 64))
        digest = hashlib.sha256(bytes(data[:start]).replace(own, blank))
        digest.update(content)
        if digest.hexdigest() != metadata["hash"]:
            raise ValueError("its hash does not fit its content")
        tensors, end = dict[str, Array](), 0
        for name, entry in sorted(header.items(), key=lambda item: tuple(item[1]["data_offsets"])):
            dtype, shape, (first, last) = np.dtype(DTYPES[entry["dtype"]]), entry["shape"], entry["data_offsets"]
            fits = first == end <= last <= len(content) and min(shape, default=0) >= 0
            if not fits or last - first != math.prod(shape) * dtype.itemsize:
                raise ValueError(f"the tensor {name!r} does not lie where its header says")
            end = last
            if not name.startswith("trainer/"):
                tensors[name] = np.frombuffer(content[first:last], dtype).reshape(shape).astype(dtype.newbyteorder("="))
                if not np.isfinite(tensors[name]).all():
                    raise ValueError(f"the tensor {name!r} is NaN or infinite")
        if end != len(content):
            raise ValueError("there are bytes behind its tensors")
        return {name: json.loads(metadata[name]) for name in ("spaces", "config")}, tensors
    except PolicyError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError) as error:
        raise PolicyError(f"{path} is no whole policy file: {error or type(error).__name__}") from error


class Offer(NamedTuple):
    """An action in a frame: who acts, and what is open to them."""

    actors: Array  # (A,) numbers of entities
    actees: Array  # (N,) those that may be selected
    is_open: Array  # (A, C) bool, or (A, N) for actions that select
    after: (
        Array | None
    )  # (A, N, C) bool: what is open once an actor has selected one of the N actees of an earlier action


class Frame(NamedTuple):
    """An observation. Its E entities are numbered type by type, in the order of the spaces."""

    features: dict[str, Array]  # type -> (n, F) float32
    places: dict[str, slice]  # type -> its entities
    ids: list[Hashable | None]  # (E,) the world's own names; None: an entity has none
    visible: Array | None  # (E,) bool, false for what visible entities must not see; None: everything is visible
    offers: dict[str, Offer]  # by action; one that is not on offer is left out


class Spaces:
    """What worlds show and ask for.

    Attributes:
        features: by entity type; `__global__` stands last in frames with global features or an action of the whole frame.
        actions: action -> its `type` and options; besides `is_global`, and `selects` for those that select entities.
        order: the actions in the order of decisions.
    """

    def __init__(self, spaces: Mapping[str, Any]) -> None:
        def of(names: list[str], kinds: list[dict[str, Any]]) -> list[Feature]:
            by_name = {kind["name"]: kind for kind in kinds}
            return [(name, by_name.get(name)) for name in names]

        self.features = {each["name"]: of(each["features"], each.get("kinds", [])) for each in spaces["entities"]}
        self.globals = of(spaces["global_features"], spaces.get("global_kinds", []))
        self.actions, self.order = dict[str, dict[str, Any]](), list[str]()
        for each in spaces["actions"]:
            kind = {"is_global": each["type"].startswith("Global"), "selects": each["type"].startswith("Select")}
            self.actions[each["name"]] = {"after": [], "allowed": {}, "choices": []} | kind | each
        if self.globals or any(action["is_global"] for action in self.actions.values()):
            self.features[GLOBAL] = self.globals
        while waiting := [name for name in self.actions if name not in self.order]:
            self.order.append([name for name in waiting if {*self.actions[name]["after"]} <= {ACTORS, *self.order}][0])

    def selection_before(self, name: str) -> str:
        """The only action in `after` that selects one entity, to which a `mask_after` belongs; empty: there is not one."""
        earlier = [each for each in self.actions[name]["after"] if each != ACTORS]
        found = [each for each in earlier if self.actions[each]["type"] == "SelectEntityActionSpace"]
        return found[0] if len(found) == 1 else ""

    def read(self, observation: Any) -> Frame:
        """Read an observation: a mapping as in docs/protocol.md, or an object with the same attributes.

        Raises:
            PolicyError: it does not fit the spaces.
        """
        given, names, shown, masks = (
            _part(observation, each, {}) for each in ("features", "ids", "visible", "actions")
        )
        _check_known((*given, *names, *shown), self.features.keys() - {GLOBAL}, "entity type")
        _check_known(masks, self.actions, "action")
        features, places, ids = dict[str, Array](), dict[str, slice](), list[Hashable | None]()
        for name in self.features:
            rows = [_part(observation, "global_features", ())] if name == GLOBAL else given.get(name, ())
            rows, start = self._rows(name, rows), len(ids)
            features[name], places[name] = rows, slice(start, start + len(rows))
            ids.extend(names.get(name, [None] * len(rows)))
            if len(ids) != start + len(rows):
                raise PolicyError(f"{len(names[name])} ids for the {len(rows)} entities of type {name!r}")
        numbers = {id_: number for number, id_ in enumerate(ids) if id_ is not None}
        if len(numbers) + ids.count(None) != len(ids):
            raise PolicyError(f"ids are {ids!r:.200}; they must be unique across all types")
        visible = np.ones(len(ids), np.bool_) if shown else None
        for name, flags in shown.items():
            visible[places[name]] = _flags(flags, (len(features[name]),), f"visible of {name!r}")
        frame = Frame(features, places, ids, visible, {})
        for name in self.order:
            if name in masks:
                frame.offers[name] = self._offer(name, masks[name], frame, numbers)
        return frame

    def example(self, alone: str | None) -> dict[str, Any]:
        """An observation with two entities of each type, one of the type `alone`, and every action."""
        counts = {name: 1 if name == alone else 2 for name in self.features if name != GLOBAL}
        return {
            "features": {name: np.zeros((n, len(self.features[name]))) for name, n in counts.items()},
            "ids": {name: [(name, k) for k in range(n)] for name, n in counts.items()},
            "actions": {name: {} for name in self.actions},
            "global_features": [0.0] * len(self.globals),
        }

    def _rows(self, name: str, given: Any) -> Array:
        """The features of a type's entities, (n, F) float32."""
        kinds = self.features[name]
        try:
            rows = np.asarray(given, np.float32)
            rows = rows if len(rows) else np.zeros((0, len(kinds)), np.float32)
        except (TypeError, ValueError):
            rows = np.full((1, len(kinds)), np.nan)
        if rows.shape[1:] != (len(kinds),) or not np.isfinite(rows).all():
            wanted = [feature for feature, _ in kinds]
            raise PolicyError(f"features of {name!r} are {given!r:.200}; expected rows of finite numbers for {wanted}")
        for column, (feature, kind) in enumerate(kinds):
            if kind is not None and kind["type"] != "Angle":
                values, most = rows[:, column], kind.get("num", 2) - 1
                if not ((values >= 0) & (values <= most) & (values == np.floor(values))).all():
                    raise PolicyError(f"{feature!r} of {name!r} is {values.tolist()}; allowed are 0 to {most}")
        return rows

    def _offer(self, name: str, mask: Any, frame: Frame, numbers: dict[Hashable, int]) -> Offer:
        action, actees, after = self.actions[name], np.zeros(0, np.intp), _part(mask, "mask_after", None)
        actors = np.array([len(frame.ids) - 1])
        if not action["is_global"]:
            actors = _found(
                f"actors of {name!r}", *(_part(mask, f"actor_{by}", None) for by in ("ids", "types")), frame, numbers
            )
        if action["selects"] and len(actors):
            actees = _found(
                f"actees of {name!r}", *(_part(mask, f"actee_{by}", None) for by in ("ids", "types")), frame, numbers
            )
        shape = len(actors), len(actees) if action["selects"] else len(action["choices"])
        given = _part(mask, "mask", None)
        is_open = np.ones(shape, np.bool_) if given is None else _flags(given, shape, f"the mask of {name!r}")
        if action.get("exclude_self"):
            is_open = is_open & (actors[:, None] != actees)
        if after is not None:
            earlier = frame.offers.get(self.selection_before(name))
            after = _flags(
                after, (shape[0], len(earlier.actees) if earlier else 0, shape[1]), f"mask_after of {name!r}"
            )
        return Offer(actors, actees, is_open, after)


def _part(of: Any, name: str, default: Any) -> Any:
    """A part of a mapping or of an object; `default` where it is left out or None."""
    found = of.get(name) if isinstance(of, Mapping) else getattr(of, name, None)
    return default if found is None else found


def _check_known(given: Iterable[str], known: Iterable[str], what: str) -> None:
    for name in given:
        if name not in known:
            raise PolicyError(f"the observation has the unknown {what} {name!r}; allowed: {', '.join(known)}")


def _found(what: str, ids: Any, types: Any, frame: Frame, numbers: dict[Hashable, int]) -> Array:
    """The numbers of entities that are listed by id or by type, or of all entities."""
    try:
        if ids is not None:
            found = [numbers[each] for each in ids]
        else:
            listed = [name for name in frame.places if name != GLOBAL] if types is None else types
            found = [number for name in listed for number in range(len(frame.ids))[frame.places[name]]]
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
    if 0 in shape and flags.size == 0:
        return np.ones(shape, np.bool_)
    flags = flags[None] if shape[0] == 1 and flags.shape == shape[1:] else flags
    if flags.shape != shape or flags.dtype != np.bool_:
        raise PolicyError(f"{what} is {given!r:.200}; expected true or false in the shape {shape}")
    return flags
