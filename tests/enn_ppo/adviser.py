"""A network as the adviser of somebody who plays by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from enn_ppo.eval.policy import Policy
from enn_ppo.play import advice
from entity_gym.batch.vec_obs import VecObs
from entity_gym.play.game import Advice
from rogue_net import FittedNet, RogueNet


def adviser(net: RogueNet, seed: int = 0, **how: Any) -> Callable[[VecObs], Advice]:
    """Return a function that advises by a network in its own spaces; `how` are attributes of `Policy`."""
    return partial(advice, Policy(FittedNet(net), torch.Generator().manual_seed(seed), **how))
