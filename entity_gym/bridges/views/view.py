"""A `View` says which numbers of a flat observation are entities; `load_view` reads one from YAML.

    entities:
      Ego:     {count: 1, features: [null, x, y, vx, vy]}
      Vehicle: {features: [presence, x, y, vx, vy], presence: presence}
    actor: Ego

This module knows no spaces: `entity_gym.bridges.views.reading` checks a view against them, and reads observations with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from entity_gym.errors import nearest
from entity_gym.spaces import GLOBAL_ENTITY

_FOLDER = Path(__file__).parent
#: "as declared": a view says nothing of the column, which is a category or a flag where the space says so, otherwise a number.
Kind = Literal["as declared", "angle", "flag", "category", "pointer"]
_LIST = (list, tuple)
_COLUMNS = (list, tuple, Mapping)


@dataclass(frozen=True)
class Column:
    """One column of an entity's rows.

    Attributes:
        name: of the feature; None leaves the column out.
        kind: meaning of its numbers. A "pointer" names rows: the feature is 1 in the row whose number it holds, and 0 in others;
            where there are several numbers, it is the place of the row's number among them, and -1 where that is not there.
        num: of a category, how many values there are.
    """

    name: str | None
    kind: Kind = "as declared"
    num: int = 0


@dataclass(frozen=True)
class EntityView:
    """Positions of a type's entities in an observation.

    Attributes:
        features: path of a leaf of the space ("" for an observation that is one Box) -> its columns, in their order. Several
            leaves stand side by side.
        count: number of rows, or (3, 3) for the cells of a grid, row by row; "agents" is the number of agents of the world.
            None: as many as fit.
        index: features that number the rows, and their first numbers: one, or one for each dimension of a Box of cells, or of
            the grid of `count`.
        presence: name of a column: rows in which it is 0 are no entities. It is not a feature.
        absent: column -> value: rows in which all of these have this value are no entities.
        add_actor: features to which the actor's of the same names are added: offsets from the actor become places.
        per_agent: in worlds of several agents, each agent's observation shows entities of its own; otherwise one agent's has all.
            A text is the name of a feature that these entities and the actors get: the number of the agent.
    """

    features: Mapping[str, tuple[Column, ...]]
    count: int | tuple[int, ...] | Literal["agents"] | None = None
    index: Mapping[str, int] = field(default_factory=dict)
    presence: str | None = None
    absent: Mapping[str, float] = field(default_factory=dict)
    add_actor: tuple[str, ...] = ()
    per_agent: bool | str = False


@dataclass(frozen=True)
class View:
    """The entities of a flat observation.

    Attributes:
        name: of the view in messages.
        entities: type -> where its entities are. Types follow one another in a Box.
        actor: the type that takes the actions, of which there is one entity, in worlds of several agents one for each. None: an
            entity `Agent`, whose features are all numbers that no entity holds. With an actor these are global features.
        select: action -> type of the entity that it selects: choice i of a Discrete is row i. A MultiBinary, or other whole
            numbers of 0 and 1, selects a set: number i is row i.
        action_mask: key of an observation's mask, if it is another than `entity_gym.bridges.masks` looks for.
        ignore: paths of leaves, or numbers of columns, that are left out; "rest": all that is in no entity.
    """

    name: str
    entities: Mapping[str, EntityView]
    actor: str | None = None
    select: Mapping[str, str] = field(default_factory=dict)
    action_mask: str | None = None
    ignore: tuple[str, ...] | Literal["rest"] = ()

    def paths(self) -> set[str]:
        """Return the paths of the leaves of which the view makes features."""
        return {path for each in self.entities.values() for path in each.features}


def included_views() -> list[str]:
    """List the names of the views that come with the package."""
    return sorted(file.stem for file in _FOLDER.glob("*.yaml"))


def load_view(given: str | Path | Mapping[str, Any]) -> View:
    """Return the view with a name of `included_views`, in a YAML file, or in a mapping with the same content.

    Raises:
        ValueError: there is no such view, or it says something that no view can say; the message names the place.
    """
    if isinstance(given, Mapping):
        return _parse(given, "the view")
    return _parse(view_mapping(given), f"view {given}")


def view_mapping(given: str | Path) -> dict[str, Any]:
    """Read the YAML of a view, named as in `load_view`.

    Raises:
        ValueError: there is no such view, or the file holds no mapping.
    """
    from entity_gym.untrusted import YAML_BYTES, parse_yaml, read_regular  # imports PyYAML

    known = included_views()
    file = _FOLDER / f"{given}.yaml" if str(given) in known else Path(given)
    try:
        content = parse_yaml(read_regular(file, YAML_BYTES))
    except FileNotFoundError:
        raise ValueError(
            f"view is {str(given)!r}, which is neither a file nor a view that comes with entity_gym; {nearest(given, known)}"
        ) from None
    except (OSError, ValueError) as error:
        raise ValueError(f"view {given} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"view {given} holds {content!r:.80}; expected a mapping with `entities`")
    return content


# ---- parsing


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


#: Key of a view -> the test that its value passes, and what messages say is expected. None stands for the default.
_OF_VIEW: dict[str, tuple[Callable[[Any], bool], str]] = {
    "entities": (
        lambda it: isinstance(it, Mapping) and len(it) > 0,
        "a mapping of types, such as Food: {features: [x, y]}",
    ),
    "actor": (lambda it: isinstance(it, str), "a type of entities"),
    "select": (lambda it: isinstance(it, str | Mapping), "a type, or {action: type}"),
    "action_mask": (lambda it: isinstance(it, str), "a key of the observation"),
    "ignore": (lambda it: it == "rest" or isinstance(it, _LIST), "a list of paths, numbers of columns, or rest"),
}
#: The same of a type of entities.
_OF_ENTITY: dict[str, tuple[Callable[[Any], bool], str]] = {
    "features": (lambda it: isinstance(it, _COLUMNS), "a list of names, or {path of a leaf: names}"),
    "count": (
        lambda it: it == "agents" or all(_is_whole(each, 1) for each in (it if isinstance(it, _LIST) and it else [it])),
        "a whole number from 1, a list of these for a grid, or agents",
    ),
    "index": (
        lambda it: (
            isinstance(it, str | list | tuple)
            or (isinstance(it, Mapping) and all(isinstance(each, int) for each in it.values()))
        ),
        "a list of names, or names with the numbers of the first row, such as {x: -1, y: -1}",
    ),
    "presence": (lambda it: isinstance(it, str), "the name of a column"),
    "absent": (
        lambda it: isinstance(it, Mapping) and all(isinstance(each, int | float) for each in it.values()),
        "columns with numbers, such as {level: 0}",
    ),
    "add_actor": (lambda it: isinstance(it, _LIST), "a list of names of features"),
    "per_agent": (lambda it: isinstance(it, bool | str), "true, false, or the name of a feature"),
}


def _checked(given: Mapping[str, Any], rules: Mapping[str, Any], where: str, prefix: str) -> dict[str, Any]:
    """Return the keys that have a value; raises ValueError for a key without a rule, or a value that breaks its rule."""
    for key, value in given.items():
        if key not in rules:
            raise ValueError(f"{where} has no {key!r}; {nearest(key, rules)}")
        if value is not None and not rules[key][0](value):
            raise ValueError(f"{prefix}{key} is {value!r:.80}; expected {rules[key][1]}")
    return {key: value for key, value in given.items() if value is not None}


def _parse(given: Mapping[str, Any], name: str) -> View:
    """Return the view that a mapping describes; errors begin with `name`."""
    given = _checked(given, _OF_VIEW, name, f"{name}: ")
    if "entities" not in given:
        raise ValueError(f"{name} has no entities; expected {_OF_VIEW['entities'][1]}")
    entities = {}
    for entity_type, each in given["entities"].items():
        if not isinstance(entity_type, str) or entity_type == GLOBAL_ENTITY:
            raise ValueError(f"{name}: entities has the type {entity_type!r}; expected a text that is not reserved")
        entities[entity_type] = _entity(each, f"{name}: entities.{entity_type}")
    given["entities"], actor, select = entities, given.get("actor"), given.get("select", {})
    if actor is not None and actor not in entities:
        raise ValueError(f"{name}: actor is {actor!r}; {nearest(actor, entities)}")
    if actor is not None and (entities[actor].presence or entities[actor].absent):
        raise ValueError(
            f"{name}: entities.{actor} is the actor, which is always there: it cannot have presence or absent"
        )
    given["select"] = {"action": select} if isinstance(select, str) else dict(select)
    for action, entity_type in given["select"].items():
        if entity_type not in entities:
            raise ValueError(f"{name}: select has {action}: {entity_type!r}; {nearest(entity_type, entities)}")
    if given.get("ignore") != "rest":
        given["ignore"] = tuple(map(str, given.get("ignore", ())))
    return View(name, **given)


def _entity(given: Any, where: str) -> EntityView:
    if not isinstance(given, Mapping):
        raise ValueError(f"{where} is {given!r:.80}; expected a mapping, such as {{count: 3, features: [x, y]}}")
    given = _checked(given, _OF_ENTITY, where, f"{where}.")
    if "features" not in given:
        raise ValueError(f"{where} has no features; expected {_OF_ENTITY['features'][1]}")
    leaves = given["features"]
    leaves = leaves if isinstance(leaves, Mapping) else {"": leaves}
    columns = {}
    for path, items in leaves.items():
        if not isinstance(items, _LIST):
            raise ValueError(f"{where}.features of {path} are {items!r:.80}; expected a list of names")
        columns[str(path)] = tuple(_column(item, f"{where}.features") for item in items)
    index = given.get("index", ())
    index = (index,) if isinstance(index, str) else index
    given["index"] = dict(index) if isinstance(index, Mapping) else dict.fromkeys(index, 0)
    if isinstance(given.get("count"), _LIST):
        given["count"] = tuple(given["count"])
    return EntityView(**{**given, "features": columns, "add_actor": tuple(given.get("add_actor", ()))})


def _column(given: Any, where: str) -> Column:
    if given is None or isinstance(given, str):
        return Column(given)
    if isinstance(given, Mapping) and len(given) == 1:
        ((name, kind),) = given.items()
        if kind in ("angle", "flag", "pointer"):
            return Column(str(name), kind)
        if _is_whole(kind, 1):
            return Column(str(name), "category", kind)
    raise ValueError(
        f"{where} has {given!r:.80}; expected a name, null (left out), or {{name: kind}} with a kind of angle, flag, pointer, "
        "or a number of categories"
    )
