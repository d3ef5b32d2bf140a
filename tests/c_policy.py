"""Policies of policy files as clients/c/policy.h plays them, in a program that the system's compiler makes."""

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
import torch
from numpy.typing import NDArray

from entity_gym import ActionSpace, Observation, SelectEntitiesActionSpace
from entity_gym.actions.choices import world_actions
from entity_gym.batch.batching import batch_frames
from entity_gym.batch.frame import EntityNumbers, Frame, FrameReader
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.bridges.remote.messages import actions_to_json
from entity_gym.spaces import GLOBAL_ENTITY
from rogue_net import ObsBatch
from tests.runtime_policies import Drawn

HEADERS = Path(__file__).parents[1] / "clients" / "c"
SOURCES = Path(__file__).parent / "clients"
COMPILER = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
NO_COMPILER = "needs a C compiler"
#: Of sanitizers, with which any error ends the program.
SANITIZERS = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


class PolicyError(Exception):
    """The program has refused a file or a frame."""


@cache
def compiled(*options: str, source: str = "policy_program.c") -> Path:
    """A program, compiled from a file of `SOURCES` without a warning; by default optimized as most programs are."""
    assert COMPILER is not None
    program = Path(tempfile.mkdtemp(prefix="policy_")) / "program"
    warnings = ("-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Wno-sign-conversion", "-Werror")
    command = [COMPILER, "-std=c11", *warnings, *(options or ("-O2",)), f"-I{HEADERS}", str(SOURCES / source), "-lm"]
    done = subprocess.run([*command, "-o", str(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return program


@dataclass(frozen=True)
class Acted:
    """Answers of the program to a frame.

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
    """A program that has read a policy file, and acts in one game.

    Args:
        file: the policy file.
        action_space: of the policy.
        program: see `compiled`.
        repeats: how often it acts in each frame.

    Attributes:
        memory: the most bytes that were allocated while reading, besides the file.

    Raises:
        PolicyError: the file was refused.
    """

    def __init__(
        self, file: Path, action_space: Mapping[str, ActionSpace], program: Path | None = None, repeats: int = 1
    ) -> None:
        self.action_space = action_space
        command = [str(program or compiled()), str(file), str(repeats)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._to: IO[bytes] = self._process.stdin
        self._from: IO[bytes] = self._process.stdout
        error = self._array(np.uint8)
        (self.memory,) = struct.unpack("<Q", self._read(8))
        if error is not None:
            self.__exit__(None, None, None)
            raise PolicyError(error.tobytes().decode(errors="replace"))

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._to.close()
        self._from.close()
        code = self._process.wait(timeout=60)
        assert code == 0 or error is not None, code

    def act(self, message: bytes) -> Acted:
        """Act in a frame of `frame_message`.

        Raises:
            PolicyError: the frame was refused.
        """
        self._to.write(message)
        self._to.flush()
        error = self._array(np.uint8)
        seconds, allocations, seed = struct.unpack("<dQQ", self._read(24))
        if error is not None:
            raise PolicyError(error.tobytes().decode())
        choices, log_probs, logits = {}, {}, {}
        for name, space in self.action_space.items():
            values, numbers, of_actors, of_choices = map(self._array, (np.int32, np.float32, np.float32, np.float32))
            found = numbers if values is None else values.astype(np.int64)
            assert found is not None and of_actors is not None and of_choices is not None
            choices[name], log_probs[name], logits[name] = found.reshape(-1, space.width), of_actors, of_choices
        (value,) = struct.unpack("<f", self._read(4))
        return Acted(value, choices, log_probs, logits, seconds, allocations, seed)

    def _read(self, size: int) -> bytes:
        data = self._from.read(size)
        assert len(data) == size, f"the program ended with {self._process.wait(timeout=60)}"
        return data

    def _array(self, dtype: type[np.generic]) -> NDArray[Any] | None:
        (size,) = struct.unpack("<q", self._read(8))
        return None if size < 0 else np.frombuffer(self._read(size), dtype)


class Frames:
    """Makes frames of a game's observations for the program, and JSON of its answers."""

    def __init__(self, drawn: Drawn) -> None:
        self.net = drawn.net
        self._reader, self._numbers = FrameReader(drawn.net.obs_space, drawn.net.action_space), EntityNumbers()

    def read(self, observation: Observation) -> tuple[Frame, ObsBatch]:
        """A frame, and the batch of it alone."""
        frame = self._reader.read(observation, 0, numbers=self._numbers)
        one = np.zeros(1, np.int64)
        return frame, ObsBatch.from_vec_obs(batch_frames([frame], [observation], one, one, self._reader))

    def message(self, observation: Observation, seed: int | None = None, *, begins: bool = False) -> bytes:
        """See `frame_message`."""
        return frame_message(
            self.read(observation)[1], self.net.obs_space.entities, self.net.action_space, seed, begins
        )

    def to_json(self, observation: Observation, acted: Acted) -> dict[str, Any]:
        """An answer in the form of docs/protocol.md, for `assert_like_modules`."""
        frame, _ = self.read(observation)
        spaces = self.net.action_space
        buffers = {name: RaggedBuffer(each, np.array([0, len(each)])) for name, each in acted.choices.items()}
        probabilities: dict[str, Any] = {}
        for name, offer in frame.actions.items():
            space, rows = spaces[name], np.exp(acted.logits[name])
            if isinstance(space, SelectEntitiesActionSpace) and not space.ordered:
                rows = rows.reshape(-1, 2)
            if space.discrete:
                by_actor = [each[0].tolist() for each in space.by_actor(rows, offer, acted.choices[name])]
                probabilities[name] = by_actor[0] if space.is_global else by_actor
        return {
            "actions": actions_to_json(world_actions(buffers, 0, [frame], spaces)[0]),
            "logProbs": {name: acted.log_probs[name].tolist() for name in frame.actions},
            "value": acted.value,
            "probabilities": probabilities,
        }


def play(drawn: Drawn, file: Path, seed: int | None = None, program: Path | None = None) -> list[dict[str, Any]]:
    """Answers of a program to the observations of an episode, in JSON.

    Args:
        drawn: policy and observations.
        file: to write the policy into.
        seed: of the random numbers; None: the likeliest actions.
        program: see `compiled`.
    """
    file.write_bytes(drawn.bytes())
    frames, answers = Frames(drawn), []
    with Program(file, drawn.net.action_space, program) as running:
        for observation in drawn.observations:
            acted = running.act(frames.message(observation, seed))
            answers.append(frames.to_json(observation, acted))
            seed = None if seed is None else acted.seed
    return answers


def frame_message(
    batch: ObsBatch,
    types: Sequence[str] | Mapping[str, Any],
    actions: Sequence[str] | Mapping[str, Any],
    seed: int | None,
    begins: bool = False,
) -> bytes:
    """A frame for the program: whole numbers of 64 bits, and arrays after their size in bytes, -1 for NULL.

    Args:
        batch: of one frame.
        types: entity types in order.
        actions: actions in order.
        seed: of the random numbers; None: the likeliest actions.
        begins: whether an episode begins.
    """
    parts: list[bytes] = []

    def whole(*numbers: int) -> None:
        parts.append(struct.pack(f"<{len(numbers)}q", *numbers))

    def array(values: torch.Tensor | Sequence[int] | None, dtype: type[np.generic]) -> None:
        data = None if values is None else np.ascontiguousarray(values, dtype).tobytes()
        whole(-1 if data is None else len(data))
        parts.append(data or b"")

    def column(columns: Mapping[str, Any], name: str) -> torch.Tensor | None:
        return columns[name].values if name in columns else None

    whole(begins, seed is not None)
    parts.append(struct.pack("<Q", seed or 0))
    whole(len(types), len(actions))
    for name in types:
        whole(len(batch.features[name].values))
        array(batch.features[name].values, np.float32)
        array(column(batch.visible, name), np.uint8)
        array(column(batch.ids, name), np.int64)
    array(column(batch.features, GLOBAL_ENTITY), np.float32)
    for name in actions:
        offer = batch.action_masks[name]
        for listed in (offer.actors, offer.actees):
            indices = [] if listed is None else listed.values[:, 0].tolist()
            whole(len(indices))
            array(indices, np.int32)
        after = offer.mask_after
        array(None if offer.mask is None else offer.mask.values, np.uint8)
        array(None if after is None or not len(after.values) else after.values, np.uint8)
    return b"".join(parts)
