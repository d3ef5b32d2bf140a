"""Section `headline`: trained steps/s by `enn_ppo.train`, and a run at the fastest setting that learns the task.

The search changes one setting after another and keeps the fastest value. Rates are wall-clock, from the end of one update to the
end of a later one, everything included; shares of time are the trainer's metrics.
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
    """Search for the fastest settings, then train, in both environments. Each environment has half of the time."""
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
    """The fastest knobs found until the section has `until` seconds left."""
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
    """Knob -> values to try, in this order."""
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
    """Measure trained steps per second."""
    watch = Watch(seconds=0.0 if tiny else 1.5)
    with TemporaryDirectory() as folder:
        train(train_config(world, knobs, device, f"{folder}/run"), callbacks=[watch])
    counted = watch.rows[WARM_UP:]
    (began, first), (ended, last) = watch.times[WARM_UP - 1], watch.times[-1]
    shares = {name: statistics.median(row[name] for row in counted) for name in SHARES}
    return {"steps_per_second": (last - first) / (ended - began), "updates": len(counted), **shares}


class Watch(Callback):
    """Records the times of updates, and stops training after at least two updates and `seconds`.

    Args:
        seconds: duration of the measurement, after the warm-up.
    """

    def __init__(self, seconds: float) -> None:
        self.rows: list[Mapping[str, Any]] = []
        self.times: list[tuple[float, int]] = []  # (time at the end of an update, steps trained)
        self._seconds = seconds

    def on_update(self, update: Update) -> None:
        now = time.perf_counter()
        self.rows.append(dict(update.row))
        self.times.append((now, update.step))
        if len(self.rows) >= WARM_UP + 2 and now - self.times[WARM_UP - 1][0] >= self._seconds:
            update.stop()


# --- Learning ---


def learn(section: Section, world: World, knobs: Knobs, *, relpos: bool, until: float) -> dict[str, Any] | None:
    """Train with these knobs until the score is reached, or until the section has `until` seconds left.

    Schedules reach their end at the time limit.
    """
    net = replace(world.net, relpos=world.relpos) if relpos and world.relpos else world.net
    chosen = replace(world, net=net)
    parts = 2.5 if world.relpos and not relpos else 1.3  # reserves time for a second network, and for evaluation
    seconds = 2.0 if section.tiny else max(5.0, (section.seconds_left - until) / parts)
    settings = {"world": world.name, "relpos": relpos, **vars(knobs), "max_train_seconds": seconds}
    tiny, device = section.tiny, section.device
    return section.measured("learning", settings, partial(curve, chosen, knobs, device, seconds, tiny=tiny))


def curve(world: World, knobs: Knobs, device: torch.device, seconds: float, *, tiny: bool) -> dict[str, Any]:
    """Train one run, and evaluate its policy with seeds that differ from training."""
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
    """Records the learning curve, and stops training when the mean over some updates reaches the score.

    Args:
        score: to reach.
        most_updates: limit of updates; None: no limit.
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
    """Mean reward of evaluation episodes, or the error message."""
    episodes = 4 if tiny else 500
    asked = EvalConfig(
        checkpoint=run_dir, episodes=episodes, num_envs=min(episodes, 250), greedy=greedy, device=device.type
    )
    try:
        return float(evaluate(asked).estimates["episodic_reward"].mean)
    except Exception as error:  # noqa: BLE001 - the learning curve is kept without a score
        return reason(error)


def thinned(points: Sequence[Any], most: int) -> list[Any]:
    """Select about `most` points evenly, including the last."""
    stride = max(1, len(points) // most)
    return [*points[:-1][::stride], points[-1]]
