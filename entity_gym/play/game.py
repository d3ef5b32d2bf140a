"""An environment that a person plays step by step, and back, as a growing replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions.choices import check_actions
from entity_gym.actions.select_entity import NOBODY
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.check.trajectory import difference
from entity_gym.pools.pool import ListEnv
from entity_gym.pools.source import EnvSource
from entity_gym.replay.build import build_decisions, build_replay, build_view, number, offer_of, plain, to_decimals
from entity_gym.replay.hints import check_hints


class Advice(NamedTuple):
    """A policy's decisions in a batch of one frame."""

    actions: Mapping[str, VecAction]  # as `VecEnv.act` takes them
    logits: Mapping[str, NDArray[np.float32]]  # discrete action -> log-probs of the choices, as in `ActResult`
    value: float | None = None  # the expected return; None if the policy does not estimate it


#: Decides in a batch of one frame.
Policy = Callable[[VecObs], Advice]


class NotAllowedError(ValueError):
    """A move that the game refuses; the game goes on."""


class Moment(NamedTuple):
    """One observation of the game."""

    obs: VecObs  # of one frame
    total: float  # reward of the episode so far
    episode: int  # from 1
    actions: Mapping[str, VecAction] | None  # that led here; None for a reset


class Game:
    """A pool of one environment, and the replay of what is played in it.

    Every move is made with what the page posts, and returns the last steps of the replay, as `{"episodes": how many there are,
    "steps": of the last one, "episode": the last one without its steps, "tail": its last steps}`.

    Args:
        source: makes the environment.
        seed: the environment does what environment 0 of a pool with this seed does.
        policy: its choices are shown as advice. None: there are none.

    Attributes:
        replay: in the format of docs/replays.md.
        moments: all that was shown, and not undone.
    """

    def __init__(self, source: EnvSource, seed: int, policy: Policy | None = None) -> None:
        self._source, self._seed, self._policy = source, seed, policy
        self._make_pool = partial(ListEnv, source, 1, seed, autoreset=False, compile=False)
        self._pool = self._make_pool()
        self.moments: list[Moment] = []
        self.replay = build_replay(
            title=f"{source.name}: your game",
            world=source.name,
            settings=source.given(),
            obs_space=self._pool.obs_space(),
            action_space=self._pool.action_space(),
        )
        self._begin()

    def close(self) -> None:
        """Close the environment."""
        self._pool.close()

    # ---- moves

    def act(self, given: Any) -> dict[str, Any]:
        """Take a step with `{"actions": {action: [column, list of numbers, or set as a list of columns, of each actor]}}`."""
        if self.moments[-1].obs.done[0]:
            raise NotAllowedError("the episode has ended")
        actions, before = self._read(given), self._steps[-1]
        self._remember(self._pool.act(actions), actions)
        for name, decisions in before["views"][0]["actions"].items():
            decisions["chosen"] = given["actions"][name]
        self._steps.append(self._step())
        return self._answer(2)

    def begin_episode(self, _: Any = None) -> dict[str, Any]:
        """Reset the environment after the end of an episode."""
        if not self.moments[-1].obs.done[0]:
            raise NotAllowedError("the episode has not ended")
        self._begin()
        return self._answer(1)

    def undo(self, _: Any = None) -> dict[str, Any]:
        """Undo the last step, or the last reset; the first one stays."""
        return self._go_back(max(0, len(self.moments) - 2))

    def restart(self, _: Any = None) -> dict[str, Any]:
        """Go back to the first observation of this episode."""
        return self._go_back(len(self.moments) - len(self._steps))

    # ---- how they are made

    @property
    def _steps(self) -> list[dict[str, Any]]:
        steps: list[dict[str, Any]] = self.replay["episodes"][-1]["steps"]
        return steps

    def _begin(self) -> None:
        self._remember(self._pool.reset(), None)
        hints = check_hints(self._pool.draw([0])[0], self._pool.obs_space(), self._source.name)
        episode = {"seed": self._seed, "number": 0, "drawing": hints, "reward": 0, "length": 0, "info": {}}
        self.replay["episodes"].append({**episode, "steps": [self._step()]})

    def _remember(self, obs: VecObs, actions: Mapping[str, VecAction] | None) -> None:
        total = 0.0 if actions is None else self.moments[-1].total + float(obs.reward[0])
        episode = len(self.replay["episodes"]) + (actions is None)
        self.moments.append(Moment(obs, total, episode, actions))

    def _go_back(self, index: int) -> dict[str, Any]:
        """Play a new environment up to the moment `index`."""
        target = self.moments[index]
        if target is self.moments[-1]:
            return self._answer(1)
        pool = self._make_pool()
        for moment in self.moments[: index + 1]:
            obs = pool.reset() if moment.actions is None else pool.act(moment.actions)
            if difference(moment.obs, obs, pool.obs_space()):
                pool.close()
                raise NotAllowedError(f"{self._source.name} does not repeat itself from its seed: there is no way back")
        self._pool.close()
        self._pool = pool
        del self.moments[index + 1 :]
        del self.replay["episodes"][target.episode :]
        del self._steps[int(target.obs.elapsed_step[0]) :]
        self._steps.append(self._step())
        return self._answer(1)

    def _answer(self, num_steps: int) -> dict[str, Any]:
        now, episode = self.moments[-1], self.replay["episodes"][-1]
        info = plain(now.obs.end_of_episode_info.get(0) or {})
        episode.update(reward=number(now.total), length=len(self._steps) - 1, info=info)
        return {
            "episodes": len(self.replay["episodes"]),
            "steps": len(self._steps),
            "episode": {name: value for name, value in episode.items() if name != "steps"},
            "tail": self._steps[-num_steps:],
        }

    def _step(self) -> dict[str, Any]:
        """Return the present step as JSON; nobody has chosen yet."""
        obs = self.moments[-1].obs
        view = build_view(obs, 0, self._pool.obs_space(), self._pool.slots.world_ids(0))
        advice = None if self._policy is None or obs.done[0] else self._policy(obs)
        if advice is not None and advice.value is not None:
            view["value"] = number(advice.value)
        view["actions"] = self._decisions(obs, advice)
        reward, done, truncated = number(obs.reward[0]), bool(obs.done[0]), bool(obs.truncated[0])
        return {"reward": reward, "rewards": [reward], "done": done, "truncated": truncated, "views": [view]}

    def _decisions(self, obs: VecObs, advice: Advice | None) -> dict[str, Any]:
        """Return the decisions of all actors, who have not chosen yet, with the policy's choices as `advised`."""
        spaces = self._pool.action_space()
        counts = {name: len(mask.actors.values) for name, mask in obs.action_masks.items()}
        nothing: dict[str, VecAction] = {}
        for name, space in spaces.items():
            offsets = space.value_offsets(obs.action_masks[name])
            nothing[name] = RaggedBuffer(np.zeros((int(offsets[-1]), space.width), space.dtype), offsets)
        given = (nothing, None) if advice is None else (advice.actions, advice.logits)
        decisions = build_decisions(obs, 0, spaces, *given)
        for name, each in decisions.items():
            space = spaces[name]
            if advice is not None:
                each["advised"] = each["chosen"]
            if advice is not None and space.undecided == NOBODY:  # one choice
                probs = np.array(each["probs"])
                each["entropy"] = to_decimals(-(probs * np.log(np.where(probs > 0, probs, 1))).sum(axis=1))
            each["chosen"] = [space.undecided] * counts[name]
        return decisions

    def _read(self, given: Any) -> dict[str, VecAction]:
        """Return the choices that a page has posted as actions of the pool.

        Raises:
            NotAllowedError: something is missing, of the wrong type, closed, or out of bounds.
        """
        posted, masks = given.get("actions") if isinstance(given, dict) else None, self.moments[-1].obs.action_masks
        offered = [name for name, mask in masks.items() if len(mask.actors.values)]
        if not isinstance(posted, dict) or set(posted) != set(offered):
            raise NotAllowedError(f"actions must be an object with {', '.join(map(repr, offered)) or 'nothing'}")
        actions: dict[str, VecAction] = {}
        try:
            for name, space in self._pool.action_space().items():
                offer, chosen, values = offer_of(masks[name], 0), posted.get(name, []), list[float]()
                if not isinstance(chosen, list) or len(chosen) != len(offer.actors):
                    raise NotAllowedError(f"{name} must be a list with a choice of each of {len(offer.actors)} actors")
                columns, is_open = space.columns(offer)
                for actor, each, flags in zip(offer.actors.tolist(), chosen, is_open.tolist(), strict=True):
                    values += space.from_page(f"{name} of entity {actor}", each, columns, flags)
                array = np.array(values, space.dtype).reshape(-1, space.width)
                actions[name] = RaggedBuffer.from_flattened(array, [len(array)])
            # what earlier choices close, too
            check_actions(actions, masks, self._pool.action_space(), lambda _: "this position")
        except ValueError as error:
            raise NotAllowedError(str(error)) from None
        return actions
