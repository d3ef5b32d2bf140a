"""docs/metrics.md lists the names that runs write, and says when they are null."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from enn_ppo import EnvConfig, OptimConfig, RogueNetConfig, SelfPlayConfig, TrainEvalConfig, train
from enn_ppo.settings.config import PPOConfig
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
    SelectEntitiesActionMask,
    SelectEntitiesActionSpace,
)
from tests.enn_ppo.evaluation_worlds import Duel
from tests.enn_ppo.rows import documented_metrics
from tests.enn_ppo.worlds import Clock, tiny_config
from tests.entity_gym.pools.test_targets import Hidden
from tests.worlds import Zoo

NULL = {name: null for title, of in documented_metrics().items() if title != "Ray" for name, null in of.items()}
"""Name -> when the metric is null. Those of Ray are looked at by tests that start Ray."""


def matches(name: str, metric: str) -> bool:
    """Whether a name that may contain `<...>` means a metric of a row."""
    return re.fullmatch(re.sub(r"<\w+>", ".+", re.escape(name)), metric) is not None


class Rudder(Environment):
    """Somebody steers and nobody rows, in weather that is told, for ever."""

    def obs_space(self) -> ObsSpace:
        return ObsSpace({"Boat": Entity(["x"])})

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {
            "Steer": ContinuousActionSpace([-1], [1]),
            "Row": ContinuousActionSpace([0], [9], names=["force"]),
            "Signal": SelectEntitiesActionSpace(),
        }

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
            actions={
                "Steer": ContinuousActionMask(),
                "Row": ContinuousActionMask(actor_ids=[]),
                "Signal": SelectEntitiesActionMask(),
            },
        )


class Weather(Callback):
    def env_info(self, progress: float, num_envs: int, rng: np.random.Generator) -> Mapping[str, Sequence[Any]]:
        return {"weather": ["storm"] * num_envs, "wind": [0.5] * num_envs}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory, in_line: None) -> list[dict[str, Any]]:
    """Rows of small runs that have everything between them."""
    place = tmp_path_factory.mktemp("runs")
    evaluation = TrainEvalConfig(interval=32, episodes=4, num_envs=4)
    pytest.importorskip("openskill")
    with pytest.MonkeyPatch.context() as patch:

        def run(
            name: str, env: Any, callbacks: Sequence[Callback] = (), latest: float = 0.0, **changes: Any
        ) -> list[dict[str, Any]]:
            patch.setattr("enn_ppo.training.self_play.pool.SHARE_OF_LATEST", latest)
            config = tiny_config(place / name, **({"env": EnvConfig(), "total_timesteps": 64} | changes))
            train(config, env=env, callbacks=callbacks)
            return read_metrics(place / name / "metrics.jsonl")

        duel = SelfPlayConfig(enabled=True, snapshot_interval=32)
        value_net = RogueNetConfig(d_model=8, n_layer=1, n_head=1)
        return [
            *run("everything", Zoo, value_net=value_net, total_timesteps=128),
            *run("targets", Hidden, ppo=PPOConfig(target_coef=1.0)),
            *run("taught", Hidden, ppo=PPOConfig(teacher=str(place / "targets"))),
            *run("episodes", Clock, eval=evaluation),
            *run("tries", Clock, eval=replace(evaluation, best_of=2)),
            *run("numbers", Rudder, callbacks=[Weather()], optim=OptimConfig(batch_size=32, epochs=1)),
            *run("mirror", Duel, latest=1.0, self_play=duel),  # never against a snapshot
            *run("players", Duel, eval=replace(evaluation, opponent="random"), self_play=duel),
        ]


def test_every_metric_of_every_row_has_a_meaning_and_every_name_is_in_some_row(rows: list[dict[str, Any]]) -> None:
    written = {metric for row in rows for metric in row}
    assert [metric for metric in written if not any(matches(name, metric) for name in NULL)] == []
    assert [name for name in NULL if not any(matches(name, metric) for metric in written)] == []


def test_what_is_never_null_is_always_known_and_what_may_be_null_is_so_somewhere(rows: list[dict[str, Any]]) -> None:
    nulls = {metric for row in rows for metric, value in row.items() if value is None}
    may_be = [name for name, null in NULL.items() if not null.startswith("never")]
    assert [metric for metric in nulls if not any(matches(name, metric) for name in may_be)] == []
    plain = [name for name in may_be if "<" not in name and name != "explained_variance"]
    assert [name for name in plain if name not in nulls] == []


def test_rows_of_updates_have_all_that_is_not_said_to_be_absent(rows: list[dict[str, Any]]) -> None:
    sometimes = {"value_grad_norm", "teacher_kl", "target_loss"}  # of settings that add them
    always = {name for name in NULL if "<" not in name and not name.startswith(("eval/", "self_play/"))} - sometimes
    for row in rows:
        if "seconds" in row:
            assert always - row.keys() == set()
        else:
            assert all(name == "step" or name.startswith("eval/") for name in row)
