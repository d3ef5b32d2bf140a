"""A policy that remembers, and a world of entities that come and go, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from enn_ppo.training.frames import Frames
from entity_gym import (
    Action,
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Environment,
    Observation,
    ObsSpace,
)
from rogue_net import ActResult, Evaluation, ObsBatch, RaggedTensor, RogueNet, State


class Crowd(Environment):
    """People come, go and change places. An episode ends after 3 to 8 steps by itself, or by a limit if their number is odd."""

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"Person": Entity(["number"])})

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {"Wave": CategoricalActionSpace(("left", "right"))}

    def reset(self) -> Observation:
        self.steps, self.length, self.people = 0, int(self.rng.integers(3, 9)), [0, 1]
        return self._observation()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.steps += 1
        people = [*self.people, max(self.people) + 1][self.rng.integers(2) :]
        self.people = self.rng.permutation(people).tolist()
        return self._observation()

    def state(self) -> dict[str, Any]:
        return {"steps": self.steps, "length": self.length, "people": self.people}

    def load_state(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)

    def _observation(self) -> Observation:
        done = self.steps == self.length
        return Observation(
            features={"Person": [[number / 10] for number in self.people]},
            ids={"Person": self.people},
            actions={"Wave": CategoricalActionMask()},
            reward=1.0,
            done=done,
            truncated=done and self.length % 2 == 1,
        )


class Counting(RogueNet):
    """Remembers how often it has seen each person that is there; a frame is worth the sum of these numbers times `gain`."""

    remembers = True

    def __init__(self, config: Any, *spaces: Any) -> None:
        super().__init__(replace(config, backend="reference"), *spaces)
        self.gain = nn.Parameter(torch.ones(()))

    @torch.no_grad()
    def act(self, batch: ObsBatch, state: State | None = None, **how: Any) -> ActResult:
        values, known = self.count(batch, state)
        return super().act(batch, **how)._replace(values=values, state=known)

    def value(self, batch: ObsBatch, state: State | None = None, *, drop: bool = False) -> Tensor:
        return self.count(batch, state)[0]

    def evaluate(
        self,
        batch: ObsBatch,
        actions: Mapping[str, RaggedTensor],
        state: State | None = None,
        follows: Tensor | None = None,
    ) -> Evaluation:
        return super().evaluate(batch, actions)._replace(values=self.count(batch, state, follows)[0])

    def count(self, batch: ObsBatch, state: State | None, follows: Tensor | None = None) -> tuple[Tensor, State]:
        seen: dict[int, Tensor] = {}
        values, counts = [], []
        before = [{}] * len(batch) if state is None else by_frame(state)
        for b, people in enumerate(ids_of(batch)):
            if follows is None or not follows[b]:
                seen = before[b]
            seen = {person: seen.get(person, 0) + self.gain for person in people}
            counts += seen.values()
            values.append(torch.stack(list(seen.values())).sum())
        ids = batch.ids["Person"]
        return torch.stack(values), {
            "ids": ids,
            "of": {"counts": RaggedTensor(torch.stack(counts)[:, None], ids.offsets)},
        }


def by_frame(state: Any) -> list[dict[int, Tensor]]:
    """Person -> its count, for each sequence of a state."""
    offsets, ids, counts = state["ids"].offsets, state["ids"].values[:, 0].tolist(), state["of"]["counts"].values[:, 0]
    assert torch.equal(offsets, state["of"]["counts"].offsets)
    return [dict(zip(ids[a:b], counts[a:b], strict=True)) for a, b in zip(offsets[:-1], offsets[1:], strict=True)]


def ids_of(batch: ObsBatch) -> list[list[int]]:
    """The people of each frame."""
    values, offsets = batch.ids["Person"]
    return [values[a:b, 0].tolist() for a, b in zip(offsets[:-1], offsets[1:], strict=True)]


def worth(people: Sequence[Sequence[int]], begins: Sequence[bool]) -> list[float]:
    """What the frames of one environment, one after the other, are worth to `Counting` with a `gain` of 1."""
    seen: dict[int, int] = {}
    found = []
    for of_frame, begun in zip(people, begins, strict=True):
        seen = {person: 1 + (0 if begun else seen.get(person, 0)) for person in of_frame}
        found.append(float(sum(seen.values())))
    return found


def worth_of_frames(frames: Frames, num_envs: int) -> Tensor:
    """(T, N) what the frames of the first rollout are worth."""
    people, begins = ids_of(frames.obs), (frames.step == 0).tolist()
    columns = [worth(people[env::num_envs], begins[env::num_envs]) for env in range(num_envs)]
    return torch.tensor(columns).T
