"""Runs policy_program.c, which acts by clients/c/policy.h: whole numbers of 64 bits and arrays with their size over pipes."""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from entity_gym import ActionSpace, ObsSpace
from entity_gym.spaces import GLOBAL_ENTITY
from rogue_net import ObsBatch

HEADER = Path(__file__).parents[2] / "clients" / "c"
PROGRAMS = Path(__file__).parent
COMPILER = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
#: Of sanitizers: any error ends the program.
SANITIZERS = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")


class PolicyError(Exception):
    """What the program says is wrong with a file or a frame."""


@cache
def compiled(*options: str, source: str = "policy_program.c") -> Path:
    """A program of this folder, compiled with the system's compiler and these options besides."""
    assert COMPILER is not None
    program = Path(tempfile.mkdtemp(prefix="policy_")) / "program"
    warnings = ("-std=c11", "-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Wno-sign-conversion", "-Werror")
    command = [COMPILER, *warnings, *(options or ("-O2",)), f"-I{HEADER}", str(PROGRAMS / source), "-lm", "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return program


@dataclass(frozen=True)
class Acted:
    """What the program answers.

    Attributes:
        choices: action -> (A, 1) or (A, n), or (pairs, 1) of sets, as batches have them.
        log_probs: action -> (A,).
        logits: action -> (numbers,).
        seconds: that acting took, on average of the repeats.
        allocations: since the program started.
        seed: with which the random numbers go on.
    """

    value: float
    choices: dict[str, NDArray[Any]]
    log_probs: dict[str, NDArray[np.float32]]
    logits: dict[str, NDArray[np.float32]]
    seconds: float
    allocations: int
    seed: int


class Program:
    """A program that has read a policy file.

    Args:
        file: the policy file.
        obs_space: of the frames.
        action_space: of the frames.
        program: see `compiled`.
        repeats: how often it acts in each frame.

    Attributes:
        memory: the most bytes that were allocated while reading, besides the file.

    Raises:
        PolicyError: the file was refused.
    """

    def __init__(
        self, file: Path, obs_space: ObsSpace, action_space: Mapping[str, ActionSpace], program: Path | None = None, repeats: int = 1
    ) -> None:
        self.obs_space, self.action_space = obs_space, action_space
        command = [str(program or compiled()), str(file), str(repeats)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._to: IO[bytes] = self._process.stdin
        self._from: IO[bytes] = self._process.stdout
        error = self._array(np.uint8)
        self.memory, _ = struct.unpack("<QQ", self._read(16))
        if error is not None:
            self.__exit__(None, None, None)
            raise PolicyError(error.tobytes().decode())

    def __enter__(self) -> Program:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self._to.close()
        self._from.close()
        code = self._process.wait(timeout=60)
        assert code == 0 or error is not None, code

    def act(self, batch: ObsBatch, seed: int | None = None, *, begins: bool = False) -> Acted:
        """Act in a batch of one frame.

        Args:
            batch: the frame.
            seed: of the random numbers; None: the likeliest actions.
            begins: whether an episode begins.

        Raises:
            PolicyError: the frame was refused.
        """
        assert len(batch) == 1
        self.send(message(batch, self.obs_space, self.action_space, seed, begins=begins))
        return self.receive()

    def send(self, data: bytes) -> None:
        self._to.write(data)
        self._to.flush()

    def receive(self) -> Acted:
        """The answer to a message."""
        error = self._array(np.uint8)
        seconds, allocations, seed = struct.unpack("<dQQ", self._read(24))
        if error is not None:
            raise PolicyError(error.tobytes().decode())
        choices, log_probs, logits = {}, {}, {}
        for name, space in self.action_space.items():
            values, numbers = self._array(np.int32), self._array(np.float32)
            of_actors, of_choices = self._array(np.float32), self._array(np.float32)
            assert of_actors is not None and of_choices is not None
            found = numbers if values is None else values.astype(np.int64)
            assert found is not None
            choices[name], log_probs[name], logits[name] = found.reshape(-1, space.width), of_actors, of_choices
        (value,) = struct.unpack("<f", self._read(4))
        return Acted(value, choices, log_probs, logits, seconds, allocations, seed)

    def _read(self, size: int) -> bytes:
        data = self._from.read(size)
        assert len(data) == size, f"the program ended: {self._process.wait(timeout=60)}"
        return data

    def _array(self, dtype: type[np.generic]) -> NDArray[Any] | None:
        (size,) = struct.unpack("<q", self._read(8))
        return None if size < 0 else np.frombuffer(self._read(size), dtype)


def message(
    batch: ObsBatch, obs_space: ObsSpace, action_space: Mapping[str, ActionSpace], seed: int | None, *, begins: bool = False
) -> bytes:
    """A frame for the program."""
    parts: list[bytes] = []

    def whole(*numbers: int) -> None:
        parts.append(struct.pack(f"<{len(numbers)}q", *numbers))

    def array(values: Any, dtype: type[np.generic]) -> None:
        data = None if values is None else np.ascontiguousarray(values, dtype).tobytes()
        whole(-1 if data is None else len(data))
        parts.append(data or b"")

    def column(columns: Mapping[str, Any], name: str) -> Any:
        return columns[name].values.numpy() if name in columns else None

    whole(begins, seed is not None, seed or 0, len(obs_space.entities), len(action_space))
    for name in obs_space.entities:
        features = batch.features[name].values.numpy()
        whole(len(features))
        array(features, np.float32)
        array(column(batch.visible, name), np.uint8)
        array(column(batch.ids, name), np.int64)
    array(column(batch.features, GLOBAL_ENTITY), np.float32)
    for name in action_space:
        offer = batch.action_masks[name]
        for listed in (offer.actors, offer.actees):
            indices: Sequence[int] = [] if listed is None else listed.values[:, 0].tolist()
            whole(len(indices))
            array(indices, np.int32)
        array(None if offer.mask is None else offer.mask.values.numpy(), np.uint8)
        after = offer.mask_after
        array(None if after is None or not len(after.values) else after.values.numpy(), np.uint8)
    return b"".join(parts)
