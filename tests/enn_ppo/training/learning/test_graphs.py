"""Acting and learning as graphs (`compile=graphs`), as far as the CPU goes.

There a recording runs its function every time. All else is as on CUDA: what is filled up, the fixed places, who reads them.
"""

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from enn_ppo import Callback, RolloutConfig, TrainConfig, TrainResult, train
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.ppo import learn_minibatch
from enn_ppo.settings.command_line.cli import run_train
from enn_ppo.settings.config import EnvConfig, OptimConfig, PPOConfig, RogueNetConfig
from enn_ppo.settings.learning import PPOSettings, Ratio
from enn_ppo.training.callbacks import Update
from enn_ppo.training.errors import DeviceMemoryFull
from enn_ppo.training.learning.graphs import support
from enn_ppo.training.learning.graphs.acting import ActGraph
from enn_ppo.training.learning.graphs.learning import MinibatchGraph
from enn_ppo.training.learning.graphs.recording import Recording, copy_all
from enn_ppo.training.ranks import ALONE
from entity_gym import ActionSpace, ContinuousActionMask, ContinuousActionSpace, Entity, Observation, ObsSpace
from entity_gym.batch.batching import batch_observations
from entity_gym.pools.pool import ListEnv
from rogue_net import FrameKeys, ObsBatch, RaggedTensor, RogueNet, keyed
from rogue_net.batch import crossing
from rogue_net.config import RelposConfig
from tests.enn_ppo.samples import samples_of
from tests.entity_gym.envs.minesweeper_python import PythonMineSweeper

CPU = torch.device("cpu")
GRID = RelposConfig(
    kind="grid", extent=[5, 5], position_features=["x", "y"], exclude_entities=["Orbital Cannon"], interpolate=True
)

FUSED = RogueNetConfig(backend="fused")  # Triton's kernels, whether or not they have been checked


@pytest.fixture
def graphs_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(support, "GRAPH_DEVICES", {"cpu"})
    monkeypatch.setattr(support, "why_unchecked", lambda device: None)
    yield


def run(folder: Path, compile_: str, **settings: object) -> TrainResult:
    settings = {
        "env": EnvConfig(id="MineSweeper", kwargs={"orbital_cannon": True}),
        "rollout": RolloutConfig(num_envs=16, steps=8),
        "optim": OptimConfig(lr=0.005, anneal_lr=False, batch_size=48, epochs=2),
        "ppo": PPOConfig(anneal_entropy=False),
        "total_timesteps": 128 * 6,
        "checkpoint_interval": 1,
        "keep_last": 10,
    } | settings
    return train(TrainConfig(run_dir=str(folder), compile=compile_, **({"device": "cpu"} | settings)))  # type: ignore[arg-type]


def assert_same_weights(one: RogueNet, other: RogueNet, tolerance: float = 1e-4) -> None:
    for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"ppo": PPOConfig(ratio="joint", weighting="frame", clip_value=True, normalize="returns")},
        {"ppo": PPOConfig(clip="0.3@0 -> 0.1@1", ent_coef="0.05@0 -> 0@1", target_kl=0.5)},
        {"env": EnvConfig(id="CherryPick"), "total_timesteps": 128 * 2},
        {"env": EnvConfig(id="MultiSnake"), "rollout": RolloutConfig(num_envs=16, steps=8, pipeline=2)},
        {"net": RogueNetConfig(pooling="mean"), "value_net": RogueNetConfig(d_model=16)},
        {"env": EnvConfig(id="MoveToOrigin"), "ppo": PPOConfig(ratio="joint", anneal_entropy=False)},
        {"net": RogueNetConfig(relpos=GRID)},
        {"env": EnvConfig(id="tests.entity_gym.pools.test_targets:Hidden"), "ppo": PPOConfig(target_coef=1.0)},
    ],
    ids=[
        "plain",
        "joint",
        "schedules",
        "select-entity",
        "pipeline",
        "pooling and a value network",
        "continuous",
        "relative positions",
        "targets",
    ],
)
def test_a_run_with_graphs_learns_what_a_run_without_does(
    settings: dict[str, object], tmp_path: Path, graphs_on_the_cpu: None
) -> None:
    graphs, plain = (run(tmp_path / name, name, **settings) for name in ("graphs", "off"))
    assert graphs.metrics is not None and plain.metrics is not None
    for name in (
        "episodic_reward",
        "policy_loss",
        "value_loss",
        "entropy",
        "approx_kl",
        "grad_norm",
        "explained_variance",
    ):
        expected = plain.metrics[name]
        if expected is None:
            assert graphs.metrics[name] is None
        else:
            assert graphs.metrics[name] == pytest.approx(expected, rel=1e-3, abs=1e-4, nan_ok=True), name
    assert_same_weights(graphs.policy, plain.policy)


def test_a_run_goes_on_from_a_checkpoint_of_either_kind(tmp_path: Path, graphs_on_the_cpu: None) -> None:
    whole = run(tmp_path / "whole", "graphs")
    run(tmp_path / "part", "graphs", total_timesteps=128 * 3)
    again = run(tmp_path / "part", "graphs", resume=str(tmp_path / "part"))
    assert_same_weights(again.policy, whole.policy)
    run(tmp_path / "other", "off", total_timesteps=128 * 3)
    other = run(tmp_path / "other", "graphs", resume=str(tmp_path / "other"))
    assert_same_weights(other.policy, whole.policy)
    saved = load_checkpoint(tmp_path / "part").trainer["optimizer"]["param_groups"]
    assert all(type(group["lr"]) is float and group["capturable"] is False for group in saved)


@pytest.mark.parametrize("ratio", ["joint", "per_actor"])
def test_what_fills_up_may_be_next_to_impossible_and_still_changes_nothing(ratio: Ratio) -> None:
    """At a bound, where actions that fill up are, ten wide distributions together have a probability ratio that is infinite."""
    actions: dict[str, ActionSpace] = {"bend": ContinuousActionSpace([0.0] * 10, [1.0] * 10)}
    obs_space = ObsSpace({"Arm": Entity(["x"])})
    frame = Observation(
        features={"Arm": np.linspace(-1, 1, 8, dtype=np.float32).reshape(8, 1)},
        ids={"Arm": list(range(8))},
        actions={"bend": ContinuousActionMask(actor_ids=list(range(8)))},
    )
    obs = ObsBatch.from_vec_obs(batch_observations([frame] * 40, obs_space, actions))
    after = []
    for learn in (learn_minibatch, MinibatchGraph()):
        torch.manual_seed(0)
        net = RogueNet(RogueNetConfig(backend="reference"), obs_space, actions)
        with torch.no_grad():
            dict(net.named_parameters())["heads.0.log_std"].fill_(1)
        result = net.act(obs, generator=torch.Generator().manual_seed(1))
        samples = samples_of(
            obs,
            result.actions,
            {"bend": RaggedTensor(result.log_probs["bend"], result.actions["bend"].offsets)},
            result.values,
            advantages=torch.linspace(-1, 1, 40),
            returns=torch.linspace(0, 1, 40),
        )
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        settings = PPOSettings.at(PPOConfig(ratio=ratio))
        stats = learn(net, optimizer, samples, OptimConfig(batch_size=40), settings)
        assert all(each.isfinite() for each in stats.values())
        after.append(net)
    assert_same_weights(after[1], after[0])


# --- Growing


def sweepers(num_envs: int, seed: int = 1) -> ListEnv:
    return ListEnv(lambda: PythonMineSweeper(orbital_cannon=True, cooldown_period=0), num_envs, seed=seed)


def test_a_step_that_is_larger_than_all_before_grows_the_graph_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    small = sweepers(4)
    obs = small.reset()
    large_env = ListEnv(
        lambda: PythonMineSweeper(orbital_cannon=True, num_mines=20, num_robots=9, cooldown_period=0), 4, seed=2
    )
    large = large_env.reset()
    torch.manual_seed(0)
    net = RogueNet(RogueNetConfig(backend="reference"), small.obs_space(), small.action_space())
    act = ActGraph(net, CPU)
    keys = keyed(5, torch.arange(4))
    for seen, said in [(obs, 0), (obs, 0), (large, 1), (obs, 1), (large, 1)]:
        with caplog.at_level(logging.WARNING):
            batch, result = act(seen, keys)
        expected = net.act(ObsBatch.from_vec_obs(seen), generator=FrameKeys(keys))
        for name, action in expected.actions.items():
            assert torch.equal(result.actions[name].values, action.values)
            assert torch.equal(result.actions[name].offsets, action.offsets)
            torch.testing.assert_close(result.log_probs[name], expected.log_probs[name], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(result.values, expected.values, atol=1e-6, rtol=1e-5)
        for one, other in zip(batch.tensors(), ObsBatch.from_vec_obs(seen).tensors(), strict=True):
            assert torch.equal(one, other)
        assert len([r for r in caplog.records if "recorded again with room for" in r.getMessage()]) == said


def test_what_is_kept_of_a_step_is_not_overwritten_by_the_next() -> None:
    env = sweepers(4)
    torch.manual_seed(0)
    net = RogueNet(RogueNetConfig(backend="reference"), env.obs_space(), env.action_space())
    act, obs = ActGraph(net, CPU), env.reset()
    first, result = act(obs, keyed(5, torch.arange(4)))
    before = [tensor.clone() for tensor in first.tensors()], result.values.clone()
    act(env.act(result.to_buffers()), keyed(6, torch.arange(4)))
    assert all(torch.equal(a, b) for a, b in zip(before[0], first.tensors(), strict=True))
    assert torch.equal(before[1], result.values)


def test_results_come_to_the_host_as_they_lie_in_one_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    env = sweepers(4)
    torch.manual_seed(0)
    net = RogueNet(RogueNetConfig(backend="reference"), env.obs_space(), env.action_space())
    result = ActGraph(net, CPU)(env.reset(), keyed(5, torch.arange(4))).result
    expected = result.to_buffers()
    monkeypatch.setattr(crossing, "is_host", lambda device: False)  # the CPU takes the way of a GPU
    monkeypatch.setattr(crossing, "join", lambda tensors: pytest.fail("they are one already"))
    buffers, (values, *log_probs) = result.fetch({name: buffer.offsets for name, buffer in expected.items()})
    assert buffers == expected and (values == result.values.numpy()).all()
    for found, name in zip(log_probs, result.log_probs, strict=True):
        assert (found == result.log_probs[name].numpy()).all()


# --- Where there are none


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "graphs are of CUDA, and the policy is on cpu"),
        ({"optim": OptimConfig(micro_batch_size=16)}, "optim.micro_batch_size=16"),
        ({"torch_deterministic": True}, "torch_deterministic=true"),
        ({"net": RogueNetConfig(residual_dropout=0.1)}, "net.residual_dropout=0.1"),
        ({"net": RogueNetConfig(backend="reference")}, "net.backend=reference packs frames on the host"),
        ({"value_net": RogueNetConfig(d_model=160, n_head=1)}, "the width of a head"),
    ],
)
def test_compile_graphs_is_refused_by_name_and_auto_goes_without(settings: dict[str, object], message: str) -> None:
    device = CPU if not settings else torch.device("cuda")
    config = TrainConfig(compile="graphs", **settings)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"compile=graphs cannot be: .*{message}.*; allowed: auto, off"):
        support.uses_graphs(config, device, ALONE)
    assert not support.uses_graphs(TrainConfig(**settings), device, ALONE)  # type: ignore[arg-type]


def test_auto_takes_graphs_on_cuda_and_off_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda")
    monkeypatch.setattr(support, "why_unchecked", lambda device: None)
    assert support.uses_graphs(TrainConfig(), cuda, ALONE)
    assert not support.uses_graphs(TrainConfig(compile="off"), cuda, ALONE)


def test_graphs_need_kernels_that_were_checked_or_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "why_unchecked", lambda device: "the checks failed")
    cuda = torch.device("cuda")
    with pytest.raises(
        ValueError, match=r"net.backend=auto takes .*: the checks failed. Run .*, or set net.backend=fused"
    ):
        support.uses_graphs(TrainConfig(compile="graphs"), cuda, ALONE)
    assert not support.uses_graphs(TrainConfig(), cuda, ALONE)
    assert support.uses_graphs(TrainConfig(net=RogueNetConfig(backend="fused")), cuda, ALONE)


def test_an_unknown_value_is_refused() -> None:
    with pytest.raises(ValueError, match="compile is 'fast'; allowed: 'auto', 'off', 'graphs'"):
        TrainConfig(compile="fast")  # type: ignore[arg-type]


# --- A full device


def test_a_full_device_ends_the_run_with_the_settings_that_take_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of ..."
        )

    monkeypatch.setattr("enn_ppo.training.learning.learner.update", full)
    with pytest.raises(
        DeviceMemoryFull, match=r"the device's memory is full \(CUDA out of memory\).*micro_batch_size=24"
    ):
        run(tmp_path / "a", "off")
    code = run_train(train, ["env=MineSweeper", f"run_dir={tmp_path / 'b'}", "device=cpu"])
    told = capsys.readouterr().err
    assert code == 1 and "Traceback" not in told
    assert "optim.micro_batch_size=" in told and "rollout.num_envs" in told and f"resume={tmp_path / 'b'}" in told


def test_a_device_that_is_full_from_the_start_or_after_a_checkpoint_is_told_likewise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

    run(tmp_path / "a", "off", total_timesteps=128)
    with monkeypatch.context() as patch:
        patch.setattr("enn_ppo.rollout.Trajectory.act", full)
        with pytest.raises(DeviceMemoryFull, match="rollout.num_envs"):
            run(tmp_path / "b", "off")
    monkeypatch.setattr("enn_ppo.training.learning.learner.update", full)
    with pytest.raises(DeviceMemoryFull, match=f"go on from the last checkpoint with resume={tmp_path / 'a'}"):
        run(tmp_path / "a", "off", resume=str(tmp_path / "a"))


def test_copies_go_by_type() -> None:
    sources = [torch.rand(3), torch.arange(4), torch.rand(2, 2), torch.tensor([True])]
    places = [torch.zeros_like(each) for each in sources]
    copy_all(places, sources)
    assert all(torch.equal(a, b) for a, b in zip(places, sources, strict=True))


# --- On CUDA


@pytest.mark.gpu
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"rollout": RolloutConfig(num_envs=16, steps=8, pipeline=2)},
        {"net": RogueNetConfig(backend="fused", relpos=GRID)},
        {
            "value_net": RogueNetConfig(backend="fused", d_model=16),
            "ppo": PPOConfig(normalize="returns", target_kl=0.5),
        },
        {"env": EnvConfig(id="MoveToOrigin"), "ppo": PPOConfig(ratio="joint")},
        {"env": EnvConfig(id="CherryPick"), "total_timesteps": 128 * 2},
        {"net": RogueNetConfig(pooling="meanmax")},
    ],
    ids=["plain", "pipeline", "relative positions", "a value network", "continuous", "select-entity", "pooling"],
)
def test_on_cuda_a_recorded_run_learns_what_a_run_without_graphs_does(
    settings: dict[str, object], tmp_path: Path
) -> None:
    graphs, plain = (
        run(tmp_path / name, name, device="cuda", **{"net": FUSED, **settings}) for name in ("graphs", "off")
    )
    assert graphs.metrics is not None and plain.metrics is not None
    for name in ("policy_loss", "value_loss", "entropy", "grad_norm"):
        assert graphs.metrics[name] == pytest.approx(plain.metrics[name], rel=1e-2, abs=1e-3), name
    assert_same_weights(graphs.policy, plain.policy, tolerance=5e-3)


@pytest.mark.gpu
def test_on_cuda_a_recording_replays_on_other_numbers_and_changes_the_same_parameters() -> None:
    device = torch.device("cuda")
    torch.manual_seed(0)
    weight, given = torch.ones(4, device=device, requires_grad=True), torch.zeros(4, device=device)
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = (weight * given).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    recording = Recording(step, device)
    expected = torch.ones(4)
    for number in range(1, 6):  # as it is, recorded, and replayed
        given.fill_(number)
        assert float(recording()) == pytest.approx(float((expected * number).sum()), rel=1e-5)
        expected -= 0.1 * number
        torch.testing.assert_close(weight.detach().cpu(), expected)


@pytest.mark.gpu
def test_on_cuda_a_run_with_graphs_takes_no_more_memory_after_many_updates(tmp_path: Path) -> None:
    allocated: list[int] = []

    class Watch(Callback):
        def on_update(self, update: Update) -> None:
            torch.cuda.synchronize()
            allocated.append(torch.cuda.memory_allocated())

    config = TrainConfig(
        env=EnvConfig(id="MineSweeper"), rollout=RolloutConfig(num_envs=64, steps=8), optim=OptimConfig(batch_size=128),
        net=FUSED, total_timesteps=512 * 30, device="cuda", compile="graphs", run_dir=str(tmp_path / "a"),
    )  # fmt: skip
    train(config, callbacks=[Watch()])
    assert max(allocated[15:]) <= max(allocated[:15]) * 1.05


@pytest.mark.gpu
def test_on_cuda_a_graph_grows_and_nothing_of_it_waits() -> None:
    small = sweepers(4)
    large = ListEnv(lambda: PythonMineSweeper(orbital_cannon=True, num_mines=20, num_robots=9), 4, seed=2)
    device = torch.device("cuda")
    net = RogueNet(FUSED, small.obs_space(), small.action_space()).to(device)
    act, keys = ActGraph(net, device), keyed(5, torch.arange(4)).to(device)
    for obs in [small.reset()] * 3 + [large.reset()] * 3 + [small.reset()]:
        expected = net.act(ObsBatch.from_vec_obs(obs, device), generator=FrameKeys(keys)).to_buffers()
        torch.cuda.set_sync_debug_mode("error")
        try:
            result = act(obs, keys).result
        finally:
            torch.cuda.set_sync_debug_mode("default")
        for name, actions in result.to_buffers().items():
            assert (actions.values == expected[name].values).mean() > 0.99


@pytest.mark.gpu
def test_on_cuda_a_run_with_graphs_goes_on_on_the_cpu_and_back(tmp_path: Path) -> None:
    run(tmp_path / "a", "graphs", device="cuda", net=FUSED, total_timesteps=128 * 2)
    run(tmp_path / "a", "auto", device="cpu", net=FUSED, total_timesteps=128 * 4, resume=str(tmp_path / "a"))
    back = run(tmp_path / "a", "graphs", device="cuda", net=FUSED, resume=str(tmp_path / "a"))
    whole = run(tmp_path / "b", "off")
    assert_same_weights(back.policy.cpu(), whole.policy, tolerance=5e-3)
