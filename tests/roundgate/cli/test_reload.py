"""A running server serves what its files say now: on SIGHUP, and with --reload
when a file has changed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from roundgate.config import load
from roundgate.runtime import reload
from roundgate.settings.process import Settings
from roundgate_aws.machine import reserved_port
from tests.roundgate.cli.conftest import store_in
from tests.support import wire
from tests.support.asgi import STATE_KEY, Client, built, client, stoppable
from tests.support.server import COMMAND, Server, end, running, start
from tests.support.task_client import DECLARED, TaskClient

pytestmark = pytest.mark.skipif(
    not hasattr(signal, "SIGHUP"), reason="there is no SIGHUP on this system"
)

WITHIN_S = 60.0
"""Of a change until it is served, on a machine that has a lot else to do."""

TOOLS = '''
import asyncio, os
from pathlib import Path
from roundgate import tool
import words

calls = 0

@tool
async def hello() -> str:
    return words.HELLO

@tool
async def count() -> int:
    global calls
    calls += 1
    return calls

@tool
async def hold() -> str:
    """Waits for a file, says what was loaded when it began."""
    Path("begun").touch()
    while not Path("gate").exists():
        await asyncio.sleep(0.02)
    import words as now
    return f"old {words.HELLO}"

@tool
async def process() -> int:
    await asyncio.sleep(0.05)
    return os.getpid()
'''
BACKENDS = 'backends: [{kind: python, name: shop, prefix: "", path: tools.py}]\n'


def written(folder: Path) -> Path:
    """Write the tools and their gateway.yaml into a folder."""
    (folder / "tools.py").write_text(TOOLS.replace('Path("', f'Path("{folder}/'))
    (folder / "words.py").write_text('HELLO = "one"\n')
    file = folder / "gateway.yaml"
    file.write_text(BACKENDS)
    return file


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return written(tmp_path)


@pytest.fixture
def watching(config: Path, environment: dict[str, str]) -> Iterator[Server]:
    with running(config, environment, "--reload") as server:
        yield server


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[Client]:
    async with httpx.AsyncClient(base_url=server.url, verify=False, timeout=60) as http:
        yield Client(http)


async def until(
    expected: Any, ask: Callable[[], Awaitable[Any]], within_s: float = WITHIN_S
) -> float:
    """Ask until that is the answer; returns after how many seconds."""
    began = time.monotonic()
    while (found := await ask()) != expected:
        assert time.monotonic() - began < within_s, found
        await asyncio.sleep(0.02)
    return time.monotonic() - began


def save(file: Path, text: str) -> None:
    file.write_text(text)


async def names(mcp: Client) -> list[str]:
    return [one["name"] for one in (await mcp.result("tools/list"))["tools"]]


async def logged(server: Server, count: int, message: str) -> list[dict[str, Any]]:
    """Its lines with this message, once there are so many; a file that is seen half written is one more."""

    async def found() -> bool:
        return sum(message in line["msg"] for line in server.lines()) >= count

    await until(True, found)
    return [line for line in server.lines() if message in line["msg"]]


async def test_a_changed_module_beside_the_tools_is_served(watching: Server, config: Path) -> None:
    async with connected(watching) as mcp:
        assert await mcp.text("hello") == "one"
        (config.parent / "words.py").write_text(
            'HELLO = "two"\n'
        )  # as long as before, in the same second
        await until("two", lambda: mcp.text("hello"))


async def test_changed_tools_are_served_and_listed(watching: Server, config: Path) -> None:
    async with connected(watching) as mcp:
        tools = config.with_name("tools.py")
        tools.write_text(tools.read_text() + "\n@tool\nasync def bye() -> str:\n    return 'bye'\n")
        await until(["hello", "count", "hold", "process", "bye"], lambda: names(mcp))
        assert await mcp.text("bye") == "bye"


async def test_a_changed_gateway_yaml_is_served_and_modules_keep_what_they_hold(
    watching: Server, config: Path
) -> None:
    async with connected(watching) as mcp:
        assert [await mcp.text("count") for _ in range(3)] == ["1", "2", "3"]
        save(config, BACKENDS.replace('""', "x") + "server: {name: shop, version: '7'}\n")
        await until(["x__hello", "x__count", "x__hold", "x__process"], lambda: names(mcp))
        assert await mcp.text("x__count") == "4"
        told = (await mcp.http.get("/healthz")).json()
    assert (told["name"], told["version"]) == ("shop", "7")


async def test_a_reload_keeps_the_counts_of_callers(watching: Server, config: Path) -> None:
    rate = "rate: {calls_per_minute: 1, burst: 30}\nserver: {name: %s}\n"

    async def name() -> str:
        discovered = await mcp.result("server/discover")
        return str(discovered["_meta"][wire.SERVER_INFO]["name"])

    async def served() -> int:
        calls = [await mcp.post("tools/call", {"name": "count"}) for _ in range(30)]
        return sum(call.status_code == 200 for call in calls)

    async with connected(watching) as mcp:
        save(config, BACKENDS + rate % "before")
        await until("before", name)
        assert await served() == 30
        save(config, BACKENDS + rate % "after")
        await until("after", name)
        assert await served() < 30


async def test_a_running_call_ends_on_what_it_began_with(watching: Server, config: Path) -> None:
    async with connected(watching) as mcp:
        held = asyncio.create_task(mcp.text("hold"))
        await until(True, lambda: asyncio.to_thread((config.parent / "begun").exists))
        (config.parent / "words.py").write_text('HELLO = "two"\n')
        await until("two", lambda: mcp.text("hello"))
        assert not held.done()
        (config.parent / "gate").touch()
        assert await held == "old one"


BROKEN = [
    ("words.py", "HELLO = \n", ["words.py", "line 1"]),
    ("words.py", "raise RuntimeError('mended soon')\n", ["mended soon", "words.py:1"]),
    ("tools.py", "import nowhere\n", ["nowhere", "tools.py:1"]),
    ("gateway.yaml", "backends: [\n", ["gateway.yaml:2", "is not YAML"]),
    (
        "gateway.yaml",
        BACKENDS + "limits:\n  threads: 0\n  page: 1\n",
        ["gateway.yaml:3", "limits.threads", "gateway.yaml:4", "limits.page"],
    ),
    ("gateway.yaml", BACKENDS.replace("tools.py", "gone.py"), ["gateway.yaml:1", "gone.py"]),
]


async def test_a_wrong_file_keeps_the_old_state_served_until_the_next_good_save(
    watching: Server, config: Path
) -> None:
    async with connected(watching) as mcp:

        async def health() -> Any:
            return (await mcp.http.get("/healthz")).json()

        async def troubles() -> Any:
            return (await health()).get("troubles")

        for number, (name, broken, said) in enumerate(BROKEN, 1):
            good, hello = config.with_name(name).read_text(), await mcp.text("hello")
            calls = int(await mcp.text("count"))
            config.with_name(name).write_text(broken)
            failures = await logged(
                watching, number, "was not reloaded; the previous configuration stays served"
            )
            assert len(failures) == number
            problems = "\n".join(failures[-1]["problems"])
            assert [one for one in said if one not in problems] == []
            assert (await mcp.text("hello"), await mcp.text("count")) == (hello, str(calls + 1))
            assert await troubles() == ["the last reload failed; the version before it is served"]
            config.with_name(name).write_text(good)
            await until(None, troubles)
            config.with_name("words.py").write_text(f'HELLO = "after {number}"\n')
            await until(f"after {number}", lambda: mcp.text("hello"))
            assert (await health())["status"] == "ok"


async def test_a_module_that_was_missing_is_found_when_it_is_there(
    watching: Server, config: Path
) -> None:
    async with connected(watching) as mcp:
        tools = config.with_name("tools.py")
        tools.write_text(tools.read_text().replace("import words\n", "import words, more\n"))
        await logged(watching, 1, "was not reloaded")
        (config.parent / "more.py").write_text("from words import HELLO\n")
        await logged(watching, 1, "reloaded /")
        await until("one", lambda: mcp.text("hello"))


async def test_so_is_one_that_comes_in_the_very_moment_in_which_its_absence_is_told(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tell(path: Path, error: Exception) -> None:
        (config.parent / "more.py").write_text("from words import HELLO\n")

    monkeypatch.setattr(reload, "_tell_failure", tell)
    app = built(load(config), Settings(reload=True, state_keys=STATE_KEY))
    async with stoppable(app), client(app) as mcp:
        assert await mcp.text("hello") == "one"  # and it has begun to watch
        tools = config.with_name("tools.py")
        tools.write_text(
            tools.read_text()
            .replace("words.HELLO", "more.HELLO + '!'", 1)
            .replace("words\n", "more\n", 1)
        )
        await until("one!", lambda: mcp.text("hello"))


async def test_what_needs_a_restart_is_said_and_left_as_it_is(
    watching: Server, config: Path
) -> None:
    async with connected(watching) as mcp:
        save(
            config,
            BACKENDS + "http: {path: /elsewhere}\ntasks:\n  lease_s: 77\nlimits: {page_size: 2}\n",
        )
        path, lease = await logged(watching, 2, "needs a restart")
        assert (path["msg"], path["at"]) == ("http.path needs a restart", f"{config}:2")
        assert (lease["msg"], lease["at"]) == ("tasks.lease_s needs a restart", f"{config}:4")
        assert await names(mcp) == ["hello", "count"]  # the page size needs none


async def test_a_secret_in_a_file_is_read_again(environment: dict[str, str], config: Path) -> None:
    (config.parent / "said.txt").write_text("first")
    save(config, BACKENDS + "server: {name: '${file:said.txt}'}\n")
    with running(config, environment, "--reload") as server:
        async with connected(server) as mcp:

            async def name() -> Any:
                return (await mcp.http.get("/healthz")).json()["name"]

            assert await name() == "first"
            (config.parent / "said.txt").write_text("second")
            await until("second", name)


async def test_listeners_hear_of_the_lists_that_have_changed_and_of_no_other(
    watching: Server, config: Path
) -> None:
    config.with_name("tools.py").write_text(PROMPTS)
    await logged(watching, 1, "reloaded /")
    asked = wire.message(
        "subscriptions/listen",
        {
            "notifications": {
                "toolsListChanged": True,
                "promptsListChanged": True,
                "resourcesListChanged": True,
            }
        },
    )
    headers = wire.headers(asked) | {"accept": "text/event-stream, application/json"}
    async with (
        connected(watching) as mcp,
        mcp.http.stream("POST", "/mcp", json=asked, headers=headers) as stream,
    ):
        heard = messages(stream)
        assert (await anext(heard))["method"] == "notifications/subscriptions/acknowledged"
        config.with_name("tools.py").write_text(
            PROMPTS.replace("async def greet", "async def welcome")
        )
        async with asyncio.timeout(WITHIN_S):
            assert (await anext(heard))["method"] == "notifications/prompts/list_changed"
        config.with_name("tools.py").write_text(
            PROMPTS.replace('"hi"', '"hi!"')
        )  # the prompt has its old name again
        async with asyncio.timeout(WITHIN_S):
            assert (await anext(heard))["method"] == "notifications/prompts/list_changed"
        config.with_name("tools.py").write_text(PROMPTS.replace("async def hello", "async def hey"))
        async with asyncio.timeout(WITHIN_S):
            assert (await anext(heard))["method"] == "notifications/tools/list_changed"


HELD = """
import asyncio
from pathlib import Path
from roundgate import tool

@tool(task="required")
async def dig() -> str:
    while not Path("gate").exists():
        await asyncio.sleep(0.02)
    return "a result that the caller may not read any more"
"""


async def test_a_stream_of_a_task_ends_once_rules_refuse_its_tool(
    watching: Server, config: Path
) -> None:
    config.with_name("tools.py").write_text(HELD.replace('Path("', f'Path("{config.parent}/'))
    await logged(watching, 1, "reloaded /")
    async with connected(watching) as mcp:
        client = TaskClient(mcp)
        task_id = await client.begin("dig")
        asked = wire.message(
            "subscriptions/listen",
            {"notifications": {"taskIds": [task_id]}},
            clientCapabilities=DECLARED,
        )
        headers = wire.headers(asked) | {"accept": "text/event-stream, application/json"}
        async with mcp.http.stream("POST", "/mcp", json=asked, headers=headers) as stream:
            heard = messages(stream)
            assert (await anext(heard))["method"] == "notifications/subscriptions/acknowledged"
            assert (await anext(heard))["params"]["status"] == "working"
            save(config, BACKENDS + "policy: [{deny: {tool: dig}}, {allow: {}}]\n")
            await logged(watching, 2, "reloaded /")
            config.with_name("gate").touch()
            async with asyncio.timeout(WITHIN_S):
                assert [list(message) async for message in heard] == [["jsonrpc", "id", "result"]]
        refused = (await client.send("tasks/get", {"taskId": task_id})).json()
        assert "does not allow you to call dig" in refused["error"]["message"]


async def messages(stream: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in stream.aiter_lines():
        if line.startswith("data:"):
            yield json.loads(line.removeprefix("data:"))


PROMPTS = """
from roundgate import prompt, tool

@tool
async def hello() -> str:
    return "hi"

@prompt
async def greet() -> str:
    return "Greet."
"""


def wait_until(happened: Callable[[], bool]) -> None:
    """Wait until something has happened."""
    ends = time.monotonic() + WITHIN_S
    while not happened():
        assert time.monotonic() < ends
        time.sleep(0.05)


def test_server_processes_that_start_reload_once_they_have(
    environment: dict[str, str], config: Path, tmp_path: Path
) -> None:
    """Their supervisor gets SIGHUP while they import the tools."""
    hold = tmp_path / "hold"
    hold.touch()
    waits = f"""
import multiprocessing, time
if multiprocessing.parent_process() is not None:
    Path(f"{tmp_path}/starts-{{os.getpid()}}").touch()
    while Path("{hold}").exists():
        time.sleep(0.02)
"""
    tools = config.with_name("tools.py")
    tools.write_text(tools.read_text().replace("\ncalls = 0\n", f"{waits}\ncalls = 0\n"))
    log = config.with_suffix(".log")
    with reserved_port() as port:
        arguments = ["serve", str(config), "--port", str(port), "--workers", "2"]
        server = Server(start([*COMMAND, *arguments], log, environment), port, log)
        try:
            wait_until(lambda: len(list(tmp_path.glob("starts-*"))) == 2)
            server.process.send_signal(signal.SIGHUP)
            time.sleep(1)  # the supervisor looks for signals twice a second
            hold.unlink()
            wait_until(lambda: log.read_text().count('"msg":"reloaded /') == 2)
            assert "a server process died" not in log.read_text()
            assert server.stop() == 0
        finally:
            end(server.process)


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_a_process_that_starts_reloads_once_it_has(
    environment: dict[str, str], config: Path, tmp_path: Path, command: str
) -> None:
    starts, hold = tmp_path / "starts", tmp_path / "hold"
    hold.touch()
    tools = config.with_name("tools.py")
    waits = f"""
import time
Path("{starts}").touch()
while Path("{hold}").exists():
    time.sleep(0.02)
"""
    tools.write_text(tools.read_text().replace("\ncalls = 0\n", f"{waits}\ncalls = 0\n"))
    log = config.with_suffix(".log")
    options = ["--port", "0"] if command == "serve" else []
    process = start([*COMMAND, command, str(config), *options], log, environment)
    try:
        wait_until(starts.exists)
        process.send_signal(signal.SIGHUP)
        time.sleep(0.2)
        hold.unlink()
        wait_until(lambda: '"msg":"reloaded /' in log.read_text())
        process.terminate()
        assert process.wait(60) == 0
    finally:
        end(process)


async def test_sighup_loads_again_without_watching(
    environment: dict[str, str], config: Path
) -> None:
    with running(config, environment) as server:
        async with connected(server) as mcp:
            config.with_name("words.py").write_text('HELLO = "two"\n')
            await asyncio.sleep(0.6)
            assert await mcp.text("hello") == "one"
            server.process.send_signal(signal.SIGHUP)
            await until("two", lambda: mcp.text("hello"))
            assert await mcp.text("count") == "1"
            server.process.send_signal(
                signal.SIGHUP
            )  # nothing has changed: what is held in memory stays
            await logged(server, 2, "reloaded /")
            assert await mcp.text("count") == "2"
        assert server.stop() == 0


async def told(server: Server) -> dict[str, str]:
    """What each of its two processes says, by process id."""

    async def one() -> tuple[str, str]:
        async with connected(server) as mcp:
            return await mcp.text("process"), await mcp.text("hello")

    answers: dict[str, str] = {}
    while len(answers) < 2:
        answers |= dict(await asyncio.gather(*(one() for _ in range(12))))
    return answers


async def reload_everywhere(server: Server, config: Path, by: signal.Signals | None) -> None:
    """Change a word, and check that the processes that were there serve it."""
    before = await told(server)
    config.with_name("words.py").write_text('HELLO = "two"\n')
    if by is not None:
        server.process.send_signal(by)
    await logged(server, 2, "reloaded /")
    after = await told(server)
    assert set(after.values()) == {"two"}
    assert after.keys() == before.keys()


async def test_every_process_of_several_reloads_when_a_file_changes(
    environment: dict[str, str], config: Path
) -> None:
    with running(config, environment, "--workers", "2", "--reload") as server:
        await reload_everywhere(server, config, None)
        assert server.stop() == 0


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with two processes, which leave with exit status 0 at the end."""
    config = written(tmp_path_factory.mktemp("several"))
    with running(config, store_in(config.parent), "--workers", "2") as server:
        yield server
        assert server.stop() == 0


async def test_every_process_of_several_reloads_at_sighup(several: Server) -> None:
    config = several.log.with_name("gateway.yaml")
    await reload_everywhere(several, config, signal.SIGHUP)


async def pid(server: Server) -> int:
    async with connected(server) as mcp:
        return int(await mcp.text("process"))


async def test_a_server_process_that_dies_is_reported_and_replaced(several: Server) -> None:
    killed = await pid(several)
    os.kill(killed, signal.SIGKILL)
    (line,) = await logged(several, 1, "a server process died")
    assert (line["level"], line["pid"], line["ended_by"]) == ("error", killed, "SIGKILL")
    assert await pid(several) != killed


async def test_a_server_process_that_stands_still_for_a_while_is_not_replaced(
    several: Server,
) -> None:
    def errors() -> list[dict[str, Any]]:
        return [line for line in several.lines() if line["level"] == "error"]

    before, stopped = errors(), await pid(several)
    os.kill(stopped, signal.SIGSTOP)
    await asyncio.sleep(6)  # longer than uvicorn waits for a process by default
    os.kill(stopped, signal.SIGCONT)
    await until(stopped, lambda: pid(several))
    assert errors() == before


def wait_for(text: str, log: Path) -> None:
    wait_until(lambda: log.exists() and text in log.read_text())


def wait_until_it_serves(log: Path) -> None:
    """Return once the server at the URL in the log answers; it handles signals by then."""
    wait_for("serving", log)
    found = re.search(r"serving (http://127\.0\.0\.1:\d+)", log.read_text())
    assert found is not None

    def answers() -> bool:
        with suppress(httpx.TransportError):
            return httpx.get(f"{found[1]}/healthz", timeout=60).raise_for_status().is_success
        return False

    wait_until(answers)


@pytest.mark.parametrize(
    ("prefix", "options", "ends"),
    [([], [], True), ([], ["--workers", "2"], True), (["nohup"], [], False)],
    ids=["one process", "several", "nohup"],
)
def test_a_closed_terminal_ends_the_server_unless_it_was_told_to_outlive_it(
    environment: dict[str, str], config: Path, prefix: list[str], options: list[str], ends: bool
) -> None:
    """A program that holds a terminal starts the server in it, and goes away:
    the kernel sends SIGHUP."""
    code = """
import os, pty, sys, time
pid, terminal = pty.fork()
if pid == 0:
    log = os.open(os.environ["LOG"], os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.execvp(sys.argv[1], sys.argv[1:])
print(pid, flush=True)
while not os.path.exists(os.environ["CLOSE"]):
    time.sleep(0.05)
os.close(terminal)
print(os.waitpid(pid, 0)[1], flush=True)
"""
    close = config.parent / "close"
    log = config.with_suffix(".log")
    serve = [str(Path(sys.executable).with_name("roundgate")), "serve", str(config), "--port", "0"]
    command = [*prefix, *serve, *options]
    holder = subprocess.Popen(
        [sys.executable, "-c", code, *command],
        env=os.environ | environment | {"CLOSE": str(close), "LOG": str(log)},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert holder.stdout is not None
    pid = int(holder.stdout.readline())
    try:
        wait_until_it_serves(log)
        close.touch()
        if ends:
            holder.wait(60)
            assert holder.stdout.readline() == b"0\n"
        else:
            wait_for("reloaded", log)  # what SIGHUP means otherwise
            assert holder.poll() is None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        holder.kill()
        holder.wait()
        holder.stdout.close()


WORKING = """
from roundgate import Context, tool

@tool(task="required")
async def dig(ctx: Context) -> str:
    await ctx.continue_as_task()
    return "dug"
"""


async def test_tasks_are_worked_on_as_soon_as_a_tool_can_be_one(
    watching: Server, config: Path
) -> None:
    config.with_name("more.py").write_text(WORKING)
    save(config, BACKENDS.replace("]", ', {kind: python, name: more, prefix: "", path: more.py}]'))
    await logged(watching, 1, "reloaded /")
    async with connected(watching) as mcp:
        client = TaskClient(mcp)
        assert await client.text(await client.begin("dig")) == "dug"


def test_a_change_is_looked_for_often_enough_to_be_served_within_two_seconds() -> None:
    assert reload.POLL_S + 2 * reload.SETTLE_S < 1, "the rest is for importing what has changed"


async def test_what_a_view_has_is_reloaded_and_where_it_is_needs_a_restart(
    config: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def told() -> bool:
        return "views needs a restart" in caplog.text

    save(config, BACKENDS + "views: [{name: few, include: [{name: hello}]}]\n")
    using = Settings(
        reload=True, state_keys=STATE_KEY, store=f"sqlite:///{tmp_path / 'gateway.sqlite3'}"
    )
    app = built(load(config), using)
    async with stoppable(app), client(app) as mcp:
        few = Client(mcp.http, "/few/mcp")
        await asyncio.sleep(0)  # and it has begun to watch
        assert await names(few) == ["hello"]
        save(config, BACKENDS + "views: [{name: few, include: [{name: count}]}]\n")
        await until(["count"], lambda: names(few))
        assert not await told()
        save(config, BACKENDS + "views: [{name: few, path: /else/mcp}]\n")
        await until(True, told)
        assert await names(few) == ["count"]
