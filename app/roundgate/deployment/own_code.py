"""The modules of roundgate that a function can import, which are all that its zip gets of roundgate.

The search begins with the function's entry, the kinds of back end in gateway.yaml, and whatever the
packed files and packages import of roundgate. It follows every import, wherever it stands in a
module, except those for type checkers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

from roundgate.backends import BackendConfig, kind_of
from roundgate.deployment import places
from roundgate.deployment.contents import imported

_NAME: Final = places.PACKAGE.name


def reachable(modules: Iterable[str]) -> list[Path]:
    """Return the files of roundgate that importing these modules can load, relative to the folder
    of roundgate. Modules of other packages are skipped."""
    found, queue = set[Path](), list(modules)
    while queue:
        module = queue.pop()
        file = _file(module)
        if file is None or file in found:
            continue
        found.add(file)
        queue.extend((module.rpartition(".")[0], *_imports(file)))
    return sorted(file.relative_to(places.PACKAGE) for file in found)


def modules_of_kind(backend: BackendConfig) -> Iterator[str]:
    """Yield the modules that define a back end's settings and make the back end."""
    yield type(backend).__module__
    yield kind_of(backend).factory().__module__


def imports_of_packed(folder: Path) -> Iterator[str]:
    """Yield what the Python files below a folder import of roundgate."""
    for file in folder.rglob("*.py"):
        if _NAME.encode() in file.read_bytes():
            yield from _imports(file)


def _file(module: str) -> Path | None:
    """Return the file of a module of roundgate; `None` for any other name."""
    first, *rest = module.split(".")
    if first != _NAME:
        return None
    path = places.PACKAGE.joinpath(*rest)
    files = (path / "__init__.py", path.with_suffix(".py"))
    return next((file for file in files if file.is_file()), None)


@cache
def _imports(file: Path) -> frozenset[str]:
    """Return the modules that a file may import when it runs; of the names that `from` takes, each
    may be one."""
    imports = [one for one in imported(file) if not one.is_for_types]
    members = (f"{one.name}.{member}" for one in imports for member in one.members)
    return frozenset((*(one.name for one in imports), *members))
