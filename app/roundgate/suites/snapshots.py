"""Results as they were when `--update` was last said: `NAME.snapshots.yaml` beside the
suite, to be committed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from roundgate.errors import ConfigError, Problem
from roundgate.settings import yaml_file
from roundgate.suites.patterns import Difference, exact

_HEAD: Final = (
    "# Written by `roundgate test --update`; compared whole. Read the difference "
    "before you commit it.\n"
)


class Snapshots:
    """The stored values of one suite, by name."""

    def __init__(self, path: Path, stored: dict[str, Any], *, updates: bool) -> None:
        self._path = path
        self._stored = stored
        self._updates = updates
        self._changed = False
        self._used: set[str] = set()

    @classmethod
    def beside(cls, suite: Path, *, updates: bool = False) -> Snapshots:
        """Those of a suite.

        Raises:
            ConfigError: the file cannot be read.
        """
        path = suite.with_suffix(".snapshots.yaml")
        if not path.exists():
            return cls(path, {}, updates=updates)
        stored = yaml_file.read(path).value
        if not isinstance(stored, dict):
            remedy = "run `roundgate test --update`"
            raise ConfigError([Problem(str(path), "(file)", "is no mapping", remedy)])
        return cls(path, stored, updates=updates)

    def compare(self, name: str, value: Any) -> list[Difference]:
        """Where a value differs from what is stored; with `updates`, it is stored instead."""
        self._used.add(name)
        if self._updates:
            if name not in self._stored or exact(self._stored[name], value, "") != []:
                self._stored[name] = value
                self._changed = True
            return []
        if name not in self._stored:
            stored = f"a snapshot {name!r} in {self._path.name}; --update writes it"
            return [Difference("snapshot", stored, "(nothing)")]
        return exact(self._stored[name], value, "snapshot")

    @property
    def unused(self) -> list[str]:
        """Names that are stored and that no step has compared."""
        return sorted(self._stored.keys() - self._used)

    def save(self, *, drop_unused: bool) -> int:
        """Write what has changed, all of it or nothing; returns how many values are stored."""
        if self._updates and drop_unused and self.unused:
            self._stored = {name: self._stored[name] for name in self._stored if name in self._used}
            self._changed = True
        if self._updates and self._changed:
            import yaml

            text = yaml.safe_dump(
                dict(sorted(self._stored.items())), allow_unicode=True, sort_keys=True, width=100
            )
            written = self._path.with_suffix(".tmp")
            written.write_text(_HEAD + text, encoding="utf-8")
            written.replace(self._path)
        return len(self._stored)
