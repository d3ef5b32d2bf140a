"""An auxiliary loss that predicts an environment's targets, and an example of how to add a term to the loss.

An environment may declare numbers about each frame that the policy does not observe (`ObsSpace.targets`); the network has a
regression head for each. Predicting them can teach useful features long before rewards do.

A further term of the loss needs:
1. A class like the one below: called with the network's outputs, the minibatch and the settings of the update, it returns the
   term and the statistics to log. Terms add up over micro-batches and ranks if they are weighted by the minibatch's `weights`
   (actors) or `frame_weights` (frames).
2. For new data of each frame: a field of `enn_ppo.training.frames.Frames`, and the line of `enn_ppo.rollout.Trajectory.rollout`
   that fills it.
3. A line in `enn_ppo.training.build.terms_of`, with a setting that turns the term on: a field of `PPOConfig` and, if
   it may be a schedule, a field of `PPOSettings` typed `float`.

`new.values` are in the unit of rewards: with `ppo.normalize=returns`, divide them by `net.value_head.deviation`. A term that
needs the network itself, such as a penalty on its weights, takes it as a constructor argument.
"""

from __future__ import annotations

from torch import Tensor

from enn_ppo.ppo import Samples, Stats
from enn_ppo.settings.learning import PPOSettings
from rogue_net import Evaluation


class TargetLoss:
    """c_A sum_b w_b sum_k 0.5 mean_i (ŷ_kbi - y_kbi)², over the K targets of each frame b.

    Targets are not normalized: an environment should scale them to about 1.
    """

    def __call__(self, new: Evaluation, batch: Samples, settings: PPOSettings) -> tuple[Tensor, Stats]:
        """Returns the term, and `target_loss`, the error without its weight c_A."""
        assert batch.targets is not None, "the space has targets"
        loss = new.values.new_zeros(())
        for name, target in batch.targets.items():
            errors = (new.regressions[name] - target).square().mean(1)
            loss = loss + 0.5 * batch.frame_weights.dot(errors)
        return settings.target_coef * loss, {"target_loss": loss}
