"""A policy that remembers learns what needs memory, is cloned with its memory, and is a teacher."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from enn_ppo import (
    CloneConfig,
    CloningConfig,
    EvalConfig,
    OptimConfig,
    PPOConfig,
    RolloutConfig,
    TrainConfig,
    clone,
    evaluate,
    train,
)
from tests.enn_ppo.memory_worlds import MARKS, net

BEST, WITHOUT_MEMORY = 4.0, 2.5
EPISODES = 400


def config(run_dir: Path, **changes: Any) -> dict[str, Any]:
    settings = {
        "env": MARKS,
        "rollout": RolloutConfig(num_envs=64, steps=8),
        "net": net("entity", n_layer=2),
        "optim": OptimConfig(batch_size=128, epochs=4, lr="0.005@0 -> 0@1"),
        "ppo": PPOConfig(gamma=0.5, ent_coef=0.0),
        "total_timesteps": 32_768,
        "device": "cpu",
        "num_threads": 1,
        "run_dir": str(run_dir),
    }
    return settings | changes


def score(run: Path, **more: Any) -> float:
    played = EvalConfig(checkpoint=str(run), episodes=EPISODES, num_envs=50, device="cpu", **more)
    return evaluate(played).estimates["episodic_reward"].mean


@pytest.mark.learning
def test_what_remembers_learns_is_cloned_and_teaches(tmp_path: Path) -> None:
    train(TrainConfig(**config(tmp_path / "expert")))
    expert = score(tmp_path / "expert", record=str(tmp_path / "a.rec"))
    assert expert > 0.97 * BEST

    cloning = config(tmp_path / "clone", clone=CloningConfig(epochs=15), data=str(tmp_path / "a.rec"))
    clone(CloneConfig(**cloning))
    cloned = score(tmp_path / "clone")
    assert cloned > 0.97 * expert, "as the expert"

    blind = config(tmp_path / "blind", net=net("none"), clone=CloningConfig(epochs=15), data=str(tmp_path / "a.rec"))
    clone(CloneConfig(**blind))
    assert score(tmp_path / "blind") == pytest.approx(WITHOUT_MEMORY, abs=0.25), "a clone without memory guesses"

    ppo = PPOConfig(gamma=0.5, ent_coef=0.0, teacher=str(tmp_path / "clone"))
    more = config(tmp_path / "more", resume=str(tmp_path / "clone"), ppo=ppo, total_timesteps=8_192)
    train(TrainConfig(**more))
    assert score(tmp_path / "more") > 0.97 * expert, "it has forgotten nothing"

    # a pupil that begins anew comes as near to its teacher as it can
    pupil = config(tmp_path / "pupil", ppo=PPOConfig(gamma=0.5, ent_coef=0.0, teacher=str(tmp_path / "expert")))
    train(TrainConfig(**pupil))
    assert score(tmp_path / "pupil") > 0.97 * BEST
