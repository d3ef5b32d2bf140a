"""The policy server: chooses actions for programs in any language, by the protocol of docs/protocol.md.

python -m enn_ppo.serve checkpoint=outputs/my_run port=5577
"""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.checkpoints.policy import select_device
from enn_ppo.serve.policy import ServedPolicies
from enn_ppo.serve.server import PolicyServer, Served
from enn_ppo.settings.serving import ServeConfig, is_loopback

__all__ = ["ServeConfig", "Served", "serve"]


def serve(config: ServeConfig, say: Callable[[str], None] | None = None) -> Served:
    """Answer clients until Ctrl-C or SIGTERM comes.

    Args:
        config: every setting.
        say: prints a line for the user; None: on standard output, flushed.

    Returns:
        Counters of clients, decisions and batches.

    Raises:
        ValueError: a setting or the checkpoint is invalid, or the address cannot be listened on.
    """
    say = say or partial(print, flush=True)
    device = select_device(config.device)
    policies = ServedPolicies(load_checkpoint(Path(config.checkpoint)), device, config)
    policies.warm_up()
    gc.freeze()  # a long message starts many collections, which need not look at what has been loaded so far

    def started(port: int) -> None:
        say(f"serving checkpoint {policies.path} on {device} at {config.host}:{port}; Ctrl-C ends it")
        if not is_loopback(config.host):
            say(f"host={config.host} lets other machines connect: they need the token, which is sent unencrypted")

    async def serve_until_stopped() -> Served:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)

        def end() -> None:
            stop.set()
            for number in signals:  # a second signal ends the process at once
                loop.remove_signal_handler(number)

        with suppress(
            NotImplementedError, RuntimeError, ValueError
        ):  # needs the main thread, and not every system has it
            for number in signals:
                loop.add_signal_handler(number, end)
        return await PolicyServer(config, policies, say).run(stop, started)

    served = asyncio.run(serve_until_stopped())
    say(str(served))
    return served
