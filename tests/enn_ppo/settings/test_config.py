"""Settings: what is allowed, and what is said about the rest."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import re
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from enn_ppo.settings import config
from enn_ppo.settings import evaluation as evaluation_config
from enn_ppo.settings import learning as learning_config
from enn_ppo.settings import schema as settings
from enn_ppo.settings import world as world_config
from enn_ppo.settings.config import (
    EnvConfig,
    EvalConfig,
    LoggerConfig,
    OptimConfig,
    PPOConfig,
    RolloutConfig,
    SelfPlayConfig,
    TrainConfig,
    TrainEvalConfig,
    ValueOptimConfig,
    default_run_dir,
)
from enn_ppo.settings.presets import preset
from enn_ppo.settings.schema import from_dict, setting_names, to_dict, unknown_setting
from rogue_net import config as net_config
from rogue_net.config import RogueNetConfig


@pytest.mark.parametrize(
    ("section", "values", "field", "given"),
    [
        (RolloutConfig, {"steps": True}, "rollout.steps", "True"),
        (RogueNetConfig, {"d_model": "32"}, "net.d_model", "'32'"),
        (OptimConfig, {"lr": math.nan}, "optim.lr", "nan"),
        (OptimConfig, {"lr": math.inf}, "optim.lr", "inf"),
        (OptimConfig, {"epochs": 1.5}, "optim.epochs", "1.5"),
        (OptimConfig, {"anneal_lr": 1}, "optim.anneal_lr", "1"),
        (EnvConfig, {"id": ""}, "env.id", "''"),
        (EnvConfig, {"kwargs": [1]}, "env.kwargs", "[1]"),
        (LoggerConfig, {"project": " "}, "logger.project", "' '"),
        (TrainConfig, {"run_dir": ""}, "run_dir", "''"),
        (TrainConfig, {"overwrite": "yes"}, "overwrite", "'yes'"),
        (TrainConfig, {"env": "MineSweeper"}, "env", "'MineSweeper'"),
        (EvalConfig, {"checkpoint": ""}, "checkpoint", "''"),
        (EvalConfig, {"checkpoint": "a", "render": "a.avi"}, "render", "'a.avi'"),
        (EvalConfig, {"checkpoint": "a", "env_kwargs": [1]}, "env_kwargs", "[1]"),
        (TrainEvalConfig, {"process": 1}, "eval.process", "1"),
        (SelfPlayConfig, {"latest": 1.5}, "self_play.latest", "1.5"),
        (ValueOptimConfig, {"lr": "-1@0 -> 0@1"}, "value_optim.lr", "-1.0 (in '-1@0 -> 0@1')"),
        (TrainConfig, {"value_net": 3}, "value_net", "3"),
        (RolloutConfig, {"num_envs": 2, "num_processes": 3}, "rollout.num_processes", "3"),
        (PPOConfig, {"clip_value": "no"}, "ppo.clip_value", "'no'"),
    ],
)
def test_a_bad_value_is_refused_with_its_dotted_field(
    section: type[Any], values: dict[str, Any], field: str, given: str
) -> None:
    with pytest.raises(ValueError, match=rf"^{re.escape(field)} .*must.* got {re.escape(given)}$|^{field} must"):
        section(**values)
    with pytest.raises(ValueError, match=re.escape(f"got {given}")):
        section(**values)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"value_optim": ValueOptimConfig(lr=0.1)}, r"value_optim\.lr=0\.1 needs .*value_net=default"),
        ({"record_logits": True}, r"record_logits=true needs a folder: record="),
        ({"eval": TrainEvalConfig(opponent="random")}, r"eval\.opponent=random needs .*eval\.interval="),
        (
            {"eval": TrainEvalConfig(env_kwargs={"width": 3})},
            r"eval\.env_kwargs=\{'width': 3\} needs .*eval\.interval=",
        ),
        ({"eval": TrainEvalConfig(episodes=20)}, r"eval\.episodes=20 needs .*eval\.interval="),
        (
            {"eval": TrainEvalConfig(interval=100, video_format="mp4")},
            r"eval\.video_format=mp4 needs films: eval\.video=",
        ),
        ({"self_play": SelfPlayConfig(pool_size=3)}, r"self_play\.pool_size=3 needs self_play\.enabled=true"),
        ({"eval": TrainEvalConfig(video=2)}, r"eval\.video=2 needs .*eval\.interval="),
        ({"eval": TrainEvalConfig(interval=9, seed=5), "seed": 5}, r"eval\.seed=5 is the seed of training"),
    ],
)
def test_a_setting_that_would_do_nothing_says_what_it_needs(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig(**settings)


def test_an_evaluation_records_logits_only_with_a_folder() -> None:
    with pytest.raises(ValueError, match="record_logits=true needs a folder: record="):
        EvalConfig(checkpoint="a", record_logits=True)


@pytest.mark.parametrize(
    ("section", "values", "near"),
    [
        (
            PPOConfig,
            {"ratio": "joitn"},
            r"ppo\.ratio is 'joitn'; allowed: 'per_actor', 'joint'; did you mean 'joint'\?",
        ),
        (PPOConfig, {"weighting": "frames"}, r"ppo\.weighting is 'frames'.* did you mean 'frame'\?"),
        (LoggerConfig, {"wandb": "ofline"}, r"logger\.wandb is 'ofline'.* did you mean 'offline'\?"),
        (PPOConfig, {"normalize": "return"}, r"ppo\.normalize is 'return'.* did you mean 'returns'\?"),
        (PPOConfig, {"advantages": "nstep"}, r"ppo\.advantages is 'nstep'.* did you mean 'n_step'\?"),
        (SelfPlayConfig, {"sampling": "prioritised"}, r"self_play\.sampling is .* did you mean 'prioritized'\?"),
        (TrainEvalConfig, {"video_format": "mp3"}, r"eval\.video_format is 'mp3'.* did you mean 'mp4'\?"),
        (TrainConfig, {"device": "gpu"}, r"device is 'gpu'; allowed: 'auto', 'cpu', 'cuda'"),
        (EvalConfig, {"checkpoint": "a", "device": "CUDA"}, r"device is 'CUDA'.* did you mean 'cuda'\?"),
        (
            RogueNetConfig,
            {"backend": "fussed"},
            r"net\.backend is 'fussed'; allowed: 'auto', 'reference', 'fused'; did you mean 'fused'\?",
        ),
    ],
)
def test_an_unknown_choice_lists_the_choices_and_the_nearest(
    section: type[Any], values: dict[str, Any], near: str
) -> None:
    with pytest.raises(ValueError, match=near):
        section(**values)


def test_the_width_must_be_divisible_by_the_heads() -> None:
    with pytest.raises(ValueError, match=r"net\.d_model.*divisible.*net\.n_head=4, got 33; .*: 32"):
        RogueNetConfig(d_model=33, n_head=4)
    assert RogueNetConfig(d_model=36, n_head=4).d_model == 36


def test_a_minibatch_larger_than_the_rollout_is_refused_with_both_numbers() -> None:
    rollout = RolloutConfig(num_envs=8, steps=4)
    with pytest.raises(
        ValueError, match=r"optim\.batch_size must be at most the 32 frames .*num_envs=8.*steps=4\), got 33"
    ):
        TrainConfig(rollout=rollout, optim=OptimConfig(batch_size=33))
    assert TrainConfig(rollout=rollout, optim=OptimConfig(batch_size=32)).optim.batch_size == 32


def test_a_microbatch_larger_than_the_minibatch_is_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"optim\.micro_batch_size must be at most optim\.batch_size=64 .*got 65"):
        OptimConfig(batch_size=64, micro_batch_size=65)


def test_fewer_timesteps_than_environments_are_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"total_timesteps must be at least rollout\.num_envs=128.*got 127"):
        TrainConfig(total_timesteps=127)
    assert TrainConfig(total_timesteps=128).total_timesteps == 128


def test_settings_cannot_be_changed_or_given_by_position() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        TrainConfig().seed = 2  # type: ignore[misc]
    with pytest.raises(TypeError):
        OptimConfig(0.1)  # type: ignore[call-arg]


def test_dictionaries_round_trip() -> None:
    config = TrainConfig(env=EnvConfig(id="a:B", kwargs={"sizes": (1, 2), "deep": {"x": None}}), seed=7)
    plain = to_dict(config)
    kwargs = {"sizes": [1, 2], "deep": {"x": None}}
    assert plain["env"] == {
        "id": "a:B",
        "api": "entity",
        "kwargs": kwargs,
        "info": {},
        "view": None,
        "wrappers": [],
        "timeout": None,
    }
    assert from_dict(TrainConfig, plain) == config
    assert plain["value_net"] is None
    apart = TrainConfig(
        value_net=RogueNetConfig(d_model=8), env=EnvConfig(info={"x": [1, 2], "y": {"low": 0, "high": 1}})
    )
    assert from_dict(TrainConfig, to_dict(apart)) == apart
    assert from_dict(EvalConfig, to_dict(EvalConfig(checkpoint="a"))) == EvalConfig(checkpoint="a")


def test_what_is_left_out_of_a_dictionary_has_its_default() -> None:
    assert from_dict(TrainConfig, {"optim": {"epochs": 5}}) == TrainConfig(optim=OptimConfig(epochs=5))


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
        ({"optim": {"lrr": 1}}, r"optim\.lrr is not a setting; allowed: 'optim\.lr', .*; did you mean 'optim\.lr'\?"),
        ({"sed": 1}, r"^sed is not a setting.*did you mean 'seed'\?"),
        ({"optim": 3}, r"optim must be a mapping of settings, got 3"),
        ({"optim": {"lr": "fast"}}, r"optim\.lr must be a number or a schedule .*, got 'fast': 'fast' is no point"),
        ({"optim": {"epochs": "3"}}, r"optim\.epochs must be an integer of at least 1, got '3'"),
        ({"optim": {"epochs": True}}, r"optim\.epochs must be an integer of at least 1, got True"),
        ({"optim": {"lr": True}}, r"optim\.lr must be a number or a schedule .*, got True"),
        ({"optim": {"lr": None}}, r"optim\.lr must be a number or a schedule .*, got None"),
        ({"value_net": {"d_modl": 8}}, r"value_net\.d_modl is not a setting.*did you mean 'value_net\.d_model'\?"),
        ({"net": {"n_layer": 2.5}}, r"net\.n_layer must be an integer of at least 0, got 2\.5"),
    ],
)
def test_a_dictionary_with_a_mistake_is_refused_with_the_dotted_field(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_dict(TrainConfig, values)


def test_numbers_and_paths_of_libraries_are_understood() -> None:
    config = TrainConfig(
        seed=np.int64(3), total_timesteps=1e6, run_dir=Path("a/b"), optim=OptimConfig(lr=np.float64(0.5))
    )  # type: ignore[arg-type]
    assert to_dict(config) == to_dict(
        TrainConfig(seed=3, total_timesteps=1_000_000, run_dir="a/b", optim=OptimConfig(lr=0.5))
    )
    assert preset(
        "Xor", seed=np.int32(2), total_timesteps=np.float64(1e5), max_train_seconds=np.float32(0.5)
    ) == preset("Xor", "seed=2", "total_timesteps=1e5", "max_train_seconds=0.5")


def test_a_required_setting_that_is_left_out_is_named() -> None:
    with pytest.raises(ValueError, match="checkpoint has no value"):
        from_dict(EvalConfig, {"episodes": 3})


def test_a_setting_in_the_wrong_section_is_found() -> None:
    names = setting_names(TrainConfig)
    assert unknown_setting("lr", names).endswith("did you mean 'optim.lr'?")
    assert unknown_setting("optm.lr", names).endswith("did you mean 'optim.lr'?")
    assert unknown_setting("ppo.epochs", names).endswith("did you mean 'optim.epochs'?")
    assert "did you mean" not in unknown_setting("zzz", names)


def test_arguments_that_no_file_can_hold_are_refused() -> None:
    with pytest.raises(ValueError, match=r"env\.kwargs\.maps\[1\] must be .*factory"):
        EnvConfig(kwargs={"maps": [1, {2}]})
    with pytest.raises(ValueError, match=r"env\.kwargs must have texts as names, got 1"):
        EnvConfig(kwargs={1: 2})  # type: ignore[dict-item]


def test_the_arguments_are_a_copy() -> None:
    kwargs = {"sizes": [1]}
    config = EnvConfig(kwargs=kwargs)
    kwargs["sizes"].append(2)
    assert config.kwargs == {"sizes": [1]}


def test_the_default_run_directory_is_a_safe_name() -> None:
    when = datetime(2030, 1, 2, 3, 4, 5)
    assert default_run_dir("MineSweeper", when) == "outputs/MineSweeper/2030-01-02_03-04-05"
    assert default_run_dir("my_pkg.env:Env", when) == "outputs/my_pkg.env_Env/2030-01-02_03-04-05"
    assert default_run_dir("../a/b", when) == "outputs/.._a_b/2030-01-02_03-04-05"


def test_settings_that_contradict_each_other_are_refused_with_both() -> None:
    with pytest.raises(ValueError, match=r"rollout\.num_processes=2 and rollout\.num_threads=2: use one of them"):
        RolloutConfig(num_processes=2, num_threads=2)
    with pytest.raises(ValueError, match=r"ppo\.n_steps=3 needs ppo\.advantages=n_step, got 'gae'"):
        PPOConfig(n_steps=3)
    with pytest.raises(ValueError, match=r"video=1 needs a file: render=<name>\.gif or \.mp4"):
        EvalConfig(checkpoint="a", video=1)


@pytest.mark.parametrize("module", [config, world_config, learning_config, evaluation_config, settings, net_config])
def test_the_settings_do_not_know_hydra(module: ModuleType) -> None:
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert not imported & {"hydra", "omegaconf"}
