"""Declarations of a class and parameters of its constructor; those that do not fit are named before anything runs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from entity_gym import actions, spaces
from entity_gym.compiled import Categorical, CompiledEnvironment, Entity, GlobalCategorical, SelectEntity
from tests.entity_gym.compiled.comparing import Playing, ordinary
from tests.entity_gym.compiled.worlds import Everything, Watching


def declared(**attributes: Any) -> type[CompiledEnvironment]:
    """`Watching` with other declarations."""
    return type("World", (Watching,), attributes)


# --- The description


def test_a_description_is_the_class_and_its_parameters() -> None:
    env = Everything(num_dogs=3, max_steps=5)
    assert env.values == {"max_steps": 5, "num_dogs": 3, "gravity": 0.3, "windy": True, "fault": 0}
    assert repr(env) == "Everything(max_steps=5, num_dogs=3, gravity=0.3, windy=True, fault=0)"
    assert Everything().values == Everything.defaults()


def test_the_spaces_are_the_declarations_without_capacities() -> None:
    assert Everything.obs_space() == spaces.ObsSpace(
        {
            "Rock": spaces.Entity([]),
            "Cat": spaces.Entity(["x", "y"]),
            "Guard Dog": spaces.Entity(["x", "age", "mood"]),
        },
        ["time left", "wind"],
    )
    assert Everything.action_space() == {
        "Walk": actions.CategoricalActionSpace(["stay", "left", "right"]),
        "Sniff": actions.CategoricalActionSpace(["hold", "sniff"]),
        "Chase": actions.SelectEntityActionSpace(),
        "Throw Rock": actions.SelectEntityActionSpace(),
        "Weather": actions.GlobalCategoricalActionSpace(["sun", "rain", "snow"]),
    }


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ({"gravity": 2}, 2.0),
        ({"max_steps": None}, 0),
    ],
)
def test_parameters_become_the_type_of_their_default(given: dict[str, Any], value: Any) -> None:
    (name,) = given
    stored = Everything(**given).values[name]
    assert stored == value and type(stored) is type(value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_dog": 1}, r"Everything has no parameter 'num_dog'; allowed: 'max_steps', .*; did you mean 'num_dogs'\?"),
        ({"num_dogs": 1.0}, r"Everything: num_dogs is 1.0; it must be a whole number"),
        ({"num_dogs": 2**63}, r"num_dogs is 9223372036854775808; it must be a whole number of 64 bits"),
        ({"gravity": "low"}, r"gravity is 'low'; it must be a finite number"),
        ({"gravity": 10**400}, r"gravity is 10+; it must be a finite number"),
        ({"windy": 1}, r"windy is 1; it must be True or False"),
        ({"max_steps": 0}, r"max_steps is 0; it must be a whole number of at least 1, or None for no limit"),
        ({"num_dogs": 4}, r"Everything: num_dogs is 4; allowed: 0 to 3"),  # its own check
    ],
)
def test_a_parameter_that_cannot_be_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Everything(**given)


# --- Declarations that cannot be


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Entity(["x"], max=0), r"Entity: max is 0; it must be a whole number of at least 1"),
        (lambda: Categorical(["a"]), r"Categorical: actors=None and max_actors=None; give one of them"),
        (lambda: Categorical(["a"], actors="A", max_actors=2), r"actors='A' and max_actors=2; give one of them"),
        (lambda: SelectEntity(actors="A"), r"SelectEntity: actees=None and max_actees=None; give one of them"),
        (lambda: SelectEntity(max_actors=1, actees="A", max_actees=3), r"actees='A' and max_actees=3"),
    ],
)
def test_a_part_that_cannot_be_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


STAR = Watching.entities["Star"]


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"actions": {"go": Categorical(["a"], actors="Stars")}}, r"World: action 'go': actors names the unknown entity type 'Stars'; allowed: 'Star'; did you mean 'Star'\?"),  # noqa: E501
        ({"actions": {"go": SelectEntity(actors="Star", actees=["Star", "Sun"])}}, r"action 'go': actees names the unknown entity type 'Sun'"),  # noqa: E501
        ({"actions": {"Star": GlobalCategorical(["a"])}}, r"World: obs.n.Star would be two counts"),
        ({"entities": {"a b": STAR, "a_b": STAR}}, r"'a_b' in entities is written a_b in code, as 'a b' is; rename it"),
        ({"entities": {"2nd": STAR}}, r"'2nd' in entities is written 2nd in code, but a name begins with a letter and is no"),
        ({"entities": {"visible": STAR}}, r"'visible' in entities is written visible in code, a name that the engine uses; rename it"),  # noqa: E501
        ({"state": [("t", np.int64), ("t", np.float64)]}, r"World: the field 't' is declared twice, in parameters or state"),
        ({"state": [("steps", np.int64)]}, r"World: the field 'steps' is declared by the engine; rename it"),
        ({"parameters": {"t": 1}}, r"World: the field 't' is declared"),
        ({"parameters": {"name": "x"}}, r"parameter 'name' has the default 'x'; it must be int, float or bool"),
        ({"state": [("my field", np.int64)]}, r"the field 'my field' is not a Python name"),
        ({"info": ["tt"]}, r"World: info names the field 'tt'; allowed: .*'t'"),
        ({"state": [("t", np.int64), ("many", np.int64, (3,))], "info": ["many"]}, r"info names 'many', which is an array"),
        ({"reset": None}, r"World has no function reset; a CompiledEnvironment needs reset, step and observe"),
    ],
)  # fmt: skip
def test_a_class_that_cannot_be_is_refused_when_it_is_first_described(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        declared(**attributes)()


@pytest.mark.parametrize(
    "attributes",
    [
        {
            "entities": {"Star": STAR, "aim_actees": STAR},
            "actions": {"aim": SelectEntity(actors="Star", actees="Star")},
        },
        {"actions": {"aim": SelectEntity(actors="Star", actees="Star"), "aim_actees": GlobalCategorical(["x"])}},
        {"state": [("t", np.int64), 5]},
        {"state": [("t", object)]},
        {"state": [("t", ">i8")]},
        {"state": [("t", np.int64, -1)]},
        {"entities": {}, "actions": {}},
        {"actions": {"go": actions.CategoricalActionSpace(["x"])}},
        {"max_steps": 2.5},
    ],
)
def test_whatever_else_cannot_be_is_refused_by_name_and_not_by_the_machinery(attributes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"World"):
        declared(**attributes)()


@pytest.mark.parametrize("name", ["size", "T", "copy"])
def test_any_other_name_will_do_for_a_field_an_entity_or_an_action(name: str) -> None:
    """Names that NumPy uses for its own methods are allowed, too."""
    attributes = {
        "entities": {name: STAR},
        "state": [(name, np.int64)],
        "info": [name],
        "metrics": [name],
        "max_steps": 4,
    }
    source = (
        f"def reset(s):\n    s.{name} = 2\n"
        f"def step(s, act):\n    s.{name} += 1\n    return s.{name}, False, False\n"
        f"def observe(s, obs):\n    obs.n.{name} = 1\n    obs.{name}[0, 0] = s.{name}\n"
    )
    functions: dict[str, Any] = {}
    exec(source, functions)
    world = declared(**attributes, **{f: functions[f] for f in ("reset", "step", "observe")})
    playing = Playing(ordinary(world, 1))
    playing.step()
    assert playing.obs.features[name].values.tolist() == [[3.0]]
    assert playing.obs.metrics[name].sum == 3.0 and playing.obs.reward.tolist() == [3.0]
    for _ in range(3):
        playing.step()
    assert dict(playing.obs.end_of_episode_info) == {0: {name: 6}}
