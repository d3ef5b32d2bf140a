"""From tokens to actions: distributions, and the heads that make them.

Choices are arrays: (A,) numbers of choices; (A,) places of selected entities among the actees, N for nobody; (A, n) numbers; or
(A, N) sets, 0 for what is not in them, otherwise 1 or the place in the order. Shapes: E tokens, D width, A actors, C choices, N
actees, K width of keys.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .network import Network, Settings, sigmoid
from .reading import ACTORS, Array, Frame, Offer, PolicyError, is_global, selection_before, selects

Rng = np.random.Generator | None  # None: nothing is drawn, the likeliest is taken


def log_softmax(logits: Array, is_open: Array) -> Array:
    """Log-probs along the last axis, -inf for what is closed."""
    shifted = np.where(is_open, logits, -np.inf)
    shifted = shifted - shifted.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def drawn(logits: Array, rng: Rng) -> Array:
    """(A,) columns of (A, C) logits: the largest, or with Gumbel noise a sample of their softmax."""
    return (logits + (0 if rng is None else rng.gumbel(size=logits.shape))).argmax(1)


def summed_before(rows: Array) -> Array:
    """(A, ...) sums of the rows of the actors before."""
    return np.concatenate([np.zeros_like(rows[:1]), rows[:-1].cumsum(0)])


class Choices:
    """Categorical distributions of (A, C) logits."""

    def __init__(self, logits: Array, is_open: Array) -> None:
        if not is_open.any(1).all():
            raise PolicyError("an action has an actor to whom every choice is closed; leave one open")
        self.log_probs = log_softmax(logits, is_open)

    def choose(self, rng: Rng) -> Array:
        return drawn(self.log_probs, rng)

    def log_prob(self, chosen: Array) -> Array:
        return self.log_probs[np.arange(len(chosen)), chosen]

    def probabilities(self, chosen: Array) -> Any:
        return np.exp(self.log_probs).tolist()


class Numbers:
    """Numbers a = f(u) of Gaussians u; f keeps them within their bounds.

    f(u) is u without bounds, center + radius tanh(u) with two, edge + sign softplus(sign u) with one, where the sign of an upper one
    is -1. The density is that of the u that belongs to the float32 a.
    """

    def __init__(self, action: Settings, mean: Array, log_std: Array) -> None:
        low, high = (np.array(action[side], np.float32).astype(np.float64) for side in ("low", "high"))  # NaN: no bound
        has_low, has_high = ~np.isnan(low), ~np.isnan(high)
        self.mean, self.log_std, self.both, self.one = (
            mean,
            np.clip(log_std, -20, 20),
            has_low & has_high,
            has_low ^ has_high,
        )
        self.low, self.high = (
            np.where(np.isnan(x), end, x).astype(np.float32) for x, end in ((low, -np.inf), (high, np.inf))
        )
        low, high = np.where(has_low, low, 0), np.where(has_high, high, 0)
        outermost = np.maximum(np.abs(low), np.abs(high)).astype(np.float32)
        step = outermost - np.nextafter(outermost, np.float32(0)).astype(
            np.float64
        )  # of float32 just inside the bounds
        radius = np.where(self.both, (high - low) / 2, 1)
        columns = (
            (low + high) / 2,
            radius,
            np.log(radius),
            1 - step / radius,
            low + high,
            np.where(has_low, 1, -1),
            step,
        )
        self.center, self.radius, self.log_radius, self.limit, self.edge, self.sign, self.step = (
            column.astype(np.float32) for column in columns
        )

    def choose(self, rng: Rng) -> Array:
        u = self.mean + np.exp(self.log_std) * (
            np.float32(0) if rng is None else rng.standard_normal(self.mean.shape, np.float32)
        )
        a = np.where(self.both, self.center + self.radius * np.tanh(u), u)
        return np.clip(
            np.where(self.one, self.edge + self.sign * np.logaddexp(0, self.sign * u), a), self.low, self.high
        )

    def log_prob(self, chosen: Array) -> Array:
        y = np.clip((chosen - self.center) / self.radius, -self.limit, self.limit)
        above, below = np.log1p(y), np.log1p(-y)
        y = np.maximum(self.sign * (chosen - self.edge), np.maximum(self.step, np.finfo(np.float32).tiny))
        slope = np.log(-np.expm1(-y))
        u = np.where(self.both, (above - below) / 2, np.where(self.one, self.sign * (y + slope), chosen))
        slope = np.where(self.both, self.log_radius + above + below, np.where(self.one, slope, 0))
        z = (u - self.mean) * np.exp(-self.log_std)
        return (-0.5 * z * z - self.log_std - 0.5 * math.log(2 * math.pi) - slope).sum(1)

    def scaled(self, chosen: Array) -> Array:
        """The numbers; those with two bounds from -1 to 1."""
        return np.where(self.both, (chosen - self.center) / self.radius, chosen)

    def probabilities(self, chosen: Array) -> Any:
        return None


class Sets:
    """Each actee is in the set with probability sigmoid(z), under the condition that the size of the set is allowed.

    Actee by actee, p(j | c so far) = exp(z_j) W(j + 1, c + 1) / W(j, c), where W(j, c) = W(j + 1, c) + exp(z_j) W(j + 1, c + 1), and
    at the end 1 for an allowed size c, otherwise 0. So p(set) = exp(sum of its z) / W(0, 0).
    """

    def __init__(self, action: Settings, logits: Array, is_open: Array) -> None:
        self.z, num_open, n = (
            np.where(is_open, logits, -np.inf).astype(np.float64),
            is_open.sum(1, keepdims=True),
            logits.shape[1],
        )
        self.least, self.most = np.minimum(num_open, action.get("min", 0)), np.minimum(num_open, action.get("max", n))
        self.p, self.log_w = (
            sigmoid(self.z),
            list[Array](),
        )  # of each j: (A, N + 2), by c; nothing if all sizes are allowed
        if action.get("min") or "max" in action:
            sizes = np.arange(n + 2)
            self.log_w = [np.where((sizes >= self.least) & (sizes <= self.most), 0, -np.inf)]
        for z in self.z.T[::-1, :, None] if self.log_w else ():
            taken = np.concatenate([z + self.log_w[0][:, 1:], np.full((len(z), 1), -np.inf)], 1)
            self.log_w.insert(0, np.logaddexp(self.log_w[0], taken))

    def choose(self, rng: Rng) -> Array:
        size = np.clip((self.z > 0).sum(1, keepdims=True), self.least, self.most)
        chosen = (-self.z).argsort(1, kind="stable").argsort(1, kind="stable") < size
        random, count, rows = (
            None if rng is None else rng.random(self.z.shape),
            np.zeros(len(chosen), np.intp),
            np.arange(len(chosen)),
        )
        for j, (now, after) in enumerate(zip(self.log_w[:-1], self.log_w[1:], strict=True)):
            self.p[:, j] = np.exp(self.z[:, j] + after[rows, count + 1] - now[rows, count])
            count = count + (chosen[:, j] if random is None else random[:, j] < self.p[:, j])
        return (chosen if random is None else random < self.p).astype(np.intp)

    def log_prob(self, chosen: Array) -> Array:
        log_w = self.log_w[0][:, 0] if self.log_w else np.logaddexp(0, self.z).sum(1)
        return np.where(chosen > 0, self.z, 0).sum(1) - log_w

    def probabilities(self, chosen: Array) -> Any:
        return self.p.tolist()


class OrderedSets:
    """A pointer picks an actee, sees what it has picked, and picks again or stops.

    z_j = (q + f(first) + l(last) + sum_i s(i) / N + r(share of the budget that is left)) · k_j / sqrt(K), over the actees that are
    open, not picked and within the budget, and a learned key for stopping
    """

    def __init__(self, action: Settings, is_open: Array, query: Array, keys: Array, picked: Array, budget: Any) -> None:
        self.action, self.is_open, self.query, self.keys, self.picked = action, is_open, query, keys, picked
        self.budgets, self.costs, self.of_left = budget or (np.ones(len(query)), np.zeros(len(picked)), lambda share: 0)
        self.log_probs, self.rows = np.zeros(0), list[Array]()

    def choose(self, rng: Rng) -> Array:
        (num_actors, n), rows, left = self.is_open.shape, np.arange(len(self.is_open)), self.budgets
        places, is_picking, self.log_probs = (
            np.zeros((num_actors, n), np.intp),
            np.ones(num_actors, np.bool_),
            np.zeros(num_actors),
        )
        first, last, sums = np.zeros((3, *self.query.shape), np.float32)
        for pick in range(n + 1):
            query = (
                self.query
                + first
                + last
                + sums / max(1, n)
                + self.of_left((left / np.maximum(self.budgets, 1e-6))[:, None])
            )
            is_open = self.is_open & (places == 0) & (self.costs <= left[:, None])
            stops = ~is_open.any(1, keepdims=True) | (pick >= self.action.get("min", 0))
            is_open = is_open & (pick < self.action.get("max", n + 1))
            self.rows.append(log_softmax(query @ self.keys.T, np.concatenate([is_open, stops], 1)))
            column = drawn(self.rows[-1], rng)
            self.log_probs += np.where(is_picking, self.rows[-1][rows, column], 0)
            is_picking = is_picking & (column < n)
            if not is_picking.any():
                break
            places[rows[is_picking], column[is_picking]] = pick + 1
            column = np.where(is_picking, column, 0)
            of_first, last, summed = np.split(self.picked[column], 3, 1)
            first, sums, left = first if pick else of_first, sums + summed, left - self.costs[column]
        return places

    def log_prob(self, chosen: Array) -> Array:
        return self.log_probs

    def probabilities(self, chosen: Array) -> Any:
        """Of each actor and pick, of all actees and of stopping."""
        picks = (chosen > 0).sum(1)
        return [[np.exp(rows[actor]).tolist() for rows in self.rows[: picks[actor] + 1]] for actor in range(len(picks))]


class Heads:
    """Decides the actions of a frame.

    Attributes:
        made: action -> its distribution.
        chosen: action -> the choices of its actors.
    """

    def __init__(self, net: Network, frame: Frame, rows: dict[str, Array], tokens: Array) -> None:
        self.net, self.frame, self.rows, self.tokens = net, frame, rows, tokens
        self.made, self.chosen = dict[str, Any](), dict[str, Array]()

    def decide(self, name: str, rng: Rng) -> None:
        """Decide an action. Where its actors do so in turn, all of them decide again after each."""
        in_turn = ACTORS in self.net.actions[name].get("after", ())
        for turn in range(max(1, len(self.frame.offers[name].actors)) if in_turn else 1):
            self.made[name] = self.distribution(name)
            choices = self.made[name].choose(rng)
            self.chosen[name] = np.concatenate([self.chosen[name][:turn], choices[turn:]]) if turn else choices

    def distribution(self, name: str) -> Any:
        """The distribution of an action after the choices that were made, perhaps by some of its own actors."""
        net, action, offer, tokens = self.net, self.net.actions[name], self.frame.offers[name], self.tokens
        at, is_open, kind = net.heads[name], offer.is_open, action["type"]
        if action.get("after"):  # x + W relu(V [x, m] + v) + w, of each token x and the sum m of its messages
            hidden = net.linear(f"{at}.reader.hidden", np.concatenate([tokens, self.messages(name)], 1))
            tokens = tokens + net.linear(f"{at}.reader.project", np.maximum(hidden, 0))
            is_open = self.still_open(name)
        actors, actees = tokens[offer.actors], tokens[offer.actees]
        if kind == "ContinuousActionSpace":
            return Numbers(action, net.linear(f"{at}.project", actors), net.w[f"{at}.log_std"])
        if not selects(action):
            return Choices(net.linear(f"{at}.project", actors), is_open)
        query, keys, scale = (
            net.linear(f"{at}.query", actors),
            net.linear(f"{at}.key", actees),
            1 / math.sqrt(net.settings["d_qk"]),
        )
        if action.get("ordered"):
            budget, keys = None, np.concatenate([keys, net.w[f"{at}.stop"]]) * scale
            if action.get("budget"):
                columns = self.column(action["budget"])[offer.actors], self.column(action["cost"])[offer.actees]
                budget = *columns, lambda share: net.linear(f"{at}.left", share)
            return OrderedSets(action, is_open, query, keys, net.linear(f"{at}.picked", actees), budget)
        query = query * scale
        logits = query @ keys.T
        if kind == "SelectEntitiesActionSpace":
            return Sets(action, logits, is_open)
        if name in self.chosen:  # w · x + b times how many actors before have selected the entity
            logits = logits + net.linear(f"{at}.taken", actors) * summed_before(self.selected(name))
        nobody, may = np.zeros((len(actors), 1), np.float32), ~is_open.any(1, keepdims=True)
        if action.get("nobody"):
            nobody, may = query @ net.w[f"{at}.nobody"].T, np.ones_like(may)
        return Choices(np.concatenate([logits, nobody], 1), np.concatenate([is_open, may], 1))

    def messages(self, name: str) -> Array:
        """(E, D) sums of what the tokens hear of earlier choices, before an action is decided."""
        net, heard = self.net, np.zeros_like(self.tokens)
        for earlier in net.actions[name]["after"]:
            in_turn, earlier = earlier == ACTORS, name if earlier == ACTORS else earlier
            if earlier not in self.chosen:
                continue
            at, offer, chosen, action = (
                net.heads[earlier],
                self.frame.offers[earlier],
                self.chosen[earlier],
                net.actions[earlier],
            )
            if selects(action):
                told = net.linear(f"{at}.told.selected", self.tokens[offer.actees])
                told = self.selected(earlier) @ told / np.maximum(1, self.selected(earlier).sum(1, keepdims=True))
            elif action["type"] == "ContinuousActionSpace":
                told = net.linear(f"{at}.told", self.made[earlier].scaled(chosen))
            else:
                told = net.w[f"{at}.told.weight"][chosen]
            if in_turn:
                heard[offer.actors] += summed_before(told)
            elif is_global(action) or is_global(net.actions[name]):
                heard += told.sum(0) / max(1, len(told))
            else:
                heard[offer.actors] += told
                if selects(action):  # the selected entities hear who has selected them
                    marks = net.linear(f"{at}.told.selecting", self.tokens[offer.actors])
                    heard[offer.actees] += self.selected(earlier).T @ marks
        return heard

    def selected(self, name: str) -> Array:
        """(A, N) 1 for the actees that each actor has selected, otherwise 0."""
        chosen, columns = self.chosen[name], np.arange(len(self.frame.offers[name].actees))
        return (chosen > 0 if chosen.ndim == 2 else chosen[:, None] == columns).astype(np.float32)

    def still_open(self, name: str) -> Array:
        """The mask of an action without what earlier choices close; who did not choose has the whole mask."""
        offer, action = self.frame.offers[name], self.net.actions[name]
        is_open, selection = offer.is_open, selection_before(self.net.actions, name)
        for earlier, table in action.get("allowed", {}).items():
            if earlier in self.chosen:
                everything = np.ones((1, is_open.shape[1]), np.bool_)
                choices = np.append(self.chosen[earlier], len(table))[self.rows_of(offer, earlier)]
                is_open = is_open & np.concatenate([np.array(table), everything])[choices]
        if offer.after is not None and selection in self.chosen:
            places = np.append(self.chosen[selection], offer.after.shape[1])[self.rows_of(offer, selection)]
            after = np.concatenate([offer.after, np.ones_like(is_open)[:, None]], 1)
            is_open = is_open & after[np.arange(len(places)), places]
        return is_open

    def rows_of(self, offer: Offer, earlier: str) -> Array:
        """(A,) the place of each actor among those of an earlier action, or of the frame; -1 for none."""
        actors, places = self.frame.offers[earlier].actors, np.full(len(self.tokens), -1)
        places[actors] = np.arange(len(actors))
        return places[actors.repeat(len(offer.actors)) if is_global(self.net.actions[earlier]) else offer.actors]

    def column(self, feature: str) -> Array:
        """(E,) a feature of each entity, its own or the frame's; 0 where there is none."""
        names = {name: [each for each, _ in given] for name, given in self.net.features.items()}
        return np.concatenate(
            [
                rows[:, names[name].index(feature)] if feature in names[name] else np.zeros(len(rows), np.float32)
                for name, rows in self.rows.items()
            ]
        )
