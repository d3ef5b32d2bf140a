"""An address as a pointer, inside compiled code."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def as_pointer(typing_context: Any, address: Any) -> Any:
    """The untyped pointer to an int64 address; `numba.carray` makes an array of it."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), codegen
