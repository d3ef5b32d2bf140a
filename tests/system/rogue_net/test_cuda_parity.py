"""CUDA computes what the CPU does in float64, with every backend and every option that a network has.

Every test also runs on the CPU against the CPU, where it costs little and shows that the test itself is right.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from enn_ppo.ppo import Advantages, Samples, update
from enn_ppo.rollout import Rollout
from enn_ppo.settings.config import OptimConfig, PPOConfig
from enn_ppo.settings.learning import PPOSettings
from entity_gym.pools.pool import ListEnv
from rogue_net import FrameKeys, ObsBatch, RaggedTensor, RogueNet, RogueNetConfig, keyed
from rogue_net.config import RelposConfig, TranslationConfig
from tests.enn_ppo.rollouts import Collector
from tests.entity_gym.envs.minesweeper_python import PythonMineSweeper
from tests.rogue_net import worlds
from tests.rogue_net.backends import (
    ALL_OF_RELPOS,
    FLAG,
    SHIP,
    Results,
    Scene,
    as_double,
    assert_near,
    away_from_edges,
    make_config,
    make_net,
    network,
    twin,
)
from tests.rogue_net.devices import ON_BACKENDS, ON_DEVICES, moved, skip_if_refused

ROOT = Path(__file__).parents[3]
#: Ships, rocks and flags of each frame: an empty one, one entity alone, some, and a crowd.
COUNTS = [(0, 0, 0), (1, 0, 0), (5, 6, 1), (3, 0, 0), (17, 20, 1), (2, 9, 0)]


class Case(NamedTuple):
    """A network's options, and what it sees."""

    options: dict[str, Any]
    scene: Scene

    @property
    def config(self) -> RogueNetConfig:
        return make_config(backend="reference", **self.options)


def relative(kind: str, extent: list[int], seed: int, **more: Any) -> Case:
    """Relative positions, in frames in which no pair stands where rounding decides between two buckets."""
    config = RelposConfig(kind=kind, extent=extent, position_features=["x", "y"], exclude_entities=[FLAG], **more)  # type: ignore[arg-type]
    return Case({"relpos": config}, Scene([(0, 0, 0), (1, 0, 0), (3, 4, 1), (2, 2, 0)], seed, hide=True))


CASES = {
    "all visible": Case({}, Scene(COUNTS, 1)),
    "some hidden": Case({}, Scene(COUNTS, 2, hide=True)),
    "nobody acts": Case({}, Scene(COUNTS, 3, acting="nobody")),
    "only one can be picked": Case({}, Scene(COUNTS, 4, hide=True, acting="on one")),
    "one layer, wide heads": Case({"shape": (128, 2), "n_layer": 1}, Scene(COUNTS, 5, hide=True)),
    "heads of 8": Case({"shape": (24, 3), "n_layer": 3}, Scene(COUNTS, 6, hide=True)),
    "mean pooling": Case({"pooling": "mean"}, Scene(COUNTS, 7, hide=True)),
    "max pooling": Case({"pooling": "max"}, Scene(COUNTS, 8, hide=True)),
    "mean and max pooling": Case({"pooling": "meanmax"}, Scene(COUNTS, 9, hide=True)),
    "a grid": relative("grid", [3, 3], 1),
    "a grid, interpolated": relative("grid", [3, 3], 2, interpolate=True),
    "angles": relative("radial", [6], 3, rotation_vec_features=["dx", "dy"]),
    "distances": relative("distance", [5], 10, value_gate="sigmoid"),
    "angles and distances": relative("polar", [5, 4], 5, rotation_angle_feature="heading", world_axis_at_zero=True),
    "the next sector at the start of one": relative(
        "polar", [5, 4], 11, rotation_angle_feature="heading", interpolate=True, next_sector_at_start=True
    ),
    "all of relative positions": Case({"relpos": RelposConfig(**ALL_OF_RELPOS)}, Scene(COUNTS, 6, hide=True)),
    "seen from a ship": Case(
        {
            "translation": TranslationConfig(
                reference_entity=SHIP,
                position_features=["x", "y"],
                rotation_angle_feature="heading",
                add_distance=True,
            )
        },
        Scene([(1, 4, 1), (0, 3, 0), (1, 0, 0), (1, 12, 0)], 7),
    ),
}
EACH_CASE = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))


def on_device(net: RogueNet, batch: ObsBatch, actions: dict[str, RaggedTensor], device: str) -> Results:
    """What `network` finds there, back on the CPU."""
    found = network(net.to(device), moved(batch, device), moved(actions, device))
    return found._replace(outputs=moved(found.outputs, "cpu"), gradients=moved(found.gradients, "cpu"))


@EACH_CASE
def test_no_pair_of_a_case_stands_where_rounding_decides(case: Case) -> None:
    assert away_from_edges(case.scene.batch, case.config.relpos)


@EACH_CASE
@ON_BACKENDS
def test_log_probs_entropies_values_and_gradients_are_those_of_float64_on_the_cpu(
    device: str, backend: Any, case: Case
) -> None:
    batch = case.scene.batch
    net = make_net(case.config, batch)
    actions = net.act(batch, generator=torch.Generator().manual_seed(0)).actions
    exact = network(twin(net, "reference", torch.float64), as_double(batch), actions)
    try:
        there = on_device(twin(net, backend), batch, actions, device)
    except ValueError as error:
        skip_if_refused(backend, error)
    assert_near(there, exact)


@EACH_CASE
@pytest.mark.parametrize(("device", "backend"), [*ON_BACKENDS.args[1], ("cpu", "fused")])
def test_keyed_noise_draws_the_same_actions(device: str, backend: Any, case: Case) -> None:
    scene = case.scene._replace(counts=case.scene.counts * 8)
    batch = scene.batch
    net = make_net(case.config, batch)
    keys = keyed(keyed(7, torch.arange(len(batch))), torch.tensor(3))
    here = net.act(batch, generator=FrameKeys(keys))
    try:
        there = twin(net, backend).to(device).act(moved(batch, device), generator=FrameKeys(keys.to(device)))
    except ValueError as error:
        skip_if_refused(backend, error)
    for name, actions in here.actions.items():
        drawn = there.actions[name].values.cpu()
        if drawn.is_floating_point():
            torch.testing.assert_close(drawn, actions.values, atol=1e-4, rtol=1e-4)
        elif len(drawn):
            assert (drawn == actions.values).double().mean() > 0.99  # a tie may fall the other way
    torch.testing.assert_close(there.values.cpu(), here.values, atol=1e-5, rtol=1e-5)


@ON_DEVICES
@settings(max_examples=10)
@given(data=st.data(), world=worlds.worlds)
def test_worlds_with_everything_left_out_in_some_frames_are_evaluated_alike(
    device: str, data: st.DataObject, world: worlds.World
) -> None:
    batch = worlds.to_batch(data.draw(worlds.batches(world)), world)
    net = worlds.net_of(world, "reference")
    actions = net.act(batch, generator=torch.Generator().manual_seed(0)).actions
    here = worlds.evaluate_frames(net, batch, actions)
    there = worlds.evaluate_frames(copy.deepcopy(net).to(device), moved(batch, device), moved(actions, device))
    for ours, theirs in zip(there, here, strict=True):
        worlds.assert_same(moved(ours, "cpu"), theirs)


# --- Learning


def play(net: RogueNet, vec_env: ListEnv) -> Rollout:
    collector = Collector(vec_env, net, torch.device("cpu"), 1)
    collector.reset(1)
    return collector.collect(12)


@ON_BACKENDS
def test_an_update_on_the_same_rollout_makes_the_same_parameters(device: str, backend: Any) -> None:
    vec_env = ListEnv(lambda: PythonMineSweeper(orbital_cannon=True, cooldown_period=0), 16, seed=1)
    torch.manual_seed(0)
    net = RogueNet(RogueNetConfig(backend="reference"), vec_env.obs_space(), vec_env.action_space())
    rollout = play(net, vec_env)
    advantages = torch.randn(rollout.by_step("values").shape, generator=torch.Generator().manual_seed(5))

    def learned(name: Any, where: str) -> RogueNet:
        other = RogueNet(RogueNetConfig(backend=name), vec_env.obs_space(), vec_env.action_space())
        other.load_state_dict(net.state_dict())
        other = other.to(where)
        update(
            other,
            torch.optim.AdamW(other.parameters(), lr=1e-3, eps=1e-5, fused=True),
            Samples.of(rollout, Advantages(advantages, rollout.by_step("values") + advantages)).to(torch.device(where)),
            OptimConfig(batch_size=64, epochs=2),
            PPOSettings.at(PPOConfig()),
            generator=torch.Generator().manual_seed(2),
        )
        return other

    expected = learned("reference", "cpu")
    try:
        given = learned(backend, device)
    except ValueError as error:
        skip_if_refused(backend, error)
    before, after = net.state_dict(), expected.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    for name, parameter in given.state_dict().items():
        torch.testing.assert_close(parameter.cpu(), after[name], atol=1e-5, rtol=1e-5, msg=lambda m: f"{name}: {m}")  # noqa: B023


# A process of its own: cuBLAS decides when it is first used whether it is deterministic.
DETERMINISTIC = """
import sys
import torch
from enn_ppo import EnvConfig, OptimConfig, RogueNetConfig, RolloutConfig, TrainConfig, train

def weights(name):
    config = TrainConfig(
        env=EnvConfig(id="MineSweeper"), rollout=RolloutConfig(num_envs=32, steps=8), optim=OptimConfig(batch_size=64),
        net=RogueNetConfig(backend="reference" if sys.argv[1] == "cpu" else "fused"), total_timesteps=512,
        device=sys.argv[1], run_dir=f"{sys.argv[2]}/{name}", torch_deterministic=True,
    )
    return train(config).policy.state_dict()

first, second = weights("a"), weights("b")
assert all(torch.equal(weight, second[name]) for name, weight in first.items())
"""


@ON_DEVICES
def test_deterministic_training_has_the_same_bits_every_time(device: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", DETERMINISTIC, device, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
