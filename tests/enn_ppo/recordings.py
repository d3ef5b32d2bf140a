"""A world in which everything comes and goes, and what the tests of recording and cloning do with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from enn_ppo.rollout import Rollout
from enn_ppo.training.frames import Frames
from enn_ppo.training.recording import RecordedFrames, Recorder, read_all
from entity_gym import ActionSpace, ContinuousActionMask, ContinuousActionSpace, Environment, Observation
from entity_gym.pools.pool import ListEnv
from rogue_net import RogueNet, RogueNetConfig
from tests.enn_ppo.rollouts import Collector
from tests.enn_ppo.rows import assert_same, fields_of
from tests.worlds import Zoo


class Menagerie(Zoo):
    """`Zoo` with a continuous action as well, which some of the cats and dogs take."""

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {**super().action_space(), "sniff": ContinuousActionSpace([-1, 0], [1, float("inf")])}

    def _observe(self, reward: float, *, done: bool) -> Observation:
        obs = super()._observe(reward, done=done)
        ids = [id_ for name in ("Cat", "Dog") for id_ in obs.ids.get(name, [])]
        if ids and self.rng.random() < 0.7:
            obs.actions["sniff"] = ContinuousActionMask(actor_ids=[id_ for id_ in ids if self.rng.random() < 0.6])
        return obs


def net_for(env: Environment, seed: int = 0) -> RogueNet:
    """A small network whose choices are far from equally likely."""
    torch.manual_seed(seed)
    net = RogueNet(RogueNetConfig(d_model=8, n_layer=1, n_head=2, d_qk=4), env.obs_space(), env.action_space())
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return net


class RecordedCollector(Collector):
    """A collector whose rollouts are recorded, each as a chunk, as long as there is a recorder."""

    recorder: Any = None

    def collect(self, steps: int) -> Rollout:
        rollout = super().collect(steps)
        if self.recorder is not None:
            self.recorder.add(rollout.frames)
            self.recorder.flush()
        return rollout

    def close(self) -> None:
        self.vec_env.close()


def collector_of(create: Callable[[], Environment], num_envs: int, seed: int = 0, net: Any = None) -> RecordedCollector:
    """It has been reset."""
    net = net or net_for(create())
    collector = RecordedCollector(ListEnv(create, num_envs, seed), net, torch.device("cpu"), seed)
    collector.reset(seed)
    return collector


def recorder_for(path: Path, env: Environment) -> Recorder:
    return Recorder(path, env.obs_space(), env.action_space())


def record(path: Path, create: Callable[[], Environment], rollouts: int = 2) -> None:
    """A recording of some rollouts of 3 environments, 5 steps each: 15 frames in a chunk."""
    collector = collector_of(create, 3)
    collector.recorder = recorder_for(path, create())
    for number in range(rollouts):
        collector.seed_noise(number)
        collector.collect(5)


def files_of(recording: Path) -> dict[str, bytes]:
    """Name -> content of the chunks."""
    return {path.name: path.read_bytes() for path in sorted(recording.iterdir())}


def episodes_of(recording: Path) -> list[RecordedFrames]:
    """The episodes that were recorded from their first step to their end, in the order in which they end."""
    frames = read_all(recording)
    ended = frames.episode[frames.terminated | frames.truncated]
    episodes = [frames.gather((frames.episode == number).nonzero()[:, 0]) for number in ended.tolist()]
    return [episode for episode in episodes if episode.step[0] == 0]


def assert_same_frames(one: Frames, other: Frames) -> None:
    """Field by field and bit for bit, but for counts that the host may know."""
    assert_same(*map(_known, (one, other)))


def _known(frames: Frames) -> dict[str, Any]:
    obs = frames.obs
    masks = {name: (mask.actors, mask.actees, mask.mask) for name, mask in obs.action_masks.items()}
    return fields_of(frames) | {"obs": (obs.num_frames, obs.features, list(obs.features), masks, obs.visible, obs.ids)}
