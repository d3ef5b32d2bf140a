"""SECURITY.md's table of what a stranger's run directory may and may not do: each cell is a test."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from enn_ppo import EnvConfig, load_policy, train
from enn_ppo.checkpoints.policy_file import read_policy_file
from enn_ppo.eval.evaluate import evaluate
from enn_ppo.play import main as play
from enn_ppo.plot import main as plot
from enn_ppo.serve.server import serve
from enn_ppo.settings.command_line.cli import run_eval, run_serve, run_train, run_watch
from enn_ppo.watch import watch
from tests.enn_ppo.forged import sealed, with_header, with_settings, with_trainer
from tests.enn_ppo.test_links import digest
from tests.enn_ppo.worlds import tiny_config

ROOT = Path(__file__).resolve().parents[2]
STEP = Path("checkpoints", "step_000000000032.safetensors")
SECRET = "ENN_PPO_SECRET_OF_THE_TESTS"


def table() -> tuple[list[str], dict[str, list[str]]]:
    """The columns of the table, and the cells of each row."""
    page = (ROOT / "SECURITY.md").read_text("utf-8")
    lines = page.split("<!-- strangers -->\n")[1].split("<!-- end of strangers -->")[0].splitlines()
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return head[1:], {name: cells for name, *cells in rows}


COLUMNS, ROWS = table()


# --- What stands in the folder


def settings(run: Path, section: str, **changes: Any) -> None:
    """Change settings, of a section or of none, in the checkpoint and in the run's `config.yaml`."""
    with_settings(run / STEP, section, **changes)
    content = yaml.safe_load((run / "config.yaml").read_text("utf-8"))
    (content[section] if section else content).update(changes)
    (run / "config.yaml").write_text(yaml.safe_dump(content))


def named_code(run: Path) -> None:
    (run.parent / "stranger.py").write_text(
        "import os\nfrom entity_gym.envs.toys import Xor\nos.environ['RAN'] = '1'\n"
    )
    settings(run, "env", id="stranger:Xor")


def interpolated(run: Path) -> None:
    settings(run, "ppo", teacher=f"{run.parent}/${{oc.env:{SECRET}}}")


def linked(run: Path) -> None:
    for name in ("config.yaml", "metrics.jsonl"):
        shutil.copy(run / name, run.parent / "outside" / name)
        (run / name).unlink()
        (run / name).symlink_to(run.parent / "outside" / name)
    (run / "replays").symlink_to(run.parent / "outside")


def piped(run: Path) -> None:
    for file in (run / STEP, run / "metrics.jsonl"):
        file.unlink()
        os.mkfifo(file)


def damaged(run: Path) -> None:
    (run / STEP).write_bytes((run / STEP).read_bytes()[:-1])


def other_weights(run: Path) -> None:
    weights = dict(read_policy_file(run / STEP).policy)
    name = next(name for name, tensor in weights.items() if tensor.is_floating_point())
    sealed(run / STEP, policy={**weights, name: weights[name].to(torch.int32)})


def other_state(run: Path) -> None:
    with_trainer(run / STEP, recent_rewards=["x"], optimizer={}, collector=3)


def huge_settings(run: Path) -> None:
    with_header(run / STEP, config="[" * 100_000)
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]" for k in range(1, 10)]
    (run / "config.yaml").write_text((run / "config.yaml").read_text("utf-8") + "\n".join(lines) + "\n")


HAZARDS: dict[str, Callable[[Path], None]] = {
    "a run in a registered environment": lambda run: sealed(run / STEP) and None,  # without a signature
    "settings that name code": named_code,
    "`${...}` in the settings": interpolated,
    "a link where a run would write": linked,
    "a pipe or device instead of a file": piped,
    "a file that is damaged or has no checksum": damaged,
    "weights of another shape or type": other_weights,
    "a trainer's state with other values": other_state,
    "settings with aliases, thousands of levels, or megabytes": huge_settings,
}


# --- What is done with it


def loaded(run: Path) -> int:
    try:
        load_policy(run)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def served(run: Path) -> int:
    def say(text: str) -> None:
        if "serving" in text:
            os.kill(os.getpid(), signal.SIGTERM)

    return run_serve(lambda config: serve(config, say=say), [f"checkpoint={run}", "port=0"])


COMMANDS: dict[str, dict[str, Callable[[Path], int]]] = {
    "eval, play, `load_policy`": {
        "eval": lambda run: run_eval(evaluate, [f"checkpoint={run}", "episodes=2", "num_envs=2"]),
        "play": lambda run: play([str(run)]),
        "load_policy": loaded,
    },
    "resume": {"resume": lambda run: run_train(train, [f"resume={run}", "total_timesteps=128"])},
    "watch": {"watch": lambda run: run_watch(watch, [str(run), "open=false", "episodes=1"])},
    "plot": {"plot": lambda run: plot([str(run), f"output={run.parent / 'plot.svg'}"])},
    "serve": {"serve": served},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("trained") / "run"
    train(tiny_config(run, env=EnvConfig(id="Xor"), total_timesteps=32))
    return run


def closed(address: str) -> None:
    """A person who ends the command at once."""
    raise KeyboardInterrupt


def test_every_row_and_column_is_tried() -> None:
    assert list(ROWS) == list(HAZARDS)
    assert list(COLUMNS) == list(COMMANDS)


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("row", ROWS)
def test_a_stranger_s_folder_does_what_the_table_says(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    row: str,
    column: str,
) -> None:
    monkeypatch.setenv(SECRET, "hunter2")
    monkeypatch.delenv("RAN", raising=False)
    monkeypatch.setattr("entity_gym.play.command.open_in_browser", closed)
    monkeypatch.syspath_prepend(str(tmp_path))
    cell = ROWS[row][COLUMNS.index(column)]
    for name, command in COMMANDS[column].items():
        run = tmp_path / name / "run"
        (run.parent / "outside").mkdir(parents=True)
        monkeypatch.syspath_prepend(str(run.parent))
        shutil.copytree(trained, run, symlinks=True)
        HAZARDS[row](run)
        outside, inside = digest(run.parent / "outside"), digest(run)
        capsys.readouterr()
        code = command(run)
        said = capsys.readouterr()
        changed = {
            path for path, content in digest(run).items() if inside.get(path) != content
        } | inside.keys() - digest(run)

        expects_refusal = cell in ("refuses", "asks") and not (cell == "asks" and name == "load_policy")
        assert code == (2 if expects_refusal else 130 if name == "play" else 0), (name, said.err)
        if expects_refusal:
            assert said.err.count("error: ") == 1 and "Traceback" not in said.err, name
            assert ("trust=true" in said.err) == (cell == "asks"), (name, said.err)
        assert digest(run.parent / "outside") == outside, name
        assert "RAN" not in os.environ, name
        written = json.dumps([said.out, said.err]) + "".join(
            file.read_text("utf-8", errors="ignore") for file in run.rglob("*") if file.is_file()
        )
        assert "hunter2" not in written, name
        if cell in ("reads", "refuses", "asks"):
            assert not changed, name
        if cell == "writes `replays/`":
            assert changed and all(path.startswith("replays") for path in changed)
