"""Several policies in one world: who plays whom, and a rollout for each of what its players have seen, done and earned.

Shapes: T steps, N environments, P players.
"""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

import torch

from enn_ppo.actor_critic import Actor
from enn_ppo.merging import merge_rollouts
from enn_ppo.rollout import Besides, EnvBlock, Rollout, Trajectory, merge_metrics
from enn_ppo.sampling import BlockSampler, Parameters
from enn_ppo.stepping import Actions, StepHere, Stepped, play
from entity_gym.batch.vec_obs import Metric
from entity_gym.pools.episodes import Episode
from entity_gym.pools.players import PlayerMapping, Seating, players_of
from entity_gym.pools.seats import PlayersTracker
from entity_gym.pools.vec_env import VecEnv
from rogue_net import keyed

_FOLDER = re.compile(r"[A-Za-z0-9_][\w.-]*", re.ASCII)


@dataclass(frozen=True)
class Cast:
    """Who plays whom.

    Args:
        policies: name -> the players that it plays.
        mapping: of the world.
    """

    policies: Mapping[str, Sequence[int]]
    mapping: PlayerMapping

    @property
    def played_by(self) -> list[str]:
        """(P,) the policy of each player."""
        names = {player: name for name, players in self.policies.items() for player in players}
        return [names[player] for player in range(self.mapping.num_players)]


def cast_of(policies: Mapping[str, Sequence[int]], source: object, world: str) -> Cast:
    """Give the players of a world to policies.

    Args:
        policies: name -> players, as the setting `policies` has them: every number once.
        source: what pools are made from.
        world: its name, for messages.

    Raises:
        ValueError: the world has no players, or others, or a name cannot be that of a folder.
    """
    for name in policies:
        if not _FOLDER.fullmatch(name):
            raise ValueError(
                f"policies: {name!r} cannot be the name of a run directory; take letters, digits, _, - and ., and begin with "
                "one of the first three"
            )
    mapping = players_of(source)
    if mapping is None:
        raise ValueError(
            f"policies={dict(policies)} needs a world with players, and {world} does not say which player owns what (see "
            "entity_gym.pools.players)"
        )
    num_players, given = mapping.num_players, sum(len(players) for players in policies.values())
    if given != num_players:
        there = "one player, 0" if num_players == 1 else f"players 0 to {num_players - 1}"
        raise ValueError(f"policies must have every player of {world} once, which has {there}; got {dict(policies)}")
    return Cast(policies, mapping)


class PlayersCollector(EnvBlock):
    """Environments in which several policies play together, each all of its players.

    A rollout of a policy has a column for each environment and player, those of the first player first. Column by column it is
    what `Seating.show` shows to that player, with its own actors and reward, and what the policy did there. Its `env_id` numbers
    environments and players: environment times players of the policy, plus the place of the player among these.

    Args:
        vec_env: N environments.
        nets: name -> policy, and its values; evaluated, never changed.
        cast: who plays whom.
        device: where the policies are.
        seed: of the sampling noise.
        first_env: the number of environment 0, where these are a part of more.
    """

    def __init__(
        self,
        vec_env: VecEnv,
        nets: Mapping[str, Actor],
        cast: Cast,
        device: torch.device,
        seed: int,
        first_env: int = 0,
    ) -> None:
        self._nets, self._cast = nets, cast
        self._episodes = PlayersTracker(len(vec_env), cast.policies, first_env)
        super().__init__(vec_env, device, seed, self._episodes)

    def collect(self, steps: int) -> dict[str, Rollout]:
        """Play `steps` steps in every environment: a rollout of each policy."""
        return play([self], steps, [StepHere()])[0]

    def playing(self, steps: int) -> Generator[Actions, Stepped, dict[str, Rollout]]:
        """As `collect`, where somebody else has the environments take their steps; see `Plays`."""
        assert self._obs is not None, "reset first"
        players = range(self._cast.mapping.num_players)
        keys = self._noise_keys(steps)
        seating = Seating(self._obs, self._cast.mapping)
        parts = [seating.part(player) for player in players]
        trajectories = [
            Trajectory(
                self._nets[name], self.device, keyed(keys, torch.tensor(player, device=self.device)), seating.show(part)
            )
            for player, (name, part) in enumerate(zip(self._cast.played_by, parts, strict=True))
        ]
        episodes: dict[str, list[Episode]] = {name: [] for name in self._cast.policies}
        metrics: dict[str, Metric] = {}
        env_seconds = act_seconds = 0.0
        for _ in range(steps):
            started = time.perf_counter()
            actions = [trajectory.act() for trajectory in trajectories]
            joined = seating.join(list(zip(parts, actions, strict=True)))
            act_seconds += time.perf_counter() - started
            self._obs, waited = yield joined
            env_seconds += waited
            seating = Seating(self._obs, self._cast.mapping)
            parts = [seating.part(player) for player in players]
            for trajectory, part in zip(trajectories, parts, strict=True):
                trajectory.observe(seating.show(part))
            for ended in self._episodes.step(self._obs, seating.rewards):
                for name, episode in ended.items():
                    episodes[name].append(episode)
            merge_metrics(metrics, self._obs.metrics)

        def rollout(name: str, player: int) -> Rollout:
            own = self._cast.policies[name]
            place = own.index(player)
            # what is told of all of a policy's players together is told once
            besides = Besides(
                env_id=self.env_id * len(own) + place,
                episodes=episodes[name] if place == 0 else [],
                metrics=metrics if place == 0 else {},
                env_seconds=env_seconds if place == 0 else 0.0,
                act_seconds=act_seconds if place == 0 else 0.0,
            )
            return trajectories[player].rollout(besides)

        return {
            name: merge_rollouts([rollout(name, player) for player in own]) for name, own in self._cast.policies.items()
        }


class PlayersSampler(BlockSampler):
    """Environments in this process in which several policies play.

    Args:
        pools: of environments, as they are numbered through; of several pools each is a block.
        nets: name -> policy, and its values; evaluated, never changed.
        cast: who plays whom.
        device: where the policies are.
        seed: of the run.
        first_env: the number of the first environment, where these are a part of more.
        pipeline: blocks that are played at a time.
    """

    def __init__(
        self,
        pools: Sequence[VecEnv],
        nets: Mapping[str, Actor],
        cast: Cast,
        device: torch.device,
        seed: int,
        first_env: int = 0,
        pipeline: int = 1,
    ) -> None:
        self._cast = cast
        self.blocks = []
        for pool in pools:
            self.blocks.append(PlayersCollector(pool, nets, cast, device, seed, first_env))
            first_env += len(pool)
        super().__init__(self.blocks, seed, pipeline)

    def configure(self, parameters: Parameters) -> None:
        self._check(parameters)
        super().configure(parameters)

    def reset(self, seed: int, parameters: Parameters | None) -> None:
        self._check(parameters or {})
        super().reset(seed, parameters)

    def collect(self, steps: int) -> dict[str, Rollout]:
        """Play so many steps in every environment: a rollout of each policy."""
        collected = self._play(self.blocks, steps)
        return {name: merge_rollouts([each[name] for each in collected]) for name in self._cast.policies}

    def _check(self, parameters: Parameters) -> None:
        """Refuse parameters that decide who owns what."""
        if name := next((name for name in self._cast.mapping.fixed if name in parameters), None):
            raise ValueError(
                f"env_info has {name!r}, on which it depends what belongs to which player: with policies={self._cast.policies} "
                "it cannot change between episodes"
            )
