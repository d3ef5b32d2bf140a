"""Replays of an evaluation: its first episodes with decisions, attention and values, as one page.

Shapes: n frames, P players.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from enn_ppo.eval.policy import Acted
from enn_ppo.training.files import replace_file
from enn_ppo.training.players import Cast
from enn_ppo.training.policy_states import rows_of
from entity_gym.actions.kind import has_global_entity
from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.pools.players import Seating
from entity_gym.pools.seats import SeatedVecEnv
from entity_gym.pools.vec_env import VecEnv
from entity_gym.replay.build import build_attention, build_decisions, build_replay, build_view, number, plain
from entity_gym.replay.hints import check_hints
from rogue_net import RogueNet
from rogue_net.explain import explain

#: Entities of a frame up to which attention is explained: weights of larger frames, of all pairs, would take too much memory.
MOST_EXPLAINED = 2048


class Replay:
    """Records the first episodes of an evaluation, each from its first observation to its last.

    `pool` are the environments of the `world` with this `seed`, and `net` is the network whose sizes are shown. Without a `cast`
    a policy plays one player against the opponents of a `SeatedVecEnv`, or all players together.
    """

    def __init__(
        self,
        num_episodes: int,
        world: str,
        seed: int,
        pool: VecEnv,
        net: RogueNet,
        cast: Cast | None = None,
    ) -> None:
        self._left, self._world, self._seed, self._pool, self._net = num_episodes, world, seed, pool, net
        self._mapping = cast.mapping if cast else None
        self._played_by = cast.played_by if cast else []
        if isinstance(pool, SeatedVecEnv):
            self._mapping, pool.on_opponents = pool.mapping, partial(self._see_opponents, pool.opponents)
        self._num_players = 1 if self._mapping is None else self._mapping.num_players
        self._obs_space, self._action_space = pool.obs_space(), pool.action_space()
        self._num_rounds = 0
        self._episodes: list[dict[str, Any]] = []
        self._running: dict[int, dict[str, Any]] = {}  # environment -> its episode
        self._views: dict[int, dict[int, dict[str, Any]]] = {}  # environment -> player -> view of the step under way
        self._arrived: dict[int, dict[str, Any]] = {}  # environment -> the step under way, without its views

    def start(self, env_ids: NDArray[np.int64]) -> None:
        """Begin episodes in `env_ids`, and record the first of them until `num_episodes` is reached.

        Raises:
            ValueError: the world's hints for drawing are wrong.
        """
        begun = env_ids[: self._left].tolist()
        self._left -= len(begun)
        self._running, self._views = {}, {}
        for env, hints in zip(begun, self._pool.draw(begun), strict=True):
            drawing = check_hints(hints, self._obs_space, f"{self._world} (environment {env})")
            self._running[env] = {"seed": self._seed, "number": env, "drawing": drawing, "steps": []}
            if self._num_rounds:
                self._running[env]["round"] = self._num_rounds
            self._arrived[env] = {"reward": 0, "rewards": [0] * self._num_players, "done": False, "truncated": False}
        self._episodes += self._running.values()
        self._num_rounds += 1

    def see(
        self,
        obs: VecObs,
        actions: Mapping[str, VecAction],
        decided: Sequence[tuple[Acted | None, NDArray[np.int64]]],
        seats: NDArray[np.int64] | None = None,
        *,
        opponents: bool = False,
    ) -> None:
        """Record what players see and decide, before the step is taken.

        Args:
            obs: n frames, as the players see them.
            actions: action -> n sequences, chosen by these players.
            decided: decisions of policies, None for random actions, and the numbers of their frames.
            seats: (n,) the players; None: all together.
            opponents: whether these are opponents of the policy that is evaluated, whose values are not shown.
        """
        for acted, rows in decided:
            own = np.flatnonzero(np.isin(obs.env_id[rows], list(self._running)))
            if not len(own):
                continue
            explained = values = None
            if acted is not None:
                net, own_rows = acted.policy.fitted.net, torch.from_numpy(own).to(acted.policy.device)
                seen = acted.batch[own_rows]
                known = rows_of(acted.before, own)
                longest = np.diff(seen.frames.host_offsets).max(initial=0)
                taken = {name: each.gather(own_rows) for name, each in acted.result.actions.items()}
                explained = explain(net, seen, known, actions=taken, attention=bool(longest <= MOST_EXPLAINED))
                values = None if opponents else acted.values[own].tolist()
            for i, row in enumerate(rows[own].tolist()):
                env, player = int(obs.env_id[row]), 0 if seats is None else int(seats[row])
                view, of_frame = self._view(obs, row), []
                if explained is not None:
                    of_frame = [
                        {
                            name: ragged.values[ragged.offsets[i] : ragged.offsets[i + 1]].float().cpu().numpy()
                            for name, ragged in each.items()
                        }
                        for each in (explained.logits, explained.entropies)
                    ]
                    shape = self._net.config.n_layer, self._net.config.n_head
                    if explained.attention is not None and explained.attention[i].shape[:2] == shape:
                        num_entities = sum(map(len, view["features"].values()))
                        num_entities += has_global_entity(self._obs_space, self._action_space)
                        view["attention"] = build_attention(explained.attention[i].float().cpu().numpy(), num_entities)
                    if explained.changes is not None:
                        changed = explained.changes.values[slice(*explained.changes.offsets[i : i + 2].tolist()), 0]
                        view["memory"] = [number(each) for each in changed.tolist()]
                view["actions"] = build_decisions(obs, row, self._action_space, actions, *of_frame)
                if values is not None:
                    view["value"] = number(values[i])
                if seats is not None and not opponents and not self._played_by:
                    self._running[env]["player"] = player
                self._views.setdefault(env, {})[player] = view

    def _see_opponents(
        self, opponents: Any, obs: VecObs, seats: NDArray[np.int64], actions: Mapping[str, VecAction]
    ) -> None:
        self.see(obs, actions, opponents.decided, seats, opponents=True)

    def _view(self, obs: VecObs, row: int) -> dict[str, Any]:
        return build_view(obs, row, self._obs_space, self._pool.slots.world_ids(int(obs.env_id[row])))

    def step(self, env_ids: NDArray[np.int64], infos: Mapping[int, Mapping[str, Any]]) -> None:
        """Record what a step of these environments led to; `infos` are the reports on the episodes that ended."""
        mine = np.array([env for env in env_ids.tolist() if env in self._running], np.int64)
        if not len(mine):
            return
        obs = self._pool.show(mine)
        seating = None if self._mapping is None else Seating(obs, self._mapping)
        rewards = obs.reward[:, None] if seating is None else seating.rewards
        shown = [obs]
        if seating is not None and obs.done.any():
            shown = [seating.show(seating.part(player)) for player in range(self._num_players)]
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
                last = {**self._arrived.pop(env), "views": [self._view(each, row) for each in shown]}
                episode["length"] = len(episode["steps"])
                episode["steps"].append(last)
                episode["reward"] = number(sum(step["reward"] or 0 for step in episode["steps"]))
                episode["info"] = plain(infos.get(env, {}))
                del self._running[env]

    def build(self, title: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the replay in the format of docs/replays.md; `settings` are the arguments of the world."""
        players = [""]
        if self._mapping is not None:
            names = self._played_by or [""] * self._num_players
            players = [f"player {player}" + f" ({name})" * bool(name) for player, name in enumerate(names)]
        return build_replay(
            title=title,
            world=self._world,
            settings=settings,
            obs_space=self._obs_space,
            action_space=self._action_space,
            players=players,
            network={"layers": self._net.config.n_layer, "heads": self._net.config.n_head},
            episodes=self._episodes,
        )


def write_page(path: Path, page: str) -> None:
    """Write a page, atomically; folders are created.

    Raises:
        ValueError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, page.encode())
    except OSError as error:
        raise ValueError(f"the page {path} cannot be written: {error.strerror or error}") from error
