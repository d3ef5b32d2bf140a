"""Vectors of float32 for Numba: arithmetic on 8, 16, ... numbers at once that reads like arithmetic on one.

A kernel takes `Const` arguments for the numbers that its code depends on: head widths, numbers of lanes. They are part of
its compiled signature, so that loops over them unroll, and kernels stay plain functions that Numba can cache. LLVM maps a
vector of any width to the registers that the CPU has (AVX-512, AVX2, SSE, NEON).

    @kernel
    def scale(lanes: Const, numbers: Floats, count: Count, factor: Number):
        for i in range(0, count, value(lanes)):
            store(numbers, i, load(lanes, numbers, i) * factor)

    bind(scale, Const(8))(address(tensor), tensor.numel(), 2.0)

Indices count elements, and nothing is checked: kernels are called with memory that we made. What a kernel takes is said by
the annotations, so that a call needs to look at nothing: Numba's own way to find out takes longer than many a kernel.
"""

from __future__ import annotations

import hashlib
import inspect
import operator
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, get_type_hints

from llvmlite import ir
from numba import extending, njit, types
from numba.core import cgutils
from numba.core.imputils import lower_constant
from numba.extending import (
    NativeValue,
    lower_builtin,
    models,
    register_model,
    type_callable,
    typeof_impl,
    unbox,
)
from numpy.typing import NDArray
from torch import Tensor

FLOAT, INT = ir.FloatType(), ir.IntType(32)

# What LLVM may change: no infinities or NaNs are ruled out, so that a NaN stays one.
FLAGS = ("contract", "reassoc", "nsz", "arcp")

# Numba's cache looks at the file of a kernel only; this makes it see a change in any of them.
_DIGEST = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))).hexdigest()


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile for this CPU when first called, without the GIL, and keep the result on disk."""
    return _compile(function, nogil=True, cache=True)


def inline(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function for kernels alone."""
    return _compile(function, forceinline=True)


def _compile(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    # nothing in a kernel owns memory, so that nothing need be counted
    options |= {"error_model": "numpy", "boundscheck": False, "fastmath": set(FLAGS), "_nrt": False}
    compiled: Callable[..., Any] = njit(**options)(function)
    return compiled


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """`numba.extending.intrinsic`, for a type checker a function of whatever its users give it."""
    made: Callable[..., Any] = extending.intrinsic(function)
    return made


def bind(compiled: Any, *consts: Const) -> Callable[..., None]:
    """A kernel compiled for these `Const`s, to be called with the rest of its arguments, addresses for pointers."""
    annotations = [
        each for name, each in inspect.get_annotations(compiled.py_func, eval_str=True).items() if name != "return"
    ]
    arguments = [const.type for const in consts] + [_argument_type(each) for each in annotations[len(consts) :]]
    return partial(compiled.compile(tuple(arguments)), *consts)


def address(tensor: Tensor | NDArray[Any]) -> int:
    """Where the numbers of a contiguous tensor or array begin."""
    return tensor.data_ptr() if isinstance(tensor, Tensor) else tensor.ctypes.data


# Numbers that a kernel handles at once where it is free to choose. Most frames are short: with 16 half of them would be idle.
LANES = 8

# --- Numbers that the compiler knows


class Const:
    """A whole number that a kernel is compiled for; `value` is the number inside the kernel."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.type = ConstType(number)


class ConstType(types.Type):
    """The type of `Const(number)`."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(name=f"Const({number}, {_DIGEST})")


register_model(ConstType)(models.OpaqueModel)


@typeof_impl.register(Const)
def _typeof_const(const: Const, context: Any) -> ConstType:
    return const.type


@unbox(ConstType)
def _unbox_const(const_type: ConstType, const: Any, c: Any) -> NativeValue:
    return NativeValue(c.context.get_dummy_value())


@lower_constant(ConstType)
def _lower_const(context: Any, builder: Any, const_type: ConstType, const: Any) -> Any:
    return context.get_dummy_value()


@intrinsic
def value(context: Any, const: Any) -> Any:
    """The number that a `Const` stands for."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.get_constant(types.int64, signature.args[0].number)

    return types.int64(const), generate


# --- What else a kernel takes


class Floats:
    """Annotation: float32 numbers. Inside a kernel they are indexed like an array; from outside, an address."""

    def __getitem__(self, index: Any) -> Any:
        """One number."""

    def __setitem__(self, index: Any, number: Any) -> None:
        """Change one number."""


class Ints(Floats):
    """Annotation: int64 numbers."""


class Flags(Floats):
    """Annotation: truth values of a byte each."""


Count: TypeAlias = int
Number: TypeAlias = float


class _PointerType(types.CPointer):
    """A pointer that Python hands over as a whole number."""


register_model(_PointerType)(models.PointerModel)


@unbox(_PointerType)
def _unbox_pointer(pointer_type: _PointerType, number: Any, c: Any) -> NativeValue:
    pointer = c.builder.bitcast(c.pyapi.long_as_voidptr(number), c.context.get_value_type(pointer_type))
    return NativeValue(pointer, is_error=cgutils.is_not_null(c.builder, c.pyapi.err_occurred()))


_ARGUMENTS = {
    Floats: _PointerType(types.float32),
    Ints: _PointerType(types.int64),
    Flags: _PointerType(types.uint8),
    int: types.int64,
    float: types.float32,
}


def _argument_type(annotation: Any) -> Any:
    """Of one of these annotations, or of a named tuple of such fields."""
    if not hasattr(annotation, "_fields"):
        return _ARGUMENTS[annotation]
    fields = [_argument_type(each) for each in get_type_hints(annotation).values()]
    return types.BaseTuple.from_types(fields, annotation)


# --- The vector type


class VectorType(types.Type):
    """`lanes` numbers of type float32."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        super().__init__(name=f"float32x{lanes}")


@register_model(VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, frontend_type: VectorType) -> None:
        super().__init__(manager, frontend_type, _vector(frontend_type.lanes))


def _vector(lanes: int, element: Any = FLOAT) -> Any:
    return ir.VectorType(element, lanes)


def _constant(number: float, lanes: int, element: Any = FLOAT) -> Any:
    return ir.Constant(_vector(lanes, element), [number] * lanes)


def _spread(builder: Any, scalar: Any, lanes: int) -> Any:
    """`scalar` in every lane."""
    undefined = ir.Constant(ir.VectorType(scalar.type, lanes), ir.Undefined)
    first = builder.insert_element(undefined, scalar, INT(0))
    return builder.shuffle_vector(first, undefined, ir.Constant(_vector(lanes, INT), [0] * lanes))


def _call(builder: Any, name: str, result: Any, arguments: Sequence[Any]) -> Any:
    """Call an LLVM intrinsic."""
    function_type = ir.FunctionType(result, [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(builder.module, function_type, name)
    return builder.call(function, arguments, fastmath=FLAGS)


def _larger(builder: Any, x: Any, y: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", x, y), x, y)


def _address(context: Any, builder: Any, array_type: Any, array: Any, index: Any, element: Any) -> Any:
    data = (
        array
        if isinstance(array_type, types.CPointer)
        else context.make_array(array_type)(context, builder, array).data
    )
    return builder.bitcast(builder.gep(data, [index]), element.as_pointer())


# --- Memory


@intrinsic
def load(context: Any, const: Any, array: Any, index: Any) -> Any:
    """The numbers `array[index:index + lanes]`."""
    lanes = const.number

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, array, index = arguments
        address = _address(context, builder, signature.args[1], array, index, _vector(lanes))
        return builder.load(address, align=4)

    return VectorType(lanes)(const, array, types.int64), generate


@intrinsic
def store(context: Any, array: Any, index: Any, vector: Any) -> Any:
    """Write a vector to `array[index:index + lanes]`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, index, vector = arguments
        builder.store(vector, _address(context, builder, signature.args[0], array, index, vector.type), align=4)
        return context.get_dummy_value()

    return types.void(array, types.int64, vector), generate


@intrinsic
def spread(context: Any, const: Any, scalar: Any) -> Any:
    """Put `scalar` into every lane."""
    lanes = const.number

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _spread(builder, arguments[1], lanes)

    return VectorType(lanes)(const, types.float32), generate


# --- Arithmetic


def _define_operator(function: Callable[..., Any], instruction: str) -> None:
    """Let a Python operator work on two vectors, or on a vector and a number."""

    @type_callable(function)
    def typing(context: Any) -> Callable[[Any, Any], Any]:
        def result(left: Any, right: Any) -> Any:
            vectors = [each for each in (left, right) if isinstance(each, VectorType)]
            others = [each for each in (left, right) if not isinstance(each, VectorType)]
            if vectors and all(isinstance(each, types.Float | types.Integer) for each in others):
                return vectors[0]
            return None

        return result

    def lower(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = signature.return_type.lanes
        operands = []
        for operand, operand_type in zip(arguments, signature.args, strict=True):
            if not isinstance(operand_type, VectorType):
                operand = _spread(builder, context.cast(builder, operand, operand_type, types.float32), lanes)
            operands.append(operand)
        return getattr(builder, instruction)(*operands, flags=FLAGS)

    for left, right in (
        (VectorType, VectorType),
        (VectorType, types.Number),
        (types.Number, VectorType),
    ):
        lower_builtin(function, left, right)(lower)


for _function, _instruction in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _define_operator(_function, _instruction)


@intrinsic
def fma(context: Any, x: Any, y: Any, z: Any) -> Any:
    """x y + z, rounded once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = signature.return_type.lanes
        return _call(builder, f"llvm.fma.v{lanes}f32", _vector(lanes), arguments)

    return x(x, y, z), generate


@intrinsic
def maximum(context: Any, x: Any, y: Any) -> Any:
    """The larger number in each lane; y where one is NaN, which is what CPUs do in one instruction."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _larger(builder, *arguments)

    return x(x, y), generate


@intrinsic
def minimum(context: Any, x: Any, y: Any) -> Any:
    """The smaller number in each lane; y where one is NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(builder.fcmp_ordered("<", *arguments), *arguments)

    return x(x, y), generate


@intrinsic
def floor(context: Any, x: Any) -> Any:
    """The largest whole number that is not above x, in each lane."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = signature.return_type.lanes
        return _call(builder, f"llvm.floor.v{lanes}f32", _vector(lanes), arguments)

    return x(x), generate


@intrinsic
def square_root(context: Any, x: Any) -> Any:
    """The square root in each lane."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = signature.return_type.lanes
        return _call(builder, f"llvm.sqrt.v{lanes}f32", _vector(lanes), arguments)

    return x(x), generate


@intrinsic
def absolute(context: Any, x: Any) -> Any:
    """|x| in each lane."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = signature.return_type.lanes
        return _call(builder, f"llvm.fabs.v{lanes}f32", _vector(lanes), arguments)

    return x(x), generate


@intrinsic
def total(context: Any, x: Any) -> Any:
    """The sum of all lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = signature.args[0].lanes
        return _call(builder, f"llvm.vector.reduce.fadd.v{lanes}f32", FLOAT, [FLOAT(0.0), arguments[0]])

    return types.float32(x), generate


@intrinsic
def largest(context: Any, x: Any) -> Any:
    """The largest number of all lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = signature.args[0].lanes
        remaining = arguments[0]
        while lanes > 1:  # the upper half against the lower
            lanes //= 2
            parts = [
                builder.shuffle_vector(
                    remaining, remaining, ir.Constant(_vector(lanes, INT), list(range(first, first + lanes)))
                )
                for first in (0, lanes)
            ]
            remaining = _larger(builder, *parts)
        return builder.extract_element(remaining, INT(0))

    return types.float32(x), generate


@intrinsic
def first_lanes(context: Any, count: Any, x: Any, y: Any) -> Any:
    """x in the first `count` lanes, y in the others."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = signature.return_type.lanes
        numbers = ir.Constant(_vector(lanes, INT), list(range(lanes)))
        inside = builder.icmp_signed("<", numbers, _spread(builder, builder.trunc(arguments[0], INT), lanes))
        return builder.select(inside, arguments[1], arguments[2])

    return x(types.int64, x, y), generate


@intrinsic
def where_positive(context: Any, condition: Any, x: Any, y: Any) -> Any:
    """x in the lanes where the condition is at least 0, y in the others."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = signature.return_type.lanes
        positive = builder.fcmp_ordered(">=", arguments[0], _constant(0.0, lanes))
        return builder.select(positive, arguments[1], arguments[2])

    return x(condition, x, y), generate


@intrinsic
def exp(context: Any, x: Any) -> Any:
    """Compute e to the power of x in each lane, for x up to 80, within 3 units in the last place; 0 for x below -87.

    exp(x) = 2^n exp(r) with n = round(x / ln 2) and r = x - n ln 2, in two steps that keep r exact (Cody and Waite 1980).
    exp(r) is a polynomial of degree 7 fitted to [-ln 2 / 2, ln 2 / 2] (S. Moshier, Cephes 1992, `expf`).
    """
    coefficients = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = signature.return_type.lanes

        def constant(number: float) -> Any:
            return _constant(number, lanes)

        def multiply_add(x: Any, y: Any, z: Any) -> Any:
            return _call(builder, f"llvm.fma.v{lanes}f32", _vector(lanes), [x, y, z])

        positive = builder.fcmp_unordered(">=", arguments[0], constant(-87.0))
        x = _larger(builder, constant(-87.0), arguments[0])
        scaled = builder.fmul(x, constant(1.4426950408889634))
        n = _call(builder, f"llvm.rint.v{lanes}f32", _vector(lanes), [scaled])
        r = multiply_add(n, constant(-0.693359375), x)
        r = multiply_add(n, constant(2.12194440e-4), r)
        polynomial = constant(coefficients[0])
        for coefficient in coefficients[1:]:
            polynomial = multiply_add(polynomial, r, constant(coefficient))
        polynomial = multiply_add(polynomial, builder.fmul(r, r), builder.fadd(r, constant(1.0)))
        exponent = builder.add(builder.fptosi(n, _vector(lanes, INT)), _constant(127, lanes, INT))
        power = builder.shl(exponent, _constant(23, lanes, INT))
        result = builder.fmul(polynomial, builder.bitcast(power, _vector(lanes)))
        return builder.select(positive, result, constant(0.0))

    return x(x), generate
