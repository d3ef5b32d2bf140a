"""Small worlds for the tests of bridges to other libraries; what they show and pay is worked out by hand."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from entity_gym import (
    Action,
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    ContinuousActionMask,
    ContinuousActionSpace,
    Entity,
    Environment,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
    SelectEntitiesActionMask,
    SelectEntitiesActionSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
    compiled,
)

#: Room for `Yard`, and without its continuous action.
ROOM: dict[str, Any] = {"max_entities": {"Dog": 3, "Cat": 2}, "max_actors": {"chase": 3, "bark": 3, "run": 3}}
CHOICES: dict[str, Any] = {"run": False, "max_entities": ROOM["max_entities"], "max_actors": {"chase": 3, "bark": 3}}


def maker(make_one: Callable[..., Any], make_many: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Yield a function that makes one environment, or a number of them; compiled worlds as ordinary Python. Closes all."""
    made: list[Any] = []

    def make(env: Any, *num_envs: int, **options: Any) -> Any:
        if isinstance(env, str) or hasattr(env, "as_environment"):
            options.setdefault("compile", False)
        made.append((make_many if num_envs else make_one)(env, *num_envs, **options))
        return made[-1]

    yield make
    for env in made:
        env.close()


class Yard(Environment):
    """A world with each kind of action. In step t there are t + 1 dogs at 10, 11, ..., of which the last is hidden, and 2 cats.

    Dogs chase cats or nobody; they bark (softly, normally or loudly, the first not loudly) and run (two numbers, the second
    at least 1); somebody holds the gate. The reward adds up
    1000 * gate + 100 * (place of the first dog's cat, counting from 1) + 10 * the sum of barks + the sum of what they run.
    Without `run` it has the other actions only.
    """

    def __init__(self, run: bool = True, max_steps: int = 3, most: int = 3) -> None:
        self.max_steps, self.most, self.run = max_steps, most, run
        self.steps = self.closed = 0

    def obs_space(self) -> ObsSpace:
        return ObsSpace({"Dog": Entity(["x"]), "Cat": Entity(["x", "y"])}, global_features=["time"])

    def action_space(self) -> Mapping[str, ActionSpace]:
        return self.without_run(
            {
                "chase": SelectEntityActionSpace(nobody=True),
                "bark": CategoricalActionSpace(["softly", "normally", "loudly"]),
                "run": ContinuousActionSpace([-2.0, 1.0], [2.0, 5.0]),
                "gate": GlobalCategoricalActionSpace(["shut", "open"]),
            }
        )

    def without_run(self, actions: dict[str, Any]) -> dict[str, Any]:
        return {name: action for name, action in actions.items() if name != "run" or self.run}

    def configure(self, info: Mapping[str, Any]) -> None:
        self.most = info["most"]

    def reset(self) -> Observation:
        self.steps = 0
        return self.observe(0.0)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        told: Any = actions
        chased = dict(zip(told["chase"].actors, told["chase"].actees, strict=True))
        place = [None, "cat 0", "cat 1"].index(chased.get("dog 0"))
        reward = 1000 * told["gate"].action + 100 * place + 10 * told["bark"].actions.sum()
        if self.run:
            reward += told["run"].values.sum()
        self.steps += 1
        return self.observe(float(reward))

    def observe(self, reward: float) -> Observation:
        num_dogs = min(self.steps + 1, self.most)
        barks = np.ones((num_dogs, 3), np.bool_)
        barks[0, 2] = False
        return Observation(
            features={"Dog": 10.0 + np.arange(num_dogs)[:, None], "Cat": [[1, 2], [3, 4]]},
            ids={"Dog": [f"dog {i}" for i in range(num_dogs)], "Cat": ["cat 0", "cat 1"]},
            actions=self.without_run(
                {
                    "chase": SelectEntityActionMask(actor_types=["Dog"], actee_types=["Cat"]),
                    "bark": CategoricalActionMask(actor_types=["Dog"], mask=barks),
                    "run": ContinuousActionMask(actor_types=["Dog"]),
                    "gate": GlobalCategoricalActionMask(),
                }
            ),
            reward=reward,
            done=self.steps == self.max_steps,
            truncated=self.steps == self.max_steps,
            global_features=[self.steps],
            visible={"Dog": [i + 1 < num_dogs or num_dogs == 1 for i in range(num_dogs)]},
            end_of_episode_info={"steps": self.steps} if self.steps == self.max_steps else None,
        )

    def close(self) -> None:
        self.closed += 1


class Packers(Environment):
    """Porters pack sets of things. In step t there are t + 1 porters, at most 2, and 2 things; a crate is there in even steps.

    Porter i cannot pack thing i, if `masked` is set. Things 0 and 1 are written 1 and 2, the crate 3; they are offered as 3, 2
    and 1. The last three digits of the reward are the set of the first porter in its order; those before, of the second.
    With `others` porters also walk and call, which earns nothing: who walks to the left cannot call low.
    """

    def __init__(
        self,
        ordered: bool = False,
        min: int = 0,
        max: int | None = None,
        masked: bool = True,
        others: bool = False,
        max_steps: int = 3,
    ) -> None:
        self.packs = SelectEntitiesActionSpace(ordered=ordered, min=min, max=max)
        self.masked, self.others, self.max_steps, self.steps = masked, others, max_steps, 0

    def obs_space(self) -> ObsSpace:
        return ObsSpace({"Thing": Entity(["x"]), "Porter": Entity([]), "Crate": Entity([])})

    def action_space(self) -> Mapping[str, ActionSpace]:
        more: dict[str, ActionSpace] = {}
        if self.others:
            more = {
                "call": CategoricalActionSpace(
                    ["low", "high"], after=["walk_to"], allowed={"walk_to": [[False, True], [True, True]]}
                ),
                "walk": ContinuousActionSpace([0.0], [1.0]),
                "walk_to": CategoricalActionSpace(["left", "right"], after=["pack"]),
            }
        return {"pack": self.packs, **more}

    def reset(self) -> Observation:
        self.steps = 0
        return self.observe(0.0)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        told: Any = actions
        written = ["".join(str(1 + int(actee)) for actee in actees) for actees in told["pack"].actees]
        self.steps += 1
        return self.observe(float(sum(1000**i * int(digits or "0") for i, digits in enumerate(written))))

    def observe(self, reward: float) -> Observation:
        num_porters, num_crates = min(self.steps + 1, 2), 1 - self.steps % 2
        may = np.ones((num_porters, 2 + num_crates), np.bool_)
        for i in range(num_porters if self.masked else 0):
            may[i, -1 - i] = False
        porters, things = [f"porter {i}" for i in range(num_porters)], ["2"] * num_crates + ["1", "0"]
        actions: dict[str, Any] = {"pack": SelectEntitiesActionMask(actor_ids=porters, actee_ids=things, mask=may)}
        if self.others:
            actions |= {
                "call": CategoricalActionMask(actor_ids=porters),
                "walk": ContinuousActionMask(actor_ids=porters),
                "walk_to": CategoricalActionMask(actor_ids=porters),
            }
        return Observation(
            features={
                "Thing": [[1.0], [2.0]],
                "Porter": np.zeros((num_porters, 0)),
                "Crate": np.zeros((num_crates, 0)),
            },
            ids={"Thing": ["0", "1"], "Porter": porters, "Crate": ["2"] * num_crates},
            actions=actions,
            reward=reward,
            done=self.steps == self.max_steps,
        )


#: Room for `Packers`. The rows are things 0 and 1, no thing, porters 0 and 1, and the crate.
PACK_ROOM: dict[str, Any] = {"max_entities": {"Thing": 3, "Porter": 2, "Crate": 1}, "max_actors": {"pack": 2}}


class Depot(compiled.CompiledEnvironment):
    """Two carts load boxes, of which there are `boxes`; the second cannot load box 0.

    Digit k of the reward, from the last on, is the place of box k in the set of the first cart, and digit 3 + k in that of the
    second.
    """

    entities = {
        "Cart": compiled.Entity([], max=2),
        "Box": compiled.Entity(["x"], max=3),
    }
    actions = {"load": compiled.SelectEntities(actors="Cart", actees="Box", masked=True, ordered=True)}
    parameters = {"boxes": 2}
    max_steps = 3
    state = [("unused", np.int64)]

    def reset(s: Any) -> None:
        s.unused = 0

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        reward = 0.0
        for j in range(2):
            for k in range(s.boxes):
                reward += 1000.0**j * 10.0**k * act.load[j, k]
        return reward, False, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Cart = 2
        obs.n.Box = s.boxes
        for k in range(s.boxes):
            obs.Box[k, 0] = 10.0 + k
        obs.load.mask[1, 0] = False


class Runners(Environment):
    """A world of continuous actions alone: `num` runners pick two numbers each, and are paid their sum. Two steps."""

    def __init__(self, num: int = 2) -> None:
        self.num, self.steps = num, 0

    def obs_space(self) -> ObsSpace:
        return ObsSpace({"Runner": Entity(["x"])})

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {"run": ContinuousActionSpace([-2.0, 1.0], [2.1, 5.0])}

    def reset(self) -> Observation:
        self.steps = 0
        return self.observe(0.0)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.steps += 1
        told: Any = actions
        return self.observe(float(told["run"].values.sum()))

    def observe(self, reward: float) -> Observation:
        return Observation(
            features={"Runner": np.arange(self.num)[:, None]},
            ids={"Runner": list(range(self.num))},
            actions={"run": ContinuousActionMask()},
            reward=reward,
            done=self.steps == 2,
        )


class Coins(Environment):
    """One step: one to three coins lie all on one side, and who goes there is paid 1."""

    def obs_space(self) -> ObsSpace:
        return ObsSpace({"Coin": Entity(["x"])})

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {"go": GlobalCategoricalActionSpace(["left", "right"])}

    def reset(self) -> Observation:
        self.right = bool(self.rng.integers(2))
        self.places = (1 if self.right else -1) * self.rng.uniform(0.5, 1.0, (self.rng.integers(1, 4), 1))
        return self.observe(0.0, done=False)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        told: Any = actions
        return self.observe(float(told["go"].label == ("right" if self.right else "left")), done=True)

    def observe(self, reward: float, *, done: bool) -> Observation:
        return Observation(
            features={"Coin": self.places}, actions={"go": GlobalCategoricalActionMask()}, reward=reward, done=done
        )


class Hall(compiled.CompiledEnvironment):
    """Guests choose doors and wave. The reward is 100 * light + 10 * the first guest's door + its wave; three steps."""

    entities = {
        "Door": compiled.Entity(["x"], max=3),
        "Guest": compiled.Entity(["x", "y"], max=2, hideable=True),
        "Lamp": compiled.Entity([], max=1),
    }
    global_features = ["time"]
    actions = {
        "enter": compiled.SelectEntity(actors="Guest", actees=["Door", "Lamp"]),
        "wave": compiled.Categorical(["no", "left", "right"], actors="Guest", masked=True),
        "light": compiled.GlobalCategorical(["off", "on"]),
    }
    parameters = {"doors": 2, "guests": 1}
    max_steps = 3
    state = [("light", np.int64)]
    info = ["light"]

    def reset(s: Any) -> None:
        s.light = 0

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        s.light = act.light[0]
        place = act.enter[0]
        if place >= act.first.Lamp:
            place = 9
        return 100.0 * s.light + 10.0 * place + act.wave[0], False, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Door = s.doors
        for i in range(s.doors):
            obs.Door[i, 0] = 10.0 + i
        obs.n.Guest = s.guests
        for i in range(s.guests):
            obs.Guest[i, 0] = 20.0 + i
            obs.Guest[i, 1] = s.steps
            obs.wave.mask[i, 2] = i > 0  # the first guest cannot wave to the right
            obs.visible.Guest[i] = i == 0
        obs.n.Lamp = 1
        obs.global_features[0] = s.steps
