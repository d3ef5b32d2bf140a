"""Heads of select-entities actions: an actor's set is many decisions, one after the other.

**Independent**: each open actee is in the set with probability p_j = sigmoid(z_j), z_j = q · k_j / sqrt(K). Where the size of
sets is limited, that distribution is taken under the condition that the size is allowed (conditional Bernoulli; Chen, Dempster
& Liu 1994, "Weighted finite population sampling to maximize entropy"): actee j is decided after those listed before it, with

    p(j in the set | c chosen so far) = exp(z_j) W(j + 1, c + 1) / W(j, c),     W(j, c) = W(j + 1, c) + exp(z_j) W(j + 1, c + 1)

and W(end, c) = 1 for an allowed size c, otherwise 0. All sizes above `max`, or without one from `min` on, count as one.

**Ordered**: a pointer (Vinyals et al. 2015, arXiv 1506.03134) picks an actee, sees what it has picked, and picks again or stops:

    z_j = 10 tanh((q + f(first) + l(last) + sum_i s(i) / n + r(share of the budget that is left)) · k_j / sqrt(K))

over the n actees that were not picked, and a learned key for stopping; f, l and s are linear maps of the picked tokens.

The log-probability of a set is the sum over its decisions. Entropies and divergences are sums over the decisions on the way to
that set: estimates of those of the whole distribution, and exact for independent sets without limits.

Shapes: A actors, N actees and P pairs of all frames, M the most actees of an actor, T the most picks, D width, K key width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from entity_gym.actions import SelectEntitiesActionSpace
from rogue_net.batch.obs_batch import ActionMask
from rogue_net.batch.ragged import RaggedTensor, offsets_of, segment_sum
from rogue_net.heads.distributions import ActionDistribution, plogp, with_gumbel_noise
from rogue_net.heads.heads import ActionHead, Decided
from rogue_net.heads.noise import Source, exponential
from rogue_net.heads.pairs import Pairs, pair_products, pairs_of
from rogue_net.heads.readout import Readout

#: Numbers of a draw of one actor: pick times this, plus the entity.
DRAWS_OF_PICK = 2**32
#: Scores of picks lie within this: a policy of many picks, each of which is soon certain, stops to improve (Bello et al. 2016,
#: arXiv 1611.09940).
LARGEST_SCORE = 10.0
#: Logarithm of a weight that is nearly 0; with -inf, gradients would be NaN.
NEVER = -1e30


class SetHead(ActionHead):
    """The head of a select-entities action: queries of actors, keys of actees.

    Args:
        d_model: D.
        d_qk: K.
        space: of the action.
    """

    def __init__(self, d_model: int, d_qk: int, space: SelectEntitiesActionSpace) -> None:
        super().__init__()
        self.space = space
        self.query = nn.Linear(d_model, d_qk)
        self.key = nn.Linear(d_model, d_qk)

    def lists(self, mask: ActionMask, values: Tensor) -> RaggedTensor:
        return RaggedTensor(values, mask.pair_offsets)

    def make_told(self, d_model: int) -> nn.Module:
        return nn.ModuleDict({"selected": nn.Linear(d_model, d_model), "selecting": nn.Linear(d_model, d_model)})

    def messages(self, name: str, readout: Readout, chosen: RaggedTensor) -> Tensor:
        """The mean over an actor's set of a linear map of the selected tokens; 0 for an empty set."""
        assert isinstance(self.told, nn.ModuleDict)
        actors, tokens = self._selected(name, readout, chosen)
        of_pairs = self.told["selected"](readout.tokens.index_select(0, tokens))
        num_actors = len(readout.batch.action_masks[name].actors.values)
        sums = of_pairs.new_zeros(num_actors, of_pairs.shape[1]).index_add(0, actors, of_pairs)
        counts = torch.bincount(actors, minlength=num_actors).clamp(min=1)
        means: Tensor = sums / counts.unsqueeze(1)
        return means

    def absorb(self, name: str, readout: Readout, chosen: RaggedTensor) -> Tensor:
        """Besides the message on the actor's token, a linear map of the actor on those of the selected entities."""
        assert isinstance(self.told, nn.ModuleDict)
        actors, tokens = self._selected(name, readout, chosen)
        marks = self.told["selecting"](readout.actors(name)).index_select(0, actors)
        return super().absorb(name, readout, chosen).index_add(0, tokens, marks)

    def _selected(self, name: str, readout: Readout, chosen: RaggedTensor) -> tuple[Tensor, Tensor]:
        """The actor, and the token, of each pair that is selected."""
        pairs = pairs_of(readout.batch.action_masks[name], nobody=False)
        actees = readout.batch.action_tokens[name].actees
        assert actees is not None
        found = chosen.values[:, 0].nonzero()[:, 0]
        return pairs.actors.index_select(0, found), actees.index_select(0, pairs.actees.index_select(0, found))


class IndependentSetHead(SetHead):
    """Yes or no for every actee."""

    def forward(self, actors: Tensor, mask: ActionMask, actees: Tensor | None, decided: Decided) -> ActionDistribution:
        assert mask.actees is not None and actees is not None
        queries, pairs = self.query(actors), pairs_of(mask, nobody=False)
        logits = pair_products(queries / math.sqrt(queries.shape[1]), self.key(actees), pairs)
        entities = mask.actees.values[:, 0].index_select(0, pairs.actees)
        return IndependentSet(logits.float(), pairs, entities, len(actors), self.space)

    def logit_offsets(self, mask: ActionMask, actions: RaggedTensor) -> Tensor:
        return mask.pair_offsets


class OrderedSetHead(SetHead):
    """Picks one actee after the other, then stops."""

    def __init__(self, d_model: int, d_qk: int, space: SelectEntitiesActionSpace) -> None:
        super().__init__(d_model, d_qk, space)
        self.stop = nn.Parameter(torch.randn(1, d_qk))
        self.picked = nn.Linear(d_model, 3 * d_qk)  # f, l and s
        self.left = nn.Linear(1, d_qk) if space.budget else None

    def forward(self, actors: Tensor, mask: ActionMask, actees: Tensor | None, decided: Decided) -> ActionDistribution:
        assert mask.actees is not None and actees is not None
        return OrderedSet(Pointer(self, actors, actees, mask))

    def logit_offsets(self, mask: ActionMask, actions: RaggedTensor) -> Tensor:
        assert mask.actees is not None
        picks = segment_sum((actions.values[:, 0] > 0).long(), actions.sequences, len(mask.actors.lengths))
        return offsets_of((picks + mask.actors.lengths) * (mask.actees.lengths + 1))


# --- Distributions


@dataclass(eq=False)
class IndependentSet(ActionDistribution):
    """Sets of entities that are drawn independently, as far as their number is allowed.

    Attributes:
        logits: (P,) float32, z.
        pairs: of actors and actees.
        entities: (P,) int64, the index of each pair's actee.
        num_actors: A.
        space: of the action.
        given: (P, 1) the sets that the decisions lead to; None: no sets are known.
    """

    logits: Tensor
    pairs: Pairs
    entities: Tensor
    num_actors: int
    space: SelectEntitiesActionSpace
    given: Tensor | None = None

    @cached_property
    def rows(self) -> Tensor:
        """(P, 2) log-probabilities that a pair is not, or is, selected, after the decisions before it."""
        assert self.given is not None, "which set?"
        return self._conditional(self.given[:, 0] > 0) if self._is_limited else self._free

    def along(self, actions: Tensor) -> IndependentSet:
        return self if self.given is actions else replace(self, given=actions)

    def sample(self, source: Source = None) -> Tensor:
        numbers = torch.stack([self.entities * 2, self.entities * 2 + 1], dim=1).flatten()
        like, actors = (each.repeat_interleave(2) for each in (self.logits, self.pairs.actors))
        noise = exponential(source, like, numbers, actors).view(-1, 2)
        gumbel = with_gumbel_noise(torch.zeros_like(noise), noise)
        if not self._is_limited:
            return (self._free + gumbel).max(dim=1, keepdim=True).indices
        grid, z, weights = self._grid, self._open_logits, self._weights
        noises = torch.stack([_padded(gumbel[:, k], self._grid, 0.0) for k in range(2)])
        count, rows = grid.new_zeros(len(grid)), torch.arange(len(grid), device=grid.device)
        chosen = torch.zeros_like(z, dtype=torch.bool)
        for j in range(grid.shape[1]):
            after = weights[j + 1]
            more = (count + 1).clamp(max=self._last)
            takes = z[:, j] + after[rows, more] + noises[1, :, j] > after[rows, count] + noises[0, :, j]
            chosen[:, j] = takes
            count = torch.where(takes, more, count)
        return chosen[grid >= 0].long().unsqueeze(1)

    def mode(self) -> Tensor:
        z = self._opened(self.logits, NEVER)
        if not self._is_limited:
            return (z > 0).long().unsqueeze(1)
        ranks = self._open_logits.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        wanted = segment_sum((z > 0).long(), self.pairs.actors, self.num_actors)
        size = torch.minimum(torch.maximum(wanted, self._least), self._most)
        return (ranks < size.unsqueeze(1))[self._grid >= 0].long().unsqueeze(1)

    def log_prob(self, actions: Tensor) -> Tensor:
        chosen = self.along(actions).rows.gather(1, (actions > 0).long())[:, 0]
        return segment_sum(chosen, self.pairs.actors, self.num_actors)

    def entropy(self) -> Tensor:
        return -segment_sum(plogp(self.rows).sum(dim=1), self.pairs.actors, self.num_actors)

    def tempered(self, temperature: float) -> IndependentSet:
        return replace(self, logits=self.logits / temperature)

    @property
    def _is_limited(self) -> bool:
        return self.space.min > 0 or self.space.max is not None

    def _opened(self, values: Tensor, closed: float) -> Tensor:
        is_open = self.pairs.is_open
        return values if is_open is None else torch.where(is_open, values, closed)

    @property
    def _free(self) -> Tensor:
        z = self._opened(self.logits, float("-inf"))
        return torch.stack([logsigmoid(-z), logsigmoid(z)], dim=1)

    # what limits need: (A, M) matrices of actors and their actees

    @cached_property
    def _grid(self) -> Tensor:
        return _grid_of(self.pairs.actors, self.num_actors)

    @cached_property
    def _open_logits(self) -> Tensor:
        return _padded(self._opened(self.logits, NEVER), self._grid, NEVER)

    @cached_property
    def _num_open(self) -> Tensor:
        ones = self._opened(torch.ones_like(self.logits), 0.0)
        return segment_sum(ones, self.pairs.actors, self.num_actors).long()

    @property
    def _least(self) -> Tensor:
        return self._num_open.clamp(max=self.space.min)

    @property
    def _most(self) -> Tensor:
        return self._num_open if self.space.max is None else self._num_open.clamp(max=self.space.max)

    @property
    def _last(self) -> int:
        """The size that stands for all larger ones, too: those that are enough, or with a `max` too many."""
        return self.space.min if self.space.max is None else self.space.max + 1

    @cached_property
    def _weights(self) -> list[Tensor]:
        """M + 1 times (A, sizes): log W(j, c)."""
        z = self._open_logits
        sizes = torch.arange(self._last + 1, device=z.device)
        allowed = sizes >= self._least.unsqueeze(1)
        if self.space.max is not None:
            allowed = allowed & (sizes <= self.space.max)
        weights = [torch.where(allowed, 0.0, NEVER)]
        for j in range(z.shape[1] - 1, -1, -1):
            after = weights[-1]
            weights.append(torch.logaddexp(after, z[:, j : j + 1] + torch.cat([after[:, 1:], after[:, -1:]], dim=1)))
        return weights[::-1]

    def _conditional(self, chosen: Tensor) -> Tensor:
        """(P, 2) log-probabilities along the way to the set of `chosen`, (P,) bool."""
        grid, weights = self._grid, self._weights
        z, own = self._open_logits, _padded(chosen.long(), grid, 0)
        if not grid.shape[1]:
            return self.logits.new_zeros(0, 2)
        counts = own.cumsum(dim=1) - own
        before, after = torch.stack(weights[:-1], dim=1), torch.stack(weights[1:], dim=1)  # (A, M, sizes)

        def of_sizes(weights: Tensor, sizes: Tensor) -> Tensor:
            return weights.gather(2, sizes.clamp(max=self._last).unsqueeze(2))[..., 0]

        total = of_sizes(before, counts)
        found = torch.stack([of_sizes(after, counts) - total, z + of_sizes(after, counts + 1) - total], dim=2)[
            grid >= 0
        ]
        return torch.where(found < NEVER / 2, float("-inf"), found)


class Pointer:
    """The (A, M) matrices of actors and their actees from which the picks of ordered sets are computed.

    Args:
        head: with the weights.
        actors: (A, D) tokens.
        actees: (N, D) tokens.
        mask: of the action.
    """

    def __init__(self, head: OrderedSetHead, actors: Tensor, actees: Tensor, mask: ActionMask) -> None:
        assert mask.actees is not None
        pairs = pairs_of(mask, nobody=False)
        self.space, self.left, self.scale = head.space, head.left, 1 / math.sqrt(head.key.out_features)
        self.grid = grid = _grid_of(pairs.actors, len(actors))
        columns = pairs.actees.index_select(0, grid.clamp(min=0).flatten())

        def of_grid(rows: Tensor) -> Tensor:
            return rows.index_select(0, columns).view(*grid.shape, rows.shape[1])

        self.queries = head.query(actors).float()
        stop = head.stop.float().expand(len(grid), 1, -1)
        self.keys = torch.cat([of_grid(head.key(actees).float()), stop], dim=1)  # (A, M + 1, K)
        self.picked = of_grid(head.picked(actees).float())  # (A, M, 3 K)
        self.entities = torch.cat([of_grid(mask.actees.values)[..., 0], grid.new_full((len(grid), 1), -1)], dim=1)
        self.is_open = grid >= 0 if pairs.is_open is None else _padded(pairs.is_open, grid, False)
        self.counts = (grid >= 0).sum(dim=1, keepdim=True)  # (A, 1) n
        # as float64, sums of costs are exact in whatever order they are added; without a budget nothing costs anything
        self.costs, self.budgets = (torch.zeros_like(each, dtype=torch.float64) for each in (grid, self.counts))
        if mask.costs is not None and mask.budgets is not None:
            self.costs, self.budgets = (
                of_grid(mask.costs.unsqueeze(1))[..., 0].double(),
                mask.budgets.double().unsqueeze(1),
            )

    def affords(self, spent: Tensor) -> Tensor:
        """(A, S, M) bool, the actees that are within what is left of the budget after (A, S) was spent."""
        return self.costs.unsqueeze(1) <= (self.budgets - spent).unsqueeze(2)

    def logits(self, seen: Tensor, spent: Tensor, is_open: Tensor, num_picked: Tensor, temperature: float) -> Tensor:
        """(A, S, M + 1) log-probabilities of S picks, of stopping last; -inf for what is closed.

        Args:
            seen: (A, S, K), what earlier picks add to the query.
            spent: (A, S) float64, what earlier picks have cost.
            is_open: (A, S, M) bool, actees that may be picked.
            num_picked: (S,) int64, the picks before.
            temperature: by which logits are divided.
        """
        queries = self.queries.unsqueeze(1) + seen
        if self.left is not None:
            # below 0 where another agent has picked what is dearer
            share = ((self.budgets - spent) / self.budgets.clamp(min=1e-6)).clamp(0, 1)
            queries = queries + self.left(share.to(self.left.weight.dtype).unsqueeze(2)).float()
        scores = (queries @ self.keys.transpose(1, 2) * self.scale).tanh() * (LARGEST_SCORE / temperature)
        stops = ~is_open.any(dim=2) | (num_picked >= self.space.min)
        if self.space.max is not None:
            is_open = is_open & (num_picked < self.space.max).unsqueeze(1)
        is_open = torch.cat([is_open, stops.unsqueeze(2)], dim=2)
        logits: Tensor = scores.masked_fill(~is_open, float("-inf")).log_softmax(dim=2)
        return logits


@dataclass(eq=False)
class OrderedSet(ActionDistribution):
    """Sets that a pointer picks.

    Attributes:
        pointer: computes the picks.
        temperature: by which their logits are divided.
        given: (P, 1) the sets that the picks lead to; None: no sets are known.
    """

    pointer: Pointer
    temperature: float = 1.0
    given: Tensor | None = None

    @property
    def rows(self) -> Tensor:
        """(R, 1) log-probabilities of every choice of every pick: actor by actor, pick by pick, actees and then stopping."""
        logits, steps, _ = self.path
        is_row = torch.cat([self.pointer.grid >= 0, torch.ones_like(steps[:, :1])], dim=1)
        return logits[steps.unsqueeze(2) & is_row.unsqueeze(1)].unsqueeze(1)

    def along(self, actions: Tensor) -> OrderedSet:
        return self if self.given is actions else replace(self, given=actions)

    @cached_property
    def path(self) -> tuple[Tensor, Tensor, Tensor]:
        """The picks that lead to the given sets.

        Returns:
            (A, T + 1, M + 1) log-probabilities, (A, T + 1) bool, which picks there are, and (A, T + 1) the columns that were
            picked, M to stop.
        """
        assert self.given is not None, "which set?"
        pointer, places = self.pointer, _padded(self.given[:, 0], self.pointer.grid, 0)  # (A, M)
        num_actors, num_columns = places.shape
        counts = (places > 0).sum(dim=1)
        num_picks = int(counts.max()) if num_actors else 0
        # what is not picked is written behind all picks, and cut off
        chosen = places.new_full((num_actors, num_columns + 1), num_columns)
        columns = torch.arange(num_columns, device=places.device).expand_as(places)
        chosen = chosen.scatter(1, torch.where(places > 0, places - 1, num_columns), columns)[:, :num_picks]

        def of_picks(rows: Tensor) -> Tensor:
            """(A, T, ...) of (A, M, ...); 0 after the last pick."""
            rows = torch.cat([rows, rows.new_zeros(num_actors, 1, rows.shape[2])], dim=1)
            return rows.gather(1, chosen.unsqueeze(2).expand(-1, -1, rows.shape[2]))

        def after(sums: Tensor) -> Tensor:
            """(A, T + 1, ...): 0 before the first pick."""
            return torch.cat([sums.new_zeros(num_actors, 1, sums.shape[2]), sums], dim=1)

        first, last, summed = of_picks(pointer.picked).chunk(3, dim=2)
        seen = after(first[:, :1] + last + summed.cumsum(dim=1) / pointer.counts.clamp(min=1).unsqueeze(1))
        spent = after(of_picks(pointer.costs.unsqueeze(2)).cumsum(dim=1))[..., 0]
        steps = torch.arange(num_picks + 1, device=places.device)
        due, step = places.unsqueeze(1), steps.view(1, -1, 1) + 1
        # a given pick beyond the budget is one that could be made: its log-probability is finite
        is_open = pointer.is_open.unsqueeze(1) & ((due == 0) | (due >= step)) & (pointer.affords(spent) | (due == step))
        logits = pointer.logits(seen, spent, is_open, steps, self.temperature)
        chosen = torch.cat([chosen, chosen.new_full((num_actors, 1), num_columns)], dim=1)
        return logits, steps <= counts.unsqueeze(1), chosen

    def sample(self, source: Source = None) -> Tensor:
        return self._pick(source, greedy=False)

    def mode(self) -> Tensor:
        """The most probable pick at each time, which is not always the most probable set."""
        return self._pick(None, greedy=True)

    def _pick(self, source: Source, *, greedy: bool) -> Tensor:
        pointer = self.pointer
        num_actors, num_columns = pointer.grid.shape
        rows = torch.arange(num_actors, device=pointer.grid.device)
        places, picks = torch.zeros_like(pointer.grid), 0
        is_open, is_picking = pointer.is_open.clone(), torch.ones_like(rows, dtype=torch.bool)
        first = sums = seen = torch.zeros_like(pointer.queries)
        spent = torch.zeros_like(pointer.budgets)
        actors = rows.repeat_interleave(num_columns + 1)
        while True:
            now, step = is_open.unsqueeze(1) & pointer.affords(spent), torch.full((1,), picks, device=rows.device)
            logits = pointer.logits(seen.unsqueeze(1), spent, now, step, self.temperature)[:, 0]
            if not greedy:
                numbers = (pointer.entities + picks * DRAWS_OF_PICK).flatten()
                noise = exponential(source, logits.flatten(), numbers, actors).view_as(logits)
                logits = with_gumbel_noise(logits, noise)
            column = logits.max(dim=1).indices
            is_picking = is_picking & (column < num_columns)
            if not bool(is_picking.any()):
                return places[pointer.grid >= 0].unsqueeze(1)
            picks += 1
            column = torch.where(is_picking, column, 0)  # what is picked of those who have stopped does not matter
            places[rows[is_picking], column[is_picking]] = picks
            of_first, of_last, summed = pointer.picked[rows, column].chunk(3, dim=1)
            first, sums = of_first if picks == 1 else first, sums + summed
            seen = first + of_last + sums / pointer.counts.clamp(min=1)
            is_open[rows, column] = False
            spent = spent + pointer.costs[rows, column].unsqueeze(1)

    def log_prob(self, actions: Tensor) -> Tensor:
        logits, steps, chosen = self.along(actions).path
        found = logits.gather(2, chosen.unsqueeze(2))[..., 0]
        return torch.where(steps, found, 0.0).sum(dim=1)

    def entropy(self) -> Tensor:
        logits, steps, _ = self.path
        return -torch.where(steps, plogp(logits).sum(dim=2), 0.0).sum(dim=1)

    def tempered(self, temperature: float) -> OrderedSet:
        return OrderedSet(self.pointer, temperature)


def _grid_of(actors: Tensor, num_actors: int) -> Tensor:
    """(A, M) int64, the pairs of each actor in order, and -1 behind the last. Synchronises with the device."""
    counts = torch.bincount(actors, minlength=num_actors)
    most = int(counts.max()) if num_actors else 0
    columns = torch.arange(most, device=actors.device)
    first = counts.cumsum(0) - counts
    return torch.where(columns < counts.unsqueeze(1), first.unsqueeze(1) + columns, -1)


def _padded(values: Tensor, grid: Tensor, fill: float | bool) -> Tensor:
    """(A, M) the values of the pairs in `grid`, (P,), and `fill` elsewhere."""
    return torch.where(grid >= 0, values.index_select(0, grid.clamp(min=0).flatten()).view_as(grid), fill)
