"""Several policies in one environment: which policy plays which players."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from entity_gym.pools.players import PlayerMapping, players_of
from entity_gym.pools.source import EnvSource

_FOLDER = re.compile(r"[A-Za-z0-9_][\w.-]*", re.ASCII)


@dataclass(frozen=True)
class Cast:
    """Assignment of players to policies.

    Args:
        policies: policy name -> numbers of the players that the policy plays.
        mapping: the environment's mapping of entities to players.
    """

    policies: Mapping[str, Sequence[int]]
    mapping: PlayerMapping

    @property
    def played_by(self) -> list[str]:
        """(P,) name of each player's policy."""
        names = {player: name for name, players in self.policies.items() for player in players}
        return [names[player] for player in range(self.mapping.num_players)]


def cast_of(policies: Mapping[str, Sequence[int]], source: EnvSource, world: str) -> Cast:
    """Check the setting `policies` against the players of an environment.

    Args:
        policies: policy name -> numbers of players; every player once.
        source: the environment's factory.
        world: name of the environment, for errors.

    Raises:
        ValueError: the environment has no players or other players, or a policy's name cannot be the name of a folder.
    """
    for name in policies:
        if not _FOLDER.fullmatch(name):
            raise ValueError(
                f"policies: {name!r} cannot be the name of a run directory; take letters, digits, _, - and ., and begin with "
                "one of the first three"
            )
    mapping = mapping_of(source, world, f"policies={dict(policies)}", 1)
    num_players, given = mapping.num_players, sum(len(players) for players in policies.values())
    if given != num_players:
        there = "one player, 0" if num_players == 1 else f"players 0 to {num_players - 1}"
        raise ValueError(f"each player of {world} ({there}) needs exactly one policy; got policies={dict(policies)}")
    return Cast(policies, mapping)


def mapping_of(source: EnvSource, world: str, needed_by: str, least: int = 2) -> PlayerMapping:
    """The players of the environment `world`.

    Raises:
        ValueError: the environment does not tell its players, or has less than `least`, which `needed_by` needs.
    """
    mapping = players_of(source)
    if mapping is None or mapping.num_players < least:
        has = "has one player" if mapping else "does not say which player owns what (see entity_gym.pools.players)"
        raise ValueError(f"{needed_by} needs a world with {'several ' * (least > 1)}players, and {world} {has}")
    return mapping
