"""The network's settings. Every field says its unit, range and default; a value that is not allowed is a ValueError."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from rogue_net.checks import check_bool, check_choice, check_float, check_int, check_names, check_text

Backend = Literal["auto", "reference", "fused"]
Precision = Literal["fp32", "tf32", "bf16"]
Pooling = Literal["none", "mean", "max", "meanmax"]
RelposKind = Literal["none", "grid", "radial", "distance", "polar"]
ValueGate = Literal["none", "linear", "relu", "gelu", "sigmoid"]


@dataclass(frozen=True, kw_only=True)
class RelposConfig:
    """Relative positions: attention learns from where entities stand to each other.

    `rogue_net/relative_positions.py` has the formulas. Tables are shared by all layers and heads.
    """

    kind: RelposKind = "none"
    """Buckets for the difference of two positions: by coordinates (`grid`), angle (`radial`), distance (`distance`), angle
    and distance (`polar`); `none` switches relative positions off. Default `none`."""
    extent: Sequence[int] = ()
    """Number of buckets. `grid`: for every coordinate e, which makes 2 e + 1 buckets from -e to e; `radial`: [angles];
    `distance`: [distances]; `polar`: [angles, distances]. Each at least 1. Default []."""
    position_features: Sequence[str] = ()
    """The features that are an entity's coordinates; any number of them, two with `radial` and `polar`. Every entity type
    has them or stands in `exclude_entities`. Default []."""
    scale: float = 1.0
    """Width of a bucket, in units of the position features; of no effect on angles. Greater than 0. Default 1."""
    interpolate: bool = False
    """Whether what lies between two buckets takes from both, linearly. Default false: it takes the nearest of a grid, else
    the one that it falls in."""
    rotation_vec_features: Sequence[str] = ()
    """Two features of an entity that give its orientation as a vector: differences are seen from there. Types without them
    face along the first axis. Default []: nothing is rotated."""
    rotation_angle_feature: str | None = None
    """The same by an angle in radians, counterclockwise from the first axis. Default null."""
    world_axis_at_zero: bool = False
    """At which angle an entity sees what stands in its own place, itself first of all, with `radial` and `polar`: at 0 (false),
    or at that of the world's first axis (true), as in rogue-net, whose weights need it. Then every entity knows its heading, and
    turning a whole frame changes the answers. Without orientations both are the same. Default false."""
    per_entity_values: bool = False
    """Whether every entity type has its own table of values. Default false."""
    key_projection: bool = False
    """Whether a linear map of the normalized difference and distance adds to the relative keys. Default false."""
    value_projection: bool = False
    """The same for relative values. Default false."""
    per_entity_projections: bool = False
    """Whether every entity type has its own projections. Default false."""
    value_gate: ValueGate = "relu"
    """What multiplies the relative values of an entity: this function of a linear map of its token. Default `relu`."""
    exclude_entities: Sequence[str] = ()
    """Entity types without relative positions: pairs with one of them add nothing. `__global__` always is one where it
    lacks the features. Default []."""

    def __post_init__(self) -> None:
        check_choice("net.relpos.kind", self.kind, get_args(RelposKind))
        check_choice("net.relpos.value_gate", self.value_gate, get_args(ValueGate))
        check_float("net.relpos.scale", self.scale, 0, open_low=True)
        check_text("net.relpos.rotation_angle_feature", self.rotation_angle_feature, optional=True)
        for name in ("position_features", "rotation_vec_features", "exclude_entities"):
            object.__setattr__(self, name, check_names(f"net.relpos.{name}", getattr(self, name)))
        for name in (
            "interpolate",
            "world_axis_at_zero",
            "per_entity_values",
            "key_projection",
            "value_projection",
            "per_entity_projections",
        ):
            check_bool(f"net.relpos.{name}", getattr(self, name))
        if not isinstance(self.extent, list | tuple):
            raise ValueError(f"net.relpos.extent must be a list of integers, got {self.extent!r}")
        for extent in self.extent:
            check_int("net.relpos.extent", extent, 1)
        object.__setattr__(self, "extent", tuple(self.extent))
        if self.kind != "none":
            self._check_geometry()

    def _check_geometry(self) -> None:
        dimensions = len(self.position_features)
        if dimensions == 0:
            raise ValueError(
                "net.relpos.position_features is empty; name the features that are an entity's coordinates"
            )
        expected = {"grid": dimensions, "radial": 1, "distance": 1, "polar": 2}[self.kind]
        if len(self.extent) != expected:
            raise ValueError(
                f"net.relpos.extent must have {expected} value(s) for kind={self.kind} and {dimensions} position features, "
                f"got {list(self.extent)}"
            )
        rotates = bool(self.rotation_vec_features) or self.rotation_angle_feature is not None
        if dimensions != 2 and (rotates or self.kind in ("radial", "polar")):
            raise ValueError(
                f"net.relpos.position_features must be two features where angles or rotations are used "
                f"(kind={self.kind}), got {list(self.position_features)}"
            )
        _check_rotation("net.relpos", self.rotation_vec_features, self.rotation_angle_feature)


@dataclass(frozen=True, kw_only=True)
class TranslationConfig:
    """Positions as seen from one entity of the frame, before anything else happens."""

    reference_entity: str | None = None
    """The entity type that stands in the origin; a frame has exactly one of them, or none (then nothing is moved). Default
    null: positions stay as they are."""
    position_features: Sequence[str] = ()
    """The features that are coordinates. Types without all of them stay as they are. Default []."""
    rotation_vec_features: Sequence[str] = ()
    """Two features of the reference entity that give its orientation as a vector: positions are rotated so that it looks
    along the first axis. Default []: nothing is rotated."""
    rotation_angle_feature: str | None = None
    """The same by an angle in radians, counterclockwise from the first axis. Default null."""
    add_distance: bool = False
    """Whether the distance to the reference entity becomes another feature of the moved entities. Default false."""

    def __post_init__(self) -> None:
        check_text("net.translation.reference_entity", self.reference_entity, optional=True)
        check_text("net.translation.rotation_angle_feature", self.rotation_angle_feature, optional=True)
        check_bool("net.translation.add_distance", self.add_distance)
        for name in ("position_features", "rotation_vec_features"):
            object.__setattr__(self, name, check_names(f"net.translation.{name}", getattr(self, name)))
        if self.reference_entity is not None and not self.position_features:
            raise ValueError(
                "net.translation.position_features is empty; name the features that are an entity's coordinates"
            )
        rotates = bool(self.rotation_vec_features) or self.rotation_angle_feature is not None
        if rotates and len(self.position_features) != 2:
            raise ValueError(
                f"net.translation.position_features must be two features where there is a rotation, "
                f"got {list(self.position_features)}"
            )
        _check_rotation("net.translation", self.rotation_vec_features, self.rotation_angle_feature)


@dataclass(frozen=True, kw_only=True)
class RogueNetConfig:
    """The shape of a network: a transformer over the entities of a frame, and its heads."""

    d_model: int = 32
    """Width of a token, in features. At least 1, divisible by `n_head`. Default 32."""
    n_layer: int = 2
    """Transformer blocks. At least 0; 0: an entity sees only itself. Default 2."""
    n_head: int = 2
    """Attention heads per block. At least 1. Default 2."""
    d_qk: int = 16
    """Width of the queries and keys with which actors select entities, in features. At least 1. Default 16."""
    pooling: Pooling = "none"
    """What entities of a frame see of each other: through attention (`none`), or the `mean`, the `max` or both (`meanmax`)
    of a linear map of them all, which costs less than attention in PyTorch, and no less than the fused one in frames of some
    entities. Default `none`."""
    embedding_dropout: float = 0.0
    """Share of the embedding's features set to 0 while learning. In [0, 1). Default 0."""
    attention_dropout: float = 0.0
    """Share of the attention weights set to 0 while learning. In [0, 1). Default 0."""
    residual_dropout: float = 0.0
    """Share of the features that attention and MLPs add to a token set to 0 while learning. In [0, 1). Default 0."""
    relpos: RelposConfig = field(default_factory=RelposConfig)
    """Relative positions."""
    translation: TranslationConfig = field(default_factory=TranslationConfig)
    """Positions relative to one entity."""
    backend: Backend = "auto"
    """How the transformer is computed: readable PyTorch on any device (`reference`), kernels for the CPU or CUDA (`fused`), or
    the faster one of those that can (`auto`). Both have the same weights and, but for rounding, results. Default `auto`."""
    precision: Precision = "fp32"
    """Numbers in the transformer's matrix products: `fp32`; `bf16` on CUDA, and on CPUs that have instructions for it; or on
    CUDA `tf32`, which while training is that of all matrix products. Logits, losses and everything else stay in fp32. Default
    `fp32`."""

    def __post_init__(self) -> None:
        check_int("net.d_model", self.d_model, 1)
        check_int("net.n_layer", self.n_layer, 0)
        check_int("net.n_head", self.n_head, 1)
        check_int("net.d_qk", self.d_qk, 1)
        check_choice("net.pooling", self.pooling, get_args(Pooling))
        for name in ("embedding_dropout", "attention_dropout", "residual_dropout"):
            check_float(f"net.{name}", getattr(self, name), 0, 1, open_high=True)
        check_choice("net.backend", self.backend, get_args(Backend))
        check_choice("net.precision", self.precision, get_args(Precision))
        for name, section in (("relpos", RelposConfig), ("translation", TranslationConfig)):
            if not isinstance(getattr(self, name), section):
                raise ValueError(f"net.{name} must be a {section.__name__}, got {getattr(self, name)!r}")
        if self.d_model % self.n_head != 0:
            raise ValueError(
                f"net.d_model must be divisible by net.n_head={self.n_head}, got {self.d_model}; "
                f"the nearest width that is: {max(1, round(self.d_model / self.n_head)) * self.n_head}"
            )
        if self.pooling != "none" and self.relpos.kind != "none":
            raise ValueError(
                f"net.relpos.kind={self.relpos.kind} needs attention, and net.pooling={self.pooling} replaces it; "
                "set one of them to none"
            )


def _check_rotation(section: str, vector: Sequence[str], angle: str | None) -> None:
    if vector and angle is not None:
        raise ValueError(
            f"{section}.rotation_vec_features and {section}.rotation_angle_feature are both given; use one"
        )
    if vector and len(vector) != 2:
        raise ValueError(f"{section}.rotation_vec_features must be two features, got {list(vector)}")
