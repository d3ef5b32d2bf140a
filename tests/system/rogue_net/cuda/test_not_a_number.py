"""A frame that holds NaN changes no bit of any other frame's in Triton's kernels either."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rogue_net import ObsBatch
from rogue_net.attention import ragged_attention
from rogue_net.config import RelposConfig
from rogue_net.relative.relative_positions import RelativePositions
from tests.rogue_net.backends import ACTIONS, SPACE, Scene
from tests.rogue_net.test_not_a_number import COUNTS, FRAMES, RELPOS, with_nan
from tests.system.rogue_net.cuda.devices import EACH_DEVICE


@EACH_DEVICE
@pytest.mark.parametrize("relpos", [None, RELPOS["polar"], RELPOS["distance"]], ids=["plain", "polar", "distance"])
def test_triton_keeps_nan_in_its_frame(device: str, relpos: RelposConfig | None) -> None:
    pytest.importorskip("triton")
    batch = Scene(COUNTS, seed=1, hide=True).batch
    frames = batch.frames.of_token
    qkv = torch.randn(3, batch.num_tokens, 2, 8, generator=torch.Generator().manual_seed(0))
    gate = torch.rand(batch.num_tokens, 8, generator=torch.Generator().manual_seed(1))

    def attend(shown: ObsBatch, broken: int | None) -> Tensor:
        """(E, H, K); the token `broken` is NaN in the places that LayerNorm and a linear layer make NaN."""
        own, own_gate = qkv.clone(), gate.clone()
        if broken is not None:
            own[:, broken] = own_gate[broken] = torch.nan
        there, relative = shown.to(torch.device(device)), None
        if relpos is not None:
            torch.manual_seed(0)
            relative = RelativePositions(relpos, SPACE, ACTIONS, 16, 2).to(device)(there)
            relative = relative._replace(gate=own_gate.to(device) if relpos.value_gate != "none" else None)
        q, k, v = own.to(device)
        with torch.no_grad():
            return ragged_attention(torch.stack([q, k, v], 1), there.frames, relative, kernels="triton").cpu()

    expected = attend(batch, None)
    assert expected.isfinite().all()
    for frame in FRAMES:
        first = int(batch.frames.offsets[frame])
        given = attend(with_nan(batch, frame), first)
        assert torch.equal(given[frames != frame], expected[frames != frame])
        assert given[first].isnan().all()
