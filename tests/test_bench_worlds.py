"""scripts/bench_worlds.py without the worlds of others: what is run again, what is skipped, the table, and plain worlds."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from entity_gym.actions.choices import random_actions
from entity_gym.bridges.pettingzoo.incoming import pettingzoo_worlds
from entity_gym.pools.episodes import EpisodeVecEnv
from entity_gym.pools.players import players_of
from entity_gym.pools.seats import SeatedEpisodeVecEnv

ROOT = Path(__file__).parents[1]

Run = Callable[..., tuple[int, str, list[list[str]]]]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("bench_worlds")


@pytest.fixture
def rows(bench: ModuleType) -> ModuleType:
    return importlib.import_module("world_rows")


def of(bench: ModuleType, row: Any, method: str, seed: int, score: float, **more: Any) -> Any:
    """A measurement as its child returns it, which acted greedily with `score`, and sampled with 1 less."""
    ways = {"greedy": score, "sampled": score - 1} if method in bench.LEARNED else {"played": score}
    values = {"seconds": 10.0 * seed, "cpu_seconds": 9.0 * seed, "load": 1.0} | more
    settings = row.settings(method)
    return bench.Measured(row.name, method, seed, settings, {name: ways for name in row.scores}, **values)


@pytest.fixture
def run(bench: ModuleType, rows: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> Run:
    """A function that runs the command with arguments, whose children answer at once with a score of 1.

    Returns the exit status, the output, and the arguments of the children.
    """

    def command(*arguments: str, fails: bool = False) -> tuple[int, str, list[list[str]]]:
        asked: list[list[str]] = []

        def child(command: list[str], **options: Any) -> Any:
            assert options["env"]["OMP_NUM_THREADS"] == "1" and options["env"]["OMP_WAIT_POLICY"] == "PASSIVE"
            name, method, seed = command[command.index("--one") + 1 :][:3]
            asked.append([name, method, seed])
            share = float(command[command.index("--steps-share") + 1])
            row = bench.shortened(rows.row_named(name), share)
            line = json.dumps(vars(of(bench, row, method, int(seed), 1.0)))
            return SimpleNamespace(returncode=int(fails), stdout=f"loading\nmeasured: {line}\n", stderr="no memory")

        monkeypatch.setattr(bench.subprocess, "run", child)
        monkeypatch.setattr(rows, "_installed", lambda module: module != "jumanji")
        monkeypatch.setattr(sys, "argv", ["bench_worlds.py", "--results", str(tmp_path / "all.jsonl"), *arguments])
        status = bench.main()
        output = "".join(capfd.readouterr())
        return status, output, asked

    return command


# --- what is measured


def test_methods_take_turns_and_a_finished_measurement_is_not_run_again(run: Run, tmp_path: Path) -> None:
    selected = ["--rows", "Taxi-v4", "Acrobot-v1", "--methods", "flat", "sb3", "--seeds", "1", "2"]
    status, _, asked = run(*selected)
    assert status == 0
    assert asked == [
        [name, method, seed] for seed in "12" for name in ("Taxi-v4", "Acrobot-v1") for method in ("flat", "sb3")
    ]
    assert run(*selected)[2] == []
    assert run(*selected, "--seeds", "1", "3")[2] == [[name, method, "3"] for name, method, _ in asked[:4]]
    assert run("--report")[2] == []

    results = tmp_path / "all.jsonl"
    lines = results.read_text().splitlines()
    results.write_text("\n".join([*lines[1:], lines[0][:40]]) + "\n")  # killed while it wrote the line
    assert run(*selected)[2] == asked[:1]


def test_measurements_with_other_settings_do_not_count(run: Run) -> None:
    selected = ["--rows", "Taxi-v4", "--methods", "flat", "script", "--seeds", "1"]
    short = [*selected, "--steps-share", "0.1"]
    assert len(run(*short)[2]) == 2
    _, output, asked = run(*selected)
    assert asked == [["Taxi-v4", "flat", "1"]], "the script's result does not depend on steps"
    assert "204,800" in output
    assert "20,480" in run(*short, "--report")[1]


def test_a_world_that_is_not_installed_skips_its_row_and_says_what_to_install(run: Run) -> None:
    status, output, asked = run(
        "--rows", "TSP, 20 cities", "Taxi-v4", "--methods", "view", "random", "--seeds", "1", "2"
    )
    assert status == 0
    assert asked == [["Taxi-v4", "random", "1"], ["Taxi-v4", "random", "2"]]
    message = 'TSP, 20 cities, view: skipped, jumanji is not installed: pip install "enn-ppo[worlds]"'
    assert output.count("skipped") == 1 and message in output


def test_every_module_that_a_row_needs_has_a_command_that_installs_it(rows: ModuleType) -> None:
    needed = {module for row in rows.ROWS for module in row.needs} | {"stable_baselines3", "sb3_contrib"}
    assert needed == rows.INSTALL.keys()


def test_a_failed_measurement_is_told_and_run_again(run: Run) -> None:
    selected = ["--rows", "Taxi-v4", "--methods", "flat", "--seeds", "1"]
    status, output, _ = run(*selected, fails=True)
    assert status == 1 and "Taxi-v4, flat, seed 1 failed:" in output and "no memory" in output
    assert run(*selected)[2] == [["Taxi-v4", "flat", "1"]]


def test_an_unknown_row_is_refused(rows: ModuleType) -> None:
    with pytest.raises(ValueError, match="--rows 'Taxi' is no row of the table; allowed: .*'Taxi-v4'"):
        rows.select(["Taxi"])


# --- the table


def test_the_table(bench: ModuleType, rows: ModuleType) -> None:
    taxi, four = rows.row_named("Taxi-v4"), rows.row_named("connect four")
    measured = [
        *(of(bench, taxi, "flat", seed, score) for seed, score in enumerate((6.0, 7.0, 8.0), 1)),
        *(of(bench, taxi, "sb3", seed, score) for seed, score in enumerate((-200.0, -201.0, -199.0), 1)),
        of(bench, taxi, "sb3", 3, -200.0),  # the newest counts
        of(bench, taxi, "random", 1, -780.0),
        replace(of(bench, taxi, "random", 2, 0.0), settings={}),
        of(bench, four, "view", 1, 0.9),
    ]
    assert bench.table([taxi, four], measured) == GOLDEN
    told = bench.notes([taxi, four], measured)
    assert "- `sb3`: PPO of Stable-Baselines3" in told and "`script`" not in told
    assert "- Taxi-v4: seeds 1, 2, 3; 100 episodes of evaluation. The script: taxi." in told


GOLDEN = """\
| world | steps | environments | view | flat | sb3 | random | highest learned |
|---|---|---|---|---|---|---|---|
| Taxi-v4 | 204,800 | 32 | - | 7.00 ± 2.48 g; 20 ± 25 s, cpu 18 s | -200.3 ± 1.4 g; 20 ± 25 s, cpu 18 s | -780.0 | flat |
| connect four, wins against random | 153,600 | 64 | 0.900 g; 10 s, cpu 9 s | - | - | - |  |
| connect four, wins against one step | 153,600 | 64 | 0.900 g; 10 s, cpu 9 s | - | - | - |  |
| connect four, wins against minimax 4 | 153,600 | 64 | 0.900 g; 10 s, cpu 9 s | - | - | - |  |"""


def test_intervals_are_those_of_students_t(bench: ModuleType) -> None:
    assert bench.interval([5.0]) is None
    assert bench.interval([1.0, 3.0]) == pytest.approx(12.706)
    assert bench.interval([1.0, 2.0, 3.0]) == pytest.approx(4.303 / 3**0.5)


def test_methods_whose_intervals_overlap_with_the_best_are_named(bench: ModuleType) -> None:
    scores = {"sb3": [1.0, 1.1, 0.9], "view": [2.0, 2.1, 1.9], "flat": [1.8, 1.7, 1.9]}
    assert bench.ahead(scores) == "view (not separated: flat)"
    assert bench.ahead({"view": scores["view"], "sb3": scores["sb3"]}) == "view"
    assert bench.ahead({"view": [1.0], "sb3": [5.0]}) == "sb3 (not separated: view)"
    assert bench.ahead({"view": [1.0]}) == ""


def test_the_better_way_of_acting_is_chosen_by_the_mean_of_all_seeds(bench: ModuleType, rows: ModuleType) -> None:
    taxi = rows.row_named("Taxi-v4")
    one, two = (of(bench, taxi, "flat", seed, 1.0) for seed in (1, 2))
    two = replace(two, scores={"return": {"greedy": 0.0, "sampled": 0.5}})
    assert bench.better([one, two], "return") == ("greedy", [1.0, 0.0])
    two = replace(two, scores={"return": {"greedy": 0.0, "sampled": 5.0}})
    assert bench.better([one, two], "return") == ("sampled", [0.0, 5.0])


# --- measurements


def test_every_row_has_settings_that_training_takes(bench: ModuleType, rows: ModuleType, tmp_path: Path) -> None:
    for row in rows.ROWS:
        for method in {"view", "flat"} & set(row.methods):
            config = bench.training(row, method, 3, tmp_path / "run")
            assert (config.env.id, config.total_timesteps, config.seed) == (row.env_id, row.steps, 3)
            assert config.rollout.num_envs == row.num_envs and config.num_threads == 1
            assert (config.env.view is None) == (method == "flat")
            assert row.steps % row.num_envs == 0


def test_a_plain_world_is_trained_and_evaluated(bench: ModuleType, rows: ModuleType) -> None:
    taxi = replace(rows.row_named("Taxi-v4"), steps=64, num_envs=4, episodes=2, ours=SMALL)
    threads = torch.get_num_threads()
    found = bench.measure(taxi, "flat", 1)
    torch.set_num_threads(threads)
    assert found.scores.keys() == {"return"} and found.scores["return"].keys() == {"greedy", "sampled"}
    assert all(-2000 <= score <= 20 for score in found.scores["return"].values())
    assert found.seconds > 0 and found.settings["steps"] == 64


SMALL = ("rollout.steps=8", "optim.batch_size=16", "optim.epochs=1", "net.d_model=16")


def test_scripts_and_random_actions_are_measured_by_the_command_itself(tmp_path: Path) -> None:
    results = tmp_path / "all.jsonl"
    methods = ["--rows", "Taxi-v4", "--methods", "script", "random", "--seeds", "1", "--results", str(results)]
    done = subprocess.run(
        [sys.executable, "scripts/bench_worlds.py", *methods], cwd=ROOT, capture_output=True, text=True, check=True
    )
    script, random = (json.loads(line)["scores"]["return"]["played"] for line in results.read_text().splitlines())
    assert script > 6 and random < -600
    assert f"| Taxi-v4 | 204,800 | 32 | {script:.2f} | {random:.1f} |  |" in done.stdout


# --- connect four, the travelling salesman and attention over vehicles


@pytest.fixture
def four(bench: ModuleType) -> ModuleType:
    return importlib.import_module("world_connect_four")


def test_players_of_connect_four_win_block_and_look_ahead(four: ModuleType) -> None:
    rng = np.random.default_rng(0)
    pieces = [[5, 0, 1, 0], [5, 1, 1, 0], [5, 2, 1, 0], [4, 0, 0, 1], [4, 1, 0, 1], [4, 2, 0, 1]]
    own, every = four.board_of(np.array(pieces, np.float32))
    assert {four.choose(own, every, depth, rng) for depth in (1, 4) for _ in range(5)} == {3}, "wins"
    theirs = every & ~own
    stones = four.board_of(np.array([[5, 1, 0, 1], [5, 2, 0, 1], [5, 3, 0, 1], [5, 0, 1, 0]], np.float32))
    assert {four.choose(*stones, 4, rng) for _ in range(5)} == {4}, "blocks"
    assert four._wins(theirs | 1 << (7 * 3 + 1)) and not four._wins(theirs)
    column = sum(1 << row for row in range(6))
    assert 0 not in {four.choose(0, column, 0, rng) for _ in range(50)}, "full"


def test_players_of_connect_four_that_look_further_win(four: ModuleType) -> None:
    depths = [four.DEPTHS[name] for name in ("random", "one step", "minimax 4")]
    for weaker, stronger in zip(depths, depths[1:], strict=False):
        assert four.win_rate(stronger, weaker, 100, seed=0) > 0.65
        assert four.win_rate(weaker, stronger, 100, seed=0) < 0.35


class Cities:
    """The travelling salesman's interface with three cities, of which the second is the first and the last one current."""

    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        shown = {
            "coordinates": np.arange(6).reshape(3, 2) / 10,
            "action_mask": np.array([True, False, False]),
            "position": np.array(2),
            "trajectory": np.array([1, 2, -1]),
        }
        return shown, {}


def test_the_flat_travelling_salesman(bench: ModuleType) -> None:
    env = importlib.import_module("world_players").FlatTsp(Cities())
    obs, info = env.reset()
    np.testing.assert_allclose(obs, [0, 0.1, 0.2, 0.3, 0.4, 0.5, *(1, 0, 0), *(0, 0, 1), *(0, 1, 0)], rtol=1e-6)
    assert obs in env.observation_space
    assert info["action_mask"].tolist() == [1, 0, 0] and env.action_masks().tolist() == [True, False, False]


def test_attention_ignores_vehicles_that_are_not_present(bench: ModuleType) -> None:
    pytest.importorskip("stable_baselines3")
    peers = importlib.import_module("world_peers")
    torch.manual_seed(0)
    net = peers.EgoAttention(gymnasium.spaces.Box(-1, 1, (5, 5), np.float32))
    frames = torch.randn(2, 5, 5)
    frames[:, :, 0] = torch.tensor([1.0, 1, 1, 0, 0])
    changed = frames.clone()
    changed[:, 3:, 1:] += 1
    assert net(frames).shape == (2, 64)
    torch.testing.assert_close(net(frames), net(changed))
    torch.testing.assert_close(net(frames), net(frames[:, [0, 2, 1, 3, 4]]), msg="others have no order")
    changed[:, 2, 1:] += 1
    assert not torch.allclose(net(frames), net(changed))


class Pair:
    """Two agents, who are told the step and each other's action; an episode is truncated after two steps."""

    possible_agents = ("a", "b")

    def observation_space(self, agent: str) -> Any:
        return gymnasium.spaces.Box(-10, 10, (2,), np.float32)

    def action_space(self, agent: str) -> Any:
        return gymnasium.spaces.Discrete(3)

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.agents, self.steps = list(self.possible_agents), 0
        return {agent: np.zeros(2, np.float32) for agent in self.agents}, {}

    def step(self, actions: dict[str, int]) -> Any:
        self.steps += 1
        obs = {"a": np.array([self.steps, actions["b"]]), "b": np.array([self.steps, actions["a"]])}
        ended = dict.fromkeys(self.agents, self.steps == 2)
        never, rewards = dict.fromkeys(self.agents, False), {name: float(action) for name, action in actions.items()}
        if self.steps == 2:
            self.agents = []
        return obs, rewards, never, ended, {}


def test_agents_are_environments_of_the_peer(bench: ModuleType) -> None:
    pytest.importorskip("stable_baselines3")
    envs = importlib.import_module("world_peers").AgentsVecEnv([Pair(), Pair()], seed=0)
    assert envs.num_envs == 4 and envs.reset().tolist() == [[0, 0]] * 4
    obs, rewards, dones, infos = envs.step(np.array([0, 1, 2, 0]))
    assert obs.tolist() == [[1, 1], [1, 0], [1, 0], [1, 2]]
    assert rewards.tolist() == [0, 1, 2, 0] and not dones.any() and infos == [{}] * 4
    obs, _, dones, infos = envs.step(np.array([1, 1, 1, 2]))
    assert obs.tolist() == [[0, 0]] * 4 and dones.all(), "the next episode's first observations"
    assert [each["terminal_observation"].tolist() for each in infos] == [[2, 1], [2, 1], [2, 2], [2, 1]]
    assert all(each["TimeLimit.truncated"] for each in infos)


@pytest.mark.parametrize("view", [None, "connect_four"])
def test_a_script_reads_the_board_of_a_policys_games(four: ModuleType, view: str | None) -> None:
    pytest.importorskip("pettingzoo.classic.connect_four_v3")
    source = pettingzoo_worlds("connect_four_v3", view=view)
    mapping = players_of(source)
    assert mapping is not None
    pool = EpisodeVecEnv(source, 4, seed=0)
    scripts = four.Script("minimax 4", pool.action_space(), 0)
    seated = SeatedEpisodeVecEnv(pool, mapping, scripts)
    rng, lost = np.random.default_rng(0), []
    obs, running = seated.reset()
    while len(running):
        step = seated.step(random_actions(obs, rng, seated.action_space()))
        lost += [info["win_rate"] == 0 for info in step.was_running.obs.end_of_episode_info.values()]
        obs, running = step.still_running
    assert lost == [True] * 4, "a script that misread the board would not win every game"
