"""CUDA computes what the CPU does, and trains. Skipped without a GPU; docs/benchmarks.md says whether these tests ever ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from enn_ppo import RogueNetConfig, RolloutConfig, TrainConfig, TrainEvalConfig, train
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.settings.config import DistributedConfig
from enn_ppo.training.tracking.logger import read_metrics
from rogue_net import RaggedTensor
from rogue_net.config import RelposConfig, TranslationConfig
from tests.processes import run
from tests.rogue_net.backends import (
    ALL_OF_RELPOS,
    SHIP,
    Scene,
    as_double,
    assert_near,
    make_config,
    make_net,
    network,
    twin,
)

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
#: Ships, rocks and flags of each frame: an empty one, one entity alone, some, and a crowd.
SCENE = Scene([(0, 0, 0), (1, 0, 0), (5, 6, 1), (3, 0, 0), (17, 20, 1), (2, 9, 0)], 2, hide=True)
ONE_SHIP = Scene([(1, 4, 1), (0, 3, 0), (1, 0, 0), (1, 12, 0)], 7)
CASES: dict[str, tuple[dict[str, Any], Scene]] = {
    "plain": ({}, SCENE),
    "pooling": ({"pooling": "meanmax"}, SCENE),
    "relative positions": ({"relpos": RelposConfig(**ALL_OF_RELPOS)}, SCENE._replace(seed=6)),
    "seen from a ship": (
        {
            "translation": TranslationConfig(
                reference_entity=SHIP,
                position_features=["x", "y"],
                rotation_angle_feature="heading",
                add_distance=True,
            )
        },
        ONE_SHIP,
    ),
}


def to_cuda(actions: dict[str, RaggedTensor]) -> dict[str, RaggedTensor]:
    return {name: each.map(lambda tensor: tensor.to(CUDA)) for name, each in actions.items()}


@pytest.mark.parametrize(("options", "scene"), CASES.values(), ids=list(CASES))
def test_log_probs_entropies_values_and_gradients_are_those_of_float64_on_the_cpu(
    options: dict[str, Any], scene: Scene
) -> None:
    batch = scene.batch
    net = make_net(make_config(backend="reference", **options), batch)
    actions = net.act(batch, generator=torch.Generator().manual_seed(0)).actions
    exact = network(twin(net, "reference", torch.float64), as_double(batch), actions)
    found = network(net.to(CUDA), batch.to(CUDA), to_cuda(actions))
    there = found._replace(
        outputs={name: each.cpu() for name, each in found.outputs.items()},
        gradients={name: each.cpu() for name, each in found.gradients.items()},
    )
    assert_near(there, exact)


# --- Training


def config(folder: Path, total_timesteps: int, device: str, **settings: Any) -> TrainConfig:
    given = {"rollout": RolloutConfig(num_envs=16, steps=64)} | settings
    return TrainConfig(total_timesteps=total_timesteps, device=device, run_dir=str(folder), **given)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_training_runs_on_cuda_and_resumes_on_the_cpu_and_back(precision: Any, tmp_path: Path) -> None:
    net = RogueNetConfig(precision=precision)
    evaluation = TrainEvalConfig(interval=1024, episodes=4, num_envs=4)
    train(config(tmp_path / "a", 4096, "cuda", net=net, eval=evaluation))
    steps = [row["eval/step"] for row in read_metrics(tmp_path / "a/metrics.jsonl") if "eval/step" in row]
    assert steps[-1] == 4096  # the last policy is always evaluated
    on_cpu = train(config(tmp_path / "a", 6144, "cpu", resume=str(tmp_path / "a")))
    assert on_cpu.step == 6144
    back = train(config(tmp_path / "a", 8192, "cuda", net=net, resume=str(tmp_path / "a")))
    assert back.step == 8192 and back.metrics is not None and back.metrics["approx_kl"] is not None


@pytest.mark.parametrize("world", ["Knapsack", "Route", "Shells", "Corridor", "Pairs"])
def test_sets_memory_and_chains_train_on_cuda_and_act_on_the_cpu(world: str, tmp_path: Path) -> None:
    preset = ("-m", "enn_ppo.train", f"env={world}", "rollout.num_envs=16", "rollout.steps=16", "optim.batch_size=64")
    done = run(*preset, "total_timesteps=1024", "device=cuda", f"run_dir={tmp_path / 'a'}")
    assert done.returncode == 0, done.stderr
    assert all(row["approx_kl"] is not None for row in read_metrics(tmp_path / "a/metrics.jsonl") if "approx_kl" in row)
    played = run("-m", "enn_ppo.eval", f"checkpoint={tmp_path / 'a'}", "device=cpu", "episodes=4", "num_envs=2")
    assert played.returncode == 0, played.stderr


def test_deterministic_training_has_the_same_bits_every_time(tmp_path: Path) -> None:
    # a process of its own: cuBLAS decides when it is first used whether it is deterministic
    command = ("-m", "enn_ppo.train", "env=MineSweeper", "device=cuda", "torch_deterministic=true")
    for name in ("a", "b"):
        done = run(*command, "total_timesteps=4096", f"run_dir={tmp_path / name}")
        assert done.returncode == 0, done.stderr
    first, second = (load_checkpoint(tmp_path / name).policy for name in ("a", "b"))
    assert all(torch.equal(weight, second[name]) for name, weight in first.items())


def test_a_learner_on_ray_is_on_cuda_and_its_runners_are_not(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    ray = DistributedConfig(mode="ray", num_env_runners=2)
    there = train(config(tmp_path / "a", 4096, "cuda", distributed=ray))
    assert there.step == 4096
    assert train(config(tmp_path / "a", 6144, "cpu", resume=str(tmp_path / "a"))).step == 6144


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs a GPU for each of two ranks")
def test_two_ranks_train_on_two_gpus_by_nccl(tmp_path: Path) -> None:
    settings = (
        "env=MineSweeper",
        "distributed=ddp",
        "device=cuda",
        "total_timesteps=8192",
        f"run_dir={tmp_path / 'a'}",
    )
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    done = run(*torchrun, "-m", "enn_ppo.train", *settings)
    assert done.returncode == 0, done.stderr
    assert "on cuda with 2 ranks" in done.stdout
    assert load_checkpoint(tmp_path / "a").step == 8192
