"""The figures of the house may only fall: `HOUSE` has what each was when it last fell.

A change that raises a figure takes lines, files or classes elsewhere, or has a decision in docs/decisions that says why
the figure rises. A change that lowers one writes the new figure here.
"""

from __future__ import annotations

import ast
import os
import sys
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from pydantic import BaseModel

from roundgate import Context, tool
from roundgate.http import replica
from tests.support import asgi
from tests.support.rounds import accept, retry
from tests.support.task_client import TaskClient
from tests.test_layering import APP, LAYERS, imports, loaded_by_a_served_gateway, modules

HOUSE = {
    "lines of roundgate": 83_499,
    "lines of roundgate_aws": 6_213,
    "lines of roundgate_console": 4_092,
    "lines of roundgate_testing": 8_102,
    "files of a call": 16,
    "files of a call with ctx": 21,
    "files of a retry": 27,
    "files of a task": 47,
    "modules of a served gateway": 120,
    "gateway modules that other packages use": 88,
    "layers": 17,
    "modules in circles": 0,
    "names with two classes": 7,
    "functions of more than 60 lines": 1,
}


def measured(figure: str, value: int, detail: object = "") -> None:
    """Compare a figure with the recorded one."""
    assert value <= HOUSE[figure], (
        f"{figure}: {value}, recorded {HOUSE[figure]}. Take as much away elsewhere, or raise the figure"
        f" with a decision in docs/decisions that says why. {detail}"
    )


@pytest.mark.parametrize("package", sorted(path.name for path in APP.iterdir()))
def test_lines_of_a_package(package: str) -> None:
    files = (APP / package).rglob("*.py")
    measured(f"lines of {package}", sum(len(path.read_text().splitlines()) for path in files))


def test_layers() -> None:
    measured("layers", len(LAYERS))


def test_modules_of_the_gateway_that_other_packages_use() -> None:
    used = {
        imported
        for name, module in modules().items()
        if name.startswith("roundgate_")
        for imported in imports(module)
        if imported.startswith("roundgate.")
    }
    measured("gateway modules that other packages use", len(used), sorted(used))


def test_modules_that_import_each_other() -> None:
    """Imports inside functions and for types count as well."""
    graph = {
        name: {imported.removeprefix("roundgate.") for imported in imports(module)} - {name}
        for name, module in modules().items()
    }
    circle: list[str] = []
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = error.args[1]
    measured("modules in circles", len(set(circle)), circle)


NAMESAKES = {"Completion", "Prompt", "Question", "Resource", "Results", "Tool", "Url"}
"""Names that mean two classes: the protocol's words, for what the gateway serves and for what its client sees, and the
results of each revision."""


def test_a_class_name_means_one_thing() -> None:
    homes = defaultdict(set)
    for name, module in modules().items():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].add(name)
    twins = {name: sorted(places) for name, places in sorted(homes.items()) if len(places) > 1}
    assert twins.keys() <= NAMESAKES, {name: twins[name] for name in twins.keys() - NAMESAKES}
    measured("names with two classes", len(twins), twins)


def test_long_functions() -> None:
    found = [
        f"{name}.{node.name}"
        for name, module in modules().items()
        for node in module.functions
        if length(node) > 60
    ]
    measured("functions of more than 60 lines", len(found), found)


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function without its docstring."""
    doc = node.body[0] if ast.get_docstring(node) else None
    inside = 0 if doc is None else (doc.end_lineno or 0) - doc.lineno + 1
    return (node.end_lineno or 0) - node.lineno + 1 - inside


class Sure(BaseModel):
    yes: bool


@tool(task="forbidden")
def add(a: int, b: int) -> int:
    return a + b


@tool(task="forbidden")
async def add_with_context(ctx: Context, a: int, b: int) -> int:
    return a + b


@tool(task="forbidden")
async def confirm(ctx: Context) -> bool:
    return (await ctx.elicit("sure", "Are you sure?", Sure)).yes


def one() -> int:
    return 1


@tool(task="required")
async def later(ctx: Context) -> int:
    return int(await ctx.step("one", one))


@asynccontextmanager
async def served(*, works: bool = False) -> AsyncIterator[asgi.Client]:
    """A client of a gateway, which has workers if it `works`."""
    app = asgi.gateway(add, add_with_context, confirm, later)
    async with asgi.client(app) as client:
        if not works:
            yield client
            return
        async with app.router.lifespan_context(app):
            yield client


@contextmanager
def running(files: set[str]) -> Iterator[None]:
    """Collect the files of the gateway that run in the block, in any thread. The tests' client
    takes the request from the client library, which is no part of the gateway."""
    root, of_client = f"{APP / 'roundgate'}{os.sep}", f"client{os.sep}"

    def note(frame: FrameType, event: str, argument: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(root):
            file = name.removeprefix(root)
            if not file.startswith(of_client):
                files.add(file)

    sys.setprofile(note)
    threading.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


@pytest.mark.parametrize(
    ("figure", "name"),
    [("files of a call", "add"), ("files of a call with ctx", "add_with_context")],
)
async def test_files_of_a_call(figure: str, name: str) -> None:
    files = set[str]()
    async with served() as client:
        await client.call(name, {"a": 1, "b": 2})  # what is read once, is read
        with running(files):
            assert await client.text(name, {"a": 1, "b": 2}) == "3"
    measured(figure, len(files), sorted(files))


async def test_files_of_a_retry() -> None:
    files = set[str]()
    asked = {"name": "confirm", "arguments": {}}
    can: dict[str, Any] = {"elicitation": {"form": {}}}
    async with served() as client:
        for _ in range(2):
            files.clear()
            response = await client.post("tools/call", asked, clientCapabilities=can)
            again = retry(asked, response.json()["result"], sure=accept(yes=True))
            with running(files):
                response = await client.post("tools/call", again, clientCapabilities=can)
            assert response.json()["result"]["content"][0]["text"] == "true"
    measured("files of a retry", len(files), sorted(files))


async def test_files_of_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the call that becomes a task to the result that its client reads."""
    files = set[str]()
    # the watch over the event loop runs at intervals, with or without a task
    monkeypatch.setattr(replica, "reported_stalls", nullcontext)
    async with served(works=True) as client:
        tasks = TaskClient(client)
        for _ in range(2):
            files.clear()
            with running(files):
                assert await tasks.text(await tasks.begin("later")) == "1"
    files -= {"tasks/sweep.py", "tasks/watchdog.py"}  # which run at intervals as well
    measured("files of a task", len(files), sorted(files))


def test_modules_of_a_served_gateway(tmp_path: Path) -> None:
    loaded = loaded_by_a_served_gateway(tmp_path)
    ours = sorted(name for name in loaded if name.partition(".")[0] == "roundgate")
    measured("modules of a served gateway", len(ours), ours)
