"""Heads: tokens become distributions over actions, and numbers about whole frames.

Every head decides for the actors of its action, which may be any tokens. The token of a *hidden* entity has seen all others
of its frame, hidden ones included: what a hidden entity does as an actor, and how readily it is selected as an actee, depends
on what is hidden. Decisions of visible actors among visible actees do not.

Shapes: E tokens, D width, A actors, C choices, P actor-choice pairs, K key width, B frames, n numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import Tensor, nn

from entity_gym.actions import ACTORS, ContinuousActionSpace
from rogue_net.batch.obs_batch import ActionMask
from rogue_net.batch.ragged import RaggedTensor, offsets_of
from rogue_net.heads.chains import Reader, on_actors, sums_before
from rogue_net.heads.distributions import ActionDistribution, Categorical, RaggedCategorical
from rogue_net.heads.gaussian import BoundedGaussian, Bounds
from rogue_net.heads.pairs import Pairs, pair_products, pairs_of
from rogue_net.heads.readout import Readout

#: The choices that a head sees, by action; under `ACTORS` those of its own action, of which each actor sees the earlier ones.
Decided: TypeAlias = Mapping[str, RaggedTensor]
#: log std of a continuous head stays within ±this, so that nothing overflows; learning has no use for more.
LOG_STD_LIMIT = 20.0


class ActionHead(nn.Module):
    """The head of one action.

    Attributes:
        reader: reads tokens together with earlier choices; None: the action is decided after no other.
        told: makes messages of choices; None: no later action and no later actor sees them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reader: Reader | None = None
        self.told: nn.Module | None = None

    def chain(self, d_model: int, *, reads: bool, tells: bool, in_turn: bool) -> None:
        """Add the modules that a chained action needs.

        Args:
            d_model: D.
            reads: whether the action is decided after others, or its actors in turn.
            tells: whether later actions, or later actors, see its choices.
            in_turn: whether its actors decide in turn.
        """
        if reads:
            self.reader = Reader(d_model)
        if tells:
            self.told = self.make_told(d_model)

    def make_told(self, d_model: int) -> nn.Module:
        """The modules behind `messages`."""
        raise NotImplementedError

    def messages(self, name: str, readout: Readout, chosen: RaggedTensor) -> Tensor:
        """(A, D) message of each actor's choice; 0 where an actor has chosen nobody.

        Args:
            name: of the action.
            readout: of B frames.
            chosen: B sequences of what the actors do.
        """
        raise NotImplementedError

    def absorb(self, name: str, readout: Readout, chosen: RaggedTensor) -> Tensor:
        """(E, D) messages on the tokens of entities; arguments as in `messages`."""
        return on_actors(self.messages(name, readout, chosen), readout, name)

    def forward(self, actors: Tensor, mask: ActionMask, actees: Tensor | None, decided: Decided) -> ActionDistribution:
        """The distribution over each actor's choices.

        Args:
            actors: (A, D) tokens.
            mask: of the action.
            actees: (N, D) tokens, for select-entity.
            decided: action -> B sequences of what its actors do; see `Decided`.
        """
        raise NotImplementedError

    def lists(self, mask: ActionMask, values: Tensor) -> RaggedTensor:
        """The values of an action by frame."""
        return mask.actors._replace(values=values)

    def logit_offsets(self, mask: ActionMask, actions: RaggedTensor) -> Tensor:
        """(B + 1,) int64: where the frames begin among the rows of the distribution's logits, given what the actors do."""
        return mask.actors.offsets


class CategoricalHead(ActionHead):
    """Logits by a linear layer on the actor's token. Starts nearly uniform: orthogonal weights of gain 0.01, zero bias."""

    def __init__(self, d_model: int, num_choices: int) -> None:
        super().__init__()
        self.project = _nearly_zero(d_model, num_choices)

    def forward(self, actors: Tensor, mask: ActionMask, actees: Tensor | None, decided: Decided) -> ActionDistribution:
        weight, bias = self.project.weight, self.project.bias
        by_choice = torch.addmm(bias.unsqueeze(1), weight, actors.t())  # (C, A): in memory as `Categorical` wants it
        return Categorical(by_choice.t(), None if mask.mask is None else mask.mask.values)

    def make_told(self, d_model: int) -> nn.Module:
        return nn.Embedding(self.project.out_features, d_model)

    def messages(self, name: str, readout: Readout, chosen: RaggedTensor) -> Tensor:
        """The embedding of each actor's choice."""
        assert self.told is not None
        messages: Tensor = self.told(chosen.values[:, 0])
        return messages


class SelectEntityHead(ActionHead):
    """Logits by the product of the actor's query and the actee's key: q · k / sqrt(K), over the actees of the actor's frame.

    Args:
        d_model: D.
        d_qk: K.
        nobody: whether selecting nobody is another choice, the last of every actor; its key is a learned vector, and the
            value of the action -1.
    """

    def __init__(self, d_model: int, d_qk: int, nobody: bool = False) -> None:
        super().__init__()
        self.query = nn.Linear(d_model, d_qk)
        self.key = nn.Linear(d_model, d_qk)
        self.nobody = nn.Parameter(torch.randn(1, d_qk)) if nobody else None
        self.taken: nn.Linear | None = None

    def chain(self, d_model: int, *, reads: bool, tells: bool, in_turn: bool) -> None:
        """Actors in turn add to the logit of an entity: how many have selected it before, times a linear map of the actor."""
        super().chain(d_model, reads=reads, tells=tells, in_turn=in_turn)
        if in_turn:
            self.taken = nn.Linear(d_model, 1)
            nn.init.zeros_(self.taken.weight)
            nn.init.zeros_(self.taken.bias)

    def make_told(self, d_model: int) -> nn.Module:
        return nn.ModuleDict({"selected": nn.Linear(d_model, d_model), "selecting": nn.Linear(d_model, d_model)})

    def messages(self, name: str, readout: Readout, chosen: RaggedTensor) -> Tensor:
        """A linear map of the selected entity's token."""
        assert isinstance(self.told, nn.ModuleDict)
        has, tokens = _selected(readout, chosen)
        return torch.where(has, self.told["selected"](readout.tokens.index_select(0, tokens)), 0.0)

    def absorb(self, name: str, readout: Readout, chosen: RaggedTensor) -> Tensor:
        """Besides the message on the actor's token, a linear map of the actor on that of the selected entity: it is taken."""
        assert isinstance(self.told, nn.ModuleDict)
        has, tokens = _selected(readout, chosen)
        marks = torch.where(has, self.told["selecting"](readout.actors(name)), 0.0)
        return super().absorb(name, readout, chosen).index_add(0, tokens, marks)

    def forward(self, actors: Tensor, mask: ActionMask, actees: Tensor | None, decided: Decided) -> ActionDistribution:
        assert mask.actees is not None and actees is not None
        queries, keys = self.query(actors), self.key(actees)
        values = mask.actees.values[:, 0]
        if self.nobody is not None:
            keys = torch.cat([keys, self.nobody])
            values = torch.cat([values, values.new_full((1,), -1)])
        pairs = pairs_of(mask, self.nobody is not None)
        logits = pair_products(queries / math.sqrt(queries.shape[1]), keys, pairs)
        values = values.index_select(0, pairs.actees)
        if self.taken is not None and ACTORS in decided:
            weights = self.taken(actors)[:, 0].index_select(0, pairs.actors)
            logits = logits + weights * self._times_taken(pairs, values, mask, decided[ACTORS])
        return RaggedCategorical(logits, pairs.actors, values, len(actors), pairs.is_open)

    def _times_taken(self, pairs: Pairs, values: Tensor, mask: ActionMask, chosen: RaggedTensor) -> Tensor:
        """(P,) float32, how many actors before the pair's have selected its entity."""
        assert mask.actees is not None
        is_chosen = (values == chosen.values[:, 0].index_select(0, pairs.actors)) & (values >= 0)
        choices = (mask.actees.lengths + (self.nobody is not None)).index_select(0, mask.actors.sequences)
        ranks, strides = mask.ranks.index_select(0, pairs.actors), choices.index_select(0, pairs.actors)
        return sums_before(is_chosen.float(), ranks, mask.most_actors, strides)

    def logit_offsets(self, mask: ActionMask, actions: RaggedTensor) -> Tensor:
        assert mask.actees is not None
        return offsets_of(mask.actors.lengths * (mask.actees.lengths + (self.nobody is not None)))


class ContinuousHead(ActionHead):
    """Means by a linear layer on the actor's token, one learned standard deviation per number; see `gaussian`.

    Both are of the unbounded u: where a number has two bounds, u = ±1 lies 76 % of the way from the middle to them, and
    where it has none, u is the action itself. Means start near 0 (orthogonal weights of gain 0.01, zero bias), so in the
    middle of an interval or 0.69 from a single bound; standard deviations start at 1.
    """

    def __init__(self, d_model: int, space: ContinuousActionSpace) -> None:
        super().__init__()
        self.project = _nearly_zero(d_model, space.width)
        self.log_std = nn.Parameter(torch.zeros(space.width))
        self.bounds = Bounds(space)

    def forward(self, actors: Tensor, mask: ActionMask, actees: Tensor | None, decided: Decided) -> ActionDistribution:
        return BoundedGaussian(self.project(actors), self.log_std.clamp(-LOG_STD_LIMIT, LOG_STD_LIMIT), self.bounds)

    def make_told(self, d_model: int) -> nn.Module:
        return nn.Linear(self.project.out_features, d_model)

    def messages(self, name: str, readout: Readout, chosen: RaggedTensor) -> Tensor:
        """A linear map of the numbers; those with two bounds are scaled to -1 to 1."""
        assert self.told is not None
        bounds = self.bounds
        scaled = torch.where(bounds.both, (chosen.values - bounds.center) / bounds.radius, chosen.values)
        messages: Tensor = self.told(scaled)
        return messages


class FrameHead(nn.Module):
    """`size` numbers about a frame: a linear layer on the mean of all its tokens, hidden ones included; zero at first.

    The mean of a frame without tokens is 0, so its numbers are the bias: learned constants.
    """

    def __init__(self, d_model: int, size: int) -> None:
        super().__init__()
        self.project = nn.Linear(d_model, size)
        nn.init.zeros_(self.project.weight)
        nn.init.zeros_(self.project.bias)

    def forward(self, means: Tensor) -> Tensor:
        """Compute (B, size) float32 numbers of (B, D) mean tokens."""
        numbers: Tensor = self.project(means).float()
        return numbers


class ValueHead(FrameHead):
    """The value of a frame, `mean + deviation * (linear layer)`: what is learned stays near 0 ± 1 however large returns are.

    Mean and deviation are 0 and 1 until `rescale` changes them, and part of the weights.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model, 1)
        self.register_buffer("mean", torch.tensor(0.0))
        self.register_buffer("deviation", torch.tensor(1.0))

    def forward(self, means: Tensor) -> Tensor:
        """Compute (B,) float32 values of (B, D) mean tokens."""
        return self.mean + self.deviation * super().forward(means)[:, 0]

    @torch.no_grad()
    def rescale(self, mean: Tensor, deviation: Tensor) -> None:
        """Take other statistics of the returns; the values stay what they are.

        Source: PopArt, van Hasselt et al. 2016 (arXiv 1602.07714), equation 2.

        Args:
            mean: () of the returns.
            deviation: () of the returns, greater than 0.
        """
        self.project.weight.mul_(self.deviation / deviation)
        self.project.bias.mul_(self.deviation).add_(self.mean - mean).div_(deviation)
        self.mean.copy_(mean)
        self.deviation.copy_(deviation)


def _selected(readout: Readout, chosen: RaggedTensor) -> tuple[Tensor, Tensor]:
    """(A, 1) bool, true where an actor has selected an entity, and (A,) int64 its token; any token for nobody."""
    starts = readout.batch.frames.offsets.index_select(0, chosen.sequences)
    return chosen.values >= 0, starts + chosen.values[:, 0].clamp(min=0)


def _nearly_zero(d_model: int, size: int) -> nn.Linear:
    linear = nn.Linear(d_model, size)
    nn.init.orthogonal_(linear.weight, gain=0.01)
    nn.init.zeros_(linear.bias)
    return linear
