"""The network's settings. A field says its unit, range and default; other values are a ValueError."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from rogue_net.checks import HalfOpenUnitInterval, NonNegativeInt, PositiveFloat, PositiveInt, check_fields

Backend = Literal["auto", "reference", "fused"]
Precision = Literal["fp32", "tf32", "bf16"]
Pooling = Literal["none", "mean", "max", "meanmax"]
MemoryKind = Literal["none", "entity", "frame", "both"]
RelposKind = Literal["none", "grid", "radial", "distance", "polar"]
ValueGate = Literal["none", "linear", "relu", "gelu", "sigmoid"]


@dataclass(frozen=True, kw_only=True)
class RelposConfig:
    """Relative positions: attention learns from where entities stand to each other.

    `rogue_net/relative/relative_positions.py` has the formulas. Tables are shared by all layers and heads.
    """

    kind: RelposKind = "none"
    """Buckets for the difference of two positions: by coordinates (`grid`), angle (`radial`), distance (`distance`), angle and
    distance (`polar`); `none` switches relative positions off."""
    extent: Sequence[PositiveInt] = ()
    """Numbers of buckets, each at least 1. `grid`: for every coordinate e, which makes 2 e + 1 buckets from -e to e; `radial`:
    [angles]; `distance`: [distances]; `polar`: [angles, distances]."""
    position_features: Sequence[str] = ()
    """The features that are an entity's coordinates; any number of them, two with `radial` and `polar`. Every entity type has
    them or stands in `exclude_entities`."""
    scale: PositiveFloat = 1.0
    """Width of a bucket, in units of the position features; of no effect on angles."""
    interpolate: bool = False
    """Whether what lies between two buckets takes from both, linearly. false: it takes the nearest of a grid, else the one that
    it falls in."""
    rotation_vec_features: Sequence[str] = ()
    """Two features of an entity that give its orientation as a vector: differences are seen from there. Types without them face
    along the first axis. []: nothing is rotated."""
    rotation_angle_feature: str | None = None
    """The same by an angle in radians, counterclockwise from the first axis."""
    per_entity_values: bool = False
    """Whether every entity type has its own table of values."""
    key_projection: bool = False
    """Whether a linear map of the normalized difference and distance adds to the relative keys."""
    value_projection: bool = False
    """The same for relative values."""
    value_gate: ValueGate = "relu"
    """What multiplies the relative values of an entity: this function of a linear map of its token."""
    exclude_entities: Sequence[str] = ()
    """Entity types without relative positions: pairs with one of them add nothing. `__global__` always is one where it lacks the
    features."""

    def __post_init__(self) -> None:
        check_fields(self, "net.relpos.")
        if self.kind != "none":
            self._check_geometry()

    def _check_geometry(self) -> None:
        _check_positions("net.relpos", self, has_angles=self.kind in ("radial", "polar"))
        dimensions = len(self.position_features)
        expected = {"grid": dimensions, "radial": 1, "distance": 1, "polar": 2}[self.kind]
        if len(self.extent) != expected:
            raise ValueError(
                f"net.relpos.extent must have {expected} value(s) for kind={self.kind} and {dimensions} position features, "
                f"got {list(self.extent)}"
            )


@dataclass(frozen=True, kw_only=True)
class TranslationConfig:
    """Positions as seen from one entity of the frame, before anything else happens."""

    reference_entity: str | None = None
    """The entity type that stands in the origin; a frame has exactly one of them, or none (then nothing is moved). null:
    positions stay as they are."""
    position_features: Sequence[str] = ()
    """The features that are coordinates. Types without all of them stay as they are."""
    rotation_vec_features: Sequence[str] = ()
    """Two features of the reference entity that give its orientation as a vector: positions are rotated so that it looks along
    the first axis. []: nothing is rotated."""
    rotation_angle_feature: str | None = None
    """The same by an angle in radians, counterclockwise from the first axis."""
    add_distance: bool = False
    """Whether the distance to the reference entity becomes another feature of the moved entities."""

    def __post_init__(self) -> None:
        check_fields(self, "net.translation.")
        if self.reference_entity is not None or rotates(self):
            _check_positions("net.translation", self)


@dataclass(frozen=True, kw_only=True)
class RogueNetConfig:
    """The shape of a network: a transformer over the entities of a frame, and its heads."""

    d_model: PositiveInt = 32
    """Width of a token, in features; divisible by `n_head`."""
    n_layer: NonNegativeInt = 2
    """Transformer blocks. 0: an entity sees only itself."""
    n_head: PositiveInt = 2
    """Attention heads per block."""
    d_qk: PositiveInt = 16
    """Width of the queries and keys with which actors select entities, in features."""
    pooling: Pooling = "none"
    """What entities of a frame see of each other: through attention (`none`), or the `mean`, the `max` or both (`meanmax`) of a
    linear map of them all, which costs less than attention."""
    memory: MemoryKind = "none"
    """Who remembers from step to step of an episode, by a minimal GRU behind the first block: every entity with an id for itself
    (`entity`), the frame as a whole (`frame`, by its global entity), or `both`."""
    memory_types: Sequence[str] | None = None
    """The entity types that remember, with `memory=entity` or `both`; null: all."""
    dropout: HalfOpenUnitInterval = 0.0
    """Share set to 0 while learning of the embedding's features, of the attention weights, and of the features that attention and
    MLPs add to a token."""
    relpos: RelposConfig = field(default_factory=RelposConfig)
    """Relative positions."""
    translation: TranslationConfig = field(default_factory=TranslationConfig)
    """Positions relative to one entity."""
    backend: Backend = "auto"
    """How the network is computed: by PyTorch's modules on any device (`reference`), by a compiled program on a CPU (`fused`), or
    by the program where it can and else by the modules (`auto`). Both have the same weights and, but for rounding, results."""
    precision: Precision = "fp32"
    """Numbers in the transformer's matrix products: `fp32`; `bf16` on CUDA, and on CPUs that have instructions for it; or on CUDA
    `tf32`, which while training is that of all matrix products. Logits, losses and everything else stay in fp32."""

    def __post_init__(self) -> None:
        check_fields(self, "net.")
        if self.d_model % self.n_head != 0:
            raise ValueError(
                f"net.d_model must be divisible by net.n_head={self.n_head}, got {self.d_model}; "
                f"the nearest width that is: {max(1, round(self.d_model / self.n_head)) * self.n_head}"
            )
        if self.memory_types is not None and self.memory not in ("entity", "both"):
            raise ValueError(f"net.memory_types needs net.memory=entity or both, got net.memory={self.memory}")
        if self.pooling != "none" and self.relpos.kind != "none":
            raise ValueError(
                f"net.relpos.kind={self.relpos.kind} needs attention, and net.pooling={self.pooling} replaces it; "
                "set one of them to none"
            )


def rotates(config: RelposConfig | TranslationConfig) -> bool:
    """Whether the settings name an orientation."""
    return bool(config.rotation_vec_features) or config.rotation_angle_feature is not None


def _check_positions(section: str, config: RelposConfig | TranslationConfig, has_angles: bool = False) -> None:
    """Check that the settings name coordinates, two of them if there are angles or rotations, and at most one orientation."""
    positions, vector = list(config.position_features), list(config.rotation_vec_features)
    if not positions:
        raise ValueError(f"{section}.position_features is empty; name the features that are an entity's coordinates")
    if (has_angles or rotates(config)) and len(positions) != 2:
        raise ValueError(
            f"{section}.position_features must be two features where there are angles or rotations, got {positions}"
        )
    if vector and config.rotation_angle_feature is not None:
        raise ValueError(
            f"{section}.rotation_vec_features and {section}.rotation_angle_feature are both given; use one"
        )
    if len(vector) not in (0, 2):
        raise ValueError(f"{section}.rotation_vec_features must be two features, got {vector}")
