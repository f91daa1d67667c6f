"""Faces of packages: what a package offers is imported when somebody first uses it, not when the
package is; and modules of others that are imported so.

A cold start then costs what it uses. Type checkers read the same names under `TYPE_CHECKING`; a
test holds both lists to each other, and those outside a package to its face.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeAlias

GetAttribute: TypeAlias = Callable[[str], Any]


def face(
    package: str, names: Mapping[str, str], *, modules: str = ""
) -> tuple[GetAttribute, list[str]]:
    """A package's `__getattr__` (PEP 562) and `__all__`.

    `names` maps each module (`.journal`, or a full name) to what it offers, separated by blanks;
    `modules` are those that are offered as a whole. No name may be that of another module of the
    package, which would take its place.
    """
    homes = {name: module for module, offered in names.items() for name in offered.split()}
    whole = modules.split()

    def get(name: str) -> Any:
        if name in whole:
            return import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name], package), name)
        setattr(sys.modules[package], name, value)  # the next look-up does not come here
        return value

    return get, sorted([*homes, *whole])


class LazyModule:
    """Stands for a module, which is imported when one of its members is first looked at."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, member: str) -> Any:
        value = getattr(import_module(self._name), member)
        setattr(self, member, value)  # the next look-up does not come here
        return value
