"""Playing: what belongs to which frame, and the policy's own log-probs, in scripted worlds and in MineSweeper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from enn_ppo.rollout import Rollout
from entity_gym import Environment
from entity_gym.pools.pool import ListEnv
from rogue_net import ActResult, ObsBatch, RaggedTensor, RogueNet, RogueNetConfig
from rogue_net.batch.ragged import segment_sum
from rogue_net.config import Backend
from tests.enn_ppo.rollouts import Collector
from tests.enn_ppo.worlds import Copycat, Moment, Scripted
from tests.entity_gym.envs.minesweeper_python import PythonMineSweeper

TERMINATES = [
    Moment(items=[1], actors=1),
    Moment(items=[2], actors=1, reward=10),
    Moment(items=[99], reward=20, end="terminated"),
    Moment(items=[3], actors=1),
    Moment(items=[4], actors=1, reward=30),
    Moment(items=[50], actors=1, reward=40),
]
TRUNCATES = [moment._replace(end="truncated") if moment.end else moment for moment in TERMINATES]


class SumOfItems:
    """A stand-in for the network: a frame is worth the sum of its items, and the first choice is always taken."""

    def __init__(self) -> None:
        self.evaluated: list[list[float]] = []  # what `value` was asked for

    def act(self, batch: ObsBatch, state: None = None, *, generator: torch.Generator) -> ActResult:
        actors = batch.action_masks["Switch"].actors
        log_probs = {"Switch": actors._replace(values=torch.zeros(len(actors.values)))}
        return ActResult(
            {"Switch": RaggedTensor(torch.zeros_like(actors.values), actors.offsets)},
            log_probs,
            worth(batch),
        )

    def value(self, batch: ObsBatch, state: None = None) -> Tensor:
        self.evaluated.append(worth(batch).tolist())
        return worth(batch)


def worth(batch: ObsBatch) -> Tensor:
    items = batch.features["Item"]
    return segment_sum(items.values[:, 0], items.sequences, len(batch))


def scripted(*scripts: Sequence[Moment], net: Any = None) -> Collector:
    """One environment per script, after `reset`."""
    envs: Iterator[Environment] = map(Scripted, scripts)
    vec_env = ListEnv(lambda: next(envs), len(scripts))
    collector = Collector(vec_env, cast(RogueNet, net or SumOfItems()), torch.device("cpu"), 0)
    collector.reset()
    return collector


def perturbed(env: Environment, backend: Backend = "auto") -> RogueNet:
    """A network whose weights are far from those it starts with, so that its choices are far from equally likely.

    Not farther than this: with noise of 0.3 its own amplifies what float32 rounds, and with either backend log-probs come to
    lie 1e-5 from those of float64. With 0.2 it is 3e-6.
    """
    torch.manual_seed(3)
    config = RogueNetConfig(d_model=16, n_layer=2, n_head=2, backend=backend)
    net = RogueNet(config, env.obs_space(), env.action_space())
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return net


# --- What belongs to which frame ---


def test_rewards_and_endings_stand_with_the_frame_whose_actions_led_to_them() -> None:
    rollout = scripted(TERMINATES, TRUNCATES).collect(4)
    assert worth(rollout.frames.obs).reshape(4, 2).tolist() == [[1, 1], [2, 2], [3, 3], [4, 4]]
    assert rollout.by_step("values").tolist() == [[1, 1], [2, 2], [3, 3], [4, 4]]
    assert rollout.by_step("rewards").tolist() == [[10, 10], [20, 20], [30, 30], [40, 40]]
    assert rollout.by_step("terminated").tolist() == [[False, False], [True, False], [False, False], [False, False]]
    assert rollout.by_step("truncated").tolist() == [[False, False], [False, True], [False, False], [False, False]]
    assert rollout.last_values.tolist() == [50, 50]


def test_a_truncated_episode_is_worth_the_value_of_its_own_last_observation() -> None:
    net = SumOfItems()
    assert scripted(TERMINATES, TRUNCATES, net=net).collect(4).by_step("final_values").tolist() == [
        [0, 0],
        [0, 99],
        [0, 0],
        [0, 0],
    ]
    # that of the terminated episode is not even looked at
    assert sorted(net.evaluated) == [[50, 50], [99]]


def test_all_last_observations_of_a_rollout_are_evaluated_together() -> None:
    short = [Moment(items=[1], actors=1), Moment(items=[5], end="truncated"), Moment(items=[2], actors=1),
             Moment(items=[6], end="truncated")]  # fmt: skip
    net = SumOfItems()
    assert scripted(short, short, net=net).collect(2).by_step("final_values").tolist() == [[5, 5], [6, 6]]
    assert sorted(net.evaluated) == [[1, 1], [5, 5, 6, 6]]


def test_the_next_rollout_goes_on_where_the_last_ended() -> None:
    whole, halves = scripted(TERMINATES, TRUNCATES), scripted(TERMINATES, TRUNCATES)
    rollout, first, second = whole.collect(4), halves.collect(2), halves.collect(2)
    for name in ("values", "rewards", "terminated", "truncated", "final_values"):
        assert torch.equal(rollout.by_step(name), torch.cat([first.by_step(name), second.by_step(name)]))
    assert first.last_values.tolist() == [3, 3]
    assert second.last_values.tolist() == [50, 50]


def test_an_episode_over_several_rollouts_is_counted_once_with_everything_it_earned() -> None:
    collector = scripted(TERMINATES, TRUNCATES)
    assert collector.collect(1).stats.episodes == []
    ended = [(e.env_id, e.reward, e.length, e.truncated) for e in collector.collect(1).stats.episodes]
    assert ended == [(0, 30.0, 2, False), (1, 30.0, 2, True)]
    assert collector.collect(2).stats.episodes == []


# --- Entities and actors that come and go ---

COMING_AND_GOING = [
    Moment(),  # nothing at all
    Moment(items=[1, 2, 3], actors=2),
    Moment(walls=[7]),  # a type that was never seen before, and nobody acts
    Moment(items=[4], walls=[8, 9], actors=1),
    Moment(items=[5, 6], actors=2, end="truncated"),
    Moment(walls=[10]),
    Moment(),
]


def test_frames_hold_what_was_there_at_their_step() -> None:
    rollout = scripted(COMING_AND_GOING, TERMINATES).collect(5)
    assert len(rollout.frames.obs) == 10
    of_first = torch.arange(0, 10, 2)
    gathered = rollout.frames.obs[of_first]
    assert gathered.features["Item"].lengths.tolist() == [0, 3, 0, 1, 0]
    assert gathered.features["Wall"].lengths.tolist() == [0, 0, 1, 2, 1]
    assert gathered.features["Wall"].values.flatten().tolist() == [7, 8, 9, 10]
    # items have ids, walls none, and stand behind the items of their frame
    assert gathered.token_ids.tolist() == [0, 1, 2, -1, 0, -1, -1, -1]
    for per_actor in (rollout.frames.actions["Switch"], rollout.frames.log_probs["Switch"]):
        assert per_actor.gather(of_first).lengths.tolist() == [0, 2, 0, 1, 0]
        assert per_actor.lengths[1::2].tolist() == [1] * 5


def test_a_policy_plays_and_evaluates_entities_and_actors_that_come_and_go() -> None:
    net = perturbed(Scripted(COMING_AND_GOING))
    # every environment is at another point of the script
    scripts = [COMING_AND_GOING[shift:] + COMING_AND_GOING[:shift] for shift in (0, 1, 2)]
    rollout = scripted(*scripts, net=net).collect(14)
    evaluation = net.evaluate(rollout.frames.obs, rollout.frames.actions)
    assert rollout.frames.actions["Switch"].lengths.unique().tolist() == [0, 1, 2]
    torch.testing.assert_close(
        evaluation.log_probs["Switch"].values, rollout.frames.log_probs["Switch"].values, atol=1e-5, rtol=0
    )
    torch.testing.assert_close(evaluation.values, rollout.by_step("values").flatten(), atol=1e-5, rtol=0)


# --- The log-ratio before the first update ---


@pytest.fixture(scope="module")
def played() -> tuple[RogueNet, Rollout]:
    """MineSweeper with a cannon: two kinds of action, robots and mines that vanish, episodes that end in both ways."""

    def create() -> PythonMineSweeper:
        return PythonMineSweeper(
            width=4, height=4, num_mines=3, num_robots=3, orbital_cannon=True, cooldown_period=1, max_steps=6
        )

    net = perturbed(create(), "reference")  # test_compiled_learning has the same for the compiled step
    collector = Collector(ListEnv(create, 8), net, torch.device("cpu"), 1)
    collector.reset(1)
    net.update_normalization(collector.collect(8).frames.obs)
    return net, collector.collect(16)


def log_ratio(net: RogueNet, rollout: Rollout, frames: Tensor) -> Tensor:
    """Log-ratios of all actors of both actions."""
    actions = {name: ragged.gather(frames) for name, ragged in rollout.frames.actions.items()}
    evaluation = net.evaluate(rollout.frames.obs[frames], actions)
    ratios = [
        evaluation.log_probs[name].values - old.gather(frames).values for name, old in rollout.frames.log_probs.items()
    ]
    return torch.cat(ratios).detach()


def test_before_the_first_update_the_log_ratio_is_exactly_0_on_every_step_as_it_was_acted(
    played: tuple[RogueNet, Rollout],
) -> None:
    net, rollout = played
    for frames in torch.arange(len(rollout.frames.obs)).reshape(rollout.by_step("rewards").shape):
        ratios = log_ratio(net, rollout, frames)
        assert len(ratios) > 0
        assert ratios.abs().max().item() == 0.0


@pytest.mark.parametrize("size", [1, 50])
def test_before_the_first_update_the_log_ratio_of_every_actor_is_within_1e_5_in_any_minibatch(
    size: int, played: tuple[RogueNet, Rollout]
) -> None:
    net, rollout = played
    shuffled = torch.randperm(len(rollout.frames.obs), generator=torch.Generator().manual_seed(size))
    for frames in shuffled.split(size):
        ratios = log_ratio(net, rollout, frames)
        assert (ratios.abs() <= 1e-5).all(), ratios.abs().max()


# --- Noise ---


def test_playing_draws_only_from_its_own_generator() -> None:
    net = perturbed(Copycat())

    def play(seed: int) -> Rollout:
        collector = Collector(ListEnv(Copycat, 4), net, torch.device("cpu"), seed)
        collector.reset(1)
        return collector.collect(8)

    before = torch.get_rng_state()
    one, same, other = play(1), play(1), play(2)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.frames.actions["Switch"].values, same.frames.actions["Switch"].values)
    assert torch.equal(one.by_step("rewards"), same.by_step("rewards"))
    assert not torch.equal(one.by_step("rewards"), other.by_step("rewards"))
