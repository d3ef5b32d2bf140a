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
from copy import copy
from dataclasses import replace
from functools import partial

import torch

from enn_ppo.checkpoints.policy import load_trusted, saved_config
from enn_ppo.eval.policy import Policy, fit
from enn_ppo.training.environment import bind_environment
from enn_ppo.training.policy_states import PolicyStates
from entity_gym.batch.vec_obs import VecObs
from entity_gym.check.loading import parse_settings
from entity_gym.output import accept_all_characters
from entity_gym.play.command import add_options, broken, run, usage_error
from entity_gym.play.game import Advice


def advice(policy: Policy, known: dict[int, PolicyStates], obs: VecObs) -> Advice:
    """Return the policy's actions, log-probs of the choices, and value in a single frame.

    `known` is what it remembers before each step of the episode, to which a player may go back.
    """
    step = int(obs.elapsed_step[0])
    policy = replace(policy, states=copy(known.get(step, PolicyStates())))
    acted = policy.act(obs, logits=True)
    known[step + 1] = policy.states
    assert acted.result.logits is not None
    logits = {name: ragged.values.numpy() for name, ragged in acted.result.logits.items()}
    return Advice(acted.buffers, logits, float(acted.values[0]))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    accept_all_characters()
    options = _parser().parse_intermixed_args(argv)
    try:
        checkpoint = load_trusted(options.checkpoint.removeprefix("checkpoint="), bool(options.trust))
        config = saved_config(checkpoint).env
        kwargs = {**config.kwargs, **parse_settings(options.set)}
        source = bind_environment(replace(config, kwargs=kwargs)).source
        if not 0 < options.temperature < math.inf:
            raise ValueError(f"--temperature is {options.temperature}; it must be greater than 0")
        how = {"greedy": options.greedy, "temperature": options.temperature}
        generator = torch.Generator().manual_seed(options.seed or 0)
        policy = fit(checkpoint, *source.spaces(), config.id, generator, **how)
    except (ValueError, OSError) as error:
        return usage_error(error)
    except Exception as error:
        return broken(error)
    if policy.fitted.news:
        print(f"the environment is not as it was in training; {policy.fitted.news}")
    return run(source, options, partial(advice, policy, {}))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m enn_ppo.play", description="Play in the browser, with a trained policy's advice."
    )
    parser.add_argument("checkpoint", help="a run directory, one of its checkpoints, or a policy file")
    trust = "run the environment that the checkpoint names, although it was not written here"
    parser.add_argument("trust", nargs="?", choices=["trust=true"], metavar="trust=true", help=trust)
    add_options(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--greedy", action="store_true", help="take the likeliest choice; otherwise choices are sampled")
    how.add_argument("--temperature", type=float, default=1.0, help="below 1 is bolder, above 1 more random (1)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
