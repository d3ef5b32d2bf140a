"""Worlds written over arrays: the contract, a world in 60 lines, and what a pool makes of it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from entity_gym import (
    ActionSpace,
    CategoricalActionSpace,
    Entity,
    GlobalCategoricalActionSpace,
    ObsSpace,
    SelectEntityActionSpace,
)
from entity_gym.actions.choices import random_actions
from entity_gym.batch.ragged import RaggedBufferI64
from entity_gym.pools.batch_env import BatchActors, BatchEnvironment, BatchObservation, BatchRandom, BatchStep, Rows
from entity_gym.pools.episodes import EpisodeVecEnv
from entity_gym.pools.pool import BatchVecEnv, ThreadedVecEnv
from entity_gym.pools.vec_env import VecEnv
from tests.entity_gym.pools.kinds_of_pools import content

WIDTH, APPLES, MAX_STEPS = 5, 3, 12


class Orchard(BatchEnvironment):
    """A walker on a line of 5 cells eats the apples that it steps on, for a reward of 1 each, until none is left."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.walker = np.zeros(num_envs, np.int64)
        self.apple = np.zeros((num_envs, APPLES), np.int64)  # cells
        self.hangs = np.zeros((num_envs, APPLES), np.bool_)
        self.steps = np.zeros(num_envs, np.int64)

    def obs_space(self) -> ObsSpace:
        return ObsSpace({"Apple": Entity(["x"]), "Walker": Entity(["x"])}, ["steps"])

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {"Walk": CategoricalActionSpace(["left", "right"])}

    def reset(self, ids: np.ndarray, rng: BatchRandom) -> None:
        self.walker[ids] = rng.integers(ids, WIDTH)
        self.apple[ids] = rng.integers(ids, WIDTH, APPLES)
        self.hangs[ids] = self.apple[ids] != self.walker[ids][:, None]
        self.steps[ids] = 0

    def step(self, ids: np.ndarray, actions: Mapping[str, RaggedBufferI64], rng: BatchRandom) -> BatchStep:
        self.walker[ids] += np.where(actions["Walk"].values[:, 0] == 0, -1, 1)
        self.steps[ids] += 1
        eaten = self.hangs[ids] & (self.apple[ids] == self.walker[ids][:, None])
        self.hangs[ids] &= ~eaten
        left = self.hangs[ids].sum(axis=1)
        return BatchStep(
            reward=eaten.sum(axis=1),
            terminated=left == 0,
            truncated=self.steps[ids] == MAX_STEPS,
            info={"left": left},
            metrics={"eaten": np.where(eaten.any(axis=1), eaten.sum(axis=1), np.nan)},
        )

    def observe(self, ids: np.ndarray) -> BatchObservation:
        hangs, walker = self.hangs[ids], self.walker[ids]
        return BatchObservation(
            features={
                "Apple": Rows(self.apple[ids][hangs][:, None], hangs.sum(axis=1)),
                "Walker": walker[:, None, None],
            },
            actions={"Walk": BatchActors(actors="Walker", mask=np.stack([walker > 0, walker < WIDTH - 1], 1)[:, None])},
            global_features=self.steps[ids][:, None],
        )

    def arrays(self) -> Mapping[str, np.ndarray]:
        return {"walker": self.walker, "apple": self.apple, "hangs": self.hangs, "steps": self.steps}

    def configure(self, ids: np.ndarray, env_info: Sequence[Mapping[str, Any]]) -> None:
        raise ValueError(f"orchards are all alike; {len(env_info)} differences were given")


def staged(walker: list[int], apples: list[list[int]]) -> BatchVecEnv:
    """Orchards with these walkers, and apples in these cells."""
    env = BatchVecEnv(Orchard, len(walker), final_observations="all")
    env.reset()
    orchard = env.env
    assert isinstance(orchard, Orchard)
    orchard.walker[:] = walker
    for i, cells in enumerate(apples):
        orchard.apple[i, : len(cells)] = cells
        orchard.hangs[i] = np.arange(APPLES) < len(cells)
    env.load_state(env.state())
    return env


def walk(*choices: int) -> dict[str, RaggedBufferI64]:
    return {"Walk": RaggedBufferI64.from_array(np.array(choices, np.int64).reshape(-1, 1, 1))}


# --- The world


def test_what_the_arrays_hold_becomes_a_batch() -> None:
    obs = staged([0, 4, 2], [[3, 1], [2], []]).load_state(staged([0, 4, 2], [[3, 1], [2], []]).state())
    assert obs.features["Apple"].to_list() == [[[3], [1]], [[2]], []]
    assert obs.features["Walker"].to_list() == [[[0]], [[4]], [[2]]]
    assert obs.features["__global__"].to_list() == [[[0]]] * 3
    mask = obs.action_masks["Walk"]
    assert mask.actors.to_list() == [[[2]], [[1]], [[0]]]  # behind the apples
    assert mask.mask is not None
    assert mask.mask.to_list() == [[[False, True]], [[True, False]], [[True, True]]]
    assert obs.features["Apple"].values.dtype == np.float32


def test_a_step_gives_rewards_and_ends_episodes_which_begin_again_at_once() -> None:
    env = staged([0, 3], [[1, 1, 3], [4]])
    obs = env.act(walk(1, 1))
    assert (obs.reward.tolist(), obs.done.tolist(), obs.truncated.tolist()) == ([2, 1], [False, True], [False, False])
    assert (obs.elapsed_step.tolist(), obs.end_of_episode_info) == ([1, 0], {1: {"left": 0}})
    assert (obs.metrics["eaten"].count, obs.metrics["eaten"].sum, obs.metrics["eaten"].max) == (2, 3, 2)
    final = obs.final
    assert final is not None
    assert (final.env_id.tolist(), final.reward.tolist(), final.elapsed_step.tolist()) == ([1], [1], [1])
    assert (final.features["Apple"].to_list(), final.features["Walker"].to_list()) == ([[]], [[[4]]])
    assert (final.action_masks["Walk"].actors.to_list(), final.end_of_episode_info) == ([[]], {1: {"left": 0}})
    obs = env.act(walk(1, int(obs.features["Walker"][1].values[0, 0] < 4)))
    assert obs.features["Apple"].to_list()[0] == [[3]]
    assert "eaten" not in obs.metrics or obs.metrics["eaten"].sum < 3


def test_a_masked_choice_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"Orchard \(environment 1\): action 'Walk' of entity 2 is 1; expected a choice"
    ):
        staged([0, 4], [[3], [0, 1]]).act(walk(1, 1))


# --- The pool


def play(env: VecEnv, steps: int = 30) -> list[Any]:
    rng = np.random.default_rng(0)
    seen = [env.reset(seed=5)]
    for _ in range(steps):
        seen.append(env.act(random_actions(seen[-1], rng, env.action_space())))
    return [content(obs) for obs in seen]


@pytest.mark.parametrize("num_threads", [3])
def test_it_is_stepped_by_threads_as_any_other(num_threads: int) -> None:
    expected = play(BatchVecEnv(Orchard, 7, final_observations="all"))
    with ThreadedVecEnv(Orchard, 7, num_threads, final_observations="all") as env:
        assert play(env) == expected


def test_some_environments_at_a_time_go_the_same_ways_as_all_together() -> None:
    together, apart = BatchVecEnv(Orchard, 4, seed=1), BatchVecEnv(Orchard, 4, seed=1, batch_size=2)
    obs, rng = together.reset(), np.random.default_rng(0)
    assert content(apart.reset()) == content(obs)
    for _ in range(20):
        actions = random_actions(obs, rng, together.action_space())
        obs = together.act(actions)
        for ids in ([3, 0], [1, 2]):
            apart.send({name: buffer[ids] for name, buffer in actions.items()}, ids)
        parts = [apart.recv(), apart.recv()]
        for part in parts:
            for row, i in enumerate(part.env_id):
                for name, features in part.features.items():
                    assert features[row] == obs.features[name][i]
                assert (part.reward[row], part.done[row]) == (obs.reward[i], obs.done[i])
        assert sorted(i for part in parts for i in part.end_of_episode_info) == sorted(obs.end_of_episode_info)
        finals = sorted(i for part in parts if part.final is not None for i in part.final.env_id)
        assert finals == ([] if obs.final is None else obs.final.env_id.tolist())


def test_a_pool_saved_in_the_middle_continues_identically() -> None:
    env = BatchVecEnv(Orchard, 5, seed=2)
    rng = np.random.default_rng(0)
    obs = env.reset()
    for _ in range(7):
        obs = env.act(random_actions(obs, rng, env.action_space()))
    twin, other = env.clone(), BatchVecEnv(Orchard, 5, seed=9)
    assert content(other.load_state(env.state())) == content(env.load_state(env.state()))
    for _ in range(30):
        actions = random_actions(obs, rng, env.action_space())
        obs = env.act(actions)
        assert content(twin.act(actions)) == content(obs)
        assert content(other.act(actions)) == content(obs)


def test_episodes_are_played_out_as_any_others() -> None:
    env = EpisodeVecEnv(Orchard, 6, seed=3)
    rng = np.random.default_rng(0)
    rewards, ended = np.zeros(6), []
    obs, running = env.reset()
    apples = obs.features["Apple"].size1()
    while len(running):
        (obs, was_running), (still_obs, running) = env.step(random_actions(obs, rng, env.action_space()))
        rewards[was_running] += obs.reward
        ended += obs.env_id[obs.done].tolist()
        left = {i: info["left"] for i, info in obs.end_of_episode_info.items()}
        assert all(rewards[i] == apples[i] - count for i, count in left.items())
        assert obs.action_masks["Walk"].actors.size1().tolist() == (~obs.done).astype(int).tolist()
        obs = still_obs
    assert sorted(ended) == list(range(6))


def test_errors_keep_their_type_and_say_which_environments_were_stepped() -> None:
    env = BatchVecEnv(Orchard, 3)
    with pytest.raises(ValueError, match="orchards are all alike") as info:
        env.reset(env_info=[{}] * 3)
    assert info.value.__notes__ == ["raised by Orchard (environment 0 and 2 others) in configure()"]
    env.reset()
    with pytest.raises(NotImplementedError, match=r"Orchard does not implement render\(\)"):
        env.render([1])


def test_a_world_that_does_not_list_its_arrays_cannot_be_saved() -> None:
    class Forgetful(Orchard):
        arrays = BatchEnvironment.arrays

    env = BatchVecEnv(Forgetful, 2)
    env.reset()
    assert not env.can_save
    with pytest.raises(NotImplementedError, match=r"Forgetful does not implement arrays\(\)"):
        env.state()
    with pytest.raises(ValueError, match=r"Forgetful does not implement arrays\(\)"):
        env.clone()


# --- Random numbers


def test_random_numbers_are_each_environments_own() -> None:
    rng, alone = BatchRandom(4), BatchRandom(1)
    rng.seed(7)
    alone.seed(7, first_env=2)
    first = rng.floats(np.array([2, 0]), 3)
    assert first.shape == (2, 3)
    assert alone.floats(np.array([0]), 3)[0].tolist() == first[0].tolist()
    assert alone.floats(np.array([0])).tolist() == rng.floats(np.array([2])).tolist()
    expected = np.random.SeedSequence((7, 3)).generate_state(1, np.uint64)[0]
    assert rng.states[3] == expected  # not yet used


def test_random_numbers_are_uniform_over_their_range() -> None:
    rng = BatchRandom(100)
    rng.seed(1)
    everyone = np.arange(100)
    floats = rng.floats(everyone, 200)
    assert 0 <= floats.min() and floats.max() < 1 and abs(floats.mean() - 0.5) < 0.01
    counts = np.bincount(rng.integers(everyone, 4, 200).ravel())
    assert len(counts) == 4 and abs(counts - 5000).max() < 5 * 5000**0.5
    assert (rng.integers(everyone, np.arange(1, 101)) < np.arange(1, 101)).all()
    with pytest.raises(ValueError, match="high is 0; it must be from 1 to 2"):
        rng.integers(everyone, 0)


# --- Everything that can be shown, and mistakes

YARD = ObsSpace({"Wall": Entity([]), "Dog": Entity(["x"]), "Cat": Entity(["x", "y"])}, ["time"])
SPACES: dict[str, ActionSpace] = {
    "walk": CategoricalActionSpace(["stay", "go"]),
    "chase": SelectEntityActionSpace(),
    "weather": GlobalCategoricalActionSpace(["sun", "rain", "fog"]),
}
T, F = True, False


class Yard(BatchEnvironment):
    """Two environments that show what they are given."""

    shown: BatchObservation
    answer: Any = BatchStep(np.zeros(2), np.zeros(2, np.bool_), np.zeros(2, np.bool_))

    def obs_space(self) -> ObsSpace:
        return YARD

    def action_space(self) -> Mapping[str, ActionSpace]:
        return SPACES

    def reset(self, ids: np.ndarray, rng: BatchRandom) -> None:
        pass

    def step(self, ids: np.ndarray, actions: Mapping[str, RaggedBufferI64], rng: BatchRandom) -> BatchStep:
        return self.answer

    def observe(self, ids: np.ndarray) -> BatchObservation:
        return self.shown


def yard(**fields: Any) -> BatchVecEnv:
    """A wall, dogs (2 and 1) and cats (1 and 2), with some fields replaced."""
    usual: dict[str, Any] = {
        "features": {
            "Wall": np.zeros((2, 1, 0)),
            "Dog": Rows(np.array([[1], [2], [3]]), np.array([2, 1])),
            "Cat": Rows(np.array([[4, 4], [5, 5], [6, 6]]), np.array([1, 2])),
        },
        "global_features": np.array([[0.5], [1.5]]),
    }
    env = BatchVecEnv(Yard, 2)
    assert isinstance(env.env, Yard)
    env.env.shown = BatchObservation(**{**usual, **fields})
    return env


def test_actors_and_actees_are_given_by_type_or_by_index() -> None:
    obs = yard(
        actions={
            "walk": BatchActors(actors=["Cat", "Dog"]),
            "chase": BatchActors(
                actors="Dog",
                actees=Rows(np.array([3, 0, 3]), np.array([1, 2])),
                mask=Rows(np.array([T, T, F, T]), np.array([2, 2])),
            ),
            "weather": BatchActors(mask=np.array([[T, F, T], [T, T, T]]), offered=np.array([T, F])),
        },
        visible={"Cat": Rows(np.array([T, F, T]), np.array([1, 2]))},
    ).reset()
    walk, chase, weather = (obs.action_masks[name] for name in ("walk", "chase", "weather"))
    assert walk.actors.to_list() == [[[3], [1], [2]], [[2], [3], [1]]]
    assert walk.mask is None
    assert chase.actors.to_list() == [[[1], [2]], [[1]]]
    assert chase.actees.to_list() == [[[3]], [[0], [3]]]
    assert chase.mask.to_list() == [[[T], [T]], [[F], [T]]]
    assert weather.actors.to_list() == [[[4]], []]
    assert weather.mask.to_list() == [[[T, F, T]], []]
    assert obs.visible["Cat"].to_list() == [[[T]], [[F], [T]]]
    assert list(obs.visible) == ["Cat"]


def test_what_is_left_out_is_nobody() -> None:
    obs = yard(features={}, actions={"chase": BatchActors(actors="Dog", actees="Cat")}).reset()
    assert [buffer.items() for buffer in obs.features.values()] == [0, 0, 0, 2]
    assert [mask.actors.items() for mask in obs.action_masks.values()] == [0, 0, 0]


def test_where_nobody_acts_nobody_is_selected() -> None:
    obs = yard(actions={"chase": BatchActors(actors="Dog", actees="Cat", offered=np.array([F, T]))}).reset()
    assert obs.action_masks["chase"].actees.to_list() == [[], [[2], [3]]]


def dogs(values: Any, counts: Any) -> dict[str, Any]:
    return {"features": {"Dog": Rows(np.array(values), np.array(counts))}}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"features": {"Dogs": np.zeros((2, 1, 1))}},
            "Yard: features of unknown entity type 'Dogs'; allowed: 'Wall', 'Dog'",
        ),
        ({"visible": {"dog": np.zeros((2, 1), bool)}}, "Yard: visible of unknown entity type 'dog'; allowed"),
        ({"actions": {"run": BatchActors()}}, "Yard: unknown action 'run'; allowed: 'walk', 'chase', 'weather'"),
        (
            {"features": {"Dog": np.zeros((2, 1))}},
            "features of 'Dog' have shape (2, 1); expected (2, rows, 1), or Rows",
        ),
        (dogs([[1], [2]], [1, 2]), "features of 'Dog' have shape (2, 1); expected (3, 1), as counts add up"),
        (
            dogs([[1], [2]], [3, -1]),
            "counts of features of 'Dog' are array([ 3, -1]); expected 2 whole numbers, 0 or more",
        ),
        (dogs([[1], [2]], [2]), "counts of features of 'Dog' are array([2]); expected 2 whole numbers"),
        (dogs([[1], [np.nan], [2]], [1, 2]), "Yard (environment 1): feature 'x' of entity 0 of type 'Dog' is nan"),
        (dogs([["1"], ["2"], ["3"]], [1, 2]), "Yard: features of 'Dog' are of type str32; expected numbers"),
        (dogs([[1j], [2], [3]], [1, 2]), "Yard: features of 'Dog' are of type complex128; expected numbers"),
        (
            {"global_features": None},
            "global_features have shape (2, 0) and type float64; expected numbers (2, 1), for ['time']",
        ),
        ({"global_features": np.array([["1"], ["2"]])}, "global_features have shape (2, 1) and type str32; expected"),
        (
            {"visible": {"Cat": np.ones((2, 1), bool)}},
            "visible of 'Cat' has other counts than its features",
        ),
        ({"visible": {"Wall": np.ones((2, 1))}}, "visible of 'Wall' are of type float64; expected bool"),
        ({"actions": {"walk": BatchActors()}}, "action 'walk': actors are None; give entity types, or Rows"),
        (
            {"actions": {"walk": BatchActors(actors="Dogs")}},
            "action 'walk': actors: unknown entity type 'Dogs'; allowed",
        ),
        (
            {"actions": {"walk": BatchActors(actors=Rows(np.array([3, 4]), np.array([1, 1])))}},
            "Yard (environment 1): action 'walk': actors name entity 4; there are 4",
        ),
        (
            {"actions": {"walk": BatchActors(actors="Wall", mask=np.ones((2, 2, 2), bool))}},
            "action 'walk': the mask has [2 2] rows; expected [1 1]",
        ),
        (
            {"actions": {"walk": BatchActors(actors="Dog", mask=Rows(np.eye(3, 2, dtype=bool), np.array([2, 1])))}},
            "Yard (environment 1): action 'walk': everything is masked for actor 0; leave something open",
        ),
        (
            {"actions": {"chase": BatchActors(actors="Wall", actees=["Wall"], mask=np.array([[T], [F]]))}},
            "Yard (environment 1): action 'chase': everything is masked for actor 0",
        ),
        (
            {"actions": {"walk": BatchActors(actors="Wall", offered=np.array([1, 0]))}},
            "action 'walk': offered is array([1, 0]); expected 2 bools",
        ),
    ],
)
def test_an_observation_that_cannot_be_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as info:
        yard(**fields).reset()
    assert message in str(info.value)


NO = np.zeros(2, np.bool_)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((np.zeros(2), NO, NO), "step() returned (array([0., 0.]), "),
        (BatchStep(np.zeros(3), NO, NO), "reward of step() has shape (3,) and type float64; expected 2 numbers"),
        (
            BatchStep(np.array([0, np.inf]), NO, NO),
            "(environment 1): step() returned the reward inf; it must be a finite",
        ),
        (
            BatchStep(np.array([0, 1e39]), NO, NO),
            "(environment 1): step() returned the reward 1e+39; it must be a finite",
        ),
        (
            BatchStep(np.zeros(2), np.zeros(2), NO),
            "terminated of step() has shape (2,) and type float64; expected 2 bools",
        ),
        (BatchStep(np.zeros(2), NO, NO, metrics={"m": np.array(["a", "b"])}), "metrics['m'] of step() has shape (2,)"),
        (BatchStep(np.zeros(2), NO, NO, info={"i": np.zeros(1)}), "info['i'] of step() has shape (1,)"),
        (BatchStep(np.zeros(2), NO, NO, info=[{}]), "info of step() has 1 entries; expected 2"),
    ],
)
def test_an_answer_that_cannot_be_is_refused(answer: Any, message: str) -> None:
    env = yard()
    env.reset()
    assert isinstance(env.env, Yard)
    env.env.answer = answer
    nobody = {name: RaggedBufferI64.from_flattened(np.zeros((0, 1), np.int64), [0, 0]) for name in SPACES}
    with pytest.raises(ValueError) as info:
        env.act(nobody)
    assert message in str(info.value)


def test_a_factory_must_make_as_many_as_asked_for() -> None:
    with pytest.raises(ValueError, match=r"create_env\(3\) returned .*; it must return as many as a BatchEnvironment"):
        BatchVecEnv(lambda n: Orchard(n + 1), 3)
