"""The contract that every pool keeps: steps together and without waiting, errors, saving, parameters, the end.

What is special to a kind of pool is in `test_list_env`, `test_threaded_env` and `processes/test_process_env`.
"""

import copy
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from entity_gym import Action, Environment, Observation
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.vec_obs import VecObs
from entity_gym.pools.pool import ListEnv, ThreadedVecEnv
from entity_gym.pools.vec_env import VecEnv
from tests.entity_gym.pools.kinds_of_pools import Counter, Streams, add, content, contents, play_together, totals
from tests.entity_gym.pools.processes.thread_workers import threads as threads
from tests.worlds import Zoo, frame, frames, making

MakePool = Callable[..., VecEnv]

POOLS: dict[str, MakePool] = {
    "list": ListEnv,
    "threads": lambda env, n, **options: ThreadedVecEnv(env, n, 3, **options),
    "processes": lambda env, n, **options: ThreadedVecEnv(env, n, num_processes=2, **options),
}


@pytest.fixture(params=POOLS)
def pool(request: pytest.FixtureRequest, threads: None) -> MakePool:
    """Makes a pool of each kind. Worker processes are threads here: all of the pool but the interpreters."""
    return POOLS[request.param]


def trajectories(env: VecEnv, steps: int) -> list[list[dict]]:
    """Return the first observation and `steps` steps of each environment, however they come in."""
    streams = Streams(env)
    seen: list[list[dict]] = [[] for _ in range(len(env))]
    env.async_reset()
    while min(map(len, seen)) <= steps:
        obs = env.recv()
        assert len(obs) == env.batch_size
        assert obs.env_id.tolist() == sorted(obs.env_id.tolist())
        for k, i in enumerate(obs.env_id):
            seen[i].append({**frame(obs, k), "elapsed_step": int(obs.elapsed_step[k])})
        env.send(streams.actions(obs), obs.env_id)
    return [frames[: steps + 1] for frames in seen]


# --- The same as together


def test_together_and_in_order_everything_is_as_in_a_list(pool: MakePool) -> None:
    expected = contents(play_together(ListEnv(Zoo, 6, seed=4, final_observations="all"), 20))
    with pool(Zoo, 6, seed=4, final_observations="all") as env:
        assert contents(play_together(env, 20)) == expected
        assert contents(play_together(env, 20)) != expected  # random numbers go on
    with pool(Zoo, 6, seed=4, final_observations="all") as env:
        streams = Streams(env)
        env.async_reset()
        seen = [env.recv()]
        for _ in range(20):
            env.send(streams.actions(seen[-1]))
            seen.append(env.recv())
    assert contents(seen) == expected


@pytest.mark.parametrize("batch_size", [1, 3])
def test_in_any_order_every_environment_goes_its_way(pool: MakePool, batch_size: int) -> None:
    expected = trajectories(ListEnv(Zoo, 5, seed=4), 12)
    with pool(Zoo, 5, seed=4, batch_size=batch_size) as env:
        assert env.batch_size == batch_size
        assert trajectories(env, 12) == expected


def test_a_pool_that_is_a_part_counts_from_its_first_environment(pool: MakePool) -> None:
    with pool(Zoo, 3, seed=3, first_env=2) as part:
        obs = part.reset()
        assert frames(obs) == frames(ListEnv(Zoo, 5, seed=3).reset())[2:]
        assert obs.env_id.tolist() == [0, 1, 2]
    with pool(Counter, 3, first_env=2) as named:
        named.reset()
        with pytest.raises(ValueError, match=r"Counter \(environment 3\): action 'add'"):
            named.act(add(1, 7, 1))


def test_no_array_that_was_returned_is_written_to_again(pool: MakePool) -> None:
    with pool(Zoo, 4, seed=1, final_observations="all") as env:
        seen = play_together(env, 6)
        before = copy.deepcopy(contents(seen))
        play_together(env, 6)
    assert contents(seen) == before  # and it outlives the pool
    seen[0].reward[:] = 1  # they are writable


# --- Who comes back


class Gate(Counter):
    """Takes a step only when its gate is open."""

    def __init__(self, is_open: bool = True) -> None:
        super().__init__(limit=100)
        self.gate = threading.Event()
        if is_open:
            self.gate.set()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        assert self.gate.wait(timeout=20)
        return super().act(actions)


def test_whichever_is_done_first_comes_back_first() -> None:
    envs = [Gate(is_open=False), Gate(), Gate()]
    with ThreadedVecEnv(making(*envs), 3, 3, batch_size=2) as env:
        env.async_reset()
        env.recv()
        env.reset()
        env.send(add(1, 2, 1))
        obs = env.recv()
        assert (obs.env_id.tolist(), totals(obs)) == ([1, 2], [2, 1])
        env.send(add(2), [1])
        envs[0].gate.set()
        obs = env.recv()
        assert (obs.env_id.tolist(), totals(obs)) == ([0, 1], [1, 4])


def test_one_thread_steps_in_the_order_of_sending_and_no_further_than_it_must() -> None:
    envs = [Counter() for _ in range(4)]
    env = ListEnv(making(*envs), 4, batch_size=2)
    env.reset()
    env.send(add(1, 1, 1), [3, 0, 1])
    assert env.recv().env_id.tolist() == [0, 3]
    assert [each.total for each in envs] == [1, 0, 0, 1]


def test_some_of_the_environments_are_stepped_in_the_order_asked_for(pool: MakePool) -> None:
    with pool(Counter, 4) as env:
        env.reset()
        obs = env.act(add(1, 2), [3, 1])
        assert (obs.env_id.tolist(), totals(obs), obs.elapsed_step.tolist()) == ([3, 1], [1, 2], [1, 1])
        obs = env.act(add(1, 1, 1, 1))
        assert (totals(obs), obs.elapsed_step.tolist()) == ([1, 3, 1, 2], [1, 2, 1, 2])
        assert len(env.act({"add": RaggedBuffer.from_flattened(np.zeros((0, 1), np.int64), [])}, [])) == 0


# --- Steps of the episode


def test_steps_are_counted_from_the_first_observation_of_each_episode(pool: MakePool) -> None:
    with pool(Counter, 2) as env:
        seen = [env.reset(env_info={"limit": [2, 3]}), *(env.act(add(1, 1)) for _ in range(4))]
        assert [obs.elapsed_step.tolist() for obs in seen] == [[0, 0], [1, 1], [0, 2], [1, 0], [0, 1]]
        assert [obs.done.tolist() for obs in seen][2:] == [[True, False], [False, True], [True, False]]
        # the last observation of an episode has all of its steps behind it, and nobody acts on it
        finals = [None if obs.final is None else obs.final.elapsed_step.tolist() for obs in seen]
        assert finals == [None, None, [2], [3], [2]]
        assert seen[2].final is not None
        assert seen[2].final.action_masks["add"].actors.to_list() == [[]]
        state = env.state()
        env.act(add(1, 1))
        assert env.load_state(state).elapsed_step.tolist() == [0, 1]


# --- Without autoreset


def test_without_autoreset_the_batch_shrinks_as_episodes_end(pool: MakePool) -> None:
    with pool(Counter, 3, autoreset=False) as env:
        seen = [env.reset(env_info={"limit": [2, 1, 3]})]
        for amounts in ((1, 2, 1), (1, 2), (2,)):
            obs = env.act(add(*amounts), seen[-1].env_id)
            seen += [obs, obs.gather(np.flatnonzero(~obs.done))]
        assert [(obs.env_id.tolist(), totals(obs)) for obs in seen] == [
            ([0, 1, 2], [0, 0, 0]),
            ([0, 1, 2], [1, 2, 1]),
            ([0, 2], [1, 1]),
            ([0, 2], [2, 3]),
            ([2], [3]),
            ([2], [5]),
            ([], []),
        ]
        last = seen[1]  # the last step of an episode has everything but actions
        assert (last.done.tolist(), last.truncated.tolist()) == ([False, True, False], [False, True, False])
        assert (last.reward.tolist(), last.end_of_episode_info, last.final) == ([1, 2, 1], {1: {"total": 2}}, None)
        assert last.action_masks["add"].actors.to_list() == [[[0]], [], [[0]]]
        assert totals(env.reset()) == [0, 0, 0]  # parameters stay what they are
        assert env.act(add(1, 1, 1)).done.tolist() == [False, True, False]


def test_without_autoreset_an_episode_that_has_ended_takes_no_step(pool: MakePool) -> None:
    over = r"the episode of Counter \(environment 1\) has ended, and there is no autoreset; step those that go on, or call reset"
    with pool(Counter, 2, autoreset=False, batch_size=1) as env:
        env.reset(env_info={"limit": [3, 1]})
        env.send(add(1), [1])
        assert env.recv().done.tolist() == [True]
        for act in (env.act, env.send):
            with pytest.raises(ValueError, match=over):
                act(add(1, 1))
        state = env.state()
        assert env.load_state(state).done.tolist() == [False, True]
        with pytest.raises(ValueError, match=over):
            env.act(add(1), [1])
        assert totals(env.act(add(1), [0])) == [1]
        assert totals(env.reset()) == [0, 0]


def test_whole_episodes_are_those_with_autoreset(pool: MakePool) -> None:
    """First episodes are the same step for step; their last observation is the one that autoreset keeps in `final`."""
    with ListEnv(Zoo, 9, seed=3, final_observations="all") as again, pool(Zoo, 9, seed=3, autoreset=False) as env:
        streams, other = Streams(again), Streams(env)
        going, obs = again.reset(), env.reset()
        assert content(obs) == content(going)
        while len(obs):
            ids = obs.env_id
            going = again.act(streams.actions(going), ids)
            obs = env.act(other.actions(obs), ids)
            for name in ("reward", "done", "truncated", "env_id"):
                assert content(getattr(obs, name)) == content(getattr(going, name))
            if obs.done.any():
                last, rest = obs.gather(np.flatnonzero(obs.done)), np.flatnonzero(~obs.done)
                assert going.final is not None and frames(last) == frames(going.final)
                obs, going = obs.gather(rest), going.gather(rest)
        with pytest.raises(ValueError, match="act: the episode of Zoo"):
            env.act({}, [0])


# --- Mistakes


def test_waiting_for_more_than_is_under_way_is_a_mistake_and_no_hang(pool: MakePool) -> None:
    with pool(Counter, 4, batch_size=3) as env:
        env.reset()
        with pytest.raises(ValueError, match="recv returns batch_size=3 environments, and 0 are under way: send them"):
            env.recv()
        env.send(add(1, 1), [0, 1])
        with pytest.raises(ValueError, match="batch_size=3 environments, and 2 are under way"):
            env.recv()
        env.send(add(1), [2])
        assert totals(env.recv()) == [1, 1, 1]


def test_an_environment_takes_one_step_at_a_time(pool: MakePool) -> None:
    with pool(Counter, 3) as env:
        for call in (env.send, env.act):
            with pytest.raises(ValueError, match=f"{call.__name__} was called before reset"):
                call(add(1, 1, 1))
        env.reset()
        env.send(add(1, 1), [0, 2])
        under_way = r"Counter \(environment 2\) is under way; recv it first"
        with pytest.raises(ValueError, match=f"send: {under_way}"):
            env.send(add(1, 1), [1, 2])
        with pytest.raises(ValueError, match=f"act: {under_way}"):
            env.act(add(1), [2])
        env.send(add(1), [1])  # the refused ones have left no trace
        assert totals(env.recv()) == [1, 1, 1]


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ([0, 3], "env_id names environment 3; there are 0 to 2"),
        ([1, 0, 1], "env_id names environment 1 2 times; each may be stepped once"),
        ([0.5], "env_id is [0.5]; it must be a list of environments, as whole numbers"),
        ([True, False, True], "env_id is [True, False, True]; it must be a list of environments"),
    ],
)
def test_environments_must_be_there_and_named_once(env_id: list, message: str) -> None:
    env = ListEnv(Counter, 3)
    env.reset()
    for method in (env.act, env.send):
        with pytest.raises(ValueError) as info:
            method(add(1), env_id)
        assert message in str(info.value)


def test_actions_are_checked_when_they_are_sent(pool: MakePool) -> None:
    with pool(Counter, 3) as env:
        env.reset()
        with pytest.raises(
            ValueError, match=r"Counter \(environment 2\): action 'add' of entity 0 is 3; expected a choice"
        ):
            env.send(add(1, 3), [0, 2])
        with pytest.raises(ValueError, match="action 'add' has 1 sequences for 2 environments"):
            env.send(add(1), [0, 2])
        with pytest.raises(ValueError, match="action 'add' is missing"):
            env.act({})
        env.send(add(1, 1, 1))
        assert totals(env.recv()) == [1, 1, 1]


def test_actions_may_be_overwritten_once_they_are_sent(pool: MakePool) -> None:
    with pool(Counter, 3) as env:
        env.reset()
        actions = add(1, 1, 1)
        env.send(actions)
        actions["add"].values[:] = 77
        assert totals(env.recv()) == [1, 1, 1]


# --- Errors of environments


class Touchy(Counter):
    """Raises where 2 are to be added."""

    def __init__(self) -> None:
        super().__init__(limit=100, error=ZeroDivisionError("oh no"))


def test_an_error_concerns_the_environment_that_raised_it_and_the_others_go_on(pool: MakePool) -> None:
    with pool(Touchy, 3, batch_size=1) as env:
        env.reset()
        env.send(add(1, 2, 1))
        seen: list[int] = []
        errors = []
        for _ in range(3):
            try:
                seen += env.recv().env_id.tolist()
            except ZeroDivisionError as error:
                errors.append((str(error), error.__notes__[0]))
        assert errors == [("oh no", "raised by Touchy (environment 1) in act()")]
        assert sorted(seen) == [0, 2]
        assert totals(env.act(add(1, 1), [0, 2])) == [2, 2]
        with pytest.raises(ValueError, match=r"Touchy \(environment 1\) showed last was lost to an error"):
            env.send(add(1), [1])
        assert totals(env.reset()) == [0, 0, 0]


def test_after_an_error_of_a_step_together_the_pool_wants_a_reset_and_then_goes_on(pool: MakePool) -> None:
    with pool(Touchy, 4) as env:
        env.reset()
        with pytest.raises(ZeroDivisionError) as info:
            env.act(add(1, 1, 2, 2))
        assert info.value.__notes__[0] == "raised by Touchy (environment 2) in act()"  # the first of them
        lost = r"what Touchy \(environment 0\) showed last was lost to an error; call reset first"
        with pytest.raises(ValueError, match=lost):
            env.act(add(1, 1, 1, 1))
        with pytest.raises(ValueError, match=lost):
            env.state()
        env.reset()
        assert totals(env.act(add(1, 1, 1, 1))) == [1, 1, 1, 1]


# --- Starting over, saving


def test_a_reset_forgets_what_was_under_way(pool: MakePool) -> None:
    with pool(Touchy, 3, batch_size=1) as env:
        env.reset()
        env.send(add(1, 2, 1))
        assert totals(env.reset()) == [0, 0, 0]
        with pytest.raises(ValueError, match="0 are under way"):
            env.recv()
        env.async_reset()
        env.async_reset()
        assert sorted(i for _ in range(3) for i in env.recv().env_id.tolist()) == [0, 1, 2]


def test_a_pool_saved_with_steps_under_way_continues_identically(pool: MakePool) -> None:
    def start(env: VecEnv) -> tuple[VecObs, dict[str, RaggedBuffer[np.int64]]]:
        obs = env.reset(seed=2)
        return obs, Streams(env).actions(obs)

    expected = ListEnv(Zoo, 4, seed=2)
    _, actions = start(expected)
    now = expected.act(actions)
    later = expected.act(Streams(expected, seed=5).actions(now))

    with pool(Zoo, 4, batch_size=2) as env, pool(Zoo, 4, seed=9) as other:
        start(env)
        env.send(actions)
        state = env.state()
        now.final = None  # belongs to the step that was taken before saving
        assert content(other.load_state(state)) == content(now)
        assert content(other.act(Streams(other, seed=5).actions(now))) == content(later)
        assert sorted(i for _ in range(2) for i in env.recv().env_id.tolist()) == [0, 1, 2, 3]
        assert content(env.act(Streams(env, seed=5).actions(now))) == content(later)


@pytest.mark.parametrize("other", POOLS)
def test_a_pool_saved_in_the_middle_continues_identically_in_any_other(pool: MakePool, other: str) -> None:
    def go_on(env: VecEnv, obs: VecObs) -> list[Any]:
        return contents(play_together(env, 8, obs, seed=9)[1:])

    with pool(Zoo, 5, seed=1) as env, POOLS[other](Zoo, 5, seed=2) as another:
        obs = play_together(env, 6)[-1]
        assert env.can_save
        state = env.state()
        expected = go_on(env, obs)
        assert go_on(env, env.load_state(state)) == expected
        assert go_on(another, another.load_state(state)) == expected


def test_a_state_of_another_number_of_environments_or_of_none_is_refused(pool: MakePool) -> None:
    with pool(Zoo, 2) as env, pool(Zoo, 3) as other:
        with pytest.raises(ValueError, match="state was called before reset"):
            env.state()
        env.reset()
        with pytest.raises(ValueError, match="the saved state has 2 environments; this pool has 3"):
            other.load_state(env.state())


class Unsaved(Counter):
    state, load_state = Environment.state, Environment.load_state


def test_what_cannot_be_saved_says_so(pool: MakePool) -> None:
    with pool(Unsaved, 2) as env:
        env.reset()
        assert not env.can_save
        with pytest.raises(NotImplementedError, match=r"Unsaved does not implement state\(\)"):
            env.state()
        assert totals(env.act(add(1, 2))) == [1, 2]  # and goes on


# --- Parameters of episodes


@pytest.mark.parametrize(
    "env_info", [[{"limit": 1}, {}, {"limit": 2}], {"limit": [1, 3, 2]}, {"limit": np.array([1, 3, 2])}]
)
def test_episodes_can_differ_in_their_parameters(pool: MakePool, env_info: object) -> None:
    with pool(Counter, 3) as env:
        env.reset(env_info=env_info)
        seen = [env.act(add(0, 0, 0)).done.tolist() for _ in range(3)]
        assert seen == [[True, False, False], [True, False, True], [True, True, False]]
        env.reset()  # parameters stay what they are
        assert env.act(add(0, 0, 0)).done.tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("env_info", "message"),
    [
        ([{"limit": 1}], "env_info has 1 entries for 2 environments"),
        ({"limit": [1, 2, 3]}, "env_info['limit'] is 3 values; give one value for each of 2 environments"),
        ([{}, 3], "env_info[1] is 3; expected a mapping from parameter to value"),
        ([{}, {"limits": 1}], "unknown parameter 'limits'; allowed: 'limit'"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(env_info: object, message: str) -> None:
    with pytest.raises(ValueError) as info:
        ListEnv(Counter, 2).reset(env_info=env_info)
    assert message in str(info.value)


# --- Arguments, pictures and the end


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_envs": 0}, "num_envs is 0; it must be a whole number of at least 1"),
        ({"batch_size": 5}, "batch_size is 5; it must be a whole number from 1 to num_envs=4"),
        ({"seed": -1}, "seed is -1; it must be a whole number of at least 0"),
        ({"final_observations": "some"}, "final_observations is 'some'; allowed: ('truncated', 'all', 'none')"),
    ],
)
def test_arguments_that_cannot_be_are_refused(pool: MakePool, arguments: dict[str, Any], message: str) -> None:
    given = {"env": Counter, "num_envs": 4, **arguments}
    with pytest.raises(ValueError) as info:
        pool(given.pop("env"), given.pop("num_envs"), **given)
    assert message in str(info.value)


class Drawn(Counter):
    def render(self) -> Any:
        if self.total == 2:
            raise ZeroDivisionError("no screen")
        return np.full((1, 1, 3), self.total, np.uint8)


def test_some_environments_are_drawn(pool: MakePool) -> None:
    with pool(Drawn, 3) as env:
        env.reset()
        env.act(add(0, 2, 1))
        assert [image.tolist() for image in env.render([2, 0])] == [[[[1, 1, 1]]], [[[0, 0, 0]]]]
        with pytest.raises(ValueError, match="env_id names environment 3; there are 0 to 2"):
            env.render([3])
        with pytest.raises(ZeroDivisionError) as info:
            env.render([1])
        assert info.value.__notes__[0] == "raised by Drawn (environment 1) in render()"


def test_closing_twice_is_allowed_and_a_closed_pool_says_so(pool: MakePool) -> None:
    made: list[Counter] = []

    def make() -> Counter:
        made.append(Counter())
        return made[-1]

    env = pool(make, 3)
    env.reset()
    env.close()
    assert all(each.closed == 1 for each in made)  # workers have copies
    env.close()
    for call in (
        env.reset,
        env.recv,
        env.async_reset,
        env.state,
        lambda: env.act(add(1, 1, 1)),
        lambda: env.render([0]),
    ):
        with pytest.raises(ValueError, match="the pool is closed"):
            call()


# --- Ctrl-C


def resets_in_time(env: VecEnv) -> VecObs:
    """Reset in another thread, which may hang, and fail if it does."""
    shown: list[VecObs] = []
    thread = threading.Thread(target=lambda: shown.append(env.reset()), daemon=True)
    thread.start()
    thread.join(30)
    assert shown, "reset waits for a task that nobody does"
    return shown[0]


@pytest.mark.parametrize("moment", ["submit", "next"])
def test_ctrl_c_while_steps_are_submitted_or_received_does_not_hang_the_reset(
    pool: MakePool, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pool(Counter, 4) as env:
        env.reset()
        method = getattr(env._workers, moment)  # type: ignore[attr-defined]

        def interrupted(*task: Any) -> None:
            method(*task)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(env._workers, moment, interrupted)  # type: ignore[attr-defined]
            with pytest.raises(KeyboardInterrupt):
                env.send(add(1, 1, 1, 1))
                env.recv()
        assert resets_in_time(env).elapsed_step.tolist() == [0] * 4
        assert totals(env.act(add(1, 2, 1, 2))) == [1, 2, 1, 2]
