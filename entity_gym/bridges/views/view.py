"""A `View` says which numbers of a flat observation are entities; `load_view` reads one from YAML.

    entities:
      Ego:     {count: 1, features: [null, x, y, vx, vy]}
      Vehicle: {features: [presence, x, y, vx, vy], presence: presence}
    actor: Ego

This module knows no spaces: `entity_gym.bridges.views.reading` checks a view against them, and reads observations with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from entity_gym.errors import nearest
from entity_gym.spaces import GLOBAL_ENTITY, Angle, Category, Flag

_FOLDER = Path(__file__).parent
#: "as declared": a view says nothing of the column, which is a category or a flag where the space says so, otherwise a number.
Kind = Literal["as declared", "angle", "flag", "category", "pointer"]


@dataclass(frozen=True)
class Column:
    """One column of an entity's rows.

    Attributes:
        name: of the feature; None leaves the column out.
        kind: meaning of its numbers. A "pointer" names rows: the feature is 1 in the row whose number it holds, and 0 in others;
            where there are several numbers, it is the place of the row's number among them, and -1 where that is not there.
        first, num: of a category, the smallest value, and how many values there are.
    """

    name: str | None
    kind: Kind = "as declared"
    first: int = 0
    num: int = 0


@dataclass(frozen=True)
class EntityView:
    """Positions of a type's entities in an observation.

    Attributes:
        features: path of a leaf of the space ("" for an observation that is one Box) -> its columns, in their order. None: all
            columns, called "0", "1" and so on. Several leaves stand side by side.
        start: first column of a flat Box, or first row of a Box with rows. None: where the type before ended.
        count: number of rows; "agents" is the number of agents of the world. None: as many as fit.
        index: names of features that number the rows, from 0: one name, or one for each dimension of a Box of cells.
        presence: name of a column: rows in which it is 0 are no entities. It is not a feature.
        absent: column -> value: rows in which all of these have this value are no entities.
        add_actor: features to which the actor's of the same names are added: offsets from the actor become places.
        per_agent: in worlds of several agents, each agent's observation shows entities of its own; otherwise one agent's has all.
    """

    features: Mapping[str, tuple[Column, ...] | None]
    start: int | None = None
    count: int | Literal["agents"] | None = None
    index: tuple[str, ...] = ()
    presence: str | None = None
    absent: Mapping[str, float] = field(default_factory=dict)
    add_actor: tuple[str, ...] = ()
    per_agent: bool = False


@dataclass(frozen=True)
class View:
    """The entities of a flat observation.

    Attributes:
        name: of the view in messages.
        entities: type -> where its entities are. Types follow one another in a Box unless they have a `start`.
        actor: the type that takes the actions, of which there is one entity, in worlds of several agents one for each. None: an
            entity `Agent`, whose features are all numbers that no entity holds.
        global_features: features of the whole frame. With an `actor`, numbers that no entity holds are global features too.
        select: action -> type of the entity that it selects: choice i is row i.
        action_mask: path of the leaf with the open choices (1) of the only action.
        ignore: paths of leaves, or numbers of columns, that are left out; "rest": all that is in no entity.
    """

    name: str
    entities: Mapping[str, EntityView]
    actor: str | None = None
    global_features: EntityView | None = None
    select: Mapping[str, str] = field(default_factory=dict)
    action_mask: str | None = None
    ignore: tuple[str, ...] | Literal["rest"] = ()

    def paths(self) -> set[str]:
        """Return the paths of the leaves that the view reads."""
        views = [*self.entities.values(), *([] if self.global_features is None else [self.global_features])]
        return {path for each in views for path in each.features} | ({self.action_mask} if self.action_mask else set())


def included_views() -> list[str]:
    """List the names of the views that come with the package."""
    return sorted(file.stem for file in _FOLDER.glob("*.yaml"))


def load_view(given: str | Path | Mapping[str, Any] | View) -> View:
    """Return the view with a name of `included_views`, in a YAML file, or in a mapping with the same content.

    Raises:
        ValueError: there is no such view, or it says something that no view can say; the message names the place.
    """
    if isinstance(given, View):
        return given
    if isinstance(given, Mapping):
        return parse_view(given, "the view")
    if not isinstance(given, str | Path):
        raise ValueError(f"view is {given!r:.200}; expected a name, a YAML file, or a mapping with its content")
    return parse_view(view_mapping(given), f"view {given}")


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
    except OSError as error:
        raise ValueError(f"view {given} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(f"view {given}: not YAML: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"view {given} holds {content!r:.80}; expected a mapping with `entities`")
    return content


# ---- parsing


def parse_view(given: Mapping[str, Any], name: str) -> View:
    """Return the view that a mapping describes; errors begin with `name`."""
    _check_keys(given, ("entities", "actor", "global_features", "select", "action_mask", "ignore"), name)
    entities = given.get("entities")
    if not isinstance(entities, Mapping) or not entities:
        raise ValueError(
            f"{name}: entities is {entities!r:.80}; expected a mapping of types, such as Food: {{count: 3}}"
        )
    parsed = {}
    for entity_type, each in entities.items():
        if not isinstance(entity_type, str) or entity_type == GLOBAL_ENTITY:
            raise ValueError(f"{name}: entities has the type {entity_type!r}; expected a text that is not reserved")
        parsed[entity_type] = _entity(each, f"{name}: entities.{entity_type}")
    actor = given.get("actor")
    if actor is not None and actor not in parsed:
        raise ValueError(f"{name}: actor is {actor!r}; {nearest(actor, parsed)}")
    if actor is not None and (parsed[actor].presence or parsed[actor].absent):
        raise ValueError(
            f"{name}: entities.{actor} is the actor, which is always there: it cannot have presence or absent"
        )
    everywhere = given.get("global_features")
    if everywhere is not None:
        where = f"{name}: global_features"
        everywhere = _entity(everywhere if isinstance(everywhere, Mapping) else {"features": everywhere}, where)
        if everywhere != EntityView(everywhere.features, everywhere.start):
            raise ValueError(f"{where} can have `features` and `start` alone")
        everywhere = EntityView(everywhere.features, everywhere.start, count=1)
    select = given.get("select") or {}
    select = {"action": select} if isinstance(select, str) else select
    for action, entity_type in select.items() if isinstance(select, Mapping) else [("", select)]:
        if entity_type not in parsed:
            raise ValueError(f"{name}: select has {action}: {entity_type!r}; {nearest(entity_type, parsed)}")
    mask = given.get("action_mask")
    if mask is not None and not isinstance(mask, str):
        raise ValueError(f"{name}: action_mask is {mask!r}; expected the path of a leaf of the observation space")
    ignore = given.get("ignore", ())
    if ignore != "rest":
        ignore = tuple(str(each) for each in _list(ignore, f"{name}: ignore", "paths, numbers of columns, or rest"))
    return View(name, parsed, actor, everywhere, dict(select), mask, ignore)


def _entity(given: Any, where: str) -> EntityView:
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise ValueError(f"{where} is {given!r:.80}; expected a mapping, such as {{count: 3, features: [x, y]}}")
    if "relative" in given:
        raise ValueError(
            f"{where} has no 'relative'; it is called add_actor, since it adds the actor's features of the same names: that "
            "turns offsets from the actor into places, and doubles what are places already"
        )
    _check_keys(given, [each.name for each in fields(EntityView)], where)
    features = given.get("features")
    leaves = features if isinstance(features, Mapping) else {"": features}
    columns = {
        str(path): None
        if items is None
        else tuple(_column(item, f"{where}.features") for item in _list(items, f"{where}.features", "names"))
        for path, items in leaves.items()
    }
    start, count, own = given.get("start"), given.get("count"), given.get("per_agent", False)
    if start is not None and (isinstance(start, bool) or not isinstance(start, int) or start < 0):
        raise ValueError(f"{where}.start is {start!r}; expected the number of a column or row, from 0")
    if count not in (None, "agents") and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise ValueError(f"{where}.count is {count!r}; expected a whole number from 1, or agents")
    if not isinstance(own, bool):
        raise ValueError(f"{where}.per_agent is {own!r}; expected true or false")
    index = given.get("index", ())
    index = tuple(_list([index] if isinstance(index, str) else index, f"{where}.index", "names"))
    added = tuple(_list(given.get("add_actor", ()), f"{where}.add_actor", "names of features"))
    absent = given.get("absent") or {}
    if not isinstance(absent, Mapping) or not all(isinstance(value, int | float) for value in absent.values()):
        raise ValueError(f"{where}.absent is {absent!r:.80}; expected columns with numbers, such as {{level: 0}}")
    presence = given.get("presence")
    named = [column.name for items in columns.values() for column in items or () if column.name is not None]
    for what, names in (("presence", [presence] if presence else []), ("absent", absent), ("add_actor", added)):
        for name in names:
            if name not in named and None not in columns.values():
                raise ValueError(f"{where}.{what} names {name!r}, which is no column; {nearest(name, named)}")
    return EntityView(columns, start, count, index, presence, dict(absent), added, own)


def _column(given: Any, where: str) -> Column:
    if given is None or isinstance(given, str):
        return Column(given)
    if isinstance(given, Category):
        return Column(given.name, "category", 0, given.num)
    if isinstance(given, Angle | Flag):
        return Column(given.name, "angle" if isinstance(given, Angle) else "flag")
    if isinstance(given, Mapping) and len(given) == 1:
        ((name, kind),) = given.items()
        if isinstance(name, str):
            if kind in ("angle", "flag", "pointer"):
                return Column(name, kind)
            whole = [kind] if isinstance(kind, int) and not isinstance(kind, bool) else kind
            if isinstance(whole, Sequence) and all(isinstance(each, int) for each in whole):
                if len(whole) == 1 and whole[0] >= 1:
                    return Column(name, "category", 0, whole[0])
                if len(whole) == 2 and whole[1] >= whole[0]:
                    return Column(name, "category", whole[0], whole[1] - whole[0] + 1)
    raise ValueError(
        f"{where} has {given!r:.80}; expected a name, null (left out), or {{name: kind}} with a kind of angle, flag, pointer, a "
        "number of categories, or [first category, last category]"
    )


def _list(given: Any, where: str, what: str) -> Sequence[Any]:
    if isinstance(given, Sequence) and not isinstance(given, str):
        return given
    raise ValueError(f"{where} is {given!r:.80}; expected a list of {what}")


def _check_keys(given: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in given:
        if key not in known:
            raise ValueError(f"{where} has no {key!r}; {nearest(key, known)}")
