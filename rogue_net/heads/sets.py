"""Heads of select-entities actions: an actor's set is many decisions, one after the other.

**Independent**: each open actee is in the set with probability p_j = sigmoid(z_j), z_j = q · k_j / sqrt(K). Where the size of
sets is limited, that distribution is taken under the condition that the size is allowed (conditional Bernoulli; Chen, Dempster
& Liu 1994, "Weighted finite population sampling to maximize entropy"): actee j is decided after those listed before it, with

    p(j in the set | c chosen so far) = exp(z_j) W(j + 1, c + 1) / W(j, c),     W(j, c) = W(j + 1, c) + exp(z_j) W(j + 1, c + 1)

and W(end, c) = 1 for an allowed size c, otherwise 0.

**Ordered**: a pointer (Vinyals et al. 2015, arXiv 1506.03134) picks an actee, sees what it has picked, and picks again or stops:

    z_j = (q + f(first) + l(last) + sum_i s(i) / n + r(share of the budget that is left)) · k_j / sqrt(K)

over the n actees that were not picked, and a learned key for stopping; f, l and s are linear maps of the picked tokens.

The log-probability of a set is the sum over its decisions. Entropies and divergences are sums over the decisions on the way to
that set: estimates of those of the whole distribution, and exact for independent sets without limits.

Shapes: A actors, N actees and P pairs of all frames, M the most actees of an actor, T the most picks, D width, K key width.
"""

from __future__ import annotations

import math
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
        return IndependentSet(logits, pairs, entities, len(actors), self.space)

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


class IndependentSet(ActionDistribution):
    """Sets of entities that are drawn independently, as far as their number is allowed. `logits` are z, (P,).

    Args:
        logits: (P,).
        pairs: of actors and actees.
        entities: (P,) int64, the index of each pair's actee.
        num_actors: A.
        space: of the action.
        path: (P, 2) log-probabilities that a pair is not, or is, selected, after what was decided before; None: nothing was.
    """

    def __init__(
        self,
        logits: Tensor,
        pairs: Pairs,
        entities: Tensor,
        num_actors: int,
        space: SelectEntitiesActionSpace,
        path: Tensor | None = None,
    ) -> None:
        self.logits, self.pairs, self.entities, self.num_actors = logits.float(), pairs, entities, num_actors
        self.space, self.path = space, path

    @property
    def rows(self) -> Tensor:
        """(P, 2) log-probabilities of the two choices for each pair."""
        assert self.path is not None, "which set?"
        return self.path

    def along(self, actions: Tensor) -> IndependentSet:
        path = self._conditional(actions[:, 0] > 0) if self._is_limited else self._free
        return IndependentSet(self.logits, self.pairs, self.entities, self.num_actors, self.space, path)

    def sample(self, source: Source = None) -> Tensor:
        like, numbers = (
            self.logits.unsqueeze(1).expand(-1, 2),
            torch.stack([self.entities * 2, self.entities * 2 + 1], 1),
        )
        actors = self.pairs.actors.unsqueeze(1).expand(-1, 2)
        noise = exponential(source, like.flatten(), numbers.flatten(), actors.flatten()).view(-1, 2)
        gumbel = with_gumbel_noise(torch.zeros_like(noise), noise)
        if not self._is_limited:
            return (self._free + gumbel).max(dim=1, keepdim=True).indices
        grid, z, weights = self._grid, self._open_logits, self._weights
        noises = torch.stack([self._padded(gumbel[:, k], 0.0) for k in range(2)])
        count, rows = grid.new_zeros(len(grid)), torch.arange(len(grid), device=grid.device)
        chosen = torch.zeros_like(z, dtype=torch.bool)
        for j in range(grid.shape[1]):
            after = weights[j + 1]
            takes = z[:, j] + after[rows, count + 1] + noises[1, :, j] > after[rows, count] + noises[0, :, j]
            chosen[:, j] = takes & (grid[:, j] >= 0)
            count = count + chosen[:, j]
        return chosen[grid >= 0].long().unsqueeze(1)

    def mode(self) -> Tensor:
        z = self._opened(self.logits, NEVER)
        if not self._is_limited:
            return (z > 0).long().unsqueeze(1)
        ranks = self._padded(z, 2 * NEVER).argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        wanted = segment_sum((z > 0).long(), self.pairs.actors, self.num_actors)
        size = torch.minimum(torch.maximum(wanted, self._least), self._most)
        return (ranks < size.unsqueeze(1))[self._grid >= 0].long().unsqueeze(1)

    def log_prob(self, actions: Tensor) -> Tensor:
        chosen = self.along(actions).rows.gather(1, (actions > 0).long())[:, 0]
        return segment_sum(chosen, self.pairs.actors, self.num_actors)

    def entropy(self) -> Tensor:
        return -segment_sum(plogp(self.rows).sum(dim=1), self.pairs.actors, self.num_actors)

    def tempered(self, temperature: float) -> IndependentSet:
        return IndependentSet(self.logits / temperature, self.pairs, self.entities, self.num_actors, self.space)

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

    def _padded(self, values: Tensor, fill: float) -> Tensor:
        return _padded(values, self._grid, fill)

    @cached_property
    def _open_logits(self) -> Tensor:
        return self._padded(self._opened(self.logits, NEVER), NEVER)

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

    @cached_property
    def _weights(self) -> list[Tensor]:
        """M + 1 times (A, sizes + 1): log W(j, c); the last column, of one more than any set may have, is never."""
        z = self._open_logits
        sizes = torch.arange(z.shape[1] + 2, device=z.device)
        allowed = (sizes >= self._least.unsqueeze(1)) & (sizes <= self._most.unsqueeze(1))
        weights = [torch.where(allowed, 0.0, NEVER)]
        never = weights[0].new_full((len(z), 1), NEVER)
        for j in range(z.shape[1] - 1, -1, -1):
            taken = torch.cat([z[:, j : j + 1] + weights[-1][:, 1:], never], dim=1)
            weights.append(torch.logaddexp(weights[-1], taken))
        return weights[::-1]

    def _conditional(self, chosen: Tensor) -> Tensor:
        """(P, 2) log-probabilities along the way to the set of `chosen`, (P,) bool."""
        grid, weights = self._grid, self._weights
        z, own = self._open_logits, self._padded(chosen.long(), 0)
        if not grid.shape[1]:
            return self.logits.new_zeros(0, 2)
        counts = own.cumsum(dim=1) - own
        before, after = torch.stack(weights[:-1], dim=1), torch.stack(weights[1:], dim=1)  # (A, M, sizes)
        total = before.gather(2, counts.unsqueeze(2))[..., 0]
        out = after.gather(2, counts.unsqueeze(2))[..., 0] - total
        into = z + after.gather(2, counts.unsqueeze(2) + 1)[..., 0] - total
        found = torch.stack([out, into], dim=2)[grid >= 0]
        return torch.where(found < NEVER / 2, float("-inf"), found)


class Pointer:
    """What the picks of ordered sets are computed from: (A, M) matrices of actors and their actees.

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
        columns = (
            torch.where(grid >= 0, pairs.actees.index_select(0, grid.clamp(min=0).flatten()).view_as(grid), 0)
            if len(pairs.actees)
            else grid
        )
        self.queries = head.query(actors).float()

        def of_grid(rows: Tensor) -> Tensor:
            return rows.index_select(0, columns.flatten()).view(*grid.shape, -1)

        keys = (
            of_grid(head.key(actees).float()) if len(actees) else self.queries.new_zeros(*grid.shape, len(head.stop[0]))
        )
        self.keys = torch.cat([keys, head.stop.float().expand(len(grid), 1, -1)], dim=1)  # (A, M + 1, K)
        picked = head.picked(actees).float() if len(actees) else self.queries.new_zeros(0, 3 * len(head.stop[0]))
        self.picked = of_grid(picked) if len(actees) else self.queries.new_zeros(*grid.shape, picked.shape[1])
        entities = mask.actees.values[:, 0]
        stop = columns.new_full((len(grid), 1), -1)
        self.entities = torch.cat([of_grid(entities)[..., 0] if len(actees) else columns, stop], dim=1)  # -1: to stop
        self.is_open = grid >= 0
        if pairs.is_open is not None:
            self.is_open = _padded(pairs.is_open, grid, False)
        self.counts = (grid >= 0).sum(dim=1)  # (A,) n
        self.budgets = self.costs = None
        if mask.costs is not None and mask.budgets is not None:
            self.budgets = mask.budgets
            self.costs = _padded(mask.costs.index_select(0, pairs.actees), grid, 0.0)

    def logits(self, queries: Tensor, is_open: Tensor, num_picked: Tensor) -> Tensor:
        """(A, S, M + 1) log-probabilities of S picks, -inf for what is closed.

        Args:
            queries: (A, S, K).
            is_open: (A, S, M) bool, actees that may be picked.
            num_picked: (A, S) or (S,) int64, the picks before.
        """
        scores = queries @ self.keys.transpose(1, 2) * self.scale
        space, some = self.space, is_open.any(dim=2)
        if space.max is not None:
            is_open = is_open & (num_picked < space.max).unsqueeze(-1)
        stops = ~some | (num_picked >= space.min)
        is_open = torch.cat([is_open, stops.expand(some.shape).unsqueeze(2)], dim=2)
        return scores.masked_fill(~is_open, float("-inf")).log_softmax(dim=2)

    def queries_after(self, order: Tensor, left: Tensor | None) -> Tensor:
        """(A, T + 1, K) queries before each pick.

        Args:
            order: (A, T) int64, the column of each pick; M after the last.
            left: (A, T + 1) the share of the budget that is left before each pick; None: there is no budget.
        """
        num_actors, num_picks = order.shape
        width = self.keys.shape[2]
        rows = torch.cat([self.picked, self.picked.new_zeros(num_actors, 1, 3 * width)], dim=1)
        rows = rows.gather(1, order.unsqueeze(2).expand(-1, -1, 3 * width))
        first, last, summed = rows.chunk(3, dim=2)
        seen = first[:, :1] + last + summed.cumsum(dim=1) / self.counts.clamp(min=1).view(-1, 1, 1)
        queries = (
            self.queries.unsqueeze(1) + torch.cat([torch.zeros_like(seen[:, :1]), seen], dim=1)[:, : num_picks + 1]
        )
        if num_picks == 0:
            queries = self.queries.unsqueeze(1)
        if self.left is not None and left is not None:
            queries = queries + self.left(left.unsqueeze(2))
        return queries  # type: ignore[no-any-return]


class OrderedSet(ActionDistribution):
    """Sets that a pointer picks.

    Args:
        pointer: computes the picks.
        temperature: by which their logits are divided.
        path: the decisions on the way to some sets; None: no sets are known.
    """

    def __init__(self, pointer: Pointer, temperature: float = 1.0, path: Path | None = None) -> None:
        self.pointer, self.temperature, self.path = pointer, temperature, path

    @property
    def rows(self) -> Tensor:
        """(R, 1) log-probabilities of every choice of every pick: actor by actor, pick by pick, actees and then stopping."""
        logits, steps, _ = self._path
        is_row = torch.cat([self.pointer.grid >= 0, torch.ones_like(self.pointer.grid[:, :1], dtype=torch.bool)], dim=1)
        return logits[steps.unsqueeze(2) & is_row.unsqueeze(1)].unsqueeze(1)

    @property
    def _path(self) -> tuple[Tensor, Tensor, Tensor]:
        assert self.path is not None, "which set?"
        return self.path

    def along(self, actions: Tensor) -> OrderedSet:
        pointer = self.pointer
        places = _padded(actions[:, 0], pointer.grid, 0)  # (A, M)
        num_actors, num_columns = places.shape
        picks = (places > 0).sum(dim=1)
        num_picks = int(picks.max()) if num_actors else 0
        # the column of each pick, M after the last; what is not picked is written behind all picks, and cut off
        order = places.new_full((num_actors, num_columns + 1), num_columns)
        columns = torch.arange(num_columns, device=places.device).expand_as(places)
        order = order.scatter(1, torch.where(places > 0, places - 1, num_columns), columns)[:, :num_picks]
        steps = torch.arange(num_picks + 1, device=places.device)
        unpicked = (places == 0).unsqueeze(1) | (places.unsqueeze(1) > steps.view(1, -1, 1))  # (A, T + 1, M)
        is_open, left = pointer.is_open.unsqueeze(1) & unpicked, None
        if pointer.costs is not None and pointer.budgets is not None:
            costs = torch.cat([pointer.costs, pointer.costs.new_zeros(num_actors, 1)], dim=1).gather(1, order)
            spent = torch.cat([costs.new_zeros(num_actors, 1), costs.cumsum(dim=1)], dim=1)
            remains = pointer.budgets.unsqueeze(1) - spent
            # a given pick beyond the budget is one that could be made: its log-probability is finite
            is_pick = places.unsqueeze(1) == (steps + 1).view(1, -1, 1)
            is_open = is_open & ((pointer.costs.unsqueeze(1) <= remains.unsqueeze(2)) | is_pick)
            left = remains / pointer.budgets.clamp(min=1e-6).unsqueeze(1)
        logits = pointer.logits(pointer.queries_after(order, left) / self.temperature, is_open, steps)
        chosen = torch.cat([order, order.new_full((num_actors, 1), num_columns)], dim=1)
        path = logits, steps <= picks.unsqueeze(1), chosen
        return OrderedSet(pointer, self.temperature, path)

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
        seen, first = torch.zeros_like(pointer.queries), torch.zeros_like(pointer.queries)
        remains, sums = pointer.budgets, torch.zeros_like(pointer.queries)
        actors = rows.repeat_interleave(num_columns + 1)
        while True:
            queries, now = pointer.queries + seen, is_open
            if pointer.costs is not None and pointer.budgets is not None and remains is not None:
                now = is_open & (pointer.costs <= remains.unsqueeze(1))
                assert pointer.left is not None
                queries = queries + pointer.left((remains / pointer.budgets.clamp(min=1e-6)).unsqueeze(1))
            step = torch.full((1,), picks, device=rows.device)
            logits = pointer.logits((queries / self.temperature).unsqueeze(1), now.unsqueeze(1), step)[:, 0]
            if not greedy:
                numbers = (pointer.entities + picks * DRAWS_OF_PICK).flatten()
                noise = exponential(source, logits.flatten(), numbers, actors).view_as(logits)
                logits = with_gumbel_noise(logits, noise)
            column = logits.max(dim=1).indices
            is_picking = is_picking & (column < num_columns)
            if not bool(is_picking.any()):
                break
            picks += 1
            places[rows[is_picking], column[is_picking]] = picks
            column = torch.where(is_picking, column, 0)
            of_first, of_last, summed = pointer.picked[rows, column].chunk(3, dim=1)
            first = of_first if picks == 1 else first
            sums = sums + summed
            seen = first + of_last + sums / pointer.counts.clamp(min=1).unsqueeze(1)
            is_open[rows, column] = False
            if pointer.costs is not None and remains is not None:
                remains = remains - pointer.costs[rows, column]
        return places[pointer.grid >= 0].unsqueeze(1)

    def log_prob(self, actions: Tensor) -> Tensor:
        logits, steps, chosen = self.along(actions)._path
        found = logits.gather(2, chosen.unsqueeze(2))[..., 0]
        return torch.where(steps, found, 0.0).sum(dim=1)

    def entropy(self) -> Tensor:
        logits, steps, _ = self._path
        return -torch.where(steps, plogp(logits).sum(dim=2), 0.0).sum(dim=1)

    def tempered(self, temperature: float) -> OrderedSet:
        return OrderedSet(self.pointer, temperature)


#: Of the decisions on the way to sets: (A, T + 1, M + 1) log-probabilities, (A, T + 1) which picks there are, and (A, T + 1) the
#: columns that were picked, M to stop.
Path = tuple[Tensor, Tensor, Tensor]


def _grid_of(actors: Tensor, num_actors: int) -> Tensor:
    """(A, M) int64, the pairs of each actor in order, and -1 behind the last. Synchronises with the device."""
    counts = torch.bincount(actors, minlength=num_actors)
    most = int(counts.max()) if num_actors else 0
    columns = torch.arange(most, device=actors.device)
    first = counts.cumsum(0) - counts
    return torch.where(columns < counts.unsqueeze(1), first.unsqueeze(1) + columns, -1)


def _padded(values: Tensor, grid: Tensor, fill: float | bool) -> Tensor:
    """(A, M) the values of the pairs in `grid`, (P,), and `fill` elsewhere."""
    if not len(values):
        return torch.full_like(grid, fill, dtype=values.dtype)
    return torch.where(grid >= 0, values.index_select(0, grid.clamp(min=0).flatten()).view_as(grid), fill)
