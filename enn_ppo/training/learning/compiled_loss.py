"""PPO's loss as a kernel, for the compiled step on CPUs: computes what `enn_ppo.ppo.ppo_loss` does, and the gradient.

It reads what the policy gives for the frames of a tile, and writes the gradient of the loss by each of these numbers.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from enn_ppo.settings.learning import PPOSettings
from rogue_net.kernels.cpu.compiling import Count, Floats, Ints, inline, inner_kernel

#: Columns of a minibatch (`enn_ppo.ppo.Samples`), in the order of the kernel's rows.
COLUMNS = ("advantages", "weights", "values", "returns", "frame_weights")
ADVANTAGE, WEIGHT, VALUE, RETURN, FRAME_WEIGHT = range(5)
#: Settings.
CLIP, CLIP_VALUE, ENT_COEF, VF_COEF, JOINT, DEVIATION, HAS_VALUE = range(7)
#: Numbers to log.
STATS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


def settings_of(settings: PPOSettings, deviation: float, *, has_value: bool) -> NDArray[np.float32]:
    """The settings as the kernel reads them.

    Args:
        settings: of the objective.
        deviation: of the value head.
        has_value: whether the network's value is learned; its actions are if the minibatch has any.
    """
    given = np.zeros(7, np.float32)
    given[CLIP], given[CLIP_VALUE] = float(settings.clip), settings.clip_value
    given[ENT_COEF], given[VF_COEF] = float(settings.ent_coef), float(settings.vf_coef)
    given[JOINT], given[DEVIATION], given[HAS_VALUE] = settings.ratio == "joint", deviation, has_value
    return given


@inner_kernel
def ppo(
    settings: Floats,
    low: Count,
    high: Count,
    size: Count,
    columns: Floats,
    num_actors: Count,
    actor_frames: Ints,
    log_probs: Floats,
    old_log_probs: Floats,
    entropies: Floats,
    values: Floats,
    dlog_probs: Floats,
    dentropies: Floats,
    dvalues: Floats,
    stats: Floats,
) -> None:
    """The loss of the frames `low:high` of a minibatch; the equations are those of `enn_ppo.ppo.policy_terms` and `value_loss`.

    Args:
        settings: see above.
        low: position of the first frame in the minibatch.
        high: position behind the last.
        size: M, frames of the minibatch.
        columns: (5, M), see above.
        num_actors: A.
        actor_frames: (A), from 0 for the frame `low`.
        log_probs: (A) of the policy.
        old_log_probs: (A) of the policy that acted.
        entropies: (A) of the policy.
        values: (high - low).
        dlog_probs: result, (A).
        dentropies: result, (A).
        dvalues: result, (high - low).
        stats: (5), to which what is logged is added.
    """
    joint, ent_coef = settings[JOINT] > 0, settings[ENT_COEF]
    for frame in range(high - low):
        dvalues[frame] = np.float32(0)  # the log-ratio of a joint decision, and then its gradient
    for actor in range(num_actors):
        frame = actor_frames[actor]
        log_ratio = log_probs[actor] - old_log_probs[actor]
        if joint:
            dvalues[frame] += log_ratio
        else:
            dlog_probs[actor] = _surrogate(settings, columns, size, low + frame, log_ratio, stats)
        weight = columns[WEIGHT * size + low + frame]
        dentropies[actor] = -ent_coef * weight
        stats[2] += weight * entropies[actor]
    if joint and num_actors > 0:  # a value network has no actors
        for frame in range(high - low):
            dvalues[frame] = _surrogate(settings, columns, size, low + frame, dvalues[frame], stats)
        for actor in range(num_actors):
            dlog_probs[actor] = dvalues[actor_frames[actor]]
    for frame in range(high - low if settings[HAS_VALUE] > 0 else 0):
        dvalues[frame] = _value(settings, columns, size, low + frame, values[frame], stats)


@inline
def _surrogate(settings, columns, size, position, log_ratio, stats):  # type: ignore[no-untyped-def]
    """The gradient of -w min(r A, clip(r) A) by log r."""
    advantage, weight = columns[ADVANTAGE * size + position], columns[WEIGHT * size + position]
    clip = settings[CLIP]
    ratio = np.float32(math.exp(log_ratio))
    clipped = min(max(ratio, np.float32(1) - clip), np.float32(1) + clip)
    plain = ratio * advantage
    surrogate = min(plain, clipped * advantage)
    stats[0] -= weight * surrogate
    stats[3] += weight * (ratio - np.float32(1) - log_ratio)
    if abs(ratio - np.float32(1)) > clip:
        stats[4] += weight
    # a NaN is neither larger nor smaller, and stays one
    return np.float32(0) if plain > surrogate and clipped != ratio else -weight * plain


@inline
def _value(settings, columns, size, position, value, stats):  # type: ignore[no-untyped-def]
    """The gradient of c w 0.5 max((V - R)², (V_old + clip(V - V_old) - R)²) by V; values are divided by the deviation."""
    deviation, weight = settings[DEVIATION], columns[FRAME_WEIGHT * size + position]
    new, old = value / deviation, columns[VALUE * size + position] / deviation
    error = new - columns[RETURN * size + position] / deviation
    slope = error
    if settings[CLIP_VALUE] > 0:
        change = min(max(new - old, -settings[CLIP]), settings[CLIP])
        clipped = error - (new - old) + change
        if clipped * clipped > error * error:
            slope = clipped if change == new - old else np.float32(0)
            error = clipped
    stats[1] += weight * np.float32(0.5) * error * error
    return settings[VF_COEF] * weight * slope / deviation
