"""Training agents for worlds with a variable number of things."""

import os
import warnings

# OpenMP threads that spin while they wait slow everything else on their cores down, by up to 20 times; ones that sleep at
# once are woken too late for small operations (two threads were half as fast as one). So: spin for some microseconds,
# then sleep. OpenMP reads these when torch is first imported; set them yourself to choose otherwise.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

# `python -m enn_ppo.train` runs a module that this package imports too; runpy warns of that, and it does no harm here
warnings.filterwarnings("ignore", message="'enn_ppo.(train|eval|clone)' found in sys.modules", category=RuntimeWarning)

from enn_ppo.callbacks import Callback, Update  # noqa: E402
from enn_ppo.clone import CloneResult, clone  # noqa: E402
from enn_ppo.cloning.config import CloneConfig, CloningConfig  # noqa: E402
from enn_ppo.config import (  # noqa: E402
    EnvConfig,
    EvalConfig,
    Interrupted,
    LoggerConfig,
    OptimConfig,
    PPOConfig,
    RolloutConfig,
    SelfPlayConfig,
    TrainConfig,
    TrainEvalConfig,
    ValueOptimConfig,
)
from enn_ppo.eval import EvalResult, evaluate  # noqa: E402
from enn_ppo.train import TrainResult, train  # noqa: E402
from rogue_net.config import RelposConfig, RogueNetConfig, TranslationConfig  # noqa: E402

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
    "ValueOptimConfig",
    "clone",
    "evaluate",
    "train",
]
