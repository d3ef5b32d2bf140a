"""Following a training in the browser: what is new appears by itself, to this computer alone."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from enn_ppo import TrainEvalConfig, train
from enn_ppo.settings.evaluation import WatchConfig
from enn_ppo.watch import follow
from entity_gym.replay.page import read_page
from tests.enn_ppo.replay_contract import check_replay, read
from tests.enn_ppo.worlds import tiny_config
from tests.processes import start


def get(url: str, path: str = "", **headers: str) -> str:
    with urllib.request.urlopen(urllib.request.Request(url + path, headers=headers), timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def newest(url: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(get(url, "replays.json"))
    return found


@contextmanager
def following(run_dir: Path, **settings: Any) -> Iterator[str]:
    """The address of a page that follows a run."""
    address, found, stop = [""], threading.Event(), threading.Event()

    def opened(url: str) -> None:
        address[0] = url
        found.set()

    config = WatchConfig(run=str(run_dir), episodes=2, **settings)
    thread = threading.Thread(target=follow, args=(config,), kwargs={"opened": opened, "stopped": stop.is_set})
    thread.start()
    try:
        assert found.wait(60)
        yield address[0]
    finally:
        stop.set()
        thread.join()


def test_a_run_is_played_with_each_new_checkpoint_which_appears_by_itself(tmp_path: Path) -> None:
    train(tiny_config(tmp_path, total_timesteps=32))
    with following(tmp_path) as url:
        assert newest(url) == {"newest": "step_000000000032", "step": 32}
        first = json.loads(get(url, "step_000000000032.json"))
        check_replay(first)
        assert len(first["episodes"]) == 2 and first["episodes"][0]["steps"][0]["views"][0]["attention"] is not None
        train(tiny_config(tmp_path, total_timesteps=64, resume=str(tmp_path)))
        started = time.monotonic()
        while newest(url)["step"] != 64:
            assert time.monotonic() - started < 20, newest(url)
            time.sleep(0.1)
        assert read_page(get(url)) == json.loads(get(url, "step_000000000064.json")) != first
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(url, "step_000000000032.json")  # replaced
    assert not (tmp_path / "replays").exists()


def test_a_run_without_a_checkpoint_has_an_empty_page_until_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("eval: {interval: 32, replay: 2}")
    with following(tmp_path) as url:
        assert newest(url) == {"newest": None, "step": None}
        assert read_page(get(url))["episodes"] == []


def test_it_answers_this_computer_its_own_name_and_its_own_pages_only(tmp_path: Path) -> None:
    evaluation = TrainEvalConfig(interval=32, episodes=3, num_envs=3, replay=2)
    train(tiny_config(tmp_path, total_timesteps=32, eval=evaluation))
    shown = read(tmp_path / "replays/step_000000000032.html")
    assert len(shown["episodes"]) == 2 and shown["title"] == "MineSweeper, step 32"
    with following(tmp_path) as url:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", url)
        with pytest.raises(urllib.error.HTTPError, match="403"):
            get(url, "replays.json", Host="evil.example")
        for path in ("config.yaml", "replays/step_000000000032.html", "../config.yaml", "%2e%2e/config.yaml"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                get(url, path)


def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    train(tiny_config(tmp_path, total_timesteps=32))
    with start("-m", "enn_ppo.watch", tmp_path, "--live", "open=false") as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[0]
        assert newest(url)["step"] == 32
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=20)
    assert process.returncode == 130 and told == "interrupted\n"
    with pytest.raises(OSError):
        get(url)
