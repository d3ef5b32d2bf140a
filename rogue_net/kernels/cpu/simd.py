"""Vectors of float32 for Numba: arithmetic on 8, 16, ... numbers at once that reads like arithmetic on one.

LLVM maps a vector of any width to the registers that the CPU has (AVX-512, AVX2, SSE, NEON). Indices count elements.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import lower_builtin, models, register_model, type_callable

from rogue_net.kernels.cpu.compiling import FLAGS, intrinsic

FLOAT, INT = ir.FloatType(), ir.IntType(32)

# Numbers that a kernel handles at once where it is free to choose. Most frames are short: with 16 half of them would be idle.
LANES = 8

# --- The vector type


class VectorType(types.Type):
    """Vector of `lanes` numbers of type float32."""

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
    """Put `scalar` into every lane."""
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


def _address(builder: Any, pointer: Any, index: Any, element: Any) -> Any:
    return builder.bitcast(builder.gep(pointer, [index]), element.as_pointer())


# --- Memory


@intrinsic
def load(context: Any, const: Any, array: Any, index: Any) -> Any:
    """The numbers `array[index:index + lanes]`."""
    lanes = const.number

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, pointer, index = arguments
        return builder.load(_address(builder, pointer, index, _vector(lanes)), align=4)

    return VectorType(lanes)(const, array, types.int64), generate


@intrinsic
def store(context: Any, array: Any, index: Any, vector: Any) -> Any:
    """Write a vector to `array[index:index + lanes]`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, index, vector = arguments
        builder.store(vector, _address(builder, pointer, index, vector.type), align=4)
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
    """Compute x y + z, rounded once."""

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


def _of_each_lane(name: str) -> Callable[..., Any]:
    """Make a function of kernels that applies LLVM's intrinsic of this name to the number in each lane."""

    @intrinsic
    def function(context: Any, x: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            lanes = signature.return_type.lanes
            return _call(builder, f"llvm.{name}.v{lanes}f32", _vector(lanes), arguments)

        return x(x), generate

    return function


floor, square_root, absolute = map(_of_each_lane, ("floor", "sqrt", "fabs"))


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
    """Take x in the first `count` lanes, y in the others."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = signature.return_type.lanes
        numbers = ir.Constant(_vector(lanes, INT), list(range(lanes)))
        inside = builder.icmp_signed("<", numbers, _spread(builder, builder.trunc(arguments[0], INT), lanes))
        return builder.select(inside, arguments[1], arguments[2])

    return x(types.int64, x, y), generate


@intrinsic
def where_positive(context: Any, condition: Any, x: Any, y: Any) -> Any:
    """Take x in the lanes where the condition is at least 0, y in the others."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = signature.return_type.lanes
        positive = builder.fcmp_ordered(">=", arguments[0], _constant(0.0, lanes))
        return builder.select(positive, arguments[1], arguments[2])

    return x(condition, x, y), generate


@intrinsic
def exp(context: Any, x: Any) -> Any:
    """Compute e to the power of x in each lane, for x up to 80, within 3 units in the last place; 0 for x below -87.

    exp(x) = 2^n exp(r) with n = round(x / ln 2) and r = x - n ln 2, in two steps that keep r exact (Cody and Waite 1980).
    exp(r) is 1 + r + r² p(r), with the p of degree 3 whose largest relative error in [-ln 2 / 2, ln 2 / 2] is smallest, 1.05e-7.
    """
    coefficients = (0.008312520571, 0.041890155524, 0.166671141982, 0.499992311001)

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
