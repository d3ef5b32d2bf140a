"""The views that come with entity_gym, against the raw observations of their worlds: every number comes back.

Each test needs the package of its world, and is skipped without: `pip install "enn-ppo[worlds]"`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

gymnasium = pytest.importorskip("gymnasium")

from entity_gym.actions.choices import random_actions  # noqa: E402
from entity_gym.batch.vec_obs import VecObs  # noqa: E402
from entity_gym.bridges import from_gymnasium, from_pettingzoo  # noqa: E402
from entity_gym.bridges.views.view import included_views  # noqa: E402
from entity_gym.pools.vec_env import VecEnv  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of these packages


class Listener:
    """An environment of any interface whose last observation is kept; of AEC environments that of each agent."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.raw: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return self._kept(self.env.reset(seed=seed, options=options))

    def step(self, action: Any) -> Any:
        return self._kept(self.env.step(action))

    def _kept(self, result: Any) -> Any:
        self.raw = {agent: self.env.observe(agent) for agent in self.env.agents} if result is None else result[0]
        return result


def frames(
    make: Callable[[], Any], view: Any, bridge: Callable[..., Any] = from_gymnasium, steps: int = 60
) -> Iterator[tuple[Any, Mapping[str, NDArray[np.float32]], VecObs]]:
    """Yield the raw observation and the entities of an environment that plays at random, and its frame."""
    made: list[Listener] = []

    def listening() -> Listener:
        made.append(Listener(make()))
        return made[-1]

    pool: VecEnv = bridge(listening, 1, seed=3, view=view, final_observations="none")
    rng = np.random.default_rng(0)
    obs, spaces = pool.reset(), pool.action_space()
    with pool:
        for _ in range(steps):
            yield made[-1].raw, {name: buffer.values for name, buffer in obs.features.items()}, obs
            obs = pool.act(random_actions(obs, rng, spaces))


@pytest.mark.parametrize(
    ("view", "world", "config"),
    [
        ("highway", "highway-fast-v0", {}),
        ("highway", "highway-fast-v0", {"vehicles_count": 3}),  # fewer than are shown
        ("intersection", "intersection-v1", {}),
    ],
    ids=["highway", "few vehicles", "intersection"],
)
def test_kinematics_of_highway_env(view: str, world: str, config: dict[str, Any]) -> None:
    pytest.importorskip("highway_env")
    absent = 0
    for raw, seen, _ in frames(
        lambda: gymnasium.make(f"highway_env:{world}", config=config, disable_env_checker=True), view
    ):
        present = raw[:, 0] == 1
        assert present[0] and np.isin(raw[:, 0], (0, 1)).all()
        rebuilt = np.zeros_like(raw)
        rebuilt[present, 0] = 1
        rebuilt[0, 1:] = seen["Ego"][0]
        rebuilt[np.flatnonzero(present)[1:], 1:] = seen["Vehicle"]
        np.testing.assert_array_equal(rebuilt, raw)
        absent += int((~present).sum())
    assert absent or not config, "rows that are no vehicles were tried"


@pytest.mark.parametrize(("players", "food"), [(2, 3), (3, 4)])
def test_level_based_foraging(players: int, food: int) -> None:
    pytest.importorskip("lbforaging")
    eaten = 0

    def make() -> Any:
        return gymnasium.make(f"Foraging-8x8-{players}p-{food}f-v3", disable_env_checker=True)

    for raw, seen, obs in frames(make, "foraging", steps=400):
        there = len(seen["Food"])
        for k in range(players):
            own = [k, *(other for other in range(players) if other != k)]  # everybody sees itself first
            shown = np.tile(np.float32([-1, -1, 0]), (food, 1))
            shown[:there] = seen["Food"]
            np.testing.assert_array_equal(np.concatenate([shown, seen["Player"][own]]).reshape(-1), raw[k])
        assert obs.action_masks["Player.action"].actors.values[:, 0].tolist() == [there + k for k in range(players)]
        eaten += there < food
    assert eaten, "there was less food at some time"


@pytest.mark.parametrize("agents", [3, 6])
def test_simple_spread(agents: int) -> None:
    simple_spread = pytest.importorskip("mpe2.simple_spread_v3")

    def make() -> Any:
        return simple_spread.parallel_env(N=agents, max_cycles=20)

    for raw, seen, _ in frames(make, "simple_spread", from_pettingzoo):
        assert [len(seen[name]) for name in ("Agent", "Landmark")] == [agents, agents]
        places = seen["Agent"][:, 2:]
        for k in range(agents):
            others = np.delete(places, k, axis=0)
            silent = np.zeros(2 * (agents - 1), np.float32)
            parts = [seen["Agent"][k], seen["Landmark"] - places[k], others - places[k], silent]
            rebuilt = np.concatenate([np.ravel(part) for part in parts])
            np.testing.assert_allclose(rebuilt, raw[f"agent_{k}"], atol=1e-6)  # sums of float32


def test_landmarks_of_simple_spread_as_each_agent_sees_them() -> None:
    simple_spread = pytest.importorskip("mpe2.simple_spread_v3")
    view = {
        "entities": {
            "Agent": {"count": 1, "features": ["vx", "vy", "x", "y"]},
            "Offset": {"count": "agents", "features": ["dx", "dy"], "per_agent": "owner"},
        },
        "actor": "Agent",
        "ignore": "rest",
    }

    def make() -> Any:
        return simple_spread.parallel_env(N=3, max_cycles=20)

    for raw, seen, _ in frames(make, view, from_pettingzoo, steps=5):
        assert seen["Agent"][:, 4].tolist() == [0, 1, 2]
        for k in range(3):
            own = seen["Offset"][seen["Offset"][:, 2] == k]
            rebuilt = np.concatenate([seen["Agent"][k, :4], own[:, :2].ravel()])
            np.testing.assert_array_equal(rebuilt, raw[f"agent_{k}"][:10])


@pytest.mark.parametrize("robots", [2, 4])
def test_robots_of_a_warehouse(robots: int) -> None:
    pytest.importorskip("rware")

    def make() -> Any:
        return gymnasium.make(f"rware:rware-tiny-{robots}ag-v2", disable_env_checker=True)

    for raw, seen, _ in frames(make, "rware"):
        cells, at = seen["Cell"], 0
        for k in range(robots):
            np.testing.assert_array_equal(seen["Robot"][k], raw[k][:8])
            around = raw[k][8:].reshape(3, 3, 7)
            y, x = np.nonzero(around[..., 0] + around[..., 5])
            own = cells[at : at + len(y)]
            np.testing.assert_array_equal(own[:, :2] - seen["Robot"][k, [1, 0]], np.stack([y, x], axis=1) - 1)
            np.testing.assert_array_equal(own[:, 2:], around[y, x])
            at += len(y)
        assert at == len(cells)


def connect_four() -> Any:
    return pytest.importorskip("pettingzoo.classic.connect_four_v3").env()


def test_connect_four() -> None:
    connect_four().close()  # skips
    pieces = 0
    for raw, seen, obs in frames(connect_four, "connect_four", from_pettingzoo):
        turn = seen["Player"][:, 0].tolist()
        assert seen["Player"][:, 1].tolist() == [0, 1]
        assert sum(turn) == 1
        mover = raw[f"player_{turn.index(1)}"]
        rebuilt = np.zeros((6, 7, 2), np.int8)
        row, column, mine, theirs = seen["Piece"].T.astype(int)
        rebuilt[row, column] = np.stack([mine, theirs], axis=1)
        np.testing.assert_array_equal(rebuilt, mover["observation"])
        other = raw[f"player_{turn.index(0)}"]
        np.testing.assert_array_equal(rebuilt[:, :, ::-1], other["observation"])
        mask = obs.action_masks["Player.action"]
        assert mask.actors.values[:, 0].tolist() == [len(seen["Piece"]) + turn.index(1)]
        open_ = np.ones(7, bool) if mask.mask is None else mask.mask.values[0]
        np.testing.assert_array_equal(open_, mover["action_mask"] == 1)
        pieces = max(pieces, len(row))
    assert pieces > 6


def tsp() -> Any:
    jumanji = pytest.importorskip("jumanji")
    from jumanji.wrappers import JumanjiToGymWrapper

    return JumanjiToGymWrapper(jumanji.make("TSP-v1"))


def test_travelling_salesman() -> None:
    tsp()  # skips
    for raw, seen, obs in frames(tsp, "tsp"):
        city = seen["City"]
        np.testing.assert_array_equal(city[:, :2], raw["coordinates"])
        here = np.flatnonzero(city[:, 2])
        assert here.tolist() == ([] if raw["position"] == -1 else [raw["position"]])
        tour = np.full(len(city), -1)
        visited = np.flatnonzero(city[:, 3] >= 0)
        tour[city[visited, 3].astype(int)] = visited
        np.testing.assert_array_equal(tour, raw["trajectory"])
        mask = obs.action_masks["action"]
        assert mask.actees is not None and mask.actees.values[:, 0].tolist() == [1 + k for k in range(len(city))]
        open_ = np.ones(len(city), bool) if mask.mask is None else mask.mask.values[:, 0]
        np.testing.assert_array_equal(open_, raw["action_mask"])


def test_the_documented_tsp_compiles_as_much_for_many_environments_as_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    jax = pytest.importorskip("jax")
    tsp()  # skips
    counts = {}
    for num_envs in (1, 5):
        jax.clear_caches()
        monkeypatch.setattr("entity_gym.bridges.jumanji._compiled", {})
        compiled: list[str] = []

        def count(event: str, seconds: float, compiled: list[str] = compiled, **_: Any) -> None:
            if "backend_compile" in event:
                compiled.append(event)

        jax.monitoring.register_event_duration_secs_listener(count)
        pool = from_gymnasium("entity_gym.bridges.jumanji:JumanjiEnv", num_envs, seed=1, view="tsp", id="TSP-v1")
        obs, rng = pool.reset(), np.random.default_rng(0)
        for _ in range(25):  # an episode has 20 steps
            obs = pool.act(random_actions(obs, rng, pool.action_space()))
        counts[num_envs] = len(compiled)
    assert counts[1] == counts[5] > 0


def test_every_view_that_comes_with_the_package_is_tested_here() -> None:
    assert included_views() == ["connect_four", "foraging", "highway", "intersection", "rware", "simple_spread", "tsp"]
