"""The version of a handler: a digest of the code that decides its path.

A replay by the same version must take the path of the earlier run (`replay.Run.declare`), so the
version changes with any code that the handler may call: its function with its constants and
defaults, the functions that it closes over, the sources of its module and of the user modules to
which these refer, and the versions of the installed packages to which they refer. Other values that
it closes over are state, such as a counter or a time. Processes with the same files have the same
versions.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from roundgate.backends.modules import is_installed, is_standard
from roundgate.json import digest
from roundgate.replay import digest_of_value
from roundgate.settings.files import Stamp, stamp

_MAX_MODULES: Final = 500
"""The maximum number of modules whose sources a version covers."""
_CHARS: Final = 11
"""The length of a version in characters."""


class Versions:
    """The versions of the handlers of one load."""

    def __init__(self) -> None:
        self._of_modules: dict[str, str] = {}

    def of(self, function: Callable[..., Any]) -> str:
        return digest(self._parts(function, set()))[:_CHARS]

    def _parts(self, function: Callable[..., Any], seen: set[int]) -> list[Any]:
        """Return the code of a function and of the functions that it closes over; of another object
        the module of its class. `seen` has the ids of those that are included."""
        seen.add(id(function))
        inner = inspect.unwrap(function)
        code, name = getattr(inner, "__code__", None), getattr(inner, "__module__", None) or ""
        if name not in self._of_modules:
            self._of_modules[name] = _digest_of_module(name)
        held = [
            self._parts(value if isinstance(value, (FunctionType, type)) else type(value), seen)
            for value in _closed_over(function)
            if id(value) not in seen
        ]
        own = [] if not isinstance(code, CodeType) else [_parts_of(code), _defaults_of(inner)]
        return [self._of_modules[name], own, held]


def _defaults_of(function: Any) -> list[str]:
    """Return digests of the defaults that are constants. A float may be a time."""
    by_name = getattr(function, "__kwdefaults__", None) or {}
    defaults = [*(getattr(function, "__defaults__", None) or ()), *by_name.values()]
    return [digest_of_value(value) for value in defaults if _is_constant(value)]


def _is_constant(value: Any) -> bool:
    if isinstance(value, (tuple, frozenset)):
        return all(map(_is_constant, value))
    return value is None or isinstance(value, (str, bytes, int, Enum))


def _parts_of(code: CodeType) -> list[Any]:
    """Return the instructions and constants of a function, and of the functions defined in it."""
    constants = [
        _parts_of(constant) if isinstance(constant, CodeType) else digest_of_value(constant)
        for constant in code.co_consts
    ]
    return [code.co_code.hex(), list(code.co_names), constants]


def _closed_over(function: Any) -> Iterator[Any]:
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):  # the cell is empty
            yield cell.cell_contents


def _digest_of_module(name: str) -> str:
    """Return a digest of the sources of a module and of the user modules that it refers to, and of
    the versions of installed packages that they refer to."""
    pending, found = [name], dict[str, str]()
    while pending and len(found) < _MAX_MODULES:
        module = sys.modules.get(current := pending.pop())
        file = None if module is None or current in found else _file_of(module)
        if module is None or file is None or is_standard(file):
            continue
        top = current.partition(".")[0]
        if top == "roundgate":
            continue
        found[current] = _digest_of_file(file, stamp(file))
        if not is_installed(file) or top == name.partition(".")[0]:
            pending += sorted({*_referred(module)} - found.keys(), reverse=True)
        else:
            found[f"{top} "] = _installed(file, top)
    return digest(sorted(found.items()))


def _file_of(module: ModuleType) -> Path | None:
    """Return the Python file of a module, or its byte code in a package for AWS Lambda."""
    file = getattr(module, "__dict__", {}).get("__file__")
    return Path(file) if isinstance(file, str) and file.endswith((".py", ".pyc")) else None


def _referred(module: ModuleType) -> Iterator[str]:
    """Yield the names of the modules from which a module has imported something."""
    for value in list(vars(module).values()):
        name = value.__name__ if isinstance(value, ModuleType) else _module_name(value)
        if isinstance(name, str):
            yield name


def _module_name(value: Any) -> Any:
    try:
        return getattr(value, "__module__", None)
    except Exception:  # an object that computes its attributes
        return None


@lru_cache(maxsize=2048)
def _digest_of_file(file: Path, state: Stamp) -> str:
    """Return a digest of a file in a state; empty if it is not readable."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""


@lru_cache(maxsize=512)
def _installed(file: Path, top: str) -> str:
    """Return the name and version of the distribution that has a module, if it has the module's
    name."""
    place = next((parent for parent in file.parents if parent.name.endswith("-packages")), None)
    found = [] if place is None else place.glob(f"{top}-*.dist-info")
    return " ".join(sorted(one.name for one in found))
