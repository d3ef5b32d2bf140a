"""Tests of what several policies see, do and earn in one world, each as its own players."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from enn_ppo.rollout import EnvBlock, Rollout, play
from enn_ppo.settings.config import RolloutConfig
from enn_ppo.settings.world import EnvConfig
from enn_ppo.training.build import make_pools
from enn_ppo.training.environment import BoundEnvironment
from enn_ppo.training.learning.actor_critic import ActorCritic
from enn_ppo.training.players import Cast, cast_of
from enn_ppo.training.sampling import LocalSampler, block_state, load_block
from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.envs.minesweeper import MineSweeper
from entity_gym.envs.multi_snake import MultiSnake
from entity_gym.pools.episodes import EpisodeTracker
from entity_gym.pools.players import PlayerMapping, players_of
from entity_gym.pools.pool import ThreadedVecEnv
from rogue_net import FrameKeys, ObsBatch, RogueNet
from tests.enn_ppo.players_worlds import CPU, SNAKES, snake_net
from tests.enn_ppo.rollouts import Collector
from tests.enn_ppo.rows import same
from tests.entity_gym.pools.player_worlds import split

FOUR = MultiSnake(board_size=8, num_snakes=4, num_players=4, max_snake_length=3, max_steps=2)
CAST_OF_FOUR = {"red": [2, 0], "blue": [3, 1]}
STEPS = 8


class Spied(ThreadedVecEnv):
    """Remembers what it has shown, and what was done."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.shown: list[VecObs] = []
        self.done: list[Mapping[str, VecAction]] = []

    def reset(self, *args: Any, **kwargs: Any) -> VecObs:
        self.shown = [super().reset(*args, **kwargs)]
        return self.shown[0]

    def act(self, actions: Mapping[str, VecAction], *args: Any) -> VecObs:
        self.done.append(actions)
        self.shown.append(super().act(actions, *args))
        return self.shown[-1]


def make_nets(policies: Mapping[str, Any], source: MultiSnake = SNAKES) -> dict[str, ActorCritic]:
    nets = {}
    for number, name in enumerate(policies):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number)
            nets[name] = ActorCritic(RogueNet(snake_net().config, source.obs_space(), source.action_space()))
    return nets


def mapping_of(source: MultiSnake) -> PlayerMapping:
    mapping = players_of(source)
    assert mapping is not None
    return mapping


def columns(rollout: Rollout) -> Iterator[tuple[int, int, int, int]]:
    """(frame, step, column, environment and place among the policy's players) of every frame."""
    num_steps, num_columns = rollout.by_step("rewards").shape
    for frame in range(num_steps * num_columns):
        step, column = divmod(frame, num_columns)
        yield frame, step, column, int(rollout.by_step("env_id")[0, column])


def test_a_policys_rollout_is_what_split_shows_to_its_players_and_all_together_did_what_the_world_saw() -> None:
    pool = Spied(FOUR, 3, seed=0)
    cast, nets = Cast(CAST_OF_FOUR, mapping_of(FOUR)), make_nets(CAST_OF_FOUR, FOUR)
    collector = EnvBlock(pool, nets, CPU, cast=cast)
    collector.reset(2)
    (rollouts,) = play([collector], STEPS, 0)
    views = {player: [split(obs, cast.mapping, player) for obs in pool.shown] for player in range(4)}
    acted = [np.full(done["move"].values.shape, -1) for done in pool.done]
    assert list(rollouts) == ["red", "blue"]
    for name, rollout in rollouts.items():
        assert rollout.by_step("rewards").shape == (STEPS, 3 * 2)
        assert sorted(rollout.by_step("env_id")[0].tolist()) == list(range(6))
        for frame, step, column, number in columns(rollout):
            env, place = divmod(number, 2)
            before, after = views[CAST_OF_FOUR[name][place]][step : step + 2]
            one, own = (
                rollout.frames.obs[torch.tensor([frame])],
                ObsBatch.from_vec_obs(before, CPU)[torch.tensor([env])],
            )
            assert all(torch.equal(one.features[kind].values, rows.values) for kind, rows in own.features.items())
            actors = own.action_masks["move"].actors.values
            assert torch.equal(one.action_masks["move"].actors.values, actors)
            assert rollout.by_step("rewards")[step, column] == after.reward[env]
            assert rollout.by_step("truncated")[step, column] == after.truncated[env]
            assert rollout.by_step("terminated")[step, column] == (after.done[env] and not after.truncated[env])
            assert rollout.by_step("step")[step, column] == before.elapsed_step[env]
            torch.testing.assert_close(rollout.by_step("values")[step, column], nets[name].value(one)[0])
            torch.testing.assert_close(
                rollout.by_step("final_values")[step, column], last_value(nets[name], after, env)
            )
            offsets = rollout.frames.actions["move"].offsets
            for actor, action in zip(
                actors, rollout.frames.actions["move"].values[offsets[frame] : offsets[frame + 1]], strict=True
            ):
                row = row_of(pool.shown[step], env, int(actor))
                assert acted[step][row] == -1
                acted[step][row] = action
    assert any(obs.truncated.any() for obs in pool.shown)
    assert any(view.reward.any() for shown in views.values() for view in shown)
    assert all(np.array_equal(mine, done["move"].values) for mine, done in zip(acted, pool.done, strict=True))


def last_value(net: ActorCritic, after: VecObs, env: int) -> torch.Tensor:
    """The value of what an environment showed last, if its episode was truncated; else 0."""
    if after.final is None or env not in after.final.env_id:
        return torch.tensor(0.0)
    return net.value(ObsBatch.from_vec_obs(after.final, CPU))[list(after.final.env_id).index(env)].detach()


def row_of(obs: VecObs, env: int, actor: int) -> int:
    """Row of an actor of an environment among all that move."""
    actors = obs.action_masks["move"].actors
    begin, end = actors.offsets[env], actors.offsets[env + 1]
    return int(begin) + actors.values[begin:end, 0].tolist().index(actor)


def test_an_episode_ends_once_for_each_policy_with_its_own_rewards_and_says_who_won() -> None:
    cast = Cast({"red": [0], "blue": [1]}, mapping_of(SNAKES))
    pool = Spied(SNAKES, 4, seed=0)
    collector = EnvBlock(pool, make_nets(cast.policies), CPU, first_env=8, cast=cast)
    collector.reset(0)
    (rollouts,) = play([collector], 40, 0)
    sums, expected = np.zeros((4, 2)), []
    for obs in pool.shown[1:]:
        sums += np.stack([split(obs, cast.mapping, player).reward for player in (0, 1)], axis=1)
        for env in np.flatnonzero(obs.done):
            expected.append((8 + int(env), *sums[env].tolist()))
            sums[env] = 0
    red, blue = rollouts["red"].stats.episodes, rollouts["blue"].stats.episodes
    assert len(expected) > 4 and any(own != other for _, own, other in expected)
    assert [(one.env_id, one.reward, other.reward) for one, other in zip(red, blue, strict=True)] == expected
    for one, other in zip(red, blue, strict=True):
        assert (one.info["policy"], one.info["opponent"]) == ("red", "blue")
        assert (one.info["opponent_reward"], other.info["opponent_reward"]) == (other.reward, one.reward)
        assert one.info["win_rate"] == 1 - other.info["win_rate"]
        assert one.info["win_rate"] == 0.5 + 0.5 * np.sign(one.reward - other.reward)


def test_a_policy_of_several_players_gets_their_mean_and_wins_against_those_of_others_alone() -> None:
    obs = ThreadedVecEnv(SNAKES, 1).reset(0)
    obs.done = np.array([True])
    rewards = np.array([[1.0, 2.0, 6.0]], np.float32)
    ended = EpisodeTracker(1, policies={"red": [2, 0], "blue": [1]}).step_players(obs, rewards)
    episodes = {name: own for name, (own,) in ended.items()}
    assert (episodes["red"].reward, episodes["blue"].reward) == (3.5, 2.0)
    assert (episodes["red"].info["win_rate"], episodes["blue"].info["win_rate"]) == (0.5, 0.0)
    assert (episodes["red"].info["opponent_reward"], episodes["blue"].info["opponent_reward"]) == (2.0, 6.0)
    (alone,) = EpisodeTracker(1, policies={"red": [0, 1, 2]}).step_players(obs, rewards)["red"]
    assert (alone.reward, alone.info) == (3.0, {"policy": "red"})


def test_no_two_players_environments_or_steps_share_their_noise() -> None:
    class KeysSeen(ActorCritic):
        def act(self, batch: ObsBatch, state: None = None, *, generator: Any, logits: bool = False) -> Any:
            assert isinstance(generator, FrameKeys)
            keys.extend(generator.keys.tolist())
            return super().act(batch, generator=generator)

    keys: list[int] = []
    cast = Cast({"red": [0, 1], "blue": [2, 3]}, mapping_of(FOUR))
    nets = {name: KeysSeen(net.policy) for name, net in make_nets(cast.policies, FOUR).items()}
    collector = EnvBlock(ThreadedVecEnv(FOUR, 3), nets, CPU, cast=cast)
    collector.reset(0)
    play([collector], 5, 0)
    assert len(keys) == len(set(keys)) == 4 * 3 * 5


def played(rollout: Rollout) -> list[Any]:
    """Everything that happened, times aside."""
    return [*rollout.frames.tensors(), rollout.last_values, rollout.stats.episodes]


def test_blocks_play_the_same_wherever_they_are_and_go_on_from_a_saved_state() -> None:
    cast = Cast({"red": [0], "blue": [1]}, mapping_of(SNAKES))
    nets = make_nets(cast.policies)

    def sampler(num_envs: int, first_env: int = 0) -> LocalSampler:
        bound = BoundEnvironment(SNAKES, EnvConfig())
        pools = make_pools(bound, RolloutConfig(num_envs=num_envs, block=2, steps=8), 3, first_env)
        made = LocalSampler(pools, nets, CPU, 3, first_env, cast=cast)
        made.reset(3, {})
        return made

    whole, parts = sampler(4), [sampler(2), sampler(2, 2)]
    together = whole.collect(0, 13, {})
    apart = [part.collect(0, 13, {}) for part in parts]
    for name in cast.policies:
        parts_of_it = [part[name] for part in apart]
        merged = Rollout.merged(parts_of_it)
        assert same(*map(played, (together[name], merged)))
        seconds = [part.stats.env_seconds for part in parts_of_it]
        assert min(seconds) > 0 and merged.stats.env_seconds == pytest.approx(sum(seconds))
    assert not torch.equal(
        together["red"].frames.actions["move"].values, together["blue"].frames.actions["move"].values
    )
    resumed = sampler(4)
    assert resumed.load_state(whole.state()) is None
    on, again = whole.collect(52, 8, {}), resumed.collect(52, 8, {})
    assert all(same(*map(played, (on[name], again[name]))) for name in cast.policies)


def test_why_the_environments_of_one_policy_cannot_go_on_with_several() -> None:
    cast = Cast({"red": [0], "blue": [1]}, mapping_of(SNAKES))
    several = EnvBlock(ThreadedVecEnv(SNAKES, 2), make_nets(cast.policies), CPU, cast=cast)
    one = Collector(ThreadedVecEnv(SNAKES, 2), snake_net(), CPU, 0)
    for here, there in [(several, one), (one, several)]:
        here.reset(0)
        there.reset(0)
        assert "the checkpoint has one policy and the run several" in (load_block(here, block_state(there)) or "")


@pytest.mark.parametrize(
    ("policies", "source", "message"),
    [
        (
            {"red": [0], "blue": [1]},
            MineSweeper,
            "needs a world with players, and World does not say which player owns what",
        ),
        (
            {"red": [0]},
            SNAKES,
            r"each player of World \(players 0 to 1\) needs exactly one policy; got .*\{'red': \[0\]\}",
        ),
        ({"red": [0], "blue": [1]}, MultiSnake, r"\(one player, 0\) needs exactly one policy; got"),
        ({"../red": [0], "blue": [1]}, SNAKES, "'../red' cannot be the name of a run directory"),
    ],
)
def test_policies_that_do_not_fit_the_world(policies: Any, source: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cast_of(policies, source, "World")


def test_parameters_that_decide_who_owns_what_cannot_change() -> None:
    cast = Cast({"red": [0], "blue": [1]}, mapping_of(SNAKES))
    sampler = LocalSampler([ThreadedVecEnv(SNAKES, 2)], make_nets(cast.policies), CPU, 0, cast=cast)
    for change in (lambda info: sampler.collect(0, 1, info), lambda info: sampler.reset(0, info)):
        with pytest.raises(
            ValueError, match=r"env.info has 'num_snakes', which decides which player owns which entity"
        ):
            change({"num_snakes": [2, 4]})
