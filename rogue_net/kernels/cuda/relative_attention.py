"""The attention of a ragged batch with relative positions by Triton kernels, as one autograd function.

What depends on positions alone, rows of tables and coefficients for every pair, is made once per batch by torch, for all
layers and heads, and takes 4 bytes per term and pair, 8 for terms of buckets. The K numbers that a pair takes from the tables
are in registers only.

Programs that run at once add to the gradients of the tables, so that the order of these sums, and with it their last bits,
change from run to run. Under `torch.use_deterministic_algorithms(True)` this is refused; see `refusal`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rogue_net.batch.frames import Bounds, Frames
from rogue_net.kernels.cuda import launching
from rogue_net.kernels.cuda.heads import Heads, constants_of, flags_of
from rogue_net.kernels.cuda.launching import RELATIVE
from rogue_net.relative.relative_positions import PairTerms, Relative

# Programs add to copies of a table's gradient: so many at most, of so many numbers together.
MOST_COPIES = 16
NUMBERS_OF_COPIES = 2**18


class _Setting(NamedTuple):
    """Arguments of the kernels that have no gradients."""

    bounds: Bounds
    visible: Tensor | None
    pairs: PairTerms
    constants: dict[str, Any]  # what they are compiled for


def refusal() -> str | None:
    """Why the kernels with relative positions may not be used now; None if they may."""
    if torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled():
        return "the Triton kernels add up the gradients of relative positions in any order, and deterministic ones are asked for"
    return None


def with_pairs(relative: Relative, frames: Frames, num_tokens: int) -> Relative:
    """`relative` with what all layers share; made here once per batch, else by every layer.

    Args:
        relative: of the batch.
        frames: of the batch.
        num_tokens: E, those behind the last frame included.
    """
    return relative._replace(pairs=relative.positions.pairs(relative.geometry, frames, num_tokens))


def triton_relative_attention(qkv: Tensor, frames: Frames, relative: Relative, product: str) -> Tensor:
    """`rogue_net.kernels.cuda.attention.triton_attention` with relative positions.

    Args:
        qkv: see there.
        frames: see there.
        relative: with what `with_pairs` adds, or it is made anew.
        product: how the kernels multiply.

    Raises:
        ValueError: see `refusal`.
    """
    if torch.is_grad_enabled() and (reason := refusal()) is not None:
        raise ValueError(f"net.backend=triton cannot be: {reason}; allowed: reference")
    bounds = frames.bounds(len(qkv))
    if relative.pairs is None:
        relative = with_pairs(relative, frames, len(qkv))
    assert relative.pairs is not None
    visible = flags_of(frames.visible, bounds)
    setting = _Setting(bounds, visible, relative.pairs, _constants(qkv[:, 0], visible, product, relative))
    attended: Tensor = _RelativeAttention.apply(  # type: ignore[no-untyped-call]
        qkv, relative.keys.rows, relative.values.rows, relative.gate, setting
    )
    return attended


def _constants(q: Tensor, visible: Tensor | None, product: str, relative: Relative) -> dict[str, Any]:
    positions = relative.positions
    return constants_of(q, visible, product) | {
        "GATED": relative.gate is not None,
        "KEY_BLOCK": relative.keys.block,
        "VALUE_BLOCK": relative.values.block,
        "BUCKETS": positions.num_bucket_terms,
        "KEY_PROJECTED": relative.keys.terms - positions.num_bucket_terms,
        "VALUE_PROJECTED": relative.values.terms - positions.num_bucket_terms,
        "NUM_BUCKETS": positions.num_buckets,
    }


def _inputs(setting: _Setting, gate: Tensor | None) -> tuple[Tensor, ...]:
    """The kernels' arguments from the gate to the coefficients; what they do not read is something else."""
    bounds, visible, pairs, _ = setting
    unread = bounds.first
    return unread if gate is None else gate, *bounds, unread if visible is None else visible, *pairs


def _copies(table: Tensor) -> int:
    return max(1, min(MOST_COPIES, NUMBERS_OF_COPIES // max(1, table.numel())))


class _RelativeAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        keys: Tensor,
        values: Tensor,
        gate: Tensor | None,
        setting: _Setting,
    ) -> Tensor:
        """(E, 3, H, K) to (E, H, K)."""
        from rogue_net.kernels.cuda.relative_kernels import attend

        heads = Heads(*qkv.unbind(1))
        num_tokens, num_heads, width = heads.q.shape
        keys, values = keys.float().contiguous(), values.float().contiguous()
        gate = None if gate is None else gate.contiguous()
        out = torch.empty(num_tokens, num_heads, width, dtype=qkv.dtype, device=qkv.device)
        norms = torch.empty(num_heads, num_tokens, dtype=torch.float32, device=qkv.device)
        ctx.setting = setting
        ctx.save_for_backward(qkv, keys, values, gate, out, norms)
        if num_tokens > 0:
            arguments = (*heads, keys, values, *_inputs(setting, gate), out, norms, *_numbers(heads, setting))
            tiles = RELATIVE[setting.constants["COLUMNS"]]
            launching.launch(attend, tiles, num_tokens, num_heads, arguments, **setting.constants)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        from rogue_net.kernels.cuda.relative_backward_kernels import attend_backward

        qkv, keys, values, gate, out, norms = ctx.saved_tensors
        heads, setting = Heads(*qkv.unbind(1)), ctx.setting
        num_tokens, num_heads, width = heads.q.shape
        copies = min(_copies(keys), _copies(values))
        dqkv = torch.empty(num_tokens, 3, num_heads, width, dtype=qkv.dtype, device=qkv.device)
        dkeys, dvalues = (keys.new_zeros(copies, *table.shape) for table in (keys, values))
        dgate = None if gate is None else keys.new_empty(num_tokens, num_heads, width)
        if num_tokens > 0:
            gradients = (dqkv, dkeys, dvalues, dqkv if dgate is None else dgate)
            arguments = (
                *heads, keys, values, *_inputs(setting, gate), out, norms, dout.contiguous(), *gradients,
                *_numbers(heads, setting), keys.numel(), values.numel(),
            )  # fmt: skip
            tiles, constants = RELATIVE[setting.constants["COLUMNS"]], setting.constants | {"COPIES": copies}
            launching.launch(attend_backward, tiles, num_tokens, num_heads, arguments, **constants)
        opened = None if gate is None or dgate is None else dgate.sum(1).to(gate.dtype)
        return dqkv, dkeys.sum(0), dvalues.sum(0), opened, None


def _numbers(heads: Heads, setting: _Setting) -> tuple[Any, ...]:
    """E, P, H and what else the kernels want to know of the tensors."""
    num_tokens, *others = heads.numbers
    return num_tokens, setting.pairs.coefficients.shape[1], *others
