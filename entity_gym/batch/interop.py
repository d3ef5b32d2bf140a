"""Conversion to and from the optional package `ragged-buffer`, whose buffers other programs may expect."""

import importlib
from typing import Any

from entity_gym.batch.ragged import RaggedBuffer, RaggedBufferBool, RaggedBufferF32, RaggedBufferI64

_CLASSES = {cls.__name__: cls for cls in (RaggedBufferF32, RaggedBufferI64, RaggedBufferBool)}  # the names agree


def to_ragged_buffer(buffer: RaggedBuffer[Any]) -> Any:
    """A copy of `buffer` as `ragged_buffer.RaggedBufferF32`, `RaggedBufferI64` or `RaggedBufferBool`.

    Raises:
        ImportError: if the package is not installed.
        TypeError: if `buffer` is not one of ours.
    """
    package = _package()
    if not isinstance(buffer, RaggedBuffer):
        raise TypeError(
            f"a {type(buffer).__name__} was given: a RaggedBufferF32, RaggedBufferI64 or RaggedBufferBool must be"
        )
    (name,) = (name for name, cls in _CLASSES.items() if isinstance(buffer, cls))
    return getattr(package, name).from_flattened(buffer.values, buffer.size1())


def from_ragged_buffer(buffer: Any) -> RaggedBuffer[Any]:
    """A copy of a buffer, or view of one, of the package `ragged_buffer`.

    Raises:
        ImportError: if the package is not installed.
        TypeError: if `buffer` is not one of that package's.
    """
    package = _package()
    for name, cls in _CLASSES.items():
        if isinstance(buffer, getattr(package, name)):
            whole = buffer.materialize()
            values = whole.as_array().reshape(whole.items(), whole.size2())
            return cls.from_flattened(values, whole.size1())
    raise TypeError(f"a {type(buffer).__module__}.{type(buffer).__name__} was given: a buffer of ragged_buffer must be")


def _package() -> Any:
    try:
        return importlib.import_module("ragged_buffer")
    except ImportError as error:
        raise ImportError(
            "the package ragged-buffer is not installed: pip install --no-deps ragged-buffer (Python 3.9-3.11)"
        ) from error
