"""The user modules that one configuration has loaded, and their reload.

    renewed ──▶ no source has changed: the modules stay, with their state in memory
            └─▶ a source has changed: all of them leave `sys.modules`, and are imported again on demand
                    └─▶ that fails: the earlier modules are put back

User modules are those beside gateway.yaml and beside the files that it names, including subfolders.
Installed packages and the standard library are never reloaded. User modules are reloaded together,
because their dependencies are unknown. A running call keeps its functions and their globals.

A file is one module in a process, however it is imported. If a test or another module has imported
`tools`, `path: tools.py` serves the same module, and later imports get it too.
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
from weakref import WeakKeyDictionary

from roundgate.settings.files import Stamp, stamp

_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
_STANDARD: Final = Path(sysconfig.get_path("stdlib"))
_EXECUTED: Final[WeakKeyDictionary[ModuleType, Stamp]] = WeakKeyDictionary()
"""The state of each module's file when a `Modules`, of any configuration, executed it."""


class Modules:
    """The user modules in `sys.modules` that were loaded for one configuration."""

    def __init__(self) -> None:
        self._named: dict[str, ModuleType] = {}
        """The modules that the configuration names."""
        self._stamps: dict[Path, Stamp] = {}
        self._roots: set[Path] = set()
        self._before: frozenset[str] | None = None
        """The names of the modules that were loaded before any user module."""

    @property
    def directories(self) -> frozenset[Path]:
        """The directories of the sources, in which new modules may appear."""
        return frozenset(self._roots | {file.parent for file in self._stamps})

    def files(self) -> frozenset[Path]:
        """Return the loaded sources, including modules that running functions have imported."""
        self._note(0)
        return frozenset(self._stamps)

    def changed(self) -> frozenset[Path]:
        return frozenset(file for file in self.files() if stamp(file) != self._stamps[file])

    def named(self, name: str, base: Path) -> ModuleType:
        """Import a module by its dotted name, also from the directory `base`. The module's
        exceptions propagate."""
        began_ns = self._begin(base)
        prepend_path(base)
        module = self._named[name] = importlib.import_module(name)
        if file := module.__dict__.get("__file__"):
            self._roots.add(Path(file).resolve().parent)
        self._note(began_ns)
        return module

    def of_file(self, file: Path, name: str) -> ModuleType:
        """Return the module of a Python file. Execute the file as module `name` unless it is
        already imported.

        Raises:
            FileNotFoundError: the file does not exist. The module's exceptions propagate.
        """
        loaded = self._named.get(name)
        if loaded is not None and loaded.__file__ == str(file):
            return loaded
        began_ns = self._begin(file.parent)
        if not file.is_file():
            raise FileNotFoundError(f"there is no Python file {file.name} in {file.parent}")
        prepend_path(file.parent)
        module = _imported(file) or _execute(file, name)
        self._named[name] = sys.modules[name] = module
        self._note(began_ns)
        return module

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Unload all user modules before the block if a source has changed, so that it imports them
        again. Restore them if the block raises."""
        importlib.invalidate_caches()  # a finder may have cached a directory's earlier content
        changed, loaded = self.changed(), dict(self._ours())
        named, stamps = self._named, self._stamps
        self._named, self._stamps = dict(named), dict(stamps)
        if changed:
            self._named, self._stamps = {}, {}
            for name in loaded:
                del sys.modules[name]
            for file in changed:
                _forget_bytecode(file)
        try:
            yield
        except BaseException:
            for name in dict(self._ours()):
                del sys.modules[name]
            sys.modules.update(loaded)
            self._named, self._stamps = named, stamps
            raise

    def _begin(self, root: Path) -> int:
        if self._before is None:
            self._before = frozenset(sys.modules)
        self._roots |= {root, root.resolve()}  # a module's __file__ may have either
        return time.time_ns()

    def _note(self, began_ns: int) -> None:
        """Record the state of new sources. A source written after the import began, at `began_ns`,
        counts as changed, because its earlier state may have been read; 0 skips this check."""
        for module in self._named.values():
            self._note_file(module, began_ns)
        for _, module in self._ours():
            self._note_file(module, began_ns)

    def _note_file(self, module: ModuleType, began_ns: int) -> None:
        file = _source(module)
        if file is not None and file not in self._stamps:
            file_stamp = stamp(file)
            self._stamps[file] = (
                None
                if began_ns and file_stamp is not None and file_stamp[0] > began_ns
                else file_stamp
            )

    def _ours(self) -> Iterator[tuple[str, ModuleType]]:
        before = self._before or frozenset()
        named = {id(module) for module in self._named.values()}
        for name, module in list(sys.modules.items()):
            if id(module) in named:  # yielded under each of its names
                if _source(module) is not None:
                    yield name, module
            elif (
                name not in self._named
                and name not in before
                and name.partition(".")[0] != "roundgate"
            ):
                file = _source(module)
                if file is not None and any(file.is_relative_to(root) for root in self._roots):
                    yield name, module


def _source(module: ModuleType) -> Path | None:
    """Return the Python file of a module; `None` if it has none or is not the user's."""
    file = getattr(module, "__dict__", {}).get("__file__")
    if not isinstance(file, str) or not file.endswith(".py"):
        return None
    path = Path(file)
    return None if is_installed(path) or is_standard(path) else path


def is_installed(file: Path) -> bool:
    return not _INSTALLED.isdisjoint(file.parts)


def is_standard(file: Path) -> bool:
    return file.is_relative_to(_STANDARD)


def _imported(file: Path) -> ModuleType | None:
    """Return the module of this file, under any name; `None` if the file is not imported or has
    changed since `_execute`. Prefer a module made by `import` to a module made by `_execute`."""
    ours: ModuleType | None = None
    for name, module in list(sys.modules.items()):
        source = getattr(module, "__dict__", {}).get("__file__")
        if not isinstance(source, str) or not source.endswith(file.name) or name == "__main__":
            continue
        if Path(source).resolve() != file.resolve():
            continue
        if module not in _EXECUTED:
            return module
        if _EXECUTED[module] == stamp(file):
            ours = module
    return ours


def _execute(file: Path, name: str) -> ModuleType:
    """Execute a file as the module `name`, and also under its stem if `import STEM` would find this
    file. Raise FileNotFoundError if it is not a Python file; the module's exceptions propagate."""
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(f"{file.name} in {file.parent} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    _EXECUTED[module] = stamp(file)
    names = [name, *([file.stem] if _is_found(file) else [])]
    # before executing: dataclasses and pickling look modules up by name
    sys.modules.update(dict.fromkeys(names, module))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        for module_name in names:
            sys.modules.pop(module_name, None)
        raise
    return module


def _is_found(file: Path) -> bool:
    """Return whether `import STEM` finds this file rather than another module of that name."""
    module = sys.modules.get(file.stem)
    if module is not None:  # an earlier state of the file, which will be replaced
        return module in _EXECUTED and Path(str(module.__file__)).resolve() == file.resolve()
    if "." in file.stem:
        return False
    try:
        spec = importlib.util.find_spec(file.stem)
    except (ImportError, ValueError):
        return False
    return (
        spec is not None
        and spec.origin is not None
        and Path(spec.origin).resolve() == file.resolve()
    )


def _forget_bytecode(file: Path) -> None:
    """Delete cached bytecode. Python would use it if the source's size and the second of its last
    write are unchanged."""
    with suppress(OSError, NotImplementedError):
        Path(importlib.util.cache_from_source(str(file))).unlink()


def prepend_path(directory: Path) -> None:
    """Add a directory to `sys.path`, so a module there can import its neighbours, as a script
    can."""
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
