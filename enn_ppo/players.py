"""Several policies in one environment: which policy plays which players, and a rollout for each policy.

Shapes: T steps, N environments, P players.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from enn_ppo.actor_critic import Actor
from enn_ppo.rollout import EnvBlock, Rollout, RolloutStats, Trajectory, play
from enn_ppo.sampling import BlockSampler, Parameters
from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.pools.players import PlayerMapping, Seating, players_of
from entity_gym.pools.seats import PlayersTracker
from entity_gym.pools.vec_env import VecEnv
from rogue_net import keyed

_FOLDER = re.compile(r"[A-Za-z0-9_][\w.-]*", re.ASCII)


@dataclass(frozen=True)
class Cast:
    """Assignment of players to policies.

    Args:
        policies: name -> numbers of the players that it plays.
        mapping: of the environment.
    """

    policies: Mapping[str, Sequence[int]]
    mapping: PlayerMapping

    @property
    def played_by(self) -> list[str]:
        """(P,) the policy of each player."""
        names = {player: name for name, players in self.policies.items() for player in players}
        return [names[player] for player in range(self.mapping.num_players)]


def cast_of(policies: Mapping[str, Sequence[int]], source: object, world: str) -> Cast:
    """Check the setting `policies` against the players of an environment.

    Args:
        policies: name -> numbers of players; every player once.
        source: of the environment.
        world: name of the environment, for errors.

    Raises:
        ValueError: the environment has no players, or other ones; or a name cannot be the name of a folder.
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


class PlayersCollector(EnvBlock[dict[str, Rollout]]):
    """Collects rollouts of several policies that play in the same environments.

    A policy's rollout has a column for each environment and player, those of the first player first. A column holds the
    observations of that player (`Seating.show`), its actors, its actions and its reward. `env_id` of a column is
    environment * (number of the policy's players) + (index of the player among them).

    Args:
        vec_env: N environments.
        nets: name -> policy and value function; not changed.
        cast: which policy plays which players.
        device: of the policies.
        seed: of the sampling noise.
        first_env: number of the first environment, if these are a part of all environments.
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
        """Play `steps` steps in every environment. Returns policy name -> rollout."""
        return play([self], steps)[0]

    def begin(self, steps: int) -> None:
        assert self.obs is not None, "reset first"
        keys = self.noise_keys(steps)
        self._seat(self.obs)
        self._trajectories = []
        for player, (name, part) in enumerate(zip(self._cast.played_by, self._parts, strict=True)):
            own = self._cast.policies[name]
            own_keys = keyed(keys, torch.tensor(player, device=self.device))
            env_id = self.env_id * len(own) + own.index(player)
            shown = self._seating.show(part)
            self._trajectories.append(Trajectory(self._nets[name], self.device, own_keys, shown, env_id))
        self._stats = {name: RolloutStats() for name in self._cast.policies}

    def act(self) -> Mapping[str, VecAction]:
        started = time.perf_counter()
        actions = [trajectory.act() for trajectory in self._trajectories]
        joined = self._seating.join(list(zip(self._parts, actions, strict=True)))
        for stats in self._stats.values():
            stats.act_seconds += time.perf_counter() - started
        return joined

    def observe(self, obs: VecObs, waited: float) -> None:
        self.obs = obs
        self._seat(obs)
        for trajectory, part in zip(self._trajectories, self._parts, strict=True):
            trajectory.observe(self._seating.show(part))
        ended = self._episodes.step(obs, self._seating.rewards)
        for name, stats in self._stats.items():
            stats.add([each[name] for each in ended], obs.metrics)
            stats.env_seconds += waited

    def finish(self) -> dict[str, Rollout]:
        def played(name: str, players: Sequence[int]) -> Rollout:
            # statistics count all players of a policy together
            stats = [self._stats[name], *(RolloutStats() for _ in players[1:])]
            pairs = zip(players, stats, strict=True)
            return Rollout.merged([self._trajectories[player].rollout(each) for player, each in pairs])

        return {name: played(name, players) for name, players in self._cast.policies.items()}

    def _seat(self, obs: VecObs) -> None:
        """Find each player's part of the observations."""
        self._seating = Seating(obs, self._cast.mapping)
        self._parts = [self._seating.part(player) for player in range(self._cast.mapping.num_players)]


class PlayersSampler(BlockSampler[dict[str, Rollout]]):
    """Several policies that play in environments of this process.

    Args:
        pools: of environments, in the order of their numbers; each pool is a block.
        nets: name -> policy and value function; not changed.
        cast: which policy plays which players.
        device: of the policies.
        seed: of the run.
        first_env: number of the first environment, if these are a part of all environments.
        pipeline: number of blocks that are played in turns.
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
        blocks = []
        for pool in pools:
            blocks.append(PlayersCollector(pool, nets, cast, device, seed, first_env))
            first_env += len(pool)
        super().__init__(blocks, seed, pipeline)

    def configure(self, parameters: Parameters) -> None:
        self._check(parameters)
        super().configure(parameters)

    def reset(self, seed: int, parameters: Parameters | None) -> None:
        self._check(parameters or {})
        super().reset(seed, parameters)

    def collect(self, steps: int) -> dict[str, Rollout]:
        """Play `steps` steps in every environment. Returns policy name -> rollout."""
        collected = self.collect_blocks(steps)
        return {name: Rollout.merged([each[name] for each in collected]) for name in self._cast.policies}

    def _check(self, parameters: Parameters) -> None:
        """Refuse parameters that change what belongs to which player."""
        if name := next((name for name in self._cast.mapping.fixed if name in parameters), None):
            raise ValueError(
                f"env.info has {name!r}, on which it depends what belongs to which player: with policies={self._cast.policies} "
                "it cannot change between episodes"
            )
