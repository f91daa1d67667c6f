"""The Python sources of the repository. A process parses and walks each of them once."""

from __future__ import annotations

import ast
import gc
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

Node = TypeVar("Node", bound=ast.AST)


@dataclass(frozen=True)
class Source:
    """One file."""

    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The tree of the file.

        Garbage collection would visit the trees of all files again and again. On Python 3.11 a
        finalizer that runs meanwhile makes the parser fail.
        """
        gc.disable()
        try:
            return ast.parse(self.text)
        finally:
            gc.freeze()
            gc.enable()

    @cached_property
    def _nodes(self) -> defaultdict[type[ast.AST], list[Any]]:
        found = defaultdict(list)
        for node in ast.walk(self.tree):
            found[type(node)].append(node)
        return found

    def nodes(self, kind: type[Node]) -> Sequence[Node]:
        """Return all nodes of exactly this class, the outermost first."""
        return self._nodes[kind]

    @property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        """All functions, in the order of their lines."""
        found = self._nodes[ast.FunctionDef] + self._nodes[ast.AsyncFunctionDef]
        return sorted(found, key=lambda function: function.lineno)


@cache
def source(path: Path) -> Source:
    """Return a file."""
    return Source(path, path.read_text("utf-8"))


@cache
def sources(folder: Path) -> tuple[Source, ...]:
    """Return all Python files in a folder and the folders below it, sorted by path."""
    return tuple(source(path) for path in sorted(folder.rglob("*.py")))
