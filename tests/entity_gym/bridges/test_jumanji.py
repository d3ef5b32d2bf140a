"""Jumanji's environments share what JAX compiles. A package of the same form stands in for Jumanji."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gymnasium")

from entity_gym.actions.choices import random_actions  # noqa: E402
from entity_gym.bridges import from_gymnasium, jumanji  # noqa: E402

WRAPPERS = """
from gymnasium import spaces
import numpy as np

compiled = []

class JumanjiToGymWrapper:
    observation_space, action_space = spaces.Box(-99, 99, (2,), np.float32), spaces.Discrete(2)

    def __init__(self, env):
        compiled.append(env)
        self._env, self._key = env, 0

    unwrapped = property(lambda self: self._env)

    def reset(self, *, seed=None, options=None):
        self._key = self._key if seed is None else seed
        self.steps = 0
        return np.array([self._key, 0]), {}

    def step(self, action):
        self.steps += 1
        return np.array([self._key, self.steps]), 1.0, self.steps == 3, self.steps == 3, {}
"""


def test_environments_of_one_kind_are_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jumanji").mkdir()
    (tmp_path / "jumanji/__init__.py").write_text("def make(id, **kwargs): return id, kwargs\n")
    (tmp_path / "jumanji/wrappers.py").write_text(WRAPPERS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(jumanji, "_compiled", {})
    for name in ("jumanji", "jumanji.wrappers"):  # and Jumanji itself, if it was imported before, comes back afterwards
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]
    pool = from_gymnasium("entity_gym.bridges.jumanji:JumanjiEnv", 4, seed=5, id="TSP-v1", num_cities=3)
    obs, rng = pool.reset(), np.random.default_rng(0)
    assert obs.features["Agent"].values.tolist() == [[5, 0], [6, 0], [7, 0], [8, 0]]
    for _ in range(3):
        obs = pool.act(random_actions(obs, rng, pool.action_space()))
    assert obs.done.all() and not obs.truncated.any(), "it ended by its own rules"
    compiled = sys.modules["jumanji.wrappers"].compiled
    assert compiled == [("TSP-v1", {"num_cities": 3})]
    from_gymnasium("entity_gym.bridges.jumanji:JumanjiEnv", 2, id="TSP-v1", num_cities=4)
    assert len(compiled) == 2
