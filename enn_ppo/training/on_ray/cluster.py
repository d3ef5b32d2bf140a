"""Starting, joining and leaving Ray."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from enn_ppo.settings.config import DistributedConfig
from enn_ppo.training.errors import ActorDied, PartLost
from enn_ppo.training.tracking.run_output import announce
from entity_gym.pools.processes.worker import WorkerDied

CONNECT_SECONDS = 5.0  # timeout for connecting to a remote cluster
CLOSE_SECONDS = 2.0  # timeout for closing an actor
START_SECONDS = 120.0  # timeout for starting an actor, which needs a free CPU and imports torch


def require_ray() -> Any:
    """Import Ray.

    Raises:
        ValueError: Ray is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray sends usage reports by default
    try:
        import ray
    except ImportError as error:
        raise ValueError(f'distributed=ray needs Ray: pip install "enn-ppo[ray]" ({error})') from error
    return ray


class Cluster:
    """A connection to Ray: started on this machine or joined, according to `config.address`.

    If this process is connected to Ray already, that connection is used, and stays open.

    Raises:
        ValueError: there is no such cluster, or it has not enough CPUs or GPUs.
    """

    def __init__(self, config: DistributedConfig, num_learners: int = 1) -> None:
        self._num_learners = num_learners
        self._ray = require_ray()
        self._is_ours = not self._ray.is_initialized()
        if self._is_ours:
            with _signals_as_they_are():
                self._connect(config)
        elif config.address != "local":
            announce(f"this process is connected to Ray already: distributed.address={config.address} is not used")
        try:
            self._check_size(config)
        except ValueError:
            self.close()
            raise

    def _connect(self, config: DistributedConfig) -> None:
        quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": True}
        if config.address == "local":
            self._start(config, quiet)
            return
        # the cluster's workers need the import path of this process
        quiet["runtime_env"] = {"env_vars": {"PYTHONPATH": _python_path()}}
        if config.address != "auto":
            _check_listens("distributed.address", config.address)
        elif ":" in (address := os.environ.get("RAY_ADDRESS", "")):  # Ray uses it for `auto`
            _check_listens("RAY_ADDRESS", address)
        try:
            self._ray.init(address=config.address, **quiet)
        except Exception as error:  # Ray raises many types
            raise ValueError(f"distributed.address={config.address}: {_refusal(error)}") from error

    def _start(self, config: DistributedConfig, quiet: dict[str, Any]) -> None:
        """Start Ray on this machine for this run. More actors than CPUs are allowed: they share the CPUs."""
        needed, there = self._cpus(config), os.cpu_count() or 1
        if needed > there:
            announce(f"runners and learner ask for {needed} CPUs and share the {there} of this machine")
        # Ray's processes inherit these. By default Ray asks for a token, which a private cluster on one machine does not need.
        auth = os.environ.get("RAY_AUTH_MODE", "disabled")
        with _environment(PYTHONPATH=_python_path(), RAY_AUTH_MODE=auth):
            self._ray.init(address="local", num_cpus=max(needed, there), include_dashboard=False, **quiet)

    def _check_size(self, config: DistributedConfig) -> None:
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        runners = f"distributed.num_env_runners={config.num_env_runners}"
        learners = "a learner" if self._num_learners == 1 else f"{self._num_learners} learners"
        each = "" if self._num_learners == 1 else f" for each of {learners}"
        wanted = {
            "CPU": (f"{runners} and {learners}", self._cpus(config)),
            "GPU": (
                f"distributed.learner_gpus={config.learner_gpus:g}{each}",
                config.learner_gpus * self._num_learners,
            ),
        }
        for name, (what, number) in wanted.items():
            there = sum(node.get(name, 0) for node in nodes)
            if number > there:
                verb = "need" if name == "CPU" else "needs"
                raise ValueError(f"{what} {verb} {number:g} {name}s, and the Ray cluster has {there:g}")

    def _cpus(self, config: DistributedConfig) -> int:
        """CPUs that Ray reserves: one for every runner and learner."""
        return config.num_env_runners + self._num_learners

    def free_cpus(self) -> float:
        """CPUs of the cluster that are not reserved."""
        return float(self._ray.available_resources().get("CPU", 0))

    def close(self) -> None:
        """Disconnect from Ray, and stop it if it was started for this run. May be called twice."""
        if self._is_ours and self._ray.is_initialized():
            self._ray.shutdown()


def fetch(reference: Any, timeout: float | None = None) -> Any:
    """The result of an actor's method. The method's own exceptions are raised without Ray's wrapper.

    Raises:
        ActorDied: the actor's process has died.
        GetTimeoutError: no result came in time.
    """
    import ray
    from ray.exceptions import (
        ActorUnschedulableError,
        NodeDiedError,
        OutOfMemoryError,
        RayActorError,
        RayTaskError,
        RuntimeEnvSetupError,
        WorkerCrashedError,
    )

    gone = RayActorError, OutOfMemoryError, NodeDiedError, WorkerCrashedError
    try:
        return ray.get(reference, timeout=timeout)
    except (*gone, ActorUnschedulableError, RuntimeEnvSetupError) as error:
        raise ActorDied(_cause_of_death(error)) from None
    except RayTaskError as error:
        cause = error.cause
        if not isinstance(cause, Exception):
            raise
        if not isinstance(cause, ValueError | PartLost | WorkerDied):  # a bug: show the traceback
            cause.add_note(f"raised elsewhere:\n{error}")
        raise cause from None


def _cause_of_death(error: Exception) -> str:
    text = " ".join(str(error).split())
    detail = re.search(r"Worker exit detail: (.*?)\.?( Some common causes|$)", text)
    return f"its process was killed or has crashed: {detail[1]}" if detail else text.rstrip(".")


def _python_path() -> str:
    """`sys.path` of this process, for Ray's workers."""
    return os.pathsep.join(os.path.abspath(entry) for entry in sys.path)


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set environment variables while the context lasts."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _refusal(error: Exception) -> str:
    """The reason why Ray refused the connection."""
    reason = str(error).strip().split("\n")[0]
    if "token" in str(error).lower():
        return (
            f"the Ray cluster asks for another token, or for none ({reason}); see RAY_AUTH_MODE and RAY_AUTH_TOKEN in "
            "docs/distributed.md"
        )
    how = "start one with `ray start --head`, or let distributed.address=local start Ray here"
    return f"no Ray cluster answers ({reason}); {how}"


def _check_listens(setting: str, address: str) -> None:
    """Check that a process listens at the address; Ray itself would retry for half a minute.

    Raises:
        ValueError: nothing listens at the address.
    """
    parts = urlsplit(address if "://" in address else f"ray://{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise ValueError(f"{setting} must be local, auto or ray://<host>:<port>, got {address!r}")
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except OSError as error:
        raise ValueError(
            f"{setting}={address}: no Ray cluster answers ({error}); its port for clients (ray://) is 10001 unless "
            "`ray start` was told another"
        ) from error


@contextmanager
def _signals_as_they_are() -> Iterator[None]:
    """Restore the signal handlers afterwards: Ray replaces the one for SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        with suppress(ValueError, TypeError):
            signal.signal(signal.SIGTERM, before)
