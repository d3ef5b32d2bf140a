"""The rows of `bench.py worlds`: worlds, budgets, and settings of the methods."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

METHODS = {
    "view": "this package, entities by a view",
    "flat": "this package, the observation as it is",
    "transfer": "`view` trained on the smaller world of the row before, evaluated here without further training",
    "sb3": "PPO of Stable-Baselines3 with its MLP of 2 x 64",
    "sb3-attention": "the same with attention of the ego vehicle over all vehicles, 2 heads, 64 features",
    "timed": "`view`, or `flat` without one, on two cores for at most as many wall seconds as `sb3` took with the same seed, its "
    "start included; and the steps that it took",
    "script": "a player written by hand",
    "random": "random actions",
}
LEARNED = ("view", "flat", "transfer", "sb3", "sb3-attention")  # in equally many steps
#: Module -> the command that installs it.
INSTALL = {
    "highway_env": 'pip install "enn-ppo[worlds]"',
    "lbforaging": 'pip install "enn-ppo[worlds]"',
    "rware": 'pip install "enn-ppo[worlds]"',
    "mpe2": 'pip install "enn-ppo[worlds]"',
    "pettingzoo.classic": 'pip install "enn-ppo[worlds]"',
    "jumanji": 'pip install "enn-ppo[worlds]"',
    "Box2D": "pip install box2d",
    "openskill": 'pip install "enn-ppo[self-play]"',
    "gymnasium": 'pip install "enn-ppo[gymnasium]"',
    "stable_baselines3": "pip install stable-baselines3",
    "sb3_contrib": "pip install sb3-contrib",
}


@dataclass(frozen=True)
class Row:
    """A world, with equal steps, environments, discount and evaluation for all methods.

    Attributes:
        name: of the row.
        api: preset of the world, `gymnasium` or `pettingzoo`.
        env_id: as `env.id`.
        needs: modules of the world.
        methods: columns of the row; others are not measured.
        steps: environment steps of training.
        num_envs: environments side by side.
        episodes: of an evaluation, greedy and sampled each.
        kwargs: of the environment.
        view: for `view`.
        flat_wrappers: of the environment, for `flat` and the peer.
        gamma: discount of all methods; None: each its own default.
        ours: overrides of `view` and `flat`.
        viewed: further overrides of `view`.
        peer: arguments of the peer's PPO beside its defaults.
        script: name of the script in `world_players.SCRIPTS`.
        processes: that step the environments of `timed`; 0: the process that trains, which is faster where steps are.
        small: row in which `transfer` trains.
        scores: names of the scores.
        why: reason of the settings that are no defaults.
    """

    name: str
    api: str
    env_id: str
    needs: tuple[str, ...]
    methods: tuple[str, ...]
    steps: int
    num_envs: int = 32
    episodes: int = 100
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    view: str | None = None
    flat_wrappers: tuple[str, ...] = ()
    gamma: float | None = None
    ours: tuple[str, ...] = ()
    viewed: tuple[str, ...] = ()
    peer: Mapping[str, Any] = field(default_factory=dict)
    script: str | None = None
    processes: int = 0
    small: Row | None = None
    scores: tuple[str, ...] = ("return",)
    why: str = ""

    def missing(self, method: str) -> str | None:
        """Name a module that a measurement needs and that is not installed; None if there is none."""
        peers = ("stable_baselines3",) if method.startswith("sb3") else ()
        if method == "sb3" and self.name.startswith("TSP"):
            peers = (*peers, "sb3_contrib")
        return next((module for module in (*self.needs, *peers) if not _installed(module)), None)

    def settings(self, method: str) -> dict[str, Any]:
        """All that decides about a measurement but its seed, as plain values."""
        settings: dict[str, Any] = {"episodes": self.episodes, "env": self.env_id, "kwargs": dict(self.kwargs)}
        if method == "timed":
            method = "flat" if self.view is None else "view"
            settings |= {"cores": 2, "processes": self.processes}
        elif method not in LEARNED:
            return settings
        settings |= {"steps": self.steps, "num_envs": self.num_envs, "gamma": self.gamma}
        if method == "transfer":
            assert self.small is not None
            settings["small"] = self.small.settings("view")
        elif method.startswith("sb3"):
            settings["peer"] = dict(self.peer)
        else:
            settings["ours"] = [*self.ours, *(self.viewed if method == "view" else ())]
            settings["view"] = self.view if method == "view" else None
        return settings


HIGHWAY = {"n_steps": 128, "batch_size": 64, "n_epochs": 10, "learning_rate": 5e-4}
SPEEDS = {"type": "DiscreteMetaAction", "longitudinal": True, "lateral": False, "target_speeds": [0, 4.5, 9]}
#: The preset `pettingzoo` is for longer runs: with 32 environments and so few steps it takes too few gradient steps.
SPREAD = ("rollout.steps=64", "net.n_layer=1", "optim.epochs=4", "ppo.gamma=0.98", "ppo.ent_coef=0.0")
#: What the flat observation has, too: where landmarks are as seen from an agent.
SPREAD_VIEW = (
    "net.relpos.kind=polar",
    "net.relpos.extent=[8,5]",
    "net.relpos.position_features=[x,y]",
    "net.relpos.scale=0.3",
    "net.relpos.interpolate=true",
)
ALL = ("view", "flat", "sb3", "timed", "script", "random")
PLAIN = ("flat", "sb3", "timed", "script", "random")  # without entities to view

SPREAD_3 = Row(
    "simple_spread, 3 agents",
    "pettingzoo",
    "mpe2.simple_spread_v3:parallel_env",
    ("mpe2",),
    ALL,
    steps=163_840,
    kwargs={"N": 3},
    view="simple_spread",
    ours=SPREAD,
    viewed=SPREAD_VIEW,
    script="spread",
    why="This package trains with one layer, more epochs and without entropy bonus, since its preset for PettingZoo is for "
    "longer runs. `view` encodes relative positions, which the flat observation has.",
)

TSP_20 = Row(
    "TSP, 20 cities",
    "gymnasium",
    "benchmarks.world_players:tsp",
    ("jumanji",),
    ALL,
    steps=61_440,
    num_envs=16,
    kwargs={"num_cities": 20},
    view="tsp",
    flat_wrappers=("benchmarks.world_players:FlatTsp",),
    gamma=1.0,
    script="nearest city",
    why="All parts of a tour count alike, so nothing is discounted. Masks close visited cities for all methods, so the peer is "
    "MaskablePPO of sb3-contrib; its MLP and `flat` see coordinates, and which cities are open, current and first.",
)

#: A warehouse in which half of the shelves are wanted.
RWARE_16 = Row(
    "rware-tiny-2ag, 16 requests",
    "gymnasium",
    "rware:rware-tiny-2ag-v2",
    ("rware",),
    ("view", "flat", "sb3", "timed", "script", "random"),
    steps=409_600,
    kwargs={"request_queue_size": 16},
    episodes=30,
    view="rware",
    gamma=0.99,
    ours=("optim.batch_size=256", "ppo.gae_lambda=0.9"),
    viewed=("net.relpos.kind=grid", "net.relpos.extent=[2,2]", "net.relpos.position_features=[x,y]"),
    script="stand",
    why="The peer's robots each learn from their own reward; with the sum, from which this package learns, it had 6.47 in "
    "place of 8.67 (seed 1). `view` loses mostly by cells as entities: with the 71 numbers of a robot as one entity, and "
    "`view`'s layer and learning rate, it had 9.83 and 8.23 (seeds 1, 2). With empty cells as entities and an entropy "
    "bonus that falls to 0 it had 13.37, 4.07 and 5.77: seeds differ more than settings. In three such runs its robots "
    "carried shelves that nobody wanted any more for 270 to 340 of 500 steps.",
)

ROWS: tuple[Row, ...] = (
    Row(
        "highway-fast-v0",
        "gymnasium",
        "highway_env:highway-fast-v0",
        ("highway_env",),
        ("view", "flat", "sb3", "sb3-attention", "timed", "script", "random"),
        steps=3_840,
        num_envs=6,
        episodes=20,
        view="highway",
        gamma=0.8,
        ours=("rollout.steps=64", "optim.batch_size=64"),
        peer=HIGHWAY | {"policy_kwargs": {"net_arch": [256, 256]}},
        processes=2,
        script="idle",
        why="The discount, and the peer's rollouts, minibatches and network, are those of highway-env's own example of PPO. This "
        "package has small rollouts and minibatches too, since the world is slow.",
    ),
    Row(
        "intersection-v1, three speeds",
        "gymnasium",
        "highway_env:intersection-v1",
        ("highway_env",),
        ("view", "flat", "sb3", "sb3-attention", "timed", "script", "random"),
        steps=3_840,
        num_envs=6,
        episodes=30,
        kwargs={"config": {"simulation_frequency": 5, "action": SPEEDS}},
        view="intersection",
        gamma=0.9,
        ours=("rollout.steps=64", "optim.batch_size=64"),
        peer=HIGHWAY | {"policy_kwargs": {"net_arch": [256, 256]}},
        processes=2,
        script="idle",
        why="As highway-fast-v0. Actions are those of intersection-v0, three speeds along the route, and 5 frames a second are "
        "simulated, as in highway-fast, since steering by two continuous numbers is not learned in so few steps. No method "
        "is separated from one that idles. With relative positions `view` had 2.8 (one seed).",
    ),
    Row(
        "roundabout-v0",
        "gymnasium",
        "highway_env:roundabout-v0",
        ("highway_env",),
        ("view", "flat", "sb3", "sb3-attention", "timed", "script", "random"),
        steps=15_360,
        num_envs=6,
        episodes=30,
        kwargs={"config": {"simulation_frequency": 5}},
        view="highway",
        gamma=0.8,
        ours=("rollout.steps=64", "optim.batch_size=64"),
        viewed=(
            "net.relpos.kind=polar",
            "net.relpos.extent=[8,8]",
            "net.relpos.position_features=[x,y]",
            "net.relpos.scale=0.05",
            "net.relpos.interpolate=true",
        ),
        peer=HIGHWAY | {"policy_kwargs": {"net_arch": [256, 256]}},
        processes=2,
        script="park",
        why="5 frames a second are simulated, as in highway-fast. A parked car has 9.17, more than one that drives on (7.99) or "
        "at random (7.73): speed adds at most a fifth to the reward of a step, and a crash ends all of it. With the rollouts, "
        "minibatches and discount of the preset, and no relative positions, `view` parks after as many steps (9.17, one seed).",
    ),
    Row(
        "Foraging-8x8-2p-3f-v3",
        "gymnasium",
        "lbforaging:Foraging-8x8-2p-3f-v3",
        ("lbforaging",),
        ALL,
        steps=204_800,
        view="foraging",
        viewed=("net.relpos.kind=grid", "net.relpos.extent=[7,7]", "net.relpos.position_features=[x,y]"),
        script="walker",
        why="`view` encodes relative positions; without them it has 0.761 ± 0.182, in the larger field 0.235 ± 0.243.",
    ),
    Row(
        "Foraging-10x10-3p-3f-v3",
        "gymnasium",
        "lbforaging:Foraging-10x10-3p-3f-v3",
        ("lbforaging",),
        ALL,
        steps=204_800,
        view="foraging",
        viewed=("net.relpos.kind=grid", "net.relpos.extent=[9,9]", "net.relpos.position_features=[x,y]"),
        script="walker",
    ),
    RWARE_16,
    replace(
        RWARE_16,
        name="rware-tiny-2ag",
        methods=("view", "flat", "transfer", "sb3", "timed", "script", "random"),
        kwargs={"request_queue_size": 2},
        small=RWARE_16,
        why="Robots at random bring one wanted shelf in 16,000 steps. That is too little for `view`, which brings some if "
        "it learned with 16 wanted shelves (`transfer`; seed 1 of both).",
    ),
    SPREAD_3,
    Row(
        "simple_spread, 6 agents",
        "pettingzoo",
        "mpe2.simple_spread_v3:parallel_env",
        ("mpe2",),
        ("view", "flat", "transfer", "sb3", "timed", "script", "random"),
        steps=61_440,
        kwargs={"N": 6},
        view="simple_spread",
        ours=SPREAD,
        viewed=SPREAD_VIEW,
        script="spread",
        small=SPREAD_3,
        why="So few steps teach nobody much: after four times as many `view` had -150.3 (seed 1, 196 s).",
    ),
    Row(
        "connect four",
        "pettingzoo",
        "connect_four_v3",
        ("pettingzoo.classic", "openskill"),
        ("view", "flat", "script", "random"),
        steps=153_600,
        num_envs=64,
        view="connect_four",
        ours=("self_play.enabled=true",),
        script="one step",
        scores=("random", "one step", "minimax 4"),
        why="So few games teach nobody to see rows. With relative positions (grid) `view` won 0.90, 0.73 and 0.04 (seed 1); "
        "with a type for own pieces and one for others too, as ConnectFour of this package has them, 0.88, 0.70 and 0.05 (three "
        "seeds). There types help from 500,000 steps on.",
    ),
    TSP_20,
    Row(
        "TSP, 50 cities",
        "gymnasium",
        "benchmarks.world_players:tsp",
        ("jumanji",),
        ("view", "flat", "transfer", "sb3", "timed", "script", "random"),
        steps=30_720,
        num_envs=16,
        kwargs={"num_cities": 50},
        view="tsp",
        flat_wrappers=("benchmarks.world_players:FlatTsp",),
        gamma=1.0,
        script="nearest city",
        small=TSP_20,
    ),
    Row(
        "LunarLander-v3",
        "gymnasium",
        "LunarLander-v3",
        ("gymnasium", "Box2D"),
        PLAIN,
        steps=204_800,
        script="lander",
    ),
    Row(
        "Taxi-v4",
        "gymnasium",
        "Taxi-v4",
        ("gymnasium",),
        PLAIN,
        steps=204_800,
        script="taxi",
    ),
    Row(
        "Acrobot-v1",
        "gymnasium",
        "Acrobot-v1",
        ("gymnasium",),
        PLAIN,
        steps=102_400,
        script="acrobot",
    ),
)


def select(names: Sequence[str] | None, rows: Sequence[Row] = ROWS) -> list[Row]:
    """Return the rows with these names, or all.

    Raises:
        ValueError: there is no such row.
    """
    if not names:
        return list(rows)
    known = {row.name: row for row in rows}
    for name in names:
        if name not in known:
            raise ValueError(f"--rows {name!r} is no row of the table; allowed: {', '.join(map(repr, known))}")
    return [known[name] for name in names]


def row_named(name: str) -> Row:
    """Return the row of a name; raises ValueError if there is none."""
    (row,) = select([name])
    return row


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of its package
        return False
