"""Several policies on Ray."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from enn_ppo import (
    Callback,
    Interrupted,
    PPOConfig,
    train,
)
from enn_ppo.checkpoints import load_common
from enn_ppo.eval.evaluate import evaluate
from enn_ppo.settings.config import DistributedConfig, TrainEvalConfig
from enn_ppo.settings.evaluation import EvalConfig
from enn_ppo.training.callbacks import Update
from enn_ppo.training.errors import PartLost
from tests.enn_ppo.rows import assert_same_end
from tests.enn_ppo.training.on_ray.runs import actors, learned_rows, rows_of
from tests.enn_ppo.training.on_ray.test_policies import FOUR, TWO, Watch, snakes, together
from tests.enn_ppo.worlds import PressCtrlC


@pytest.mark.slow
@pytest.mark.usefixtures("in_line", "ray_here")
def test_runs_are_exact_however_many_runners_and_go_on_from_the_newest_step_that_all_policies_have(
    tmp_path: Path,
) -> None:
    watch, steps = Watch(), [32, 64, 96]
    whole = train(together(tmp_path / "whole", 2), callbacks=[watch])
    assert watch.updates == [(step, name) for step in steps for name in FOUR]
    assert watch.asked == 2 + len(steps)  # twice for the statistics, then before every update
    assert {name for name, _ in watch.episodes} == set(FOUR) and {env for _, env in watch.episodes} == set(range(4))
    for name in FOUR:
        rows = [row for row in rows_of(tmp_path / "whole" / name) if "reward" in row]
        assert [row["step"] for row in rows] == steps
        assert all(row["frames"] == 32 < row["actors/move"] <= 64 for row in rows)
    red, blue = (whole.policies[name].policy.state_dict() for name in FOUR)
    assert any(not torch.equal(red[key], blue[key]) for key in red)
    assert (whole.run_dir, whole.policies["blue"].run_dir) == (tmp_path / "whole", tmp_path / "whole" / "blue")

    shutil.copytree(tmp_path / "whole", tmp_path / "parts", symlinks=True)
    for file in (tmp_path / "parts" / "blue" / "checkpoints").glob("step_*"):
        if int(file.stem[5:]) > 32:
            file.unlink()  # as if it had crashed when red had saved, and blue had not
    again = together(tmp_path / "parts", 1, resume=str(tmp_path / "parts"))
    with pytest.raises(
        Interrupted, match=rf"after 64 steps; saved .*red/.*, .*blue/.*; go on with resume={again.run_dir}$"
    ):
        train(again, callbacks=[Watch(), PressCtrlC(64)])
    train(again, callbacks=[Watch()])
    for name in FOUR:
        rows = learned_rows(tmp_path / "parts" / name)
        assert rows == learned_rows(tmp_path / "whole" / name)
        assert [row["eval/step"] for row in rows if "eval/step" in row] == [64, 96]
        runners = [row.get("distributed/runners") for row in rows_of(tmp_path / "parts" / name)]
        assert [n for n in runners if n] == [2, 1, 1]  # and none in the row of the evaluation
        assert_same_end(tmp_path / "parts" / name, tmp_path / "whole" / name)

    checkpoint = f"{tmp_path}/whole/red"
    train(replace(together(tmp_path / "here", 1), distributed=DistributedConfig()), callbacks=[Watch()])
    for name in FOUR:
        assert_same_end(tmp_path / "here" / name, tmp_path / "whole" / name)

    result = evaluate(EvalConfig(checkpoint=checkpoint, episodes=4, num_envs=4, opponent="policies", device="cpu"))
    told = rows_of(tmp_path / "whole" / "red")[-1]
    assert result.estimates["episodic_reward"].mean == told["eval/episodic_reward"]
    assert result.estimates["win_rate"].mean == told["eval/win_rate"]


class KillALearner(Callback):
    def on_update(self, update: Update) -> None:
        if update.step >= 96 and update.policy_name == "blue":
            actors("LearnerActor")[0].kill()


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here")
def test_out_of_step_all_learn_from_the_same_parts_and_a_killed_learner_names_its_policy_and_where_to_go_on(
    tmp_path: Path,
) -> None:
    changes = {
        "env": snakes(2),
        "policies": TWO,
        "total_timesteps": 100_000,
        "ppo": PPOConfig(),
        "eval": TrainEvalConfig(),
    }
    with pytest.raises(PartLost) as ended:
        train(together(tmp_path / "a", 1, changes, max_staleness=2), callbacks=[KillALearner()])
    assert re.match(r"the learner of policy (red|blue) is gone: its process was killed", str(ended.value))
    rows = {name: rows_of(tmp_path / "a" / name) for name in TWO}
    for name in ("step", "frames", "distributed/staleness", "distributed/rollouts_stale"):
        assert [row[name] for row in rows["red"]] == [row[name] for row in rows["blue"]]
    assert any(row["distributed/staleness"] > 0 for row in rows["red"])
    saved = load_common([tmp_path / "a" / name for name in TWO])
    assert saved[0].step == saved[1].step >= 64
    note = "".join(ended.value.__notes__)
    assert note == f"saved {saved[0].path}, {saved[1].path}; go on with resume={tmp_path}/a"
    _, alive = psutil.wait_procs([*actors("LearnerActor"), *actors("EnvRunner")], timeout=10)
    assert not alive
