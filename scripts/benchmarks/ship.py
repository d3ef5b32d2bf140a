"""How long a trained policy takes to act outside training, in each program that plays it.

python scripts/bench.py ship                              # MineSweeper, widths 32 and 64, 1 and 32 frames
python scripts/bench.py ship --world Skirmish --widths 64

One core. All act greedily in the same observations of an episode by the same policy, from the world's observation to its
actions; C and ONNX take arrays, so they begin and end there. Each number is the fastest of the rounds, in each of which every
program acts in its turn: other work on the machine only ever adds. `modules` is `enn_ppo.load_policy`, which also returns
probabilities, and `compiled` its `decide(logits=False)`, which takes the kernels. Frames are given together to these two, and one
after another to the others.
Programs that are missing (Node, a C compiler, onnxruntime) are left out, and named.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # of `tests`, which have the programs for Node and C

from policy_cases import HEADS  # noqa: E402

from benchmarks import Measurement, parser, report  # noqa: E402
from enn_ppo import load_policy  # noqa: E402
from rogue_net.numpy import Policy  # noqa: E402
from tests import c_policy  # noqa: E402
from tests.node import CLIENT, NODE  # noqa: E402
from tests.runtime_policies import Drawn, make_net, observation_to_json, policy_of_world  # noqa: E402

NODE_LOOP = f"""
import {{ readFileSync }} from "node:fs";
import {{ createInterface }} from "node:readline";
import {{ Policy }} from "{(CLIENT / "policy.mjs").as_uri()}";
const [file, frames] = process.argv.slice(-2);
const [policy, observations] = [Policy.load(readFileSync(file)), JSON.parse(readFileSync(frames))];
for await (const line of createInterface({{ input: process.stdin }})) {{
  const [count, calls, from] = [...JSON.parse(line), performance.now()];
  for (let call = 0; call < calls; call++)
    for (let k = 0; k < count; k++) policy.act(observations[(call * count + k) % observations.length], {{ greedy: true }});
  console.log((performance.now() - from) / calls / 1000);
}}
"""


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--world", default="MineSweeper")
    arguments.add_argument("--widths", nargs="*", type=int, default=[32, 64])
    arguments.add_argument("--frames", nargs="*", type=int, default=[1, 32])
    arguments.add_argument("--rounds", type=int, default=30)
    given = arguments.parse_args()
    measurements = []
    for width in given.widths:
        with tempfile.TemporaryDirectory() as folder:
            programs, missing = all_programs(Path(folder), given.world, width)
            for count in given.frames:
                settings = {"world": given.world, "width": width, "frames": count, "load": os.getloadavg()[0]}
                for name, seconds in fastest(programs, count, given.rounds).items():
                    measurements.append(Measurement(name, seconds * 1000, "ms", settings))
    report(measurements, given.json)
    for name in missing:
        print(f"not measured: {name}")


#: Acts in so many frames at once, so many times, and returns the seconds of once.
Program = Callable[[int, int], float]


def fastest(programs: dict[str, Program], count: int, rounds: int) -> dict[str, float]:
    calls = {name: max(1, int(0.02 / program(count, 3))) for name, program in programs.items()}
    best = dict.fromkeys(programs, float("inf"))
    for _ in range(rounds):
        for name, program in programs.items():
            best[name] = min(best[name], program(count, calls[name]))
    return best


def all_programs(folder: Path, world: str, width: int) -> tuple[dict[str, Program], list[str]]:
    """Programs that play one policy, and what others need."""
    drawn = policy_of_world(world, steps=64)
    config = replace(drawn.net.config, d_model=width, n_head=HEADS[width])
    drawn = drawn._replace(net=make_net(config, drawn.net.obs_space, drawn.net.action_space, seed=0))
    programs: dict[str, Program] = {}
    file = folder / "policy.safetensors"
    file.write_bytes(drawn.bytes())
    modules = load_policy(file, greedy=True)
    programs["modules"] = called(modules.act_all, drawn.observations)
    drawn.net.config = replace(drawn.net.config, backend="auto")
    file.write_bytes(drawn.bytes())
    kernels = load_policy(file, greedy=True)
    programs["compiled"] = called(
        lambda frames: kernels.decide([kernels.read(each, k)[0] for k, each in enumerate(frames)], logits=False),
        drawn.observations,
    )
    numpy = Policy.load(file)
    programs["NumPy"] = called(lambda frames: numpy.act(frames, greedy=True), drawn.observations)
    missing = []
    try:
        programs["ONNX"] = onnx_program(file, drawn.observations)
    except ImportError as error:
        missing.append(f"ONNX: {error}")
    if NODE is None:
        missing.append("JavaScript: needs Node")
    else:
        programs["JavaScript"] = node_program(folder, file, drawn)
    if c_policy.COMPILER is None:
        missing.append("C: needs a C compiler")
    else:
        programs["C"] = c_program(file, drawn)
    return programs, missing


def called(act: Callable[[Any], object], observations: Sequence[Any]) -> Program:
    def run(count: int, calls: int) -> float:
        given = [observations[k % len(observations)] for k in range(calls * count)]
        batches = [given[k * count : (k + 1) * count] for k in range(calls)]
        start = time.perf_counter()
        for batch in batches:
            act(batch)
        return (time.perf_counter() - start) / calls

    return run


def onnx_program(file: Path, observations: Sequence[Any]) -> Program:
    """A model in onnxruntime, from arrays to arrays."""
    from rogue_net.onnx import policy_model
    from rogue_net.onnx.playing import Player

    player = Player(policy_model(file))
    outputs = [each.name for each in player.session.get_outputs()]

    def act(frames: Sequence[Any]) -> None:
        for frame in frames:
            player.session.run(outputs, frame)

    return called(act, [player.feeds(each) for each in observations])


def node_program(folder: Path, file: Path, drawn: Drawn) -> Program:
    frames = folder / "frames.json"
    frames.write_text(json.dumps([observation_to_json(each) for each in drawn.observations]))
    command = ["node", "--input-type=module", "--eval", NODE_LOOP, "--", str(file), str(frames)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    to, answers = process.stdin, process.stdout

    def run(count: int, calls: int) -> float:
        to.write(f"[{count}, {calls}]\n")
        to.flush()
        return float(answers.readline())

    return run


def c_program(file: Path, drawn: Drawn) -> Program:
    """Acts in each frame as often as it is called; the frames' mean is what a frame takes."""
    frames = c_policy.Frames(drawn)
    messages = [frames.message(each) for each in drawn.observations]
    program = c_policy.compiled("-O3", "-march=native")
    running = c_policy.Program(file, drawn.net.action_space, program, repeats=10)

    def run(count: int, calls: int) -> float:
        return count * sum(running.act(each).seconds for each in messages) / len(messages)

    return run


if __name__ == "__main__":
    raise SystemExit(main())
