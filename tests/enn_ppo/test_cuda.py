"""What must hold on a GPU as on the CPU. Skipped without one; docs/benchmarks.md says when they last ran."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from enn_ppo import RolloutConfig, TrainConfig, train
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.settings.config import DistributedConfig
from entity_gym.pools.pool import ListEnv
from rogue_net import FrameKeys, ObsBatch, RogueNet, RogueNetConfig, keyed
from rogue_net.batch.obs_batch import actions_to_tensors
from tests.enn_ppo.rollouts import Collector
from tests.entity_gym.envs.minesweeper_python import PythonMineSweeper

pytestmark = pytest.mark.gpu
FUSED = RogueNetConfig(backend="fused")  # Triton's kernels, whether or not they have been checked


def make_net(vec_env: ListEnv) -> RogueNet:
    torch.manual_seed(0)
    return RogueNet(FUSED, vec_env.obs_space(), vec_env.action_space())


def config(folder: Path, total_timesteps: int, device: str, **settings: object) -> TrainConfig:
    settings = {"rollout": RolloutConfig(num_envs=16, steps=64), "net": FUSED} | settings
    return TrainConfig(total_timesteps=total_timesteps, device=device, run_dir=str(folder), **settings)  # type: ignore[arg-type]


def test_cpu_and_cuda_agree_on_log_probs_entropies_and_values() -> None:
    vec_env = ListEnv(lambda: PythonMineSweeper(orbital_cannon=True, cooldown_period=0), 32, seed=1)
    obs = vec_env.reset()
    net = make_net(vec_env)
    batch = ObsBatch.from_vec_obs(obs)
    actions = net.act(batch).to_buffers()
    on_cpu = net.evaluate(batch, actions_to_tensors(actions))
    on_cuda = net.to("cuda").evaluate(ObsBatch.from_vec_obs(obs, "cuda"), actions_to_tensors(actions, "cuda"))
    torch.testing.assert_close(on_cuda.values.cpu(), on_cpu.values, atol=1e-5, rtol=1e-5)
    for name in on_cpu.log_probs:
        torch.testing.assert_close(on_cuda.log_probs[name].cpu(), on_cpu.log_probs[name], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(on_cuda.entropies[name].cpu(), on_cpu.entropies[name], atol=1e-5, rtol=1e-5)


def test_the_log_ratio_is_zero_on_the_rollouts_own_frames() -> None:
    vec_env = ListEnv(PythonMineSweeper, 16, seed=1)
    device = torch.device("cuda")
    collector = Collector(vec_env, make_net(vec_env).to(device), device, 1)
    collector.reset()
    rollout = collector.collect(8)
    frames = torch.arange(16, device=device)  # the first step, as it was acted
    actions = {name: ragged.gather(frames) for name, ragged in rollout.frames.actions.items()}
    evaluation = collector.net.evaluate(rollout.frames.obs[frames], actions)
    for name, log_probs in evaluation.log_probs.items():
        assert torch.equal(log_probs, rollout.frames.log_probs[name].gather(frames).values)


def test_training_runs_on_cuda_and_resumes_on_the_cpu_and_back(tmp_path: Path) -> None:
    train(config(tmp_path / "a", 4096, "cuda"))
    on_cpu = train(config(tmp_path / "a", 6144, "cpu", resume=str(tmp_path / "a")))
    assert on_cpu.step == 6144
    back = train(config(tmp_path / "a", 8192, "cuda", resume=str(tmp_path / "a")))
    assert back.step == 8192 and back.metrics is not None and back.metrics["approx_kl"] is not None


def test_keyed_noise_has_the_same_bits_on_cuda_and_draws_the_same_actions() -> None:
    vec_env = ListEnv(lambda: PythonMineSweeper(orbital_cannon=True, cooldown_period=0), 64, seed=1)
    obs, net = vec_env.reset(), make_net(vec_env)
    keys = keyed(keyed(7, torch.arange(64)), torch.tensor(3))
    here = net.act(ObsBatch.from_vec_obs(obs), generator=FrameKeys(keys)).to_buffers()
    assert torch.equal(keyed(7, torch.arange(64, device="cuda")).cpu(), keyed(7, torch.arange(64)))
    there = net.to("cuda").act(ObsBatch.from_vec_obs(obs, "cuda"), generator=FrameKeys(keys.cuda())).to_buffers()
    for name, actions in here.items():
        assert (actions.values == there[name].values).mean() > 0.999  # a tie may fall the other way


def test_a_learner_on_ray_is_on_cuda_and_its_runners_are_not(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    ray = DistributedConfig(mode="ray", num_env_runners=2, learner_gpus=1.0)
    there = train(config(tmp_path / "a", 4096, "cuda", distributed=ray))
    here = train(config(tmp_path / "b", 4096, "cpu", rollout=RolloutConfig(num_envs=16, steps=64, block=8)))
    assert there.step == here.step == 4096 and there.metrics is not None and here.metrics is not None
    assert there.metrics["policy_loss"] == pytest.approx(here.metrics["policy_loss"], abs=1e-3)
    assert train(config(tmp_path / "a", 6144, "cpu", resume=str(tmp_path / "a"))).step == 6144


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs a GPU for each of two ranks")
def test_two_ranks_train_on_two_gpus_by_nccl(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node=2",
        "-m",
        "enn_ppo.train",
    ]
    settings = [
        "env=MineSweeper",
        "distributed=ddp",
        "net.backend=fused",
        "device=cuda",
        "total_timesteps=8192",
        f"run_dir={tmp_path / 'a'}",
    ]
    done = subprocess.run([*command, *settings], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "on cuda with 2 ranks" in done.stdout
    assert load_checkpoint(tmp_path / "a").step == 8192
