"""The ragged-batch transformer policy.

Shapes: B frames, E tokens, A actors of an action in all frames together, n numbers of a continuous action.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from entity_gym.actions import ACTORS, ActionSpace
from entity_gym.actions.chains import decision_order
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.vec_obs import VecAction
from entity_gym.spaces import ObsSpace
from rogue_net.batch.crossing import to_host
from rogue_net.batch.obs_batch import ActionMask, ObsBatch
from rogue_net.batch.ragged import RaggedTensor, State
from rogue_net.checks import Range
from rogue_net.config import RogueNetConfig
from rogue_net.heads.chains import close_by_choices, on_actors, on_frames, sums_before
from rogue_net.heads.distributions import ActionDistribution
from rogue_net.heads.heads import ActionHead, FrameHead, ValueHead
from rogue_net.heads.kinds import HEADS
from rogue_net.heads.noise import FrameKeys
from rogue_net.heads.readout import Readout
from rogue_net.inputs.embedding import Embedding
from rogue_net.inputs.translation import Translation
from rogue_net.kernels.select import uses_program
from rogue_net.transformer import Transformer

if TYPE_CHECKING:
    from rogue_net.kernels.cpu.program import Program


ABOVE_0 = Range(0, open_low=True)


class ActResult(NamedTuple):
    """Actions of the policy in B frames."""

    actions: dict[str, RaggedTensor]  # action -> B sequences of (A, 1) int64 or (A, n) float32, see VecEnv.act
    log_probs: dict[str, RaggedTensor]  # action -> B sequences of (A,) float32, of what was drawn from
    values: Tensor  # (B,) float32
    #: If asked for: action -> B sequences of what was drawn from. Log-probabilities of the choices, -inf where masked: (A, C),
    #: or for select-entity (actor-choice pairs, 1), actor by actor, the choice of nobody last. Continuous: (A, 2 n) means and
    #: then log standard deviations, before they are bounded. Of sets, those of each decision on the way to the set: (pairs, 2) of
    #: no and yes, or for ordered sets (rows, 1), pick by pick, of all actees and then of stopping. Of actions with `after`, given
    #: the earlier choices in `actions`.
    logits: dict[str, RaggedTensor] | None = None
    state: State | None = None  # what the policy knows at the next step, of B environments; None: it remembers nothing

    def to_buffers(self) -> dict[str, VecAction]:
        """The actions as a `VecEnv` takes them: one copy from the device, with which it synchronises."""
        return self.fetch()[0]

    def fetch(self) -> tuple[dict[str, VecAction], list[NDArray[np.float32]]]:
        """Fetch what `to_buffers` returns, and in the same copy the values and the log-probs of each action."""
        checked = [self.values, *(ragged.values for ragged in self.log_probs.values())]
        acted = [each for ragged in self.actions.values() for each in ragged]  # values and offsets
        found = to_host([*checked, *acted])
        first = len(checked)
        numbers = zip(self.actions, found[first::2], found[first + 1 :: 2], strict=True)
        return {name: RaggedBuffer(values, offsets) for name, values, offsets in numbers}, found[:first]


class Evaluation(NamedTuple):
    """Log-probabilities and entropies of given actions in B frames, and values.

    Of an action with `after`, they are those after the given earlier choices: entropies of the sampled path.
    """

    log_probs: dict[str, RaggedTensor]  # action -> B sequences of (A,) float32
    entropies: dict[str, RaggedTensor]  # action -> B sequences of (A,) float32
    values: Tensor  # (B,) float32
    distributions: dict[str, ActionDistribution]  # action -> what the actions were decided by
    regressions: dict[str, Tensor]  # regression head -> (B, its size) float32

    @property
    def logits(self) -> dict[str, Tensor]:
        """Action -> the values of `ActResult.logits`."""
        return {name: each.rows for name, each in self.distributions.items()}


class Decision(NamedTuple):
    """One action of all actors of a batch, and the distributions that it comes from."""

    actions: RaggedTensor  # B sequences of (A, 1) int64 or (A, n) float32
    log_probs: RaggedTensor  # B sequences of (A,) float32
    distribution: ActionDistribution

    def entropies(self) -> RaggedTensor:
        """B sequences of (A,) float32."""
        return self.log_probs._replace(values=self.distribution.entropy())


class RogueNet(nn.Module):
    """Ragged observations in, one decision per actor out.

    Embedding per entity type, `n_layer` transformer blocks over the entities of each frame, one head per action on the
    actors' tokens, and a value from the mean over all tokens. A frame's results do not depend on the other frames.

    A hidden entity is seen by other hidden ones, by the value and by the regression heads, and by no visible entity. A
    hidden entity that acts, or may be selected, does so by what it sees: then hidden things show in that decision.

    What parameters start as:

        linear layers of the transformer        N(0, 0.02²), bias 0; those of relative positions too
        relative positions                      keys N(0, 0.05²), values N(0, 0.2²)
        LayerNorm                               weight 1, bias 0
        linear layers of embeddings             torch's default: U(±1 / sqrt(inputs)), bias too
        types without features, categories      N(0, 1)
        categorical and continuous heads        orthogonal of gain 0.01, bias 0; log standard deviations 0
        heads of entities and of sets           torch's default; the keys of nobody and of stopping N(0, 1)
        value and regression heads              0
        what heads read of earlier choices      torch's default; the layer that adds it to the token 0

    Args:
        config: sizes and backend.
        obs_space: what the frames hold.
        action_space: actions by name.
        regression_heads: name -> how many other numbers about a frame to learn; `evaluate` returns them. None: the targets of
            `obs_space`.

    Raises:
        ValueError: there are no actions, or two settings or spaces do not go together.
    """

    remembers = False  # whether decisions depend on a state; see `rogue_net.memory`
    _program: Program | None = None  # compiled, to act with
    _has_chosen = False  # whether modules or a program compute this network

    def __init__(
        self,
        config: RogueNetConfig,
        obs_space: ObsSpace,
        action_space: Mapping[str, ActionSpace],
        regression_heads: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        if not action_space:
            raise ValueError("the action space is empty; a policy needs at least one action")
        regression_heads = obs_space.targets if regression_heads is None else regression_heads
        for name, size in regression_heads.items():
            Range(1).check(f"regression_heads[{name!r}]", size, int)
        self.config = config
        self.obs_space = obs_space
        self.action_space = dict(action_space)
        self.remembers = self.remembers or config.memory != "none"
        self.translation = Translation(config.translation, obs_space)
        self.embedding = Embedding(self.translation.obs_space, action_space, config.d_model)
        self.transformer = Transformer(config, self.translation.obs_space, action_space)
        # keyed by position: an action's name may hold what a module's name may not, such as a dot
        self.heads = nn.ModuleList(HEADS[type(space)](space, config) for space in action_space.values())
        self.order = decision_order(action_space)
        for name, space in action_space.items():
            space.check_features(name, self.translation.obs_space)
            in_turn = ACTORS in space.after
            tells = in_turn or any(name in later.after for later in action_space.values())
            self.head(name).chain(config.d_model, reads=bool(space.after), tells=tells, in_turn=in_turn)
        self.value_head = ValueHead(config.d_model)
        self.regression_names = list(regression_heads)
        self.regression_heads = nn.ModuleList(FrameHead(config.d_model, size) for size in regression_heads.values())

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the compiled program, which a copy makes for itself."""
        for each in self.parameters() if self._program else ():  # a pickle holds all memory of which each is a view
            each.data = each.data.clone()
        return self.__dict__ | {"_program": None, "_has_chosen": False}

    def _apply(self, fn: Any, recurse: bool = True) -> RogueNet:
        """Move or convert the weights, as `to` and `double` do; then the backend is chosen anew."""
        self._program, self._has_chosen = None, False
        moved: RogueNet = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return moved

    @torch.no_grad()
    def act(
        self,
        batch: ObsBatch,
        state: State | None = None,
        *,
        greedy: bool = False,
        temperature: float = 1.0,
        generator: torch.Generator | FrameKeys | None = None,
        logits: bool = False,
    ) -> ActResult:
        """Choose actions.

        Args:
            batch: B frames.
            state: what is remembered of B environments, `ActResult.state` of their last step; None: nothing.
            greedy: take the most probable action, and of numbers the middle, instead of sampling.
            temperature: below 1 bolder, above 1 more random: logits are divided by it, and standard deviations of numbers
                (before they are bounded) multiplied. Greater than 0.
            generator: source of the sampling noise, or the keys of that of each frame; on the batch's device.
            logits: whether to return the logits.

        Raises:
            ValueError: the temperature is not greater than 0, or the batch does not fit the network.
        """
        ABOVE_0.check("temperature", temperature)
        is_keyed = greedy or isinstance(generator, FrameKeys)
        if is_keyed and temperature == 1 and not logits and (program := self.program()) is not None:
            keys = generator.keys if isinstance(generator, FrameKeys) and not greedy else None
            actions, log_probs, values, after = program.act(batch, keys, state)
            return ActResult(actions, log_probs, values, state=after)
        readout = self.readout(batch, state)
        decisions = self.decide(readout, greedy=greedy, temperature=temperature, generator=generator)
        return ActResult(
            actions={name: made.actions for name, made in decisions.items()},
            log_probs={name: made.log_probs for name, made in decisions.items()},
            values=self.value_head(readout.means),
            logits=self.ragged_logits(readout, decisions) if logits else None,
            state=readout.state,
        )

    def evaluate(
        self,
        batch: ObsBatch,
        actions: Mapping[str, RaggedTensor],
        state: State | None = None,
        follows: Tensor | None = None,
    ) -> Evaluation:
        """Log-probs and entropies of given actions, and values; differentiable. Dropout is active in training mode.

        Args:
            batch: B frames.
            actions: action -> B sequences, aligned with the batch's actors.
            state: what was remembered before each frame; None: nothing.
            follows: (B,) bool, frames that come a step after the frame before them: a network that remembers goes on from what
                it knew there, and gradients flow back through it, in the place of `state`. None: no frame does.
        """
        readout = self.readout(batch, state, follows, drop=self.training)
        regressions = zip(self.regression_names, self.regression_heads, strict=True)
        decisions = self.decide(readout, actions)
        return Evaluation(
            log_probs={name: made.log_probs for name, made in decisions.items()},
            entropies={name: made.entropies() for name, made in decisions.items()},
            values=self.value_head(readout.means),
            distributions={name: made.distribution for name, made in decisions.items()},
            regressions={name: head(readout.means) for name, head in regressions},
        )

    def readout(
        self, batch: ObsBatch, state: State | None = None, follows: Tensor | None = None, *, drop: bool = False
    ) -> Readout:
        """The tokens of a batch, as the heads read them.

        Args:
            batch: B frames.
            state: see `evaluate`.
            follows: see `evaluate`.
            drop: whether dropout is active.
        """
        batch = self.translation(batch)
        tokens, after = self.transformer(self.embedding(batch), batch, state, follows, drop=drop)
        return Readout(tokens, batch, after)

    def decide(
        self,
        readout: Readout,
        given: Mapping[str, RaggedTensor] | None = None,
        *,
        greedy: bool = False,
        temperature: float = 1.0,
        generator: torch.Generator | FrameKeys | None = None,
    ) -> dict[str, Decision]:
        """Choose the actions of all heads, or judge given ones, in the order of decisions.

        Where actors decide in turn, all of them are computed at once as often as a frame has actors, to choose; given
        actions are judged in one pass.

        Args:
            readout: of B frames.
            given: action -> B sequences of what the actors do; None: it is chosen, as the other arguments say (see `act`).
            greedy: see `act`.
            temperature: see `act`.
            generator: see `act`.
        """
        decisions: dict[str, Decision] = {}
        decided: dict[str, RaggedTensor] = dict(given or {})
        for name in self.order:
            mask = readout.batch.action_masks[name]
            source = generator.of_actors(name, mask.actors) if isinstance(generator, FrameKeys) else generator
            distribution = self._distribution(name, readout, decided, decided.get(name), temperature)
            if given is None:
                values = distribution.mode() if greedy else distribution.sample(source)
                for rank in range(1, mask.most_actors if ACTORS in self.action_space[name].after else 1):
                    own = mask.actors._replace(values=values)
                    distribution = self._distribution(name, readout, decided, own, temperature)
                    drawn = distribution.mode() if greedy else distribution.sample(source)
                    values = torch.where((mask.ranks < rank).unsqueeze(1), values, drawn)
                decided[name] = self.head(name).lists(mask, values)
            actions = decided[name]
            distribution = distribution.along(actions.values)
            log_probs = mask.actors._replace(values=distribution.log_prob(actions.values))
            decisions[name] = Decision(actions, log_probs, distribution)
        return {name: decisions[name] for name in self.action_space}

    def _distribution(
        self,
        name: str,
        readout: Readout,
        decided: Mapping[str, RaggedTensor],
        own: RaggedTensor | None,
        temperature: float,
    ) -> ActionDistribution:
        """The distribution of one action after what was decided.

        Args:
            name: of the action.
            readout: of B frames.
            decided: action -> B sequences of what its actors do, at least of the earlier ones.
            own: choices of the action's own actors, of which each sees the earlier ones if they decide in turn; None: none.
            temperature: see `act`.
        """
        head, space, batch = self.head(name), self.action_space[name], readout.batch
        mask, actors, actees = batch.action_masks[name], readout.actors(name), readout.actees(name)
        seen = {earlier: decided[earlier] for earlier in space.after if earlier != ACTORS}
        if head.reader is not None:
            messages = torch.zeros_like(readout.tokens)
            for earlier, chosen in seen.items():
                told = self.head(earlier)
                if space.is_global or self.action_space[earlier].is_global:
                    messages = messages + on_frames(told.messages(earlier, readout, chosen), readout, earlier)
                else:
                    messages = messages + told.absorb(earlier, readout, chosen)
            to_actor = (
                messages  # who is selected does not know what is chosen after: actees read no message of this action
            )
            if ACTORS in space.after and own is not None:
                before = sums_before(head.messages(name, readout, own), mask.ranks, mask.most_actors)
                to_actor, seen[ACTORS] = messages + on_actors(before, readout, name), own
            tokens = batch.action_tokens[name]
            actors = head.reader(actors, to_actor.index_select(0, tokens.actors))
            if actees is not None and tokens.actees is not None:
                actees = head.reader(actees, messages.index_select(0, tokens.actees))
            mask = close_by_choices(name, self.action_space, readout, decided)
        distribution: ActionDistribution = head(actors, self.priced(name, mask, batch), actees, seen)
        return distribution if temperature == 1 else distribution.tempered(temperature)

    def priced(self, action: str, mask: ActionMask, batch: ObsBatch) -> ActionMask:
        """The mask of an action, with costs and budgets if it has any; `batch` is translated."""
        prices = self.action_space[action].prices
        if prices is None:
            return mask
        costs, budgets = (batch.column(feature, self.translation.obs_space) for feature in prices)
        tokens = batch.action_tokens[action]
        assert tokens.actees is not None
        return replace(mask, costs=costs[tokens.actees], budgets=budgets[tokens.actors])

    def head(self, action: str) -> ActionHead:
        """The head of an action."""
        head = self.heads[list(self.action_space).index(action)]
        assert isinstance(head, ActionHead)
        return head

    def ragged_logits(self, readout: Readout, decisions: Mapping[str, Decision]) -> dict[str, RaggedTensor]:
        """The logits of `decide`, by frame; see `ActResult.logits`."""
        heads: Any = zip(self.action_space, self.heads, strict=True)
        masks = readout.batch.action_masks
        return {
            name: RaggedTensor(
                decisions[name].distribution.rows, head.logit_offsets(masks[name], decisions[name].actions)
            )
            for name, head in heads
        }

    def value(
        self, batch: ObsBatch, state: State | None = None, follows: Tensor | None = None, *, drop: bool = False
    ) -> Tensor:
        """(B,) values alone; arguments as in `evaluate`; `drop`: whether dropout is active."""
        return self.value_and_state(batch, state, follows, drop=drop)[0]

    def value_and_state(
        self, batch: ObsBatch, state: State | None = None, follows: Tensor | None = None, *, drop: bool = False
    ) -> tuple[Tensor, State | None]:
        """(B,) values, and what is remembered after each frame; arguments as in `value`."""
        if not torch.is_grad_enabled() and (program := self.program()) is not None:
            return program.values(batch, state, follows)
        readout = self.readout(batch, state, follows, drop=drop)
        return self.value_head(readout.means), readout.state

    def update_normalization(self, batch: ObsBatch) -> None:
        """Take the features of `batch` into the running statistics; nothing else ever changes them."""
        batch = self.translation(batch)
        self.embedding.update_normalization(batch)
        if self.transformer.relative_positions is not None:
            self.transformer.relative_positions.update_normalization(batch)

    def program(self) -> Program | None:
        """Return the program that acts without PyTorch's operations; None: modules act.

        It is chosen at the first call, and again after `to`.

        Raises:
            ValueError: `fused` was asked for, and cannot be.
        """
        if not self._has_chosen:
            if uses_program(self.config, self.value_head.project.weight, self.action_space):
                from rogue_net.kernels.cpu.program import Program  # the compiler is needed by those who use it

                with torch.inference_mode(False):  # its memory could not be written to outside that mode
                    # with itself in it, it would be a cycle, whose megabytes wait for the garbage collector
                    self._program = Program(cast(RogueNet, weakref.proxy(self)))
            self._has_chosen = True
        return self._program
