"""Rows of metrics by hand: what is counted, of what, and what is None."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from enn_ppo.rollout import Rollout, RolloutStats
from enn_ppo.training.frames import Frames
from enn_ppo.training.tracking.metrics import env_info_row, merge_played, metrics_row, summarize
from entity_gym import (
    ActionSpace,
    CategoricalActionSpace,
    ContinuousActionSpace,
    GlobalCategoricalActionSpace,
    SelectEntityActionSpace,
)
from entity_gym.batch.vec_obs import Metric
from entity_gym.pools.episodes import Episode
from rogue_net import ObsBatch, RaggedTensor
from rogue_net.batch.obs_batch import ActionMask

STATS: dict[str, Any] = {"policy_loss": 1.0, "value_loss": 2.0, "explained_variance": 3.0, "epochs": 4}
TIMING = {"run_seconds": 60.0, "update_seconds": 2.0}

SPACES: dict[str, ActionSpace] = {
    "walk": CategoricalActionSpace(["stay", "go", "fly"]),
    "weather": GlobalCategoricalActionSpace(["sun", "rain"]),
    "chase": SelectEntityActionSpace(),
    "steer": ContinuousActionSpace([-1, -1], [1, 1], names=["left", "up"]),
    "push": ContinuousActionSpace([-1], [1]),
}


def ragged(lengths: list[int], width: int = 1, values: list[Any] | None = None) -> RaggedTensor:
    offsets = torch.tensor([0, *np.cumsum(lengths).tolist()])
    rows = torch.zeros(sum(lengths), width) if values is None else torch.tensor(values)
    return RaggedTensor(rows, offsets)


def rollout(**changes: Any) -> Rollout:
    """Two steps of two environments: four frames. Cats: 2, 0, 1, 1. Dogs: 1, 1, 0, 2. And the global entity in each."""
    features = {
        "Cat": ragged([2, 0, 1, 1], 2),
        "Stone": ragged([0, 0, 0, 0], 0),
        "Dog": ragged([1, 1, 0, 2], 3),
        "__global__": ragged([1, 1, 1, 1], 1),
    }
    actions = {
        "walk": ragged([2, 0, 1, 1], values=[[0], [1], [1], [1]]),
        "weather": ragged([1, 1, 1, 1], values=[[0], [0], [1], [0]]),
        "chase": ragged([2, 1, 1, 2], values=[[1], [2], [0], [0], [2], [-1]]),
        "steer": ragged([1, 1, 0, 0], values=[[-0.5, 0.25], [0.5, 0.75]]),
        "push": RaggedTensor(torch.zeros(0, 1), torch.zeros(5, dtype=torch.int64)),
    }
    masks = {name: ActionMask(action) for name, action in actions.items()}
    nothing = torch.zeros(4)
    columns: dict[str, Any] = {
        "obs": ObsBatch(4, features, masks),
        "env_id": torch.tensor([0, 1, 0, 1]),
        "step": torch.tensor([0, 4, 1, 0]),
        "actions": actions,
        "log_probs": {
            name: RaggedTensor(torch.zeros(len(each.values)), each.offsets) for name, each in actions.items()
        },
        "values": nothing,
        "rewards": torch.tensor([1.0, -2.0, 0.0, 3.0]),
        "terminated": nothing.bool(),
        "truncated": nothing.bool(),
        "final_values": nothing,
    }
    stats = RolloutStats(**({"env_seconds": 0.5, "act_seconds": 1.0} | changes))
    return Rollout(Frames(**columns), torch.zeros(2), stats)


def row(played: Rollout, action_space: Mapping[str, ActionSpace] = SPACES, **more: Any) -> dict[str, Any]:
    return dict(metrics_row(64, summarize(played, action_space), STATS, **{"extra": {}, **TIMING, **more}))


def part(values: dict[str, Any], start: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name.startswith(start)}


def test_speeds_and_shares_of_an_update() -> None:
    values = row(rollout())
    assert (values["step"], values["seconds"], values["frames"]) == (64, 60.0, 4)
    assert values["steps_per_second"] == 4 / 2.0
    assert values["entities_per_second"] == (4 + 4 + 4) / 2.0  # cats, dogs and global entities
    assert (values["share_env"], values["share_act"], values["share_update"]) == (0.25, 0.5, 0.25)
    assert {name: values[name] for name in STATS} == STATS
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    # rewards and elapsed steps are of all frames
    assert part(values, "reward") == {"reward": 0.5, "reward_min": -2.0, "reward_max": 3.0}
    assert part(values, "elapsed") == {"elapsed_steps": 1.25, "elapsed_steps_min": 0.0, "elapsed_steps_max": 4.0}


def spread(name: str, mean: float | None, low: float | None, high: float | None) -> dict[str, float | None]:
    return {name: mean, f"{name}_min": low, f"{name}_max": high}


def test_entities_are_counted_by_frame_and_type() -> None:
    played = rollout()
    assert part(row(played), "entities") == {
        "entities_per_second": 6.0,
        **spread("entities", 3.0, 2.0, 4.0),  # 4, 2, 2 and 4 of them
        **spread("entities/Cat", 1.0, 0.0, 2.0),
        **spread("entities/Stone", 0.0, 0.0, 0.0),
        **spread("entities/Dog", 1.0, 0.0, 2.0),
        **spread("entities/__global__", 1.0, 1.0, 1.0),
    }
    obs = dataclasses.replace(played.frames.obs, features={})
    empty = dataclasses.replace(played, frames=dataclasses.replace(played.frames, obs=obs))
    nothing = {"entities_per_second": 0.0, **spread("entities", 0.0, 0.0, 0.0)}
    assert part(row(empty, {"walk": SPACES["walk"]}), "entities") == nothing


def test_every_choice_has_its_share_of_the_actors() -> None:
    values = row(rollout())
    assert part(values, "actions/walk") == {
        "actions/walk/stay": 0.25,
        "actions/walk/go": 0.75,
        "actions/walk/fly": 0.0,
    }
    assert part(values, "actions/weather") == {"actions/weather/sun": 0.75, "actions/weather/rain": 0.25}
    assert values["actors/walk"] == 4 and values["actors/weather"] == 4
    assert part(values, "actions/chase") == {} and values["actors/chase"] == 6  # selected entities have no names


def test_numbers_that_are_picked_have_a_mean_and_extremes_and_what_nobody_chose_has_none() -> None:
    steered = spread("actions/steer/left", 0.0, -0.5, 0.5) | spread("actions/steer/up", 0.5, 0.25, 0.75)
    assert part(row(rollout()), "actions/steer") == steered
    assert part(row(rollout()), "actions/push") == spread("actions/push/0", None, None, None)
    nobody = ragged([0, 0, 0, 0], values=[]).values.reshape(0, 1).long()
    for name in ("walk", "chase"):
        played = rollout()
        played.frames.actions[name] = RaggedTensor(nobody, torch.zeros(5, dtype=torch.int64))
        played.frames.log_probs[name] = RaggedTensor(torch.zeros(0), torch.zeros(5, dtype=torch.int64))
        assert set(part(row(played), f"actions/{name}").values()) <= {None}
        assert row(played)[f"actors/{name}"] == 0


def test_an_action_of_the_space_that_was_not_played_is_left_out() -> None:
    spaces = {**SPACES, "sing": CategoricalActionSpace(["high", "low"])}
    assert row(rollout(), action_space=spaces).keys() == row(rollout()).keys()


def test_episodes_have_mean_and_extremes_and_what_they_say() -> None:
    episodes = [
        Episode(0, reward=1.0, length=4, truncated=False, info={"won": True, "mood": "fine", "score_max": 2}),
        Episode(1, reward=4.0, length=9, truncated=True, info={"won": False, "score": 5}),
    ]
    values = row(rollout(episodes=episodes))
    assert part(values, "episod") == {
        **spread("episodic_reward", 2.5, 1.0, 4.0),
        **spread("episode_length", 6.5, 4.0, 9.0),
        "episodes": 2,
        "episodes_truncated": 1,
        **spread("episode/won", 0.5, 0.0, 1.0),
        "episode/won_count": 2,
        **spread("episode/score", 5.0, 5.0, 5.0),
        "episode/score_count": 1,
        # the environment's own name stands in place of the largest score
        **spread("episode/score_max", 2.0, 2.0, 2.0),
        "episode/score_max_count": 1,
    }
    values = part(row(rollout()), "episod")
    assert values.pop("episodes") == values.pop("episodes_truncated") == 0
    assert len(values) == 6 and set(values.values()) == {None}


def test_what_environments_report_has_mean_extremes_and_count() -> None:
    metrics = {"gold": Metric(count=4, sum=6.0, min=0.0, max=3.0), "lost": Metric()}
    gold, lost = spread("env/gold", 1.5, 0.0, 3.0), spread("env/lost", None, None, None)
    assert part(row(rollout(metrics=metrics)), "env/") == {**gold, "env/gold_count": 4, **lost, "env/lost_count": 0}


def test_parts_of_a_rollout_merge_to_the_whole() -> None:
    episodes = [Episode(i, reward=float(i), length=4, truncated=False, info={}) for i in range(2)]
    played = summarize(rollout(episodes=episodes, metrics={"gold": Metric(4, 6.0, 0.0, 3.0)}), SPACES)
    nobody = {name: Metric() for name in played.spreads} | {"reward": Metric(1, 9.0, 9.0, 9.0)}
    other = played._replace(
        num_frames=1,
        stats=RolloutStats(
            episodes[:1], {"gold": Metric(1, 9.0, 9.0, 9.0), "silver": Metric(1, 2.0, 2.0, 2.0)}, env_seconds=1.5
        ),
        spreads=nobody,
        shares={name: Metric(0) for name in played.shares}
        | {"actions/walk/stay": Metric(4), "actions/walk/go": Metric(4), "actions/walk/fly": Metric(4, 4.0)},
        actors=dict.fromkeys(played.actors, 0) | {"walk": 4},
    )
    merged = merge_played([played, other])
    metrics = {"gold": Metric(5, 15.0, 0.0, 9.0), "silver": Metric(1, 2.0, 2.0, 2.0)}
    assert merged.num_frames == 5 and merged.stats == RolloutStats([*episodes, episodes[0]], metrics, 1.0, 0.5)
    assert merged.spreads["reward"] == Metric(5, 11.0, -2.0, 9.0)
    assert merged.spreads["entities/Cat"] == played.spreads["entities/Cat"]
    assert merged.shares["actions/walk/fly"].mean == 0.5 and merged.shares["actions/walk/go"].mean == 3 / 8
    assert merged.actors == {**played.actors, "walk": 8}


def test_metrics_of_others_join_the_row_but_may_not_change_it() -> None:
    assert row(rollout(), extra={"eval/episodic_reward": 0.5})["eval/episodic_reward"] == 0.5
    with pytest.raises(AssertionError, match="frames"):
        row(rollout(), extra={"frames": 5})


def test_drawn_parameters_have_mean_and_extremes_or_shares() -> None:
    assert env_info_row({"mines": [1, 2, 6], "hard": [True, False, True], "map": ["b", "a", "b"]}) == {
        **spread("env_info/mines", 3.0, 1.0, 6.0),
        **spread("env_info/hard", pytest.approx(2 / 3), 0.0, 1.0),
        "env_info/map/a": pytest.approx(1 / 3),
        "env_info/map/b": pytest.approx(2 / 3),
    }


def test_numbers_leave_the_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device that has no numbers, every other way of asking for one fails."""
    asked = []

    def tolist(tensor: torch.Tensor) -> list[float]:
        asked.append(tensor)
        return [0.0] * len(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", tolist)
    there = dataclasses.replace(rollout(), frames=rollout().frames.map(lambda tensor: tensor.to("meta")))
    assert row(there).keys() == row(rollout()).keys()
    assert [tensor.device.type for tensor in asked] == ["meta", "cpu"]
