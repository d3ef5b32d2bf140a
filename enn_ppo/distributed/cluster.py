"""Ray: started or joined, asked, and left in order."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from enn_ppo.config import DistributedConfig
from enn_ppo.distributed.errors import PartLost

CONNECT_SECONDS = 5.0  # for the first answer of a cluster elsewhere
CLOSE_SECONDS = 2.0  # for an actor, in order
START_SECONDS = 120.0  # for an actor: it waits for a CPU, and imports torch

# Ray asks for a token by default, and sends reports of its use; what the user has set stays.
_DEFAULTS = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}


def require_ray() -> Any:
    """The package.

    Raises:
        ValueError: it is not installed.
    """
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise ValueError(f'distributed=ray needs Ray: pip install "enn-ppo[ray]" ({error})') from error
    return ray


class Cluster:
    """Starts or joins Ray as `config.address` says. Where this process has Ray already, it is that, and stays.

    Args:
        config: what is asked of it.
        num_learners: how many there are to be.

    Attributes:
        notes: lines for the user.

    Raises:
        ValueError: there is no such cluster, or it is too small.
    """

    def __init__(self, config: DistributedConfig, num_learners: int = 1) -> None:
        self._num_learners = num_learners
        self._ray = require_ray()
        self.notes: list[str] = []
        self._is_ours = not self._ray.is_initialized()
        if self._is_ours:
            with _signals_as_they_are():
                self._connect(config)
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
        if config.address == "auto":  # its workers were not started by us, and find what we import by our path
            quiet["runtime_env"] = {"env_vars": {"PYTHONPATH": _python_path()}}
        else:
            _knock(config.address)
        try:
            self._ray.init(address=config.address, **quiet)
        except Exception as error:  # of many types, for many reasons
            reason = str(error).strip().split("\n")[0]
            how = "start one with `ray start --head`, or let distributed.address=local start Ray here"
            raise ValueError(
                f"distributed.address={config.address}: no Ray cluster answers ({reason}); {how}"
            ) from error

    def _start(self, config: DistributedConfig, quiet: dict[str, Any]) -> None:
        """Ray on this machine, for this run alone. CPUs are only counted, so that more actors than CPUs take turns."""
        needed, there = math.ceil(self._cpus(config)), os.cpu_count() or 1
        if needed > there:
            self.notes.append(f"runners and learner ask for {needed} CPUs and share the {there} of this machine")
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = _python_path()  # Ray's processes inherit it
        try:
            self._ray.init(address="local", num_cpus=max(needed, there), include_dashboard=False, **quiet)
        finally:
            if before is None:
                del os.environ["PYTHONPATH"]
            else:
                os.environ["PYTHONPATH"] = before

    def _check_size(self, config: DistributedConfig) -> None:
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        runners = f"{config.num_env_runners} runners of distributed.runner_cpus={config.runner_cpus:g}"
        learners = "a learner" if self._num_learners == 1 else f"{self._num_learners} learners"
        each = "" if self._num_learners == 1 else f" for each of {learners}"
        wanted = {
            "CPU": (
                f"{runners} and {learners} of distributed.learner_cpus={config.learner_cpus:g}",
                self._cpus(config),
            ),
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
        largest = max((node.get("CPU", 0) for node in nodes), default=0)
        if max(config.runner_cpus, config.learner_cpus) > largest:
            raise ValueError(
                f"distributed.runner_cpus={config.runner_cpus:g} and distributed.learner_cpus={config.learner_cpus:g} must "
                f"fit into one machine, and the largest of the Ray cluster has {largest:g} CPUs"
            )

    def _cpus(self, config: DistributedConfig) -> float:
        return config.num_env_runners * config.runner_cpus + self._num_learners * config.learner_cpus

    def free_cpus(self) -> float:
        """CPUs that nobody has."""
        return float(self._ray.available_resources().get("CPU", 0))

    def close(self) -> None:
        """Leave Ray; what was started for this run ends. May be called twice."""
        if self._is_ours and self._ray.is_initialized():
            self._ray.shutdown()


def fetch(reference: Any, timeout: float | None = None) -> Any:
    """What an actor has returned. What it has raised is raised here as it is, and not within an error of Ray's."""
    import ray
    from ray.exceptions import RayTaskError

    try:
        return ray.get(reference, timeout=timeout)
    except RayTaskError as error:
        cause = error.cause
        if not isinstance(cause, Exception):
            raise
        if not isinstance(cause, ValueError | PartLost):  # a bug, of which the traceback tells more
            cause.add_note(f"raised elsewhere:\n{error.traceback_str}")
        raise cause from None


def _python_path() -> str:
    """Where this process imports from."""
    return os.pathsep.join(os.path.abspath(entry) for entry in sys.path)


def _knock(address: str) -> None:
    """Ray itself would try for half a minute.

    Raises:
        ValueError: nobody listens there.
    """
    parts = urlsplit(address)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise ValueError(f"distributed.address must be local, auto or ray://<host>:<port>, got {address!r}")
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except OSError as error:
        raise ValueError(
            f"distributed.address={address}: no Ray cluster answers ({error}); its port for clients is 10001 unless "
            "`ray start` was told another"
        ) from error


@contextmanager
def _signals_as_they_are() -> Iterator[None]:
    """Ray puts a handler of its own in the place of SIGTERM's; what that means is for the run to say."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        with suppress(ValueError, TypeError):
            signal.signal(signal.SIGTERM, before)
