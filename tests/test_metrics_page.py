"""docs/metrics.md lists the names that runs write, and says when they are null."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from enn_ppo import EnvConfig, OptimConfig, RogueNetConfig, SelfPlayConfig, TrainEvalConfig, train
from enn_ppo.settings.config import DistributedConfig, PPOConfig
from enn_ppo.training.callbacks import Callback
from enn_ppo.training.tracking.logger import read_metrics
from entity_gym import (
    Action,
    ActionSpace,
    ContinuousActionMask,
    ContinuousActionSpace,
    Entity,
    Environment,
    Observation,
    ObsSpace,
)
from tests.enn_ppo.evaluation_worlds import Duel
from tests.enn_ppo.worlds import Clock, Copycat, tiny_config
from tests.entity_gym.pools.test_targets import Hidden
from tests.worlds import Zoo

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "metrics.md").read_text("utf-8")


class Entry(NamedTuple):
    """A name of the table."""

    name: str
    may_be_null: bool

    def matches(self, metric: str) -> bool:
        """Whether a metric of a row is meant."""
        return re.fullmatch(re.sub(r"<\w+>", ".+", re.escape(self.name)), metric) is not None


def table() -> list[Entry]:
    lines = [line for line in PAGE.split("## Names")[1].split("\n## ")[0].splitlines() if line.startswith("| `")]
    entries = []
    for line in lines:
        names, _, _, null = (cell.strip() for cell in line.strip("|").split(" | "))
        entries += [Entry(name, not null.startswith("never")) for name in re.findall(r"`([^`]+)`", names)]
    return entries


class Rudder(Environment):
    """Somebody steers and nobody rows, in weather that is told, for ever."""

    def obs_space(self) -> ObsSpace:
        return ObsSpace({"Boat": Entity(["x"])})

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {"Steer": ContinuousActionSpace([-1], [1]), "Row": ContinuousActionSpace([0], [9], names=["force"])}

    def configure(self, info: Mapping[str, Any]) -> None:
        assert info.keys() == {"weather", "wind"}

    def reset(self) -> Observation:
        return self._observation()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        return self._observation()

    def _observation(self) -> Observation:
        return Observation(
            features={"Boat": [[0]]},
            ids={"Boat": [0]},
            actions={"Steer": ContinuousActionMask(), "Row": ContinuousActionMask(actor_ids=[])},
        )


class Weather(Callback):
    def env_info(self, progress: float, num_envs: int, rng: np.random.Generator) -> Mapping[str, Sequence[Any]]:
        return {"weather": ["storm"] * num_envs, "wind": [0.5] * num_envs}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Of small runs that have everything between them."""
    place = tmp_path_factory.mktemp("runs")
    evaluation = TrainEvalConfig(interval=32, episodes=4, num_envs=4, process=False)
    pytest.importorskip("openskill")
    pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "enn_ppo.training.tracking.run_output.plot_learning_curve", lambda *paths: None
        )  # takes longer than the runs

        def run(name: str, env: Any, callbacks: Sequence[Callback] = (), **changes: Any) -> list[dict[str, Any]]:
            config = tiny_config(place / name, **({"env": EnvConfig(), "total_timesteps": 64} | changes))
            train(config, env=env, callbacks=callbacks)
            return read_metrics(place / name / "metrics.jsonl")

        duel = SelfPlayConfig(enabled=True, snapshot_interval=32, latest=0.0)
        value_net = RogueNetConfig(d_model=8, n_layer=1, n_head=1)
        return [
            *run("everything", Zoo, value_net=value_net, total_timesteps=128),
            *run("targets", Hidden, ppo=PPOConfig(target_coef=1.0)),
            *run("taught", Hidden, ppo=PPOConfig(teacher=str(place / "targets"))),
            *run("episodes", Clock, eval=evaluation),
            *run("numbers", Rudder, callbacks=[Weather()], optim=OptimConfig(batch_size=32, epochs=1)),
            *run("mirror", Duel, self_play=replace(duel, latest=1.0)),  # never against a snapshot
            *run("runner", Copycat, distributed=DistributedConfig(mode="ray", num_env_runners=1, final_episodes=3)),
            *run("players", Duel, eval=replace(evaluation, opponent="random"), self_play=duel),
        ]


def test_every_metric_of_every_row_is_in_the_table(rows: list[dict[str, Any]]) -> None:
    entries = table()
    unknown = {name for row in rows for name in row if not any(entry.matches(name) for entry in entries)}
    assert unknown == set()


def test_every_name_of_the_table_is_in_some_row(rows: list[dict[str, Any]]) -> None:
    names = {name for row in rows for name in row}
    assert [entry.name for entry in table() if not any(map(entry.matches, names))] == []


def test_what_is_never_null_is_always_known_and_what_may_be_null_is_so_somewhere(rows: list[dict[str, Any]]) -> None:
    entries = table()
    nulls = {name for row in rows for name, value in row.items() if value is None}
    for name in nulls:
        assert any(entry.may_be_null for entry in entries if entry.matches(name)), name
    plain = [entry for entry in entries if entry.may_be_null and "<" not in entry.name]
    assert [entry.name for entry in plain if entry.name not in nulls and entry.name != "explained_variance"] == []


def test_rows_of_updates_have_all_that_is_not_said_to_be_absent(rows: list[dict[str, Any]]) -> None:
    always = [
        e.name
        for e in table()
        if "<" not in e.name
        and not e.name.startswith(("eval/", "final/", "self_play/", "distributed/"))
        and e.name not in ("value_grad_norm", "teacher_kl", "target_loss")  # of settings that add them
    ]
    for row in rows:
        if "seconds" in row:
            assert [name for name in always if name not in row] == []


def test_rows_without_seconds_hold_evaluations_alone(rows: list[dict[str, Any]]) -> None:
    assert all(
        name == "step" or name.startswith(("eval/", "final/")) for row in rows if "seconds" not in row for name in row
    )


def test_the_names_that_enn_trainers_are_translated_to_exist() -> None:
    known = {entry.name for entry in table()}
    translations = (DOCS / "migrating.md").read_text("utf-8").split("## Metrics")[1]
    lines = [line.strip("|").split(" | ")[1] for line in translations.splitlines() if line.startswith("| `")]
    names = {name for cell in lines for name in re.findall(r"`([^`]+)`", cell)}
    assert names and names <= known, names - known
