"""The users' modules that one configuration has loaded: which they are, and how to load them again.

    renewed ──▶ nothing has changed: the modules stay, and keep what they hold in memory
            └─▶ a source has changed: all of them leave `sys.modules`, and are imported again as they are asked for
                    └─▶ that fails: those of before are put back, as if nothing had been tried

Theirs are the modules beside gateway.yaml and beside the files that it names, with everything
below. What is installed (site-packages, the standard library) is not loaded again. All at
once, because nobody knows which of them use which. A call that runs meanwhile keeps its
functions and their globals.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Final

from roundgate.files import Stamp, stamp

_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
_STANDARD: Final = Path(sysconfig.get_path("stdlib"))


class Modules:
    """`sys.modules`, as far as it is the users' and was loaded for this configuration."""

    def __init__(self) -> None:
        self._named: dict[str, ModuleType] = {}
        """Those that the configuration names."""
        self._stamps: dict[Path, Stamp] = {}
        self._roots: set[Path] = set()
        self._before: frozenset[str] | None = None
        """Modules that were there before any of ours."""

    @property
    def directories(self) -> frozenset[Path]:
        """Where sources are, and could be added."""
        return frozenset(self._roots | {file.parent for file in self._stamps})

    def files(self) -> frozenset[Path]:
        """The sources that are loaded now, also those of modules that functions have
        imported while they ran."""
        self._note(0)
        return frozenset(self._stamps)

    def changed(self) -> frozenset[Path]:
        """Those of them that are no more what was loaded."""
        return frozenset(file for file in self.files() if stamp(file) != self._stamps[file])

    def named(self, name: str, base: Path) -> ModuleType:
        """Import a module by its dotted name; those in the directory `base` can be found.

        Raises whatever the module raises.
        """
        began_ns = self._begin(base)
        _prepend_path(base)
        module = self._named[name] = importlib.import_module(name)
        if file := module.__dict__.get("__file__"):
            self._roots.add(Path(file).resolve().parent)
        self._note(began_ns)
        return module

    def of_file(self, file: Path, name: str) -> ModuleType:
        """Import a Python file under a name, unless it is loaded and has not changed.

        Raises:
            FileNotFoundError: there is no such file; and whatever the module raises.
        """
        loaded = self._named.get(name)
        if loaded is not None and loaded.__file__ == str(file):
            return loaded
        began_ns = self._begin(file.parent)
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None or not file.is_file():
            raise FileNotFoundError(f"there is no Python file {file.name} in {file.parent}")
        _prepend_path(file.parent)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = (
            module  # before it runs: dataclasses and pickling look a module up by name
        )
        spec.loader.exec_module(module)
        self._named[name] = module
        self._note(began_ns)
        return module

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Within the block what has changed is imported anew. If the block raises,
        all is again as it was."""
        importlib.invalidate_caches()  # a finder may remember a directory as it was
        changed, kept = self.changed(), dict(self._ours())
        named, stamps = self._named, self._stamps
        self._named, self._stamps = dict(named), dict(stamps)
        if changed:
            self._named, self._stamps = {}, {}
            for name in kept:
                del sys.modules[name]
            for file in changed:
                _forget_bytecode(file)
        try:
            yield
        except BaseException:
            for name in dict(self._ours()):
                del sys.modules[name]
            sys.modules.update(kept)
            self._named, self._stamps = named, stamps
            raise

    def _begin(self, root: Path) -> int:
        if self._before is None:
            self._before = frozenset(sys.modules)
        self._roots |= {root, root.resolve()}  # a module's __file__ may have either
        return time.time_ns()

    def _note(self, began_ns: int) -> None:
        """Remember how new sources are. One that was written since the import began may have been
        read before that: it counts as changed, and is read again."""
        for module in self._named.values():
            self._note_file(module, began_ns)
        for _, module in self._ours():
            self._note_file(module, began_ns)

    def _note_file(self, module: ModuleType, began_ns: int) -> None:
        file = _source(module)
        if file is not None and file not in self._stamps:
            found = stamp(file)
            self._stamps[file] = (
                None if began_ns and found is not None and found[0] > began_ns else found
            )

    def _ours(self) -> Iterator[tuple[str, ModuleType]]:
        """Those in `sys.modules` that are the users'."""
        before = self._before or frozenset()
        for name, module in list(sys.modules.items()):
            if name in self._named:
                if module is self._named[name] and _source(module) is not None:
                    yield name, module
            elif name not in before and name.partition(".")[0] != "roundgate":
                file = _source(module)
                if file is not None and any(file.is_relative_to(root) for root in self._roots):
                    yield name, module


def _source(module: ModuleType) -> Path | None:
    """The Python file of a module, if it is not of an installed one; some things in
    `sys.modules` are no modules."""
    file = getattr(module, "__dict__", {}).get("__file__")
    if not isinstance(file, str) or not file.endswith(".py"):
        return None
    path = Path(file)
    return None if _INSTALLED.intersection(path.parts) or path.is_relative_to(_STANDARD) else path


def _forget_bytecode(file: Path) -> None:
    """Python believes bytecode whose source has the same size and was
    written in the same second."""
    with suppress(OSError, NotImplementedError):
        Path(importlib.util.cache_from_source(str(file))).unlink()


def _prepend_path(directory: Path) -> None:
    """Let a tool module import its neighbours, as a script could."""
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
