"""Reading files that a stranger may have made: regular files of limited size, YAML without aliases, and no deep nesting."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections import Counter
from pathlib import Path
from typing import Any, BinaryIO

import yaml
from yaml.composer import ComposerError

YAML_BYTES = 2**20  # PyYAML reads 100 KB in a second
JSON_BYTES = 2**24
MAX_DEPTH = 100


def open_regular(path: Path | str) -> BinaryIO:
    """Open a file for reading. A pipe or a device, which could block or never end, is not read.

    Raises:
        OSError: the file cannot be opened, or is no regular file.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)  # opening a pipe would block
    descriptor = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path | str, most: int) -> bytes:
    """Read a regular file of at most `most` bytes.

    Raises:
        OSError: the file cannot be read, is no regular file, or is larger.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, and at most {most:,} are read", str(path))
        return file.read(size)


def parse_yaml(data: bytes | str) -> Any:
    """Parse YAML to plain values.

    Raises:
        ValueError: it is no YAML, has aliases (`*name`), which can make a small file huge, is nested deeply, or has a key twice.
    """
    try:
        return yaml.load(data, _NoAliases)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error).replace("\n", " ")) from error


class _NoAliases(yaml.SafeLoader):  # type: ignore[misc]
    """`yaml.SafeLoader` without aliases, deep nesting, and keys that a mapping has twice."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise ComposerError(
                None, None, "it has an alias (*name), which is not allowed", self.peek_event().start_mark
            )
        if self.depth == MAX_DEPTH:
            raise ComposerError(None, None, f"it is nested more than {MAX_DEPTH} deep", self.peek_event().start_mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        keys = Counter(key.value for key, _ in node.value if isinstance(key.value, str))
        for key, count in keys.most_common(1):
            if count > 1:
                raise ComposerError(None, None, f"a mapping has the key {key!r:.80} twice", node.start_mark)
        return node


def parse_json(data: bytes | str) -> Any:
    """Parse JSON to plain values.

    Raises:
        ValueError: it is no JSON, or is nested deeply.
    """
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep") from None
    level = [value]
    for _ in range(MAX_DEPTH):
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        if not inner:
            return value
        level = [item for items in inner for item in items]
    raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
