"""Stable-Baselines3 in the worlds of `bench.py worlds`: training, players, and attention over vehicles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecMonitor
from torch import Tensor, nn

from benchmarks.world_players import FlatTsp, Player, has_several, make_world
from benchmarks.world_rows import Row

ROLLOUT, BATCH = 2048, 64  # steps: the peer's defaults for its one environment


class AgentsVecEnv(VecEnv):
    """Each agent of worlds with PettingZoo's parallel interface is an environment, with its own observation and reward.

    All agents of a world begin and end together.
    """

    def __init__(self, worlds: Sequence[Any], seed: int) -> None:
        self._worlds, self._seed = worlds, seed
        agent = worlds[0].possible_agents[0]
        self._agents = len(worlds[0].possible_agents)
        super().__init__(self._agents * len(worlds), worlds[0].observation_space(agent), worlds[0].action_space(agent))

    def reset(self) -> Any:
        rows = [world.reset(seed=self._seed + i)[0].values() for i, world in enumerate(self._worlds)]
        return np.stack([row for of_world in rows for row in of_world])

    def step_async(self, actions: Any) -> None:
        self._actions = actions.reshape(len(self._worlds), self._agents)

    def step_wait(self) -> Any:
        rows: list[Any] = []
        rewards: list[float] = []
        dones: list[bool] = []
        infos: list[dict[str, Any]] = []
        for world, actions in zip(self._worlds, self._actions, strict=True):
            acts = dict(zip(world.agents, actions.tolist(), strict=True))
            obs, reward, terminated, truncated, _ = world.step(acts)
            ended = not world.agents
            last = list(obs.values())
            if ended:
                infos += [
                    {
                        "terminal_observation": each,
                        "TimeLimit.truncated": bool(truncated[agent] and not terminated[agent]),
                    }
                    for agent, each in zip(acts, last, strict=True)
                ]
                obs, _ = world.reset()
            else:
                infos += [{} for _ in last]
            rows += obs.values()
            rewards += [float(reward[agent]) for agent in acts]
            dones += [ended] * self._agents
        return np.stack(rows), np.array(rewards, np.float32), np.array(dones), infos

    def close(self) -> None:
        for world in self._worlds:
            world.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self._worlds[0], attr_name, None)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * len(list(self._get_indices(indices)))


class EgoAttention(BaseFeaturesExtractor):
    """Attention of the ego vehicle, the first row, over all vehicles that are present; 2 heads, 64 features.

    Shapes: B frames, V vehicles, F features with the presence first, H heads, D features of a head.
    """

    def __init__(self, observation_space: gymnasium.spaces.Box, width: int = 64, heads: int = 2) -> None:
        super().__init__(observation_space, width)
        num_features = observation_space.shape[1]
        self._heads = heads
        self.ego, self.others = (
            nn.Sequential(nn.Linear(num_features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
            for _ in range(2)
        )
        self.query, self.key, self.value, self.join = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, observations: Tensor) -> Tensor:
        ego = self.ego(observations[:, :1])
        tokens = torch.cat([ego, self.others(observations[:, 1:])], dim=1)  # (B, V, H D)
        absent = observations[:, :, 0] < 0.5
        split = (self._heads, tokens.shape[-1] // self._heads)
        query, key, value = (
            projection(given).unflatten(-1, split).transpose(1, 2)  # (B, H, 1 or V, D)
            for projection, given in ((self.query, ego), (self.key, tokens), (self.value, tokens))
        )
        seen = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=~absent[:, None, None, :])
        return (self.join(seen.transpose(1, 2).flatten(1)) + ego[:, 0]) / 2


def learn(row: Row, method: str, seed: int, steps: int) -> Any:
    """Train the peer's PPO, and return the model."""
    torch.set_num_threads(1)
    masked = row.name.startswith("TSP")
    worlds = [make_world(row.env_id, row.kwargs, (FlatTsp,) if masked else ()) for _ in range(row.num_envs)]
    several = has_several(worlds[0])
    num_agents = len(worlds[0].possible_agents) if several else 1
    envs: VecEnv = AgentsVecEnv(worlds, seed) if several else DummyVecEnv([lambda world=each: world for each in worlds])
    settings: dict[str, Any] = {"n_steps": ROLLOUT // row.num_envs, "batch_size": BATCH * num_agents} | dict(row.peer)
    if row.gamma is not None:
        settings["gamma"] = row.gamma
    if method == "sb3-attention":
        settings["policy_kwargs"] = {"features_extractor_class": EgoAttention}
    algorithm: Any = PPO
    if masked:
        from sb3_contrib import MaskablePPO

        algorithm = MaskablePPO
    model = algorithm("MlpPolicy", VecMonitor(envs), seed=seed, device="cpu", **settings)
    model.learn(steps * num_agents)
    envs.close()
    return model


def player(model: Any, env: Any, greedy: bool) -> Player:
    """Return the player of a trained model."""

    def act(obs: Any) -> Any:
        if has_several(env):
            actions, _ = model.predict(np.stack(list(obs.values())), deterministic=greedy)
            return dict(zip(obs, actions.tolist(), strict=True))
        masks = {"action_masks": env.action_masks()} if isinstance(env, FlatTsp) else {}
        action, _ = model.predict(obs, deterministic=greedy, **masks)
        return int(action) if np.ndim(action) == 0 else action

    return act
