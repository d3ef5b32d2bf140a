"""A compiled environment as a plain one: the same rules, ids instead of indices, and a record that can be written to."""

from typing import Any

import numpy as np
import pytest

from entity_gym import (
    CategoricalAction,
    CategoricalActionMask,
    GlobalCategoricalAction,
    GlobalCategoricalActionMask,
    Observation,
    SelectEntityAction,
    SelectEntityActionMask,
)
from tests.entity_gym.compiled.view import CompiledView
from tests.entity_gym.compiled.worlds import Everything, Watching
from tests.entity_gym.pools.kinds_of_pools import content


def started(seed: int = 0, **parameters: Any) -> CompiledView:
    env = CompiledView(Everything(**parameters))
    env.rng = np.random.default_rng(seed)
    env.reset()
    return env


def random_choices(obs: Observation, rng: np.random.Generator) -> dict[str, Any]:
    """Return random open actions by id, of an agent that knows ids alone."""
    actions: dict[str, Any] = {}
    for name, mask in obs.actions.items():
        if isinstance(mask, GlobalCategoricalActionMask):
            open_ = np.ones(3, np.bool_) if mask.mask is None else mask.mask[0]
            actions[name] = GlobalCategoricalAction(int(rng.choice(np.flatnonzero(open_))), "")
        elif isinstance(mask, CategoricalActionMask):
            assert mask.actor_ids is not None
            rows = np.ones((len(mask.actor_ids), 3), np.bool_) if mask.mask is None else mask.mask
            actions[name] = CategoricalAction(
                mask.actor_ids, np.array([rng.choice(np.flatnonzero(row)) for row in rows])
            )
        else:
            assert (
                isinstance(mask, SelectEntityActionMask) and mask.actor_ids is not None and mask.actee_ids is not None
            )
            actors, actees = [], []
            for k, actor in enumerate(mask.actor_ids):
                row = np.ones(len(mask.actee_ids), np.bool_) if mask.mask is None else mask.mask[k]
                if row.any():
                    actors.append(actor)
                    actees.append(mask.actee_ids[rng.choice(np.flatnonzero(row))])
            actions[name] = SelectEntityAction(actors, actees)
    return actions


# --- Ids


def test_ids_are_the_type_and_the_place_in_the_list() -> None:
    env = started(num_dogs=3)
    env.record.cats, env.record.rocks = 2, 1
    obs = env.observe()
    assert obs.ids == {
        "Rock": [("Rock", 0)],
        "Cat": [("Cat", 0), ("Cat", 1)],
        "Guard Dog": [("Guard Dog", 0), ("Guard Dog", 1), ("Guard Dog", 2)],
    }
    walk, chase = obs.actions["Walk"], obs.actions["Chase"]
    assert isinstance(walk, CategoricalActionMask) and isinstance(chase, SelectEntityActionMask)
    assert walk.actor_ids == [*obs.ids["Guard Dog"], *obs.ids["Cat"]]
    assert chase.actor_ids == obs.ids["Guard Dog"] and chase.actee_ids == [*obs.ids["Cat"], *obs.ids["Rock"]]
    assert chase.mask is not None and chase.mask.tolist() == [
        [False, True, True],
        [True, False, True],
        [True, True, False],
    ]
    sniff = obs.actions["Sniff"]
    assert isinstance(sniff, CategoricalActionMask)
    assert sniff.actor_ids == [("Guard Dog", 2), ("Guard Dog", 0), ("Cat", 0)]


def test_actions_are_taken_by_ids_in_any_order() -> None:
    one, other = started(2), started(2)
    obs = one.show()
    actions = random_choices(obs, np.random.default_rng(0))
    walk, chase = actions["Walk"], actions["Chase"]
    assert len(walk.actors) > 2 and len(chase.actors) == 2
    backwards = {
        **actions,
        "Walk": CategoricalAction(walk.actors[::-1], walk.actions[::-1]),
        "Chase": SelectEntityAction(chase.actors[::-1], chase.actees[::-1]),
    }
    assert content(one.act(actions)) == content(other.act(backwards))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"Wlak": CategoricalAction([], np.array([], np.int64))}, r"Everything has no action 'Wlak'; .*did you mean 'Walk'\?"),
        ({"Walk": CategoricalAction([("Dog", 0)], np.array([1]))}, r"Everything: action 'Walk' names the actor \('Dog', 0\)"),
        ({"Chase": SelectEntityAction([("Guard Dog", 0)], [("Cow", 1)])}, r"names \('Cow', 1\), which no entity has"),
        ({"Chase": SelectEntityAction([("Guard Dog", 0)], [("Guard Dog", 1)])}, r"action 'Chase' of entity \d is \d; expected"),
        ({"Weather": GlobalCategoricalAction(1, "rain")}, r"action 'Weather' of entity \d is 1; .*not masked"),
        ({"Walk": CategoricalAction([("Cat", 0)], np.array([1, 2]))}, r"has actions of shape .2,. .*expected .* .1,"),
        ({"Walk": GlobalCategoricalAction(1, "left")}, r"action 'Walk' is a GlobalCategoricalAction; it must be a Categ"),
    ],
)  # fmt: skip
def test_an_action_that_was_not_offered_is_refused_and_nothing_happens(change: dict[str, Any], message: str) -> None:
    env = started(2)
    before = content(env.state())
    actions = random_choices(env.show(), np.random.default_rng(0)) | change
    with pytest.raises(ValueError, match=message):
        env.act({name: action for name, action in actions.items() if action is not None})
    assert content(env.state()) == before


def test_an_action_that_is_not_offered_may_be_left_out() -> None:
    env = started(2)
    env.record.steps = 4  # nobody walks
    obs = env.observe()
    assert "Walk" not in obs.actions
    env.act(random_choices(obs, np.random.default_rng(0)))


def test_outside_an_episode_there_are_no_steps() -> None:
    env = CompiledView(Watching(max_steps=1))
    with pytest.raises(ValueError, match=r"Watching.act\(\) was called outside an episode; call reset\(\) first"):
        env.act({})
    env.reset()
    assert env.act({}).done
    with pytest.raises(ValueError, match="outside an episode"):
        env.act({})


# --- The record


def test_it_is_drawn_as_its_class_draws_it() -> None:
    env = started()
    image = env.render()
    assert image.shape == (4, 8, 3) and image[0, :, 0].sum() == 255 * env.record.cats
    with pytest.raises(NotImplementedError, match="Watching implements neither render"):
        CompiledView(Watching()).render()


def test_what_was_shown_does_not_change_with_the_environment() -> None:
    env, rng = started(), np.random.default_rng(0)
    seen, copies = [], []
    for _ in range(30):
        obs = env.show()
        seen.append(obs)
        copies.append(content(obs))
        if obs.done:
            env.reset()
        else:
            env.act(random_choices(obs, rng))
    assert [content(obs) for obs in seen] == copies
