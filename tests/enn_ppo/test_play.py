"""Watching a checkpoint play: what it does, and how likely it finds each choice."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from enn_ppo import EnvConfig, train
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.checkpoints.policy import load_policy
from enn_ppo.play import NetPolicy, decide, main
from entity_gym import Entity, Observation, ObsSpace
from entity_gym.batch.vec_obs import VecObs
from entity_gym.play.keyboard import Keyboard
from entity_gym.play.session import Session
from rogue_net import ObsBatch, RogueNet
from tests.enn_ppo.worlds import tiny_config
from tests.entity_gym.check import broken


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("walk")
    env = EnvConfig(id="tests.entity_gym.check.broken:Walk", kwargs={"size": 5})
    train(tiny_config(folder, env=env, total_timesteps=32))
    return str(folder)


@pytest.fixture(scope="module")
def net(run_dir: str) -> RogueNet:
    return load_policy(load_checkpoint(Path(run_dir)), torch.device("cpu"))


@pytest.fixture
def obs() -> VecObs:
    """The walker stands at x = 1, where it cannot go left, nor look at the right wall."""
    return Session(lambda: broken.Walk(5), 11, "Walk").vec_obs()


def type_lines(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    typed = iter(lines)

    def ask(prompt: str) -> str:
        print(prompt)
        line = next(typed, None)
        if line is None:
            raise EOFError
        return line

    monkeypatch.setattr("builtins.input", ask)


def test_probabilities_are_those_of_the_network_and_0_where_a_choice_is_closed(net: RogueNet, obs: VecObs) -> None:
    advice = NetPolicy(net)(obs)
    (step,), (look,) = advice.decisions["step"], advice.decisions["look at"]
    assert step.probabilities[0] == 0.0
    assert sum(step.probabilities) == pytest.approx(1.0)
    assert look.probabilities == [1.0, 0.0]
    assert look.value == 1  # the left wall's index in the frame
    batch = ObsBatch.from_vec_obs(obs)
    evaluation = net.evaluate(batch, net.act(batch).actions)
    assert np.allclose(step.probabilities, evaluation.logits["step"][0].exp().detach().numpy(), atol=1e-6)
    assert advice.value == pytest.approx(evaluation.values[0].item())


def test_choices_are_drawn_by_their_probabilities_and_the_same_seed_draws_the_same(net: RogueNet, obs: VecObs) -> None:
    policy, again, other = NetPolicy(net, seed=1), NetPolicy(net, seed=1), NetPolicy(net, seed=2)
    values = [[each(obs).decisions["step"][0].value for _ in range(20)] for each in (policy, again, other)]
    assert values[0] == values[1] != values[2]
    drawn = [policy(obs).decisions["step"][0] for _ in range(200)]
    shares = np.bincount([decision.value for decision in drawn], minlength=3) / 200
    assert np.abs(shares - drawn[0].probabilities).max() < 0.15  # four standard deviations


def test_greedy_takes_the_likeliest_choice(net: RogueNet, obs: VecObs) -> None:
    policy = NetPolicy(net, greedy=True)
    decisions = [policy(obs).decisions["step"][0] for _ in range(20)]
    assert {decision.value for decision in decisions} == {int(np.argmax(decisions[0].probabilities))}


def test_temperature_sharpens_and_flattens(net: RogueNet, obs: VecObs) -> None:
    _, second, third = NetPolicy(net)(obs).decisions["step"][0].probabilities
    _, colder, _ = NetPolicy(net, temperature=0.5)(obs).decisions["step"][0].probabilities
    _, hotter, _ = NetPolicy(net, temperature=1e6)(obs).decisions["step"][0].probabilities
    assert colder == pytest.approx(second**2 / (second**2 + third**2))
    assert hotter == pytest.approx(0.5, abs=1e-4)


def test_an_actor_without_anybody_to_select_selects_nobody() -> None:
    assert decide(torch.tensor([[-1], [-1]]), torch.zeros(0, 1)) == [(-1, []), (-1, [])]


def test_every_number_of_a_continuous_action_is_a_decision() -> None:
    assert decide(torch.tensor([[0.5, -2.0], [1.5, 0.0]]), torch.zeros(2, 4)) == [
        (0.5, []),
        (-2.0, []),
        (1.5, []),
        (0.0, []),
    ]


def test_an_action_that_nobody_takes_has_no_decisions(net: RogueNet) -> None:
    class Blind(broken.Walk):
        def observe(self):
            obs = super().observe()
            del obs.actions["look at"]
            return obs

    advice = NetPolicy(net)(Session(Blind, 0, "Blind").vec_obs())
    assert advice.decisions["look at"] == []
    assert len(advice.decisions["step"]) == 1


def test_a_checkpoint_is_watched_step_by_step_and_run_on(run_dir: str, monkeypatch, capsys) -> None:
    type_lines(monkeypatch, "", "a", "")
    assert main([f"checkpoint={run_dir}", "--seed", "11", "--set", "max_steps=4"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"Walk, episode 1, step 0, expected from here on -?\d", out)
    assert re.search(r"  0 left \(closed\) +0\.0%\n. 1 right +█+ +\d+\.\d%\n. 2 stay +█+ +\d+\.\d%\n", out)
    assert "The episode ended after " in out
    assert "Walk, episode 2, step 0" in out


def test_what_the_policy_never_saw_is_ignored_and_told(run_dir: str, monkeypatch, capsys) -> None:
    type_lines(monkeypatch, "", "q")
    assert main([run_dir, "--seed", "11"]) == 0
    plain = capsys.readouterr().out
    observe = broken.Walk.observe

    def observe_more(self: broken.Walk) -> Observation:
        obs = observe(self)
        obs.features = {**obs.features, "Wall": [[7, x] for [x] in obs.features["Wall"]]}
        return obs

    monkeypatch.setattr(
        broken.Walk, "obs_space", lambda self: ObsSpace({"Walker": Entity(["x"]), "Wall": Entity(["height", "x"])})
    )
    monkeypatch.setattr(broken.Walk, "observe", observe_more)
    type_lines(monkeypatch, "", "q")
    assert main([run_dir, "--seed", "11"]) == 0
    out = capsys.readouterr().out
    assert "the environment is not as it was in training; ignored: feature 'height' of 'Wall'\n" in out
    percentages = re.compile(r"\d+\.\d%")
    assert percentages.findall(out) == percentages.findall(plain) != []


def test_the_same_seed_is_watched_in_the_same_way(run_dir: str, monkeypatch, capsys) -> None:
    shown = []
    for _ in range(2):
        type_lines(monkeypatch, "a", "q")
        assert main([run_dir, "--seed", "3"]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere/run"], "error: no checkpoint nowhere/run"),
        (["{run_dir}", "--set", "sise=3"], "error: .* has no parameter 'sise'.*did you mean 'size'"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str, run_dir: str, capsys) -> None:
    assert main([argument.format(run_dir=run_dir) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert re.match(message, captured.err), captured.err
    assert captured.err.count("\n") == 1


def test_an_environment_with_other_spaces_is_refused(run_dir: str, monkeypatch, capsys) -> None:
    monkeypatch.setattr(broken.Walk, "action_space", broken.NoActions.action_space)
    assert main([run_dir]) == 2
    assert re.match(
        r"error: checkpoint .* belongs to another environment than .*Walk: the action 'step' is gone",
        capsys.readouterr().err,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temperature", "0"], "argument --temperature: '0' is no number greater than 0"),
        (["--temperature", "hot"], "argument --temperature: 'hot' is no number greater than 0"),
        (["--auto", "-1"], "argument --auto: "),
        (["--auto", "0"], "argument --auto: '0' is no number greater than 0"),
        (["--greedy", "--temperature", "2"], "argument --temperature: not allowed with argument --greedy"),
    ],
)
def test_options_that_cannot_be_are_refused(arguments: list[str], message: str, capsys) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["run", *arguments])
    assert exit_.value.code == 2
    assert f"error: {message}" in capsys.readouterr().err


def test_auto_plays_without_a_person_until_ctrl_c(run_dir: str, monkeypatch, capsys) -> None:
    waited: list[float] = []

    def wait(keyboard: Keyboard, seconds: float) -> bool:
        waited.append(seconds)
        if len(waited) == 8:
            raise KeyboardInterrupt
        return False

    monkeypatch.setattr(Keyboard, "wait", wait)
    assert main([run_dir, "--auto", "20", "--seed", "11", "--set", "max_steps=3"]) == 130
    out = capsys.readouterr().out
    assert waited[:3] == [0.05] * 3 and "Walk, episode 2, step 0" in out and "next step" not in out


def test_the_browser_is_not_for_policies_that_play_by_themselves(run_dir: str, capsys) -> None:
    assert main([run_dir, "--browser", "--auto", "3"]) == 2
    assert capsys.readouterr().err == (
        "error: --browser lets you play, and --auto the policy in the terminal; give one of them\n"
    )
