"""Kernels: functions that Numba compiles for memory and numbers given once, and how they are called.

    @kernel
    def scale(lanes: Const, numbers: Floats, count: Count, factor: Number):
        for i in range(0, count, value(lanes)):
            store(numbers, i, load(lanes, numbers, i) * factor)

    bind(scale, Const(8))(address(tensor), tensor.numel(), 2.0)

`Const` arguments are numbers that the code depends on: head widths, numbers of lanes. They are part of the compiled signature,
so that loops over them unroll, and kernels stay plain functions that Numba can cache. What else a kernel takes is said by its
annotations, so that a call needs to look at nothing: Numba's own way to find out takes longer than many a kernel. Nothing is
checked: kernels are called with memory that we made.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import operator
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
from numba import extending, njit, types
from numba.core import cgutils
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.imputils import lower_constant
from numba.core.typed_passes import NativeLowering
from numba.extending import NativeValue, lower_builtin, models, register_model, typeof_impl, unbox
from numba.np.numpy_support import from_dtype
from numpy.typing import NDArray
from torch import Tensor

from entity_gym.compiled.compiler import KeptCode

log = logging.getLogger(__name__)

# What LLVM may change: no infinities or NaNs are ruled out, so that a NaN stays one.
FLAGS = ("contract", "reassoc", "nsz", "arcp")

# Numba's cache looks at the file of a kernel only; with this in its keys it sees a change in any of them, and in the heads,
# whose constants they have.
_FOLDERS = [Path(__file__).parent, Path(__file__).parents[2] / "heads"]
_DIGEST = hashlib.sha256(
    b"".join(file.read_bytes() for each in _FOLDERS for file in sorted(each.glob("*.py")))
).hexdigest()


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile for this CPU when first called, without the GIL, and keep the result on disk, where that can be written."""
    return _cached(function, _compile(function, nogil=True), has_wrapper=True)


def inner_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that other kernels call by its address, and Python does not: it compiles faster."""
    return _cached(function, _compile(function, nogil=True, no_cpython_wrapper=True), has_wrapper=False)


def _cached(function: Callable[..., Any], compiled: Any, has_wrapper: bool) -> Callable[..., Any]:
    """A kernel that is kept on disk."""
    try:
        compiled._cache = KernelCache(function)  # as `enable_caching` does
        compiled._cache.has_wrapper = has_wrapper
    except RuntimeError:
        say_not_kept("Numba finds no folder that can be written")
    return compiled  # type: ignore[no-any-return]


class KernelCache(KeptCode):
    """Numba's cache of a kernel. It does without a full disk, a folder that cannot be used, and files that are damaged."""

    has_wrapper = True  # whether Python can call the code; code without wrapper would end the process

    def has(self, signature: Any, target_context: Any) -> bool:
        """Whether the kernel is on disk for these types of arguments."""
        try:
            return self._index_key(signature, target_context.codegen()) in self._cache_file._load_index()
        except OSError:  # said when it is loaded
            return False
        except Exception:
            self.drop()
            return False

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return (*super()._index_key(sig, codegen), _DIGEST, self.has_wrapper)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except OSError as error:
            say_not_kept(error.strerror or str(error))
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError as error:
            say_not_kept(error.strerror or str(error))


@cache
def say_not_kept(reason: str) -> None:
    """Warn that compiled kernels are not kept on disk, once for each reason."""
    log.warning(
        "compiled kernels cannot be kept on disk (%s): each process compiles them again, which takes some seconds; "
        "set NUMBA_CACHE_DIR to a folder that can be written",
        reason,
    )


def inline(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function for kernels alone."""
    return _compile(function, forceinline=True, no_cpython_wrapper=True, pipeline_class=_InnerCompiler)


class _InnerLibrary(JITCodeLibrary):
    """Code that is optimized and becomes machine code as a part of its callers' libraries."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _InnerLowering(NativeLowering):
    """Numba's lowering to LLVM's language, and not to machine code."""

    _name = "inner_lowering"

    def run_pass(self, state: Any) -> bool:
        state.flags.no_compile = True
        state.library = _InnerLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        super().run_pass(state)
        result = state["cr"]
        nothing: list[Any] = []
        key = nothing.append  # callers find the function by it, and Numba wants a function of C, which is never called
        state.targetctx.insert_user_function(key, result.fndesc, [state.library])
        state["cr"] = result._replace(cfunc=key)
        return True


class _InnerCompiler(CompilerBase):
    """Compiler, `pipeline_class` for Numba, of functions that only compiled functions call."""

    def define_pipelines(self) -> list[Any]:
        """Return Numba's pipeline with another lowering."""
        manager = DefaultPassBuilder.define_nopython_pipeline(self.state)
        manager.passes = [(_InnerLowering if each is NativeLowering else each, text) for each, text in manager.passes]
        manager._finalized = False
        manager.finalize()
        return [manager]


def _compile(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    # nothing in a kernel owns memory, so that nothing need be counted
    options |= {
        "no_cfunc_wrapper": True,
        "error_model": "numpy",
        "boundscheck": False,
        "fastmath": set(FLAGS),
        "_nrt": False,
    }
    compiled: Callable[..., Any] = njit(**options)(function)
    return compiled


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Apply `numba.extending.intrinsic`: for a type checker a function of whatever its users give it."""
    made: Callable[..., Any] = extending.intrinsic(function)
    return made


@cache
def bind(compiled: Any, *consts: Const) -> Callable[..., None]:
    """A kernel compiled for these `Const`s, to be called with the rest of its arguments, addresses for pointers."""
    assert not compiled.targetoptions.get("no_cpython_wrapper"), f"{compiled.py_func.__name__} is an inner kernel"
    return partial(compiled.compile(signature(compiled, *consts)), *consts)


def signature(compiled: Any, *consts: Const) -> tuple[Any, ...]:
    """The types of a kernel's arguments, of which the first are these `Const`s."""
    annotations = [
        each for name, each in inspect.get_annotations(compiled.py_func, eval_str=True).items() if name != "return"
    ]
    return (*(const.type for const in consts), *(argument_type(each) for each in annotations[len(consts) :]))


def address(tensor: Tensor | NDArray[Any]) -> Any:
    """Address of the numbers of a contiguous tensor or array, which from outside stands for the memory that a kernel takes."""
    return tensor.data_ptr() if isinstance(tensor, Tensor) else tensor.ctypes.data


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
        super().__init__(name=f"Const({number})")


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


Row = TypeVar("Row")


class Table(Floats, Generic[Row]):
    """Annotation: rows of numbers with names, as `table` makes them. Inside a kernel `rows[i].name`; from outside, an address."""


def table(row: Any, rows: Sequence[Any]) -> NDArray[Any]:
    """Rows as an array of NumPy's struct dtype: int64 for fields that are `int`, float32 for `float`."""
    return np.array(rows, struct_of(row))


@cache
def struct_of(row: Any) -> np.dtype[Any]:
    """The struct dtype of a named tuple, see `table`."""
    numbers = {int: np.int64, float: np.float32}
    return np.dtype([(name, numbers[kind]) for name, kind in get_type_hints(row).items()], align=True)


Count: TypeAlias = int
Number: TypeAlias = float


class _PointerType(types.CPointer):
    """A pointer that Python hands over as a whole number."""


register_model(_PointerType)(models.PointerModel)


@unbox(_PointerType)
def _unbox_pointer(pointer_type: _PointerType, number: Any, c: Any) -> NativeValue:
    pointer = c.builder.bitcast(c.pyapi.long_as_voidptr(number), c.context.get_value_type(pointer_type))
    return NativeValue(pointer, is_error=cgutils.is_not_null(c.builder, c.pyapi.err_occurred()))


class _TableType(_PointerType):
    """A pointer to rows, of which the compiler knows the fields."""


register_model(_TableType)(models.PointerModel)


@lower_builtin(operator.getitem, _TableType, types.Integer)
def _row_of_table(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return builder.gep(arguments[0], [arguments[1]])


_ARGUMENTS = {
    Floats: _PointerType(types.float32),
    Ints: _PointerType(types.int64),
    Flags: _PointerType(types.uint8),
    int: types.int64,
    float: types.float32,
}


def argument_type(annotation: Any) -> Any:
    """The compiler's type of one of these annotations, or of a named tuple of such fields."""
    if get_origin(annotation) is Table:
        return _TableType(from_dtype(struct_of(*get_args(annotation))))
    if not hasattr(annotation, "_fields"):
        return _ARGUMENTS[annotation]
    fields = [argument_type(each) for each in get_type_hints(annotation).values()]
    return types.BaseTuple.from_types(fields, annotation)
