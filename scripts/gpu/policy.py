"""Section `policy`: frames/s of acting and learning, by mean entities, width, backend and precision.

`act` starts from observations on the host and ends with actions on the host; `update` is one minibatch: evaluation, losses,
gradient, clipping, optimizer step (`enn_ppo.ppo.learn_minibatch`). Only the transformer's operations count: see `gpu/cost.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from policy_cases import Frames

from gpu.cases import HEADS, frames_of, lengths_of, make_policy, network, variants
from gpu.cost import PASSES, attention_flops, trunk_flops
from gpu.results import Section
from gpu.timing import peaks, seconds_per_call

MEANS, LAYERS = (4, 16, 64, 256), 2


def measure(section: Section) -> None:
    """Measure every combination of settings, and write the fastest backends."""
    tokens, seconds = (64, 0.005) if section.tiny else (2**17, 0.06)
    reached = section.results.known("machine").get("peaks") or peaks(section.device, tiny=section.tiny)
    section.put(tokens=tokens, layers=LAYERS, peaks=reached)
    for width in (32, 64) if section.tiny else HEADS:
        for mean in MEANS[:2] if section.tiny else MEANS:
            frames = frames_of(mean, tokens)
            for backend, precision in variants(section.device):
                settings = {"mean": mean, "width": width, "backend": backend, "precision": precision}
                section.measured("policy", settings, partial(one, section, frames, settings, reached, seconds))
    section.put(best=best(section.found.get("policy", [])))


def one(
    section: Section, frames: Frames, settings: Mapping[str, Any], reached: Mapping[str, float], seconds: float
) -> dict[str, Any]:
    """Measure one combination of settings."""
    width, precision = settings["width"], settings["precision"]
    config = network(width, LAYERS, settings["backend"], precision)
    policy, lengths, found = make_policy(frames, config, section.device), lengths_of(frames), {}
    trunk, attention = trunk_flops(int(lengths.sum()), width, LAYERS), attention_flops(lengths, width, LAYERS)
    for kind in ("act", "update"):
        took = seconds_per_call(getattr(policy, kind), section.device, seconds)
        tflops = PASSES[kind] * trunk / took / 1e12
        found |= {
            f"{kind}_ms": 1e3 * took,
            f"{kind}_frames_s": len(frames.obs) / took,
            f"{kind}_tokens_s": int(lengths.sum()) / took,
            f"{kind}_tflops": tflops,
            f"{kind}_tflops_with_attention": PASSES[kind] * (trunk + attention) / took / 1e12,
            f"{kind}_of_peak": tflops / reached[precision],
        }
    return found


def best(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with the fastest update for each mean, width and precision."""
    fastest: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = (row["mean"], row["width"], row["precision"])
        if key not in fastest or row["update_frames_s"] > fastest[key]["update_frames_s"]:
            fastest[key] = row
    return list(fastest.values())
