"""Heads read the tokens of actors and actees, and the mean of every frame."""

from __future__ import annotations

import torch

from rogue_net import ObsBatch, RaggedTensor
from rogue_net.batch.masks import ActionMask
from rogue_net.heads.readout import Readout


def ragged(*sequences: list[int]) -> RaggedTensor:
    values = torch.tensor([number for each in sequences for number in each], dtype=torch.int64)
    return RaggedTensor(values.unsqueeze(1), torch.tensor([0, *map(len, sequences)]).cumsum(0))


# three tokens, none, two; their frames' entities 2, 0 and 1 act, and the first frame's 0 selects 1 or 2
BATCH = ObsBatch(
    num_frames=3,
    features={"Unit": RaggedTensor(torch.zeros(5, 1), torch.tensor([0, 3, 3, 5]))},
    action_masks={
        "move": ActionMask(ragged([2, 0], [], [1])),
        "pick": ActionMask(ragged([0], [], []), ragged([1, 2], [], [])),
        "rest": ActionMask(ragged([], [], [])),
    },
)


def test_heads_read_actors_actees_and_means() -> None:
    tokens = torch.arange(10.0).reshape(5, 2)
    read = Readout(tokens, BATCH)
    assert read.means.tolist() == [[2, 3], [0, 0], [7, 8]]  # a frame without tokens has mean 0
    assert read.actors("move").tolist() == [[4, 5], [0, 1], [8, 9]]
    assert read.actors("pick").tolist() == [[0, 1]]
    assert read.actees("pick").tolist() == [[2, 3], [4, 5]]
    assert read.actees("move") is None
    assert read.actors("rest").shape == (0, 2)  # nobody takes a rest


def test_the_gradient_of_a_token_adds_up_what_everybody_who_read_it_says() -> None:
    tokens = torch.zeros(5, 2, requires_grad=True)
    read = Readout(tokens, BATCH)
    loss = 3 * read.means.sum() + 10 * read.actors("move").sum() + 100 * read.actors("pick").sum()
    (loss + 1000 * read.actees("pick").sum()).backward()
    # means: 3 / 3 in the first frame, 3 / 2 in the last
    assert tokens.grad is not None and tokens.grad[:, 0].tolist() == [111, 1001, 1011, 1.5, 11.5]


def test_what_is_read_and_not_used_adds_nothing() -> None:
    tokens = torch.zeros(5, 2, requires_grad=True)
    (of_actor,) = torch.autograd.grad(Readout(tokens, BATCH).actors("pick").sum(), tokens)
    assert of_actor[:, 0].tolist() == [1, 0, 0, 0, 0]
    (of_mean,) = torch.autograd.grad(Readout(tokens, BATCH).means[2, 0], tokens)
    assert of_mean[:, 0].tolist() == [0, 0, 0, 0.5, 0.5]
