"""Evaluation: how many episodes count, which, what is said about them, and the picture of one."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from enn_ppo import EnvConfig, EvalConfig, OptimConfig, PPOConfig, RogueNetConfig, evaluate, train
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.checkpoints.policy import load_net
from enn_ppo.eval.episodes import Estimate, best_episodes, summarize
from enn_ppo.settings.command_line.cli import run_eval
from enn_ppo.settings.config import TrainEvalConfig
from enn_ppo.training.recording import read_all
from entity_gym import Action, CategoricalAction, CategoricalActionMask, Entity, Observation, ObsSpace
from entity_gym.pools.episodes import Episode
from tests.enn_ppo.recordings import episodes_of
from tests.enn_ppo.worlds import Clock, Copycat, tiny_config


class Endless(Clock):
    """The first environment's episodes take a step, and after the tenth it never ends; the others' take eight."""

    made = 0

    def __init__(self) -> None:
        length = (1, 8)[Endless.made % 2]
        Endless.made += 1
        super().__init__(length, length)
        self.episodes = 0

    def reset(self) -> Observation:
        self.episodes += 1
        if self.short == 1 and self.episodes > 10:
            self.short = self.long = 10**9
        return super().reset()


class Both(Clock):
    """Ends with a reward of 1 when both choices have been made, or without one after twenty steps. It looks always the same."""

    def reset(self) -> Observation:
        self.made, self.steps = set[int](), 0
        return Observation(features={"Hand": [[0]]}, ids={"Hand": ["hand"]}, actions={"Wait": CategoricalActionMask()})

    def act(self, actions: Mapping[str, Action]) -> Observation:
        wait = actions["Wait"]
        assert isinstance(wait, CategoricalAction)
        made, steps = self.made | {*map(int, wait.actions)}, self.steps + 1
        has_both, shown = len(made) == 2, self.reset()
        self.made, self.steps = made, steps
        is_over = has_both or steps == 20
        return replace(shown, reward=float(has_both), done=is_over, truncated=is_over and not has_both)


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run in `Clock`."""
    run_dir = tmp_path_factory.mktemp("clock")
    train(tiny_config(run_dir, env=EnvConfig(), total_timesteps=32), env=Clock)
    return str(run_dir)


# --- Which episodes count ---


@pytest.mark.parametrize(("episodes", "num_envs"), [(1, 64), (7, 4), (65, 64)])
def test_exactly_as_many_episodes_as_asked_for_are_counted(episodes: int, num_envs: int, clock: str) -> None:
    result = evaluate(EvalConfig(checkpoint=clock, episodes=episodes, num_envs=num_envs))
    assert len(result.episodes) == episodes
    assert {estimate.n for estimate in result.estimates.values()} == {episodes}
    by_env = Counter(episode.env_id for episode in result.episodes)
    assert len(by_env) == min(episodes, num_envs)
    assert max(by_env.values()) - min(by_env.values()) <= 1


def test_short_episodes_are_not_over_counted(clock: str) -> None:
    # Long episodes earn 1 and are as likely as short ones, so the true mean is 0.5, and that of the length 6.5. The first
    # 400 to finish would be mostly short: an environment plays one of them on average before it starts a long one.
    result = evaluate(EvalConfig(checkpoint=clock, episodes=400, num_envs=400))
    reward, length = result.estimates["episodic_reward"], result.estimates["episode_length"]
    assert reward.mean == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(400))
    assert length.mean == pytest.approx(6.5, abs=4 * 5.5 / math.sqrt(400))
    assert reward.ci95 == pytest.approx(1.96 * 0.5 / math.sqrt(400), rel=0.02)


# --- What is said ---


def test_the_interval_is_1_96_standard_errors() -> None:
    episodes = [Episode(0, reward, 5, False) for reward in (0.0, 1.0, 1.0, 0.0)]
    # the deviation of the sample is sqrt(1 / 3)
    assert summarize(episodes) == {
        "episodic_reward": Estimate(0.5, pytest.approx(1.96 * math.sqrt(1 / 3) / 2), 4),
        "episode_length": Estimate(5.0, 0.0, 4),
    }


def test_numbers_that_episodes_tell_are_summarized_and_texts_and_nan_are_not() -> None:
    infos: list[Mapping[str, Any]] = [{"won": True, "mood": "fine", "lap": math.nan, "score": math.nan}]
    infos += [{"won": False, "score": 4}, {}]
    estimates = summarize([Episode(0, 0.0, 1, False, info) for info in infos])
    assert estimates["won"].mean == 0.5 and estimates["won"].n == 2
    assert estimates["score"] == Estimate(4.0, None, 1)
    assert estimates.keys() == {"episodic_reward", "episode_length", "won", "score"}


def test_the_report_is_written_as_json_and_only_the_command_prints_the_result(
    clock: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "new/eval.json"
    result = evaluate(EvalConfig(checkpoint=clock, episodes=20, seed=7, greedy=True, output=str(output)))
    report = json.loads(output.read_text())
    for name in ("episodic_reward", "episode_length", "was_long"):
        estimate = result.estimates[name]
        assert report[name] == {"mean": estimate.mean, "ci95": estimate.ci95, "n": 20}
    assert (report["seed"], report["greedy"]) == (7, True)
    assert report["checkpoint"].endswith("step_000000000032.safetensors")
    assert capsys.readouterr() == ("", "")  # `print(evaluate(...))` would print it twice
    assert run_eval(evaluate, [f"checkpoint={clock}", "episodes=20", "seed=7", "greedy=true"]) == 0
    assert capsys.readouterr().out == f"{result}\n"
    assert f"episodic_reward: {result.estimates['episodic_reward'].mean:.4f} ± " in str(result)


@pytest.mark.parametrize("file", ["output=file/eval.json", "render=file/a.gif"])
def test_a_file_that_cannot_be_written_is_named(file: str, clock: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    name, _, path = file.partition("=")
    with pytest.raises(ValueError, match=rf"{path} cannot be written"):
        evaluate(EvalConfig(checkpoint=clock, episodes=1, **{name: str(tmp_path / path)}))


# --- How it plays ---


def test_greedy_takes_the_likeliest_choice_and_otherwise_choices_are_drawn(clock: str, tmp_path: Path) -> None:
    for greedy in (True, False):
        record, same_picture = tmp_path / str(greedy), {"short": 1, "long": 1}
        asked = EvalConfig(checkpoint=clock, episodes=60, greedy=greedy, record=str(record), env_kwargs=same_picture)
        evaluate(asked, env=Clock)
        assert len(read_all(record).actions["Wait"].values.unique()) == (1 if greedy else 2)


def test_a_low_temperature_chooses_as_greedy_play_does_and_a_high_one_at_random(clock: str, tmp_path: Path) -> None:
    shares = {}
    for temperature in (0.001, 1000.0):
        record = tmp_path / str(temperature)
        settings = {"checkpoint": clock, "episodes": 400, "env_kwargs": {"short": 1, "long": 1}}
        evaluate(EvalConfig(temperature=temperature, record=str(record), **settings), env=Clock)
        shares[temperature] = float(read_all(record).actions["Wait"].values.float().mean())
    assert shares[0.001] in (0, 1) and 0.4 < shares[1000.0] < 0.6
    with pytest.raises(ValueError, match=r"^temperature=0.5 is for sampled actions; leave out greedy=true"):
        EvalConfig(checkpoint="a", greedy=True, temperature=0.5)


def test_the_command_says_when_the_likeliest_actions_score_less_than_sampled_ones(clock: str, tmp_path: Path) -> None:
    """A policy that hardly prefers one of two choices, and always takes it when it is greedy."""
    train(
        tiny_config(tmp_path / "a", env=EnvConfig(), total_timesteps=32, optim=OptimConfig(lr=1e-9, batch_size=32)),
        env=Both,
    )
    told = [
        evaluate(EvalConfig(checkpoint=str(tmp_path / "a"), episodes=50, greedy=greedy), env=Both)
        for greedy in (True, False)
    ]
    assert [each.estimates["episodic_reward"].mean for each in told] == [0, pytest.approx(1, abs=0.1)]
    assert [len(each.notes) for each in told] == [1, 0]
    assert str(told[0]).startswith("the likeliest actions score 0 and sampled ones 1: play may run in a circle")
    assert not evaluate(EvalConfig(checkpoint=clock, episodes=50, greedy=True), env=Clock).notes  # both score alike


def test_the_environment_may_have_other_arguments_than_in_training(clock: str) -> None:
    result = evaluate(EvalConfig(checkpoint=clock, episodes=8, env_kwargs={"short": 3, "long": 3}), env=Clock)
    assert {episode.length for episode in result.episodes} == {3}


# --- The best of several tries ---


def test_the_best_of_each_group_counts_and_the_mean_of_all_stands_beside_it() -> None:
    rewards = [
        (3, 1.0),
        (0, 4.0),
        (2, 3.0),
        (1, 6.0),
        (0, 1.0),
        (1, 1.0),
        (2, 0.0),
        (3, 8.0),
    ]  # two rounds of two groups
    episodes = [Episode(env, reward, 5, False) for env, reward in rewards]
    best, more = best_episodes(episodes, 2)
    assert [(each.env_id, each.reward) for each in best] == [(2, 3.0), (1, 6.0), (0, 1.0), (3, 8.0)]
    # means of the groups: 2, 5, 1, 4, whose deviation is sqrt(10 / 3)
    assert more == {"episodic_reward_mean": Estimate(3.0, pytest.approx(1.96 * math.sqrt(10 / 3) / 2), 4)}
    assert best_episodes(episodes, 1) == (episodes, {})


def test_each_episode_is_tried_several_times_from_the_same_seed(clock: str) -> None:
    """The length of Clock's episodes is drawn when they begin."""
    settings: dict[str, Any] = {"checkpoint": clock, "episodes": 30, "num_envs": 12}
    result = evaluate(EvalConfig(best_of=3, **settings))
    assert len(result.episodes) == 30 and {estimate.n for estimate in result.estimates.values()} == {30}
    assert 0 < result.estimates["episodic_reward"].mean < 1
    assert result.estimates["episodic_reward_mean"] == result.estimates["episodic_reward"]
    # the first episodes are those that are played without tries
    expected = {each.env_id: each.length for each in reversed(evaluate(EvalConfig(**settings)).episodes)}
    found = {each.env_id // 3: each.length for each in reversed(result.episodes)}
    assert found == expected


def test_tries_differ_in_the_actions_that_are_sampled_and_the_report_has_both_scores(tmp_path: Path) -> None:
    train(tiny_config(tmp_path / "a", env=EnvConfig(), total_timesteps=32), env=Copycat)
    settings: dict[str, Any] = {"checkpoint": str(tmp_path / "a"), "episodes": 20}
    one = evaluate(EvalConfig(**settings), env=Copycat).estimates
    best = evaluate(EvalConfig(best_of=30, output=str(tmp_path / "eval.json"), **settings), env=Copycat).estimates
    # lamps have at most three colours, so each try is right with a probability of about 1/27 or more
    assert best["episodic_reward"].mean > 0.9 > one["episodic_reward"].mean
    assert best["episodic_reward_mean"].mean == pytest.approx(one["episodic_reward"].mean, abs=0.3)
    report = json.loads((tmp_path / "eval.json").read_text())
    assert report["best_of"] == 30 and report["episodic_reward_mean"]["mean"] == best["episodic_reward_mean"].mean


@pytest.mark.parametrize("setting", ["greedy", "opponent"])
def test_tries_are_sampled_by_one_policy(setting: str) -> None:
    given: dict[str, Any] = {"greedy": True} if setting == "greedy" else {"opponent": "random"}
    with pytest.raises(ValueError, match=rf"^best_of=2 and {setting}=\w+ do not go together: all tries are sampled"):
        EvalConfig(checkpoint="a", best_of=2, **given)
    with pytest.raises(ValueError, match=rf"^eval.best_of=2 and eval.{setting}=\w+ do not go together"):
        TrainEvalConfig(interval=1, best_of=2, **given)


def test_tries_are_sampled_though_the_run_is_evaluated_greedily(tmp_path: Path) -> None:
    evaluation = TrainEvalConfig(greedy=True)
    train(tiny_config(tmp_path / "a", env=EnvConfig(), total_timesteps=32, eval=evaluation), env=Clock)
    settings: dict[str, Any] = {"checkpoint": str(tmp_path / "a"), "episodes": 2}
    assert evaluate(EvalConfig(**settings), env=Clock).greedy
    assert not evaluate(EvalConfig(best_of=2, **settings), env=Clock).greedy


# --- The recording ---


def test_the_episodes_that_are_evaluated_are_recorded(clock: str, tmp_path: Path) -> None:
    file = tmp_path / "new/clock"
    config = EvalConfig(checkpoint=clock, episodes=10, num_envs=4)
    played = evaluate(replace(config, record=str(file)), env=Clock).episodes
    assert played == evaluate(config, env=Clock).episodes  # recording changes nothing
    recorded = episodes_of(file)
    assert Counter((int(each.env_id[0]), len(each), float(each.rewards.sum())) for each in recorded) == Counter(
        (each.env_id, each.length, each.reward) for each in played
    )


class CutClock(Clock):
    """A clock that is stopped and pays 100 for every step."""

    def _observation(self) -> Observation:
        obs = super()._observation()
        return replace(obs, reward=100.0, truncated=obs.done)


VALUE_NET = RogueNetConfig(d_model=8, n_layer=1, n_head=1)


@pytest.mark.parametrize(("normalize", "value_net"), [("none", VALUE_NET), ("returns", None), ("returns", VALUE_NET)])
def test_recorded_values_are_those_of_the_policy_in_rewards(
    normalize: Any, value_net: RogueNetConfig | None, tmp_path: Path
) -> None:
    config = tiny_config(
        tmp_path / "a",
        env=EnvConfig(),
        ppo=PPOConfig(normalize=normalize, gamma=0.9),
        value_net=value_net,
        optim=OptimConfig(batch_size=16, lr=1e-2),
        total_timesteps=320,
    )
    train(config, env=CutClock)
    evaluate(EvalConfig(checkpoint=str(tmp_path / "a"), episodes=20, record=str(tmp_path / "b")), env=CutClock)
    frames = read_all(tmp_path / "b")
    net = load_net(load_checkpoint(tmp_path / "a"), "value_net" if value_net else "policy").eval()
    torch.testing.assert_close(frames.values, net.value(frames.obs))
    told = float(frames.values.mean())  # in this world values hardly differ from frame to frame
    assert (
        told > 20
    )  # on the way to 100 / (1 - gamma) = 1000, where an untrained head and normalized values say about 0
    assert told / 2 < float(frames.final_values[frames.truncated].mean()) < told * 2


# --- Mistakes ---


def test_an_episode_that_does_not_end_is_an_error(clock: str) -> None:
    endless = {"short": 10**9, "long": 10**9}
    with pytest.raises(ValueError, match=r"environment 0 has played 50 steps without ending.*max_episode_steps=50"):
        evaluate(EvalConfig(checkpoint=clock, episodes=2, max_episode_steps=50, env_kwargs=endless), env=Clock)


def test_an_episode_that_nobody_waits_for_may_take_forever(clock: str) -> None:
    Endless.made = 0
    result = evaluate(EvalConfig(checkpoint=clock, episodes=20, num_envs=2, max_episode_steps=9), env=Endless)
    assert Counter(episode.length for episode in result.episodes) == {1: 10, 8: 10}


def test_an_environment_of_other_spaces_than_the_checkpoint_is_refused(clock: str) -> None:
    class Handless(Clock):
        def obs_space(self) -> ObsSpace:
            return ObsSpace(entities={"Hand": Entity(["Time"])})

    other = r"checkpoint .*step_0*32.safetensors does not fit .*"
    with pytest.raises(ValueError, match=other + "Handless: the feature 'time' of 'Hand' is gone"):
        evaluate(EvalConfig(checkpoint=clock), env=Handless)
    with pytest.raises(ValueError, match=other + "Copy"):
        evaluate(EvalConfig(checkpoint=clock), env=Copycat)


def test_an_environment_that_only_python_knew_must_be_given_again(tmp_path: Path) -> None:
    train(tiny_config(tmp_path / "a", env=EnvConfig(), total_timesteps=32), env=lambda: Clock())
    config = EvalConfig(checkpoint=str(tmp_path / "a"), episodes=3)
    with pytest.raises(ValueError, match=r"env\.id is '.*<lambda>'"):
        evaluate(config)
    assert len(evaluate(config, env=Clock).episodes) == 3


def test_the_same_seed_plays_the_same_episodes_and_another_seed_others(clock: str) -> None:
    one, same, other = (evaluate(EvalConfig(checkpoint=clock, episodes=50, seed=seed)).episodes for seed in (7, 7, 8))
    assert one == same
    assert [episode.length for episode in one] != [episode.length for episode in other]
