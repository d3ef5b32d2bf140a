"""Policies with drawn spaces, settings and weights, and observations for them: what every runtime must play as the modules do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from enn_ppo.checkpoints.policy_file import Checkpoint, policy_bytes
from entity_gym import (
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
from entity_gym.actions.chains import selection_before
from entity_gym.actions.choices import world_actions
from entity_gym.batch.batching import batch_frames
from entity_gym.batch.frame import EntityNumbers, Frame, FrameReader
from entity_gym.batch.saving import spaces_to_dict
from entity_gym.bridges.remote.messages import actions_to_json
from rogue_net import ObsBatch, RaggedTensor, RelposConfig, RogueNet, RogueNetConfig, TranslationConfig
from rogue_net.rogue_net import ActResult, Evaluation

POSITION = ["x", "y"]


@dataclass(frozen=True)
class Drawn:
    """A policy and the spaces of its worlds."""

    obs_space: ObsSpace
    action_space: dict[str, ActionSpace]
    net: RogueNet
    value_net: RogueNet | None = None

    @property
    def most_ships(self) -> int:
        """How many of them a frame may show: the reference of a translation is alone."""
        nets = filter(None, (self.net, self.value_net))
        return 1 if any(net.config.translation.reference_entity is not None for net in nets) else 2**62

    def save(self, folder: Path, name: str = "policy.safetensors") -> Path:
        """Write its policy file."""
        file = folder / name
        file.write_bytes(policy_bytes(self.checkpoint(file)))
        return file

    def checkpoint(self, file: Path) -> Checkpoint:
        value = self.value_net
        return Checkpoint(
            path=file,
            step=100,
            policy=self.net.state_dict(),
            value_net={} if value is None else value.state_dict(),
            config={"net": asdict(self.net.config), "value_net": None if value is None else asdict(value.config)},
            spaces=spaces_to_dict(self.obs_space, self.action_space),
        )


class Reference:
    """The modules, step by step through an episode."""

    def __init__(self, drawn: Drawn) -> None:
        self.drawn, self.numbers = drawn, EntityNumbers()
        self.reader = FrameReader(drawn.obs_space, drawn.action_space)
        self.state: Any = None
        self.value_state: Any = None

    def batch(self, observation: Observation) -> tuple[Frame, ObsBatch]:
        frame = self.reader.read(observation, 0, numbers=self.numbers)
        step = np.zeros(1, np.int64)
        return frame, ObsBatch.from_vec_obs(batch_frames([frame], [observation], step, step, self.reader))

    @torch.no_grad()
    def step(
        self, observation: Observation, chosen: Mapping[str, Any]
    ) -> tuple[Evaluation, float, ActResult, dict[str, Any]]:
        """Judge given choices in one frame, and remember it: the evaluation, the value, greedy play, and that as JSON.

        Args:
            observation: of one frame.
            chosen: action -> the numbers of its actors, in the form of batches.
        """
        drawn, (frame, batch) = self.drawn, self.batch(observation)
        actions = {}
        for name, space in drawn.action_space.items():
            values = (
                np.asarray(chosen[name], space.dtype) if name in chosen else np.zeros((0, space.width), space.dtype)
            )
            actions[name] = RaggedTensor(torch.from_numpy(values), torch.tensor([0, len(values)]))
        judged = drawn.net.evaluate(batch, actions, self.state)
        greedy = drawn.net.act(batch, self.state, greedy=True)
        value, self.state = float(judged.values[0]), greedy.state
        if drawn.value_net is not None:
            values, self.value_state = drawn.value_net.value_and_state(batch, self.value_state)
            value = float(values[0])
        told = actions_to_json(world_actions(greedy.to_buffers(), 0, [frame], drawn.action_space)[0])
        return judged, value, greedy, told


# --- Drawing


def draw_policy(seed: int, **net: Any) -> Drawn:
    """A policy, in which everything matters; `net` are settings that are not drawn."""
    rng = np.random.default_rng(seed)
    obs_space = _obs_space(rng)
    action_space = _action_space(rng, obs_space)
    torch.manual_seed(seed)
    made = [RogueNet(_settings(rng, obs_space, action_space, **net), obs_space, action_space) for _ in range(2)]
    drawn = Drawn(obs_space, action_space, made[0].eval(), made[1].eval() if rng.random() < 0.3 else None)
    observations = [draw_observation(rng, drawn) for _ in range(5)]
    for each in filter(None, (drawn.net, drawn.value_net)):
        with torch.no_grad():
            for parameter in each.parameters():
                parameter.add_(0.15 * torch.randn_like(parameter))
        each.value_head.rescale(torch.tensor(0.5), torch.tensor(2.0))
        for observation in observations:
            each.update_normalization(Reference(drawn).batch(observation)[1])
    return drawn


def _obs_space(rng: np.random.Generator) -> ObsSpace:
    def some(*features: Any) -> list[Any]:
        return [each for each in features if rng.random() < 0.5]

    entities = {
        "Ship": Entity(
            [*POSITION, *some("size"), "dx", "dy", Angle("course"), *some(Category("kind", 4), Flag("hot"), "fuel")]
        ),
        "Rock": Entity([*some(Flag("hard")), *POSITION, *some("fuel", "course", Category("ore", 3))]),
        "Card": Entity([Category("card", 5), *some(Category("back", 2))]),
        "Thought": Entity([]),
    }
    names = [name for name in entities if rng.random() < 0.7 or name == "Ship"]
    features = some("x", "time", "y", Category("season", 4), Flag("night"), Angle("moon")) if rng.random() < 0.5 else []
    return ObsSpace({name: entities[name] for name in rng.permutation(names).tolist()}, features)


def _action_space(rng: np.random.Generator, obs_space: ObsSpace) -> dict[str, ActionSpace]:
    kinds = ["Move", "Mode", "Aim", "Push", "Gather", "Signal", "Mark"]
    names = rng.permutation(kinds)[: rng.integers(1, 5)].tolist()
    decided: dict[str, ActionSpace] = {}
    for name in names:  # in the order of decisions
        after = [each for each in decided if rng.random() < 0.4]
        if rng.random() < 0.3 and name not in ("Mode", "Gather"):
            after.append("actors")
        chained: dict[str, Any] = {"after": after}
        if name in ("Move", "Signal", "Mode"):
            num = int(rng.integers(2, 5))
            tables = [e for e in after if e in ("Mode", *(("Move", "Signal") if name != "Mode" else ()))]
            allowed = {each: _table(rng, len(decided[each].labels), num) for each in tables if rng.random() < 0.6}
            kind = GlobalCategoricalActionSpace if name == "Mode" else CategoricalActionSpace
            decided[name] = kind([f"choice {k}" for k in range(num)], allowed=allowed, **chained)
        elif name in ("Aim", "Mark"):
            nobody, exclude_self = bool(rng.random() < 0.5), bool(rng.random() < 0.3)
            decided[name] = SelectEntityActionSpace(nobody=nobody, exclude_self=exclude_self, **chained)
        elif name == "Push":
            low, high = [-1.0, 0.0, -np.inf, -np.inf], [1.0, np.inf, 5.0, np.inf]
            some = rng.permutation(4)[: rng.integers(1, 5)]
            decided[name] = ContinuousActionSpace([low[k] for k in some], [high[k] for k in some], **chained)
        else:
            decided[name] = SelectEntitiesActionSpace(**_set_options(rng, obs_space), **chained)
    return {name: decided[name] for name in rng.permutation(names).tolist()}


def _table(rng: np.random.Generator, rows: int, columns: int) -> list[list[bool]]:
    """Bools whose first column is open: so it is with masks, and something is left whatever comes together."""
    table = rng.random((rows, columns)) < 0.6
    table[:, 0] = True
    return table.tolist()


def _set_options(rng: np.random.Generator, obs_space: ObsSpace) -> dict[str, Any]:
    options: dict[str, Any] = {"ordered": bool(rng.random() < 0.6), "exclude_self": bool(rng.random() < 0.3)}
    features = {name for entity in obs_space.entities.values() for name in entity.features}
    if options["ordered"] and "fuel" in features and rng.random() < 0.7:
        budgets = [*features & {"fuel", "size"}, *{"time", "x"} & {*obs_space.global_features}]
        options |= {"cost": "fuel", "budget": sorted(budgets)[int(rng.integers(len(budgets)))]}
    elif rng.random() < 0.4:
        options["min"] = int(rng.integers(1, 4))
    if rng.random() < 0.5:
        options["max"] = int(rng.integers(max(1, options.get("min", 0)), 5))
    return options


def _settings(
    rng: np.random.Generator, obs_space: ObsSpace, action_space: Mapping[str, ActionSpace], **given: Any
) -> RogueNetConfig:
    def pick(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    entities = obs_space.entities
    has_globals = bool(obs_space.global_features) or any(space.is_global for space in action_space.values())
    heads = pick(1, 2, 4)
    settings: dict[str, Any] = {
        "n_head": heads,
        "d_model": heads * pick(4, 8),
        "n_layer": pick(0, 1, 1, 2, 2, 3),
        "d_qk": pick(4, 16),
    }
    kinds = ["none", "none", "entity", *(["frame", "both"] if has_globals else [])]
    settings["memory"] = pick(*kinds)
    if settings["memory"] in ("entity", "both") and rng.random() < 0.4:
        settings["memory_types"] = ["Ship", *[name for name in entities if name != "Ship" and rng.random() < 0.5]]
    rotation: list[dict[str, Any]] = [
        {},
        {"rotation_angle_feature": "course"},
        {"rotation_vec_features": ["dx", "dy"]},
    ]
    placed = [name for name in entities if name in ("Ship", "Rock")]
    if rng.random() < 0.2:
        settings["pooling"] = pick("mean", "max", "meanmax")
    elif rng.random() < 0.7:
        kind = pick("grid", "radial", "distance", "polar")
        extent = {
            "grid": [pick(1, 2, 3), pick(1, 2)],
            "radial": [pick(1, 4, 6)],
            "distance": [pick(1, 3)],
            "polar": [4, pick(1, 3)],
        }
        excluded = [name for name in entities if name not in placed or (rng.random() < 0.2 and len(placed) > 1)]
        settings["relpos"] = RelposConfig(
            kind=kind,
            extent=extent[kind],
            position_features=POSITION,
            scale=pick(0.5, 1.0, 2.0),
            interpolate=bool(rng.random() < 0.5),
            per_entity_values=bool(rng.random() < 0.4),
            key_projection=bool(rng.random() < 0.4),
            value_projection=bool(rng.random() < 0.4),
            value_gate=pick("none", "linear", "relu", "gelu", "sigmoid"),
            exclude_entities=excluded if len(excluded) < len(entities) else [n for n in excluded if n != "Ship"],
            **(pick(*rotation) if "Ship" not in excluded else {}),
        )
    if "Rock" in entities and rng.random() < 0.4:
        settings["translation"] = TranslationConfig(
            reference_entity="Ship",
            position_features=POSITION,
            add_distance=bool(rng.random() < 0.5),
            **pick(*rotation),
        )
    return RogueNetConfig(backend="reference", **settings | given)


def draw_observation(
    rng: np.random.Generator, drawn: Drawn, counts: Sequence[int] = (0, 0, 1, 1, 2, 3, 4), one_open: bool = False
) -> Observation:
    """A frame that leaves out what may be left out, now and then.

    Args:
        rng: draws.
        drawn: for whom.
        counts: how many entities of a type there may be.
        one_open: whether masks close all but one choice.
    """
    obs_space, action_space = drawn.obs_space, drawn.action_space
    features, ids, visible = {}, {}, {}
    for name, entity in obs_space.entities.items():
        count = int(rng.choice(list(counts)))
        count = min(count, drawn.most_ships) if name == "Ship" else count
        features[name] = _rows(rng, entity, count)
        ids[name] = [f"{name} {k}" for k in rng.permutation(count + 2)[:count]]
        if rng.random() < 0.3:
            visible[name] = rng.random(count) < 0.6
    everything = [each for own in ids.values() for each in own]
    actions: dict[str, Any] = {}
    offered = [name for name in action_space if rng.random() < 0.85]
    who: dict[str, tuple[list[str], list[str]]] = {}
    for name in offered:
        actors, actees = (rng.permutation(everything).tolist()[: rng.integers(0, 6)] for _ in range(2))
        if rng.random() < 0.2:
            actors = []
        who[name] = (actors, actees)
    for name in offered:
        space, (actors, actees) = action_space[name], who[name]
        by_type = not one_open and rng.random() < 0.2
        if by_type:
            who[name] = actors, actees = ids["Ship"], everything
        chosen: dict[str, Any] = {"actor_types": ["Ship"]} if by_type else {"actor_ids": actors}
        if isinstance(space, GlobalCategoricalActionSpace):
            actions[name] = GlobalCategoricalActionMask(mask=_mask(rng, 1, len(space.labels), one_open, True))
        elif isinstance(space, CategoricalActionSpace):
            actions[name] = CategoricalActionMask(
                mask=_mask(rng, len(actors), len(space.labels), one_open, True), **chosen
            )
        elif isinstance(space, ContinuousActionSpace):
            actions[name] = ContinuousActionMask(**chosen)
        else:
            can_close = space.can_close  # type: ignore[attr-defined]
            pairs = _mask(rng, len(actors), len(actees), one_open, not can_close) if actors and actees else None
            kind = SelectEntityActionMask if isinstance(space, SelectEntityActionSpace) else SelectEntitiesActionMask
            actions[name] = kind(mask=pairs, **chosen, **({} if by_type else {"actee_ids": actees}))
    for name in offered:
        selection = selection_before(name, action_space)
        if isinstance(action_space[name], CategoricalActionSpace) and selection in who and rng.random() < 0.7:
            actors, num_actees = who[name][0], len(who[selection][1]) if who[selection][0] else 0
            after = rng.random((len(actors), num_actees, len(action_space[name].labels))) < 0.6
            after[..., 0] = True
            actions[name].mask_after = after
    return Observation(
        features=features,
        ids=ids,
        visible=visible,
        actions=actions,
        global_features=_rows(rng, Entity(obs_space.global_features, obs_space.global_kinds), 1)[0],
    )


def _rows(rng: np.random.Generator, entity: Entity, count: int) -> np.ndarray:
    """(count, F) features: positions that often are equal or on the borders of buckets."""
    rows = rng.normal(size=(count, len(entity.features))) * 2
    for column, name in enumerate(entity.features):
        kind = entity.kinds.get(name)
        if isinstance(kind, Category | Flag):
            rows[:, column] = rng.integers(0, kind.num, count)
        elif name in POSITION and rng.random() < 0.5:
            rows[:, column] = np.round(rows[:, column])
        elif name in ("fuel", "size", "time"):
            rows[:, column] = np.abs(rows[:, column])
    return rows.astype(np.float32)


def _mask(rng: np.random.Generator, rows: int, columns: int, one_open: bool, first: bool) -> np.ndarray | None:
    """(rows, columns) bools, of which the first column is open if `first`; or None."""
    if one_open:
        return np.arange(columns)[None].repeat(rows, 0) == 0
    if rng.random() < 0.4:
        return None
    mask = rng.random((rows, columns)) < 0.5
    if columns and first:
        mask[:, 0] = True
    return mask
