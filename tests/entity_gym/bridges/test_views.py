"""Entity views: what they say, how they are checked, and what they make of observations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

pytest.importorskip("gymnasium")

from gymnasium import spaces  # noqa: E402

from entity_gym.actions import SelectEntitiesActionSpace, SelectEntityActionSpace  # noqa: E402
from entity_gym.batch.ragged import RaggedBuffer  # noqa: E402
from entity_gym.bridges import from_gymnasium, gymnasium_worlds  # noqa: E402
from entity_gym.bridges.views.reading import ViewReader  # noqa: E402
from entity_gym.bridges.views.view import included_views, load_view  # noqa: E402
from entity_gym.pools.pool import ListEnv  # noqa: E402
from entity_gym.spaces import GLOBAL_ENTITY, Angle, Category, Entity, Flag  # noqa: E402
from tests.entity_gym.bridges.gym_worlds import Shows  # noqa: E402


def box(*shape: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, shape, np.float32)


def reader(view: str, space: Any, num_agents: int | None = None) -> ViewReader:
    return ViewReader(load_view(yaml.safe_load(view)), space, num_agents)


def seen(view: str, space: Any, *observations: Any) -> dict[str, list[Any]]:
    """Type -> the entities of each observation."""
    its = reader(view, space)
    rows = np.zeros((len(observations), its.size), np.float32)
    for row, observation in zip(rows, observations, strict=True):
        its.write(observation, row)
    found = {}
    for name, each in its.read(rows).items():
        frames = np.split(each.values, np.cumsum(each.counts)[:-1])
        found[name] = [frame.tolist() for frame in frames]
    return found


# ---- where entities are


def test_columns_of_a_flat_box_are_entities_one_type_after_another() -> None:
    view = """
    entities:
      Food: {count: 2, features: [x, y, level], absent: {x: -1, y: -1}}
      Player: {count: 1, features: [x, y, level]}
    actor: Player
    """
    assert seen(view, box(9), np.arange(9), [-1, -1, 0, -1, 5, 2, 6, 7, 8]) == {
        "Food": [[[0, 1, 2], [3, 4, 5]], [[-1, 5, 2]]],
        "Player": [[[6, 7, 8]], [[6, 7, 8]]],
    }


def test_rows_of_a_box_are_entities_where_they_are_present() -> None:
    view = """
    entities: {Ego: {count: 1, features: [null, x]}, Vehicle: {features: [presence, x], presence: presence}}
    actor: Ego
    """
    its = reader(view, box(4, 2))
    assert its.obs_space.entities == {"Ego": Entity(["x"]), "Vehicle": Entity(["x"])}
    assert its.left_out == ["0.0"]
    assert seen(view, box(4, 2), [[1, 10], [1, 11], [0, 12], [1, 13]], np.zeros((4, 2))) == {
        "Ego": [[[10]], [[0]]],
        "Vehicle": [[[11], [13]], []],
    }


@pytest.mark.parametrize(
    ("view", "size", "shown"),
    [
        ("entities: {A: {features: [x, y]}, B: {count: 2, features: [z]}, C: {count: 1, features: [t]}}", 9,
         {"A": [[0, 1], [2, 3], [4, 5]], "B": [[6], [7]], "C": [[8]]}),
        ("entities: {A: {count: 2, features: [x, null]}, B: {features: [z]}}", 7, {"A": [[0], [2]], "B": [[4], [5], [6]]}),
    ],
)  # fmt: skip
def test_a_count_that_is_not_given_is_as_many_as_fit_before_the_types_that_follow(
    view: str, size: int, shown: Any
) -> None:
    assert seen(view, box(size), np.arange(size)) == {"Agent": [[[]]]} | {name: [rows] for name, rows in shown.items()}


def test_cells_of_a_grid_are_numbered_by_row_and_column() -> None:
    view = "entities: {Piece: {index: [row, column], features: [mine], absent: {mine: 0}}}"
    board = [[0, 1, 0], [1, 0, 2]]
    expected = {"Agent": [[[]]], "Piece": [[[0, 1, 1], [1, 0, 1], [1, 2, 2]]]}
    assert seen(view, box(2, 3), board) == expected
    assert seen(view, box(2, 3, 1), np.array(board)[:, :, None]) == expected


def test_leaves_of_a_dict_stand_side_by_side_and_pointers_name_rows() -> None:
    tour = spaces.Box(-1, 2, (3,), np.int32)
    leaves = {"place": box(3, 2), "open": spaces.MultiBinary(3), "here": spaces.Discrete(4, start=-1), "tour": tour}
    space = spaces.Dict(leaves | {"time": box()})
    view = """
    entities:
      City: {features: {place: [x, y], open: [free], here: [{current: pointer}], tour: [{visit: pointer}]}}
    """
    its = reader(view, space)
    assert its.obs_space.entities["City"] == Entity(["x", "y", Flag("free"), Flag("current"), "visit"])
    assert its.obs_space.entities["Agent"] == Entity(["time"])
    place = [[1, 2], [3, 4], [5, 6]]
    first = {"place": place, "open": [1, 1, 1], "here": -1, "tour": [-1, -1, -1], "time": 0.5}
    second = {"place": place, "open": [0, 1, 0], "here": 0, "tour": [2, 0, -1], "time": 1.5}
    assert seen(view, space, first, second) == {
        "Agent": [[[0.5]], [[1.5]]],
        "City": [
            [[1, 2, 1, 0, -1], [3, 4, 1, 0, -1], [5, 6, 1, 0, -1]],
            [[1, 2, 0, 1, 1], [3, 4, 1, 0, -1], [5, 6, 0, 0, 0]],
        ],
    }


def test_features_are_categories_angles_and_flags_where_the_view_or_the_space_says_so() -> None:
    view = "entities: {Car: {count: 1, features: [{lane: 5}, {kind: 3}, {heading: angle}, {hurt: flag}]}}"
    kinds = [Category("lane", 5), Category("kind", 3), Angle("heading"), Flag("hurt")]
    assert reader(view, box(4)).obs_space.entities["Car"] == Entity(kinds)
    assert seen(view, box(4), [4, 2, 0.5, 1])["Car"] == [[[4, 2, 0.5, 1]]]
    cards = reader("entities: {Hand: {features: [card]}}", spaces.MultiDiscrete([5, 7]))
    assert cards.obs_space.entities["Hand"] == Entity([Category("card", 7)])


def test_the_rest_is_the_agents_or_with_an_actor_everybodys() -> None:
    space = spaces.Dict({"ships": box(2, 3), "wind": box(2)})
    value = {"ships": [[1, 2, 3], [4, 5, 6]], "wind": [7, 8]}
    view = "entities: {Ship: {features: {ships: [x, y, z]}}}"
    assert seen(view, space, value) == {"Agent": [[[7, 8]]], "Ship": [[[1, 2, 3], [4, 5, 6]]]}
    assert list(reader(view, space).obs_space.entities.items()) == [
        ("Agent", Entity(["wind.0", "wind.1"])), ("Ship", Entity(["x", "y", "z"]))
    ]  # fmt: skip
    view = "entities: {Me: {count: 1, features: {ships: [x, y, z]}}, Ship: {features: {ships: [x, y, z]}}}\nactor: Me"
    assert seen(view, space, value) == {"Me": [[[1, 2, 3]]], "Ship": [[[4, 5, 6]]], GLOBAL_ENTITY: [[[7, 8]]]}
    assert reader(view, space).obs_space.global_features == ("wind.0", "wind.1")
    assert seen(f"{view}\nignore: [wind]", space, value) == {"Me": [[[1, 2, 3]]], "Ship": [[[4, 5, 6]]]}
    assert seen(f"{view}\nignore: [wind.1]", space, value)[GLOBAL_ENTITY] == [[[7]]]
    text = spaces.Dict({"x": box(1), "mission": spaces.Text(9)})
    for ignore in ("[mission]", "rest"):
        view = f"entities: {{Me: {{features: {{x: [x]}}}}}}\nactor: Me\nignore: {ignore}"
        assert seen(view, text, {"x": [3], "mission": "go"}) == {"Me": [[[3]]]}, "it need not be numbers"


def test_offsets_from_the_actor_become_places() -> None:
    view = """
    entities: {Me: {count: 1, features: [x, y]}, Rock: {features: [y, x, size], add_actor: [x, y]}}
    actor: Me
    """
    assert seen(view, box(8), [10, 20, 1, 2, 9, 3, 4, 9])["Rock"] == [[[21, 12, 9], [23, 14, 9]]]


def test_with_several_agents_each_shows_itself_and_types_are_of_one_agent_or_of_each() -> None:
    view = """
    entities:
      Me: {count: 1, features: [x]}
      Near: {count: 2, features: [there, x], presence: there, add_actor: [x], per_agent: true}
      Goal: {features: [x]}
    actor: Me
    """
    its = reader(view, box(6), num_agents=2)
    rows = np.array([[10, 1, 1, 0, 2, 7], [20, 1, 3, 1, 4, 8]], np.float32)
    for first, goal in ((0, 7), (1, 8)):
        features, _ = its.read_agents(rows, first, [0, 1], [0, 0])
        shown = {name: values.tolist() for name, values in features.items()}
        assert shown == {"Me": [[10], [20]], "Near": [[11], [23], [24]], "Goal": [[goal]]}
    features, _ = its.read_agents(rows[:0], 0, [], [])
    assert [len(values) for values in features.values()] == [0, 0, 0]


def test_cells_around_an_actor_are_numbered_from_where_the_view_says_and_become_places() -> None:
    view = """
    entities:
      Me: {count: 1, features: [x, y]}
      Cell: {count: [2, 3], index: {y: 0, x: -1}, features: [wall], absent: {wall: 0}, add_actor: [x, y]}
    actor: Me
    """
    assert seen(view, box(8), [10, 20, 1, 0, 1, 0, 0, 1])["Cell"] == [[[20, 9, 1], [20, 11, 1], [21, 11, 1]]]


def test_entities_of_each_agent_say_whose_they_are_by_its_number_and_its_side() -> None:
    view = """
    entities:
      Me: {count: 1, features: [x]}
      Near: {count: 2, features: [there, x], presence: there, per_agent: owner}
      Goal: {features: [x]}
    actor: Me
    """
    its = ViewReader(load_view(yaml.safe_load(view)), box(6), num_agents=3, num_sides=2)
    owner = Category("owner", 3)
    assert its.obs_space.entities == {
        "Me": Entity(["x", owner]),
        "Near": Entity(["x", owner, Category("side", 2)]),
        "Goal": Entity(["x"]),
    }
    rows = np.array([[10, 1, 1, 0, 2, 7], [30, 1, 3, 1, 4, 8]], np.float32)
    features, _ = its.read_agents(rows, 0, numbers=[0, 2], sides=[0, 1])
    shown = {name: values.tolist() for name, values in features.items()}
    assert shown == {"Me": [[10, 0], [30, 2]], "Near": [[1, 0, 0], [3, 2, 1], [4, 2, 1]], "Goal": [[7]]}
    without = reader("{entities: {Near: {count: 2, features: [x], per_agent: owner}}}", box(3), num_agents=3)
    assert without.obs_space.entities == {"Agent": Entity(["2", owner]), "Near": Entity(["x", owner])}
    alone = reader(view, box(6))
    assert alone.obs_space.entities["Near"] == Entity(["x"]), "there is nobody else"


# ---- what is refused

TEXT = spaces.Dict({"x": box(1), "mission": spaces.Text(9)})


@pytest.mark.parametrize(
    ("view", "space", "message"),
    [
        ("{entities: {A: {count: 3, features: [x, y]}}}", box(5),
         "entities.A: the 5 numbers of the observation from 0 on are not 3 rows of the features ['x', 'y']: name other"),
        ("{entities: {A: {features: [x, y]}}}", box(5), "are no whole number of rows of the features ['x', 'y']"),
        ("{entities: {A: {features: [x]}, B: {features: [y]}}}", box(5), "entities.A and the view: entities.B have no count"),
        ("{entities: {A: {features: {ship: [x]}}}}", box(5), "entities.A.features names 'ship', which the observation has not"),
        ("{entities: {A: {count: agents, features: [x]}}}", box(5), "entities.A.count is agents; this world has one"),
        ("{entities: {A: {features: [x, x]}}}", box(4), "entities.A: Entity.features names ['x'] more than once"),
        ("{entities: {A: {count: [2, 2], index: i, features: [x]}}}", box(4), "A.index has 1 names; the rows of the observation"),
        ("{entities: {A: {features: [x], presence: y}}}", box(5), "entities.A names 'y', which is no column; allowed: 'x'"),
        ("{entities: {A: {features: [x]}}, ignore: [5]}", box(5), "ignore names '5'; allowed: '0'"),
        ("{entities: {A: {features: [x], add_actor: [x]}}}", box(5), "add_actor names 'x', which is no feature of the actor"),
        ("{entities: {A: {features: {x: [x]}}}}", TEXT, "the observation space at 'mission' is a Text"),
    ],
)  # fmt: skip
def test_a_view_that_does_not_fit_the_space_is_refused_by_column(view: str, space: Any, message: str) -> None:
    with pytest.raises(ValueError) as error:
        reader(view, space)
    assert str(error.value).startswith("the view: ")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("view", "message"),
    [
        ("{}", "the view has no entities; expected a mapping of types"),
        ("{entities: {A: {}}, actr: A}", "the view has no 'actr'; allowed: 'entities', 'actor'"),
        ("{entities: {A: {features: [x]}}, actor: B}", "actor is 'B'; allowed: 'A'"),
        ("{entities: {A: {count: 3}}}", "entities.A has no features; expected a list of names"),
        ("{entities: {A: {features: [x], presence: x}}, actor: A}", "entities.A is the actor, which is always there: it cannot"),
        ("{entities: {A: 3}}", "entities.A is 3; expected a mapping, such as"),
        ("{entities: {A: {colums: 3}}}", "entities.A has no 'colums'; allowed: 'features'"),
        ("{entities: {A: {features: [{x: angel}]}}}", "entities.A.features has {'x': 'angel'}; expected a name"),
        ("{entities: {A: {features: {x: 3}}}}", "entities.A.features of x are 3; expected a list of names"),
        ("{entities: {A: {features: []}}, select: B}", "select has action: 'B'; allowed: 'A'"),
        ("{entities: {A: {}}, ignore: all}", "ignore is 'all'; expected a list of paths"),
    ],
)  # fmt: skip
def test_a_view_that_says_what_no_view_can_is_refused_by_place(view: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        load_view(yaml.safe_load(view))
    assert message in str(error.value)


def test_views_are_found_by_name_and_in_files(tmp_path: Path) -> None:
    assert [load_view(name).name for name in included_views()] == [f"view {name}" for name in included_views()]
    file = tmp_path / "mine.yaml"
    file.write_text("entities: {A: {features: [x]}}")
    assert (
        load_view(file).entities
        == load_view(str(file)).entities
        == load_view({"entities": {"A": {"features": ["x"]}}}).entities
    )
    file.write_text("entities: {A: [")
    with pytest.raises(ValueError, match=r"mine\.yaml cannot be read: while parsing"):
        load_view(file)
    file.write_text("entities: {Car: {}, Car: {}}")
    with pytest.raises(ValueError, match=r"mine\.yaml cannot be read: a mapping has the key 'Car' twice"):
        load_view(file)
    file.write_text("- A")
    with pytest.raises(ValueError, match=r"mine\.yaml holds \['A'\]; expected a mapping"):
        load_view(file)
    with pytest.raises(ValueError, match=r"view is 'highwy', which is neither a file nor .* did you mean 'highway'\?"):
        load_view("highwy")


# ---- in pools


TARGETS = {
    "entities": {
        "Me": {"count": 1, "features": [None, "x"]},
        "Target": {"features": ["there", "x"], "presence": "there"},
    },
    "actor": "Me",
    "select": "Target",
}
SHOWN = [np.array([[1, 0], [1, 1], [0, 2], [1, 3]]) + [[0, 10 * k]] for k in range(3)]


def worlds() -> Any:
    made: list[Shows] = []

    def make() -> Shows:
        infos = [{}, {"action_mask": np.array([1, 1, 0], np.int8)}, {}]
        made.append(Shows(box(4, 2), SHOWN, spaces.Discrete(3), infos))
        return made[-1]

    return make, made


@pytest.mark.parametrize("alone", [False, True], ids=["together", "one by one"])
def test_an_integer_action_selects_a_row_that_is_present(alone: bool) -> None:
    make, made = worlds()
    source = gymnasium_worlds(make, view=TARGETS)
    pool = ListEnv(source.as_environment if alone else source, 2)
    assert pool.action_space() == {"action": SelectEntityActionSpace()}
    obs = pool.reset()
    mask = obs.action_masks["action"]
    assert mask.actors.values.tolist() == [[0], [0]]
    assert mask.actees is not None and mask.actees[0].values.tolist() == [[1], [2]]  # rows 0 and 2 of three targets
    assert obs.features["Target"][0].values.tolist() == [[1], [3]]
    chosen = RaggedBuffer.from_array(np.array([[[1]], [[2]]]))
    obs = pool.act({"action": chosen})
    assert [world.taken for world in made] == [[0], [2]]
    mask = obs.action_masks["action"]
    assert mask.mask is not None and mask.mask[1].values.tolist() == [[True], [False]]  # row 2 is closed
    with pytest.raises(ValueError, match="expected the index of an entity that the actor may select"):
        pool.act({"action": chosen})


@pytest.mark.parametrize("alone", [False, True], ids=["together", "one by one"])
@pytest.mark.parametrize(
    "space",
    [
        spaces.MultiBinary(3),
        spaces.MultiBinary([3, 1]),
        spaces.Box(0, 1, (3,), np.int32),
        spaces.MultiDiscrete([2, 2, 2]),
    ],
    ids=str,
)
def test_binary_numbers_select_a_set_of_the_rows_that_are_present(space: Any, alone: bool) -> None:
    made: list[Shows] = []
    shown = [*SHOWN[:2], np.array([[1, 0], [1, 1], [1, 2], [1, 3]]), np.zeros((4, 2)), SHOWN[0]]
    infos = [{}, {"action_mask": np.array([1, 1, 0])}, {"action_mask": np.array([0, 0, 0])}, {}, {}]

    def make() -> Shows:
        made.append(Shows(box(4, 2), shown, space, infos))
        return made[-1]

    source = gymnasium_worlds(make, view=TARGETS)
    pool = ListEnv(source.as_environment if alone else source, 2)
    assert pool.action_space() == {"action": SelectEntitiesActionSpace()}
    mask = pool.reset().action_masks["action"]
    assert mask.actees is not None and mask.actees[0].values.tolist() == [[1], [2]]  # rows 0 and 2 of three targets

    def act(*sets: list[int]) -> Any:
        return pool.act(
            {
                "action": RaggedBuffer.from_flattened(
                    np.concatenate(sets).astype(np.int64)[:, None], [len(each) for each in sets]
                )
            }
        )

    mask = act([0, 1], [1, 1]).action_masks["action"]
    assert mask.mask is not None and mask.mask[1].values.tolist() == [[True], [False]]  # row 2 is closed
    with pytest.raises(ValueError, match=r"is \[0, 1\], a number for each actee; expected 1 for 0 to all open actees"):
        act([0, 1], [1, 0])
    mask = act([1, 0], [0, 0]).action_masks["action"]
    assert mask.mask is not None and not mask.mask.values.any(), "a set may be empty, so that everything may be closed"
    assert act([0, 0, 0], [0, 0, 0]).action_masks["action"].actees.items() == 0  # nobody is present
    act([], [])
    assert [[each.reshape(-1).tolist() for each in world.taken] for world in made] == [
        [[0, 0, 1], [1, 0, 0], [0, 0, 0], [0, 0, 0]],
        [[1, 0, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0]],
    ]
    assert all(each in space for world in made for each in world.taken)


def test_one_of_several_actions_can_be_a_set_of_rows_without_a_presence() -> None:
    made: list[Shows] = []
    view = {"entities": {"Item": {"features": ["weight"]}}, "select": {"pack": "Item"}}
    space = spaces.Dict({"go": spaces.Discrete(2), "pack": spaces.MultiBinary(3), "turn": spaces.MultiBinary(2)})

    def make() -> Shows:
        made.append(Shows(box(3), [np.array([3, 4, 5]), np.array([5, 6, 7])], space, [{"valid_actions": None}] * 2))
        return made[-1]

    with from_gymnasium(make, view=view) as pool:  # type: ignore[union-attr]
        assert {name: type(each).__name__ for name, each in pool.action_space().items()} == {
            "go": "CategoricalActionSpace",
            "pack": "SelectEntitiesActionSpace",
            "turn.0": "CategoricalActionSpace",
            "turn.1": "CategoricalActionSpace",
        }
        pool.reset()
        chosen = {name: RaggedBuffer.from_array(np.array([[[1]]])) for name in ("go", "turn.1")}
        chosen["turn.0"] = RaggedBuffer.from_array(np.array([[[0]]]))
        chosen["pack"] = RaggedBuffer.from_array(np.array([[[0], [1], [1]]]))
        pool.act(chosen)
    (taken,) = made[0].taken
    assert {name: np.array(value).tolist() for name, value in taken.items()} == {
        "go": 1,
        "pack": [0, 1, 1],
        "turn": [0, 1],
    }


def test_a_selection_of_another_number_of_rows_than_choices_is_refused() -> None:
    with pytest.raises(
        ValueError,
        match="Shows: the view: the action 'action' selects from 3 rows of Target, so it must be a Discrete of 3, or for sets a "
        "MultiBinary of 3; it is a categorical action of 2 choices",
    ):
        from_gymnasium(lambda: Shows(box(4, 2), SHOWN), view=TARGETS)
    with pytest.raises(ValueError, match="MultiBinary of 3; it is a select entities action of 4 choices"):
        from_gymnasium(lambda: Shows(box(4, 2), SHOWN, spaces.MultiBinary(4)), view=TARGETS)
    with pytest.raises(ValueError, match="MultiBinary of 3; it is a continuous action of 0 choices"):
        from_gymnasium(lambda: Shows(box(4, 2), SHOWN, box(3)), view=TARGETS)
    with pytest.raises(ValueError, match=r"select names the action 'move'; allowed: 'action'"):
        from_gymnasium(lambda: Shows(box(4, 2), SHOWN), view=TARGETS | {"select": {"move": "Target"}})
