"""Nothing of a library is patched, remade or taken by a private name.

The tests read the product and what stands beside it with `ast`. `replay/asyncio_internals.py` is the one
module that may use what asyncio does not document.
"""

from __future__ import annotations

import ast
import pydoc
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
FOLDERS: Final = ("app", "infra", "scripts", "bench", "examples")
OURS: Final = frozenset({"roundgate", "tests", "bench", "infra", "examples"})
ASYNCIO_INTERNALS: Final = "app/roundgate/replay/asyncio_internals.py"
DOCUMENTED: Final = frozenset({"os._exit", "sys._current_frames"})
"""Functions that the standard library documents although their names begin with an underscore."""
DOCUMENTED_METHODS: Final = frozenset({"_asdict", "_fields", "_make", "_replace"})
"""Methods of named tuples."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


class Reader(ast.NodeVisitor):
    """Collects the places of one module that use a library's private parts or change it."""

    def __init__(self, path: str, source: str) -> None:
        self.path = path
        self.found: list[str] = []
        self._libraries: dict[str, str] = {}
        """The dotted name in its library of each name that the module imports."""
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._note_import(node)
        self.visit(tree)

    def _note_import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            names = [
                (one.name, one.asname or one.name.partition(".")[0], one) for one in node.names
            ]
        elif node.level == 0:
            names = [
                (f"{node.module}.{one.name}", one.asname or one.name, one) for one in node.names
            ]
        else:
            return
        for dotted, bound, one in names:
            if not self._is_library(dotted):
                continue
            if any(map(is_private, dotted.split("."))):
                self._report(f"imports {dotted}")
            is_bound_whole = isinstance(node, ast.ImportFrom) or one.asname
            self._libraries[bound] = dotted if is_bound_whole else bound

    def _is_library(self, dotted: str) -> bool:
        top = dotted.partition(".")[0]
        if top in OURS or top == "__future__":
            return False
        if not self.path.startswith(("examples/", "bench/")):
            return True
        folders = [ROOT / folder for folder in Path(self.path).parents]
        return not any((f / f"{top}.py").exists() or (f / top).is_dir() for f in folders)

    def _report(self, fact: str) -> None:
        self.found.append(f"{self.path}: {fact}")

    def _dotted(self, node: ast.AST) -> str | None:
        """Return a library's dotted name for an expression such as `asyncio.events.new_event_loop`."""
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self._libraries:
            return None
        return ".".join([self._libraries[node.id], *reversed(names)])

    def visit_Attribute(self, node: ast.Attribute) -> None:
        dotted = self._dotted(node)
        if dotted and is_private(node.attr) and dotted not in DOCUMENTED:
            self._report(f"uses {dotted}")
        if dotted and not isinstance(node.ctx, ast.Load):
            self._report(f"changes {dotted}")
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        bases = [base for base in map(self._dotted, node.bases) if base]
        methods = [item.name for item in node.body if isinstance(item, ast.FunctionDef)]
        for base, name in product(bases, filter(is_private, methods)):
            if hasattr(pydoc.locate(base), name):
                self._report(f"overrides {base}.{name}")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func.id if isinstance(node.func, ast.Name) else self._dotted(node.func)
        owner = self._dotted(node.args[0]) if node.args else None
        texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
        text = next((text for text in texts if isinstance(text, str)), "")
        if called and called.removeprefix("builtins.") in ("exec", "eval", "compile"):
            self._report(f"calls {called}")
        elif called in ("setattr", "delattr") and owner:
            self._report(f"changes {owner} by {called}")
        elif called == "getattr" and owner and is_private(text):
            self._report(f"uses {owner}.{text}")
        elif called == "importlib.import_module" and any(map(is_private, text.split("."))):
            self._report(f"imports {text}")
        self.generic_visit(node)


@cache
def modules() -> dict[str, str]:
    """Return the source of each Python file by its path."""
    paths = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")))
    return {
        str(path.relative_to(ROOT)): path.read_text()
        for path in paths
        if path.is_file() and (path.suffix == ".py" or is_python_script(path))
    }


def is_python_script(path: Path) -> bool:
    with path.open("rb") as file:
        return not path.suffix and file.read(64).startswith(b"#!/usr/bin/env python")


def test_no_library_is_changed_or_used_by_a_private_name() -> None:
    found = {
        place
        for path, source in modules().items()
        if path != ASYNCIO_INTERNALS
        for place in Reader(path, source).found
    }
    assert sorted(found) == []


def defined_names(source: str) -> Iterator[str]:
    """Yield the private names that a module gives to its own attributes, functions and classes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.attr if isinstance(node, ast.Attribute) else node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value  # __slots__


def is_own(node: ast.expr) -> bool:
    """Return whether an object is the method's own: `self`, `cls` or `super()`."""
    node = node.func if isinstance(node, ast.Call) else node
    return isinstance(node, ast.Name) and node.id in ("self", "cls", "super")


def test_a_private_attribute_that_is_read_is_our_own() -> None:
    by_folder: dict[Path, set[str]] = defaultdict(set)
    for path, source in modules().items():
        by_folder[Path(path).parent].update(defined_names(source))
    everywhere = set().union(*by_folder.values())
    found = {
        f"{path}: reads {ast.unparse(node)}"
        for path, source in modules().items()
        if path != ASYNCIO_INTERNALS
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and is_private(node.attr)
        if node.attr not in (everywhere if is_own(node.value) else by_folder[Path(path).parent])
        if node.attr not in DOCUMENTED_METHODS and ast.unparse(node) not in DOCUMENTED
    }
    assert sorted(found) == []


@pytest.mark.parametrize(
    ("source", "fact"),
    [
        ("from httpx._models import Response", "imports httpx._models.Response"),
        ("from asyncio import _get_running_loop", "imports asyncio._get_running_loop"),
        ("import uvicorn.protocols._x", "imports uvicorn.protocols._x"),
        ("import asyncio as a\na.events._x()", "uses asyncio.events._x"),
        ("import re\nre.compile = print", "changes re.compile"),
        ("from pydantic import BaseModel\nBaseModel.x = 1", "changes pydantic.BaseModel.x"),
        ("from pydantic import BaseModel\ndel BaseModel.x", "changes pydantic.BaseModel.x"),
        ("import re\nsetattr(re, name, 1)", "changes re by setattr"),
        ("import sys\ngetattr(sys, '_git')", "uses sys._git"),
        (
            "from logging import Handler\nclass A(Handler):\n    def _at_fork_reinit(self): ...",
            "overrides logging.Handler._at_fork_reinit",
        ),
        ("exec('1')", "calls exec"),
        ("compile('1', '', 'eval')", "calls compile"),
        ("import builtins\nbuiltins.eval('1')", "calls builtins.eval"),
        ("import importlib\nimportlib.import_module('httpx._x')", "imports httpx._x"),
    ],
)
def test_what_the_reader_finds(source: str, fact: str) -> None:
    assert f"m.py: {fact}" in Reader("m.py", source).found


@pytest.mark.parametrize(
    "source",
    [
        "import re\nre.compile('x')",
        "import os\nos._exit(1)",
        "from roundgate.aio import _x",
        "import os\nos.environ['A'] = 'b'",
        "class A:\n    def f(self):\n        self._x = 1",
    ],
)
def test_what_the_reader_leaves_alone(source: str) -> None:
    assert Reader("m.py", source).found == []
