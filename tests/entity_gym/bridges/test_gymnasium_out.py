"""Entity environments as `gymnasium.Env`s; what `out_worlds` show and pay is worked out by hand."""

import pickle
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

gymnasium = pytest.importorskip("gymnasium")

from gymnasium import spaces  # noqa: E402
from gymnasium.utils.env_checker import check_env, data_equivalence  # noqa: E402

from entity_gym.bridges import to_gymnasium  # noqa: E402
from entity_gym.bridges.gymnasium.envs import PaddedEnv, RaggedEnv  # noqa: E402
from entity_gym.registry import list_envs  # noqa: E402
from tests.entity_gym.bridges.form_worlds import Crowd, Hall  # noqa: E402
from tests.entity_gym.bridges.out_worlds import Coins, Runners, Yard, plain, yard_actions  # noqa: E402
from tests.entity_gym.pools.kinds_of_pools import Counter  # noqa: E402

Made = Callable[..., Any]

ROOM = {"max_entities": {"Dog": 3, "Cat": 2}, "max_actors": {"chase": 3, "bark": 3}}


@pytest.fixture
def out() -> Iterator[Made]:
    """`to_gymnasium`, compiled environments as ordinary Python; closes what it made."""
    made: list[Any] = []

    def make_one(env: Any, form: Any = "padded", **options: Any) -> Any:
        if isinstance(env, str) or hasattr(env, "as_environment"):
            options.setdefault("compile", False)
        made.append(to_gymnasium(env, form, **options))
        return made[-1]

    yield make_one
    for env in made:
        env.close()


def remarks(env: Any) -> list[str]:
    """What Gymnasium's checker says about it, unless it is that there are no bounds."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(env)
    return [text for each in caught if "infinity" not in (text := str(each.message)) and "symmetric" not in text]


# ---- padded


def test_a_padded_environment_is_one_dict_of_arrays_with_masks(out: Made) -> None:
    env = out(Yard, run=False, **ROOM)
    obs, _ = env.reset()
    chase, nobody = [0, 0, 0, 1, 1, 1], [0] * 6
    assert plain(obs) == {
        "entities/Dog": [[10], [0], [0]],
        "entities/Cat": [[1, 2], [3, 4]],
        "mask/Dog": [1, 0, 0],
        "mask/Cat": [1, 1],
        "global": [0],
        "actors/chase": [0, -1, -1],
        "actors/bark": [0, -1, -1],
        "action_mask/chase": [chase, nobody, nobody],
        "action_mask/bark": [[1, 1, 0], [0, 0, 0], [0, 0, 0]],
        "action_mask/gate": [[1, 1]],
    }
    assert obs in env.observation_space
    assert env.observation_space["mask/Dog"] == spaces.MultiBinary(3)
    assert env.action_space == spaces.MultiDiscrete([6, 6, 6, 3, 3, 3, 2])

    # The first dog chases cat 1, which is in row 4, and barks normally; the gate is opened. The rest is ignored.
    obs, reward, *_ = env.step(np.array([4, 9, -5, 1, 7, 7, 1]))
    assert reward == 1210.0
    assert plain(obs["entities/Dog"]) == [[10], [0], [0]]
    assert plain(obs["mask/Dog"]) == [1, 0, 0]  # the second is hidden
    assert plain(obs["actors/chase"]) == [0, 1, -1]


def test_what_is_open_can_be_asked_for_every_number_of_an_action(out: Made) -> None:
    env = out(Yard, run=False, **ROOM)
    env.reset()
    chase, nobody = [0, 0, 0, 1, 1, 1], [1, 0, 0, 0, 0, 0]
    bark, none = [1, 1, 0], [1, 0, 0]
    expected = [*chase, *nobody, *nobody, *bark, *none, *none, 1, 1]
    assert env.action_masks().astype(int).tolist() == expected
    assert len(expected) == sum(env.action_space.nvec)


def test_everything_is_open_in_a_world_that_cannot_close_an_action(out: Made) -> None:
    env = out("CartPole-v1")
    env.reset()
    assert env.action_masks().tolist() == [True, True]


@pytest.mark.parametrize("name", ["MineSweeper", "CherryPick", "MoveToOrigin"])
def test_what_is_open_is_never_replaced(name: str, out: Made) -> None:
    env, rng = out(name, invalid_actions="raise"), np.random.default_rng(0)
    env.reset(seed=0)
    for _ in range(100):
        masks, nvec = env.action_masks(), getattr(env.action_space, "nvec", [getattr(env.action_space, "n", 0)])
        parts = np.split(masks, np.cumsum(nvec)[:-1])
        numbers = [rng.choice(np.flatnonzero(part)) for part in parts]
        ended = env.step(np.array(numbers) if len(nvec) > 1 else numbers[0])[2:4]
        if any(ended):
            env.reset()


def test_it_is_what_the_nested_form_is_in_one_level(out: Made) -> None:
    flat, nested = out("MineSweeper"), to_gymnasium("MineSweeper", "nested", compile=False)
    one, other = flat.reset(seed=5), nested.reset(seed=5)
    rng = np.random.default_rng(1)
    for _ in range(40):
        for path, array in one[0].items():
            kind, _, name = path.partition("/")
            if kind != "mask":
                assert plain(array) == plain(other[0][kind][name] if name else other[0][kind])
        assert data_equivalence(one[-1], other[-1], exact=True)
        action = {name: rng.integers(space.nvec) for name, space in nested.action_space.items()}
        in_order = [action[name] for name in nested.env_spec.actions]
        one, other = flat.step(np.concatenate(in_order)), nested.step(action)
        assert one[1:4] == other[1:4]
        if one[2] or one[3]:
            one, other = flat.reset(), nested.reset()
    nested.close()


def test_continuous_actions_are_one_box(out: Made) -> None:
    env = out(Runners, max_entities={"Runner": 2})
    assert env.action_space == spaces.Box(np.array([-2, 1] * 2, np.float32), np.array([2, 5] * 2, np.float32))
    env.reset()
    assert env.action_masks().tolist() == []
    assert env.step(np.array([0, 1, 2, 5], np.float32))[1] == 8.0
    alone = out(Runners, num=1, max_entities={"Runner": 1})
    assert alone.action_space == spaces.Box(np.array([-2, 1], np.float32), np.array([2, 5], np.float32))
    alone.reset()
    assert alone.step(np.array([0.5, 1], np.float32))[1] == 1.5
    assert out(Runners, "ragged").action_space["run"].feature_space == alone.action_space


def test_real_and_whole_numbers_do_not_go_into_one_array(out: Made) -> None:
    with pytest.raises(
        ValueError, match=r"'bark' is categorical, 'run' is continuous.*use form='nested' or form='ragged'"
    ):
        out(Yard, **ROOM)
    assert set(to_gymnasium(Yard, "nested", **ROOM).action_space) == {"chase", "bark", "run", "gate"}


def test_more_entities_than_there_is_room_for_are_refused(out: Made) -> None:
    env = out(Yard, run=False, max_entities={"Dog": 1, "Cat": 2})
    env.reset()
    with pytest.raises(
        ValueError, match="Yard .* shows 2 entities of type 'Dog'; there is room for 1: see max_entities"
    ):
        env.step(np.zeros(env.action_space.shape, np.int64))


def test_more_actors_than_there_is_room_for_are_refused(out: Made) -> None:
    env = out(Yard, run=False, max_entities={"Dog": 3, "Cat": 2}, max_actors={"chase": 3, "bark": 1})
    env.reset()
    with pytest.raises(ValueError, match="Yard .* has 2 actors of 'bark'; there is room for 1: see max_actors"):
        env.step(np.zeros(env.action_space.shape, np.int64))


def test_a_python_world_has_to_be_told_how_many_there_can_be(out: Made) -> None:
    with pytest.raises(ValueError, match=r"say it, for example max_entities=\{'Dog': 10, 'Cat': 10\}"):
        out(Yard)
    with pytest.raises(ValueError, match="max_entities names 'Dogs'; .*did you mean 'Dog'"):
        out(Yard, max_entities={"Dogs": 1})


def test_an_action_of_another_shape_is_refused(out: Made) -> None:
    env = out(Yard, run=False, **ROOM)
    env.reset()
    with pytest.raises(
        ValueError, match=r"the action has shape \(2,\); expected \(7,\), the numbers of \['chase', 'bark'"
    ):
        env.step(np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="'bark' of actor 0 is 3; it must be from 0 to 2"):
        env.step(np.array([3, 0, 0, 3, 0, 0, 0]))


def test_a_world_that_declares_fixed_arrays_shows_these(out: Made) -> None:
    env, own = out("CartPole-v1"), gymnasium.make("CartPole-v1")
    assert (env.observation_space, env.action_space) == (own.observation_space, own.action_space)
    assert env.reset(seed=1)[0].shape == (4,)


def test_nested_names_are_joined_and_single_numbers_are_arrays_of_one(out: Made) -> None:
    arrays = {name: Crowd.arrays["obs:clock"] for name in ("obs:sky.sun", "obs:sky.moon.x")}
    sky = type("Sky", (Crowd,), {"arrays": arrays, "observe": observe_sky})
    env = out(sky)
    obs, _ = env.reset()
    assert plain(obs) == {"sky/sun": [5], "sky/moon/x": [6]}
    assert obs in env.observation_space


def observe_sky(s: Any, obs: Any) -> None:
    obs.n.Player = s.left
    obs.arrays.obs_sky_sun[()] = 5
    obs.arrays.obs_sky_moon_x[()] = 6


def test_rows_of_players_have_no_padded_form(out: Made) -> None:
    with pytest.raises(ValueError, match="Crowd shows a row for each player in 'players/view', .*use form='ragged'"):
        out(Crowd)


# ---- both


@pytest.mark.parametrize("form", ["padded", "ragged"])
@pytest.mark.parametrize("name", list_envs())
def test_every_environment_passes_gymnasiums_checker(name: str, form: str, out: Made) -> None:
    if name == "Skirmish" and form == "padded":
        with pytest.raises(ValueError, match="Skirmish has actions that do not go into one array .*use form='nested'"):
            out(name, form)
        form = "nested"
    assert remarks(out(name, form)) == []


@pytest.mark.parametrize(
    ("world", "options"),
    [
        (Yard, {"form": "ragged"}),
        (Yard, {"run": False, **ROOM}),
        (Runners, {"form": "ragged"}),
        (Runners, {"max_entities": {"Runner": 2}}),
        (Coins, {"form": "ragged"}),
        (Coins, {"max_entities": {"Coin": 3}}),
        (Crowd, {"form": "ragged"}),
        (Hall, {"form": "ragged"}),
        (Hall, {}),
        (Counter(), {"form": "ragged"}),
        (Counter(), {"max_entities": {"Total": 1}}),
    ],
)
def test_every_kind_of_world_passes_gymnasiums_checker(world: Any, options: dict[str, Any], out: Made) -> None:
    said = remarks(out(world, **options))
    if isinstance(world, Counter):  # one object cannot be made again
        said = [text for text in said if "spec" not in text]
    assert said == []


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), most=st.integers(1, 6))
def test_whatever_is_sampled_from_the_spaces_can_be_played(seed: int, most: int) -> None:
    room = {"max_entities": {"Dog": most, "Cat": 2}}
    for env in (to_gymnasium(Yard, "ragged", most=most), to_gymnasium(Yard, run=False, most=most, **room)):
        env.action_space.seed(seed)
        env.reset()
        for _ in range(3):
            obs, *_, info = env.step(env.action_space.sample())
            assert obs in env.observation_space
            assert info["replaced_actions"] <= 3 * min(most, 3)


@pytest.mark.parametrize("form", ["padded", "ragged"])
def test_a_seed_decides_everything(form: str, out: Made) -> None:
    def play(seed: int) -> list[Any]:
        env = out("MineSweeper", form)
        env.action_space.seed(0)
        return [env.reset(seed=seed), *(env.step(env.action_space.sample()) for _ in range(5))]

    assert all(data_equivalence(a, b, exact=True) for a, b in zip(play(1), play(1), strict=True))
    assert not data_equivalence(play(1)[0], play(2)[0], exact=True)


@pytest.mark.parametrize("form", ["padded", "ragged"])
def test_worlds_can_be_made_from_their_specs_again(form: str, out: Made) -> None:
    env = out("MineSweeper", form, max_episode_steps=7)
    again = gymnasium.make(env.spec)
    assert type(again.unwrapped) is type(env)
    assert again.observation_space == env.observation_space
    assert again.spec.max_episode_steps == 7
    again.close()
    assert pickle.loads(pickle.dumps(env.spec)).kwargs == env.spec.kwargs


def test_one_environment_object_can_be_given(out: Made) -> None:
    yard = Yard(max_steps=2)
    env = out(yard, "ragged")
    env.reset(options={"env_info": {"most": 1}})
    obs = env.step(yard_actions([1], [0], [[0, 1]], 0))[0]
    assert (yard.steps, plain(obs["counts"])) == (1, {"Dog": 1, "Cat": 2})
    assert env.spec is None
    env.close()
    assert yard.closed == 1


def test_images_are_those_of_the_world(out: Made) -> None:
    env = out("CherryPick", "ragged", render_mode="rgb_array")
    env.reset()
    assert env.render().dtype == np.uint8


def test_a_world_that_cannot_be_drawn_says_so(out: Made) -> None:
    assert out(Yard, "ragged").metadata["render_modes"] == out(Hall).metadata["render_modes"] == []
    assert out("CherryPick").metadata["render_modes"] == ["rgb_array"]


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(
        ValueError, match="form is 'raged'; allowed: 'padded', 'nested', 'ragged'; did you mean 'ragged'?"
    ):
        to_gymnasium("Xor", "raged")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_envs is 2"):
        to_gymnasium("Xor", num_envs=2)


def test_a_world_that_cannot_be_shown_is_closed() -> None:
    yard = Yard()
    with pytest.raises(ValueError, match="do not go into one array"):
        to_gymnasium(yard, **ROOM)
    with pytest.raises(ValueError, match="how many entities"):
        to_gymnasium(yard)
    assert yard.closed == 2


def test_the_classes_are_made_as_to_gymnasium_makes_them() -> None:
    assert type(to_gymnasium("Xor", compile=False)) is PaddedEnv
    assert type(to_gymnasium("Xor", "ragged", compile=False)) is RaggedEnv


def test_without_gymnasium_it_is_said_what_to_install() -> None:
    code = (
        "import sys; sys.modules['gymnasium'] = None\n"
        "try: import entity_gym.bridges.gymnasium.envs\n"
        "except ImportError as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert 'pip install "enn-ppo[gymnasium]"' in said


# ---- Stable-Baselines3


def test_stable_baselines3_learns_on_the_padded_form() -> None:
    sb3 = pytest.importorskip("stable_baselines3", reason="pip install stable-baselines3")
    env = to_gymnasium(Coins, max_entities={"Coin": 3})
    model = sb3.PPO("MultiInputPolicy", env, n_steps=128, batch_size=64, learning_rate=3e-3, seed=1, device="cpu")

    def mean_reward() -> float:
        rewards = []
        for k in range(100):
            obs, _ = env.reset(seed=k)
            rewards.append(env.step(model.predict(obs, deterministic=True)[0])[1])
        return float(np.mean(rewards))

    before = mean_reward()
    model.learn(640)
    after = mean_reward()
    env.close()
    assert before < 0.8  # this seed begins with bad guesses
    assert after > 0.95


@pytest.mark.parametrize(
    ("world", "options"),
    [
        ("MineSweeper", {"compile": False}),
        ("CartPole-v1", {"compile": False}),
        (Yard, {"run": False, **ROOM}),
        (Runners, {"max_entities": {"Runner": 2}}),
    ],
)
def test_stable_baselines3_takes_the_spaces(world: Any, options: dict[str, Any], out: Made) -> None:
    sb3 = pytest.importorskip("stable_baselines3", reason="pip install stable-baselines3")
    from stable_baselines3.common.env_checker import check_env as check_for_sb3

    env = out(world, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*(symmetric|unconventional shape)")  # it recommends, and flattens
        check_for_sb3(env)
    policy = "MultiInputPolicy" if isinstance(env.observation_space, spaces.Dict) else "MlpPolicy"
    model = sb3.PPO(policy, env, n_steps=16, batch_size=16, n_epochs=1, device="cpu")
    model.learn(16)
    assert model.num_timesteps == 16


# ---- measured room


def test_the_room_is_what_random_episodes_need_and_is_printed(out: Made, capsys: pytest.CaptureFixture[str]) -> None:
    env = out("MineSweeper", num_mines=3, num_robots=2, measure=True)
    shapes = {name: space.shape for name, space in env.observation_space.items()}
    assert shapes["entities/Mine"] == (3, 2) and shapes["entities/Robot"] == (2, 2)
    assert shapes["actors/Move"] == (2,) and shapes["actors/Fire Orbital Cannon"] == (1,)
    roomy = out("MineSweeper", num_mines=3, num_robots=2)
    assert roomy.observation_space["entities/Mine"].shape[0] > 10
    assert re.fullmatch(
        r"MineSweeper: 50 random episodes, [\d,]+ steps, need room for max_entities=\{'Mine': 3, 'Robot': 2, "
        r"'Orbital Cannon': 1\}, max_actors=\{'Move': 2, 'Fire Orbital Cannon': 1\}\n",
        capsys.readouterr().err,
    )
    env.reset(seed=1)
    for _ in range(50):
        if any(env.step(env.action_space.sample())[2:4]):
            env.reset()


def test_a_python_world_is_measured_and_what_is_given_stays(out: Made) -> None:
    env = out(Yard, run=False, measure=True, max_entities={"Cat": 9})
    assert env.observation_space["entities/Dog"].shape[0] == 3 and env.observation_space["entities/Cat"].shape[0] == 9
    assert env.spec.kwargs["max_entities"]["Dog"] == 3 and "measure" not in env.spec.kwargs


def test_one_environment_that_is_there_already_is_measured_and_goes_on(out: Made) -> None:
    yard = Yard(run=False)
    env = out(yard, measure=True)
    assert plain(env.reset()[0])["mask/Dog"][0] == 1
    assert yard.closed == 0


def test_ragged_rows_need_no_measure(out: Made) -> None:
    with pytest.raises(ValueError, match="measure is for form='padded'"):
        out(Yard, "ragged", measure=True)
