"""Faces of packages: what a package offers is imported when somebody first uses it, not when the package is.

A cold start then costs what it uses (docs/decisions). Type checkers read the same names under `TYPE_CHECKING`, and a
test holds both lists to each other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeAlias

GetAttribute: TypeAlias = Callable[[str], Any]


def face(package: str, modules: Mapping[str, str]) -> tuple[GetAttribute, list[str]]:
    """A package's `__getattr__` (PEP 562) and `__all__`.

    `modules` maps each module, named without the package's own name in front unless it is elsewhere (`.journal`), to
    the names that it offers, separated by blanks.
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name], package), name)
        setattr(sys.modules[package], name, value)  # the next look-up does not come here
        return value

    return get, sorted(homes)
