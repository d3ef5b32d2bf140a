"""The heads of the NumPy runtime, whose tensors are those of a graph. Shapes: E tokens, A actors, C choices, N actees; K a width.

An action is drawn with noise that is an input: of a Gumbel distribution where a choice is drawn, of a normal one for numbers, and
for sets uniform. Without noise it is the likeliest: the defaults are 0, and for sets -1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from rogue_net.numpy import heads
from rogue_net.numpy.network import Settings
from rogue_net.numpy.reading import ACTORS

from .graph import Rows
from .network import Network


class Noise(NamedTuple):
    """A generator for the NumPy runtime's distributions, which returns an input."""

    values: Rows

    def gumbel(self, size: Any) -> Rows:
        return self.values

    def standard_normal(self, size: Any, dtype: Any) -> Rows:
        return self.values


def log_softmax(logits: Rows, is_open: Rows) -> Rows:
    """Log-probs of (A, C) logits; -inf for what is closed."""
    shown: Rows = np.where(is_open, logits, -np.inf)
    return shown.graph.node("LogSoftmax", shown, like=shown, axis=-1)


class Choices(heads.Choices):
    def __init__(self, logits: Rows, is_open: Rows) -> None:
        self.logits: Rows = log_softmax(logits, is_open)
        self.log_probs = self.p = self.logits

    def log_prob(self, chosen: Rows) -> Rows:
        return self.logits.at(chosen)


class Sets(heads.Sets):
    """`logits` (A, N) are log(p / (1 - p)) of each actee after those before it."""

    z: Rows

    def __init__(self, action: Settings, logits: Rows, is_open: Rows) -> None:
        self.z, self.p = np.where(is_open, logits, -np.inf).astype(np.float64), None
        graph, (num_actors, n), count = logits.graph, map(logits.length, (0, 1)), is_open.sum(1, keepdims=True)
        self.least, self.most = np.minimum(count, action.get("min", 0)), np.minimum(count, action.get("max", 2**62))
        self.n, self.has_limits, sizes = n, bool(action.get("min")) or "max" in action, graph.arange(n + 2)
        self.logits, self.log_w = self.z, [np.logaddexp(0, self.z).sum(1)]
        if self.has_limits:
            end = np.where((sizes >= self.least) & (sizes <= self.most), np.float64(0), np.float64(-np.inf))
            nothing = graph.full(np.float64(-np.inf), num_actors, 1)

            def before(j: Rows, after: Rows) -> list[Rows]:
                """W(j) of W(j + 1), both (A, N + 2), where j goes down; and W(j + 1)."""
                z = self.z.T[(n - 1).squeeze(0) - j][:, None]
                return [np.logaddexp(after, graph.concat([z + after[:, 1:], nothing], 1)), after]

            first, after = graph.loop(n, [end], before)
            self.log_w = [first[:, 0], after]  # of W(0, 0), and from the last actee to the first of W(j + 1)

    def choose(self, rng: Any) -> Rows:
        graph, size = self.z.graph, np.minimum(np.maximum((self.z > 0).sum(1, keepdims=True), self.least), self.most)
        actors, n = self.z.length(), self.n
        order = graph.top(self.z, n)  # (A, N) actees, the likeliest first
        is_first = (graph.arange(n) < size).astype(np.float32)
        likeliest = graph.node("ScatterElements", np.zeros_like(is_first), order, is_first, like=is_first, axis=1)
        random = np.where(rng.values < 0, 1 - 3 * likeliest, rng.values).expand(actors, n)  # -2: taken, 1: not taken
        if not self.has_limits:
            return (random < probability(self.z)).astype(np.int64)

        def decide(j: Rows, count: Rows) -> list[Rows]:
            after = self.log_w[1][(n - 1).squeeze(0) - j]
            logit = self.z[:, j] + after.at(count + 1) - after.at(count)
            is_in = (random[:, j] < probability(logit)).astype(np.int64)
            return [count + is_in, logit, is_in]

        _, logits, chosen = graph.loop(n, [graph.full(0, actors)], decide)
        self.logits = logits.reshape(n, actors).T
        return chosen.reshape(n, actors).T

    def log_prob(self, chosen: Rows) -> Rows:
        return np.where(chosen > 0, self.z, 0).sum(1) - self.log_w[0]


def probability(logits: Rows) -> Rows:
    """1 / (1 + exp(-x)), 0 and 1 for infinite x."""
    return 1 / (1 + np.exp(-logits))


class OrderedSets(heads.OrderedSets):
    """`logits` (A, N + 1) are the log-probs of the first pick, of stopping in the last column."""

    def choose(self, rng: Any) -> Rows:
        graph, action, is_open, costs = self.query.graph, self.action, self.is_open, self.costs
        (actors, n), zeros = map(is_open.length, (0, 1)), np.zeros_like(self.query)
        keys, share = self.keys * (1 / math.sqrt(self.keys.shape[0])), 1 / np.maximum(n, 1).astype(np.float32)

        def pick(k: Rows, *state: Rows) -> list[Rows]:
            """The k-th pick: whether another one follows, and the state after it."""
            is_picking, places, log_prob, logits, left, first, last, sums = state
            query = self.query + first + last + sums * share
            if "budget" in action:
                part = np.clip(left / np.maximum(self.budgets, 1e-6), 0, 1).astype(np.float32)
                query = query + self.of_left(part)
            still_open = is_open & (places == 0) & (costs <= left)
            stops = ~still_open.any(1, keepdims=True) | (k >= action.get("min", 0))
            log_probs = log_softmax(10 * np.tanh(query @ keys), graph.concat([still_open, stops], 1))
            noise = rng.values[:, np.minimum(k, (rng.values.length(1) - 1).squeeze(0))]
            column: Rows = (log_probs + noise).argmax(1)
            log_prob = log_prob + np.where(is_picking, log_probs.at(column), 0)
            is_picking = is_picking & (column < n)
            places = np.where((column[:, None] == graph.arange(n)) & is_picking[:, None], k + 1, places)
            column = np.where(is_picking, column, 0)
            of_first, last, summed = graph.split(self.picked[column], 3, 1)
            is_first, left = k == 0, left - costs[column][:, None]
            first, logits = np.where(is_first, of_first, first), np.where(is_first, log_probs, logits)
            return [is_picking.sum(0) > 0, is_picking, places, log_prob, logits, left, first, last, sums + summed]

        begin = [graph.full(True, actors), graph.full(0, actors, n), graph.full(np.float32(0), actors)]
        begin += [graph.full(np.float32(0), actors, n + 1), self.budgets.expand(actors, 1), zeros, zeros, zeros]
        most = np.minimum(n, action.get("max", 2**62))  # then everything is closed but to stop
        _, places, self.log_probs, self.logits, *_ = graph.loop(most, begin, pick, stops=True)
        self.p = self.logits
        return places


class Heads(heads.Heads):
    """The heads of a network that writes itself into a graph."""

    choices, sets, ordered_sets = Choices, Sets, OrderedSets
    net: Network
    frame: Any
    chosen: dict[str, Any]
    tokens: Any
    rows: Any
    value: Any
    after: Any

    def decide(self, rng: Mapping[str, Rows]) -> dict[str, Rows]:  # type: ignore[override]
        """Decide all actions with noise by action; returns the (A,) log-probs of each."""
        for name, offer in self.frame.offers.items():  # in the order of decisions
            made, noise = self.distribution(name), Noise(rng[name])
            self.made[name], self.chosen[name] = made, made.choose(noise)
            if ACTORS in self.actions[name]["after"]:  # all decide again, as often as there are actors after the first

                def turn(_: Rows, chosen: Rows, name: str = name, noise: Noise = noise) -> list[Rows]:
                    self.chosen[name] = chosen
                    return [self.distribution(name).choose(noise)]

                (self.chosen[name],) = self.net.graph.loop(offer.actors.length(), [self.chosen[name]], turn)
                self.made[name] = self.distribution(name)
                self.chosen[name] = self.made[name].choose(noise)
        return {name: made.log_prob(self.chosen[name]) for name, made in self.made.items()}

    def told(self, name: str) -> Rows:
        """(A, D) message of each actor's choice."""
        if not (choices := self.actions[name]["choices"]):
            return super().told(name)
        table = self.net.take(f"{self.actions[name]['at']}.told.weight", len(choices), self.net.width)
        return self.net.graph.constant(table)[self.chosen[name]]

    def selected(self, name: str) -> Rows:
        """(A, N) 1 for the actees that each actor has selected, otherwise 0."""
        chosen, n = self.chosen[name], self.frame.offers[name].actees.length()
        return (chosen > 0 if chosen.ndim == 2 else chosen[:, None] == self.net.graph.arange(n)).astype(np.float32)

    def still_open(self, name: str) -> Rows:
        """The mask of an action without what earlier choices close."""
        graph, offer = self.net.graph, self.frame.offers[name]
        tables: dict[str, Any] = {each: np.array(table) for each, table in self.actions[name]["allowed"].items()}
        if offer.after is not None:
            tables[self.actions[name]["selection"]] = offer.after
        is_open: Any = offer.is_open
        for earlier, table in tables.items():  # (choices of the earlier action, C), or for each actor (A, N, C)
            actors, chosen = self.frame.offers[earlier].actors, self.chosen[earlier]
            place = graph.full(-1, self.tokens.length())
            place[actors] = graph.arange(actors.length())
            who = place[graph.full(-1, offer.actors.length()) if self.actions[earlier]["is_global"] else offer.actors]
            if table.ndim == 2:  # with a row for who has not chosen
                choices = graph.concat([chosen, np.array([len(table)])])[who]
                is_open = is_open & graph.constant(np.append(table, np.ones((1, table.shape[1]), np.bool_), 0))[choices]
            else:
                n = self.frame.offers[earlier].actees.length()
                dims = offer.actors.length(), table.shape[2]
                padded = graph.concat([table.expand(dims[0], n, dims[1]), graph.full(True, dims[0], 1, dims[1])], 1)
                is_open = is_open & padded.at(graph.concat([chosen, n])[who])
        return is_open

    def column(self, feature: str | None) -> Rows:
        """(E,) float64, a feature of each entity, its own or the frame's; 0 where there is none."""
        parts: list[Rows] = []
        for name, rows in self.rows.items():
            names = [each for each, _ in self.net.joined[name]]
            parts.append(
                rows[:, names.index(feature)] if feature in names else self.net.graph.full(np.float32(0), rows.length())
            )
        return self.net.graph.concat(parts).astype(np.float64)
