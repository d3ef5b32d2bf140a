"""Settings of every test: quiet threads, reproducible examples, GPU tests only where there is a GPU."""

import os
from pathlib import Path

# Compiled code is kept between sessions, but not in the user's home. Its key covers all that it is made from.
os.environ.setdefault("ENTITY_GYM_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "compiled"))
# Reports of the kernels' checks in the user's home do not decide what tests compute with.
os.environ.setdefault("ROGUE_NET_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "rogue_net"))
# Checkpoints are signed with a key of the tests, not with the user's.
os.environ["XDG_CONFIG_HOME"] = str(Path(__file__).parents[1] / ".pytest_cache" / "config")
# Before torch starts its thread pool: spinning threads make small operations many times slower on shared cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)

# Without a GPU, kernels in Triton run in its interpreter, which has to be asked for before triton is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# The first example of a test pays for imports and caches, so a deadline would only find slow machines.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs CUDA")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)
