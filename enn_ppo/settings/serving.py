"""Settings of the policy server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from enn_ppo.settings.evaluation import Device
from rogue_net.checks import NonNegativeInt, PositiveFloat, PositiveInt, Range, check_fields

MAX_PORT = 65_535


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Settings of the policy server: the policy, its address and its limits."""

    checkpoint: str
    """A run directory, one of its checkpoints, or a file that `python -m enn_ppo.export` wrote."""
    port: Annotated[int, Range(0, MAX_PORT)] = 5577
    """TCP port; 0: any that is free, which is printed."""
    host: str = "127.0.0.1"
    """Address that is listened on. The default, loopback, is reached from this machine alone; there is no password and no
    encryption, so be sure of whoever reaches another."""
    greedy: bool = False
    """Whether the likeliest action is taken, where a client does not say, instead of a sampled one."""
    temperature: PositiveFloat = 1.0
    """Below 1 samples are bolder, above 1 more random."""
    seed: NonNegativeInt = 1
    """Seeds the sampling."""
    device: Device = "auto"
    """`cpu`, `cuda`, or `auto`: cuda where there is one."""
    max_batch: PositiveInt = 256
    """Observations that the network sees at once; those that wait are taken together, and nothing waits for more."""
    max_clients: PositiveInt = 64
    """Clients at a time."""
    max_message_bytes: Annotated[int, Range(1024)] = 4 * 2**20
    """Longest message that is read."""
    max_entities: PositiveInt = 2048
    """Entities in an observation."""
    read_seconds: PositiveFloat = 30.0
    """How long a client may take over its greeting, and over a message once it has begun it, in seconds."""
    debug: bool = False
    """Whether a mistake shows its traceback beside the message."""

    def __post_init__(self) -> None:
        for name in ("checkpoint", "host"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                allowed = "a run directory or a checkpoint" if name == "checkpoint" else "an address, such as 127.0.0.1"
                raise ValueError(f"{name} must name {allowed}, got {value!r}")
        check_fields(self)
