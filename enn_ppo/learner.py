"""What learns: the networks, their optimizer, and the statistics that rewards and returns are scaled by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from enn_ppo.actor_critic import ActorCritic
from enn_ppo.auxiliary import TargetLoss
from enn_ppo.checkpoints import Checkpoint
from enn_ppo.checkpoints.policy import saved_config
from enn_ppo.checkpoints.transfer import Transferred, transfer_optimizer, transfer_weights, untransferred
from enn_ppo.config import TrainConfig
from enn_ppo.graphs.learning import MinibatchGraph
from enn_ppo.graphs.support import uses_graphs
from enn_ppo.moments import update_normalization
from enn_ppo.optimizer import make_optimizer, plain_state, set_learning_rates
from enn_ppo.ppo import Advantages, Loss, PPOSettings, Samples, Term, gae, n_step, ppo_loss, update
from enn_ppo.random_keys import Purpose, random_key
from enn_ppo.ranks import ALONE, Ranks
from enn_ppo.return_scale import ReturnScale, RewardScale
from enn_ppo.rollout import Rollout
from enn_ppo.teacher import load_teacher
from enn_ppo.tracking.counts import Played, summarize
from enn_ppo.tracking.logger import Row
from enn_ppo.tracking.merged_counts import merge_played
from enn_ppo.vtrace import recompute_log_probs, vtrace
from entity_gym.actions import ActionSpace
from entity_gym.spaces import ObsSpace
from rogue_net import ObsBatch, RogueNet
from rogue_net.backend import check_backend


class Settings(NamedTuple):
    """Settings of one update: every schedule has become its number."""

    step: int  # environment steps that were trained before it
    ppo: PPOSettings
    learning_rates: tuple[float, float]  # of the policy, and of a separate value network


class Learned(NamedTuple):
    """An update that was done."""

    stats: dict[str, float]  # of the update, by name
    played: Played  # what it learned from


class LearnerState(NamedTuple):
    """What a checkpoint keeps of a learner."""

    policy: dict[str, torch.Tensor]
    value_net: dict[str, torch.Tensor] | None
    optimizer: dict[str, Any]
    scale: dict[str, Any] | None


class Learns(Protocol):
    """What `TrainState` asks to learn: a `Learner`, or the face of one that is elsewhere.

    What it learns from is what the sampler beside it collects: a `Rollout`, or where one can be found.
    """

    device: torch.device

    @property
    def model(self) -> ActorCritic:
        """The policy, and its values, as they are now."""

    def learn(self, rollout: Any, settings: Settings) -> Learned:
        """One update."""

    def measure_rollout(self, rollout: Any) -> None:
        """Begin the input statistics with a rollout that is not learned from."""

    def measure_what_is_new(self, rollout: Any) -> None:
        """Give features that a checkpoint had no statistics of those of a rollout that is not learned from."""

    def begin_episodes(self) -> None:
        """New episodes begin everywhere."""

    def state(self) -> LearnerState:
        """For a checkpoint."""

    def restore(self, checkpoint: Checkpoint, env_name: str) -> LearnerNews:
        """Continue where `checkpoint` was written. Errors as in `Learner.restore`."""

    def metrics(self) -> Row:
        """What there is to tell beside what was `Learned`."""

    def close(self) -> None:
        """Release everything. May be called twice."""


class Learner:
    """Learns from rollouts.

    Args:
        config: of the run.
        obs_space: what the policy sees.
        action_space: what it does.
        device: where it lives.
        ranks: who learns together, each from the rollouts of as many environments.
        num_players: of each environment, whom it plays: rollouts have a column for each.

    Attributes:
        model: the policy, and its values.
        loss: what is minimised: PPO's, with the terms that the settings ask for.
        uses_graphs: whether learning is recorded as CUDA graphs, and acting should be.

    Raises:
        ValueError: the networks cannot be computed there as the settings ask for, or `compile=graphs` cannot be.
    """

    def __init__(
        self,
        config: TrainConfig,
        obs_space: ObsSpace,
        action_space: Mapping[str, ActionSpace],
        device: torch.device,
        ranks: Ranks = ALONE,
        num_players: int = 1,
    ) -> None:
        self.config, self.device, self.ranks = config, device, ranks
        set_products(config, device)
        self.uses_graphs = uses_graphs(config, device, ranks)
        self._learn_minibatch = MinibatchGraph() if self.uses_graphs else None
        self.model = make_model(config, obs_space, action_space).to(device)
        self.optimizer = make_optimizer(self.model, config, device if self.uses_graphs else None)
        num_columns = config.rollout.num_envs // ranks.size * num_players
        self.reward_scale = RewardScale(num_columns, ranks) if config.ppo.normalize == "rewards" else None
        self.return_scale = ReturnScale() if config.ppo.normalize == "returns" else None
        self._action_space = action_space
        self.loss: Loss = partial(ppo_loss, terms=terms_of(config, obs_space, action_space, device))
        self._shuffling = torch.Generator()
        self._transferred: Sequence[Transferred] = ()

    def learn(self, rollout: Rollout, settings: Settings, *, stale: bool = False) -> Learned:
        """One update: advantages, epochs of minibatches, input statistics.

        Args:
            rollout: to learn from.
            settings: of this update.
            stale: whether any of it was played by earlier parameters. Then log-probs and values are computed again, and
                advantages are those of V-trace.
        """
        self.begin(settings)
        log_ratios = None
        if stale:
            rollout, log_ratios = recompute_log_probs(self.model, rollout)
        advantages = self.estimate_advantages(rollout, settings.ppo, log_ratios)
        stats = update(
            self.model,
            self.optimizer,
            Samples.of(rollout, advantages),
            self.config.optim,
            settings.ppo,
            generator=self._shuffling,
            loss=self.loss,
            ranks=self.ranks,
            learn=self._learn_minibatch,
        )
        limit = self.config.rollout.freeze_normalization_after
        if limit is None or settings.step < limit:
            self.measure(rollout.frames.obs)
        played = self.ranks.gather_objects(summarize(rollout, self._action_space))
        return Learned(stats, merge_played(played))

    def begin(self, settings: Settings) -> None:
        """Set the learning rates of an update, and key its random numbers."""
        purpose = (Purpose.SHUFFLING, self.ranks.rank) if self.ranks.rank else (Purpose.SHUFFLING,)
        self._shuffling.manual_seed(random_key(self.config.seed, settings.step, *purpose))
        set_learning_rates(self.optimizer, settings.learning_rates)

    def estimate_advantages(
        self, rollout: Rollout, settings: PPOSettings, log_ratios: Tensor | None = None
    ) -> Advantages:
        """Advantages and returns of rewards that are scaled as `ppo.normalize` says.

        Args:
            rollout: T steps of N environments.
            settings: how advantages are estimated.
            log_ratios: (T, N), where other parameters have played; see `vtrace`.
        """
        rewards, values, terminated, truncated, final_values = map(
            rollout.by_step, ("rewards", "values", "terminated", "truncated", "final_values")
        )
        gamma, n_steps = settings.gamma, settings.n_steps
        if self.reward_scale:
            begins, env_id = (rollout.by_step("step")[0] == 0).cpu(), rollout.by_step("env_id")[0].cpu()
            rewards = self.reward_scale(rewards, terminated | truncated, gamma, begins, env_id)
        played = (rewards, values, terminated, truncated, final_values, rollout.last_values)
        if log_ratios is not None:
            decay = settings.gae_lambda if n_steps is None else 1.0
            advantages = vtrace(*played, log_ratios, gamma=gamma, gae_lambda=decay, n_steps=n_steps)
        elif n_steps is None:
            advantages = gae(*played, gamma=gamma, gae_lambda=settings.gae_lambda)
        else:
            advantages = n_step(*played, gamma=gamma, n_steps=n_steps)
        if self.return_scale:
            self.return_scale(advantages.returns, self.model.value_head, self.ranks)
        return advantages

    def measure(self, obs: ObsBatch) -> None:
        """Take what a rollout has shown into the input statistics."""
        update_normalization(self.model, obs, self.ranks)

    def measure_rollout(self, rollout: Rollout) -> None:
        """Begin the input statistics with a rollout that is not learned from."""
        self.measure(rollout.frames.obs)

    @property
    def value_unit(self) -> float:
        """What a value of 1 is in rewards."""
        return self.reward_scale.deviation if self.reward_scale else 1.0

    def state(self) -> LearnerState:
        """For a checkpoint."""
        value_net, scale = self.model.value_net, self.reward_scale or self.return_scale
        return LearnerState(
            policy=self.model.policy.state_dict(),
            value_net=value_net.state_dict() if value_net else None,
            optimizer=plain_state(self.optimizer),
            scale=scale.state() if scale else None,
        )

    def restore(self, checkpoint: Checkpoint, env_name: str) -> LearnerNews:
        """Continue where `checkpoint` was written. What the environment has gained since is found by its name.

        Raises:
            ValueError: it belongs to another environment or network.
        """
        networks = self._transfer(checkpoint, env_name)
        transfer_optimizer(self.optimizer, checkpoint.trainer["optimizer"], networks)
        news = list(networks[0].news)
        before, now = saved_config(checkpoint).ppo.normalize, self.config.ppo.normalize
        scale, saved_scale = self.reward_scale or self.return_scale, checkpoint.trainer["scale"]
        if before != now:
            if before == "returns":  # the head's values stay, and its errors are no longer divided by a deviation
                head = self.model.value_head
                head.rescale(torch.zeros_like(head.mean), torch.ones_like(head.deviation))
            if "rewards" in (before, now):
                news.append(
                    f"ppo.normalize was {before!r} and is {now!r}: values, until now in another unit, are learned anew"
                )
        elif scale and saved_scale:
            scale.load_state(saved_scale)
        unmeasured = any(network.unmeasured for network in networks)
        return LearnerNews(tuple(news), networks[0].changed, unmeasured)

    def adopt(self, checkpoint: Checkpoint, env_name: str) -> LearnerNews:
        """Begin with the networks of `checkpoint` and their input statistics, and nothing else of it. As `restore`."""
        networks = self._transfer(checkpoint, env_name)
        return LearnerNews(networks[0].news, networks[0].changed, any(each.unmeasured for each in networks))

    def _transfer(self, checkpoint: Checkpoint, env_name: str) -> Sequence[Transferred]:
        """Take the checkpoint's weights; what became of each network's."""
        networks = [transfer_weights(self.model.policy, checkpoint, env_name)]
        if value_net := self.model.value_net:
            is_known = "value_net" in checkpoint.more_weights
            networks.append(
                transfer_weights(value_net, checkpoint, env_name, "value_net") if is_known else untransferred(value_net)
            )
        self._transferred = networks
        return networks

    def begin_episodes(self) -> None:
        """New episodes begin everywhere, where a checkpoint's could not go on."""
        if self.reward_scale:
            self.reward_scale.begin()

    def measure_what_is_new(self, rollout: Rollout) -> None:
        """Give features that the restored checkpoint had no statistics of those of a rollout that is not learned from."""
        for network in self._transferred:
            network.measure(rollout.frames.obs, self.ranks)

    def metrics(self) -> Row:
        """What there is to tell beside what was `Learned`."""
        return {}

    def close(self) -> None:
        """Release everything. May be called twice."""


class LearnerNews(NamedTuple):
    """What came of a checkpoint."""

    news: tuple[str, ...]  # a line for each thing that is new, or means something else now
    changed: str | None  # how the spaces differ first; None if they do not. States of environments then mean nothing
    unmeasured: bool  # whether there are features without statistics: see `Learner.measure_what_is_new`


def terms_of(
    config: TrainConfig, obs_space: ObsSpace, action_space: Mapping[str, ActionSpace], device: torch.device
) -> list[Term]:
    """The terms that the settings add to PPO's loss; `enn_ppo.auxiliary` says how to add one.

    Raises:
        ValueError: a setting asks for what the world or the teacher does not have.
    """
    terms: list[Term] = []
    if config.ppo.teacher is not None:
        terms.append(load_teacher(config.ppo.teacher, obs_space, action_space, device))
    if config.ppo.target_coef != 0:
        if not obs_space.targets:
            raise ValueError(
                f"ppo.target_coef={config.ppo.target_coef}: {config.env.id} declares no targets to predict"
            )
        terms.append(TargetLoss())
    return terms


def make_model(config: TrainConfig, obs_space: ObsSpace, action_space: Mapping[str, ActionSpace]) -> ActorCritic:
    """New networks, on the CPU whatever the device, so that all start from the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        policy = RogueNet(config.net, obs_space, action_space)
        return ActorCritic(policy, RogueNet(config.value_net, obs_space, action_space) if config.value_net else None)


def set_products(config: TrainConfig, device: torch.device) -> None:
    """Check that `precision` of the networks can be, and let torch multiply matrices so.

    Raises:
        ValueError: see `rogue_net.backend.check_backend`.
    """
    networks = [net for net in (config.net, config.value_net) if net is not None]
    for net in networks:
        check_backend(net, device.type)
    if device.type == "cuda":
        rounded = any(net.precision == "tf32" for net in networks)
        torch.set_float32_matmul_precision("high" if rounded else "highest")
