"""Tensors of graphs: what they compute in onnxruntime is what NumPy computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from rogue_net.onnx.graph import Graph  # noqa: E402

ROWS = np.array([[1.5, -2, 0], [0, 3, -0.5]], np.float32)


def graph_of(function: Callable[[Any], Any], given: Any = ROWS) -> tuple[Graph, Any]:
    """A graph of a function of an array, and what it gives for an array."""
    graph = Graph()
    x = graph.input("x", given.dtype, ["n", *given.shape[1:]], "rows")
    y = function(x)
    graph.output("y", y, [None] * y.ndim, "results")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(graph.model({}, "", "").SerializeToString(), options)
    return graph, session.run(["y"], {"x": given})[0]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 1 - x * 2 / 3,
        lambda x: -np.abs(x) @ np.ones((3, 2), np.float32),
        lambda x: np.where(x > 0, x, -1),
        lambda x: np.clip(x, -1, 1),
        lambda x: np.clip(x, -np.ones(3, np.float32), np.ones(3, np.float32)),
        lambda x: np.maximum(x, 0) + np.minimum(x, 0.5) + np.square(x),
        lambda x: np.concatenate([x, np.zeros_like(x), np.ones_like(x)], 1),
        lambda x: x[:, [2, 0]],
        lambda x: x[..., 1],
        lambda x: x[:1, None, 1:],
        lambda x: x[:, None] - x,
        lambda x: x.T.transpose(1, 0).sum(1, keepdims=True),
        lambda x: x.argmax(1) + x.cumsum(0).max(1).astype(np.int64) % 3,
        lambda x: (x > 0).any(1) & ~(x[:, 0] == 0) | (x[:, 1] != 3),
        lambda x: np.floor(x) % 4,
        lambda x: np.logaddexp(0, x * 30),
        lambda x: np.log1p(x * 0 + 1e-9) + np.expm1(x * 1e-9),
        lambda x: np.arctan2(x, x[:, ::-1] if isinstance(x, np.ndarray) else x[:, [2, 1, 0]]),
    ],
)
def test_a_function_of_tensors_is_that_of_arrays(function: Callable[[Any], Any]) -> None:
    with np.errstate(all="ignore"):
        expected = function(ROWS)
    _, found = graph_of(function)
    assert found.dtype == expected.dtype and found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=2e-6)


def test_no_rows_are_rows_too() -> None:
    for function in (lambda x: x.sum(0), lambda x: np.where(x > 0, x, 1), lambda x: x.any(0)):
        graph_, found = graph_of(function, ROWS[:0])
        assert np.array_equal(found, function(ROWS[:0]))


def test_rows_are_replaced_in_a_copy_alone() -> None:
    def function(x: Any) -> Any:
        other = x.copy()
        other[x.graph.constant(np.array([1]))] += x[:1]
        return other - x

    assert graph_of(function)[1].tolist() == [[0, 0, 0], ROWS[0].tolist()]


def test_a_loop_repeats_a_step_as_often_as_a_run_says_and_stacks_what_it_adds() -> None:
    def function(x: Any) -> Any:
        total, each = x.graph.loop(x.length(), [x.graph.full(np.float32(1), 3)], lambda k, y: [y * 2 + x[k], y])
        return np.concatenate([each, total[None]])

    expected = [np.ones(3), 2 + ROWS[0], 2 * (2 + ROWS[0]) + ROWS[1]]
    assert graph_of(function)[1].tolist() == np.array(expected).tolist()
    assert graph_of(function, ROWS[:0])[1].tolist() == [[1, 1, 1]]


def test_a_loop_stops_where_its_step_says_so() -> None:
    def function(x: Any) -> Any:
        zero = x.graph.full(np.float32(0), 3)
        return x.graph.loop(x.length() + 98, [zero], lambda k, y: [k < 4, y + 1], stops=True)[0]

    assert graph_of(function)[1].tolist() == [5, 5, 5]


def test_a_node_is_written_once_and_only_if_an_output_depends_on_it() -> None:
    def function(x: Any) -> Any:
        np.tanh(x)
        return np.exp(x) + np.exp(x)

    graph, _ = graph_of(function)
    nodes = graph.model({}, "", "").graph.node
    assert [node.op_type for node in nodes] == ["Exp", "Add", "Identity"]
    assert len({node.name for node in nodes} - {""}) == 3  # onnxruntime 1.20 asks for names


def test_what_only_a_run_knows_cannot_be_asked_for() -> None:
    x = Graph().input("x", np.float32, ["n", 3], "rows")
    assert x.shape == (None, 3) and (x @ x.T).shape == (None, None)
    with pytest.raises(TypeError, match="has no len"):
        len(x)
    with pytest.raises(TypeError, match="only a run knows whether a tensor of a graph is true"):
        if x > 0:
            pass
    with pytest.raises(TypeError, match="np.arccos of tensors of a graph is not written yet"):
        np.arccos(x)
    with pytest.raises(TypeError, match="np.linalg.norm|np.norm of tensors of a graph is not written yet"):
        np.linalg.norm(x)
