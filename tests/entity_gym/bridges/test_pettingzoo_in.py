"""PettingZoo environments as worlds of entities; what `Herd` shows and pays is worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")

from gymnasium import spaces  # noqa: E402

from entity_gym import (  # noqa: E402
    CategoricalAction,
    CategoricalActionMask,
    CategoricalActionSpace,
    Category,
    ContinuousAction,
    ContinuousActionMask,
    ContinuousActionSpace,
    Entity,
)
from entity_gym.actions.choices import random_actions  # noqa: E402
from entity_gym.batch.vec_obs import VecAction, VecObs  # noqa: E402
from entity_gym.bridges import masks  # noqa: E402
from entity_gym.bridges.pettingzoo.incoming import PettingZooEnvironment, from_pettingzoo, pettingzoo_worlds  # noqa: E402
from entity_gym.pools.players import players_of  # noqa: E402
from entity_gym.pools.pool import ListEnv  # noqa: E402
from entity_gym.pools.vec_env import VecEnv  # noqa: E402
from tests.entity_gym.bridges.herds import GRAZE, PLACE, Herd  # noqa: E402
from tests.entity_gym.pools.player_worlds import split  # noqa: E402


def graze(agents: list[str], choices: list[int]) -> CategoricalAction:
    return CategoricalAction(agents, np.array(choices))


def hunt(run: int, turn: float) -> dict[str, Any]:
    return {
        "wolf.action.0": CategoricalAction(["wolf_0"], np.array([run])),
        "wolf.action.1": ContinuousAction(["wolf_0"], np.array([[turn]], np.float32)),
    }


def changed(**methods: Any) -> type[Herd]:
    """A herd with other methods."""
    return type("Changed", (Herd,), methods)


def at_random(pool: VecEnv, obs: VecObs, rng: np.random.Generator) -> dict[str, VecAction]:
    return random_actions(obs, rng, pool.action_space())


def rows(features: Mapping[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(values).tolist() for name, values in features.items()}


# ---- agents are entities


def test_agents_of_a_group_are_entities_of_one_type_with_actions_of_their_own() -> None:
    env = PettingZooEnvironment(Herd())
    assert dict(env.obs_space().entities) == {
        "sheep": Entity(["0", "1"]),
        "wolf": Entity([Category("hunger", 3), "place.0", "place.1"]),
    }
    assert env.action_space() == {
        "sheep.action": CategoricalActionSpace(["0", "1", "2"]),
        "wolf.action.0": CategoricalActionSpace(["0", "1"]),
        "wolf.action.1": ContinuousActionSpace([-1.0], [1.0]),
    }
    first = env.reset()
    assert rows(first.features) == {"sheep": [[0, 0], [1, 0]], "wolf": [[0, 0, 0]]}
    assert first.ids == {"sheep": ["sheep_0", "sheep_1"], "wolf": ["wolf_0"]}
    assert first.actions == {
        "sheep.action": CategoricalActionMask(actor_ids=["sheep_0", "sheep_1"]),
        "wolf.action.0": CategoricalActionMask(actor_ids=["wolf_0"]),
        "wolf.action.1": ContinuousActionMask(actor_ids=["wolf_0"]),
    }


def test_agents_appear_act_and_disappear() -> None:
    herd = Herd()
    env = PettingZooEnvironment(herd)
    env.reset()

    second = env.act({"sheep.action": graze(["sheep_1", "sheep_0"], [2, 0]), **hunt(1, 0.5)})
    assert herd.told[0] == {"sheep_0": 5, "wolf_0": (1, np.float32(0.5)), "sheep_1": 7}
    assert second.ids == {"sheep": ["sheep_1"], "wolf": ["wolf_0"]}  # sheep_0 was eaten
    assert rows(second.features) == {"sheep": [[1, 1]], "wolf": [[1, 0, 1]]}
    assert second.reward == 5 + 7 - 2  # what sheep_0 ate last counts, too

    third = env.act({"sheep.action": graze(["sheep_1"], [0]), **hunt(0, 0)})
    assert third.ids == {"sheep": ["sheep_1", "sheep_2"], "wolf": ["wolf_0"]}  # sheep_2 was born
    assert third.actions["sheep.action"] == CategoricalActionMask(actor_ids=["sheep_1", "sheep_2"])

    fourth = env.act({"sheep.action": graze(["sheep_1", "sheep_2"], [0, 1]), **hunt(0, 0)})
    assert herd.told[2]["sheep_2"] == 6
    assert fourth.metrics == {"agents": 3, "reward.sheep": 11, "reward.wolf": -2}


def test_an_episode_ends_with_its_last_agent_and_shows_those_that_were_cut() -> None:
    env = PettingZooEnvironment(Herd(length=2))
    env.reset()
    env.act({"sheep.action": graze(["sheep_0", "sheep_1"], [0, 1]), **hunt(0, 0)})
    last = env.act({"sheep.action": graze(["sheep_1"], [1]), **hunt(0, 0)})
    assert last.done and last.truncated
    assert last.ids == {"sheep": ["sheep_1"], "wolf": ["wolf_0"]}
    assert last.actions == {}
    assert last.end_of_episode_info == {
        "score.sheep": 5 + 6 + 6,
        "score.wolf": -2 - 1,
    }


@pytest.mark.parametrize(
    ("fates", "truncated", "left"),
    [
        ({"sheep_0": "terminated", "sheep_1": "terminated", "wolf_0": "terminated"}, False, []),
        ({"sheep_0": "terminated", "sheep_1": "truncated", "wolf_0": "terminated"}, True, ["sheep_1"]),
        ({"sheep_0": "both", "sheep_1": "both", "wolf_0": "terminated"}, False, []),
        ({}, False, []),  # they are gone, and nothing says why
    ],
)
def test_an_episode_is_truncated_if_somebody_in_it_was_only_cut(
    fates: dict[str, str], truncated: bool, left: list[str]
) -> None:
    class Fate(Herd):
        def step(self, actions: Mapping[str, Any]) -> tuple[Any, ...]:
            observations, rewards, *_, infos = super().step(actions)
            self.agents = []
            ends = [
                {agent: fates.get(agent) in (way, "both") for agent in actions} for way in ("terminated", "truncated")
            ]
            return observations, rewards, *ends, infos

    env = PettingZooEnvironment(Fate())
    env.reset()
    last = env.act({"sheep.action": graze(["sheep_0", "sheep_1"], [0, 0]), **hunt(0, 0)})
    assert (last.done, last.truncated) == (True, truncated)
    assert [agent for of_type in last.ids.values() for agent in of_type] == left


# ---- groups


def test_groups_can_be_told_apart_or_be_one() -> None:
    env = PettingZooEnvironment(Herd(), {"dolly": ["sheep_0"], "flock": "sheep_*", "rest": ["wolf_?"]})
    first = env.reset()
    assert first.ids == {"dolly": ["sheep_0"], "flock": ["sheep_1"], "rest": ["wolf_0"]}
    assert list(env.action_space()) == ["dolly.action", "flock.action", "rest.action.0", "rest.action.1"]
    alike = {"observation_space": lambda self, agent: PLACE, "action_space": lambda self, agent: GRAZE}
    shared = PettingZooEnvironment(changed(**alike)(), {"agent": "*"})
    assert list(shared.action_space()) == ["agent.action"] and shared.player_names == ["agent"]
    names = ["red team-12", "0", "archer", "archer_1_2"]
    named = PettingZooEnvironment(changed(**alike, possible_agents=names)())
    assert list(named.obs_space().entities) == ["red team", "agent", "archer", "archer_1"]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (
            {"all": "*"},
            "the observation space of agent 'wolf_0' is .*, and its group 'all' has .* of agent 'sheep_0': .*groups=",
        ),
        ({"sheep": 3}, r"groups is \{'sheep': 3\}; expected a mapping from the name of each group to its agents"),
        ({"sheep": ["sheep_*"]}, r"the agent 'wolf_0' is in none of the groups \{'sheep': \[\['sheep_\*'\]\]\}"),
        (
            {"sheep": "sheep_*", "wolf": "wolf_*", "ghost": "ghost_*"},
            r"side 0 of the group 'ghost' fits none of the agents \['sheep_0', 'sheep_1', 'sheep_2', 'wolf_0'\]",
        ),
    ],
)
def test_groups_that_cannot_be_are_named(groups: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PettingZooEnvironment(Herd(), groups)


# ---- masks


class Masked(Herd):
    """Two sheep, with masks beside their observations: the first has nothing open, the second its last choice."""

    possible_agents = ["sheep_0", "sheep_1"]
    masks = {"sheep_0": np.zeros(3, np.int8), "sheep_1": np.array([0, 0, 1], np.int8)}

    def observation_space(self, agent: str) -> Any:
        return spaces.Dict({"observation": PLACE, "action_mask": spaces.MultiBinary(3)})

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed, options)
        self.agents = list(self.possible_agents)
        return self.see(self.agents), {}

    def see(self, agents: list[str]) -> dict[str, Any]:
        seen = super().see([agent for agent in agents if agent in self.possible_agents])
        return {agent: {"observation": place, "action_mask": self.masks[agent]} for agent, place in seen.items()}


def test_an_agent_with_nothing_open_does_not_act_and_the_world_is_told_its_first_choice() -> None:
    herd = Masked()
    env = PettingZooEnvironment(herd)
    assert env.obs_space().entities["sheep"] == Entity(["0", "1"])  # what stands beside a mask needs no name
    mask = env.reset().actions["sheep.action"]
    assert isinstance(mask, CategoricalActionMask)
    assert mask.actor_ids == ["sheep_1"] and np.asarray(mask.mask).tolist() == [[False, False, True]]
    env.act({"sheep.action": graze(["sheep_1"], [2])})
    assert herd.told == [{"sheep_0": 5, "sheep_1": 7}]
    herd.masks = {**herd.masks, "sheep_1": np.ones(2, np.int8)}
    with pytest.raises(ValueError, match="agent 'sheep_1': .*the action mask is .*expected 3 flags"):
        env.reset()


def test_masks_of_a_pool_are_named_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(masks, "_said", set())
    from_pettingzoo(Masked, 2).reset()
    assert capsys.readouterr().err == 'herd_v0: observation["action_mask"] closes actions\n'


# ---- pools


def test_environment_i_is_seeded_once_with_seed_plus_i_and_env_info_goes_into_the_options() -> None:
    pool = ListEnv(pettingzoo_worlds(Herd, length=1), 2, seed=40)
    herds = [env.env for env in pool.slots.envs]  # type: ignore[attr-defined]
    obs = pool.reset(env_info=[{"size": 3}, {}])
    obs = pool.act(at_random(pool, obs, np.random.default_rng(0)))
    assert obs.done.all() and obs.truncated.all()
    assert herds[0].resets == [{"seed": 40, "options": {"size": 3}}, {"seed": None, "options": {"size": 3}}]
    assert herds[1].resets == [{"seed": 41, "options": None}, {"seed": None, "options": None}]
    pool.close()
    assert [herd.num_closed for herd in herds] == [1, 1]


# ---- groups that play against each other


def test_groups_are_players_who_see_their_own_agents_alone_and_earn_what_these_earn() -> None:
    factory = pettingzoo_worlds(Herd)
    mapping = players_of(factory)
    assert mapping is not None and mapping.num_players == 2
    pool = ListEnv(factory, 1)
    obs = pool.reset()
    obs = pool.act(at_random(pool, obs, np.random.default_rng(0)))
    sheep, wolf = split(obs, mapping, 0), split(obs, mapping, 1)
    assert rows({name: each.values for name, each in sheep.features.items()}) == {
        "sheep": [[1, 1]],
        "wolf": [[0, 0, 0]],
    }
    assert rows({name: each.values for name, each in wolf.features.items()}) == {"sheep": [[0, 0]], "wolf": [[1, 0, 1]]}
    assert sheep.action_masks["wolf.action.0"].actors.items() == 0
    assert wolf.action_masks["wolf.action.0"].actors.items() == 1
    assert wolf.reward.tolist() == [-2]
    assert sheep.reward[0] + wolf.reward[0] == obs.reward[0]


# ---- faults


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (
            {"reset": lambda self, seed, options: {}},
            r"reset\(\) returned \{\}; expected observations, infos: a dictionary",
        ),
        ({"reset": lambda self, seed, options: ({}, {})}, r"there are no agents after reset\(\)"),
        ({"see": lambda self, agents: {}}, "there is no observation of 'sheep_0', which is one of the agents"),
    ],
)
def test_what_is_wrong_with_a_first_observation_is_named(methods: Any, message: str) -> None:
    pool = from_pettingzoo(changed(**methods))
    with pytest.raises(ValueError, match=message) as caught:
        pool.reset()
    assert "raised by herd_v0 (environment 0) in reset()" in caught.value.__notes__


def altered(part: int, agent: str, *value: Any) -> Callable[..., Any]:
    """`step` with another value of an agent in a part of what it returns, or without the agent in it."""

    def step(self: Herd, actions: Mapping[str, Any]) -> Any:
        result = Herd.step(self, actions)
        result[part].pop(agent, None)
        if value:
            result[part][agent] = value[0]
        if agent not in self.possible_agents:
            self.agents.append(agent)
        return result

    return step


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda self, actions: (), "expected observations, rewards, terminations, truncations, infos: a dictionary"),
        (altered(1, "sheep_0"), "returned no reward of 'sheep_0', which has acted"),
        (altered(1, "wolf_0", None), r"herd_v0 \(environment 0\): reward is nan; it must be a finite number"),
        (altered(0, "bear_0", np.zeros(2)), "'bear_0' appeared, of the group 'bear', .*; allowed: 'sheep', 'wolf'"),
    ],
)
def test_what_is_wrong_with_a_step_is_named(step: Any, message: str) -> None:
    pool = from_pettingzoo(changed(step=step))
    obs = pool.reset()
    with pytest.raises(ValueError, match=message):
        pool.act(at_random(pool, obs, np.random.default_rng(0)))


def test_ids_are_found_with_any_dashes_and_others_have_neighbours() -> None:
    pytest.importorskip("pettingzoo")
    for given in ("butterfly/pistonbal-v6", "pistonbal_v6", "pettingzoo:pistonbal-v6"):
        with pytest.raises(ValueError, match=r"PettingZoo has no environment .*; near are \['butterfly/pistonball-v6'"):
            from_pettingzoo(given)
    with pytest.raises(ValueError, match=r"PettingZoo cannot make 'classic/rps-v2' with \{'sise': 3\}"):
        from_pettingzoo("rps_v2", sise=3)
    with from_pettingzoo("tests.entity_gym.bridges.herds:Herd", length=3) as pool:
        assert "sheep" in pool.obs_space().entities


# ---- views


def test_agents_of_a_view_come_and_go() -> None:
    class Flock(Herd):
        possible_agents = ["sheep_0", "sheep_1", "sheep_2"]

        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed, options)
            self.agents = ["sheep_0", "sheep_1"]
            return self.see(self.agents), {}

    view = {
        "entities": {"Me": {"count": 1, "features": ["number"]}, "Clock": {"count": 1, "features": ["time"]}},
        "actor": "Me",
    }
    pool = from_pettingzoo(Flock, view=view)
    obs, seen = pool.reset(), []
    for _ in range(4):
        seen.append({name: buffer.values[:, 0].tolist() for name, buffer in obs.features.items()})
        obs = pool.act(random_actions(obs, np.random.default_rng(0), pool.action_space()))
    assert seen == [
        {"Me": [0, 1], "Clock": [0]},
        {"Me": [1], "Clock": [1]},
        {"Me": [1, 2], "Clock": [2]},
        {"Me": [1, 2], "Clock": [3]},
    ]
    assert obs.done.tolist() == [True]


class Signs:
    """Two agents each see an answer and 0 to 2 signs of their own; the clock is common."""

    metadata = {"name": "signs"}
    possible_agents = ["left", "right"]
    space = spaces.Box(-9, 9, (6,), np.float32)

    def observation_space(self, agent: str) -> Any:
        return self.space

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = list(self.possible_agents)
        # answer; there and kind of two signs; clock
        shown = {"left": [4, 1, 2, 0, 0, 9], "right": [5, 1, 3, 1, 1, 9]}
        return {agent: np.array(row, np.float32) for agent, row in shown.items()}, {}

    def step(self, actions: Any) -> Any:
        raise NotImplementedError


SIGNS = {
    "entities": {
        "Me": {"count": 1, "features": ["answer"]},
        "Sign": {"count": 2, "features": ["there", "kind"], "presence": "there", "per_agent": "owner"},
        "Clock": {"count": 1, "features": ["time"]},
    },
    "actor": "Me",
}


def test_a_view_has_entities_of_each_agents_own_observation_beside_those_of_the_world() -> None:
    obs = from_pettingzoo(Signs, view=SIGNS).reset()
    shown = {name: each.values.tolist() for name, each in obs.features.items()}
    assert shown == {"Me": [[4, 0], [5, 1]], "Sign": [[2, 0], [3, 1], [1, 1]], "Clock": [[9]]}
    assert obs.action_masks["Me.action"].actors.values[:, 0].tolist() == [0, 1]


def test_players_see_what_their_own_agents_observe_and_of_other_agents_only_how_much() -> None:
    factory = pettingzoo_worlds(Signs, view=SIGNS, groups={"sides": [["left"], ["right"]]})
    mapping = players_of(factory)
    assert mapping is not None and mapping.num_players == 2
    obs = ListEnv(factory, 1).reset()
    left, right = (
        {name: each.values.tolist() for name, each in split(obs, mapping, player).features.items()} for player in (0, 1)
    )
    # kind, owner, side: 0 is one's own
    assert left["Sign"] == [[2, 0, 0], [0, 0, 1], [0, 0, 1]]
    assert right["Sign"] == [[0, 0, 1], [3, 1, 0], [1, 1, 0]]
    assert left["Clock"] == right["Clock"] == [[9]]
