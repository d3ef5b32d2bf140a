"""The learner: networks, optimizer, and the running statistics that scale returns."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from enn_ppo.checkpoints import Checkpoint, CheckpointError
from enn_ppo.checkpoints.policy import saved_config, transfer_weights
from enn_ppo.ppo import Advantages, Loss, Samples, Term, against_group, gae, ppo_loss, sequences_of, update
from enn_ppo.rollout import Rollout
from enn_ppo.settings.learning import OptimConfig, PPOConfig, PPOSettings
from enn_ppo.training.learning.actor_critic import ActorCritic
from enn_ppo.training.learning.moments import update_normalization
from enn_ppo.training.learning.return_scale import ReturnScale
from enn_ppo.training.learning.teacher import Teacher
from enn_ppo.training.learning.vtrace import recompute_log_probs, vtrace
from enn_ppo.training.policy_states import PolicyStates
from enn_ppo.training.random_keys import Purpose, random_key
from enn_ppo.training.ranks import ALONE, Ranks
from enn_ppo.training.tracking.metrics import Played, merge_played, summarize
from enn_ppo.training.tracking.symptoms import PAGE
from entity_gym.actions import ActionSpace
from rogue_net import ObsBatch
from rogue_net.kernels.select import say_once
from rogue_net.transfer import Transferred, transfer_optimizer

if TYPE_CHECKING:
    from enn_ppo.training.learning.compiled import CompiledPPO


log = logging.getLogger(__name__)
LARGE_VALUE_LOSS = 1000.0  # from which on its gradient hides the policy's, without normalization


class UpdateSettings(NamedTuple):
    """Settings of one update, with a number in place of every schedule."""

    step: int  # environment steps trained before this update
    ppo: PPOSettings
    learning_rate: float


class Learned(NamedTuple):
    """The result of an update."""

    stats: dict[str, float]  # name -> mean over the update's minibatches
    played: Played  # episodes and counts of its rollout


class LearnerState(NamedTuple):
    """The part of a checkpoint that belongs to the learner: weights, optimizer and scale."""

    policy: dict[str, torch.Tensor]
    value_net: dict[str, torch.Tensor] | None
    optimizer: dict[str, Any]
    scale: dict[str, Any] | None
    teacher: list[Any]  # what the teacher remembers of each rank's environments


class Learner:
    """Trains a policy and a value function on rollouts.

    Args:
        model: policy and value function.
        optimizer: of its parameters; see `make_optimizer`.
        optim: settings of an update.
        ppo: settings of the loss and of the normalization.
        action_space: action -> its space.
        terms: of the loss, in addition to PPO's.
        teacher: whose logits `TeacherLoss` needs.
        seed: of the run.
        num_players: players of each environment that this policy plays; a rollout has a column for each.
        group_size: environments in a group.
        ranks: the processes that train together, each on rollouts of the same size.

    Attributes:
        loss: `ppo_loss` with the additional terms.
        teacher: None if there is none.
    """

    def __init__(
        self,
        model: ActorCritic,
        optimizer: torch.optim.Optimizer,
        optim: OptimConfig,
        ppo: PPOConfig,
        action_space: Mapping[str, ActionSpace],
        terms: Sequence[Term] = (),
        teacher: Teacher | None = None,
        *,
        seed: int,
        num_players: int = 1,
        group_size: int = 1,
        ranks: Ranks = ALONE,
    ) -> None:
        self.model, self.optimizer, self.ranks = model, optimizer, ranks
        self.device = model.value_head.deviation.device
        self.ppo, self._optim, self._seed = ppo, optim, seed
        self._num_players, self._group_size = num_players, group_size
        self.return_scale = ReturnScale() if ppo.normalize == "returns" else None
        self._action_space = action_space
        self.loss: Loss = partial(ppo_loss, terms=terms)
        self.teacher = teacher
        self._compiled: CompiledPPO | None = None
        if can_be_compiled(self.model, terms):
            from enn_ppo.training.learning.compiled import CompiledPPO  # the compiler is needed by those who use it

            self._compiled = CompiledPPO(self.model, self.optimizer)
        self._has_advised = False
        self._shuffling = torch.Generator()
        self._transferred: Sequence[Transferred] = ()

    def learn(self, rollout: Rollout, scheduled: UpdateSettings, *, stale: bool = False) -> Learned:
        """Do one update: estimate advantages, train epochs of minibatches, and update the input statistics.

        Args:
            rollout: T steps of N environments.
            scheduled: settings of this update.
            stale: whether a part was collected with earlier parameters. Then log-probs and values are recomputed, and advantages
                are estimated with V-trace.

        Raises:
            ValueError: returns or a statistic exceed float32.
        """
        self.begin(scheduled)
        log_ratios = None
        length = self._optim.sequence_length or (None if self.model.remembers else 1)
        sequences = sequences_of(len(rollout.frames), rollout.num_envs, length, self._group_size)
        if stale:
            rollout, log_ratios = recompute_log_probs(self.model, rollout, sequences)
        advantages = self.estimate_advantages(rollout, scheduled.ppo, log_ratios)
        sizes = [each.abs().max() for each in (rollout.frames.rewards, advantages.returns)]
        largest, of_returns = torch.stack(sizes).tolist()  # synchronizes once
        if not math.isfinite(of_returns):
            raise ValueError(
                f"returns of rewards of up to {largest:.3g} exceed float32: make the environment's rewards smaller"
            )
        head = self.model.value_head
        if self.return_scale and self.return_scale(advantages.returns, head, self.ranks):
            # value clipping must compare with the new head's values, which are the mean
            frames = rollout.frames
            rollout = replace(rollout, frames=replace(frames, values=head.mean.expand_as(frames.values)))
        samples = Samples.of(rollout, advantages)
        if self.teacher and (scheduled.ppo.teacher_kl != 0 or self.teacher.net.remembers):
            samples = replace(samples, teacher=self.teacher.logits(rollout))
        options: dict[str, Any] = {
            "generator": self._shuffling, "loss": self.loss, "sequences": sequences, "ranks": self.ranks,
        }  # fmt: skip
        if self._compiled:
            step = partial(self._compiled.learn, optim=self._optim, settings=scheduled.ppo, ranks=self.ranks)
            with self._compiled.holding(samples, rollout.num_envs) as numbers:
                stats = update(
                    self.model, self.optimizer, numbers, self._optim, scheduled.ppo, optimizer_step=step, **options
                )
        else:
            stats = update(self.model, self.optimizer, samples, self._optim, scheduled.ppo, **options)
        self._check_stats(stats, largest)
        self.measure(rollout.frames.obs)
        played = merge_played(self.ranks.gather_objects(summarize(rollout, self._action_space)))
        # a policy with several players has several frames for one step of an environment
        return Learned(stats, played._replace(num_frames=played.num_frames // self._num_players))

    def _check_stats(self, stats: Mapping[str, float], largest: float) -> None:
        """Check the statistics of an update, and say once if rewards, which are `largest` at most, are too large or small.

        Raises:
            ValueError: a statistic is NaN or infinite, and not because of weights, which acting reports.
        """
        broken = [name for name, number in stats.items() if not math.isfinite(number) and name != "explained_variance"]
        if broken and all(bool(each.isfinite().all()) for each in self.model.parameters()):
            raise ValueError(
                f"{', '.join(broken)} of this update exceeds float32, after rewards of up to {largest:.3g}: make the "
                "environment's rewards smaller"
            )
        normalize, error = self.ppo.normalize, stats["value_loss"]
        is_large, is_small = error > LARGE_VALUE_LOSS and normalize == "none", 0 < largest < 1e-6
        if (is_large or is_small) and not self._has_advised:
            self._has_advised = True
            advice = "make the environment's rewards larger"
            if is_large:
                advice = f"value_loss is {error:,.0f}; take ppo.normalize=returns ppo.clip_value=false"
            log.warning(
                "ppo.normalize=%s learns badly from rewards of up to %.3g: %s: %s", normalize, largest, advice, PAGE
            )

    def learning(self, rollout: Rollout, scheduled: UpdateSettings) -> Callable[[], Learned]:
        """Begin an update; the returned function does it. Remote learners train in parallel until it is called."""
        return partial(self.learn, rollout, scheduled)

    def begin(self, scheduled: UpdateSettings) -> None:
        """Set the learning rate of an update, and seed the shuffling of its minibatches."""
        purpose = (Purpose.SHUFFLING, self.ranks.rank) if self.ranks.rank else (Purpose.SHUFFLING,)
        self._shuffling.manual_seed(random_key(self._seed, scheduled.step, *purpose))
        for group in self.optimizer.param_groups:
            group["lr"] = scheduled.learning_rate

    def estimate_advantages(
        self, rollout: Rollout, settings: PPOSettings, log_ratios: Tensor | None = None
    ) -> Advantages:
        """Estimate advantages and returns, with the normalization of `ppo.normalize`.

        Args:
            rollout: T steps of N environments.
            settings: gamma and lambda.
            log_ratios: (T, N) log(pi/mu) of a stale rollout, for `vtrace`; None: the rollout is on-policy.
        """
        rewards, values, terminated, truncated, final_values = map(
            rollout.by_step, ("rewards", "values", "terminated", "truncated", "final_values")
        )
        played = (rewards, values, terminated, truncated, final_values, rollout.last_values)
        gamma, decay = settings.gamma, settings.gae_lambda
        if log_ratios is not None:
            return vtrace(*played, log_ratios, gamma=gamma, gae_lambda=decay)
        estimates = gae(*played, gamma=gamma, gae_lambda=decay)
        if self.ppo.advantages == "gae":
            return estimates
        compared = estimates.advantages
        if self.ppo.advantages == "group":
            compared = gae(*played, gamma=gamma, gae_lambda=1.0).returns
        places = rollout.by_step("instance"), rollout.by_step("step")
        return estimates._replace(advantages=against_group(compared, *places, alone=estimates.advantages))

    def measure(self, obs: ObsBatch) -> None:
        """Update the input statistics with observations."""
        update_normalization(self.model, obs, self.ranks)

    def measure_rollout(self, rollout: Rollout) -> None:
        """Initialise the input statistics from a rollout, without training on it; warn of features too large for float32."""
        obs = rollout.frames.obs
        self.measure(obs)
        large = [
            name for name, each in obs.features.items() if len(each.values) and bool((each.values.abs() > 2**24).any())
        ]
        if large:
            log.warning(
                "features of %s exceed 2^24, from which on float32 cannot tell x from x + 1: subtract an offset: %s",
                ", ".join(large),
                PAGE,
            )

    def state(self) -> LearnerState:
        """The part of a checkpoint that belongs to the learner."""
        value_net, scale = self.model.value_net, self.return_scale
        return LearnerState(
            policy=self.model.policy.state_dict(),
            value_net=value_net.state_dict() if value_net else None,
            optimizer=self.optimizer.state_dict(),
            scale=scale.state() if scale else None,
            teacher=self.ranks.gather_objects(self.teacher and self.teacher.states.state()),
        )

    def restore(self, checkpoint: Checkpoint, env_name: str) -> LearnerNews:
        """Continue from `checkpoint`. Entity types, features and actions are matched by name; new ones start untrained.

        Raises:
            ValueError: it belongs to another environment or network.
        """
        networks = self._transfer(checkpoint, env_name)
        try:
            transfer_optimizer(self.optimizer, checkpoint.trainer["optimizer"], networks)
        except ValueError as error:
            raise CheckpointError(f"checkpoint {checkpoint.path} is damaged: trainer['optimizer']: {error}") from error
        news = list(networks[0].news)
        before, now = saved_config(checkpoint).ppo.normalize, self.ppo.normalize
        scale, saved_scale = self.return_scale, checkpoint.trainer["scale"]
        if before == "returns" and now != before:
            # remove the head's scale: values stay the same, and the loss is no longer divided by the deviation
            head = self.model.value_head
            head.rescale(torch.zeros_like(head.mean), torch.ones_like(head.deviation))
        elif scale and saved_scale:
            if set(saved_scale) != set(scale.state()):
                raise CheckpointError(
                    f"checkpoint {checkpoint.path} is damaged: trainer['scale'] is not that of ppo.normalize={now}"
                )
            scale.load_state(saved_scale)
        if self.teacher and saved_config(checkpoint).ppo.teacher == self.ppo.teacher:
            for state in checkpoint.trainer.get("teacher", []):
                of_rank = PolicyStates()
                of_rank.load_state(state, self.device)
                self.teacher.states.update(of_rank)
        unmeasured = any(network.unmeasured for network in networks)
        return LearnerNews(tuple(news), networks[0].changed, unmeasured)

    def _transfer(self, checkpoint: Checkpoint, env_name: str) -> Sequence[Transferred]:
        """Load the checkpoint's weights into each network, and return the transferred tensors."""
        networks = [transfer_weights(self.model.policy, checkpoint, env_name)]
        if value_net := self.model.value_net:
            is_known = bool(checkpoint.value_net)
            networks.append(
                transfer_weights(value_net, checkpoint, env_name, "value_net") if is_known else Transferred(value_net)
            )
        self._transferred = networks
        return networks

    def measure_what_is_new(self, rollout: Rollout) -> None:
        """Initialise the input statistics of features that the restored checkpoint did not have, without training."""
        for network in self._transferred:
            network.measure(lambda net: update_normalization(net, rollout.frames.obs, self.ranks))
        if self.teacher:
            self.teacher.logits(rollout)  # it sees what it would have to remember


class LearnerNews(NamedTuple):
    """Differences between a checkpoint and the run that it was loaded into."""

    news: tuple[str, ...]  # one line for each entity type, feature or action that is new or has changed
    changed: (
        str | None
    )  # first difference of the spaces, because of which saved environments cannot be restored; None: no difference
    unmeasured: bool  # whether some features have no input statistics; see `Learner.measure_what_is_new`


def can_be_compiled(model: ActorCritic, terms: Sequence[Term] = ()) -> bool:
    """Whether compiled programs can make optimizer steps on a CPU. If not, a line says why once, unless PyTorch was asked for.

    Args:
        model: policy and value function.
        terms: of the loss, in addition to PPO's; they have no kernel.
    """
    nets = [model.policy] if model.value_net is None else [model.policy, model.value_net]
    if any(net.program() is None for net in nets):  # which says why
        return False
    reasons = [f"{type(term).__name__} has no kernel" for term in terms]
    if not all(parameter.requires_grad for parameter in model.parameters()):
        reasons.append("some parameters are frozen")
    if reasons:
        say_once(reasons[0])
    return not reasons
