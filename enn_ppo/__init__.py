"""Training of policies for environments with a variable number of entities.

Names are imported on first use: a program that only plays (`load_agent`, `load_policy`) never imports the trainer.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

# OpenMP threads that spin while they wait slow other work on their cores down by up to 20 times; threads that sleep at once wake
# up too late for small operations (two threads were half as fast as one). So they spin for some microseconds, then sleep. OpenMP
# reads these variables when torch is first imported; values that the user has set stay.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

# oneDNN, which computes some of torch's operations, compiles code for each shape of a tensor and keeps that of the last 1,024
# shapes. Those of ragged batches seldom repeat, and memory grew by a mebibyte with each evaluation. oneDNN reads this variable
# when it is first used.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")

__version__ = "0.1.0"

if TYPE_CHECKING:
    from enn_ppo.clone.clone import CloneResult, clone
    from enn_ppo.clone.config import CloneConfig, CloningConfig
    from enn_ppo.eval.evaluate import EvalResult, evaluate
    from enn_ppo.serve.agent import load_agent, load_policy
    from enn_ppo.settings.config import (
        EnvConfig,
        EvalConfig,
        LoggerConfig,
        OptimConfig,
        PPOConfig,
        RolloutConfig,
        SelfPlayConfig,
        TrainConfig,
        TrainEvalConfig,
    )
    from enn_ppo.settings.presets import preset
    from enn_ppo.train import TrainResult, train
    from enn_ppo.training.callbacks import Callback, Update
    from enn_ppo.training.errors import Interrupted
    from rogue_net.config import RelposConfig, RogueNetConfig, TranslationConfig

__all__ = [
    "Callback",
    "CloneConfig",
    "CloneResult",
    "CloningConfig",
    "EnvConfig",
    "EvalConfig",
    "EvalResult",
    "Interrupted",
    "LoggerConfig",
    "OptimConfig",
    "PPOConfig",
    "RelposConfig",
    "RogueNetConfig",
    "RolloutConfig",
    "SelfPlayConfig",
    "TrainConfig",
    "TrainEvalConfig",
    "TrainResult",
    "TranslationConfig",
    "Update",
    "clone",
    "evaluate",
    "load_agent",
    "load_policy",
    "preset",
    "train",
]

#: Name -> its module; names that are not listed are in `enn_ppo.settings.config`.
_HOMES = {
    "Callback": "enn_ppo.training.callbacks",
    "CloneConfig": "enn_ppo.clone.config",
    "CloneResult": "enn_ppo.clone.clone",
    "CloningConfig": "enn_ppo.clone.config",
    "EvalResult": "enn_ppo.eval.evaluate",
    "Interrupted": "enn_ppo.training.errors",
    "RelposConfig": "rogue_net.config",
    "RogueNetConfig": "rogue_net.config",
    "TrainResult": "enn_ppo.train",
    "TranslationConfig": "rogue_net.config",
    "Update": "enn_ppo.training.callbacks",
    "clone": "enn_ppo.clone.clone",
    "evaluate": "enn_ppo.eval.evaluate",
    "load_agent": "enn_ppo.serve.agent",
    "load_policy": "enn_ppo.serve.agent",
    "preset": "enn_ppo.settings.presets",
    "train": "enn_ppo.train",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES.get(name, "enn_ppo.settings.config")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        # Otherwise the first import of the module `enn_ppo.train` would replace the function of the same name.
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
