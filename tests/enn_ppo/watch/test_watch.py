"""Watching a policy: the page shows what it saw and decided, whatever world it is; mistakes are told in a sentence."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from enn_ppo import (
    EnvConfig,
    EvalConfig,
    RogueNetConfig,
    RolloutConfig,
    SelfPlayConfig,
    TrainEvalConfig,
    evaluate,
    train,
)
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.checkpoints.policy import load_net
from enn_ppo.eval.evaluate import evaluate_checkpoint
from enn_ppo.settings.command_line.cli import run_watch
from enn_ppo.settings.evaluation import WatchConfig
from enn_ppo.watch import watch
from entity_gym import (
    CategoricalActionMask,
    CategoricalActionSpace,
    ContinuousActionMask,
    ContinuousActionSpace,
    Entity,
    Environment,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from entity_gym.replay.page import page_html, read_page
from rogue_net.explain import explain
from tests.enn_ppo.recordings import episodes_of
from tests.enn_ppo.replay_contract import read, weights_of
from tests.enn_ppo.worlds import tiny_config
from tests.entity_gym.replay.worlds import Rooms
from tests.replays import HOSTILE

SNAKES = {"board_size": 5, "num_snakes": 2, "num_players": 2, "max_snake_length": 3, "max_steps": 12}
DUELS = RolloutConfig(num_envs=4, steps=8)


def trained(run_dir: Path, world: Any = None, **changes: Any) -> Path:
    """A run of one update."""
    train(tiny_config(run_dir, **{"total_timesteps": 32, **changes}), env=world)
    return run_dir


@pytest.fixture(scope="module")
def mines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in the usual MineSweeper with its cannon, so that actors select entities."""
    run_dir = tmp_path_factory.mktemp("mines")
    return trained(run_dir, env=EnvConfig(id="MineSweeper", kwargs={"orbital_cannon": True, "num_robots": 3}))


@pytest.fixture(scope="module")
def snakes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with self-play in MultiSnake for two players."""
    return trained(
        tmp_path_factory.mktemp("snakes"),
        env=EnvConfig(id="MultiSnake", kwargs=SNAKES),
        rollout=DUELS,
        self_play=SelfPlayConfig(enabled=True),
    )


def watched(run: Path, output: Path, env: Any = None, **settings: Any) -> dict[str, Any]:
    settings = {"episodes": 3, "open": False, **settings}
    assert watch(WatchConfig(run=str(run), output=str(output), **settings), env) == output
    return read(output)


def test_probabilities_values_and_attention_are_the_networks(mines: Path, tmp_path: Path) -> None:
    record = tmp_path / "record"
    evaluate(EvalConfig(checkpoint=str(mines), episodes=4, record=str(record)))
    shown, net = watched(mines, tmp_path / "page.html", episodes=4), load_net(load_checkpoint(mines))
    episodes = {int(frames.env_id[0]): frames for frames in episodes_of(record)}
    assert len(shown["episodes"]) == len(episodes) == 4
    num_shots = 0
    for episode in shown["episodes"]:
        frames = episodes[episode["number"]]
        assert episode["length"] == len(frames) and episode["info"].keys() == {"mines_left", "robots_left"}
        explained = explain(net, frames.obs)
        played = net.act(frames.obs, greedy=True, logits=True).logits
        assert explained.attention is not None and played is not None
        for row, step in enumerate(episode["steps"][:-1]):
            (view,) = step["views"]
            assert view["value"] == pytest.approx(float(frames.values[row]), abs=1e-6)
            num_entities = sum(map(len, view["features"].values()))
            np.testing.assert_allclose(weights_of(shown, view, num_entities), explained.attention[row], atol=1e-5)
            for name, logits in played.items():
                rows = logits.values[logits.offsets[row] : logits.offsets[row + 1]].exp().flatten().tolist()
                probs = np.ravel(view["actions"][name]["probs"]).tolist() if rows else []
                assert probs == pytest.approx(rows, abs=1e-6)
                num_shots += name == "Fire Orbital Cannon" and bool(rows)
                taken = frames.actions[name].values[
                    frames.actions[name].offsets[row] : frames.actions[name].offsets[row + 1]
                ]
                decision = view["actions"].get(name, {"chosen": [], "actees": []})
                chosen = decision["chosen"] if name == "Move" else [decision["actees"][k] for k in decision["chosen"]]
                assert chosen == taken.flatten().tolist()
    assert num_shots > 0


def test_the_same_seed_shows_the_same_episodes_and_a_replay_changes_none(mines: Path) -> None:
    asked = EvalConfig(checkpoint=str(mines), episodes=6, num_envs=2, seed=9)
    plain = evaluate(asked).episodes
    result = evaluate_checkpoint(load_checkpoint(mines), asked, None, torch.device("cpu"), replay=5)
    assert result.episodes == plain and result.replay is not None
    shown = result.replay["episodes"]
    assert [(each["number"], each.get("round", 0)) for each in shown] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]
    assert sorted(each["length"] for each in shown[:2]) == sorted(each.length for each in plain[:2])
    assert {each["seed"] for each in shown} == {9}


def test_a_world_of_ones_own_shows_its_ids_its_infos_and_its_drawing(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", Rooms, env=EnvConfig(kwargs={"size": 4}))
    shown = watched(run, tmp_path / "page.html", Rooms)
    assert shown["settings"] == {"size": 4}
    for episode in shown["episodes"]:
        rooms = [step["views"][0]["features"]["Guest"][0][0] for step in episode["steps"]]
        assert rooms[0] == 0 and rooms[-1] == episode["info"]["reached"]
        chosen = [step["views"][0]["actions"]["walk"]["chosen"][0] for step in episode["steps"][:-1]]
        assert np.diff(rooms).tolist() == [1 - choice for choice in chosen]
        assert [step["reward"] for step in episode["steps"][1:]] == pytest.approx([0.1 * room for room in rooms[1:]])
        assert episode["drawing"] == {"bounds": [0, 0, 4, 1]}
        assert {json.dumps(step["views"][0]["ids"]) for step in episode["steps"]} == {'{"Guest": ["the guest"]}'}


class Crowd(Environment):
    """Ninety guests, of whom one steers by numbers and picks somebody or nobody; a third is hidden. Two steps."""

    SIZE = 90

    def obs_space(self) -> ObsSpace:
        return ObsSpace({"Guest": Entity(["x", "y"])}, ["time"])

    def action_space(self) -> Mapping[str, Any]:
        return {
            "steer": ContinuousActionSpace([-1, 0], [1, float("inf")]),
            "pick": SelectEntityActionSpace(nobody=True),
        }

    def reset(self) -> Observation:
        self.steps = 0
        return self.observe()

    def act(self, actions: Mapping[str, Any]) -> Observation:
        self.steps += 1
        return self.observe()

    def observe(self) -> Observation:
        return Observation(
            features={"Guest": self.rng.normal(size=(self.SIZE, 2))},
            ids={"Guest": list(range(self.SIZE))},
            visible={"Guest": [i % 3 != 2 for i in range(self.SIZE)]},
            actions={"steer": ContinuousActionMask(actor_ids=[0]), "pick": SelectEntityActionMask(actor_ids=[0])},
            global_features=[self.steps],
            done=self.steps == 2,
        )


def test_large_frames_hidden_entities_numbers_and_globals(tmp_path: Path) -> None:
    net = RogueNetConfig(d_model=16, n_layer=1, n_head=2)
    shown = watched(trained(tmp_path / "run", Crowd, env=EnvConfig(), net=net), tmp_path / "page.html", Crowd)
    for step in shown["episodes"][0]["steps"][:-1]:
        (view,) = step["views"]
        assert view["hidden"] == {"Guest": [0, 0, 1] * 30}
        weights = weights_of(shown, view, 91)
        assert (weights > 0).sum(-1).max() <= 16
        assert weights[:, :, 0, 2::3].max() == 0  # guest 0 is visible, and does not see the hidden ones
        assert weights[:, :, 90].max() > 0 and weights[:, :, :, 90].max() > 0
        assert len(view["actions"]["steer"]["mean"][0]) == len(view["actions"]["steer"]["std"][0]) == 2
        assert len(view["actions"]["pick"]["probs"][0]) == 91


def test_two_players_each_see_the_world_as_they_do(snakes: Path, tmp_path: Path) -> None:
    shown = watched(snakes, tmp_path / "page.html", episodes=4)
    assert shown["players"] == ["player 0", "player 1"]
    assert [episode["player"] for episode in shown["episodes"]] == [0, 1, 0, 1]
    for episode in shown["episodes"]:
        assert "win_rate" in episode["info"]
        for step in episode["steps"]:
            first, second = step["views"]
            assert len(step["rewards"]) == 2
            for mine, theirs in zip(first["features"]["SnakeHead"], second["features"]["SnakeHead"], strict=True):
                assert mine[:2] == theirs[:2] and mine[2] == 1 - theirs[2]  # colours begin with one's own
            if not step["done"]:
                assert [view["actions"]["move"]["actors"] for view in step["views"]] == [[0], [1]]
                assert all(view["attention"] is not None for view in step["views"])
                assert [view["value"] is None for view in step["views"]] == [episode["player"] != i for i in (0, 1)]
    for episode in watched(snakes, tmp_path / "page.html", opponent="random")["episodes"]:
        view = episode["steps"][0]["views"][1 - episode["player"]]
        assert view["actions"]["move"]["probs"] is None and "entropy" not in view["actions"]["move"]
        assert view["attention"] is None


def test_policies_of_one_run_are_named(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    trained(run_dir, env=EnvConfig(id="MultiSnake", kwargs=SNAKES), rollout=DUELS, policies={"red": [1], "blue": [0]})
    shown = watched(run_dir / "red", tmp_path / "page.html", opponent="policies")
    assert shown["players"] == ["player 0 (blue)", "player 1 (red)"]
    first = shown["episodes"][0]["steps"][0]["views"]
    assert all(view["value"] is not None and view["attention"] is not None for view in first)


def test_the_page_is_written_beside_those_of_evaluations_and_told(
    mines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluation = mines / "replays/step_000000000032.html"
    evaluation.parent.mkdir(exist_ok=True)
    evaluation.write_text("of the evaluation of the same step")
    assert run_watch(watch, [str(mines), "episodes=10", "open=false", "greedy=true"]) == 0
    page = mines / "replays/watched_000000000032.html"
    assert f"wrote {page}\n" in capsys.readouterr().out
    assert len(read(page)["episodes"]) == 10 and page.stat().st_size < 2e6
    assert evaluation.read_text() == "of the evaluation of the same step"


def test_the_command_waits_until_the_browser_has_the_page(
    mines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def open_slowly(address: str) -> None:
        time.sleep(0.2)
        opened.append(address)

    monkeypatch.setattr("webbrowser.open", open_slowly)
    monkeypatch.setenv("DISPLAY", ":0")
    watched(mines, tmp_path / "page.html", open=True, episodes=1)
    assert opened == [(tmp_path / "page.html").as_uri()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "run has no value"),
        (["nowhere"], "no checkpoint nowhere"),
        (["{run}", "episode=3"], "did you mean 'episodes'?"),
        (["{run}", "--multirun"], "--multirun is for"),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    arguments: list[str], message: str, mines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_watch(watch, [argument.format(run=mines) for argument in arguments]) == 2
    told = capsys.readouterr().err
    assert message in told and told.startswith("error: ") and told.count("\n") == 1


NAMES = HOSTILE[:9]  # the last one is no Unicode


class Hostile(Environment):
    """Names that a careless page would run or break at."""

    def obs_space(self) -> ObsSpace:
        return ObsSpace({name: Entity([name]) for name in NAMES}, NAMES)

    def action_space(self) -> Mapping[str, Any]:
        return {name: CategoricalActionSpace(NAMES) for name in NAMES}

    def reset(self) -> Observation:
        return self.observe(done=False)

    def act(self, actions: Mapping[str, Any]) -> Observation:
        return self.observe(done=True)

    def observe(self, done: bool) -> Observation:
        return Observation(
            features={name: [[0.5]] for name in NAMES},
            ids={name: [name] for name in NAMES},
            actions={name: CategoricalActionMask(actor_ids=[name]) for name in NAMES},
            global_features=[1] * len(NAMES),
            done=done,
            end_of_episode_info={name: name for name in NAMES},
        )


def test_hostile_names_arrive_as_text(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", Hostile, env=EnvConfig())
    shown = watched(run, tmp_path / "page.html", Hostile, episodes=1)
    assert list(shown["entities"]) == list(shown["actions"]) == NAMES
    assert shown["actions"][NAMES[0]]["choices"] == NAMES
    page = (tmp_path / "page.html").read_text()
    assert "hacked" not in page.split('id="replay"')[0]
    assert "<script>window.hacked" not in page and read_page(page_html(shown)) == shown


class Nonsense(Rooms):
    """Its hints have a misspelt key."""

    def draw(self) -> dict[str, Any]:
        return {"types": {"Guest": {"collor": "#ffffff"}}}


def test_nonsense_of_a_world_is_told_before_training_and_while_watching(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", Nonsense, env=EnvConfig())
    message = r"draw\(\)\['types'\]\['Guest'\] has the key 'collor'; .*did you mean 'color'\?"
    with pytest.raises(ValueError, match=message):
        watched(run, tmp_path / "page.html", Nonsense)
    evaluation = TrainEvalConfig(interval=32, episodes=2, replay=1)
    with pytest.raises(ValueError, match=message):
        trained(tmp_path / "other", Nonsense, env=EnvConfig(), eval=evaluation)
