"""A page that follows a running training: the newest evaluation's replay, or episodes of the newest checkpoint."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from enn_ppo.checkpoints import Checkpoint, CheckpointError, load_checkpoint, step_files
from enn_ppo.checkpoints.policy import saved_config, select_device
from enn_ppo.checkpoints.trust import check_trust, code_of_environment
from enn_ppo.eval.checkpoint import evaluate_checkpoint
from enn_ppo.eval.replay import Replay
from enn_ppo.settings.evaluation import WatchConfig
from enn_ppo.settings.schema import to_dict
from enn_ppo.training.tracking.run_dir import CHECKPOINTS, CONFIG, REPLAYS
from entity_gym.pools.source import EnvFactory
from entity_gym.replay.build import build_replay
from entity_gym.replay.page import MAX_BYTES, page_html, read_page, to_json
from entity_gym.replay.server import PageServer
from entity_gym.untrusted import YAML_BYTES, parse_yaml, read_regular

PAUSE = 1.0  # seconds between two looks at the run directory
_PAGE = re.compile(r"step_(\d{12,})\.html")


class Newest:
    """The newest replay of a run as a server's pages; older ones are dropped."""

    def __init__(self, title: str) -> None:
        self.step = -1
        self._replay: dict[str, Any] = build_replay(title=title)
        self.pages: dict[str, Callable[[], str]] = {"/": self._page, "/replays.json": self._listing}

    def show(self, step: int, replay: dict[str, Any]) -> None:
        """Show another replay; the server's threads may read meanwhile."""
        text = to_json(replay)
        old = self._path
        self.step, self._replay = step, replay
        self.pages[self._path] = lambda: text
        if old != self._path:
            self.pages.pop(old, None)

    @property
    def _name(self) -> str:
        return f"step_{self.step:012d}"

    @property
    def _path(self) -> str:
        return f"/{self._name}.json"

    def _page(self) -> str:
        return page_html(self._replay, mode="live")

    def _listing(self) -> str:
        if self.step < 0:
            return json.dumps({"newest": None, "step": None})
        return json.dumps({"newest": self._name, "step": self.step})


def follow(
    run_dir: Path,
    config: WatchConfig,
    env: EnvFactory | None = None,
    opened: Callable[[str], object] = lambda address: None,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Serve the newest replay of a run on 127.0.0.1 until Ctrl-C.

    Where the run's evaluations write replays (`eval.replay`), these are shown; otherwise episodes are played with every new
    checkpoint, in this process.

    Args:
        run_dir: of a training, which may be running or have ended.
        config: of the episodes that are played, and of the server.
        env: the environment, if it cannot be imported by name; as in `train`.
        opened: called with the address of the page.
        stopped: whether to end; asked once a second.

    Raises:
        ValueError: there is no run, the port is taken, or the checkpoint names code and is not trusted.
    """
    if not (run_dir / CONFIG).is_file():
        raise ValueError(
            f"{run_dir} holds no run that could be followed: it has no {CONFIG}; give a run directory with live=true"
        )
    newest = Newest(str(run_dir))
    reads = _writes_replays(run_dir)
    look = _Pages(run_dir) if reads else _Player(run_dir, config, env)
    look(newest)
    with PageServer(newest.pages, port=config.port) as server:
        what = (
            "the replays of its evaluations"
            if reads
            else "episodes of its newest checkpoint, as it writes no replays (eval.replay)"
        )
        print(f"{server.url} shows {run_dir}: {what}. Ctrl-C ends it", flush=True)
        opened(server.url)
        while not stopped():
            time.sleep(PAUSE)
            look(newest)


def _writes_replays(run_dir: Path) -> bool:
    """Whether the run's settings let its evaluations write replays."""
    try:
        settings = parse_yaml(read_regular(run_dir / CONFIG, YAML_BYTES))
        evaluation = settings["eval"]
        return bool(evaluation["interval"] and evaluation.get("replay"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False  # the checkpoints say more


class _Pages:
    """Reads the newest page that an evaluation has written."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / REPLAYS
        self._failed = ""

    def __call__(self, newest: Newest) -> None:
        names = [match for match in map(_PAGE.fullmatch, _names(self._folder)) if match]
        if not names:
            return
        last = max(names, key=lambda match: int(match[1]))
        if int(last[1]) <= newest.step or last[0] == self._failed:
            return
        try:
            newest.show(int(last[1]), read_page(read_regular(self._folder / last[0], MAX_BYTES).decode()))
        except (OSError, ValueError) as error:
            self._failed = last[0]
            print(f"{self._folder / last[0]} cannot be shown: {error}", flush=True)


class _Player:
    """Plays episodes with the newest checkpoint."""

    def __init__(self, run_dir: Path, config: WatchConfig, env: EnvFactory | None) -> None:
        self._run_dir, self._config, self._env = run_dir, config, env
        self._tried = -1  # step of the newest checkpoint that was played

    def __call__(self, newest: Newest) -> None:
        folders = step_files(self._run_dir / CHECKPOINTS)
        if not folders or folders[0][0] <= self._tried:
            return
        try:
            checkpoint = load_checkpoint(folders[0][1])
        except CheckpointError:
            return  # it is being removed, or its run has ended: the next look finds another, or the same again
        if self._env is None and not self._config.trust:
            check_trust(checkpoint, code_of_environment(to_dict(saved_config(checkpoint).env)))
        self._tried = checkpoint.step
        newest.show(checkpoint.step, self._play(checkpoint))
        print(f"step {checkpoint.step:,}: played {self._config.episodes} episodes", flush=True)

    def _play(self, checkpoint: Checkpoint) -> dict[str, Any]:
        made = Replay(None, self._config.episodes, "live=true")
        evaluate_checkpoint(checkpoint, self._config, self._env, select_device(self._config.device), replay=made)
        return made.replay()


def _names(folder: Path) -> list[str]:
    try:
        return [each.name for each in folder.iterdir()]
    except OSError:
        return []
