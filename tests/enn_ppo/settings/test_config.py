"""Settings: what is allowed, and what is said about the rest."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enn_ppo.settings.cloning import CloneConfig
from enn_ppo.settings.config import (
    DistributedConfig,
    EnvConfig,
    EvalConfig,
    OptimConfig,
    PPOConfig,
    RolloutConfig,
    SelfPlayConfig,
    TrainConfig,
    TrainEvalConfig,
    default_run_dir,
)
from enn_ppo.settings.evaluation import WatchConfig
from enn_ppo.settings.presets import preset
from enn_ppo.settings.schema import from_dict, to_dict
from enn_ppo.settings.serving import ServeConfig
from rogue_net.config import RelposConfig, RogueNetConfig

ROLLOUT = RolloutConfig(num_envs=8, steps=4)


# `test_options.py` has values of other types and out of the range that a setting has by itself.
@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        (TrainConfig, {"env": "MineSweeper"}, "env must be a EnvConfig, got 'MineSweeper'"),
        (TrainConfig, {"value_net": 3}, "value_net must be a RogueNetConfig, got 3"),
        (EvalConfig, {"checkpoint": "a", "render": "a.avi"}, "render must name a file .*got 'a.avi'"),
        (OptimConfig, {"lr": "-1@0 -> 0@1"}, r"optim\.lr must .*got -1\.0 \(in '-1@0 -> 0@1'\)"),
        (RelposConfig, {"extent": [0]}, r"net\.relpos\.extent must be an integer, at least 1, got 0"),
        # settings that do nothing without another
        (TrainConfig, {"trust": True}, "trust=true needs resume="),
        (
            TrainConfig,
            {"eval": TrainEvalConfig(env_kwargs={"width": 3})},
            r"eval\.env_kwargs=\{'width': 3\} needs .*eval\.interval=",
        ),
        (TrainConfig, {"self_play": SelfPlayConfig(pool_size=3)}, r"self_play\.pool_size=3 needs self_play\.enabled=true"),
        # settings against each other
        (TrainConfig, {"eval": TrainEvalConfig(interval=9, seed=5), "seed": 5}, r"eval\.seed=5 is the seed of training"),
        (RolloutConfig, {"num_envs": 2, "num_processes": 3}, r"rollout\.num_processes must be at most .*num_envs=2.*got 3"),
        (RolloutConfig, {"num_envs": 8, "block": 2, "num_processes": 4}, r"rollout\.num_processes must .* 2 .*, got 4"),
        *(
            (
                RolloutConfig,
                {"num_envs": 12, "block": 8 // pipeline, "pipeline": pipeline},
                rf"rollout\.num_envs=12 must be a multiple of 8 \(.*block={8 // pipeline}, rollout\.pipeline={pipeline}\)",
            )
            for pipeline in (1, 2)
        ),
        (
            RolloutConfig,
            {"num_processes": 2, "num_threads": 2},
            r"rollout\.num_processes=2 and rollout\.num_threads=2: use one of them",
        ),
        (
            TrainConfig,
            {"optim": OptimConfig(batch_size=1)},
            r"optim\.batch_size=1 learns nothing with ppo\.normalize_advantages=true",
        ),
        (RogueNetConfig, {"d_model": 33, "n_head": 4}, r"net\.d_model.*divisible.*net\.n_head=4, got 33; .*: 32"),
        (
            TrainConfig,
            {"rollout": ROLLOUT, "optim": OptimConfig(batch_size=33)},
            r"optim\.batch_size must be at most the 32 frames .*num_envs=8.*steps=4\), got 33",
        ),
        (
            OptimConfig,
            {"batch_size": 64, "micro_batch_size": 65},
            r"optim\.micro_batch_size must be at most optim\.batch_size=64 .*got 65",
        ),
        (TrainConfig, {"total_timesteps": 127}, r"total_timesteps must be at least rollout\.num_envs=128.*got 127"),
        # arguments that no file can hold
        (EnvConfig, {"kwargs": {"maps": [1, {2}]}}, r"env\.kwargs\.maps\[1\] must be .*factory"),
        (EnvConfig, {"kwargs": {1: 2}}, r"env\.kwargs must have texts as names, got 1"),
    ],
    ids=lambda value: str(value)[:50],
)  # fmt: skip
def test_what_a_setting_does_not_allow_is_told_with_what_was_given(
    section: type[Any], values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        section(**values)


TOGETHER: dict[str, dict[str, Any]] = {
    "distributed=ray": {"distributed": DistributedConfig(mode="ray")},
    "distributed=ddp": {"distributed": DistributedConfig(mode="ddp")},
    "rollout.block=4": {"rollout": RolloutConfig(block=4)},
    "rollout.pipeline=2": {"rollout": RolloutConfig(pipeline=2)},
    "policies={'red': [0]}": {"policies": {"red": [0]}},
    "self_play.enabled=true": {"self_play": SelfPlayConfig(enabled=True)},
    "eval.best_of=2": {"eval": TrainEvalConfig(interval=1, best_of=2)},
}


@pytest.mark.parametrize(
    ("one", "others"),
    [
        ("distributed=ray", {"self_play.enabled=true"}),
        ("distributed=ddp", {"self_play.enabled=true", "policies={'red': [0]}"}),
        ("rollout.block=4", {"self_play.enabled=true"}),
        ("rollout.pipeline=2", {"self_play.enabled=true"}),
        ("eval.best_of=2", {"self_play.enabled=true"}),
        ("policies={'red': [0]}", {"self_play.enabled=true", "distributed=ddp"}),
    ],
)
def test_some_features_exclude_each_other_and_all_others_go_together(one: str, others: set[str]) -> None:
    def refused(other: str) -> bool:
        try:
            TrainConfig(**(TOGETHER[one] | TOGETHER[other]))
        except ValueError as error:
            said = {f"{one} and {other}", f"{other} and {one}"}
            assert str(error) in {f"{both} do not go together; leave one out" for both in said}
            return True
        return False

    may = [other for other in TOGETHER if not set(TOGETHER[other]) & set(TOGETHER[one])]
    assert {other for other in may if refused(other)} == others


def test_the_most_that_other_settings_allow_is_allowed() -> None:
    assert RogueNetConfig(d_model=36, n_head=4).d_model == 36
    assert OptimConfig(batch_size=64, micro_batch_size=64).micro_batch_size == 64
    assert TrainConfig(rollout=ROLLOUT, optim=OptimConfig(batch_size=32)).optim.batch_size == 32
    assert TrainConfig(total_timesteps=128).total_timesteps == 128
    assert TrainConfig(optim=OptimConfig(batch_size=1), ppo=PPOConfig(normalize_advantages=False)).optim.batch_size == 1


def test_dictionaries_round_trip() -> None:
    config = TrainConfig(env=EnvConfig(id="a:B", kwargs={"sizes": (1, 2), "deep": {"x": None}}), seed=7)
    plain = to_dict(config)
    assert plain["env"]["kwargs"] == {"sizes": [1, 2], "deep": {"x": None}} and plain["value_net"] is None
    assert from_dict(TrainConfig, plain) == config
    apart = TrainConfig(
        value_net=RogueNetConfig(d_model=8), env=EnvConfig(info={"x": [1, 2], "y": {"low": 0, "high": 1}})
    )
    assert from_dict(TrainConfig, to_dict(apart)) == apart
    assert from_dict(EvalConfig, to_dict(EvalConfig(checkpoint="a"))) == EvalConfig(checkpoint="a")


@pytest.mark.parametrize(
    ("values", "read"),
    [({"lr": "1e-3"}, 1e-3), ({"lr": 1}, 1.0), ({"max_grad_norm": "5"}, 5.0), ({"epochs": 2.0}, 2)],
)
def test_numbers_as_yaml_reads_them_are_understood(values: dict[str, Any], read: float) -> None:
    (name,) = values
    result = getattr(from_dict(OptimConfig, values, "optim"), name)
    assert (result, type(result)) == (read, type(read))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"net": {"d_model": 10**400}}, r"net\.d_model must be an integer, .*, got 1000"),
        ({"ppo": {"clip": 10**400}}, r"ppo\.clip "),
        ({"optim": {"lrr": 1}}, r"optim\.lrr is not a setting; allowed: 'optim\.lr', .*; did you mean 'optim\.lr'\?"),
        ({"optim": {"lr": "fast"}}, r"optim\.lr must be a number or a schedule .*, got 'fast': 'fast' is no point"),
        ({"optim": {"epochs": "3"}}, r"optim\.epochs must be an integer, at least 1, got '3'"),
        ({"value_net": {"d_modl": 8}}, r"value_net\.d_modl is not a setting.*did you mean 'value_net\.d_model'\?"),
    ],
)
def test_a_dictionary_with_a_mistake_is_refused_with_the_dotted_field(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_dict(TrainConfig, values)


@pytest.mark.parametrize(
    ("typed", "plain"),
    [
        (
            lambda: TrainConfig(
                seed=np.int64(3), total_timesteps=1e6, run_dir=Path("a/b"), overwrite=np.bool_(True),
                optim=OptimConfig(lr=np.float64(0.5), epochs=1e1), policies={"a": np.arange(2)},
            ),
            lambda: TrainConfig(
                seed=3, total_timesteps=1_000_000, run_dir="a/b", overwrite=True,
                optim=OptimConfig(lr=0.5, epochs=10), policies={"a": [0, 1]},
            ),
        ),
        (
            lambda: EnvConfig(kwargs={"map": Path("a"), "n": np.int64(3), "x": np.eye(1)}, info={"w": np.arange(2)}),
            lambda: EnvConfig(kwargs={"map": "a", "n": 3, "x": [[1.0]]}, info={"w": [0, 1]}),
        ),
        (
            lambda: RelposConfig(kind="grid", extent=np.array([1, 1]), position_features=np.array(["x", "y"])),
            lambda: RelposConfig(kind="grid", extent=[1, 1], position_features=["x", "y"]),
        ),
        (
            lambda: EvalConfig(checkpoint=Path("a"), output=Path("b.json"), opponent=Path("c"), episodes=1e2),
            lambda: EvalConfig(checkpoint="a", output="b.json", opponent="c", episodes=100),
        ),
        (lambda: WatchConfig(run=Path("a")), lambda: WatchConfig(run="a")),
        (lambda: ServeConfig(checkpoint=Path("a")), lambda: ServeConfig(checkpoint="a")),
        (lambda: CloneConfig(data=[Path("a"), "b"]), lambda: CloneConfig(data=["a", "b"])),
        (
            lambda: preset("Xor", seed=np.int32(2), total_timesteps=np.float64(1e5), max_train_seconds=np.float32(0.5)),
            lambda: preset("Xor", "seed=2", "total_timesteps=1e5", "max_train_seconds=0.5"),
        ),
    ],
)  # fmt: skip
def test_paths_and_numbers_of_libraries_are_understood(typed: Callable[[], Any], plain: Callable[[], Any]) -> None:
    assert to_dict(typed()) == to_dict(plain())


def test_the_default_run_directory_is_a_safe_name() -> None:
    when = datetime(2030, 1, 2, 3, 4, 5)
    assert default_run_dir("MineSweeper", when) == "outputs/MineSweeper/2030-01-02_03-04-05"
    assert default_run_dir("my_pkg.env:Env", when) == "outputs/my_pkg.env_Env/2030-01-02_03-04-05"
    assert default_run_dir("../a/b", when) == "outputs/.._a_b/2030-01-02_03-04-05"
