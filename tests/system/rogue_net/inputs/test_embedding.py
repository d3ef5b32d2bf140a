"""Compiled programs embed as modules do in float64, in more spaces and widths than the specification draws."""

from __future__ import annotations

from hypothesis import assume, given, settings

from entity_gym import ObsSpace
from tests.rogue_net.inputs.test_embedding import SCENES, assert_embeds_as_modules_do


@settings(max_examples=15, deadline=None)
@given(**SCENES)
def test_a_program_embeds_as_modules_do_in_float64(
    space: ObsSpace, d_model: int, counts: list[tuple[int, ...]], seed: int
) -> None:
    assume(any(count for of_types in counts for count in of_types[: len(space.entities)]))
    assert_embeds_as_modules_do(space, d_model, counts, seed)
