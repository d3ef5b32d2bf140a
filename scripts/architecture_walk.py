"""The stages of ARCHITECTURE.md's walk through one batch: the text of each value block."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from architecture_batch import (
    BOARDS,
    MINIBATCH,
    PPO,
    STEPS,
    WEIGHTS_SEED,
    boards_text,
    make_envs,
    make_net,
    number,
    numbers,
    ragged_lists,
    statistics_text,
    table,
    whole,
)
from torch import Tensor

from enn_ppo.ppo import Advantages, gae, normalize, policy_terms, unit_weights, value_loss
from enn_ppo.rollout import EnvBlock, Rollout, play
from enn_ppo.training.learning.moments import moments_of_some
from entity_gym import CategoricalAction
from entity_gym.actions.choices import frame_actions
from entity_gym.batch.frame import FrameReader
from entity_gym.batch.packing import pack
from entity_gym.batch.vec_obs import VecObs
from rogue_net import ObsBatch, RaggedTensor
from tests.entity_gym.envs.minesweeper_python import ACTION_SPACE, FIRE, MOVE, OBS_SPACE, PythonMineSweeper


class Walk:
    """The batch and its intermediate results; every method returns the block of the same name."""

    def __init__(self, seed: int = WEIGHTS_SEED) -> None:
        self.net = make_net(seed)
        self.envs = make_envs()
        self.first: VecObs = self.envs.reset()
        self.observations = [env.observe() for env in self.envs.envs if isinstance(env, PythonMineSweeper)]
        self.batch = ObsBatch.from_vec_obs(self.first)
        self.before_step = boards_text([env for env in self.envs.envs if isinstance(env, PythonMineSweeper)])
        self.net.update_normalization(self.batch)
        with torch.no_grad():
            self.embedded = self.net.embedding(self.batch)
            self.tokens = self.net.transformer(self.embedded, self.batch)
        self.result = self.net.act(self.batch)
        with torch.no_grad():
            self.evaluation = self.net.evaluate(self.batch, self.result.actions)
        self.buffers = self.result.to_buffers()
        self.second: VecObs = self.envs.act(self.buffers)
        self.after_step = boards_text([env for env in self.envs.envs if isinstance(env, PythonMineSweeper)])

    @cached_property
    def played(self) -> Rollout:
        """The rollout of the same first steps by the trainer's own loop."""
        block = EnvBlock(make_envs(), {"": self.net}, torch.device("cpu"), 0)
        block.reset()
        return play([block], STEPS)[0][""]

    @cached_property
    def columns(self) -> list[Tensor]:
        """(T, N) rewards, values, terminated, truncated and final values."""
        names = ("rewards", "values", "terminated", "truncated", "final_values")
        return [self.played.by_step(name) for name in names]

    @cached_property
    def estimates(self) -> Advantages:
        return gae(*self.columns, self.played.last_values, gamma=PPO.gamma, gae_lambda=PPO.gae_lambda)

    def state(self) -> str:
        return self.before_step

    def observation(self) -> str:
        obs = self.observations[1]
        move, fire = obs.actions[MOVE], obs.actions[FIRE]
        features = {name: whole(np.asarray(rows).tolist()) for name, rows in obs.features.items()}
        ids = {name: list(ids) for name, ids in obs.ids.items()}
        return f"""Observation(
    features={features},
    ids={ids},
    actions={{
        {MOVE!r}: CategoricalActionMask(actor_types={move.actor_types}, mask={np.asarray(move.mask).tolist()}),
        {FIRE!r}: SelectEntityActionMask(actor_types={fire.actor_types}, actee_types={fire.actee_types}),
    }},
    reward={obs.reward}, done={obs.done}, truncated={obs.truncated},
)"""

    def vec_obs(self) -> str:
        lines = ["features"]
        lines += [f"    {name:16}{whole(buffer.to_list())}" for name, buffer in self.first.features.items()]
        move, fire = self.first.action_masks[MOVE], self.first.action_masks[FIRE]
        masks = [[["x" if choice else "-" for choice in row] for row in rows] for rows in move.mask.to_list()]
        lines += [
            f"action_masks[{MOVE!r}]",
            f"    actors          {move.actors.to_list()}",
            "    mask            " + ", ".join("[" + ", ".join("".join(row) for row in rows) + "]" for rows in masks),
            f"action_masks[{FIRE!r}]",
            f"    actors          {fire.actors.to_list()}",
            f"    actees          {fire.actees.to_list()}",
            f"    mask            {fire.mask}",
            f"reward              {self.first.reward.tolist()}",
            f"done                {self.first.done.tolist()}",
        ]
        return "\n".join(lines)

    def obs_batch(self) -> str:
        lines = []
        for name, features in self.batch.features.items():
            lines.append(f"features[{name!r}].values   {whole(features.values.tolist())}")
            lines.append(f"features[{name!r}].offsets  {features.offsets.tolist()}")
        actors = self.batch.action_masks[MOVE].actors
        lines.append(f"action_masks[{MOVE!r}].actors.values   {actors.values.tolist()}")
        lines.append(f"action_masks[{MOVE!r}].actors.offsets  {actors.offsets.tolist()}")
        return "\n".join(lines)

    def layout(self) -> str:
        frames = self.batch.frames
        lines = [f"offsets    {frames.offsets.tolist()}", f"frames     {frames.of_token.tolist()}"]
        lines += [f"positions[{name!r}]  {tokens.tolist()}" for name, tokens in frames.positions.items()]
        return "\n".join(lines)

    def statistics(self) -> str:
        return statistics_text(self.net)

    def embedding(self) -> str:
        frames = self.batch.frames
        kinds: dict[int, tuple[str, list[float], Tensor]] = {}
        for (name, features), entity in zip(self.batch.features.items(), self.net.embedding.entities, strict=True):
            normalized = entity.norm(features.values)
            for row, token in enumerate(frames.positions[name].tolist()):
                kinds[token] = (name, whole(features.values[row].tolist()), normalized[row])
        rows = []
        for token, (name, features, normalized) in sorted(kinds.items()):
            frame = int(frames.of_token[token])
            index = token - int(frames.offsets[frame])
            rows.append([token, frame, index, name, features, numbers(normalized), numbers(self.embedded[token])])
        return table(["token", "frame", "index", "type", "features", "normalized", "embedded"], rows)

    def packing(self) -> str:
        packing = pack(self.batch.frames.lengths.numpy())
        frames = [["nan" if np.isnan(f) else str(int(f)) for f in row] for row in packing.batch.tolist()]
        return "\n".join(
            ["index"]
            + ["    [" + ", ".join(f"{i:2}" for i in row) + "]" for row in packing.index.tolist()]
            + ["batch"]
            + ["    [" + ", ".join(f"{f:>3}" for f in row) + "]" for row in frames]
            + ["inverse_index", f"    {packing.inverse_index.tolist()}"]
        )

    def move_head(self) -> str:
        mask = self.batch.action_masks[MOVE]
        flat = self.batch.action_tokens[MOVE].actors
        starts = self.batch.frames.offsets[:-1][mask.actors.sequences]
        chosen = self.result.actions[MOVE].values[:, 0].tolist()
        rows = []
        for i, token in enumerate(flat.tolist()):
            probabilities = [
                "   -" if not o else number(p) for o, p in zip(mask.mask.values[i], self._move_p[i], strict=True)
            ]
            log_prob = number(self.result.log_probs[MOVE][i])
            rows.append(
                [
                    int(mask.actors.values[i, 0]),
                    int(starts[i]),
                    token,
                    numbers(self.tokens[token]),
                    *probabilities,
                    chosen[i],
                    log_prob,
                ]
            )
        choices = list(ACTION_SPACE[MOVE].choices)
        choices[-1] = "defuse"
        return table(["actor", "+ start", "= token", "after the blocks", *choices, "chosen", "log-prob"], rows)

    @property
    def _move_p(self) -> Tensor:
        return self.evaluation.logits[MOVE].exp()

    def fire_head(self) -> str:
        mask = self.batch.action_masks[FIRE]
        actor = int(self.batch.action_tokens[FIRE].actors[0])
        actees = self.batch.action_tokens[FIRE].actees.tolist()
        query = self.net.heads[1].query(self.tokens[actor]).tolist()
        keys = self.net.heads[1].key(self.tokens[actees]).tolist()
        lines = [f"query of token {actor}  {numbers(query)}"]
        for token, key, entity, log_p in zip(
            actees, keys, mask.actees.values[:, 0].tolist(), self.evaluation.logits[FIRE][:, 0].tolist(), strict=True
        ):
            score = sum(q * k for q, k in zip(query, key, strict=True)) / 2
            lines.append(
                f"key of token {token}    {numbers(key)}  q · k / sqrt(4) = {number(score)}"
                f"  probability {number(np.exp(log_p))}  entity index {entity}"
            )
        lines.append(
            f"chosen entity index {int(self.result.actions[FIRE].values[0, 0])}, "
            f"log-prob {number(self.result.log_probs[FIRE][0])}"
        )
        return "\n".join(lines)

    def values(self) -> str:
        means = [self.tokens[self.batch.frames.of_token == b].mean(0) for b in range(len(self.batch))]
        rows = [
            [b, numbers(mean), number(v)] for b, (mean, v) in enumerate(zip(means, self.result.values, strict=True))
        ]
        return table(["frame", "mean token", "value"], rows)

    def actions(self) -> str:
        return "\n".join(f"{name:20} {buffer.to_list()}" for name, buffer in self.buffers.items())

    def env_actions(self) -> str:
        reader = FrameReader(OBS_SPACE, ACTION_SPACE)
        lines = []
        for i, obs in enumerate(self.observations):
            lines.append(f"environment {i}")
            frame = reader.read(obs, i)
            for name, action in frame_actions(self.buffers, i, frame.actions, frame.ids, ACTION_SPACE).items():
                what = (
                    f"CategoricalAction(actors={list(action.actors)}, actions={action.actions.tolist()})"
                    if isinstance(action, CategoricalAction)
                    else f"SelectEntityAction(actors={list(action.actors)}, actees={list(action.actees)})"
                )
                lines.append(f"    {name:20} {what}")
        return "\n".join(lines)

    def step(self) -> str:
        obs = self.second
        return "\n".join(
            [
                self.after_step,
                "",
                f"reward     {obs.reward.tolist()}",
                f"done       {obs.done.tolist()}",
                f"truncated  {obs.truncated.tolist()}",
                f"end_of_episode_info  {obs.end_of_episode_info}",
            ]
        )

    def rollout(self) -> str:
        p = self.played
        rewards, values, terminated, truncated, final_values = self.columns
        actions = [ragged_lists(p.frames.actions[name]) for name in (MOVE, FIRE)]
        rows = []
        for frame in range(len(p.frames.obs)):
            t, n = divmod(frame, len(BOARDS))
            moves, shots = ([value for (value,) in per_frame[frame]] for per_frame in actions)
            ended = "terminated" if terminated[t, n] else "truncated" if truncated[t, n] else "-"
            final = number(final_values[t, n]) if truncated[t, n] else "-"
            log_probs = numbers(torch.cat([ragged[0] for ragged in self._log_probs(frame)]))
            rows.append(
                [frame, t, n, moves, shots, log_probs, number(values[t, n]), number(rewards[t, n]), ended, final]
            )
        head = ["frame", "step", "env", "Move", "Fire", "log-probs", "V", "reward", "ended", "V of its last"]
        return table(head, rows) + f"\n\nlast_values  {numbers(p.last_values)}"

    def _log_probs(self, frame: int) -> list[RaggedTensor]:
        return [self.played.frames.log_probs[name].gather(torch.tensor([frame])) for name in (MOVE, FIRE)]

    def advantages(self) -> str:
        p, found = self.played, self.estimates
        rewards, values, terminated, truncated, final_values = self.columns
        rows = []
        for n in range(len(BOARDS)):
            for t in range(STEPS):
                if terminated[t, n]:
                    following, source = torch.tensor(0.0), "nothing follows"
                elif truncated[t, n]:
                    following, source = final_values[t, n], "its last observation"
                elif t == STEPS - 1:
                    following, source = p.last_values[n], "the rollout's border"
                else:
                    following, source = values[t + 1, n], "the next step"
                delta = rewards[t, n] + PPO.gamma * following - values[t, n]
                cells = (rewards[t, n], values[t, n], following, delta, found.advantages[t, n], found.returns[t, n])
                rows.append([n, t, *map(number, cells), source])
        return table(["env", "step", "reward", "V", "V'", "delta", "A", "return", "V' comes from"], rows)

    @cached_property
    def learned(self) -> dict[str, Tensor]:
        """The loss of a minibatch and its intermediate results."""
        frames, p = torch.tensor(MINIBATCH), self.played
        actions = {name: action.gather(frames) for name, action in p.frames.actions.items()}
        evaluation = self.net.evaluate(p.frames.obs[frames], actions)
        old = {name: ragged.gather(frames) for name, ragged in p.frames.log_probs.items()}
        frame_of_actor = torch.cat([ragged.sequences for ragged in old.values()])
        old_log_probs = torch.cat([ragged.values for ragged in old.values()])
        log_probs = torch.cat(list(evaluation.log_probs.values()))
        entropies = torch.cat(list(evaluation.entropies.values()))
        num_actors = torch.bincount(frame_of_actor, minlength=len(frames))
        weights = unit_weights(num_actors, ratio=PPO.ratio, weighting=PPO.weighting)
        raw = self.estimates.advantages.flatten()[frames]
        advantages = normalize(raw, moments_of_some(raw, num_actors > 0))
        policy, terms = policy_terms(
            log_probs, old_log_probs, entropies, frame_of_actor, advantages, weights, clip=PPO.clip, ratio=PPO.ratio
        )
        returns = self.estimates.returns.flatten()[frames]
        of_each = torch.full_like(returns, 1 / len(frames))
        value = value_loss(evaluation.values, p.frames.values[frames], returns, of_each, clip=PPO.clip)
        total = policy - PPO.ent_coef * terms["entropy"] + PPO.vf_coef * value
        return {
            "frame_of_actor": frame_of_actor, "log_ratio": log_probs - old_log_probs, "entropies": entropies,
            "num_actors": num_actors, "weights": weights, "raw": raw, "advantages": advantages,
            "policy": policy, "entropy": terms["entropy"], "kl": terms["approx_kl"], "clipped": terms["clip_fraction"],
            "value": value, "total": total,
        }  # fmt: skip

    def minibatch(self) -> str:
        batch, found = self.played.frames.obs[torch.tensor(MINIBATCH)], self.learned
        rows = [
            [frame, int(batch.frames.lengths[i]), int(found["num_actors"][i])]
            + [number(found[key][i]) for key in ("weights", "raw", "advantages")]
            for i, frame in enumerate(MINIBATCH)
        ]
        head = ["frame", "tokens", "actors", "weight of each", "A", "A normalized"]
        lines = [table(head, rows), "", f"{'token offsets':28}{batch.frames.offsets.tolist()}"]
        for name, tokens in batch.action_tokens.items():
            lines.append(f"{name + ' actors':28}{tokens.actors.tolist()}")
        return "\n".join(lines)

    def loss(self) -> str:
        found = {key: tensor.detach() for key, tensor in self.learned.items()}
        ratios = found["log_ratio"].exp()
        return "\n".join(
            [
                f"frame of each actor  {[MINIBATCH[i] for i in found['frame_of_actor'].tolist()]}",
                f"ratios               {numbers(ratios)}",
                f"entropies            {numbers(found['entropies'])}",
                f"policy loss          {number(found['policy'])}",
                f"entropy              {number(found['entropy'])}",
                f"value loss           {number(found['value'])}",
                f"approx_kl            {number(found['kl'])}",
                f"clip_fraction        {number(found['clipped'])}",
                f"loss                 {number(found['policy'])} - {PPO.ent_coef} * {number(found['entropy'])} "
                f"+ {PPO.vf_coef} * {number(found['value'])} = {number(found['total'])}",
            ]
        )

    def statistics_after(self) -> str:
        net = make_net(WEIGHTS_SEED)
        net.load_state_dict(self.net.state_dict())
        net.update_normalization(self.played.frames.obs)
        return statistics_text(net)


BLOCKS = (
    "state observation vec_obs obs_batch layout statistics embedding packing move_head fire_head values actions "
    "env_actions step rollout advantages minibatch loss statistics_after"
).split()
"""Names of the blocks in the order of the page, which are methods of `Walk`."""
