"""States are saved and loaded exactly; parameters differ from one environment to the next."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from entity_gym.compiled.slots import CompiledSlots
from tests.entity_gym.compiled.comparing import (
    Playing,
    ordinary,
)
from tests.entity_gym.compiled.worlds import Everything, Watching
from tests.entity_gym.pools.kinds_of_pools import content

# --- Saved and loaded


def advanced(steps: int, num_envs: int = 4, **options: Any) -> Playing:
    playing = Playing(ordinary(Everything, num_envs, final_observations="all", **options))
    for _ in range(steps):
        playing.step()
    return playing


def states_of(rngs: Sequence[np.random.Generator]) -> list[Any]:
    return [rng.bit_generator.state for rng in rngs]


def continue_from(playing: Playing, slots: CompiledSlots, streams: list[Any]) -> list[Any]:
    """Thirty more steps of `slots`, acted on as `playing` was when its streams were as given."""
    other = object.__new__(Playing)
    other.slots, other.ids = slots, playing.ids
    other.rngs = [np.random.default_rng() for _ in streams]
    for rng, state in zip(other.rngs, streams, strict=True):
        rng.bit_generator.state = state
    return [content(other.step()) for _ in range(30)]


@pytest.mark.parametrize("num_envs", [1, 4])
def test_a_saved_pool_continues_exactly_in_itself_and_in_a_fresh_one(num_envs: int) -> None:
    playing = advanced(17, num_envs)
    state, streams = playing.slots.state(), states_of(playing.rngs)
    copy = content(state)
    expected = continue_from(playing, playing.slots, streams)
    assert content(state) == copy  # what was saved does not go on
    for slots in (playing.slots, ordinary(Everything, num_envs, final_observations="all")):
        slots.load_state(state)
        assert continue_from(playing, slots, streams) == expected


class Wider(Watching):
    """A later version of `Watching`, with room for more."""

    __qualname__ = __name__ = "Watching"
    entities = {"Star": Watching.entities["Star"].__class__(["brightness"], max=5)}


class Richer(Watching):
    """A later version of `Watching`, with another field."""

    __qualname__ = __name__ = "Watching"
    state = [*Watching.state, ("more", np.int64)]


@pytest.mark.parametrize(("saved", "loaded"), [(Watching, Wider), (Wider, Watching), (Watching, Richer)])
def test_a_state_of_other_capacities_is_refused(saved: Any, loaded: Any) -> None:
    state = Playing(ordinary(saved, 2)).slots.state()
    slots = ordinary(loaded, 2)
    before = content(slots.state())
    with pytest.raises(ValueError, match="another version"):
        slots.load_state(state)
    assert content(slots.state()) == before
    with pytest.raises(ValueError, match="the saved state has 2 environments; this pool has 3"):
        ordinary(saved, 3).load_state(state)


# --- Parameters


def test_a_limit_can_be_set_and_lifted() -> None:
    slots = ordinary(Watching(max_steps=2), 2)
    slots.configure(np.array([1]), [{"max_steps": None}])
    playing = Playing(slots)
    seen = [playing.step().truncated.tolist() for _ in range(4)]
    assert seen == [[False, False], [True, False]] * 2
