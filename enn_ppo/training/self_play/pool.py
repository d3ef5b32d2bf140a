"""Self-play: the policy trains as one player of each environment; snapshots of its past versions play the other players."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from enn_ppo.checkpoints import load_checkpoint, step_file, step_files
from enn_ppo.checkpoints.policy_file import Checkpoint, policy_bytes
from enn_ppo.eval.policy import Policy, fit
from enn_ppo.settings.config import SelfPlayConfig
from enn_ppo.settings.schema import to_dict
from enn_ppo.training.files import make_folder, replace_file
from enn_ppo.training.players import mapping_of
from enn_ppo.training.self_play.opponents import LATEST, Opponents, name_of
from enn_ppo.training.self_play.ratings import Ratings
from enn_ppo.training.tracking.logger import Row
from enn_ppo.training.tracking.run_dir import CHECKPOINTS, POOL, RATINGS
from entity_gym.batch.saving import spaces_to_dict
from entity_gym.pools.episodes import Episode
from entity_gym.pools.seats import SeatedVecEnv
from entity_gym.pools.source import EnvSource
from entity_gym.pools.vec_env import VecEnv
from rogue_net import FittedNet, RogueNet

#: Number of snapshots that play at a time, drawn at every update: each needs its own forward pass.
AT_A_TIME = 2
SHARE_OF_LATEST = 0.5  # of the environments: the opponent is the current policy


class SelfPlay:
    """The pool of snapshots, their ratings, and the opponent of each environment.

    `net` is the policy that is trained, and also the opponent `latest`.

    Attributes:
        metrics: of the last update: the policy's rating, and its win rate against snapshots (None: no game ended).
    """

    def __init__(self, config: SelfPlayConfig, net: RogueNet, seed: int) -> None:
        self.config, self.net = config, net
        self.ratings = Ratings()
        self.pool: list[int] = []  # steps of the snapshots, ascending
        self._policies = {LATEST: Policy(FittedNet(net))}  # and the pool, and removed snapshots that still play
        #: Removed snapshot -> the step at which it was last needed; its file may still exist.
        self._gone: dict[int, int] = {}
        self._choice: list[int] = []  # snapshots that new episodes draw from
        self._written: set[tuple[Path, int]] = set()
        self._seed = seed
        self._opponents: Opponents | None = None
        self.metrics: Row = {}

    def seat(self, vec_env: VecEnv, source: EnvSource, name: str) -> SeatedVecEnv:
        """Wrap environments so that opponents play all players but one.

        Raises:
            ValueError: the environments do not map entities to players, or have less than two players.
        """
        mapping = mapping_of(source, name, "self_play.enabled=true")
        self._opponents = Opponents(self._policies, self._draw, vec_env, self._seed)
        return SeatedVecEnv(vec_env, mapping, self._opponents, zero_sum=self.config.zero_sum)

    def add(self, step: int) -> None:
        """Add a snapshot of the current policy to the pool; a full pool drops another snapshot."""
        if step in self.pool:
            return
        snapshot = copy.deepcopy(self.net).requires_grad_(False)
        self._policies[step] = Policy(FittedNet(snapshot.eval()))
        self.ratings.add(step)
        self.pool.append(step)
        while len(self.pool) > self.config.pool_size:
            leaving = least_missed(self.pool)
            self.pool.remove(leaving)
            del self.ratings.snapshots[leaving]
        self._choose(step)

    def update(self, episodes: Sequence[Episode], step: int) -> None:
        """Update ratings by the episodes that ended since the last call, and the pool, after an update of the policy."""
        steps = {name_of(snapshot): snapshot for snapshot in self.pool}
        games = [(steps[e.info["opponent"]], e.info["win_rate"]) for e in episodes if e.info.get("opponent") in steps]
        for snapshot, result in games:
            self.ratings.play(snapshot, result)
        self.ratings.drift()
        if not self.pool or step >= self.pool[-1] + self.config.snapshot_interval:
            self.add(step)
        else:
            self._choose(step)
        self._forget(step)
        self.metrics = {
            "self_play/rating": self.ratings.current.mu,
            "self_play/rating_sigma": self.ratings.current.sigma,
            "self_play/win_rate": float(np.mean([result for _, result in games])) if games else None,
            "self_play/pool_size": len(self.pool),
        }

    # ---- on the disk

    def write(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        """Write the table of ratings, and the snapshots that the next checkpoint refers to. `config` is that of the run.

        Raises:
            OSError: a file cannot be written.
        """
        for step, policy in self._policies.items():
            if step != LATEST and (run_dir, step) not in self._written:
                write_snapshot(run_dir, step, policy.fitted.net, config)
                self._written.add((run_dir, step))
        replace_file(run_dir / RATINGS, json.dumps(self.ratings.table(), indent=2).encode() + b"\n")

    def clean(self, run_dir: Path) -> None:
        """Remove the snapshots that no checkpoint refers to. Call it after saving a checkpoint."""
        saved = [saved_step for saved_step, _ in step_files(run_dir / CHECKPOINTS)]
        for snapshot, until in list(self._gone.items()):
            if not any(snapshot <= at < until for at in saved):
                with suppress(OSError):
                    step_file(run_dir / POOL, snapshot).unlink()
                del self._gone[snapshot]
                self._written.discard((run_dir, snapshot))

    def state(self) -> dict[str, Any]:
        """State for `load_state`. The opponent of each environment is in the state of the environments."""
        return {
            "pool": list(self.pool),
            "snapshots": [step for step in self._policies if step != LATEST],
            "gone": [[step, at] for step, at in self._gone.items()],
            "choice": list(self._choice),
            "ratings": self.ratings.state(),
        }

    def load_state(self, state: Mapping[str, Any], run_dir: Path) -> None:
        """Restore the pool from `state()` and the run directory with its snapshots, before the environments are restored.

        Raises:
            ValueError: a snapshot is missing, damaged, or does not fit the environments.
        """
        spaces, generator = (self.net.obs_space, self.net.action_space), torch.Generator(self._policies[LATEST].device)
        for step in state["snapshots"]:
            snapshot = load_checkpoint(step_file(run_dir / POOL, step))
            self._policies[step] = fit(snapshot, *spaces, "this environment", generator)
            self._written.add((run_dir, step))
        self.pool = list(state["pool"])
        self._gone = {step: at for step, at in state["gone"]}
        self._choice = list(state["choice"])
        self.ratings.load_state(state["ratings"])

    # ---- who plays

    def _draw(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """(n,) int64, opponents of new episodes."""
        if not self._choice:
            return np.full(n, LATEST)
        past = np.array(self._choice)[rng.integers(len(self._choice), size=n)]
        return np.where(rng.random(n) < SHARE_OF_LATEST, LATEST, past)

    def _choose(self, step: int) -> None:
        """Draw the snapshots that new episodes may face until the next update."""
        rng = np.random.default_rng(np.random.SeedSequence((self._seed, 3, step)))
        self._choice = rng.choice(self.pool, AT_A_TIME).tolist()

    def _forget(self, step: int) -> None:
        """Drop removed snapshots that no environment faces any more."""
        needed = {LATEST, *self.pool, *(self._opponents.faces.tolist() if self._opponents else [])}
        for snapshot in sorted(self._policies.keys() - needed):
            del self._policies[snapshot]
            self._gone[snapshot] = step


def least_missed(steps: Sequence[int]) -> int:
    """The step to remove from the ascending `steps` so that the rest stay evenly spread: the one with the nearest neighbours.

    The first and the last are never removed, unless there are only two; then the first is.
    """
    if len(steps) < 3:
        return steps[0]
    gaps = [after - before for before, after in zip(steps, steps[2:], strict=False)]
    return steps[1 + int(np.argmin(gaps))]


def write_snapshot(run_dir: Path, step: int, net: RogueNet, config: Mapping[str, Any]) -> None:
    """Write the policy file `<run_dir>/pool/step_<12 digits>.safetensors`. `config` is that of the run.

    Raises:
        OSError: the file cannot be written; an existing one is unchanged.
    """
    path = step_file(run_dir / POOL, step)
    snapshot = Checkpoint(
        path=path,
        step=step,
        policy=net.state_dict(),
        config={**config, "net": to_dict(net.config)},  # opponents need no values, so a value network is not in it
        spaces=spaces_to_dict(net.obs_space, net.action_space),
        is_own=True,
    )
    make_folder(path.parent)
    replace_file(path, policy_bytes(snapshot))
