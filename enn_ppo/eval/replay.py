"""Replays of an evaluation: its first episodes with decisions, attention and values, as one page.

Shapes: n frames, P players.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from enn_ppo.eval.policy import Policy
from enn_ppo.training.files import replace_file
from entity_gym.actions.kind import has_global_entity
from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.pools.players import PlayerMapping, Seating
from entity_gym.pools.vec_env import VecEnv
from entity_gym.replay.build import build_attention, build_decisions, build_replay, build_view, number, plain
from entity_gym.replay.hints import check_hints
from entity_gym.replay.page import page_html
from entity_gym.spaces import GLOBAL_ENTITY, ObsSpace
from rogue_net import ObsBatch, RogueNet
from rogue_net.explain import explain
from rogue_net.inputs.embedding import EntityEmbedding

#: Entities of a frame up to which attention is explained: weights of larger frames, of all pairs, would take too much memory.
MOST_EXPLAINED = 2048

#: Finds the policy that acts in an environment; None: none that could be explained.
PolicyOf = Callable[[int], Policy | None]


class Subject(NamedTuple):
    """The evaluation that a replay shows."""

    title: str
    world: str
    settings: Mapping[str, Any]  # arguments of the world
    seed: int
    pool: VecEnv  # the environments, as all players together see them
    net: RogueNet  # whose statistics and sizes are shown
    mapping: PlayerMapping | None = None  # None: one policy acts for all players together
    played_by: Sequence[str] = ()  # (P,) names of the players' policies


class Replay:
    """Records the first episodes of an evaluation, each from its first observation to its last.

    Args:
        path: of the page, an `.html`; folders are created. None: no page is written.
        num_episodes: number of episodes to record.
        setting: the setting that requested the replay, for messages: `eval.replay=2`.
    """

    def __init__(self, path: Path | None, num_episodes: int, setting: str) -> None:
        self.path, self._left, self._setting = path, num_episodes, setting
        self._episodes: list[dict[str, Any]] = []
        self._running: dict[int, dict[str, Any]] = {}  # environment -> its episode
        self._views: dict[int, dict[int, dict[str, Any]]] = {}  # environment -> player -> view of the step under way
        self._arrived: dict[int, dict[str, Any]] = {}  # environment -> the step under way, without its views

    def show(self, subject: Subject) -> None:
        """Set the evaluation, before its first episode."""
        self._subject = subject
        self._spaces = subject.pool.obs_space(), subject.pool.action_space()
        self._has_global = has_global_entity(*self._spaces)
        self._shape = subject.net.config.n_layer, subject.net.config.n_head
        self._num_rounds = 0

    def start(self, env_ids: NDArray[np.int64]) -> None:
        """Begin episodes in `env_ids`, and record the first of them until `num_episodes` is reached.

        Raises:
            ValueError: the world's hints for drawing are wrong.
        """
        begun = env_ids[: self._left].tolist()
        self._left -= len(begun)
        self._running, self._views = {}, {}
        for env, hints in zip(begun, self._subject.pool.draw(begun), strict=True):
            drawing = check_hints(hints, self._spaces[0], f"{self._subject.world} (environment {env})")
            episode = {"seed": self._subject.seed, "number": env, "drawing": drawing, "steps": []}
            if self._num_rounds:
                episode["round"] = self._num_rounds
            self._running[env] = episode
            self._arrived[env] = {"reward": 0, "rewards": [0] * self._num_players, "done": False, "truncated": False}
        self._episodes += self._running.values()
        self._num_rounds += 1

    def see(
        self,
        obs: VecObs,
        actions: Mapping[str, VecAction],
        policy: Policy | PolicyOf,
        seats: NDArray[np.int64] | None = None,
    ) -> None:
        """Record what players see and decide, before the step is taken.

        Args:
            obs: n frames, as the players see them.
            actions: action -> n sequences, chosen by these players.
            policy: that chose them, or what finds it for each environment.
            seats: (n,) the players; None: all together.
        """
        rows = np.flatnonzero(np.isin(obs.env_id, list(self._running)))
        if not len(rows):
            return
        if isinstance(policy, Policy):
            if seats is not None and not self._subject.played_by:  # opponents play the other players
                for row in rows.tolist():
                    self._running[int(obs.env_id[row])]["player"] = int(seats[row])
            self._see(obs, rows, actions, seats, policy, has_values=True)
            return
        found = {env: policy(env) for env in set(obs.env_id[rows].tolist())}
        for opponent in {id(each): each for each in found.values()}.values():
            mine = [row for row in rows.tolist() if found[int(obs.env_id[row])] is opponent]
            self._see(obs, np.array(mine, np.int64), actions, seats, opponent, has_values=False)

    def _see(
        self,
        obs: VecObs,
        rows: NDArray[np.int64],
        actions: Mapping[str, VecAction],
        seats: NDArray[np.int64] | None,
        policy: Policy | None,
        has_values: bool,
    ) -> None:
        """Record the frames `rows`, in which one policy acts."""
        views = [self._view(obs, row) for row in rows.tolist()]
        if policy is None:
            for view, row in zip(views, rows.tolist(), strict=True):
                view["actions"] = build_decisions(obs, row, self._spaces[1], actions)
        else:
            device = policy.device
            batch = ObsBatch.from_vec_obs(obs, device)[torch.from_numpy(rows).to(device)]
            self._explain(views, obs, rows, actions, policy, batch)
            if has_values:
                for view, value in zip(views, policy.values(batch).tolist(), strict=True):
                    view["value"] = number(value)
        for view, row in zip(views, rows.tolist(), strict=True):
            player = 0 if seats is None else int(seats[row])
            self._views.setdefault(int(obs.env_id[row]), {})[player] = view

    def _explain(
        self,
        views: Sequence[dict[str, Any]],
        obs: VecObs,
        rows: NDArray[np.int64],
        actions: Mapping[str, VecAction],
        policy: Policy,
        batch: ObsBatch,
    ) -> None:
        """Add distributions and attention to the views of the frames `rows` of `obs`, which `batch` holds."""
        seen = policy.fitted.adapt(batch)
        explained = explain(policy.fitted.net, seen, attention=seen.frames.max_length <= MOST_EXPLAINED)
        for i, (view, row) in enumerate(zip(views, rows.tolist(), strict=True)):
            logits, entropies = {}, {}
            for name, ragged in explained.logits.items():
                logits[name] = ragged.values[ragged.offsets[i] : ragged.offsets[i + 1]].float().cpu().numpy()
                of_actors = explained.entropies[name]
                entropies[name] = of_actors.values[of_actors.offsets[i] : of_actors.offsets[i + 1]].cpu().numpy()
            view["actions"] = build_decisions(obs, row, self._spaces[1], actions, logits, entropies)
            if explained.attention is not None and explained.attention[i].shape[:2] == self._shape:
                num_entities = sum(map(len, view["features"].values())) + self._has_global
                view["attention"] = build_attention(explained.attention[i].float().cpu().numpy(), num_entities)

    def _view(self, obs: VecObs, row: int) -> dict[str, Any]:
        return build_view(obs, row, self._spaces[0], self._subject.pool.slots.world_ids(int(obs.env_id[row])))

    @property
    def _num_players(self) -> int:
        return 1 if self._subject.mapping is None else self._subject.mapping.num_players

    def step(self, env_ids: NDArray[np.int64], infos: Mapping[int, Mapping[str, Any]]) -> None:
        """Record what a step of these environments led to.

        Args:
            env_ids: all that took the step.
            infos: environment -> report on its episode, of those that ended.
        """
        mine = np.array([env for env in env_ids.tolist() if env in self._running], np.int64)
        if not len(mine):
            return
        obs, mapping = self._subject.pool.show(mine), self._subject.mapping
        seating = None if mapping is None else Seating(obs, mapping)
        rewards = obs.reward[:, None] if seating is None else seating.rewards
        for row, env in enumerate(mine.tolist()):
            episode, views = self._running[env], self._views.pop(env)
            episode["steps"].append({**self._arrived[env], "views": [views[player] for player in sorted(views)]})
            self._arrived[env] = {
                "reward": number(float(obs.reward[row])),
                "rewards": [number(each) for each in rewards[row].tolist()],
                "done": bool(obs.done[row]),
                "truncated": bool(obs.truncated[row]),
            }
            if obs.done[row]:
                self._end(env, infos.get(env, {}))
        for env in mine[obs.done].tolist():
            row = int(np.flatnonzero(mine == env)[0])
            if seating is None:
                last = [self._view(obs, row)]
            else:
                shown = (seating.show(seating.part(player)) for player in range(self._num_players))
                last = [self._view(each, row) for each in shown]
            self._running.pop(env)["steps"].append({**self._arrived.pop(env), "views": last})

    def _end(self, env: int, info: Mapping[str, Any]) -> None:
        """Add what is known at the end of an episode."""
        episode = self._running[env]
        rewards = [step["reward"] or 0 for step in [*episode["steps"], self._arrived[env]]]
        episode["reward"], episode["length"] = number(sum(rewards)), len(episode["steps"])
        episode["info"] = plain(info)

    def replay(self) -> dict[str, Any]:
        """Return the replay in the format of docs/replays.md."""
        subject = self._subject
        return build_replay(
            title=subject.title,
            world=subject.world,
            settings=subject.settings,
            obs_space=self._spaces[0],
            action_space=self._spaces[1],
            players=_names_of_players(subject),
            network=describe_network(subject.net, self._spaces[0]),
            episodes=self._episodes,
        )

    def write(self) -> None:
        """Write the file, if there is one, atomically.

        Raises:
            ValueError: the file cannot be written.
        """
        if self.path is not None:
            write_page(self.path, page_html(self.replay()), self._setting)


def write_page(path: Path, page: str, setting: str) -> None:
    """Write a page atomically; folders are created.

    Raises:
        ValueError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, page.encode())
    except OSError as error:
        raise ValueError(f"{setting}: the replay {path} cannot be written: {error.strerror or error}") from error


def _names_of_players(subject: Subject) -> list[str]:
    if subject.mapping is None:
        return [""]
    played_by = subject.played_by or [""] * subject.mapping.num_players
    return [f"player {player}" + f" ({name})" * bool(name) for player, name in enumerate(played_by)]


def describe_network(net: RogueNet, obs_space: ObsSpace) -> dict[str, Any]:
    """Return the sizes of a network, and by type the statistics that its inputs are normalized with.

    Args:
        net: the network.
        obs_space: of the world, whose features the statistics are listed for. Features that the network does not normalize as the
            world shows them have None: categories, angles and flags, positions that are moved first, and those it does not see.
    """
    normalization = {}
    for name, entity in zip(net.embedding.types, net.embedding.entities, strict=True):
        assert isinstance(entity, EntityEmbedding)
        is_global = name == GLOBAL_ENTITY
        known = net.obs_space.global_features if is_global else net.obs_space.entities[name].features
        moved = net.translation.columns.get(name, [])
        moments = {
            known[column]: (number(float(entity.norm.offset[i])), number(1 / float(entity.norm.scale[i])))
            for i, column in enumerate(entity.columns.plain if entity.num_features else ())
            if column < len(known) and column not in moved
        }
        if is_global or name in obs_space.entities:
            shown = obs_space.global_features if is_global else obs_space.entities[name].features
            mean, std = ([moments.get(feature, (None, None))[i] for feature in shown] for i in (0, 1))
            normalization[name] = {"mean": mean, "std": std}
    return {"layers": net.config.n_layer, "heads": net.config.n_head, "normalization": normalization}
