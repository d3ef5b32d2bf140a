"""Trained policies in NumPy alone: no torch, no other module of this project, and the same numbers.

    policy = Policy.load("snake.safetensors")       # a checkpoint, or a file that `python -m enn_ppo.export` wrote
    decision = policy.act(observation)              # actions in the world's own ids, log-probs, value, probabilities
    decision = policy.act(observation, decision.state, greedy=True)    # the next step of the same episode

The modules are the shortest complete description of the network, for one frame at a time: `reading` has the file and what an
observation is, `network` leads from features to tokens, `heads` from tokens to actions, `policy` puts them together. Shapes: E
entities of the frame (its tokens), F features, D width, H heads of K numbers, A actors, C choices, N entities to select from.
"""

from .policy import Decision, Policy
from .reading import FORMAT, PolicyError

__all__ = ["FORMAT", "Decision", "Policy", "PolicyError"]

__version__ = "0.1.0"
