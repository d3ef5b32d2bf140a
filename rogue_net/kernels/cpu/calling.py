"""Kernels that call kernels: each is compiled once, whoever calls it, and not inlined.

A kernel that names another one is compiled together with it. Here the caller gets an address instead:

    @kernel
    def twice(scale: Count, numbers: Floats, count: Count) -> None:
        invoke(scale, numbers, count, np.float32(2))
        invoke(scale, numbers, count, np.float32(2))

    bind(twice)(entry(scale), address(tensor), tensor.numel())

Nothing checks that the arguments are those of the kernel at the address.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import types

from rogue_net.kernels.cpu.compiling import Const, Flags, Floats, Ints, argument_type, intrinsic, signature


@cache
def entry(compiled: Any, *consts: Const) -> int:
    """The address of a kernel compiled for these `Const`s. It takes the other arguments, and is valid as long as the process."""
    types_of_arguments = signature(compiled, *consts)
    compiled.compile(types_of_arguments)
    result = compiled.overloads[types_of_arguments]
    address: int = result.library.get_pointer_to_function(result.fndesc.llvm_func_name)
    return address


@intrinsic
def invoke(context: Any, kernel: Any, *arguments: Any) -> Any:
    """Call the kernel at an address."""
    is_packed = len(arguments) == 1 and isinstance(arguments[0], types.BaseTuple)
    given = tuple(types.unliteral(each) for each in (arguments[0] if is_packed else arguments))

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, packed = arguments
        function_type = context.call_conv.get_function_type(types.void, given)
        function = builder.inttoptr(pointer, function_type.as_pointer())
        unpacked = [builder.extract_value(packed, position) for position in range(len(given))]
        context.call_conv.call_function(builder, function, types.void, given, unpacked)
        return context.get_dummy_value()

    return types.void(kernel, types.Tuple(given)), generate


@intrinsic
def shifted(context: Any, array: Any, index: Any) -> Any:
    """The memory of `array` from `index` on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.gep(arguments[0], [arguments[1]])

    return array(array, types.int64), generate


def pointer_at(kind: Any) -> Any:
    """Make a function of kernels: an address, which a table holds, as memory of a kind."""
    pointer_type = argument_type(kind)

    @intrinsic
    def pointer(context: Any, number: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(pointer_type))

        return pointer_type(types.int64), generate

    return pointer


#: Memory of which a table holds the address.
floats_at, ints_at, flags_at = map(pointer_at, (Floats, Ints, Flags))
