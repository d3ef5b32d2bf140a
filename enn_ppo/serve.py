"""The policy server: programs in any language ask it what to do, by the protocol of docs/protocol.md.

python -m enn_ppo.serve checkpoint=outputs/my_run port=5577
"""

from __future__ import annotations

import asyncio
import ipaddress
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.checkpoints.archive import read_archive
from enn_ppo.checkpoints.policy import select_device
from enn_ppo.serving.policy import PolicyShelf
from enn_ppo.serving.server import PolicyServer, Served
from enn_ppo.settings.serving import ServeConfig

__all__ = ["ServeConfig", "Served", "serve"]


def serve(config: ServeConfig, say: Callable[[str], None] | None = None) -> Served:
    """Answer clients until Ctrl-C or SIGTERM comes.

    Args:
        config: every setting.
        say: prints a line for the user; None: on standard output, at once.

    Returns:
        What was done.

    Raises:
        ValueError: a setting or the checkpoint is not as it must be, or the address cannot be listened on.
    """
    say = say or _print
    device = select_device(config.device)
    path = Path(config.checkpoint)
    checkpoint = read_archive(path) if path.is_file() else load_checkpoint(path)
    shelf = PolicyShelf(checkpoint, device, config.max_entities)
    shelf.policy(None)  # what is wrong with it comes to light now
    server = PolicyServer(config, shelf, device, str(checkpoint.path), say)
    served = asyncio.run(_until_stopped(server, config, f"checkpoint {checkpoint.path} on {device}", say))
    say(f"served {served.decisions:,} decisions in {served.batches:,} batches to {served.clients:,} clients")
    return served


async def _until_stopped(server: PolicyServer, config: ServeConfig, what: str, say: Callable[[str], None]) -> Served:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    with suppress(NotImplementedError, RuntimeError, ValueError):  # not on every system, and in the main thread alone
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)

    def started(port: int) -> None:
        say(f"serving {what} at {config.host}:{port}; Ctrl-C ends it")
        if not _is_loopback(config.host):
            say(f"host={config.host} is not this machine alone: whoever reaches it can ask, without a password")

    return await server.run(stop, started)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _print(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    from enn_ppo.command_line.cli import run_serve

    raise SystemExit(run_serve(serve))
