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

if TYPE_CHECKING:  # each as itself, which makes it public for type checkers
    from enn_ppo.clone import CloneResult as CloneResult
    from enn_ppo.clone import clone as clone
    from enn_ppo.eval.evaluate import EvalResult as EvalResult
    from enn_ppo.eval.evaluate import evaluate as evaluate
    from enn_ppo.serve.agent import load_agent as load_agent
    from enn_ppo.serve.agent import load_policy as load_policy
    from enn_ppo.settings.cloning import CloneConfig as CloneConfig
    from enn_ppo.settings.cloning import CloningConfig as CloningConfig
    from enn_ppo.settings.config import EnvConfig as EnvConfig
    from enn_ppo.settings.config import EvalConfig as EvalConfig
    from enn_ppo.settings.config import LoggerConfig as LoggerConfig
    from enn_ppo.settings.config import OptimConfig as OptimConfig
    from enn_ppo.settings.config import PPOConfig as PPOConfig
    from enn_ppo.settings.config import RolloutConfig as RolloutConfig
    from enn_ppo.settings.config import SelfPlayConfig as SelfPlayConfig
    from enn_ppo.settings.config import TrainConfig as TrainConfig
    from enn_ppo.settings.config import TrainEvalConfig as TrainEvalConfig
    from enn_ppo.settings.presets import preset as preset
    from enn_ppo.train import TrainResult as TrainResult
    from enn_ppo.train import train as train
    from enn_ppo.training.callbacks import Callback as Callback
    from enn_ppo.training.callbacks import Update as Update
    from enn_ppo.training.errors import Interrupted as Interrupted
    from rogue_net.config import RelposConfig as RelposConfig
    from rogue_net.config import RogueNetConfig as RogueNetConfig
    from rogue_net.config import TranslationConfig as TranslationConfig

#: Module -> its public names.
_NAMES = {
    "enn_ppo.clone": "CloneResult clone",
    "enn_ppo.settings.cloning": "CloneConfig CloningConfig",
    "enn_ppo.eval.evaluate": "EvalResult evaluate",
    "enn_ppo.serve.agent": "load_agent load_policy",
    "enn_ppo.settings.config": (
        "EnvConfig EvalConfig LoggerConfig OptimConfig PPOConfig RolloutConfig SelfPlayConfig TrainConfig TrainEvalConfig"
    ),
    "enn_ppo.settings.presets": "preset",
    "enn_ppo.train": "TrainResult train",
    "enn_ppo.training.callbacks": "Callback Update",
    "enn_ppo.training.errors": "Interrupted",
    "rogue_net.config": "RelposConfig RogueNetConfig TranslationConfig",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        # Otherwise the first import of the module `enn_ppo.train` would replace the function of the same name.
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
