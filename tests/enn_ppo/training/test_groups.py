"""Training with groups of environments: what members share, and that nothing but the seed decides what is learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from enn_ppo import (
    Callback,
    EnvConfig,
    OptimConfig,
    PPOConfig,
    RogueNetConfig,
    RolloutConfig,
    SelfPlayConfig,
    TrainConfig,
    train,
)
from enn_ppo.rollout import Rollout
from enn_ppo.settings.config import DistributedConfig
from enn_ppo.training.build import make_model, make_pools
from enn_ppo.training.environment import bind_environment
from enn_ppo.training.start import make_state
from entity_gym.pools.source import EnvFactory
from tests.enn_ppo.rollouts import OnePolicySampler
from tests.enn_ppo.rows import assert_same_end, rows_without_times
from tests.enn_ppo.worlds import SMALL_BOARD, Copycat, tiny_config
from tests.entity_gym.envs.minesweeper_python import PythonMineSweeper

GROUP = {"ppo": PPOConfig(advantages="group")}
BOARD = EnvConfig(kwargs=SMALL_BOARD | {"max_steps": 6})


def collect(world: EnvConfig, env: EnvFactory | None, rollouts: int, seed: int = 5) -> list[Rollout]:
    """Rollouts of 9 steps, one after the other, in two groups of three environments."""
    config = TrainConfig(env=world, seed=seed)
    pools = make_pools(bind_environment(world, env), RolloutConfig(num_envs=6, group_size=3), seed)
    model = make_model(config.net, config.value_net, (pools[0].obs_space(), pools[0].action_space()), seed)
    with closing(OnePolicySampler(pools, model, torch.device("cpu"), seed)) as sampler:
        sampler.reset(seed, {})
        return [sampler.collect(9) for _ in range(rollouts)]


@pytest.mark.parametrize("env", [None, PythonMineSweeper], ids=["compiled", "Python"])
def test_the_first_new_episodes_of_a_rollout_are_the_same_however_far_members_had_drifted_apart(
    env: EnvFactory | None,
) -> None:
    rollouts = collect(BOARD, env, 6)
    assert not torch.equal(rollouts[0].frames.rewards, collect(BOARD, env, 1, seed=6)[0].frames.rewards)
    drifted = []
    for rollout in rollouts:
        instances, steps = rollout.by_step("instance"), rollout.by_step("step")
        drifted.append(len(steps[0].unique()) > 1)
        begins = (steps[1:] == 0).int()  # where an episode has begun after a step of this rollout
        assert (begins.sum(0) > 0).all()
        first = instances[1:].gather(0, begins.argmax(0, keepdim=True))[0].tolist()
        assert first[0] == first[1] == first[2] != first[3] == first[4] == first[5]
    assert any(drifted)


def test_members_choose_differently() -> None:
    (rollout,) = collect(EnvConfig(), Copycat, 1)
    switches = rollout.frames.actions["Switch"]
    chosen = [tuple(each.flatten().tolist()) for each in torch.split(switches.values, switches.lengths.tolist())]
    assert len(rollout.by_step("instance").unique()) == 18  # 9 episodes of one step, of two groups
    assert any(len({*chosen[frame : frame + 3]}) > 1 for frame in range(0, 54, 3))


# --- Exactness ---


def learn(run_dir: Path, env: EnvFactory | None = None, **rollout: Any) -> Path:
    sizes = {"num_envs": 8, "steps": 8, "group_size": 4}
    train(tiny_config(run_dir, env=BOARD, rollout=RolloutConfig(**{**sizes, **rollout}), num_threads=1, **GROUP), env)
    return run_dir


@pytest.mark.parametrize("change", [{"num_threads": 3}, {"pipeline": 2, "num_threads": 2}, {"num_processes": 2}])
def test_threads_halves_and_processes_make_no_difference(change: dict[str, Any], tmp_path: Path) -> None:
    block = {"block": 4} if "pipeline" in change else {}
    env = PythonMineSweeper if "num_processes" in change else None
    one, other = learn(tmp_path / "one", env, **block), learn(tmp_path / "other", env, **change)
    assert rows_without_times(one) == rows_without_times(other)
    assert_same_end(one, other)


def test_a_group_may_lie_in_several_blocks(tmp_path: Path) -> None:
    """Blocks of three environments, and groups of four."""
    run = learn(tmp_path / "a", num_envs=12, block=3)
    assert len(rows_without_times(run)) == 2


class Mines(Callback):
    def env_info(self, progress: float, num_envs: int, rng: np.random.Generator) -> Mapping[str, Sequence[Any]]:
        return {"num_mines": list(range(num_envs))}


def test_members_have_the_parameters_of_the_first(tmp_path: Path) -> None:
    rollout = RolloutConfig(num_envs=8, steps=2, group_size=4)
    world = EnvConfig(kwargs=SMALL_BOARD, info={"width": [4, 5, 6, 7, 8]})
    config = tiny_config(tmp_path / "a", env=world, rollout=rollout, seed=3)
    state = make_state(config, bind_environment(world), torch.device("cpu"), [Mines()])
    with closing(state.sampler):
        drawn = state._draw_env_info()
    assert drawn["num_mines"] == [0] * 4 + [4] * 4
    assert [drawn["width"][i] for i in (1, 2, 3, 5, 6, 7)] == [drawn["width"][i] for i in (0, 0, 0, 4, 4, 4)]


def test_the_same_rewards_teach_nothing_beyond_those_of_the_group(tmp_path: Path) -> None:
    """Advantages are 0 where all members of a group earn the same, and so is the policy's gradient."""

    class Equal(Copycat):
        def act(self, actions: Any) -> Any:
            return replace(super().act(actions), reward=float(self.colours[0]))

    quiet = {"ent_coef": 0.0, "vf_coef": 0.0, "normalize_advantages": False}
    rollout = RolloutConfig(num_envs=8, steps=8, group_size=4)
    for advantages, learns in (("group", False), ("gae", True)):
        ppo = PPOConfig(advantages=advantages, **quiet)  # type: ignore[arg-type]
        train(tiny_config(tmp_path / advantages, env=EnvConfig(), rollout=rollout, ppo=ppo), Equal)
        assert all((row["grad_norm"] > 0) is learns for row in rows_without_times(tmp_path / advantages))


def test_tours_of_the_same_cities_that_are_encoded_once_teach_what_modules_learn_from_each(tmp_path: Path) -> None:
    """Three minibatches of whole groups."""
    found = []
    for backend in ("fused", "reference"):
        world = EnvConfig(id="Route", kwargs={"min_cities": 3, "max_cities": 6})
        rollout, ppo = RolloutConfig(num_envs=48, steps=1, group_size=8), PPOConfig(advantages="group", vf_coef=0.0)
        net = RogueNetConfig(d_model=16, n_layer=1, d_qk=8, backend=backend)  # type: ignore[arg-type]
        sizes = {
            "env": world,
            "rollout": rollout,
            "ppo": ppo,
            "net": net,
            "optim": OptimConfig(batch_size=16, epochs=2),
        }
        train(TrainConfig(total_timesteps=4 * 48, run_dir=str(tmp_path / backend), num_threads=1, **sizes))
        found.append(rows_without_times(tmp_path / backend))
    for row, expected in zip(*found, strict=True):
        assert row == {name: pytest.approx(each, rel=1e-3, abs=1e-4) for name, each in expected.items()}


# --- What is refused ---


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rollout": RolloutConfig()}, r"^ppo\.advantages=group compares .* of a group: rollout\.group_size=<2 or more>$"),
        ({"self_play": SelfPlayConfig(enabled=True)}, "^ppo.advantages=group and self_play.enabled=true do not go together"),
        ({"policies": {"a": [0], "b": [1]}}, "^ppo.advantages=group and policies=.* do not go together"),
        (
            {"distributed": DistributedConfig(mode="ray", max_staleness=1)},
            "^ppo.advantages=group and distributed.max_staleness=1 do not go together",
        ),
        (
            {"distributed": DistributedConfig(mode="ray", num_env_runners=32)},
            "^each of 32 runners has 4 environments: rollout.num_envs=4 must be a multiple of rollout.group_size=8$",
        ),
    ],
)  # fmt: skip
def test_what_does_not_go_with_groups_is_named(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TrainConfig(**({"rollout": RolloutConfig(group_size=8)} | GROUP | settings))


def test_a_group_that_is_not_whole_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^rollout.num_envs=6 must be a multiple of rollout.group_size=4$"):
        RolloutConfig(num_envs=6, group_size=4)
