"""Policies with drawn options, spaces and weights, and episodes for them: what every runtime of policy files has to know.

drawn = draw_policy(seed)              # or policy_of_world("MineSweeper")
answers = ...                          # what a runtime says of `drawn.bytes()` and each of `drawn.observations`, in JSON
assert_like_modules(drawn, answers, greedy=True)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from enn_ppo.checkpoints import Checkpoint
from enn_ppo.checkpoints.policy_file import policy_bytes
from enn_ppo.settings.presets import preset
from enn_ppo.settings.schema import to_dict
from entity_gym import (
    Action,
    ActionSpace,
    Angle,
    CategoricalActionMask,
    CategoricalActionSpace,
    Category,
    ContinuousActionMask,
    ContinuousActionSpace,
    Entity,
    Flag,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
    SelectEntitiesActionMask,
    SelectEntitiesActionSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from entity_gym.actions.choices import world_actions
from entity_gym.batch.batching import batch_frames
from entity_gym.batch.frame import EntityNumbers, Frame, FrameReader
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.saving import spaces_to_dict
from entity_gym.bridges.remote.messages import actions_to_json
from entity_gym.registry import bind
from rogue_net import ObsBatch, RaggedTensor, RelposConfig, RogueNet, RogueNetConfig, State
from rogue_net.config import TranslationConfig
from rogue_net.heads.distributions import ActionDistribution
from rogue_net.heads.sets import IndependentSet
from rogue_net.inputs.normalization import RunningNorm
from tests.rogue_net.worlds import calm_down

#: Greedy choices of two runtimes must be equal where the best two logits differ by more than this.
CLEAR = 1e-4
#: Log-probs, values and probabilities may differ by this, or by this share of them: a log-prob may be a sum of fifty.
CLOSE = 1e-5


class Drawn(NamedTuple):
    """A policy, and the observations of an episode.

    Attributes:
        net: the reference.
        critic: a separate value network, perhaps.
    """

    net: RogueNet
    critic: RogueNet | None
    observations: list[Observation]

    def bytes(self) -> bytes:
        """The policy file."""
        config = {"net": to_dict(self.net.config), "value_net": self.critic and to_dict(self.critic.config)}
        return policy_bytes(
            Checkpoint(
                path=Path("drawn.safetensors"),
                step=7,
                policy=self.net.state_dict(),
                value_net=self.critic.state_dict() if self.critic else {},
                config=config,
                spaces=spaces_to_dict(self.net.obs_space, self.net.action_space),
            )
        )


class Expected(NamedTuple):
    """Answer of the reference in one step: of what a runtime did, and what it would do itself."""

    log_probs: dict[str, list[float]]  # of the runtime's actions, by actor
    value: float
    greedy: dict[str, Action]
    gaps: dict[str, float]  # action -> how far its closest decisions are from another choice, in logits
    probabilities: dict[str, Any]  # in the form of docs/protocol.md, along the runtime's actions


class Reference:
    """The modules, in the steps of an episode."""

    def __init__(self, drawn: Drawn) -> None:
        self.net, self.critic = drawn.net, drawn.critic
        self.reader = FrameReader(drawn.net.obs_space, drawn.net.action_space)
        self.numbers = EntityNumbers()
        self.state: State | None = None
        self.value_state: State | None = None

    @torch.no_grad()
    def step(self, observation: Observation, told: Mapping[str, Any]) -> Expected:
        """Go on by a step, in which a runtime has `told` these actions, in the form of docs/protocol.md."""
        frame = self.reader.read(observation, 0, numbers=self.numbers)
        obs = batch_frames([frame], [observation], np.zeros(1, np.int64), np.ones(1, np.int64), self.reader)
        batch = ObsBatch.from_vec_obs(obs)
        given = {name: self._values(name, frame, batch, told) for name in self.net.action_space}
        readout = self.net.readout(batch, self.state)
        decisions = self.net.decide(readout, given)
        greedy = self.net.decide(readout, greedy=True)
        values = self.net.value_head(readout.means)
        if self.critic is not None:
            values, self.value_state = self.critic.value_and_state(batch, self.value_state)
        self.state = readout.state
        chosen = {
            name: RaggedBuffer(made.actions.values.numpy(), made.actions.offsets.numpy())
            for name, made in greedy.items()
        }
        rows = {name: each.values.exp().numpy() for name, each in self.net.ragged_logits(readout, decisions).items()}
        return Expected(
            {name: decisions[name].log_probs.values.tolist() for name in frame.actions},
            float(values[0]),
            world_actions(chosen, 0, [frame], self.net.action_space)[0],
            {name: _gap(self.net.action_space[name], made.distribution) for name, made in greedy.items()},
            {
                name: [
                    rows_[0].tolist()
                    for rows_ in space.by_actor(rows[name], frame.actions[name], given[name].values.numpy())
                ]
                for name, space in self.net.action_space.items()
                if space.discrete and name in frame.actions
            },
        )

    def _values(self, name: str, frame: Frame, batch: ObsBatch, told: Mapping[str, Any]) -> RaggedTensor:
        """The actions of a runtime as a batch has them."""
        space, mask = self.net.action_space[name], batch.action_masks[name]
        offsets = torch.from_numpy(np.ascontiguousarray([0, 0]))
        if name not in told:
            width = space.width
            return RaggedTensor(torch.zeros(0, width, dtype=torch.int64 if space.discrete else torch.float32), offsets)
        index = {id_: i for i, id_ in enumerate(frame.ids) if id_ is not None}
        offer, given = frame.actions[name], told[name]
        values: list[Any] = []
        if space.is_global:
            values = [[given["choice"]]]
        elif isinstance(space, ContinuousActionSpace):
            return RaggedTensor(
                torch.tensor(given["values"], dtype=torch.float32).view(-1, space.width), mask.actors.offsets
            )
        elif isinstance(space, SelectEntitiesActionSpace):
            for chosen in given["actees"]:
                places = {index[id_]: k + 1 for k, id_ in enumerate(chosen)}
                values += [
                    [min(places.get(actee, 0), math.inf if space.ordered else 1)] for actee in offer.actees.tolist()
                ]
            tensor = torch.tensor(values, dtype=torch.int64).view(-1, 1)
            return RaggedTensor(tensor, torch.tensor([0, len(tensor)]))
        elif isinstance(space, SelectEntityActionSpace):
            selected = dict(zip(given["actors"], given["actees"], strict=True))
            values = [[index.get(selected.get(frame.ids[actor]), -1)] for actor in offer.actors.tolist()]
        else:
            values = [[choice] for choice in given["choices"]]
        return RaggedTensor(torch.tensor(values, dtype=torch.int64).view(-1, 1), mask.actors.offsets)


def _gap(space: ActionSpace, distribution: ActionDistribution) -> float:
    """How far the greedy choice of an action is from the next best, in logits; of sets, by their closest decisions."""
    rows = distribution.rows
    if isinstance(distribution, IndependentSet):  # whose greedy set has the largest logits, not the likeliest decisions
        rows = torch.cat([distribution.logits, torch.zeros(1)])
    if not space.discrete or not len(rows):
        return math.inf
    if space.selects:
        flat = rows.flatten().double()
        flat = flat[flat.isfinite()].sort().values
        return float(flat.diff().min()) if len(flat) > 1 else math.inf
    best = rows.topk(min(2, rows.shape[1]), dim=1).values
    return float((best[:, 0] - best[:, -1]).min()) if best.shape[1] > 1 else math.inf


def assert_like_modules(drawn: Drawn, answers: Sequence[Mapping[str, Any]], *, greedy: bool) -> float:
    """Compare what a runtime has answered to each observation with the modules; returns the largest difference.

    Args:
        drawn: policy and observations.
        answers: of each observation `actions` and `probabilities` as docs/protocol.md has them, `logProbs` and `value`.
        greedy: whether the actions are meant to be the likeliest.
    """
    reference, largest = Reference(drawn), 0.0
    for step, (observation, answer) in enumerate(zip(drawn.observations, answers, strict=True)):
        expected = reference.step(observation, answer["actions"])
        assert answer["actions"].keys() == answer["logProbs"].keys() == expected.log_probs.keys()
        differences = {"value": _difference([answer["value"]], [expected.value])}
        for name, log_probs in expected.log_probs.items():
            differences[f"log-probs of {name}"] = _difference(answer["logProbs"][name], log_probs)
        for name, rows in expected.probabilities.items():
            given = answer["probabilities"][name]
            if reference.net.action_space[name].is_global:
                given = [given]
            differences[f"probabilities of {name}"] = _difference(
                given["rows"] if isinstance(given, dict) else given, rows
            )
        for what, difference in differences.items():
            assert difference <= CLOSE, f"{what} in step {step} differ by {difference}: {answer}"
        largest = max(largest, *differences.values())
        likeliest, unclear = actions_to_json(expected.greedy), set[str]()
        for name in (name for name in reference.net.order if greedy and name in likeliest):
            given, action = answer["actions"][name], likeliest[name]
            if expected.gaps[name] <= CLEAR or unclear & {*reference.net.action_space[name].after}:
                unclear.add(name)  # rounding decides there, and so in what is decided after it
            elif "values" in action:
                assert _difference(given["values"], action["values"]) <= CLOSE
            else:
                assert given == action, f"greedy {name} in step {step}"
    return largest


def _difference(given: Any, expected: Any) -> float:
    """The largest difference of two lists of the same shape, in units of what is expected where that is above 1."""
    one, other = (np.array([x for row in rows for x in np.ravel(row)], np.float64) for rows in (given, expected))
    assert [np.shape(row) for row in given] == [np.shape(row) for row in expected]
    return float((np.abs(one - other) / np.maximum(np.abs(other), 1)).max(initial=0))


def observation_to_json(observation: Observation) -> dict[str, Any]:
    """An observation as docs/protocol.md has it; parts that hold their default are left out."""
    told: dict[str, Any] = {}
    for part in ("features", "ids", "visible"):
        if given := getattr(observation, part):
            told[part] = {
                name: np.asarray(rows).tolist() if part != "ids" else list(rows) for name, rows in given.items()
            }
    if len(observation.global_features):
        told["global_features"] = np.asarray(observation.global_features).tolist()
    told["actions"] = {
        name: {
            each.name: np.asarray(value).tolist() if "mask" in each.name else list(value)
            for each in fields(mask)
            if (value := getattr(mask, each.name)) is not None
        }
        for name, mask in observation.actions.items()
    }
    return told


# --- Drawing

SHIP, ROCK, CARD, FLAG = "Ship", "Rock", "card.1", "Flag"
TYPES: dict[str, list[Any]] = {
    SHIP: ["x", "y", "fuel", Angle("heading"), "dx", "dy", Flag("hit"), Category("class", 3)],
    ROCK: ["size", "x", "y"],
    CARD: [Category("suit", 4), Category("rank", 13)],
    FLAG: [],
}
GLOBALS: list[Any] = ["time", Category("weather", 3), Angle("wind"), Flag("day"), "credit"]


def draw_policy(seed: int, steps: int = 4, most: int = 4) -> Drawn:
    """A policy and an episode, of which every option of networks, spaces and observations is drawn."""
    rng = np.random.default_rng(seed)
    obs_space = _obs_space(rng)
    action_space = _action_space(rng, obs_space)
    config = _config(rng, obs_space, action_space)
    net = make_net(config, obs_space, action_space, seed)
    critic = None
    if rng.random() < 0.25:
        critic = make_net(_config(rng, obs_space, action_space), obs_space, action_space, seed + 1)
    configs = [net.config, *([critic.config] if critic else [])]
    has_ids = any(each.memory in ("entity", "both") for each in configs)
    most_ships = 1 if any(each.translation.reference_entity for each in configs) else most
    return Drawn(net, critic, episode(rng, net, steps, {SHIP: most_ships}, most, has_ids=has_ids))


def policy_of_world(name: str, steps: int = 5, seed: int = 0, **kwargs: Any) -> Drawn:
    """A policy with the preset of a world of the package and drawn weights, and up to so many observations of an episode."""
    config = preset(name)
    world = bind(name, {**config.env.kwargs, **kwargs}).as_environment()
    world.reseed(seed, 0)
    net = make_net(replace(config.net, backend="reference"), world.obs_space(), world.action_space(), seed)
    reader = FrameReader(world.obs_space(), world.action_space())
    shown = [world.reset()]
    while len(shown) < steps and not shown[-1].done:
        obs = batch_frames([reader.read(shown[-1], 0)], shown[-1:], np.zeros(1, np.int64), np.ones(1, np.int64), reader)
        acted = net.act(ObsBatch.from_vec_obs(obs)).to_buffers()
        shown.append(world.act(world_actions(acted, 0, [reader.read(shown[-1], 0)], net.action_space)[0]))
    if shown[-1].done:
        shown.pop()  # nobody acts in it
    return Drawn(net, None, list(map(with_texts, shown)))


def with_texts(observation: Observation) -> Observation:
    """An observation with texts in the place of other ids, such as "Robot 0" for ("Robot", 0)."""

    def text(ids: Sequence[Any] | None) -> list[str] | None:
        return (
            None
            if ids is None
            else [" ".join(map(str, each)) if isinstance(each, tuple) else str(each) for each in ids]
        )

    ids = {name: text(each) or [] for name, each in observation.ids.items()}
    actions: dict[str, Any] = {}
    for name, mask in observation.actions.items():
        named = [field for field in ("actor_ids", "actee_ids") if hasattr(mask, field)]
        actions[name] = replace(mask, **{field: text(getattr(mask, field)) for field in named})  # type: ignore[arg-type]
    return replace(observation, ids=ids, actions=actions, targets={})


def make_net(
    config: RogueNetConfig, obs_space: ObsSpace, action_space: Mapping[str, ActionSpace], seed: int
) -> RogueNet:
    """A network in which everything matters: a fresh one has zero values and nearly uniform heads."""
    torch.manual_seed(seed)
    net = RogueNet(config, obs_space, action_space).eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
        calm_down(net)
        for module in net.modules():
            if isinstance(module, RunningNorm):
                module.update(torch.randn(20, len(module.mean)) * torch.rand(len(module.mean)) * 3 + 0.5)
        net.value_head.mean += 0.3
        net.value_head.deviation *= 1.7
    return net


def _flip(rng: np.random.Generator, share: float = 0.5) -> bool:
    return bool(rng.random() < share)


def _one_of(rng: np.random.Generator, *options: Any) -> Any:
    return options[rng.integers(len(options))]


def _obs_space(rng: np.random.Generator) -> ObsSpace:
    names = [SHIP, *[name for name in TYPES if name != SHIP and _flip(rng, 0.7)]]
    entities = {names[i]: Entity(TYPES[names[i]]) for i in rng.permutation(len(names))}
    return ObsSpace(entities, [each for each in GLOBALS if _flip(rng)] if _flip(rng) else [])


def _action_space(rng: np.random.Generator, obs_space: ObsSpace) -> dict[str, ActionSpace]:
    """Up to six actions, of which each may be decided after those before in this list."""
    made: dict[str, ActionSpace] = {}

    def after(*, actors: bool = True) -> list[str]:
        earlier = [name for name in made if _flip(rng, 0.4)]
        return [*earlier, *(["actors"] if actors and _flip(rng, 0.3) else [])]

    def tables(earlier: Sequence[str], choices: int, *, is_global: bool = False) -> dict[str, Any]:
        allowed = {}
        for name in earlier:
            before = made.get(name)
            if before is not None and before.num_choices and not (is_global and not before.is_global) and _flip(rng):
                table = rng.random((before.num_choices, choices)) < 0.6
                table[:, 0] = True  # so that something is open after any two choices
                allowed[name] = table.tolist()
        return allowed

    drawn = [name for name in ("mode", "aim", "move", "pack", "steer", "help") if _flip(rng, 0.6)] or ["move"]
    for name in [drawn[i] for i in rng.permutation(len(drawn))]:
        seen = after(actors=name not in ("mode", "pack"))
        if name == "mode":
            made[name] = GlobalCategoricalActionSpace(
                ["a", "b", "c"], after=seen, allowed=tables(seen, 3, is_global=True)
            )
        elif name in ("move", "help"):
            made[name] = CategoricalActionSpace(["stay", "left", "right", "up"], after=seen, allowed=tables(seen, 4))
        elif name == "steer":
            made[name] = ContinuousActionSpace([-1, 0, -math.inf, -math.inf], [1, math.inf, 2.5, math.inf], after=seen)
        elif name == "aim":
            made[name] = SelectEntityActionSpace(exclude_self=_flip(rng, 0.3), nobody=_flip(rng), after=seen)
        else:
            made[name] = _set_space(rng, obs_space, seen)
    return {name: made[name] for name in [list(made)[i] for i in rng.permutation(len(made))]}


def _set_space(rng: np.random.Generator, obs_space: ObsSpace, after: Sequence[str]) -> SelectEntitiesActionSpace:
    options: dict[str, Any] = {"exclude_self": _flip(rng, 0.3), "after": after, "ordered": _flip(rng)}
    if options["ordered"] and ROCK in obs_space.entities and _flip(rng):
        options |= {"cost": "size", "budget": "credit" if "credit" in obs_space.global_features else "fuel"}
    elif _flip(rng):
        options["min"] = int(rng.integers(0, 3))
    if _flip(rng):
        options["max"] = int(rng.integers(max(1, options.get("min", 0)), 4))
    return SelectEntitiesActionSpace(**options)


def _config(rng: np.random.Generator, obs_space: ObsSpace, action_space: Mapping[str, ActionSpace]) -> RogueNetConfig:
    width, heads = _one_of(rng, (8, 1), (16, 2), (24, 3), (12, 2), (16, 4))
    options: dict[str, Any] = {
        "d_model": width,
        "n_head": heads,
        "n_layer": int(rng.integers(0, 4)),
        "d_qk": _one_of(rng, 4, 8),
    }
    has_global = bool(obs_space.global_features) or any(space.is_global for space in action_space.values())
    memory = _one_of(rng, "none", "none", "entity", *(["frame", "both"] if has_global else []))
    if memory in ("entity", "both") and _flip(rng):
        options["memory_types"] = [SHIP]
    choice = rng.random()
    if choice < 0.25:
        options["pooling"] = _one_of(rng, "mean", "max", "meanmax")
    elif choice < 0.8:
        options["relpos"] = _relpos(rng, obs_space)
    if ROCK in obs_space.entities and _flip(rng):
        options["translation"] = TranslationConfig(
            reference_entity=SHIP, position_features=["x", "y"], add_distance=_flip(rng), **_rotation(rng)
        )
    return RogueNetConfig(memory=memory, backend="reference", **options)


def _rotation(rng: np.random.Generator) -> dict[str, Any]:
    rotation: dict[str, Any] = _one_of(
        rng, {}, {"rotation_angle_feature": "heading"}, {"rotation_vec_features": ["dx", "dy"]}
    )
    return rotation


def _relpos(rng: np.random.Generator, obs_space: ObsSpace) -> RelposConfig:
    kind = _one_of(rng, "grid", "radial", "distance", "polar")
    names = ["x", "y"] if kind in ("radial", "polar") or _flip(rng, 0.7) else ["y"]
    without = [name for name in (CARD, FLAG) if name in obs_space.entities]
    return RelposConfig(
        kind=kind,
        extent=rng.integers(1, 5, {"grid": len(names), "polar": 2}.get(kind, 1)).tolist(),
        position_features=names,
        scale=_one_of(rng, 0.5, 1.0, 3.0),
        interpolate=_flip(rng),
        per_entity_values=_flip(rng),
        key_projection=_flip(rng, 0.3),
        value_projection=_flip(rng, 0.3),
        value_gate=_one_of(rng, "none", "linear", "relu", "gelu", "sigmoid"),
        exclude_entities=[*without, *([ROCK] if ROCK in obs_space.entities and _flip(rng, 0.3) else [])],
        **(_rotation(rng) if len(names) == 2 else {}),
    )


def episode(
    rng: np.random.Generator, net: RogueNet, steps: int, limits: Mapping[str, int], most: int, *, has_ids: bool = False
) -> list[Observation]:
    """Observations in the spaces of a network, with entities that come and go: up to `most` of a type, or its limit."""
    alive: dict[str, list[Any]] = {name: [] for name in net.obs_space.entities}
    shown = []
    for step in range(steps):
        for kind, (name, ids) in enumerate(alive.items()):
            new = [f"{name} {step} {k}" if name == SHIP else 10000 * step + 1000 * kind + k for k in range(most)]
            kept = [*[each for each in ids if _flip(rng, 0.7)], *new[: rng.integers(0, most + 1)]]
            alive[name] = kept[: limits.get(name, most)]
        shown.append(observe(rng, net, alive, has_ids=has_ids))
    return shown


def observe(
    rng: np.random.Generator,
    net: RogueNet,
    alive: Mapping[str, Sequence[Any]],
    *,
    has_ids: bool = True,
    hide: bool = True,
) -> Observation:
    """A frame of the entities with these ids, by type; offers, masks and what is hidden are drawn."""
    obs_space, ids = net.obs_space, {name: list(each) for name, each in alive.items()}
    everyone = [each for of_type in ids.values() for each in of_type]
    actions: dict[str, Any] = {}
    for name, space in net.action_space.items():
        if _flip(rng, 0.15):
            continue
        if isinstance(space, GlobalCategoricalActionSpace):
            mask = _open(rng, 1, len(space.labels))
            actions[name] = GlobalCategoricalActionMask(mask=None if mask is None else mask[0])
            continue
        actors, actees = _some(rng, everyone), _some(rng, everyone)
        if space.selects:
            able = bool(getattr(space, "can_close", False))
            mask = _open(rng, len(actors), len(actees), may_close=able) if actees else None
            kind: Any = SelectEntitiesActionMask if space.per_pair else SelectEntityActionMask
            actions[name] = kind(actor_ids=actors, actee_ids=actees, mask=mask)
        elif isinstance(space, ContinuousActionSpace):
            actions[name] = (
                ContinuousActionMask(actor_types=[SHIP]) if _flip(rng) else ContinuousActionMask(actor_ids=actors)
            )
        else:
            mask = _open(rng, len(actors), len(space.labels), keep=0)
            actions[name] = CategoricalActionMask(actor_ids=actors, mask=mask)
    for name, space in net.action_space.items():
        earlier = [each for each in space.after if isinstance(net.action_space.get(each), SelectEntityActionSpace)]
        if name in actions and isinstance(space, CategoricalActionSpace) and len(earlier) == 1 and _flip(rng):
            targets = (
                len(actions[earlier[0]].actee_ids) if earlier[0] in actions and actions[earlier[0]].actor_ids else 0
            )
            after = rng.random((len(actions[name].actor_ids), targets, len(space.labels))) < 0.5
            after[..., 0] = True
            actions[name] = replace(actions[name], mask_after=after)
    features = {name: _rows(rng, entity, len(ids[name])) for name, entity in obs_space.entities.items()}
    named = [name for name in ids if has_ids or any(_names(mask, ids[name]) for mask in actions.values())]
    return Observation(
        features=features,
        ids={name: ids[name] for name in named},
        visible={name: rng.random(len(each)) < 0.7 for name, each in ids.items() if hide and _flip(rng, 0.3)},
        actions=actions,
        global_features=_rows(rng, Entity(obs_space.global_features, obs_space.global_kinds), 1)[0],
    )


def _names(mask: Any, ids: Sequence[Any]) -> bool:
    """Whether a mask names one of the entities, or all ships."""
    listed = [*(getattr(mask, "actor_ids", None) or ()), *(getattr(mask, "actee_ids", None) or ())]
    return getattr(mask, "actor_types", None) is not None or any(each in listed for each in ids)


def _rows(rng: np.random.Generator, entity: Entity, count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Features, often on a grid, where relative positions are exactly on borders of buckets."""
    columns: list[np.ndarray[Any, Any]] = []
    for name in entity.features:
        kind = entity.kinds.get(name)
        if kind is None or isinstance(kind, Angle):
            columns.append(rng.integers(-4, 5, count) / 2 if _flip(rng) else rng.normal(size=count) * 2)
        else:
            columns.append(rng.integers(0, kind.num, count))
    return np.array(columns, np.float32).reshape(len(entity.features), count).T.copy()


def _some(rng: np.random.Generator, ids: Sequence[Any]) -> list[Any]:
    """Some of the ids in any order: often all, at times none."""
    share = _one_of(rng, 0.0, 0.5, 0.5, 1.0, 1.0)
    return [ids[i] for i in rng.permutation(len(ids)) if rng.random() < share]


def _open(
    rng: np.random.Generator, rows: int, columns: int, *, may_close: bool = False, keep: int | None = None
) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
    """A mask, at times of one open choice alone, or None; `keep` is a column that stays open."""
    if _flip(rng, 0.4) or not rows:
        return None
    mask: np.ndarray[Any, np.dtype[np.bool_]] = rng.random((rows, columns)) < _one_of(rng, 0.0, 0.5)
    if keep is not None:
        mask[:, keep] = True
    elif not may_close:
        mask[np.arange(rows), rng.integers(0, columns, rows)] = True
    return mask


# --- A policy of all kinds of action

SPACE = ObsSpace({name: Entity(["x", "y"]) for name in (SHIP, ROCK, CARD, FLAG)}, ["time"])
ACTIONS: dict[str, ActionSpace] = {
    "move": CategoricalActionSpace(["stay", "left", "right"]),
    "aim": SelectEntityActionSpace(),
    "pack": SelectEntitiesActionSpace(max=2),
    "load": SelectEntitiesActionSpace(ordered=True, max=4),
    "steer": ContinuousActionSpace([-1, 0], [1, np.inf]),
    "mode": GlobalCategoricalActionSpace(["calm", "alert"]),
}
RELPOS = RelposConfig(kind="polar", extent=[8, 4], position_features=["x", "y"], interpolate=True)
CONFIG = RogueNetConfig(d_model=16, n_layer=2, d_qk=8, relpos=RELPOS, backend="reference")


def frames(counts: Mapping[str, int], *, num: int = 3, hide: bool = False, memory: Any = "none") -> Drawn:
    """A policy of all kinds of action, and frames of so many entities."""
    net = make_net(replace(CONFIG, memory=memory), SPACE, ACTIONS, 0)
    ids = {name: [f"{name} {k}" for k in range(counts.get(name, 0))] for name in SPACE.entities}
    rng = np.random.default_rng(0)
    return Drawn(net, None, [observe(rng, net, ids, hide=hide) for _ in range(num)])
