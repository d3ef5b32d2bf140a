"""The ragged-batch transformer policy for entity environments."""

from rogue_net.config import RogueNetConfig
from rogue_net.obs_batch import ObsBatch
from rogue_net.ragged import RaggedTensor
from rogue_net.rogue_net import ActResult, Evaluation, RogueNet

__all__ = ["ActResult", "Evaluation", "ObsBatch", "RaggedTensor", "RogueNet", "RogueNetConfig"]
