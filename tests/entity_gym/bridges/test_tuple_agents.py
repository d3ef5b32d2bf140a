"""Gymnasium environments whose tuple spaces have a member for each agent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")

from gymnasium import spaces  # noqa: E402

from entity_gym.batch.ragged import RaggedBuffer  # noqa: E402
from entity_gym.bridges import from_gymnasium  # noqa: E402
from entity_gym.spaces import Entity  # noqa: E402

BOX = spaces.Box(-9, 9, (2,), np.float32)


class Pair(gymnasium.Env[Any, Any]):
    """Two agents; each sees its number and the step, and earns the number of its action, times 10 for the second."""

    observation_space = spaces.Tuple([BOX, BOX])
    action_space = spaces.Tuple([spaces.Discrete(3), spaces.Discrete(3)])
    n_agents = 2

    def __init__(self, flags: bool = False) -> None:
        self.flags = flags  # tell each agent's end
        self.seeds: list[int | None] = []
        self.taken: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.seeds.append(seed)
        self.time = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.taken.append(action)
        self.time += 1
        over = self.time == 2
        return self._seen(), [action[0], 10 * action[1]], [over, over] if self.flags else over, False, {}

    def _seen(self) -> tuple[Any, ...]:
        return tuple(np.array([k, self.time], np.float32) for k in range(2))


def choices(*values: int) -> dict[str, Any]:
    return {"agent.action": RaggedBuffer.from_array(np.array([[[value] for value in values]]))}


@pytest.mark.parametrize("flags", [False, True])
def test_each_member_of_the_tuples_is_an_agent_with_a_reward(flags: bool) -> None:
    pair = Pair(flags)
    pool = from_gymnasium(lambda: pair, seed=5)
    assert pool.obs_space().entities == {"agent": Entity(["0", "1"])}
    obs = pool.reset()
    assert pair.seeds == [5]
    assert obs.features["agent"].values.tolist() == [[0, 0], [1, 0]]
    obs = pool.act(choices(1, 2))
    assert pair.taken == [(1, 2)]
    assert obs.reward.tolist() == [21]
    assert obs.features["agent"].values.tolist() == [[0, 1], [1, 1]]
    obs = pool.act(choices(0, 1))
    assert (obs.done.tolist(), obs.truncated.tolist()) == ([True], [False])
    assert obs.end_of_episode_info == {0: {"score.agent": 31}}
    assert obs.features["agent"].values.tolist() == [[0, 0], [1, 0]]


ONE, OTHER = [1, 0, 1], [0, 0, 1]


@pytest.mark.parametrize(
    "shown",
    [
        lambda masks: {"action_mask": masks},
        lambda masks: [{"action_mask": mask} for mask in masks],
    ],
    ids=["list", "infos"],
)
def test_a_mask_for_each_agent_in_the_info_closes_its_choices(shown: Any) -> None:
    class Masked(Pair):
        masks: Any = (ONE, OTHER)

        def reset(self, **options: Any) -> Any:
            return super().reset(**options)[0], shown(self.masks)

        def step(self, action: Any) -> Any:
            return *super().step(action)[:4], shown(self.masks[::-1])

    pool = from_gymnasium(Masked)
    offered = pool.reset().action_masks["agent.action"]
    assert offered.mask is not None and offered.mask.values.tolist() == [ONE, OTHER]
    offered = pool.act(choices(2, 2)).action_masks["agent.action"]
    assert offered.mask is not None and offered.mask.values.tolist() == [OTHER, ONE]
    asked = from_gymnasium(type("Asked", (Pair,), {"action_masks": lambda self: [ONE, OTHER]}))
    assert asked.reset().action_masks["agent.action"] == pool.reset().action_masks["agent.action"]
    short = from_gymnasium(type("Short", (Masked,), {"masks": ([1, 1, 1],)}))
    with pytest.raises(ValueError, match="Short returned .*; expected one value for each of 2 agents"):
        short.reset()


def test_tuples_of_an_environment_that_does_not_say_so_are_parts_of_one_action() -> None:
    pool = from_gymnasium(type("Anonymous", (Pair,), {"n_agents": None}))
    assert list(pool.action_space()) == ["action.0", "action.1"], "one agent takes both"
    pool.reset()
    both = {name: RaggedBuffer.from_array(np.array([[[0]]])) for name in pool.action_space()}
    with pytest.raises(
        ValueError, match=r"returned reward=\[.*0.*\]; expected a finite number .* has n_agents and Tuple"
    ):
        pool.act(both)


def test_an_episode_ends_when_all_agents_have_ended_by_their_own_flags() -> None:
    class Apart(Pair):
        def step(self, action: Any) -> Any:
            return self._seen(), [1.0, 1.0], [True, False], [False, bool(action[1])], {}

    pool = from_gymnasium(Apart)
    pool.reset()
    assert not pool.act(choices(0, 0)).done[0]
    obs = pool.act(choices(0, 1))
    assert obs.done[0] and obs.truncated[0], "one agent was only cut"


def test_a_view_reads_the_first_row_of_each_agent_and_the_rest_from_the_first_agent() -> None:
    view = {
        "entities": {"Me": {"count": 1, "features": ["number"]}, "Clock": {"count": 1, "features": ["time"]}},
        "actor": "Me",
    }
    pool = from_gymnasium(Pair, view=view)
    obs = pool.reset()
    assert {name: buffer.values.tolist() for name, buffer in obs.features.items()} == {"Me": [[0], [1]], "Clock": [[0]]}
    obs = pool.act({"Me.action": choices(1, 1)["agent.action"]})
    assert {name: buffer.values.tolist() for name, buffer in obs.features.items()} == {"Me": [[0], [1]], "Clock": [[1]]}
    with pytest.raises(ValueError, match="select is for worlds of one agent"):
        from_gymnasium(Pair, view=view | {"select": "Clock"})


@pytest.mark.parametrize("rewards", [{0: 5.0, 1: 7.0}, 1.0, [1.0]])
def test_rewards_that_are_not_one_for_each_agent_are_refused(rewards: Any) -> None:
    class Paid(Pair):
        def step(self, action: Any) -> Any:
            observations, _, *rest = super().step(action)
            return observations, rewards, *rest

    pool = from_gymnasium(Paid)
    pool.reset()
    with pytest.raises(ValueError, match="Paid returned .*; expected one value for each of 2 agents"):
        pool.act(choices(0, 0))
