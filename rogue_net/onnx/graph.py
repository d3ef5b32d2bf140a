"""ONNX graphs, written by computing with their tensors: NumPy's operators and functions on a `Tensor` add nodes.

    graph = Graph()
    points = graph.input("points", np.float32, ["n", 2], "(n, 2) float32, positions")
    graph.output("lengths", np.sqrt(np.square(points).sum(1)), "(n,) float32")

A dimension that only a run knows is None. A tensor has no `len` and is neither true nor false, so no such dimension can be fixed
by mistake, and what does not depend on inputs is computed by NumPy at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper

Shape: TypeAlias = "tuple[int | None, ...]"
#: Tensors where NumPy has arrays: methods that are inherited from the NumPy runtime do not know which of both they compute with.
Rows: TypeAlias = Any

OPSET, IR_VERSION = 20, 9  # of ONNX 1.15
END = np.iinfo(np.int64).max  # of a slice to the end
OPERATIONS = {
    "add": "Add", "subtract": "Sub", "multiply": "Mul", "divide": "Div", "negative": "Neg", "absolute": "Abs", "sqrt": "Sqrt",
    "maximum": "Max", "minimum": "Min", "floor": "Floor", "exp": "Exp", "log": "Log", "tanh": "Tanh", "cos": "Cos", "sin": "Sin",
    "bitwise_and": "And", "bitwise_or": "Or", "bitwise_xor": "Xor", "invert": "Not", "equal": "Equal", "less": "Less",
    "less_equal": "LessOrEqual", "greater": "Greater", "greater_equal": "GreaterOrEqual", "matmul": "MatMul", "arctan": "Atan",
}  # fmt: skip
COMPARE = {"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"}


def promoted(*values: Any) -> list[Any]:
    """Tensors and arrays with the data type that NumPy gives all of them together."""
    dtype = np.result_type(*(getattr(each, "dtype", each) for each in values))
    return [each.astype(dtype) if hasattr(each, "dtype") else np.array(each, dtype) for each in values]


def broadcast(*shapes: Shape) -> Shape:
    """The shape of tensors that are computed with element by element; 1 beside None is None."""
    rank, dims = max(map(len, shapes)), list[int | None]()
    for sizes in zip(*((1,) * (rank - len(shape)) + tuple(shape) for shape in shapes), strict=True):
        dims.append(next((n for n in sizes if n not in (1, None)), None if None in sizes else 1))
    return tuple(dims)


class Tensor(np.lib.mixins.NDArrayOperatorsMixin):
    """A tensor of a graph, which stands for an array in the code of the NumPy runtime."""

    def __init__(self, graph: Graph, name: str, dtype: Any, shape: Sequence[int | None]) -> None:
        self.graph, self.name, self.dtype, self.shape = graph, name, np.dtype(dtype), tuple(shape)

    ndim = property(lambda self: len(self.shape))
    T = property(lambda self: self.transpose(*reversed(range(self.ndim))))

    def __bool__(self) -> bool:
        raise TypeError("only a run knows whether a tensor of a graph is true")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = ()) -> Rows:
        if method != "__call__" or ufunc.__name__ not in OPERATIONS.keys() | COMPOSED.keys():
            raise TypeError(f"np.{ufunc.__name__} of tensors of a graph is not written yet")
        if (composed := COMPOSED.get(ufunc.__name__)) is not None:
            result = composed(*inputs)
        else:
            result = self.graph.elementwise(OPERATIONS[ufunc.__name__], *promoted(*inputs))
        return result.astype(out[0].dtype) if out else result  # `x += y` keeps the type of x

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        if function not in FUNCTIONS:
            raise TypeError(f"np.{function.__name__} of tensors of a graph is not written yet")
        return FUNCTIONS[function](*arguments, **options)

    def __getitem__(self, index: Any) -> Rows:
        """Rows, columns and parts; at most one index may be an array or tensor of numbers."""
        parts = list(index) if isinstance(index, tuple) else [index]
        if any(part is Ellipsis for part in parts):
            k = next(k for k, part in enumerate(parts) if part is Ellipsis)
            parts[k : k + 1] = [slice(None)] * (self.ndim - sum(part is not None for part in parts) + 1)
        result, axis = self, 0
        for part in parts:
            if part is None:
                result, axis = result.unsqueeze(axis), axis + 1
            elif isinstance(part, slice):
                result, axis = result._cut(axis, part), axis + 1
            else:
                numbers = part if isinstance(part, Tensor) else np.array(part, np.int64)
                result, axis = result._gather(axis, numbers), axis + numbers.ndim
        return result

    def __setitem__(self, rows: Tensor, values: Tensor) -> None:
        """Replace rows, no row twice."""
        self.name = self.graph.node("ScatterND", self, rows.unsqueeze(1), values, like=self).name

    def _cut(self, axis: int, part: slice) -> Rows:
        start, stop, size = part.start or 0, END if part.stop is None else part.stop, self.shape[axis]
        if (start, stop) in ((0, END), (0, size)):
            return self
        left = None if size is None else len(range(*part.indices(size)))
        bounds = [np.array([each], np.int64) for each in (start, stop, axis)]
        return self.graph.node("Slice", self, *bounds, like=self, shape=replaced(self.shape, axis, left))

    def _gather(self, axis: int, numbers: Any) -> Rows:
        if not isinstance(numbers, Tensor) and numbers.ndim and self.shape[axis] == len(numbers):
            if (numbers == np.arange(len(numbers))).all():
                return self  # all columns
        shape = (*self.shape[:axis], *numbers.shape, *self.shape[axis + 1 :])
        return self.graph.node("Gather", self, numbers, like=self, shape=shape, axis=axis)

    def astype(self, dtype: Any) -> Rows:
        dtype = np.dtype(dtype)
        kind = helper.np_dtype_to_tensor_dtype(dtype)
        return self if dtype == self.dtype else self.graph.node("Cast", self, like=self, dtype=dtype, to=kind)

    def copy(self) -> Rows:
        return Tensor(self.graph, self.name, self.dtype, self.shape)

    def transpose(self, *axes: int) -> Rows:
        return self.graph.node("Transpose", self, like=self, shape=[self.shape[k] for k in axes], perm=axes)

    def reshape(self, *dims: Any) -> Rows:
        """Change the shape to dimensions that are numbers and (1,) tensors; 0: as large as before."""
        shape = [
            self.shape[k] if isinstance(each, int) and each == 0 else n
            for k, (each, n) in enumerate(zip(dims, static(dims), strict=True))
        ]
        as_given = int(0 not in static(dims))
        return self.graph.node("Reshape", self, self.graph.vector(dims), like=self, shape=shape, allowzero=as_given)

    def unsqueeze(self, axis: int) -> Rows:
        shape = (*self.shape[:axis], 1, *self.shape[axis:])
        return self.graph.node("Unsqueeze", self, np.array([axis], np.int64), like=self, shape=shape)

    def squeeze(self, axis: int) -> Rows:
        shape = (*self.shape[:axis], *self.shape[axis + 1 :])
        return self.graph.node("Squeeze", self, np.array([axis], np.int64), like=self, shape=shape)

    def expand(self, *dims: Any) -> Rows:
        """Repeat along dimensions of size 1; `dims` are numbers and (1,) tensors."""
        shape = broadcast(self.shape, static(dims))
        return self.graph.node("Expand", self, self.graph.vector(dims), like=self, shape=shape)

    def length(self, axis: int = 0) -> Rows:
        """(1,) int64, the size of a dimension."""
        return self.graph.node("Shape", self, dtype=np.int64, shape=[1], start=axis, end=axis + 1)

    def sum(self, axis: int, keepdims: bool = False) -> Rows:
        x = self.astype(np.int64) if self.dtype == np.bool_ else self
        return x._reduced("ReduceSum", axis, keepdims)

    def max(self, axis: int, keepdims: bool = False) -> Rows:
        return self._reduced("ReduceMax", axis, keepdims)

    def any(self, axis: int, keepdims: bool = False) -> Rows:
        return self.sum(axis, keepdims) > 0

    def _reduced(self, op: str, axis: int, keepdims: bool = False) -> Rows:
        axis %= self.ndim
        shape = (*self.shape[:axis], *([1] if keepdims else []), *self.shape[axis + 1 :])
        return self.graph.node(op, self, np.array([axis], np.int64), like=self, shape=shape, keepdims=int(keepdims))

    def argmax(self, axis: int) -> Rows:
        shape = (*self.shape[:axis], *self.shape[axis + 1 :])
        return self.graph.node("ArgMax", self, dtype=np.int64, shape=shape, axis=axis, keepdims=0)

    def cumsum(self, axis: int) -> Rows:
        return self.graph.node("CumSum", self, np.array(axis, np.int64), like=self)

    def at(self, columns: Tensor) -> Rows:
        """The entry in one column of each row: (A, ...) of (A, C, ...) for (A,) columns."""
        shape = (self.shape[0], *self.shape[2:])
        return self.graph.node("GatherND", self, columns.unsqueeze(1), like=self, shape=shape, batch_dims=1)


def replaced(shape: Shape, axis: int, size: int | None) -> Shape:
    """A shape with another size of one dimension."""
    return (*shape[:axis], size, *shape[axis + 1 :])


def static(dims: Sequence[Any]) -> Shape:
    """The shape of dimensions that are numbers, and tensors, which only a run knows."""
    return tuple(None if isinstance(each, Tensor) else int(each) for each in dims)


class Graph:
    """A graph that is being written."""

    def __init__(self) -> None:
        self.nodes, self.known = list[onnx.NodeProto](), dict[Any, str]()  # of the graph, or of the body of a loop
        self.constants = dict[Any, onnx.TensorProto]()
        self.inputs, self.outputs, self.docs = (
            list[onnx.ValueInfoProto](),
            list[onnx.ValueInfoProto](),
            dict[str, str](),
        )
        self.defaults, self.num_names = list[onnx.TensorProto](), 0

    def input(self, name: str, dtype: Any, dims: Sequence[int | str], doc: str, default: Any = None) -> Rows:
        """Add an input; one with a default may be left out. A named dimension has the same size wherever it is named."""
        self.docs[name], shape = doc, [each if isinstance(each, int) else None for each in dims]
        if default is not None:
            self.defaults.append(onnx.numpy_helper.from_array(np.array(default, dtype), name))
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        # the default is of another size than what is given, so dimensions of such inputs are not named
        named = [each if default is None or isinstance(each, int) else None for each in dims]
        self.inputs.append(helper.make_tensor_value_info(name, kind, named, doc))
        return Tensor(self, name, dtype, shape)

    def output(self, name: str, tensor: Rows, dims: Sequence[int | str], doc: str) -> None:
        self.docs[name] = doc
        self._add("Identity", [tensor.name], [name])
        kind = helper.np_dtype_to_tensor_dtype(tensor.dtype)
        self.outputs.append(helper.make_tensor_value_info(name, kind, dims, doc))

    def constant(self, value: Any) -> Rows:
        value = np.ascontiguousarray(value).reshape(np.shape(value))
        key = value.dtype.str, value.shape, value.tobytes()
        if key not in self.constants:
            self.constants[key] = onnx.numpy_helper.from_array(value, f"constant_{len(self.constants)}")
        return Tensor(self, self.constants[key].name, value.dtype, value.shape)

    def _add(self, op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> None:
        """Add a node, named like its first output: onnxruntime 1.20 refuses some graphs of nodes without names."""
        self.nodes.append(helper.make_node(op, inputs, outputs, outputs[0], **attributes))

    def names(self, num: int = 1) -> list[str]:
        """New names of tensors."""
        self.num_names += num
        return [f"t{self.num_names - k}" for k in range(num, 0, -1)]

    def node(
        self, op: str, *inputs: Any, like: Rows | None = None, dtype: Any = None, shape: Any = None, **attributes: Any
    ) -> Rows:
        """Add a node with one output, of the given type and shape, or that of `like`; the same node is not added twice."""
        names = [each.name if isinstance(each, Tensor) else self.constant(each).name for each in inputs]
        key = op, *names, *sorted(attributes.items())
        if key not in self.known:
            self.known[key] = self.names()[0]
            self._add(op, names, [self.known[key]], **attributes)
        if like is not None:
            dtype, shape = like.dtype if dtype is None else dtype, like.shape if shape is None else shape
        return Tensor(self, self.known[key], dtype, shape)

    def split(self, tensor: Rows, parts: int, axis: int) -> list[Rows]:
        """Cut a tensor into equal parts along a dimension of known size."""
        names, size = self.names(parts), tensor.shape[axis]
        assert size is not None
        self._add("Split", [tensor.name], names, axis=axis, num_outputs=parts)
        return [Tensor(self, name, tensor.dtype, replaced(tensor.shape, axis, size // parts)) for name in names]

    def elementwise(self, op: str, *inputs: Any) -> Rows:
        """Add a node that computes with elements, or the products of matrices."""
        shapes = [each.shape for each in inputs]
        if op == "MatMul":
            (*batch, rows, _), (*others, _, columns) = shapes
            return self.node(op, *inputs, dtype=inputs[0].dtype, shape=(*broadcast(batch, others), rows, columns))
        if op == "Max" and not isinstance(inputs[1], Tensor) and not inputs[1].any():
            op, inputs = "Relu", inputs[:1]
        dtype = np.bool_ if op in COMPARE else inputs[0].dtype
        return self.node(op, *inputs, dtype=dtype, shape=broadcast(*shapes))

    def vector(self, dims: Sequence[Any]) -> Any:
        """(k,) int64 of k numbers or (1,) tensors."""
        if not any(isinstance(each, Tensor) for each in dims):
            return np.array(dims, np.int64)
        parts = [each if isinstance(each, Tensor) else np.array([each], np.int64) for each in dims]
        return self.concat(parts)

    def concat(self, parts: Sequence[Any], axis: int = 0) -> Any:
        """Tensors and arrays, one after the other."""
        parts = promoted(*parts)
        axis, sizes = axis % parts[0].ndim, [each.shape[axis] for each in parts]
        shape = replaced(broadcast(*(each.shape for each in parts)), axis, None if None in sizes else sum(sizes))
        return (
            parts[0] if len(parts) == 1 else self.node("Concat", *parts, dtype=parts[0].dtype, shape=shape, axis=axis)
        )

    def full(self, value: Any, *dims: Any) -> Rows:
        """A value everywhere; `dims` are numbers and (1,) tensors."""
        return self.constant(np.asarray(value)).expand(*dims)

    def top(self, x: Rows, count: Rows) -> Rows:
        """(A, n) int64, columns of the largest numbers in each row, the largest first; of equals the first one."""
        names = self.names(2)
        self._add("TopK", [x.name, count.name], names, axis=1)
        return Tensor(self, names[1], np.int64, (x.shape[0], None))

    def arange(self, count: Rows) -> Rows:
        """(n,) int64 0, 1, ... for a (1,) count."""
        zero, one = np.array(0, np.int64), np.array(1, np.int64)
        return self.node("Range", zero, count.squeeze(0), one, dtype=np.int64, shape=[None])

    def loop(
        self, count: Rows, state: Sequence[Rows], body: Callable[..., Sequence[Rows]], *, stops: bool = False
    ) -> list[Rows]:
        """Repeat a step; returns the last state, and what each step added to it, stacked along a new first dimension.

        Args:
            count: (1,) int64, how often.
            state: what the first step begins with; each step may change its numbers, not its shape.
            body: the number of a step, and the state -> the state after it, and perhaps more tensors, which are stacked.
            stops: whether `body` returns another tensor before these: true, () bool, if there is a next step.
        """
        outer = self.nodes, self.known
        self.nodes, self.known = [], dict(self.known)
        names = self.names(2 + len(state))
        types = [(np.int64, ()), (np.bool_, ()), *((each.dtype, each.shape) for each in state)]
        number, goes_on, *given = (Tensor(self, name, *each) for name, each in zip(names, types, strict=True))
        made = list(body(number, *given))
        made = made if stops else [goes_on, *made]
        ends = self.names(len(made))
        for each, end in zip(made, ends, strict=True):
            self._add("Identity", [each.name], [end])

        def told(named: Sequence[str], tensors: Sequence[Rows]) -> list[onnx.ValueInfoProto]:
            pairs = zip(named, tensors, strict=True)
            kinds = [(name, helper.np_dtype_to_tensor_dtype(x.dtype), [None] * x.ndim) for name, x in pairs]
            return [helper.make_tensor_value_info(*each) for each in kinds]

        inside = helper.make_graph(
            used(self.nodes, ends)[0], "body", told(names, [number, goes_on, *given]), told(ends, made)
        )
        (self.nodes, self.known), results = outer, self.names(len(made) - 1)
        begins = [count.name, "", *(each.name for each in state)]
        self._add("Loop", begins, results, body=inside)
        shapes = [*(each.shape for each in state), *((None, *each.shape) for each in made[1 + len(state) :])]
        typed = zip(results, made[1:], shapes, strict=True)
        return [Tensor(self, name, each.dtype, shape) for name, each, shape in typed]

    def model(self, metadata: Mapping[str, str], doc: str, version: str) -> onnx.ModelProto:
        """The model: what outputs depend on, and `metadata`, with the texts about inputs and outputs as JSON."""
        nodes, names = used(self.nodes, [each.name for each in self.outputs])
        inputs = [each for each in self.inputs if each.name in names]
        values = [each for each in (*self.constants.values(), *self.defaults) if each.name in names]
        graph = helper.make_graph(nodes, "policy", inputs, self.outputs, values, doc)
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION, doc_string=doc)
        model.producer_name, model.producer_version = "enn-ppo", version
        docs = [{each.name: self.docs[each.name] for each in of} for of in (inputs, self.outputs)]
        helper.set_model_props(model, {**metadata, "inputs": json.dumps(docs[0]), "outputs": json.dumps(docs[1])})
        return model


def used(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> tuple[list[onnx.NodeProto], set[str]]:
    """The nodes that the outputs depend on, and the names of all tensors in them."""
    names, kept = set(outputs), list[onnx.NodeProto]()

    def add(node: onnx.NodeProto) -> None:
        names.update(node.input)
        for attribute in node.attribute:
            for each in attribute.g.node:  # of the body of a loop, which reads tensors around it
                add(each)

    for node in reversed(nodes):
        if names & {*node.output}:
            add(node)
            kept.append(node)
    return kept[::-1], names


# --- NumPy's functions


def where(condition: Any, x: Any, y: Any) -> Rows:
    """Elements of x where a condition holds, and of y elsewhere."""
    graph, (x, y) = graph_of(condition, x, y), promoted(x, y)
    shape = broadcast(condition.shape, x.shape, y.shape)
    return graph.node("Where", condition, x, y, dtype=x.dtype, shape=shape)


def clip(x: Rows, low: Any, high: Any) -> Rows:
    """Elements within bounds."""
    if np.ndim(low) or np.ndim(high):
        return np.minimum(np.maximum(x, low), high)
    return x.graph.node("Clip", x, *(np.array(each, x.dtype) for each in (low, high)), like=x)


def graph_of(*values: Any) -> Graph:
    """The graph of the first tensor among values."""
    return next(each.graph for each in values if isinstance(each, Tensor))


def filled(x: Rows, value: int) -> Rows:
    """A number in the shape and type of a tensor."""
    shape = x.graph.node("Shape", x, dtype=np.int64, shape=[x.ndim])
    return x.graph.node("Expand", np.array(value, x.dtype), shape, like=x)


def remainder(x: Rows, y: float) -> Rows:
    """x modulo y, from 0 on."""
    return x - np.floor(x / y) * y if x.dtype.kind == "f" else x.graph.node("Mod", x, np.array(y, x.dtype), like=x)


def precisely(function: Callable[..., Rows]) -> Callable[..., Rows]:
    """A function of float32 that is computed in float64, since ONNX has no operation for it that is exact near 0."""

    def computed(*values: Any) -> Rows:
        values = tuple(promoted(*values))
        return function(*(each.astype(np.float64) for each in values)).astype(values[0].dtype)

    return computed


def logaddexp(x: Any, y: Any) -> Rows:
    """log(exp(x) + exp(y)), also of -inf."""
    between = np.abs(np.where(x == y, 0.0, x - y))  # 0 also of two infinite numbers
    return np.maximum(x, y) + np.log1p(np.exp(-between))


def arctan2(y: Rows, x: Rows) -> Rows:
    """The angle of (x, y), -π to π; NaN of (0, 0)."""
    steep = np.abs(y) > np.abs(x)
    flat = np.arctan(y / x) + np.where(x < 0, np.where(y < 0, -np.pi, np.pi), 0.0).astype(x.dtype)
    return np.where(steep, np.where(y < 0, -np.pi / 2, np.pi / 2).astype(x.dtype) - np.arctan(x / y), flat)


#: Functions of elements that are no operation of ONNX.
COMPOSED: dict[str, Callable[..., Rows]] = {
    "square": lambda x: x * x,
    "not_equal": lambda x, y: ~(x == y),
    "remainder": remainder,
    "log1p": precisely(lambda x: np.where(np.abs(x) < 1e-5, x - 0.5 * x * x, np.log(1 + x))),
    "expm1": precisely(lambda x: np.where(np.abs(x) < 1e-5, x + 0.5 * x * x, np.exp(x) - 1)),
    "logaddexp": precisely(logaddexp),
    "arctan2": arctan2,
}
FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.where: where,
    np.clip: clip,
    np.concatenate: lambda parts, axis=0: graph_of(*parts).concat(parts, axis),
    np.zeros_like: lambda x: filled(x, 0),
    np.ones_like: lambda x: filled(x, 1),
    np.size: lambda x, axis: x.length(axis),
}
