"""A trained policy in the spaces of a world: the one way to play it outside of training.

Shapes: B frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from enn_ppo.checkpoints import Checkpoint
from enn_ppo.checkpoints.policy import load_net
from enn_ppo.training.learning.actor_critic import part_of
from enn_ppo.training.policy_states import PolicyStates
from entity_gym.actions import Action, ActionSpace
from entity_gym.actions.choices import world_actions
from entity_gym.batch.frame import Frame
from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.spaces import ObsSpace
from rogue_net import ActResult, FittedNet, ObsBatch, State
from rogue_net import fit as fit_net
from rogue_net.finite import fetch_actions
from rogue_net.heads.noise import FrameKeys


@dataclass(frozen=True)
class Policy:
    """A policy, and its value function, fitted to the spaces of a world.

    It remembers by environment, from step to step of an episode; `states` are those of one player of each environment.
    """

    fitted: FittedNet
    generator: torch.Generator | None = None  # of the sampling, on the policy's device; None: torch's own
    greedy: bool = False  # take the most likely action instead of sampling
    temperature: float = 1.0  # see `RogueNet.act`
    critic: FittedNet | None = None  # a separate value network; None: the policy estimates values
    states: PolicyStates = field(default_factory=PolicyStates)

    def act(
        self,
        obs: VecObs,
        keys: NDArray[np.int64] | None = None,
        *,
        greedy: bool | None = None,
        logits: bool = False,
        generator: FrameKeys | None = None,
    ) -> Acted:
        """Choose actions for B observations of the world, and remember.

        Args:
            obs: B frames; with an `elapsed_step` of 0 they begin an episode.
            keys: (B,) numbers by which the policy remembers; None: `obs.env_id`.
            greedy: in the place of the policy's own.
            logits: see `RogueNet.act`.
            generator: in the place of the policy's own.

        Raises:
            NotFinite: the network returns NaN or infinite numbers.
        """
        shown, keys = ObsBatch.from_vec_obs(obs, self.device), obs.env_id if keys is None else keys
        batch, known = self.fitted.adapt(shown), self.states.recall(keys, obs.elapsed_step == 0)
        before = part_of(known, "policy") if self._remembers_values else known
        result = self.fitted.net.act(
            batch,
            before,
            greedy=self.greedy if greedy is None else greedy,
            temperature=self.temperature,
            generator=generator or self.generator,
            logits=logits,
        )
        buffers = fetch_actions(self.fitted.net, batch, result)
        state = result.state
        if self.critic and self._remembers_values:
            values, of_value = self.critic.net.value_and_state(self.critic.adapt(shown), part_of(known, "value"))
            assert of_value is not None
            result = result._replace(values=values)
            both: State = {"value": of_value}
            state = both if state is None else both | {"policy": state}
        self.states.keep(keys, state)
        return Acted(self, shown, batch, before, result, buffers)

    def values(self, obs: VecObs) -> Tensor:
        """(B,) values of observations that follow what is remembered, on the CPU."""
        shown = ObsBatch.from_vec_obs(obs, self.device)
        return self._values(shown, self.states.recall(obs.env_id, obs.elapsed_step == 0))

    @torch.no_grad()
    def _values(self, shown: ObsBatch, state: State | None) -> Tensor:
        critic = self.critic or self.fitted
        if self.critic:
            state = part_of(state, "value") if self._remembers_values else None
        return critic.net.value(critic.adapt(shown), state).cpu()

    @property
    def _remembers_values(self) -> bool:
        """Whether states have parts of both networks, as those of `ActorCritic`."""
        return self.critic is not None and self.critic.net.remembers

    @property
    def device(self) -> torch.device:
        """The device of the policy."""
        return next(self.fitted.net.parameters()).device


@dataclass(frozen=True)
class Acted:
    """Decisions of a policy in B frames: actions, and probabilities and values on demand."""

    policy: Policy
    shown: ObsBatch  # as the world shows it
    batch: ObsBatch  # as the policy sees it
    before: State | None  # what the policy remembered
    result: ActResult
    buffers: dict[str, VecAction]  # the actions, as a `VecEnv` takes them

    @cached_property
    def values(self) -> Tensor:
        """(B,) values, on the CPU."""
        if self.policy.critic is None or self.policy.critic.net.remembers:
            return self.result.values.cpu()
        return self.policy._values(self.shown, None)

    def actions(self, k: int, frame: Frame) -> dict[str, Action]:
        """The actions of frame `k`, with the world's own ids; the argument of `Environment.act`."""
        return world_actions(self.buffers, k, [frame], self._action_space)[0]

    def probabilities(self, k: int, frame: Frame) -> dict[str, Any]:
        """Probability of each choice in frame `k`, by discrete action, in the form of docs/protocol.md. Needs logits."""
        assert self.result.logits is not None
        told: dict[str, Any] = {}
        for name, offer in frame.actions.items():
            space = self._action_space[name]
            if space.discrete:
                rows, offsets = self.result.logits[name]
                own = rows[int(offsets[k]) : int(offsets[k + 1])].exp().cpu().numpy()
                # of ordered sets the first pick
                of_actors = [each[0].tolist() for each in space.by_actor(own, offer, self.buffers[name][k].values)]
                if space.selects:
                    told[name] = {"actees": [frame.ids[actee] for actee in offer.actees.tolist()], "rows": of_actors}
                else:
                    told[name] = of_actors[0] if space.is_global else of_actors
        return told

    @property
    def _action_space(self) -> Mapping[str, ActionSpace]:
        return self.policy.fitted.net.action_space


def fit(
    checkpoint: Checkpoint,
    obs_space: ObsSpace,
    action_space: Mapping[str, ActionSpace],
    env: str,
    generator: torch.Generator,
    *,
    greedy: bool = False,
    temperature: float = 1.0,
) -> Policy:
    """Fit a checkpoint's policy and value function to the spaces of the world `env`; see `rogue_net.fit`.

    The policy runs on the device of `generator`, from which it samples.

    Raises:
        ValueError: the world lacks an entity type, feature or action of the policy; the message names the first.
    """

    def fitted(network: str) -> FittedNet:
        net = load_net(checkpoint, network, generator.device).eval()
        try:
            return fit_net(net, obs_space, action_space)
        except ValueError as error:
            raise ValueError(f"the {network} of checkpoint {checkpoint.path} does not fit {env}: {error}") from None

    critic = fitted("value_net") if checkpoint.value_net else None
    return Policy(fitted("policy"), generator, greedy, temperature, critic)
