"""Settings of the policy server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from enn_ppo.settings.evaluation import Device
from rogue_net.checks import check_bool, check_choice, check_float, check_int

MAX_PORT = 65_535


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """What is served, where, and how much of whom is borne."""

    checkpoint: str
    """A run directory, one of its checkpoints, or a file that `python -m enn_ppo.export` wrote. Required."""
    port: int = 5577
    """TCP port; 0: any that is free, which is printed. In [0, 65535]. Default 5577."""
    host: str = "127.0.0.1"
    """Address that is listened on. The default, loopback, is reached from this machine alone; there is no password and no
    encryption, so be sure of whoever reaches another. Default `127.0.0.1`."""
    greedy: bool = False
    """Whether the likeliest action is taken, where a client does not say, instead of a sampled one. Default false."""
    temperature: float = 1.0
    """Below 1 samples are bolder, above 1 more random. Greater than 0. Default 1."""
    seed: int = 1
    """Seeds the sampling. At least 0. Default 1."""
    device: Device = "auto"
    """`cpu`, `cuda`, or `auto`: cuda where there is one. Default `auto`."""
    max_batch: int = 256
    """Observations that the network sees at once; those that wait are taken together, and nothing waits for more. At
    least 1. Default 256."""
    max_clients: int = 64
    """Clients at a time. At least 1. Default 64."""
    max_message_bytes: int = 4 * 2**20
    """Longest message that is read. At least 1,024. Default 4,194,304."""
    max_entities: int = 2048
    """Entities in an observation. At least 1. Default 2,048."""
    read_seconds: float = 30.0
    """How long a client may take over its greeting, and over a message once it has begun it, in seconds. Greater than 0.
    Default 30."""
    debug: bool = False
    """Whether a mistake shows its traceback beside the message. Default false."""

    def __post_init__(self) -> None:
        for name in ("checkpoint", "host"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                allowed = "a run directory or a checkpoint" if name == "checkpoint" else "an address, such as 127.0.0.1"
                raise ValueError(f"{name} must name {allowed}, got {value!r}")
        check_int("port", self.port, 0)
        if self.port > MAX_PORT:
            raise ValueError(f"port must be at most {MAX_PORT}, got {self.port}")
        check_bool("greedy", self.greedy)
        check_float("temperature", self.temperature, 0, open_low=True)
        check_int("seed", self.seed, 0)
        check_choice("device", self.device, get_args(Device))
        for name, least in (("max_batch", 1), ("max_clients", 1), ("max_message_bytes", 1024), ("max_entities", 1)):
            check_int(name, getattr(self, name), least)
        check_float("read_seconds", self.read_seconds, 0, open_low=True)
        check_bool("debug", self.debug)
