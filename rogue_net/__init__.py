"""The ragged-batch transformer policy for entity environments."""

from rogue_net.adaptor import ObsAdaptor
from rogue_net.config import RelposConfig, RogueNetConfig, TranslationConfig
from rogue_net.noise import FrameKeys, keyed
from rogue_net.obs_batch import ObsBatch
from rogue_net.ragged import RaggedTensor
from rogue_net.rogue_net import ActResult, Evaluation, RogueNet

__all__ = [
    "ActResult",
    "Evaluation",
    "FrameKeys",
    "ObsAdaptor",
    "ObsBatch",
    "RaggedTensor",
    "RelposConfig",
    "RogueNet",
    "RogueNetConfig",
    "TranslationConfig",
    "keyed",
]
