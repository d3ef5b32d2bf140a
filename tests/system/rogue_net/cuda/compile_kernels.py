"""Compile every kernel for a GPU that need not be there: `python -m tests.system.rogue_net.cuda.compile_kernels`.

Prints a line per kernel: its name, how it multiplies, and the bytes of shared memory that it takes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from rogue_net.attention import ragged_attention
from rogue_net.config import RelposConfig
from rogue_net.kernels.cuda import attention, launching
from rogue_net.kernels.cuda.launching import Precision, Tiles
from tests.system.rogue_net.cuda.test_triton_relative_attention import ALL, KINDS, make_case

H100 = GPUTarget("cuda", 90, 32)
TYPES = {
    torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.int32: "*i32", torch.int64: "*i64", torch.uint8: "*u8",
}  # fmt: skip


class Launch(NamedTuple):
    kernel: Any
    tiles: Tiles
    arguments: tuple[Any, ...]
    constants: dict[str, Any]


def launches(
    dtype: torch.dtype, precision: Precision, num_heads: int, width: int, relpos: dict[str, Any]
) -> list[Launch]:
    """What a forward and a backward pass launch, on tensors whose numbers nobody computes."""
    found: list[Launch] = []

    def record(kernel: Any, tiles: Tiles, num_tokens: int, num_heads: int, arguments: Any, **constants: Any) -> None:
        found.append(Launch(kernel, tiles, arguments, constants))

    launching.launch, attention.check_launchable = record, lambda tensor: None  # type: ignore[assignment]
    case = make_case(RelposConfig(**(relpos or ALL)), [(3, 4)], num_heads, width)
    relative = case.module(case.batch)
    relative = relative._replace(gate=case.module.gate(torch.zeros(7, num_heads * width))) if relpos else None
    qkv = torch.zeros(7, 3, num_heads, width, dtype=dtype, requires_grad=True)
    frames = case.batch.frames
    ragged_attention(qkv, frames, relative, kernels="triton", precision=precision).sum().backward()
    return found


def compiled(launch: Launch) -> Any:
    kernel, tiles, arguments, constants = launch
    constants = constants | {"QUERIES": tiles.queries, "KEYS": tiles.keys}
    if constants["PRECISION"] == "rounded":  # what the interpreter is given for it
        constants["PRECISION"] = "bf16"
    names = [name for name in kernel.arg_names if name not in constants]
    signature = {name: "constexpr" for name in kernel.arg_names}
    for name, argument in zip(names, arguments, strict=True):
        if isinstance(argument, int) and argument == 1:  # Triton compiles for it
            constants[name] = 1
        else:
            signature[name] = TYPES[argument.dtype] if isinstance(argument, Tensor) else type_of(argument)
    options = {"num_warps": tiles.warps, "num_stages": tiles.stages}
    return triton.compile(ASTSource(kernel, signature, constants), target=H100, options=options)


def type_of(number: float) -> str:
    return "i32" if isinstance(number, int) else "fp32"


def main() -> None:
    cases: list[tuple[torch.dtype, Precision, int, int, dict[str, Any]]] = [
        (torch.float32, "fp32", 1, 12, {}),
        (torch.bfloat16, "fp32", 2, 64, {}),
        (torch.float32, "tf32", 2, 16, ALL),
        (torch.bfloat16, "bf16", 1, 16, KINDS["grid"]),
    ]
    for case in cases:
        for launch in launches(*case):
            name, precision = launch.kernel.__name__, launch.constants["PRECISION"]
            print(f"{launch.kernel.fn.__module__}.{name}", precision, compiled(launch).metadata.shared, flush=True)


if __name__ == "__main__":
    main()
