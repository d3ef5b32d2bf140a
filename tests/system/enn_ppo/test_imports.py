"""What processes import: no library before it is chosen, and every public name when it is asked for."""

from __future__ import annotations

from pathlib import Path

from enn_ppo import train
from enn_ppo.checkpoints import save_policy
from tests.enn_ppo.worlds import tiny_config
from tests.processes import output_of

TRAINING = """
import sys, enn_ppo.train, enn_ppo.clone, enn_ppo.training.tracking.run_output, enn_ppo.plot
print([name for name in ("wandb", "tensorboard", "matplotlib", "rich") if name in sys.modules])
import enn_ppo
assert [type(getattr(enn_ppo, name)).__name__ for name in ("train", "clone", "evaluate")] == ["function"] * 3
assert set(enn_ppo.__all__) <= set(dir(enn_ppo))
assert all(getattr(enn_ppo, name).__name__ == name for name in enn_ppo.__all__)
try:
    enn_ppo.trane
except AttributeError as error:
    print(error)
"""
PLAYING = """
import sys
from enn_ppo.serve.agent import load_agent
from tests.entity_gym.agents.programs import Move
load_agent(sys.argv[1])
unwanted = ["hydra", "omegaconf", "wandb", "matplotlib"]
unwanted += ["enn_ppo.train", "enn_ppo.ppo", "enn_ppo.rollout", "enn_ppo.training.state"]
print([name for name in unwanted if name in sys.modules])
"""


def test_training_imports_no_tracker_before_it_is_chosen_and_has_every_public_name() -> None:
    assert output_of(TRAINING).splitlines() == ["[]", "module 'enn_ppo' has no attribute 'trane'"]


def test_playing_imports_nothing_of_the_trainer(tmp_path: Path) -> None:
    train(tiny_config(tmp_path / "run", total_timesteps=32))
    assert output_of(PLAYING, save_policy(tmp_path / "run", tmp_path / "a.safetensors")) == "[]\n"


EVALUATING = """
import sys
from pathlib import Path
from enn_ppo.eval.evaluator import evaluate_step
from enn_ppo import EnvConfig, OptimConfig, RogueNetConfig, RolloutConfig, TrainConfig, TrainEvalConfig, train
train(TrainConfig(
    env=EnvConfig(id="Xor"), rollout=RolloutConfig(num_envs=4, steps=8), optim=OptimConfig(batch_size=16), total_timesteps=32,
    net=RogueNetConfig(d_model=16, n_layer=1, n_head=2), run_dir=sys.argv[1], device="cpu",
))
evaluate_step(Path(sys.argv[1], "checkpoints/step_000000000032.safetensors"), TrainEvalConfig(episodes=4), None, Path("."))
print([name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules])
"""


def test_an_evaluation_does_not_import_torch_s_compiler_which_takes_a_second(tmp_path: Path) -> None:
    assert output_of(EVALUATING, tmp_path / "run").splitlines()[-1] == "[]"
