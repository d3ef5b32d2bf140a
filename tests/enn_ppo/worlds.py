"""Small worlds and settings that the trainer's tests share."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from enn_ppo import Callback, EnvConfig, OptimConfig, RogueNetConfig, RolloutConfig, TrainConfig
from enn_ppo.training.callbacks import Update
from entity_gym import (
    Action,
    ActionMask,
    ActionSpace,
    CategoricalAction,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Environment,
    Observation,
    ObsSpace,
)
from tests.entity_gym.envs.minesweeper_python import PythonMineSweeper

SMALL_BOARD = {"width": 4, "height": 4, "num_mines": 2, "num_robots": 2, "max_steps": 10}
CHOICES = ("red", "green", "blue")


class StopAfter(Callback):
    """Ends a run in order when it has trained so many steps."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_update(self, update: Update) -> None:
        if update.step >= self.step:
            update.stop()


class PressCtrlC(Callback):
    """Presses Ctrl-C once, after an update that ends at `step`."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_update(self, update: Update) -> None:
        if update.step == self.step:
            self.step = -1
            os.kill(os.getpid(), signal.SIGINT)


def tiny_config(run_dir: Path | str, **changes: Any) -> TrainConfig:
    """A run of a fraction of a second: 4 environments, 8 steps, so 32 frames an update."""
    settings: dict[str, Any] = {
        "env": EnvConfig(kwargs=SMALL_BOARD),
        "rollout": RolloutConfig(num_envs=4, steps=8),
        "net": RogueNetConfig(d_model=16, n_layer=1, n_head=2),
        "optim": OptimConfig(batch_size=16, epochs=2),
        "total_timesteps": 160,
        "checkpoint_interval": 100,
        "device": "cpu",
        "run_dir": str(run_dir),
    }
    return TrainConfig(**(settings | changes))


class Copycat(Environment):
    """One to three lamps show a colour, and each is worth a third if its switch is set to that colour. One step.

    It has no `state()`.
    """

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"Lamp": Entity(CHOICES)})

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {"Switch": CategoricalActionSpace(CHOICES)}

    def reset(self) -> Observation:
        self.colours = self.rng.integers(len(CHOICES), size=self.rng.integers(1, 4))
        return self._observation()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        switch = actions["Switch"]
        assert isinstance(switch, CategoricalAction)
        right = sum(
            int(self.colours[actor] == choice) for actor, choice in zip(switch.actors, switch.actions, strict=True)
        )
        return self._observation(reward=right / len(self.colours), done=True)

    def _observation(self, reward: float = 0.0, done: bool = False) -> Observation:
        return Observation(
            features={"Lamp": np.eye(len(CHOICES))[self.colours]},
            ids={"Lamp": range(len(self.colours))},
            actions={"Switch": CategoricalActionMask()},
            reward=reward,
            done=done,
        )


class Moment(NamedTuple):
    """Step of a `Scripted` world: an entity per number, the first `actors` of which act."""

    items: Sequence[float] = ()
    walls: Sequence[float] = ()
    actors: int = 0
    reward: float = 0.0
    end: str = ""  # "", "terminated" or "truncated"


class Scripted(Environment):
    """Plays the same moments again and again, whatever is done; a moment with an `end` ends an episode."""

    def __init__(self, moments: Sequence[Moment]) -> None:
        self.moments = moments
        self.now = -1

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"Item": Entity(["x"]), "Wall": Entity(["x"])})

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {"Switch": CategoricalActionSpace(CHOICES)}

    def reset(self) -> Observation:
        return self._next()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        return self._next()

    def _next(self) -> Observation:
        self.now = (self.now + 1) % len(self.moments)
        moment = self.moments[self.now]
        actions: dict[str, ActionMask] = {}
        if moment.actors:
            actions["Switch"] = CategoricalActionMask(actor_ids=range(moment.actors))
        features = {"Item": [[x] for x in moment.items], "Wall": [[x] for x in moment.walls]}
        return Observation(
            features={name: rows for name, rows in features.items() if rows},
            ids={"Item": range(len(moment.items))} if moment.items else {},
            actions=actions,
            reward=moment.reward,
            done=bool(moment.end),
            truncated=moment.end == "truncated",
        )


class Clock(Environment):
    """Draws the length of each episode, `short` or `long` steps, as likely; the reward comes at the end: 1 for long ones.

    So the mean episodic reward is 0.5 exactly, however the policy acts, and whoever over-counts short episodes sees less.
    The picture's brightness is the number of steps played.
    """

    def __init__(self, short: int = 1, long: int = 12) -> None:
        self.short, self.long = short, long

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"Hand": Entity(["time"])})

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {"Wait": CategoricalActionSpace(("quietly", "loudly"))}

    def reset(self) -> Observation:
        self.length = self.long if self.rng.random() < 0.5 else self.short
        self.steps = 0
        return self._observation()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.steps += 1
        return self._observation()

    def render(self) -> NDArray[np.uint8]:
        return np.full((8, 8, 3), min(255, 20 * self.steps), np.uint8)

    def _observation(self) -> Observation:
        done = self.steps == self.length
        return Observation(
            features={"Hand": [[self.steps]]},
            ids={"Hand": ["hand"]},
            actions={"Wait": CategoricalActionMask()},
            reward=float(done and self.length == self.long),
            done=done,
            end_of_episode_info={"was_long": self.length == self.long, "mood": "fine"} if done else None,
        )


class CtrlC(PythonMineSweeper):
    """MineSweeper in which somebody presses Ctrl-C `presses` times, in the act that is number `at` of all environments."""

    at = 0
    presses = 1
    acts = 0

    def act(self, actions: Mapping[str, Action]) -> Observation:
        CtrlC.acts += 1
        if CtrlC.acts == CtrlC.at:
            for _ in range(CtrlC.presses):
                os.kill(os.getpid(), signal.SIGINT)
        return super().act(actions)


class Slow(PythonMineSweeper):
    """MineSweeper that takes its time, so that there is some to interrupt it in."""

    def act(self, actions: Mapping[str, Action]) -> Observation:
        time.sleep(0.01)
        return super().act(actions)


class Broken(Copycat):
    """Copycat with a mistake in what it shows."""

    def __init__(self, mistake: str = "feature") -> None:
        self.mistake = mistake

    def _observation(self, reward: float = 0.0, done: bool = False) -> Observation:
        obs = super()._observation(reward, done)
        lamps = np.eye(len(CHOICES))[self.colours]
        if self.mistake == "feature":
            obs.features = {"Lamp": lamps * np.nan}
        elif self.mistake == "width":
            obs.features = {"Lamp": lamps[:, :2]}
        return obs
