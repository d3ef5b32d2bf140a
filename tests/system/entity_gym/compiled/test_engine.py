"""Compiled environments show the same as ordinary Python, whoever steps them, in whatever order."""

import numpy as np
import pytest

from entity_gym.compiled import CompiledEnvironment
from entity_gym.compiled.slots import CompiledSlots
from entity_gym.pools.pool import ListEnv, ThreadedVecEnv
from entity_gym.pools.slots import FinalObservations, SlotOptions
from tests.entity_gym.compiled.comparing import (
    Playing,
    actions_in,
    meaning,
    of_environment,
    play_pool,
)
from tests.entity_gym.compiled.worlds import Bare, Everything, OddNames, Watching
from tests.entity_gym.pools.kinds_of_pools import Streams, content, play_together

WORLDS = [Everything, OddNames, Bare, Watching]
KEPT: list[FinalObservations] = ["truncated", "all", "none"]


# --- The same as ordinary Python, and as Python objects


@pytest.mark.parametrize("world", WORLDS)
def test_the_compiled_form_shows_the_same_as_ordinary_python_bit_for_bit(world: type[CompiledEnvironment]) -> None:
    compiled = play_pool(world, steps=150, seed=3, final_observations="all")
    python = play_pool(world, steps=150, seed=3, final_observations="all", compile=False)
    for step, (one, other) in enumerate(zip(compiled, python, strict=True)):
        assert content(one) == content(other), f"step {step}"


def test_a_pool_shows_what_a_list_of_plain_environments_shows() -> None:
    compiled = play_pool(Everything, steps=40, seed=5, final_observations="all")
    listed = play_together(ListEnv(Everything().as_environment, 6, seed=5, final_observations="all"), 40)
    for step, (one, other) in enumerate(zip(compiled, listed, strict=True)):
        assert meaning(one) == meaning(other), f"step {step}"


# --- Any environments, in any order


@pytest.mark.parametrize("num_threads", [1, 2])
def test_environments_can_be_stepped_in_any_subsets_and_any_order(num_threads: int) -> None:
    together = play_pool(Everything, 5, 40, seed=7, final_observations="all")
    with ThreadedVecEnv(Everything, 5, num_threads, seed=7, final_observations="all") as pool:
        streams, order = Streams(pool).rngs, np.random.default_rng(0)
        shown, taken = pool.reset(), [0] * 5
        while min(taken) < 40:
            ids = [i for i in order.permutation(5).tolist() if order.random() < 0.6 and taken[i] < 40]
            if not ids:
                continue
            actions = actions_in(shown, ids, streams, pool.action_space())
            backwards = np.array(ids[::-1])[::-1]  # the same in memory that runs backwards
            obs = pool.act(actions, backwards)
            assert obs.env_id.tolist() == ids
            for i in ids:
                taken[i] += 1
                assert of_environment(obs, i) == of_environment(together[taken[i]], i)
            shown = pool.show(np.arange(5))


def test_steps_that_nobody_waits_for_show_the_same() -> None:
    together = play_pool(Everything, 6, 40, seed=7, final_observations="all")
    with ThreadedVecEnv(Everything, 6, 2, batch_size=3, seed=7, final_observations="all") as pool:
        streams, taken = Streams(pool), [-1] * 6
        pool.async_reset()
        while min(taken) < 30:
            obs = pool.recv()
            assert len(obs) == 3
            for i in obs.env_id.tolist():
                taken[i] += 1
                if taken[i] <= 40:
                    assert of_environment(obs, i) == of_environment(together[taken[i]], i)
            pool.send(streams.actions(obs), obs.env_id)


# --- Episodes


@pytest.mark.parametrize("final_observations", KEPT)
def test_last_observations_are_kept_as_asked_and_offer_nothing(final_observations: FinalObservations) -> None:
    for obs in play_pool(Everything, steps=80, final_observations=final_observations):
        wanted = {"truncated": obs.truncated, "all": obs.done, "none": np.zeros(6, np.bool_)}[final_observations]
        if not wanted.any():
            assert obs.final is None
            continue
        assert obs.final is not None
        assert obs.final.env_id.tolist() == np.flatnonzero(wanted).tolist()
        assert obs.final.reward.tolist() == obs.reward[wanted].tolist()
        assert obs.final.done.all() and obs.final.truncated.tolist() == obs.truncated[wanted].tolist()
        assert (obs.final.elapsed_step > 0).all() and obs.final.elapsed_step.max() <= 9
        assert all(mask.actors.items() == 0 for mask in obs.final.action_masks.values())


def test_without_autoreset_the_last_observation_stays_until_reset() -> None:
    kept = Playing(CompiledSlots(Everything, 6, SlotOptions(final_observations="all")))
    bare = Playing(CompiledSlots(Everything, 6, SlotOptions(autoreset=False, final_observations="all")))
    ended = 0
    for _ in range(40):
        with_reset, without = kept.step(), bare.step()
        assert without.final is None
        assert without.reward.tolist() == with_reset.reward.tolist()
        assert without.done.tolist() == with_reset.done.tolist()
        assert dict(without.end_of_episode_info) == dict(with_reset.end_of_episode_info)
        done = np.flatnonzero(without.done)
        ended += len(done)
        for i in done.tolist():
            last = of_environment(with_reset, i)["final"]
            assert of_environment(without, i) == last
        if len(done):
            assert content(bare.show(bare.ids)) == content(without)  # and so it stays
            first = bare.reset(done)
            assert not first.done.any() and first.reward.tolist() == [0.0] * len(done)
            assert dict(first.end_of_episode_info) == {} and first.elapsed_step.tolist() == [0] * len(done)
            for i in done.tolist():
                expected = of_environment(with_reset, i)
                assert of_environment(first, i)["features"] == expected["features"]
                assert of_environment(first, i)["actions"] == expected["actions"]
    assert ended > 20


def test_info_is_given_with_the_end_in_python_types_under_its_names() -> None:
    kinds = set()
    for obs in play_pool(Everything, steps=80):
        assert list(obs.end_of_episode_info) == np.flatnonzero(obs.done).tolist()
        for info in obs.end_of_episode_info.values():
            kinds.add(tuple((name, type(value)) for name, value in info.items()))
    always = (("score", float), ("cats", int), ("lucky", bool))
    assert kinds == {always, (*always, ("noise", float))}  # where it is NaN there is nothing to report


def test_metrics_count_every_step_except_where_they_are_nan() -> None:
    first, *seen = play_pool(Everything, steps=80)
    assert first.metrics == {}
    assert all(obs.metrics["cats"].count == 6 for obs in seen)
    noise = [obs.metrics["noise"] for obs in seen if "noise" in obs.metrics]
    assert 250 < sum(metric.count for metric in noise) < 420  # 480 steps, a quarter of them NaN
    assert all(0 <= metric.min <= metric.sum / metric.count <= metric.max <= 3 for metric in noise)
