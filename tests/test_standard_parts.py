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

from tests.support.documents import ROOT
from tests.support.sources import Source, source

FOLDERS: Final = ("app", "infra", "scripts", "bench", "examples")
OURS: Final = frozenset({"roundgate", "tests", "bench", "infra", "examples"})
ASYNCIO_INTERNALS: Final = "app/roundgate/replay/asyncio_internals.py"
DOCUMENTED: Final = frozenset({"os._exit", "sys._current_frames"})
"""Functions that the standard library documents although their names begin with an underscore."""
DOCUMENTED_METHODS: Final = frozenset({"_asdict", "_fields", "_make", "_replace"})
"""Methods of named tuples."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


class Reader:
    """Collects the places of one module that use a library's private parts or change it."""

    def __init__(self, path: str, module: Source) -> None:
        self.path = path
        self.found: list[str] = []
        self._libraries: dict[str, str] = {}
        """The dotted name in its library of each name that the module imports."""
        for whole in module.nodes(ast.Import):
            self._note_import(whole)
        for part in module.nodes(ast.ImportFrom):
            self._note_import(part)
        for attribute in module.nodes(ast.Attribute):
            self._note_attribute(attribute)
        for cls in module.nodes(ast.ClassDef):
            self._note_class(cls)
        for call in module.nodes(ast.Call):
            self._note_call(call)

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

    def _note_attribute(self, node: ast.Attribute) -> None:
        dotted = self._dotted(node)
        if dotted and is_private(node.attr) and dotted not in DOCUMENTED:
            self._report(f"uses {dotted}")
        if dotted and not isinstance(node.ctx, ast.Load):
            self._report(f"changes {dotted}")

    def _note_class(self, node: ast.ClassDef) -> None:
        bases = [base for base in map(self._dotted, node.bases) if base]
        methods = [item.name for item in node.body if isinstance(item, ast.FunctionDef)]
        for base, name in product(bases, filter(is_private, methods)):
            if hasattr(pydoc.locate(base), name):
                self._report(f"overrides {base}.{name}")

    def _note_call(self, node: ast.Call) -> None:
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


@cache
def modules() -> dict[str, Source]:
    """Return each Python file by its path."""
    paths = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")))
    return {
        str(path.relative_to(ROOT)): source(path)
        for path in paths
        if path.is_file() and (path.suffix == ".py" or is_python_script(path))
    }


def is_python_script(path: Path) -> bool:
    with path.open("rb") as file:
        return not path.suffix and file.read(64).startswith(b"#!/usr/bin/env python")


def test_no_library_is_changed_or_used_by_a_private_name() -> None:
    found = {
        place
        for path, module in modules().items()
        if path != ASYNCIO_INTERNALS
        for place in Reader(path, module).found
    }
    assert sorted(found) == []


def defined_names(module: Source) -> Iterator[str]:
    """Yield the names that a module gives to its own attributes, functions and classes."""
    yield from (one.name for one in module.functions)
    yield from (one.name for one in module.nodes(ast.ClassDef))
    yield from (one.attr for one in module.nodes(ast.Attribute) if isinstance(one.ctx, ast.Store))
    yield from (one.id for one in module.nodes(ast.Name) if isinstance(one.ctx, ast.Store))
    texts = (one.value for one in module.nodes(ast.Constant))  # __slots__
    yield from (text for text in texts if isinstance(text, str))


def is_own(node: ast.expr) -> bool:
    """Return whether an object is the method's own: `self`, `cls` or `super()`."""
    node = node.func if isinstance(node, ast.Call) else node
    return isinstance(node, ast.Name) and node.id in ("self", "cls", "super")


def test_a_private_attribute_that_is_read_is_our_own() -> None:
    by_folder: dict[Path, set[str]] = defaultdict(set)
    for path, module in modules().items():
        by_folder[Path(path).parent].update(defined_names(module))
    everywhere = set().union(*by_folder.values())
    found = {
        f"{path}: reads {ast.unparse(node)}"
        for path, module in modules().items()
        if path != ASYNCIO_INTERNALS
        for node in module.nodes(ast.Attribute)
        if is_private(node.attr)
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
    assert f"m.py: {fact}" in Reader("m.py", Source(Path("m.py"), source)).found


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
    assert Reader("m.py", Source(Path("m.py"), source)).found == []
