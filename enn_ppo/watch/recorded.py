"""Replays of recordings: what was seen and decided, without attention, and with probabilities where logits were recorded."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from enn_ppo.training.recording.columns import Header, RecordedFrames
from enn_ppo.training.recording.reading import RecordedEpisode, read_episodes, read_header
from entity_gym.batch.ragged import RaggedBuffer, RaggedBufferBool, RaggedBufferF32, RaggedBufferI64
from entity_gym.batch.vec_obs import VecAction, VecActionMask, VecObs
from entity_gym.replay.build import build_decisions, build_replay, build_view, number
from rogue_net import RaggedTensor


def replay_of_recording(path: Path, num_episodes: int) -> dict[str, Any]:
    """Return a replay of the first whole episodes of a recording, in the format of docs/replays.md.

    Raises:
        ValueError: the file is no recording, or holds no whole episode.
    """
    header = read_header(path)
    episodes = [_episode(episode, header) for episode in islice(read_episodes(path), num_episodes)]
    if not episodes:
        raise ValueError(f"{path} holds no whole episode: none was recorded from its first step to its end")
    return build_replay(
        title=f"Recording {path.name}",
        world=path.name,
        settings={},
        obs_space=header.obs_space,
        action_space=header.action_space,
        players=[""],
        network=None,
        episodes=episodes,
    )


def _episode(episode: RecordedEpisode, header: Header) -> dict[str, Any]:
    frames = episode.frames
    obs, actions = _step_of(frames)
    steps: list[dict[str, Any]] = []
    reward, ends = 0.0, {"done": False, "truncated": False}
    for row in range(len(frames)):
        view = build_view(obs, row, header.obs_space)
        logits = None
        if frames.logits is not None:
            logits = {name: _part(ragged, row) for name, ragged in frames.logits.items()}
        view["actions"] = build_decisions(obs, row, header.action_space, actions, logits)
        view["value"] = number(float(frames.values[row]))
        steps.append({"reward": number(reward), "rewards": [number(reward)], **ends, "views": [view]})
        reward = float(frames.rewards[row])
        truncated = bool(frames.truncated[row])
        ends = {"done": truncated or bool(frames.terminated[row]), "truncated": truncated}
    # recordings do not hold what there was to be seen after the last action
    last: dict[str, Any] = {"features": {}, "value": None, "actions": {}, "attention": None}
    steps.append({"reward": number(reward), "rewards": [number(reward)], **ends, "views": [last]})
    return {
        "seed": None,
        "number": episode.env_id,
        "drawing": None,
        "reward": number(episode.reward),
        "length": len(frames),
        "info": {},
        "steps": steps,
    }


def _part(ragged: RaggedTensor, row: int) -> np.ndarray[Any, Any]:
    """The items of one frame."""
    return ragged.values[ragged.offsets[row] : ragged.offsets[row + 1]].numpy()


def _step_of(frames: RecordedFrames) -> tuple[VecObs, dict[str, VecAction]]:
    """Frames and their actions as a step of as many environments."""

    def buffer(kind: Any, ragged: RaggedTensor) -> Any:
        wrapped: RaggedBuffer[Any] = kind.from_offsets(ragged.values.numpy(), ragged.offsets.numpy())
        return wrapped

    batch = frames.obs
    masks = {
        name: VecActionMask(
            buffer(RaggedBufferI64, mask.actors),
            None if mask.actees is None else buffer(RaggedBufferI64, mask.actees),
            None if mask.mask is None else buffer(RaggedBufferBool, mask.mask),
        )
        for name, mask in batch.action_masks.items()
    }
    ended = (frames.terminated | frames.truncated).numpy()
    obs = VecObs(
        features={name: buffer(RaggedBufferF32, ragged) for name, ragged in batch.features.items()},
        action_masks=masks,
        reward=frames.rewards.numpy(),
        done=ended,
        truncated=frames.truncated.numpy(),
        env_id=frames.env_id.numpy(),
        elapsed_step=frames.step.numpy(),
        visible={name: buffer(RaggedBufferBool, ragged) for name, ragged in batch.visible.items()},
    )
    actions = {name: buffer(RaggedBuffer, ragged) for name, ragged in frames.actions.items()}
    return obs, actions
