"""Predicting targets that a world declares: an auxiliary loss, and the example of how to add one.

A world tells numbers about each frame that its policy does not see (`ObsSpace.targets`), and the network has a regression head
for each. A policy that can predict them has seen what matters, often long before rewards teach it.

A further term of the loss is three things:
1. A class like the one below: called with the network's outputs, the minibatch and the settings of the update, it returns the
   term and what to log of it. Terms add up over micro-batches and ranks if they are weighted by the minibatch's `weights`
   (actors) or `frame_weights` (frames).
2. What it needs of each frame, if that is not there yet: a field of `enn_ppo.training.frames.Frames`, and the line of
   `enn_ppo.rollout.Trajectory.rollout` that fills it.
3. A line in `enn_ppo.training.learning.learner.terms_of`, with a setting that turns it on: a field of `PPOConfig` and, where it
   may be a schedule, a field of `PPOSettings` typed `float | Tensor`.

`new.values` are in rewards: where `ppo.normalize=returns`, divide them by `net.value_head.deviation`. A term that needs the
network itself, for a penalty on its weights, gets it when it is made.
"""

from __future__ import annotations

from torch import Tensor

from enn_ppo.ppo import Minibatch, Stats
from enn_ppo.settings.learning import PPOSettings
from rogue_net import Evaluation


class TargetLoss:
    """c_A sum_b w_b sum_k 0.5 mean_i (ŷ_kbi - y_kbi)², over the K targets of each frame b.

    Errors are not scaled: a world should tell numbers of about 1.
    """

    def __call__(self, new: Evaluation, batch: Minibatch, settings: PPOSettings) -> tuple[Tensor, Stats]:
        """The term, and `target_loss`, the error without its weight c_A."""
        assert batch.targets is not None, "the space has targets"
        loss = new.values.new_zeros(())
        for name, target in batch.targets.items():
            errors = (new.regressions[name] - target).square().mean(1)
            loss = loss + 0.5 * batch.frame_weights.dot(errors)
        return settings.target_coef * loss, {"target_loss": loss}
