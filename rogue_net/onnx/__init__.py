"""Trained policies as ONNX models, for single frames with any number of entities of every type.

    onnx.save(policy_model("snake.safetensors"), "snake.onnx")

The graph is written by computing the network of `rogue_net.numpy` with tensors in the place of arrays: `graph` is what they are,
`network` and `heads` the methods that differ. docs/ship_onnx.md describes inputs and outputs.
"""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import onnx

from rogue_net.numpy import Policy
from rogue_net.numpy.reading import FORMAT, GLOBAL, Frame, Offer, read_file

from .graph import Graph, Rows
from .heads import Heads
from .network import Network

__all__ = ["policy_model"]

NOISE = {
    "gumbel": "standard Gumbel noise, -log(-log(u)) of uniform u between 0 and 1",
    "normal": "standard normal noise",
    "uniform": "uniform noise, from 0 to below 1",
}


def policy_model(path: str | os.PathLike[str], version: str = "") -> onnx.ModelProto:
    """The ONNX model of a checkpoint, or of a file that `python -m enn_ppo.export` wrote.

    Args:
        path: of the file.
        version: of the program that writes the model.

    Raises:
        PolicyError: the file is damaged, of another format, or its weights do not fit its settings.
    """
    policy, graph = Policy.load(path), Graph()
    networks = [policy.net] if policy.value_net is policy.net else [policy.net, policy.value_net]
    nets = [Network(each.tensors, each.settings, policy.spaces, graph) for each in networks]
    frame, noise = _frame(graph, nets), dict[str, Rows]()
    for name, offer in frame.offers.items():
        noise[name] = _noise(graph, name, policy.spaces.actions[name], offer)
    made = []
    for net, prefix in zip(nets, ("memory", "value_memory"), strict=False):
        made.append(Heads(net, frame, _memory(graph, net, prefix)))
        for name, tensor in zip(("keys", "states"), made[-1].after, strict=True) if net.remember else ():
            doc = f"{prefix}.{name} of the next step of the episode"
            graph.output(f"{prefix}.{name}.next", tensor, [f"memories of {prefix}", tensor.shape[1]], doc)
    log_probs = made[0].decide(noise)
    for name, distribution in made[0].made.items():
        action, offer, chosen = policy.spaces.actions[name], frame.offers[name], made[0].chosen[name]
        actors, columns = f"actors of {name}", chosen.shape[1] if chosen.ndim == 2 else None
        if chosen.ndim == 2:
            columns = columns or f"actees of {name}"
        elif action["selects"]:
            chosen = graph.concat([offer.actees, np.array([-1])])[chosen]
        graph.output(f"choice.{name}", chosen, [actors, columns] if columns else [actors], _choice(action))
        graph.output(f"log_prob.{name}", log_probs[name].astype(np.float32), [actors], "(A,) float32, of the choice")
        if "low" not in action:
            logits, doc = distribution.logits.astype(np.float32), _logits(action)
            size = logits.shape[1] or f"choices of {name}"
            graph.output(f"logits.{name}", logits, [actors, size], doc)
    graph.output("value", made[-1].value, [], "() float32, expected discounted return")
    kinds = {name: _kind(policy.spaces.actions[name]) for name in noise}
    metadata = {"format": FORMAT, "spaces": read_file(path)[0]["spaces"], "noise": kinds}
    doc = "A policy that enn-ppo has trained. Entities are numbered from 0, type after type in the order of the spaces."
    return graph.model({name: json.dumps(each) for name, each in metadata.items()}, doc, version)


def _frame(graph: Graph, nets: list[Network]) -> Frame:
    """Inputs for what is in a frame."""
    spaces, features, has_global = nets[0].spaces, dict[str, Any](), GLOBAL in nets[0].spaces.features
    for name, columns in spaces.features.items():
        names, size = ", ".join(each for each, _ in columns), len(columns)
        if name != GLOBAL:
            doc = f"(n, {size}) float32, the features of each {name}: {names or 'none'}"
            features[name] = graph.input(f"features.{name}", np.float32, [name, size], doc)
        elif size:
            features[name] = graph.input(
                "global_features", np.float32, [size], f"({size},) float32: {names}"
            ).unsqueeze(0)
        else:
            features[name] = graph.constant(np.zeros((1, 0), np.float32))
    zero = graph.constant(np.zeros(1, np.int64))
    count = sum((rows.length() for name, rows in features.items() if name != GLOBAL), zero)
    doc = "(E,) bool, false for entities that the visible ones must not see; left out: all are visible"
    visible = graph.input("visible", np.bool_, ["entities"], doc, [True])
    ids: Any = graph.full(-1, count)
    if any({*net.remember} - {GLOBAL} for net in nets):
        doc = "(E,) int64, a number of each entity that stays the same for an episode; below 0: it is not remembered"
        ids = graph.input("ids", np.int64, ["entities"], doc)
    if has_global:
        visible, ids = graph.concat([visible.expand(count), np.array([True])]), graph.concat([ids, np.array([0])])
    offers = {name: _offer(graph, name, spaces.actions) for name in spaces.order}
    return Frame(features, {}, ids, visible, offers)


def _offer(graph: Graph, name: str, actions: dict[str, dict[str, Any]]) -> Offer:
    """Inputs for who acts, and what is open."""
    action, actors, actees = actions[name], f"actors of {name}", f"actees of {name}"
    doc = "(A,) int64, numbers of the entities that act; none: the action is not on offer"
    if action["is_global"]:
        doc = (
            "(A,) int64, the number of all entities, which is that of the whole frame; none: the action is not on offer"
        )
    who, listed = graph.input(f"actors.{name}", np.int64, [actors], doc), graph.constant(np.zeros(0, np.int64))
    if action["selects"]:
        listed = graph.input(f"actees.{name}", np.int64, [actees], "(N,) int64, numbers of those that may be selected")
    columns, letter = (actees, "N") if action["selects"] else (len(action["choices"]), len(action["choices"]))
    doc = f"(A, {letter}) bool, true for what is open to each actor; left out: everything is"
    is_open = graph.input(
        f"mask.{name}", np.bool_, [actors, columns], doc, np.full((1, len(action["choices"]) or 1), True)
    )
    after = None
    if action["selects"]:
        is_open = is_open.expand(who.length(), listed.length())
        is_open = is_open & (who[:, None] != listed) if action.get("exclude_self") else is_open
    elif action["selection"] and action["type"] == "CategoricalActionSpace":
        doc = f"(A, N, {columns}) bool, true for what is open to an actor that has selected one of the N actees of "
        doc += f"{action['selection']}; left out: everything is"
        dims = [actors, f"actees of {action['selection']}", columns]
        after = graph.input(f"mask_after.{name}", np.bool_, dims, doc, np.full((1, 1, columns), True))
    return Offer(who, listed, is_open, after)


def _kind(action: dict[str, Any]) -> str:
    """The kind of noise with which an action is drawn."""
    if action["type"] == "SelectEntitiesActionSpace" and not action.get("ordered"):
        return "uniform"
    return "normal" if action["type"] == "ContinuousActionSpace" else "gumbel"


def _noise(graph: Graph, name: str, action: dict[str, Any], offer: Offer) -> Rows:
    """The input for the noise with which an action is drawn."""
    kind, actors, actees = _kind(action), f"actors of {name}", f"actees of {name}"
    dims: list[int | str]
    if action["type"] == "SelectEntitiesActionSpace":
        picks = f"min(N, {action['max']})" if "max" in action else "N"
        dims, default, shape = [actors, actees], np.full((1, 1), -1), "(A, N)"
        if action.get("ordered"):
            dims, default, shape = [actors, "picks", "N + 1"], np.zeros((1, 1, 1)), f"(A, {picks}, N + 1)"
    else:
        size = len(action.get("low", action["choices"]))
        dims, default, shape = [actors, size or "N + 1"], np.zeros((1, size or 1)), f"(A, {size or 'N + 1'})"
    doc = f"{shape} float32, {NOISE[kind]}; left out: the likeliest is chosen"
    return graph.input(f"noise.{name}", np.float32, dims, doc, default)


def _memory(graph: Graph, net: Network, prefix: str) -> Rows:
    """Inputs for what a network remembers: none in the first step of an episode."""
    then = f"; {prefix}.{{}}.next of the step before, left out in the first step of an episode"
    doc = "(M, 2) int64, types and ids of what is remembered" + then.format("keys")
    keys = graph.input(f"{prefix}.keys", np.int64, [f"memories of {prefix}", 2], doc, np.zeros((0, 2)))
    doc = f"(M, {net.width}) float32, what is remembered" + then.format("states")
    dims = [f"memories of {prefix}", net.width]
    return keys, graph.input(f"{prefix}.states", np.float32, dims, doc, np.zeros((0, net.width)))


def _choice(action: dict[str, Any]) -> str:
    if action["type"] == "SelectEntitiesActionSpace":
        places = (
            "the places of actees in each actor's set, from 1 on"
            if action.get("ordered")
            else "1 for actees in the set"
        )
        return f"(A, N) int64, {places}; 0 for those that are not in it"
    if action["selects"]:
        return "(A,) int64, numbers of the selected entities; -1: nobody"
    if "low" in action:
        return f"(A, {len(action['low'])}) float32"
    return f"(A,) int64: {', '.join(f'{k} {label}' for k, label in enumerate(action['choices']))}"


def _logits(action: dict[str, Any]) -> str:
    if action.get("ordered"):
        return "(A, N + 1) float32, log-probs of the first pick; of none in the last column"
    if action["type"] == "SelectEntitiesActionSpace":
        return "(A, N) float32, log(p / (1 - p)) of each actee after the choices of those before it"
    if action["selects"]:
        return "(A, N + 1) float32, log-probs of the actees; of nobody in the last column"
    return f"(A, {len(action['choices'])}) float32, log-probs of the choices"
