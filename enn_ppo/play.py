"""Play in the browser with a trained policy's probabilities as advice.

    python -m enn_ppo.play outputs/my_run
    python -m enn_ppo.play checkpoint=outputs/my_run --greedy --seed 3
    python -m enn_ppo.play outputs/my_run --temperature 0.5 --set width=8
    python -m enn_ppo.play outputs/my_run --port 8000 --no-open

Exit codes: 1 the environment raised an exception, 2 a mistake in the command, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from enn_ppo.checkpoints import Checkpoint, load_checkpoint
from enn_ppo.checkpoints.fit import FittedPolicy, fit_policy
from enn_ppo.checkpoints.policy import CPU, saved_config
from enn_ppo.checkpoints.trust import check_trust, code_of_environment
from enn_ppo.eval.policy import Critic, fit_critic
from enn_ppo.settings.schema import to_dict
from enn_ppo.training.environment import BRIDGES, bind_environment
from entity_gym.batch.vec_obs import VecObs
from entity_gym.check.loading import Loaded, load_environment, make_python, parse_settings
from entity_gym.output import accept_all_characters
from entity_gym.play.browser import Advice
from entity_gym.play.command import add_options, broken, run, usage_error
from rogue_net import ObsBatch, RogueNet
from rogue_net.finite import check_finite
from rogue_net.transfer.adaptor import ObsAdaptor

TRUST = "trust=true"


class NetPolicy:
    """A network as a policy for `play`.

    Args:
        net: the network.
        temperature: of the sampling; see `RogueNet.act`.
        greedy: take the most likely choice instead of sampling.
        seed: of the sampling.
        adaptor: converts the environment's observations to the network's space; None: the spaces are equal.
        critic: estimates values; None: the network does, in its own unit.
    """

    def __init__(
        self,
        net: RogueNet,
        temperature: float = 1.0,
        greedy: bool = False,
        seed: int = 0,
        adaptor: ObsAdaptor | None = None,
        critic: Critic | None = None,
    ) -> None:
        self.net = net
        self.adaptor = adaptor
        self.critic = critic
        self.temperature = temperature
        self.greedy = greedy
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, obs: VecObs) -> Advice:
        """Return the policy's actions, log-probs of the choices, and value in a single frame."""
        shown = ObsBatch.from_vec_obs(obs)
        batch = shown if self.adaptor is None else self.adaptor(shown)
        result = self.net.act(
            batch, greedy=self.greedy, temperature=self.temperature, generator=self._generator, logits=True
        )
        check_finite(self.net, batch, result)
        assert result.logits is not None
        logits = {name: ragged.values.numpy() for name, ragged in result.logits.items()}
        values = result.values if self.critic is None else self.critic.values_of(self.net, shown, result)
        return Advice(result.to_buffers(), logits, float(values[0]))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    accept_all_characters()
    options = _parser().parse_intermixed_args(argv)
    try:
        checkpoint = load_checkpoint(Path(options.checkpoint.removeprefix("checkpoint=")))
        if not options.trust:
            check_trust(checkpoint, code_of_environment(to_dict(saved_config(checkpoint).env)))
        found, fitted, critic = _find(checkpoint, options.set)
    except (ValueError, OSError) as error:
        return usage_error(error)
    except Exception as error:
        return broken(error)
    if fitted.news:
        print(f"the environment is not as it was in training; {fitted.news}")
    seed = options.seed or 0
    return run(found, options, NetPolicy(fitted.net, options.temperature, options.greedy, seed, fitted.adaptor, critic))


def _find(checkpoint: Checkpoint, settings: Sequence[str]) -> tuple[Loaded, FittedPolicy, Critic]:
    """Load the environment of the checkpoint's training, with `settings` overriding its arguments, the policy and its critic.

    Raises:
        ValueError: the environment does not exist, or lacks actions or observations that the policy needs.
    """
    config = saved_config(checkpoint).env
    kwargs = {**config.kwargs, **parse_settings(settings)}
    if config.api in BRIDGES:
        found = Loaded(bind_environment(replace(config, kwargs=kwargs)).create, {})
    else:
        found = load_environment(config.id, kwargs)
    env = make_python(found.source, found.parameters)
    obs_space, action_space = env.obs_space(), env.action_space()
    env.close()
    fitted = fit_policy(checkpoint, obs_space, action_space, CPU, config.id)
    return found, fitted, fit_critic(checkpoint, fitted, obs_space, action_space, CPU, config.id)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m enn_ppo.play", description="Play in the browser, with a trained policy's advice."
    )
    parser.add_argument("checkpoint", help="a run directory, or one of its checkpoints")
    parser.add_argument(
        "trust",
        nargs="?",
        choices=[TRUST],
        metavar=TRUST,
        help="run the environment that the checkpoint names, although it was not written here",
    )
    add_options(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--greedy", action="store_true", help="take the likeliest choice; otherwise choices are sampled")
    how.add_argument("--temperature", type=_positive, default=1.0, help="below 1 is bolder, above 1 more random (1)")
    return parser


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number greater than 0")
    return value


if __name__ == "__main__":
    sys.exit(main())
