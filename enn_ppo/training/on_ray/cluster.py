"""Ray itself: connecting to a cluster, and the results of its actors."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import ray as untyped_ray
from ray import exceptions

from enn_ppo.settings.config import DistributedConfig
from enn_ppo.training.errors import ActorDied, PartLost
from entity_gym.pools.processes.worker import WorkerDied

ray: Any = untyped_ray  # many of its functions have no types
CLOSE_SECONDS = 2.0  # timeout for closing an actor
START_SECONDS = 120.0  # timeout for starting an actor, which needs a free CPU and imports torch


@contextmanager
def connection(config: DistributedConfig, num_learners: int = 1, device: str = "cpu") -> Iterator[int]:
    """Connect this process to Ray within the context: start it on this machine, or join a cluster; or use its connection.

    Returns:
        The number of GPUs of each learner: 1, or 0 with `device=cpu`, or with `device=auto` if there is not one for each.

    Raises:
        ValueError: there is no such cluster, or it has not enough CPUs, or with `device=cuda` not enough GPUs.
    """
    cpus = config.num_env_runners + num_learners
    with ExitStack() as stack:
        if not ray.is_initialized():
            _connect(config, cpus)
            stack.callback(ray.shutdown)
        there = ray.cluster_resources()
        for name, number in (("CPU", cpus), ("GPU", num_learners if device == "cuda" else 0)):
            if number > there.get(name, 0):
                raise ValueError(
                    f"distributed.num_env_runners={config.num_env_runners} and learners: {num_learners} with device={device} "
                    f"need {number} {name}s, and the Ray cluster has {there.get(name, 0):g}"
                )
        yield int(device != "cpu" and there.get("GPU", 0) >= num_learners)


def _connect(config: DistributedConfig, num_cpus: int) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray sends usage reports by default
    # the workers need the import path of this process
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    more: dict[str, Any] = {"runtime_env": {"env_vars": {"PYTHONPATH": path}}, "logging_level": logging.ERROR}
    if config.address == "local":
        # by default Ray asks for a token, which a private cluster on one machine does not need
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        # more actors than CPUs are allowed: they share the CPUs
        more |= {"num_cpus": max(num_cpus, os.cpu_count() or 1), "include_dashboard": False}
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=config.address, **more)
    except Exception as error:  # Ray raises many types
        reason = str(error).strip().split("\n")[0]
        raise ValueError(
            f"distributed.address={config.address}: no Ray cluster answers ({reason}); start one with `ray start --head`, "
            "whose port for clients (ray://) is 10001, give the token that it asks for (docs/distributed.md), or let "
            "distributed.address=local start Ray here"
        ) from error
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray replaces it


def not_started(who: str) -> str:
    """The message about an actor that has not started in time."""
    free = ray.available_resources().get("CPU", 0)
    return f"{who} has not started within {START_SECONDS:g} s; of the Ray cluster's CPUs {free:g} are free"


def fetch(reference: Any, timeout: float | None = None) -> Any:
    """The result of an actor's method. The method's own exceptions are raised without Ray's wrapper.

    Raises:
        ActorDied: the actor's process has died.
        GetTimeoutError: no result came in time.
    """
    try:
        return ray.get(reference, timeout=timeout)
    except exceptions.GetTimeoutError:
        raise
    except exceptions.RayError as error:
        cause = getattr(error, "cause", None)  # what the method has raised
        if isinstance(cause, Exception) and not isinstance(cause, exceptions.RayError):
            if not isinstance(cause, ValueError | PartLost | WorkerDied):  # a bug: show the traceback
                cause.add_note(f"raised elsewhere:\n{error}")
            raise cause from None
        text = " ".join(str(error).split())
        detail = re.search(r"Worker exit detail: (.*?)\.?( Some common causes|$)", text)
        why = f"its process was killed or has crashed: {detail[1]}" if detail else text.rstrip(".")
        raise ActorDied(why) from None
