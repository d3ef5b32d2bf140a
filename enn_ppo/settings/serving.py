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
    """TCP port; 0: any free port, which is printed."""
    host: str = "127.0.0.1"
    """Address to listen on. The default, loopback, accepts only clients on this machine; there is no password and no encryption,
    so use other addresses only in a trusted network."""
    greedy: bool = False
    """Whether to take the most likely action instead of a sampled one, if the client's request does not say."""
    temperature: PositiveFloat = 1.0
    """Temperature of the sampling: below 1 prefers likely actions, above 1 is more random."""
    seed: NonNegativeInt = 1
    """Seeds the sampling."""
    device: Device = "auto"
    """`cpu`, `cuda`, or `auto`: cuda where there is one."""
    max_batch: PositiveInt = 256
    """Largest batch of observations; a batch takes the waiting requests and does not wait for more."""
    max_clients: PositiveInt = 64
    """Largest number of connected clients."""
    max_message_bytes: Annotated[int, Range(1024)] = 4 * 2**20
    """Largest size of a message."""
    max_entities: PositiveInt = 2048
    """Largest number of entities in an observation."""
    read_seconds: PositiveFloat = 30.0
    """Timeout in seconds for a client's greeting, and for the rest of a message that has begun."""
    debug: bool = False
    """Whether the message about a mistake includes the traceback."""

    def __post_init__(self) -> None:
        for name in ("checkpoint", "host"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                allowed = "a run directory or a checkpoint" if name == "checkpoint" else "an address, such as 127.0.0.1"
                raise ValueError(f"{name} must name {allowed}, got {value!r}")
        check_fields(self)
