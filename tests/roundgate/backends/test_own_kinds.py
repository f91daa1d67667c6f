"""A user's own kind of back end: the class of docs/own-kinds.md, served as any other."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from roundgate.config import load
from roundgate.errors import ConfigError
from roundgate.main import build_app
from roundgate.runtime import loading
from tests.support.asgi import Client, client, stoppable
from tests.support.command import roundgate
from tests.support.documents import ROOT
from tests.support.server import running
from tests.support.task_client import DECLARED, TaskClient, task_settings

PAGE = (ROOT / "docs" / "own-kinds.md").read_text()
MODULE = PAGE.partition("```python\n")[2].partition("```")[0]
ENTRY = "[roundgate.backends]\nnotes = notes:Notes\n"
NOTES = "  - kind: notes:Notes\n    name: notes\n    folder: notes\n"
TASKS = "tasks: {poll_interval_ms: 100}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "notes.py").write_text(MODULE)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "milk.txt").write_text("Buy milk")
    before = list(sys.path)
    yield tmp_path
    sys.path[:] = before
    sys.modules.pop("notes", None)


def written(folder: Path, more: str = "", entry: str = NOTES) -> Path:
    file = folder / "gateway.yaml"
    file.write_text(f"{TASKS}backends:\n{entry}{more}")
    return file


@asynccontextmanager
async def served(file: Path) -> AsyncIterator[TaskClient]:
    app = build_app(load(file), task_settings(file.parent, worker="on"))
    async with stoppable(app), client(app) as mcp:
        yield TaskClient(mcp)


async def test_its_calls_become_tasks(folder: Path) -> None:
    async with served(written(folder)) as ann:
        task_id = await ann.begin("notes__read", name="milk")
        task = await ann.until(task_id, "completed")
        assert task["result"]["content"] == [{"type": "text", "text": "Buy milk"}]


async def test_its_arguments_are_checked_and_its_errors_are_for_the_model(folder: Path) -> None:
    async with served(written(folder)) as ann:
        wrong = await ann.mcp.call("notes__read", {"name": "bread"})
        assert wrong["isError"]
        (folder / "notes" / "milk.txt").unlink()
        gone = await ann.mcp.call("notes__read", {"name": "milk"})
        assert "The note cannot be read" in gone["content"][0]["text"]


async def test_its_calls_are_approved(folder: Path) -> None:
    async with served(written(folder, "    approve: always\n")) as ann:
        capabilities = {name: one for name, one in DECLARED.items() if name != "extensions"}
        params = {"name": "notes__read", "arguments": {"name": "milk"}}
        response = await ann.mcp.post("tools/call", params, clientCapabilities=capabilities)
        asked = response.json()["result"]
        assert asked["resultType"] == "input_required"
        (key,) = asked["inputRequests"]
        again = {
            **params,
            "inputResponses": {key: {"action": "accept", "content": {"approve": True}}},
            "requestState": asked["requestState"],
        }
        result = await ann.mcp.result("tools/call", again, clientCapabilities=capabilities)
        assert result["content"][0]["text"] == "Buy milk"


async def test_it_is_selected_and_changed_as_any_other(folder: Path) -> None:
    override = "    override: {read: {name: open, arguments: {name: {name: note}}}}\n"
    async with served(written(folder, f"    include: [{{name: read}}]\n{override}")) as ann:
        (tool,) = (await ann.mcp.result("tools/list"))["tools"]
        assert (tool["name"], list(tool["inputSchema"]["properties"])) == ("notes__open", ["note"])
        assert await ann.mcp.text("notes__open", {"note": "milk"}) == "Buy milk"


def test_the_command_checks_it(folder: Path) -> None:
    done = roundgate("check", written(folder), directory=folder)
    assert done.status == 0, done.err
    assert "notes__read" in done.out
    (folder / "notes" / "milk.txt").unlink()
    (folder / "notes").rmdir()
    done = roundgate("check", "gateway.yaml", directory=folder)
    assert done.status == 1
    assert "gateway.yaml:5: backends[0].folder: is no folder" in done.out + done.err


def test_an_installed_package_gives_it_a_name(folder: Path, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    (installed / "notes-1.0.dist-info").mkdir(parents=True)
    (installed / "notes-1.0.dist-info" / "METADATA").write_text("Name: notes\nVersion: 1.0\n")
    (installed / "notes-1.0.dist-info" / "entry_points.txt").write_text(ENTRY)
    (folder / "notes.py").rename(installed / "notes.py")
    file = written(folder, entry=NOTES.replace("notes:Notes", "notes"))
    done = roundgate("check", file, directory=folder, PYTHONPATH=str(installed))
    assert done.status == 0, done.err
    assert "notes__read" in done.out
    file.write_text("backends: [{kind: nots, name: notes}]")
    done = roundgate("check", file, directory=folder, PYTHONPATH=str(installed))
    assert "did you mean notes?" in done.out + done.err


@pytest.mark.parametrize(
    ("kind", "module", "said"),
    [
        ("absent_kind:Notes", "", "No module named 'absent_kind'"),
        ("notes:Other", MODULE, "has no attribute 'Other'"),
        ("notes:Notes", "class Notes: pass", "the class needs an attribute `Config`"),
        (
            "notes:Notes",
            MODULE.replace("def offer", "def offers"),
            "the class has no method 'offer'",
        ),
        ("notes:Notes", "import sys; sys.exit(3)", "SystemExit: 3"),
        ("notes:Notes", "raise ValueError('no')", "ValueError: no"),
    ],
)
def test_a_broken_one_is_a_problem_at_its_line(
    folder: Path, kind: str, module: str, said: str
) -> None:
    (folder / "notes.py").write_text(module)
    with pytest.raises(ConfigError) as caught:
        load(written(folder, entry=NOTES.replace("notes:Notes", kind)))
    (problem,) = caught.value.problems
    assert (problem.path, problem.line) == ("backends[0].kind", 3)
    assert problem.message.startswith(f"{kind} is not a kind of back end: ")
    assert said in problem.message
    assert "module:Class" in problem.remedy


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (("async def offer", "def offer"), "TypeError: object Offering can't be used in 'await'"),
        (("return Offering([", "return (["), "TypeError: offer() returned list, not an Offering"),
        (
            ("async def offer(self):", "async def offer(self):\n        1 / 0"),
            "ZeroDivisionError: ",
        ),
        (("self._folder, self", "raise SystemExit(3); self._folder, self"), "SystemExit: 3"),
    ],
)
def test_one_that_fails_later_is_a_problem_at_its_line_too(
    folder: Path, changed: tuple[str, str], said: str
) -> None:
    (folder / "notes.py").write_text(MODULE.replace(*changed))
    file = load(written(folder))
    with pytest.raises(ConfigError) as caught:
        loading.load(file)
    (problem,) = caught.value.problems
    assert problem.path == "backends[0].kind"
    assert problem.message.startswith(f"notes:Notes failed: {said}")


async def test_a_tool_that_returns_no_result_is_named_in_the_log(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = MODULE.replace("return ToolResult([", "return ([").replace(
        "await context.continue_as_task()", "pass"
    )
    (folder / "notes.py").write_text(wrong)
    async with served(written(folder)) as tasks:
        answer = await tasks.mcp.post(
            "tools/call", {"name": "notes__read", "arguments": {"name": "milk"}}
        )
    assert answer.json()["result"]["isError"]
    assert "the tool returned list; a back end's tool must return a ToolResult" in caplog.text


def test_its_settings_are_checked_as_any_other(folder: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(folder, entry=NOTES.replace("folder:", "foldr:")))
    assert [str(one.message) for one in caught.value.problems] == [
        "Field required",
        "Extra inputs are not permitted",
    ]
    assert "did you mean folder?" in caught.value.problems[1].remedy


async def test_a_changed_one_is_served_after_a_reload(folder: Path) -> None:
    file = written(folder)
    store = {"GATEWAY_STORE": f"sqlite:///{folder / 'gateway.sqlite3'}"}
    with running(file, store, "--reload") as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
            await described(http, "Read a note.")
            (folder / "notes.py").write_text(MODULE.replace("Read a note.", "Read any note."))
            await described(http, "Read any note.")


async def described(http: httpx.AsyncClient, expected: str) -> None:
    """Wait until the tool has this description."""
    began, found = time.monotonic(), None
    while found != expected:
        assert time.monotonic() - began < 60, found
        await asyncio.sleep(0.05)
        (tool,) = (await Client(http).result("tools/list"))["tools"]
        found = tool["description"]
