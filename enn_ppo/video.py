"""An episode as a moving picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import imageio.v3 as imageio
import numpy as np
import torch
from numpy.typing import NDArray

from enn_ppo.config import EvalConfig
from entity_gym import Action, ActionSpace, Environment, Observation, ObsSpace
from entity_gym.list_env import ListEnv
from rogue_net import ObsBatch, RogueNet
from rogue_net.adaptor import ObsAdaptor

MILLISECONDS_PER_FRAME = 250


class RecordedEnvironment(Environment):
    """Draws `inner` after every `reset` and `act`, the end of an episode included, into `pictures`."""

    def __init__(self, inner: Environment) -> None:
        self.inner = inner
        self.pictures: list[NDArray[np.uint8]] = []

    @property
    def rng(self) -> np.random.Generator:
        """The inner environment's."""
        return self.inner.rng

    @rng.setter
    def rng(self, rng: np.random.Generator) -> None:
        self.inner.rng = rng

    def obs_space(self) -> ObsSpace:  # noqa: D102 - see Environment
        return self.inner.obs_space()

    def action_space(self) -> Mapping[str, ActionSpace]:  # noqa: D102
        return self.inner.action_space()

    def reset(self) -> Observation:  # noqa: D102
        return self._draw(self.inner.reset())

    def act(self, actions: Mapping[str, Action]) -> Observation:  # noqa: D102
        return self._draw(self.inner.act(actions))

    def close(self) -> None:  # noqa: D102
        self.inner.close()

    def _draw(self, obs: Observation) -> Observation:
        self.pictures.append(self.inner.render())
        return obs


def record_episode(
    net: RogueNet,
    create_env: Callable[[], Environment],
    config: EvalConfig,
    device: torch.device,
    adaptor: ObsAdaptor,
) -> None:
    """Play one episode, which the network sees through `adaptor`, and write it to `config.render`.

    Raises:
        ValueError: the environment cannot be drawn, or the file cannot be written.
    """
    env = RecordedEnvironment(create_env())
    vec_env = ListEnv(lambda: env, 1, config.seed)
    generator = torch.Generator(device).manual_seed(config.seed)
    try:
        obs = vec_env.reset()
        for _ in range(config.max_episode_steps):
            batch = adaptor(ObsBatch.from_vec_obs(obs, device))
            result = net.act(batch, greedy=config.greedy, generator=generator)
            obs = vec_env.act(result.to_buffers())
            if obs.done[0]:
                break
    except NotImplementedError as error:
        raise ValueError(f"render={config.render} was asked for, but {error}") from error
    pictures = env.pictures[:-1] if obs.done[0] else env.pictures  # the last is the next episode's first
    _write(Path(str(config.render)), pictures)


def _write(path: Path, pictures: list[NDArray[np.uint8]]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        imageio.imwrite(path, np.stack(pictures), extension=".gif", duration=MILLISECONDS_PER_FRAME, loop=0)
    except (OSError, ValueError) as error:
        raise ValueError(f"render={path} cannot be written: {error}") from error
    print(f"{len(pictures)} pictures: {path}")
