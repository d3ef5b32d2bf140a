"""From tokens to actions: distributions, and heads that make them. Shapes: E tokens, A actors, C choices, N actees; D, K widths.

What is chosen: (A,) numbers of choices; (A,) places among the actees, N: nobody; (A, n) numbers; (A, N) places in sets, from 1.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from .network import GATES, Memories, Network, Settings, log_softmax
from .reading import ACTORS, Array, Frame

Rng: TypeAlias = "np.random.Generator | None"  # None: the likeliest is taken


def drawn(logits: Array, rng: Rng) -> Array:
    """(A,) columns of (A, C) logits: the largest, or with Gumbel noise a sample of their softmax."""
    return (logits + (0 if rng is None else rng.gumbel(size=logits.shape))).argmax(1)


def summed_before(rows: Array) -> Array:
    """(A, ...) sums of the rows of the actors before."""
    return np.concatenate([np.zeros_like(rows[:1]), rows[:-1].cumsum(0)])


class Choices:
    """Categorical distributions of (A, C) logits; as in all distributions, `p` are probabilities."""

    def __init__(self, logits: Array, is_open: Array) -> None:
        self.log_probs = log_softmax(logits, is_open)
        self.p = np.exp(self.log_probs)

    def choose(self, rng: Rng) -> Array:
        return drawn(self.log_probs, rng)

    def log_prob(self, chosen: Array) -> Array:
        return self.log_probs[np.arange(len(chosen)), chosen]


class Numbers:
    """Numbers a = f(u) of Gaussians u, with the density of the u that belongs to the float32 a.

    f(u) is u without bounds, center + radius tanh(u) with two, edge + sign softplus(sign u) with one, whose sign is -1 if upper.
    """

    def __init__(self, action: Settings, mean: Array, log_std: Array) -> None:
        self.mean, self.log_std, self.p = mean, np.clip(log_std, -20, 20), None
        low, high = (np.array(action[side], np.float32) for side in ("low", "high"))  # NaN: no bound
        self.low, self.high = np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)
        self.both, self.one = np.isfinite(low + high), np.isnan(low) ^ np.isnan(high)
        self.sign, low, high = np.where(np.isnan(low), np.float32(-1), 1), np.nan_to_num(low), np.nan_to_num(high)
        self.center, self.radius, self.edge = (low + high) / 2, np.where(self.both, (high - low) / 2, 1), low + high
        most = np.maximum(np.abs(low), np.abs(high))  # and how far the next float32 inside of it is
        self.step = np.maximum(most - np.nextafter(most, np.float32(0)), np.finfo(np.float32).tiny)

    def choose(self, rng: Rng) -> Array:
        u = self.mean + (0 if rng is None else np.exp(self.log_std) * rng.standard_normal(self.mean.shape, np.float32))
        a = np.where(self.both, self.center + self.radius * np.tanh(u), u)
        a = np.where(self.one, self.edge + self.sign * np.logaddexp(0, self.sign * u), a)
        return np.clip(a, self.low, self.high).astype(np.float32)

    def log_prob(self, chosen: Array) -> Array:
        y, limit = (chosen - self.center) / self.radius, 1 - self.step / self.radius
        above, below = np.log1p(np.clip(y, -limit, limit)), np.log1p(-np.clip(y, -limit, limit))
        y = np.maximum(self.sign * (chosen - self.edge), self.step)
        slope = np.log(-np.expm1(-y))
        u = np.where(self.both, (above - below) / 2, np.where(self.one, self.sign * (y + slope), chosen))
        slope = np.where(self.both, np.log(self.radius) + above + below, np.where(self.one, slope, 0))
        z = (u - self.mean) * np.exp(-self.log_std)
        return (-0.5 * z * z - self.log_std - 0.5 * math.log(2 * math.pi) - slope).sum(1)


class Sets:
    """Each actee is in the set with probability sigmoid(z), under the condition that the size of the set is allowed.

    Actee by actee, p(j | c so far) = exp(z_j) W(j + 1, c + 1) / W(j, c), where W(j, c) = W(j + 1, c) + exp(z_j) W(j + 1, c + 1),
    and at the end 1 for an allowed size c, otherwise 0. So p(set) = exp(sum of its z) / W(0, 0).
    """

    def __init__(self, action: Settings, logits: Array, is_open: Array) -> None:
        self.z, count = np.where(is_open, logits, -np.inf).astype(np.float64), is_open.sum(1, keepdims=True)
        self.least, self.most = np.minimum(count, action.get("min", 0)), np.minimum(count, action.get("max", 2**62))
        self.p, self.log_w, sizes = GATES["sigmoid"](self.z), list[Array](), np.arange(logits.shape[1] + 2)
        if action.get("min") or "max" in action:  # otherwise W is not needed
            self.log_w = [np.where((sizes >= self.least) & (sizes <= self.most), 0, -np.inf)]
            for z in self.z.T[::-1, :, None]:  # of each j: (A, N + 2), by c
                taken = np.concatenate([z + self.log_w[0][:, 1:], np.full((len(z), 1), -np.inf)], 1)
                self.log_w.insert(0, np.logaddexp(self.log_w[0], taken))

    def choose(self, rng: Rng) -> Array:
        size = np.clip((self.z > 0).sum(1, keepdims=True), self.least, self.most)
        likeliest = (-self.z).argsort(1, kind="stable").argsort(1, kind="stable") < size
        random = np.where(likeliest, -1, 2) if rng is None else rng.random(self.z.shape)
        rows, count = np.arange(len(size)), np.zeros(len(size), np.intp)
        for j, (now, after) in enumerate(zip(self.log_w[:-1], self.log_w[1:], strict=True)):
            self.p[:, j] = np.exp(self.z[:, j] + after[rows, count + 1] - now[rows, count])
            count = count + (random[:, j] < self.p[:, j])
        return (random < self.p).astype(np.intp)

    def log_prob(self, chosen: Array) -> Array:
        log_w = self.log_w[0][:, 0] if self.log_w else np.logaddexp(0, self.z).sum(1)
        return np.where(chosen > 0, self.z, 0).sum(1) - log_w


class OrderedSets:
    """A pointer picks an actee, sees what it has picked, and picks again or stops; `p` are those of the first pick.

    z_j = 10 tanh((q + f(first) + l(last) + sum_i s(i) / N + r(share of the budget that is left)) · k_j / sqrt(K)), over the
    actees that are open, not picked and affordable, and a learned key for stopping
    """

    def __init__(self, action: Settings, *parts: Any) -> None:
        self.is_open, self.query, self.keys, self.picked, self.budgets, self.costs, self.of_left = parts
        self.action, self.p, self.log_probs = action, np.zeros(0), np.zeros(0)

    def choose(self, rng: Rng) -> Array:
        (num_actors, n), (first, last, sums) = self.is_open.shape, np.zeros((3, *self.query.shape), np.float32)
        places, is_picking, rows = np.zeros((num_actors, n), np.intp), np.full(num_actors, True), np.arange(num_actors)
        self.log_probs, left = np.zeros(num_actors), self.budgets
        for pick in range(n + 1):
            of_left = self.of_left(np.clip(left / np.maximum(self.budgets, 1e-6), 0, 1).astype(np.float32))
            query = self.query + first + last + sums / max(1, n) + of_left
            is_open = self.is_open & (places == 0) & (self.costs <= left)
            stops = ~is_open.any(1, keepdims=True) | (pick >= self.action.get("min", 0))
            is_open = is_open & (pick < self.action.get("max", n + 1))
            logits = 10 * np.tanh(query @ self.keys / math.sqrt(len(self.keys)))
            log_probs = log_softmax(logits, np.concatenate([is_open, stops], 1))
            self.p, column = self.p if pick else np.exp(log_probs), drawn(log_probs, rng)
            self.log_probs += np.where(is_picking, log_probs[rows, column], 0)
            is_picking = is_picking & (column < n)
            if not is_picking.any():
                break
            places[rows[is_picking], column[is_picking]] = pick + 1
            column = np.where(is_picking, column, 0)
            of_first, last, summed = np.split(self.picked[column], 3, 1)
            first, sums, left = first if pick else of_first, sums + summed, left - self.costs[column][:, None]
        return places

    def log_prob(self, chosen: Array) -> Array:
        return self.log_probs


class Heads:
    """A frame on its way through a network, `made` distributions, and what was `chosen`, by action."""

    choices, sets, ordered_sets = Choices, Sets, OrderedSets

    def __init__(self, net: Network, frame: Frame, before: Memories) -> None:
        self.net, self.frame, self.actions, self.rows = net, frame, net.spaces.actions, net.rows(frame)
        self.tokens, self.value, self.after = net(self.rows, frame, before)
        self.made, self.chosen = dict[str, Any](), dict[str, Array]()

    def decide(self, rng: Rng) -> dict[str, Array]:
        """Decide all actions; returns the (A,) log-probs of each. Actors in turn all decide again after each of them."""
        for name, offer in self.frame.offers.items():  # in the order of decisions
            for turn in range(max(1, len(offer.actors) * (ACTORS in self.actions[name]["after"]))):
                self.made[name] = self.distribution(name)
                choices = self.made[name].choose(rng)
                self.chosen[name] = np.concatenate([self.chosen[name][:turn], choices[turn:]]) if turn else choices
        return {name: made.log_prob(self.chosen[name]) for name, made in self.made.items()}

    def distribution(self, name: str) -> Any:
        """The distribution of an action after the choices that were made, perhaps by some of its own actors."""
        net, at, action, offer = self.net, self.actions[name]["at"], self.actions[name], self.frame.offers[name]
        is_open, size, n = offer.is_open, net.settings["d_qk"], len(action.get("low", action["choices"]))
        actors, actees = self.tokens[offer.actors], self.tokens[offer.actees]
        if action["after"]:  # x + W relu(V [x, m] + v) + w, of each token x and the sum m of its messages
            heard, is_open = self.messages(name), self.still_open(name)
            own = summed_before(self.told(name)) if ACTORS in action["after"] and name in self.chosen else 0
            hear = (actors, heard[offer.actors] + own), (actees, heard[offer.actees])  # own: what actors before chose
            hidden = [net.linear(f"{at}.reader.hidden", np.concatenate(each, 1), net.width) for each in hear]
            read = [net.linear(f"{at}.reader.project", np.maximum(each, 0), net.width) for each in hidden]
            actors, actees = actors + read[0], actees + read[1]
        if action["type"] == "ContinuousActionSpace":
            return Numbers(action, net.linear(f"{at}.project", actors, n), net.take(f"{at}.log_std", n))
        if not action["selects"]:
            return self.choices(net.linear(f"{at}.project", actors, n), is_open)
        query, keys = net.linear(f"{at}.query", actors, size), net.linear(f"{at}.key", actees, size)
        if action.get("ordered"):
            budgets, costs = (self.column(action.get(feature)) for feature in ("budget", "cost"))  # 0 without them
            keys, costs = np.concatenate([keys, net.take(f"{at}.stop", 1, size)]).T, costs[offer.actees]
            picked, budgets = net.linear(f"{at}.picked", actees, 3 * size), budgets[offer.actors, None]
            of_left = (lambda share: net.linear(f"{at}.left", share, size)) if "budget" in action else lambda share: 0
            return self.ordered_sets(action, is_open, query, keys, picked, budgets, costs, of_left)
        query = query / math.sqrt(size)
        logits = query @ keys.T
        if action["type"] == "SelectEntitiesActionSpace":
            return self.sets(action, logits, is_open)
        if name in self.chosen:  # in turn: w · x + b for each time that an actor before has selected the entity
            logits = logits + net.linear(f"{at}.taken", actors, 1) * summed_before(self.selected(name))
        nobody, may = query[:, :1] * 0, ~is_open.any(1, keepdims=True)
        if action.get("nobody"):
            nobody, may = query @ net.take(f"{at}.nobody", 1, size).T, np.ones_like(may)
        return self.choices(np.concatenate([logits, nobody], 1), np.concatenate([is_open, may], 1))

    def messages(self, name: str) -> Array:
        """(E, D) sums of what the tokens hear of earlier choices, before an action is decided."""
        net, heard = self.net, np.zeros_like(self.tokens)
        for earlier in self.actions[name]["after"]:
            if earlier in self.chosen:
                offer, told, action = self.frame.offers[earlier], self.told(earlier), self.actions[earlier]
                if action["is_global"] or self.actions[name]["is_global"]:
                    heard += told.sum(0) / np.maximum(1, np.size(told, 0))
                else:
                    heard[offer.actors] += told
                    if action["selects"]:  # the selected entities hear who has selected them
                        marks = net.linear(f"{action['at']}.told.selecting", self.tokens[offer.actors], net.width)
                        heard[offer.actees] += self.selected(earlier).T @ marks
        return heard

    def told(self, name: str) -> Array:
        """(A, D) message of each actor's choice: of a set the mean over its entities, of nobody 0."""
        net, at, action, chosen = self.net, f"{self.actions[name]['at']}.told", self.actions[name], self.chosen[name]
        if action["selects"]:
            heard = net.linear(f"{at}.selected", self.tokens[self.frame.offers[name].actees], net.width)
            return self.selected(name) @ heard / np.maximum(1, self.selected(name).sum(1, keepdims=True))
        if (made := self.made[name]).p is None:  # numbers, of which those with two bounds are scaled to -1 to 1
            return net.linear(at, np.where(made.both, (chosen - made.center) / made.radius, chosen), net.width)
        return net.take(f"{at}.weight", len(action["choices"]), net.width)[chosen]

    def selected(self, name: str) -> Array:
        """(A, N) 1 for the actees that each actor has selected, otherwise 0."""
        chosen, n = self.chosen[name], len(self.frame.offers[name].actees)
        return (chosen > 0 if chosen.ndim == 2 else chosen[:, None] == np.arange(n)).astype(np.float32)

    def still_open(self, name: str) -> Array:
        """The mask of an action without what earlier choices close; who did not choose has the whole mask."""
        offer, is_open = self.frame.offers[name], self.frame.offers[name].is_open
        tables = {earlier: np.array(table)[:, None] for earlier, table in self.actions[name]["allowed"].items()}
        if offer.after is not None:
            tables[self.actions[name]["selection"]] = offer.after.transpose(1, 0, 2)
        for earlier, table in tables.items():  # (choices of the earlier action, A or 1, C) bool
            if earlier in self.chosen:
                place = np.full(len(self.tokens), -1)
                place[self.frame.offers[earlier].actors] = np.arange(len(self.chosen[earlier]))
                who = np.where(self.actions[earlier]["is_global"], -1, offer.actors)  # the frame's entity is the last
                choices = np.append(self.chosen[earlier], len(table))[place[who]]
                table = np.pad(table, ((0, 1), (0, 0), (0, 0)), constant_values=True)  # and a row for no choice
                is_open = is_open & np.broadcast_to(table, (len(table), *is_open.shape))[choices, np.arange(len(who))]
        return is_open

    def column(self, feature: str | None) -> Array:
        """(E,) float64, a feature of each entity, its own or the frame's; 0 where there is none."""
        names = {name: [each for each, _ in self.net.joined[name]] for name in self.rows}
        rows = {name: np.append(own, np.zeros((len(own), 1)), 1) for name, own in self.rows.items()}
        return np.concatenate([own[:, (*names[name], feature).index(feature)] for name, own in rows.items()])

    def result(self, name: str) -> tuple[Any, Any]:
        """The choices of an action's actors, and the probabilities of their choices, in the form of docs/protocol.md."""
        action, chosen, offer, p = self.actions[name], self.chosen[name], self.frame.offers[name], self.made[name].p
        actors, actees = ([self.frame.ids[k] for k in each] for each in (offer.actors, offer.actees))
        if action["is_global"]:
            return {"choice": int(chosen[0]), "label": action["choices"][chosen[0]]}, p[0].tolist()
        if action["type"] == "SelectEntitiesActionSpace":
            sets = [[actees[k] for k in places.argsort(kind="stable") if places[k]] for places in chosen]
            return {"actors": actors, "actees": sets}, {"actees": actees, "rows": p.tolist()}
        if action["selects"]:  # who selects nobody is not listed
            pairs = [(actor, actees[k]) for actor, k in zip(actors, chosen, strict=True) if k < len(actees)]
            told = {"actors": [actor for actor, _ in pairs], "actees": [actee for _, actee in pairs]}
            return told, {"actees": actees, "rows": (p if action.get("nobody") else p[:, :-1]).tolist()}
        return {"actors": actors, "values" if p is None else "choices": chosen.tolist()}, p if p is None else p.tolist()
