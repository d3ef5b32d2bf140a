"""Settings of the policy server."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Annotated

from enn_ppo.settings.evaluation import Device
from rogue_net.checks import NonNegativeInt, PositiveInt, Range, check_fields

MIN_TOKEN = 16  # characters


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Settings of the policy server: the policy and its address."""

    checkpoint: str
    """A run directory, one of its checkpoints, or a file that `python -m enn_ppo.export` wrote."""
    port: Annotated[int, Range(0, 65_535)] = 5577
    """TCP port; 0: any free port, which is printed."""
    host: str = "127.0.0.1"
    """Address to listen on. The default, loopback, accepts only clients on this machine; other addresses need a `token`. Nothing
    is encrypted, so use them only in a trusted network."""
    token: str | None = field(default=None, repr=False)
    """Secret of at least 16 characters that clients must send in their greeting; null: none, which only a loopback `host` allows.
    `'token=${oc.env:MY_TOKEN}'` takes it from an environment variable, so that it does not stand in the list of processes."""
    greedy: bool = False
    """Whether to take the most likely action instead of a sampled one, if the client's request does not say."""
    seed: NonNegativeInt = 1
    """Seeds the sampling."""
    device: Device = "auto"
    """`cpu`, `cuda`, or `auto`: cuda where there is one."""
    max_clients: PositiveInt = 64
    """Largest number of connected clients."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.token is not None and (
            len(self.token) < MIN_TOKEN or not self.token.isascii() or not self.token.isprintable()
        ):
            raise ValueError(
                f"token has {len(self.token)} characters; it must have at least {MIN_TOKEN}, all of them printable ASCII, or be "
                "null. This prints a good one: python -c 'import secrets; print(secrets.token_urlsafe())'"
            )
        if self.token is None and not is_loopback(self.host):
            raise ValueError(
                f"host={self.host} lets other machines connect, so a token is needed: set token=..., a secret that clients send "
                "in their greeting, or use host=127.0.0.1"
            )


def is_loopback(host: str) -> bool:
    """Return true if only programs on this machine can connect to the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
