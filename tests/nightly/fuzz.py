"""Fuzzing: everything that reads what others have written is given damaged input, and must refuse it or read it as it was.

python -m tests.nightly.fuzz --minutes 10                   # all kinds in turns
python -m tests.nightly.fuzz checkpoints --cases 20000      # one kind, a number of cases
python -m tests.nightly.fuzz wire --seed 3 --case 1417      # one case again, with its traceback

An outcome is one of

    refused     with this project's own error, which for files names the file
    equal       read, with the values of the undamaged input
    valid       read: the damaged message or command is another valid one
    wrong       read with other values, and without a word
    uncaught    another error, or a warning of a library

Exit code 1 if anything was wrong or uncaught; such inputs are kept in the folder `--keep`. Case n of a kind depends on
the seed and n alone. corpus has inputs that once were wrong or uncaught, and test_fuzz.py reads them again.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import faulthandler
import io
import json
import math
import os
import random
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

import enn_ppo
import entity_gym
import rogue_net
from enn_ppo import EnvConfig, OptimConfig, PPOConfig, RogueNetConfig, RolloutConfig, TrainConfig
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.checkpoints.policy import CPU
from enn_ppo.checkpoints.policy_file import read_policy_file
from enn_ppo.serve.policy import ServedPolicies
from enn_ppo.settings.command_line.cli import run_train
from enn_ppo.settings.serving import ServeConfig
from enn_ppo.training.environment import bind_environment
from enn_ppo.training.recording import read_all
from enn_ppo.training.start import make_state
from enn_ppo.training.state import TrainState
from entity_gym.actions.choices import random_actions
from entity_gym.batch.saving import spaces_to_dict
from entity_gym.bridges.remote import ProgramWorlds
from entity_gym.bridges.remote.messages import MessageReader, encode
from entity_gym.pools.pool import ListEnv
from rogue_net.numpy import Policy
from tests.enn_ppo.forged import sealed, with_header
from tests.enn_ppo.recordings import Menagerie, record
from tests.enn_ppo.rows import difference
from tests.enn_ppo.served import ACTION_SPACE, OBS_SPACE, garden, train_garden

PACKAGES = tuple(str(Path(package.__path__[0])) for package in (enn_ppo, entity_gym, rogue_net))
FAILURES = ("wrong", "uncaught")
#: Values that readers of messages and settings often do not expect.
TEXTS: tuple[Any, ...] = ("", "a", "\ud800", "\0", "__global__", "NaN", "1", "é" * 300, "bee 0", "Bee", "turn")
LARGE = (2**31, 2**63, 2**64, 10**30, 1e39, 1e308, math.nan, math.inf, 10**400)
NUMBERS: tuple[Any, ...] = (0, 1, -1, 0.5, -0.0, 1e-40, *LARGE)
SURPRISES: tuple[Any, ...] = (None, True, False, [], [[]], [None], {}, {"a": 1}, {"type": "Bee"}, *TEXTS, *NUMBERS)


class Wrong(Exception):  # noqa: N818 - an outcome
    """Input was read with other values, and without a word."""


# ---- Damage


def damaged_bytes(data: bytes, rng: random.Random) -> bytes:
    """Bytes with one to three damages: bits that flipped, ranges that were lost, repeated, zeroed, swapped or written over."""
    result = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        size = len(result)
        start = rng.randrange(size) if size else 0
        length = min(rng.choice((1, 1, 2, 4, 8, 64, 512, 4096)), size - start)
        part = result[start : start + length]
        match rng.randrange(9):
            case 0 | 1 | 2 if size:
                result[start] ^= 1 << rng.randrange(8)
            case 3 if size:
                result[start] = rng.randrange(256)
            case 4:
                result[start : start + length] = rng.randbytes(length)
            case 5:
                result[start : start + length] = bytes(length)
            case 6:
                del result[start : start + length]
            case 7:
                other = rng.randrange(size + 1)
                result[other:other] = part
            case 8:
                del result[start:]
    return bytes(result)


def damaged_value(value: Any, rng: random.Random) -> Any:
    """A JSON value with one to three damages: parts that were lost, renamed, exchanged, or replaced by surprises."""
    holder = [copy.deepcopy(value)]
    for _ in range(rng.choice((1, 1, 2, 3))):
        places: list[tuple[Any, Any]] = []
        _collect(holder, places)
        inside, key = rng.choice(places)
        match rng.randrange(7):
            case 6 if isinstance(inside[key], str):
                text, other_text = inside[key], rng.choice(TEXTS)
                for each, its_key in places:
                    if each[its_key] == text:
                        each[its_key] = other_text
            case 0 | 1 | 6:
                inside[key] = copy.deepcopy(rng.choice(SURPRISES))
            case 2:
                alike = TEXTS if isinstance(inside[key], str) else NUMBERS
                inside[key] = rng.choice(alike)
            case 3 if isinstance(inside, dict):
                inside[rng.choice(("", "a", "type", "name", "\ud800"))] = inside.pop(key)
            case 3 | 4 if inside is not holder:
                del inside[key]
            case 5:
                other, other_key = rng.choice(places)
                with contextlib.suppress(KeyError, IndexError):  # an earlier damage has removed it
                    inside[key] = copy.deepcopy(other[other_key])
    return holder[0]


def _collect(value: Any, places: list[tuple[Any, Any]]) -> None:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        places.append((value, key))
        _collect(item, places)


# ---- What is damaged


def a_run(folder: Path) -> tuple[TrainState, Path]:
    """A run after one update, and its checkpoint."""
    net = RogueNetConfig(d_model=4, n_layer=1, n_head=1, d_qk=2, backend="reference")
    config = TrainConfig(
        env=EnvConfig(id="tests.enn_ppo.recordings:Menagerie"),
        net=net,
        value_net=net,
        rollout=RolloutConfig(num_envs=2, steps=4),
        optim=OptimConfig(batch_size=4),
        ppo=PPOConfig(normalize="returns"),
        run_dir=str(folder),
        device="cpu",
    )
    state = make_state(config, bind_environment(config.env), CPU)
    state.start()
    settings = state.begin_update()
    state.advance(state.learn(state.sampler.collect(0, 4, {}), settings), 1.0)
    return state, state.save(folder)[""]


SPACES = spaces_to_dict(OBS_SPACE, ACTION_SPACE)
#: Observations as a program sends them.
SHOWN = [
    garden(bees, visible={"Bee": [True] * bees}, reward=float(bees), done=False, metrics={"height": 1.5})
    for bees in (2, 1, 3, 2, 0, 1)
]


# ---- Kinds of input


class Kind(ABC):
    """A kind of input.

    Args:
        folder: for files.

    Attributes:
        file: the name that a refusal must hold; None: input that has none.
    """

    file: str | None = None

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def damaged(self, rng: random.Random) -> bytes:
        """A damaged input."""

    @abstractmethod
    def read(self, data: bytes) -> str:
        """Read it as the program does. Returns "equal" or "valid".

        Raises:
            Wrong: it was read with other values.
            Exception: it was refused.
        """


class Checkpoints(Kind):
    """Damaged checkpoints."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        _, self.path = a_run(folder)
        self.file = str(self.path)
        self.content = self.path.read_bytes()
        self.undamaged = vars(load_checkpoint(self.path))

    def damaged(self, rng: random.Random) -> bytes:
        if rng.random() < 0.05:  # a file of another kind
            return rng.choice([b"", b"{}", b"[]"])
        return damaged_bytes(self.content, rng)

    def read(self, data: bytes) -> str:
        self.path.write_bytes(data)
        return _equal(vars(load_checkpoint(self.path)), self.undamaged)


class Forged(Kind):
    """Checkpoints with wrong values whose checksums are right, from which a run is resumed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.state, self.path = a_run(folder)
        self.file = str(self.path)
        self.content = self.path.read_bytes()

    def damaged(self, rng: random.Random) -> bytes:
        self.path.write_bytes(self.content)
        name = rng.choice(("policy", "config", "spaces"))
        checkpoint = read_policy_file(self.path)
        if name == "policy":
            weights = dict(checkpoint.policy)
            which = rng.choice(sorted(weights))  # a file names them in any order
            dtype = rng.choice((torch.int32, torch.float64, torch.bool, torch.float16))
            sealed(self.path, policy={**weights, which: weights[which].to(dtype)})
        else:
            value = damaged_value(getattr(checkpoint, name), rng)
            with_header(self.path, **{name: json.dumps(value)})
        return self.path.read_bytes()

    def read(self, data: bytes) -> str:
        self.path.write_bytes(data)
        self.state.restore({"": load_checkpoint(self.path)})
        return "valid"


class Runtime(Checkpoints):
    """Damaged checkpoints, read by the NumPy runtime."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.undamaged = Policy.load(self.path).net.tensors

    def read(self, data: bytes) -> str:
        self.path.write_bytes(data)
        return _equal(Policy.load(self.path).net.tensors, self.undamaged)


class ForgedRuntime(Forged):
    """Checkpoints with wrong values whose checksums are right, read by the NumPy runtime, which plays a frame."""

    def read(self, data: bytes) -> str:
        self.path.write_bytes(data)
        Policy.load(self.path)
        return "valid"


class Recordings(Kind):
    """Recordings of three chunks, the second of which is damaged; half of them with a checksum that fits."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.path = folder / "menagerie"
        self.file = str(self.path)
        record(self.path, Menagerie, rollouts=3)
        self.chunk = sorted(self.path.iterdir())[1]
        self.content = self.chunk.read_bytes()
        self.undamaged = vars(read_all(self.path))

    def damaged(self, rng: random.Random) -> bytes:
        return damaged_bytes(self.content, rng)

    def read(self, data: bytes) -> str:
        self.chunk.unlink()
        self.chunk = self.path / f"000001_{zlib.crc32(data) if len(data) % 2 else 0:08x}.safetensors"
        self.chunk.write_bytes(data)
        frames = read_all(self.path)
        if data == self.content:
            return _equal(vars(frames), self.undamaged)
        frames.returns(0.9)  # a stranger may make a checksum, too
        return "valid"


class Wire(Kind):
    """Messages that a program with worlds sends to the trainer."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        offer = {"type": "worlds", "protocol": 1, "name": "Garden", "spaces": SPACES}
        offer |= {"parameters": ["size"], "can_save": True}
        observations = [{"type": "observation", "env": i % 2, **obs} for i, obs in enumerate(SHOWN)]
        self.messages = [offer, *observations]
        self.read(b"".join(map(encode, self.messages)))

    def damaged(self, rng: random.Random) -> bytes:
        if rng.random() < 0.3:
            return damaged_bytes(b"".join(map(encode, self.messages)), rng)
        messages = list(self.messages)
        place = rng.choice((0, *range(len(messages))))
        messages[place] = damaged_value(messages[place], rng)
        return b"".join(map(framed, messages))

    def read(self, data: bytes) -> str:
        said, deaf = self.folder / "said", open(os.devnull, "wb", buffering=0)
        said.write_bytes(data)
        program = mock.Mock(
            stdin=deaf, stdout=said.open("rb", buffering=0), **{"wait.return_value": 0, "poll.return_value": 0}
        )
        with mock.patch("entity_gym.bridges.remote.program._start", lambda settings: program):
            pool = ListEnv(ProgramWorlds(command=["garden"]), 2)
            with contextlib.closing(pool):
                obs = pool.reset(0)
                for _ in range(2):
                    obs = pool.act(random_actions(obs, np.random.default_rng(0), pool.action_space()))
        return "valid"


class Server(Kind):
    """Requests to the policy server: a greeting with spaces, and observations. Only what reads them; no socket is opened."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.policies = ServedPolicies(train_garden(folder), CPU, ServeConfig(checkpoint="garden"))
        self.kept = self.policies.policy(SPACES)  # the policies that nobody uses are forgotten
        self.hello = {"type": "hello", "protocol": 1, "spaces": SPACES}
        self.requests = [
            {"type": "act", "id": 7, "observation": garden(3), "value": True},
            {"type": "act", "observation": SHOWN[0]},
        ]
        self.read(encode(self.hello) + b"".join(map(encode, self.requests)))

    def damaged(self, rng: random.Random) -> bytes:
        messages = [self.hello, *self.requests]
        if rng.random() < 0.3:
            return damaged_bytes(b"".join(map(encode, messages)), rng)
        place = rng.choice((0, 1, 1, 2, 2))
        messages[place] = damaged_value(messages[place], rng)
        return b"".join(map(framed, messages))

    def read(self, data: bytes) -> str:
        reader = MessageReader(2**20)
        reader.feed(data)
        policy = self.kept
        while (message := reader.next()) is not None:
            if message["type"] == "hello":
                policy = self.policies.policy(message.get("spaces"))
                continue
            request = self.policies.read(policy, message)
            (answer,) = self.policies.decide([request])
            encode(answer)
            _check_as_written(message["observation"], request.obs)
        return "valid"


def _check_as_written(told: Mapping[str, Any], obs: Any) -> None:
    """Check that the features of an observation are those of its message."""
    for name, rows in told.get("features", {}).items():
        written, found = np.asarray(rows, np.float64).astype(np.float32), obs.features[name].values
        if written.size and not np.array_equal(written, found):
            raise Wrong(f"features of {name!r} are {found.tolist()}, and {rows} was told")


class CommandLine(Kind):
    """Arguments of `python -m enn_ppo.train`, and a settings file of `--config-dir`; nothing is trained."""

    ARGUMENTS = (
        "env=MineSweeper",
        "env=custom",
        "env.id=tests.enn_ppo.served:Garden",
        "env.kwargs.width=4",
        "env.info={mines: [1, 2], size: {low: 0.5, high: 1}}",
        "rollout.num_envs=16",
        "rollout.steps=64",
        "optim.lr=0.01@0 -> 0.001@1",
        "optim.batch_size=64",
        "net.d_model=16",
        "net.relpos.kind=buckets",
        "net.relpos.extent=[5, 5]",
        "net.relpos.position_features=[x, y]",
        "value_net=default",
        "ppo.gamma=0.99",
        "ppo.normalize=returns",
        "eval.interval=1000",
        "policies={red: [0], blue: [1]}",
        "run_dir=out/a",
        "seed=3",
        "total_timesteps=1e6",
        "experiment=mine",
        "distributed=ray",
        "+env.kwargs.more=null",
        "~value_net",
    )
    FILE = """# @package _global_
defaults:
  - override /env: MineSweeper
rollout: {num_envs: 64, steps: 16}
optim:
  lr: "0.01@0 -> 0.001@1"
  batch_size: 128
ppo: {gamma: 0.99, ent_coef: 0.01}
env:
  kwargs: {width: 4, height: 4}
"""
    PIECES = (
        *"null [ ] { } : , = -> @ ' \" ${ } ??? 1e999 nan \0 \ud800 .. é - + ~ &a *a 0x1F true".split(" "),
        *("99999999999999999999", "!!python/name:os.system", "<<: *a", "\n", "\t"),
    )

    def damaged(self, rng: random.Random) -> bytes:
        arguments = rng.sample(self.ARGUMENTS, rng.choice((1, 2, 3)))
        content = self.FILE
        if rng.random() < 0.7:
            place = rng.randrange(len(arguments))
            arguments[place] = self._damaged(arguments[place], rng)
        else:
            arguments.append("experiment=mine")
            content = self._damaged(content, rng)
        return json.dumps([arguments, content]).encode()

    def _damaged(self, text: str, rng: random.Random) -> str:
        for _ in range(rng.choice((1, 1, 2, 3))):
            start = rng.randrange(len(text) + 1)
            end = start + rng.choice((0, 0, 1, 1, 2, 8))
            middle = rng.choice((*self.PIECES, *("",) * 8, text[rng.randrange(len(text) + 1) :][:8]))
            text = text[:start] + middle + text[end:]
        return text

    def read(self, data: bytes) -> str:
        arguments, content = json.loads(data)
        (self.folder / "experiment").mkdir(exist_ok=True)
        (self.folder / "experiment" / "mine.yaml").write_bytes(content.encode(errors="surrogatepass"))
        errors, printed = io.StringIO(), io.StringIO()
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(printed):
            code = run_train(lambda config: None, [f"--config-dir={self.folder}", *arguments])
        lines = errors.getvalue().strip().splitlines()
        if code not in (0, 2) or any(not line.startswith(("error: ", "warning: ", "resuming ")) for line in lines):
            raise RuntimeError(f"exit code {code}: {errors.getvalue()}")
        if code == 2:
            raise ValueError(lines[-1])
        return "valid"


def framed(message: Any) -> bytes:
    """A message as `encode` frames it, of any JSON value, with NaN and halves of characters."""
    body = json.dumps(message).encode()
    return len(body).to_bytes(4, "big") + body


KINDS: dict[str, type[Kind]] = {
    "checkpoints": Checkpoints,
    "recordings": Recordings,
    "forged": Forged,
    "runtime": Runtime,
    "forged_runtime": ForgedRuntime,
    "wire": Wire,
    "server": Server,
    "command_line": CommandLine,
}


# ---- Judging


def judge(kind: Kind, data: bytes) -> tuple[str, str]:
    """Read an input. Returns its outcome, and for a failure the reason."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            outcome = kind.read(data)
        except Wrong as wrong:
            return "wrong", str(wrong)
        except Exception as error:
            try:
                _check_ours(error)
            except Exception:
                return "uncaught", traceback.format_exc()
            if kind.file is not None and kind.file not in str(error):
                return "uncaught", f"the message does not name {kind.file}: {error}"
            outcome = "refused"
    for warning in caught:
        if not warning.filename.startswith(PACKAGES):
            return "uncaught", f"a library warns: {warning.message} ({warning.filename}:{warning.lineno})"
    return outcome, ""


def _check_ours(error: Exception, *kinds: type[Exception]) -> None:
    """Raise the error again unless a line of this project says `raise` with a ValueError, or with one of other `kinds`."""
    deepest = traceback.extract_tb(error.__traceback__)[-1]
    ours = deepest.filename.startswith((*PACKAGES, __file__)) and (deepest.line or "").startswith("raise")
    if not ours or not isinstance(error, (ValueError, *kinds)):
        raise error


def _equal(values: Any, undamaged: Any) -> str:
    """Returns "equal". Raises Wrong with the first place where values differ."""
    if (place := difference(values, undamaged)) is not None:
        raise Wrong(f"other values: {place}")
    return "equal"


def case_of(kind: Kind, name: str, seed: int, number: int) -> bytes:
    """The damaged input `number`."""
    return kind.damaged(random.Random(f"{seed}/{name}/{number}"))


class Tally:
    """Outcomes of a kind, and its failures: (number of the case, input, reason)."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.failures: list[tuple[int, bytes, str]] = []
        self.slowest = 0.0


def fuzz(kinds: Mapping[str, Kind], seed: int, going_on: Callable[[int], bool], first: int = 0) -> dict[str, Tally]:
    """Give every kind one case after the other, in turns, while `going_on(number of rounds)`."""
    tallies = {name: Tally() for name in kinds}
    number = first
    while going_on(number - first):
        for name, kind in kinds.items():
            data = case_of(kind, name, seed, number)
            started = time.perf_counter()
            outcome, reason = judge(kind, data)
            tally = tallies[name]
            tally.slowest = max(tally.slowest, time.perf_counter() - started)
            tally.outcomes[outcome] += 1
            if outcome in FAILURES:
                tally.failures.append((number, data, reason))
        number += 1
    return tallies


def table(tallies: Mapping[str, Tally]) -> str:
    """The outcomes as text, a line for each kind."""
    names = ("refused", "equal", "valid", *FAILURES)
    lines = ["kind".ljust(14) + "".join(name.rjust(10) for name in ("cases", *names, "slowest"))]
    for kind, tally in tallies.items():
        counts = [tally.outcomes.total(), *(tally.outcomes[name] for name in names)]
        lines.append(kind.ljust(14) + "".join(f"{count:10,}" for count in counts) + f"{tally.slowest:8.2f} s")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    given = _arguments().parse_args(argv)
    faulthandler.enable()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        kinds = {}
        for name in given.kinds or KINDS:
            own = Path(folder) / name
            own.mkdir()
            kinds[name] = KINDS[name](own)
        if given.case is not None:
            for name, kind in kinds.items():
                data = case_of(kind, name, given.seed, given.case)
                print(name, *judge(kind, data), repr(data[:2000]), sep="\n")
            return 0
        deadline = time.monotonic() + given.minutes * 60
        tallies = fuzz(
            kinds, given.seed, lambda rounds: rounds < given.cases if given.cases else time.monotonic() < deadline
        )
    print(table(tallies))
    for name, tally in tallies.items():
        reasons: dict[str, list[int]] = {}
        for number, data, reason in tally.failures:
            reasons.setdefault(reason.strip().splitlines()[-1], []).append(number)
            given.keep.mkdir(parents=True, exist_ok=True)
            (given.keep / f"{name}_{given.seed}_{number}").write_bytes(data)
        for reason, numbers in sorted(reasons.items(), key=lambda each: -len(each[1]))[:20]:
            print(f"{name}: {len(numbers)} times, first in case {numbers[0]}: {reason[:300]}")
    return int(any(tally.failures for tally in tallies.values()))


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kinds", nargs="*", metavar="kind", help=f"of {', '.join(KINDS)}; all without any")
    parser.add_argument("--minutes", type=float, default=10, help="time for all kinds (10)")
    parser.add_argument("--cases", type=int, help="number of cases of each kind, in place of a time")
    parser.add_argument("--seed", type=int, default=0, help="of the damage (0)")
    parser.add_argument("--case", type=int, help="show this case alone")
    parser.add_argument("--keep", type=Path, default=Path("fuzz_failures"), help="folder for failures (fuzz_failures)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
