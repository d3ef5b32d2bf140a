"""Environments in installed packages that nobody has imported: their names, read from files, for messages and ids."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

#: Files that are larger than this are no lists of environments.
MAX_BYTES = 500_000
_REGISTERS = ("register(", "entry_point")
_ID = re.compile(r"""["']((?:[\w.-]+/)?[\w.-]+-v\d+)["']""")


def packages_using(library: str) -> list[str]:
    """Return the import names of installed packages that require `library`, sorted."""
    found = set()
    for package, distributions in packages_distributions().items():
        for distribution in distributions:
            try:
                needed = requires(distribution) or []
            except PackageNotFoundError:
                continue
            if any(re.match(rf"{library}\b", requirement, re.IGNORECASE) for requirement in needed):
                found.add(package)
    return sorted(package for package in found if package.isidentifier())


def registered_ids(package: str) -> list[str] | None:
    """Return the Gymnasium ids that the files of a package contain as texts; None if it does not register any environment.

    Ids that a program puts together are not found.
    """
    ids: dict[str, None] = {}
    registers = False
    for file in _files(package):
        text = file.read_text(encoding="utf-8", errors="replace") if file.stat().st_size <= MAX_BYTES else ""
        if all(mark in text for mark in _REGISTERS):
            registers = True
            ids |= dict.fromkeys(_ID.findall(text))
    return list(ids) if registers else None


def versioned_modules(package: str) -> list[str]:
    """Return the modules of a package whose names end with a version, such as "mpe2.simple_spread_v3"."""
    found: dict[str, None] = {}
    for folder in _folders(package):
        for file in sorted(folder.rglob("*_v[0-9]*")):
            name = file.name.removesuffix(".py")
            if re.fullmatch(r"\w+_v\d+", name) and (file.suffix == ".py" or (file / "__init__.py").is_file()):
                parents = file.relative_to(folder).parts[:-1]
                if all(part.isidentifier() and not re.search(r"_v\d+$", part) for part in parents):
                    found[".".join([package, *parents, name])] = None
    return list(found)


def _files(package: str) -> Iterator[Path]:
    for folder in _folders(package):
        yield from sorted(folder.rglob("*.py"))


def _folders(package: str) -> list[Path]:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return []
    return [Path(each) for each in (spec.submodule_search_locations or ())] if spec else []
