"""Section `headline`: trained steps/s by `enn_ppo.train`, and a run at the fastest setting that learns the task.

A setting after the other is changed, and what is fastest stays; a rate is that of the clock on the wall from the end of an
update to the end of a later one, everything between them included, and its shares are the trainer's own.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import torch

from enn_ppo import train
from enn_ppo.eval.evaluate import evaluate
from enn_ppo.settings.config import EvalConfig
from enn_ppo.training.callbacks import Callback, Update
from gpu.cases import WORLDS, Knobs, World, backends, precisions, start_knobs, train_config
from gpu.results import Section, reason

WARM_UP, WINDOW, POINTS = 3, 5, 200
SHARES = ("share_env", "share_act", "share_update", "entities_per_second")


def measure(section: Section) -> None:
    """Both worlds: the search for speed, and then learning. Half of the time is for each."""
    for number, world in enumerate(WORLDS.values()):
        until = section.seconds_left * (0.5 if number == 0 else 0.0)
        fastest = search(section, world, until=until + 0.5 * (section.seconds_left - until))
        section.put(fastest={**section.found.get("fastest", {}), world.name: vars(fastest)})
        for relpos in (False, True) if world.relpos else (False,):
            row = learn(section, world, fastest, relpos=relpos, until=until)
            if row and row["steps_to_score"] is not None:
                break


# --- Speed ---


def search(section: Section, world: World, *, until: float) -> Knobs:
    """The fastest knobs, of those that were tried until so many seconds are left to the section."""
    rows: list[tuple[float, Knobs]] = []

    def rate(knobs: Knobs) -> None:
        settings = {"world": world.name, **vars(knobs)}
        row = section.measured("speed", settings, partial(speed, world, knobs, section.device, tiny=section.tiny))
        if row:
            rows.append((row["steps_per_second"], knobs))

    start = start_knobs(section.device, tiny=section.tiny)
    rate(start)
    for name, values in axes(section.device, tiny=section.tiny).items():
        best = max(rows, key=lambda row: row[0])[1] if rows else start
        for value in values:
            if value != getattr(best, name) and section.seconds_left > until:
                rate(replace(best, **{name: value}))
    return max(rows, key=lambda row: row[0])[1] if rows else start


def axes(device: torch.device, *, tiny: bool) -> dict[str, Sequence[Any]]:
    """What is tried of each knob, in this order."""
    if tiny:
        return {"compile": ["graphs"], "num_envs": [16]}
    return {
        "compile": ["graphs"],
        "num_envs": [8192, 16_384, 2048],
        "precision": precisions()[1:],
        "pipeline": [2],
        "env_threads": [8, 1, 12],
        "backend": backends(device)[1:],
        "batch_size": [32_768, 8192],
    }


def speed(world: World, knobs: Knobs, device: torch.device, *, tiny: bool) -> dict[str, float]:
    """Trained steps per second."""
    watch = Watch(seconds=0.0 if tiny else 1.5)
    with TemporaryDirectory() as folder:
        train(train_config(world, knobs, device, f"{folder}/run"), callbacks=[watch])
    counted = watch.rows[WARM_UP:]
    (began, first), (ended, last) = watch.times[WARM_UP - 1], watch.times[-1]
    shares = {name: statistics.median(row[name] for row in counted) for name in SHARES}
    return {"steps_per_second": (last - first) / (ended - began), "updates": len(counted), **shares}


class Watch(Callback):
    """Remembers updates, and stops when two have been counted and the time is over.

    Args:
        seconds: to measure, after the warm-up.
    """

    def __init__(self, seconds: float) -> None:
        self.rows: list[Mapping[str, Any]] = []
        self.times: list[tuple[float, int]] = []  # when an update ended, and the steps trained then
        self._seconds = seconds

    def on_update(self, update: Update) -> None:
        now = time.perf_counter()
        self.rows.append(dict(update.row))
        self.times.append((now, update.step))
        if len(self.rows) >= WARM_UP + 2 and now - self.times[WARM_UP - 1][0] >= self._seconds:
            update.stop()


# --- Learning ---


def learn(section: Section, world: World, knobs: Knobs, *, relpos: bool, until: float) -> dict[str, Any] | None:
    """Train at these knobs until the score is met, or until so many seconds are left to the section.

    Its schedules reach their ends when the time does.
    """
    net = replace(world.net, relpos=world.relpos) if relpos and world.relpos else world.net
    chosen = replace(world, net=net)
    parts = 2.5 if world.relpos and not relpos else 1.3  # of the time: for another network, and for evaluation
    seconds = 2.0 if section.tiny else max(5.0, (section.seconds_left - until) / parts)
    settings = {"world": world.name, "relpos": relpos, **vars(knobs), "max_train_seconds": seconds}
    tiny, device = section.tiny, section.device
    return section.measured("learning", settings, partial(curve, chosen, knobs, device, seconds, tiny=tiny))


def curve(world: World, knobs: Knobs, device: torch.device, seconds: float, *, tiny: bool) -> dict[str, Any]:
    """One run, and what its policy has in episodes with seeds that it has not seen."""
    learner = Learner(world.score, most_updates=6 if tiny else None)
    with TemporaryDirectory() as folder:
        config = train_config(world, knobs, device, f"{folder}/run", max_train_seconds=seconds)
        result = train(config, callbacks=[learner])
        scores = {greedy: score_of(str(result.run_dir), device, greedy, tiny=tiny) for greedy in (False, True)}
    return {
        "trained_steps": learner.points[-1][0],
        "seconds": learner.points[-1][1],
        "steps_per_second": learner.points[-1][0] / learner.points[-1][1],
        "score_asked": world.score,
        "steps_to_score": learner.reached and learner.reached[0],
        "seconds_to_score": learner.reached and learner.reached[1],
        "evaluated_sampled": scores[False],
        "evaluated_greedy": scores[True],
        "curve": thinned(learner.points, POINTS),  # [steps, seconds, mean reward of the episodes that ended]
    }


class Learner(Callback):
    """The learning curve. Stops when the mean of some updates has the score.

    Args:
        score: to reach.
        most_updates: after which it stops in any case; None: never.
    """

    def __init__(self, score: float, most_updates: int | None) -> None:
        self.points: list[tuple[int, float, float | None]] = []
        self.reached: tuple[int, float] | None = None
        self._score, self._most = score, most_updates
        self._recent: list[float] = []

    def on_update(self, update: Update) -> None:
        row = update.row
        reward = row["episodic_reward"] if row["episodes"] else None
        self.points.append((update.step, float(row["seconds"] or 0), reward))
        if reward is not None:
            self._recent = [*self._recent, float(reward)][-WINDOW:]
        if len(self._recent) == WINDOW and statistics.fmean(self._recent) >= self._score:
            self.reached = self.points[-1][:2]
            update.stop()
        if self._most is not None and len(self.points) >= self._most:
            update.stop()


def score_of(run_dir: str, device: torch.device, greedy: bool, *, tiny: bool) -> float | str:
    """Mean reward of evaluation episodes, or why there is none."""
    episodes = 4 if tiny else 500
    asked = EvalConfig(
        checkpoint=run_dir, episodes=episodes, num_envs=min(episodes, 250), greedy=greedy, device=device.type
    )
    try:
        return float(evaluate(asked).estimates["episodic_reward"].mean)
    except Exception as error:  # noqa: BLE001 - the curve is wanted without it
        return reason(error)


def thinned(points: Sequence[Any], most: int) -> list[Any]:
    """At most about so many of the points, evenly, the last among them."""
    stride = max(1, len(points) // most)
    return [*points[:-1][::stride], points[-1]]
