"""The ragged-batch transformer policy for entity environments."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rogue_net.batch.obs_batch import ObsBatch
    from rogue_net.batch.ragged import RaggedTensor, State
    from rogue_net.config import RelposConfig, RogueNetConfig, TranslationConfig
    from rogue_net.heads.noise import FrameKeys, keyed
    from rogue_net.rogue_net import ActResult, Evaluation, RogueNet
    from rogue_net.transfer import FittedNet, fit

#: The modules of these names, imported when they are used first: settings and help need not wait for torch.
_LATER = {
    "ActResult": "rogue_net",
    "Evaluation": "rogue_net",
    "FittedNet": "transfer",
    "FrameKeys": "heads.noise",
    "ObsBatch": "batch.obs_batch",
    "RaggedTensor": "batch.ragged",
    "RelposConfig": "config",
    "RogueNet": "rogue_net",
    "RogueNetConfig": "config",
    "State": "batch.ragged",
    "TranslationConfig": "config",
    "fit": "transfer",
    "keyed": "heads.noise",
}

__all__ = [
    "ActResult",
    "Evaluation",
    "FittedNet",
    "FrameKeys",
    "ObsBatch",
    "RaggedTensor",
    "RelposConfig",
    "RogueNet",
    "RogueNetConfig",
    "State",
    "TranslationConfig",
    "fit",
    "keyed",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
