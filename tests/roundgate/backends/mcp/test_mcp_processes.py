"""Servers that are processes: started, restarted, and ended with everything that they started."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from roundgate import config
from roundgate.backends.mcp import backend as mcp_backend
from roundgate.backends.mcp import server as mcp_server
from roundgate.cli import main
from roundgate.client import Limits, stdio
from roundgate.client.messages import Listener
from roundgate.client.stdio import Program
from roundgate.errors import BadAnswer, ConfigError, ConnectionLost, TimedOut
from roundgate.runtime import loading
from roundgate.settings import Settings
from tests.support import wire
from tests.support.asgi import Exchange, built, client, config_of, stoppable
from tests.support.upstreams import PROGRAM, app_of, gateway_of, health, names, process, until

ECHO = {"a": [1, "ä\n", None]}


@pytest.fixture(autouse=True)
def _brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_server, "FIRST_PAUSE_S", 0.1)
    monkeypatch.setattr(mcp_server, "LONGEST_PAUSE_S", 0.1)
    monkeypatch.setattr(stdio, "PROBE_S", 60.0)
    monkeypatch.setattr(stdio, "STOP_S", 0.5)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def ended(pid: int) -> None:
    async def running() -> bool:
        return is_running(pid)

    await until(False, running)


def listed(mcp: Any) -> Callable[[], Awaitable[bool]]:
    async def has_tools() -> bool:
        return "up__echo" in await names(mcp)

    return has_tools


@pytest.mark.parametrize("how", [[], ["modern"], ["silent"], ["leaves"], ["noisy"]])
async def test_a_process_of_any_revision_is_spoken_to(
    how: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == ["silent"]:
        monkeypatch.setattr(stdio, "PROBE_S", 1.0)
    async with gateway_of(process(*how)) as mcp:
        await until(True, listed(mcp))
        assert json.loads(await mcp.text("up__echo", ECHO)) == ECHO
        state = await health(mcp)
        expected = "2026-07-28" if how == ["modern"] else "2025-11-25"
        assert (state["status"], state["revision"]) == ("up", expected)


async def test_there_is_one_process_for_all_calls() -> None:
    async with gateway_of(process()) as mcp:
        await until(True, listed(mcp))
        found = await asyncio.gather(*(mcp.text("up__pid") for _ in range(10)))
        assert len(set(found)) == 1


async def test_progress_arrives_and_answers_do_not_mix() -> None:
    async with gateway_of(process()) as mcp:
        await until(True, listed(mcp))
        counted = await asyncio.gather(
            *(
                mcp.post("tools/call", {"name": "up__count", "arguments": {}}, progressToken=n)
                for n in range(5)
            )
        )
        for number, response in enumerate(counted):
            *notices, last = wire.events(response.text)
            assert [one["params"]["progressToken"] for one in notices] == [number] * 2
            assert last["result"]["content"][0]["text"] == "counted"


async def test_a_process_gets_no_secrets_of_the_gateway(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GATEWAY_STATE_KEYS_SECRET", "secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    (tmp_path / "sub").mkdir()
    settings = {"env": {"MINE": "1", "API_KEY": "kkkkkkkkkkkk"}, "cwd": str(tmp_path / "sub")}
    async with gateway_of(process(**settings)) as mcp:
        await until(True, listed(mcp))
        env = json.loads(await mcp.text("up__env"))
    assert env["MINE"] == "1"
    assert env["API_KEY"] == "[redacted]"
    assert env["PATH"] == os.environ["PATH"]
    assert {name for name in env if name.startswith(("GATEWAY_", "AWS_"))} == set()


async def test_a_variable_that_refers_to_a_secret_is_redacted_whatever_its_name(
    tmp_path: Path,
) -> None:
    (tmp_path / "url").write_text("postgres://u:pppppppp@db")
    entry = process(env={"DB": "${file:url}", "ZONE": "Europe/Vienna"})
    path = tmp_path / "gateway.yaml"
    path.write_text(json.dumps({"auth": "none", "backends": [entry]}))
    app = await asyncio.to_thread(built, config.load(path))
    async with stoppable(app), client(app) as mcp:
        await until(True, listed(mcp))
        env = json.loads(await mcp.text("up__env"))
    assert env["DB"] == "[redacted]"
    assert env["ZONE"] == "Europe/Vienna"


async def test_its_standard_error_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "roundgate.backends")
    async with gateway_of(process()) as mcp:
        await until(True, listed(mcp))
        await mcp.call("up__complain")

        async def lines() -> list[Any]:
            said = [one for one in caplog.records if one.msg == "standard error of a server"]
            return [one.__dict__["fields"] for one in said]

        await until([{"backend": "up", "line": "something is wrong"}], lines)


async def test_no_part_of_a_secret_at_the_end_of_a_long_line_is_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "roundgate.backends")
    secret = "kV9-very-secret-token"
    async with gateway_of(process(env={"API_KEY": secret})) as mcp:
        await until(True, listed(mcp))
        line = "." * 1_990 + secret
        await mcp.call("up__complain", {"line": line})

        async def is_logged() -> bool:
            return any(one.msg == "standard error of a server" for one in caplog.records)

        await until(True, is_logged)
    lines = [
        one.__dict__["fields"]["line"]
        for one in caplog.records
        if one.msg == "standard error of a server"
    ]
    assert all(secret[:5] not in one for one in lines)


async def test_a_process_that_dies_in_a_call_is_one_tool_error_and_starts_again() -> None:
    async with gateway_of(process()) as mcp:
        await until(True, listed(mcp))
        pid = await mcp.text("up__pid")
        died = await mcp.call("up__crash")
        assert died["isError"]
        assert "may have taken effect" in died["content"][0]["text"]

        async def other() -> bool:
            answer = await mcp.call("up__pid")
            return not answer.get("isError") and answer["content"][0]["text"] != pid

        await until(True, other)


async def test_a_call_that_a_process_died_of_is_not_sent_again(tmp_path: Path) -> None:
    note = tmp_path / "calls"
    async with gateway_of(process("once", str(note), retry={"attempts": 3})) as mcp:
        await until(True, listed(mcp))
        assert (await mcp.call("up__echo"))["isError"]
        assert note.read_text() == "x"


async def test_a_cancelled_call_is_cancelled_at_the_process(tmp_path: Path) -> None:
    file = tmp_path / "slow"
    async with app_of(process()) as app, client(app) as mcp:
        await until(True, listed(mcp))
        arguments = {"file": str(file)}
        asked = wire.message("tools/call", {"name": "up__slow", "arguments": arguments})
        async with Exchange(app, asked):

            async def begun() -> bool:
                return file.exists()

            await until(True, begun)

        async def content() -> str:
            return file.read_text()

        await until("cancelled", content)


async def test_a_call_that_is_given_up_for_its_notifications_is_cancelled_at_the_process() -> None:
    def refuse(method: str, params: dict[str, Any]) -> None:
        raise BadAnswer("The server sends notifications without end")

    sent: list[Any] = []
    link = stdio.StdioLink(
        Program([sys.executable, str(PROGRAM)], {}),
        info={},
        capabilities={},
        limits=Limits(),
        observer=lambda way, message, _: sent.append(message.get("method") if way == "sent" else 0),
    )
    link.version = "2025-11-25"
    listener = Listener(refuse, meta={"progressToken": "token"})
    try:
        with pytest.raises(BadAnswer, match="without end"):
            await link.request("tools/call", {"name": "count"}, may_repeat=False, listener=listener)
        assert "notifications/cancelled" in sent
    finally:
        await link.end_session()


async def test_a_request_counts_as_sent_although_an_answer_could_not_be_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(request_id: Any, method: str, params: dict[str, Any]) -> dict[str, Any]:
        monkeypatch.setattr(stdio, "MAX_UNWRITTEN", -1)  # as if the process no longer read
        return {"result": {}}

    program = Program([sys.executable, str(PROGRAM)], {})
    link = stdio.StdioLink(program, info={}, capabilities={}, limits=Limits())
    link.version = "2025-11-25"
    listener = Listener(on_request=refuse)
    try:
        with pytest.raises(ConnectionLost, match="does not read its input") as lost:
            await link.request("tools/call", {"name": "ask"}, may_repeat=False, listener=listener)
        assert lost.value.was_sent
    finally:
        await link.end_session()


async def test_a_process_that_asks_is_told_why_not() -> None:
    async with gateway_of(process()) as mcp:
        await until(True, listed(mcp))
        answer = await mcp.call("up__ask", clientCapabilities={"elicitation": {}})
        assert answer["isError"]
        assert "elicitation/create is not supported" in answer["content"][0]["text"]


@pytest.mark.parametrize("how", [["stubborn"], []])
async def test_nothing_is_left_of_a_process_when_the_gateway_ends(
    how: list[str], tmp_path: Path
) -> None:
    child = tmp_path / "child"
    before = len(os.listdir("/proc/self/fd"))
    async with gateway_of(process("child", str(child), *how)) as mcp:
        await until(True, listed(mcp))
        pid = int(await mcp.text("up__pid"))
        assert is_running(pid)
    await ended(pid)
    await ended(int(child.read_text()))
    await asyncio.sleep(0.05)
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("how", [[], ["apart"]])
async def test_the_end_of_a_process_is_noticed_although_a_child_holds_its_output(
    how: list[str], tmp_path: Path
) -> None:
    child = tmp_path / "child"
    program = Program([sys.executable, str(PROGRAM), "child", str(child), *how], {})
    link = stdio.StdioLink(program, info={}, capabilities={}, limits=Limits())
    link.version = "2025-11-25"
    try:
        async with asyncio.timeout(60):
            with pytest.raises(ConnectionLost, match="status 7"):
                await link.request("tools/call", {"name": "crash"}, may_repeat=False)
        if not how:
            await ended(int(child.read_text()))
    finally:
        if is_running(left := int(child.read_text())):
            os.kill(left, signal.SIGKILL)
        await link.end_session()
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("limits", "name"),
    [(Limits(request_s=0.2), "request_s"), (Limits(idle_s=0.2), "idle_s")],
    ids=["request", "idle"],
)
async def test_the_limit_that_ended_the_wait_for_an_answer_is_named(
    tmp_path: Path, limits: Limits, name: str
) -> None:
    program = Program([sys.executable, str(PROGRAM)], {})
    arguments = {"name": "slow", "arguments": {"file": str(tmp_path / "slow")}}
    link = stdio.StdioLink(program, info={}, capabilities={}, limits=limits)
    link.version = "2025-11-25"
    try:
        with pytest.raises(TimedOut, match=rf"within 0\.2 s \(limit {name}\)"):
            await link.request("tools/call", arguments, may_repeat=False)
    finally:
        await link.end_session()


async def test_the_id_of_a_process_that_ended_long_ago_gets_no_signal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = Program([sys.executable, str(PROGRAM)], {})
    link = stdio.StdioLink(program, info={}, capabilities={}, limits=Limits())
    link.version = "2025-11-25"
    with pytest.raises(ConnectionLost, match="status 7"):
        await link.request("tools/call", {"name": "crash"}, may_repeat=False)
    await asyncio.sleep(3 * stdio.EXIT_POLL_S)
    signalled: list[int] = []  # another group may have the id now
    monkeypatch.setattr(os, "killpg", lambda group, number: signalled.append(group))
    await link.end_session()
    assert signalled == []


async def test_a_process_that_closes_its_output_and_runs_on_is_ended() -> None:
    code = "import os, time; input(); os.close(1); time.sleep(600)"
    program = Program([sys.executable, "-c", code], {})
    link = stdio.StdioLink(program, info={}, capabilities={}, limits=Limits())
    link.version = "2025-11-25"
    try:
        with pytest.raises(ConnectionLost, match="status -9"):
            await link.request("tools/call", {"name": "x"}, may_repeat=False)
    finally:
        await link.end_session()


async def test_a_process_that_babbles_is_ended() -> None:
    async with gateway_of(process("babbles")) as mcp:

        async def state() -> str:
            return str((await health(mcp))["status"])

        await until("down", state)


async def test_a_message_beyond_the_limit_is_a_tool_error_and_the_server_starts_again() -> None:
    async with gateway_of(process(max_response_bytes=2_000)) as mcp:
        await until(True, listed(mcp))
        flooded = await mcp.call("up__flood")
        assert flooded["isError"]
        assert "2000 bytes (max_response_bytes)" in flooded["content"][0]["text"]

        async def answer() -> bool:
            return not (await mcp.call("up__pid")).get("isError", False)

        await until(True, answer)


async def test_a_process_that_does_not_read_holds_no_call_for_ever() -> None:
    async with gateway_of(process("deaf", timeout_s=0.5)) as mcp:
        await until(True, listed(mcp))
        large = {"text": "x" * 300_000}  # more than a pipe holds
        answers = await asyncio.gather(*(mcp.call("up__echo", large) for _ in range(3)))
        assert all("did not answer" in one["content"][0]["text"] for one in answers)


async def test_a_process_that_hangs_is_started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_backend, "POLL_S", 0.2)
    monkeypatch.setattr(mcp_backend, "LEAST_PAUSE_S", 0.05)
    async with app_of(process(timeout_s=1)) as app, client(app) as mcp:
        monkeypatch.setattr(mcp_backend, "POLL_S", 60)
        await until(True, listed(mcp))
        pid = int(await mcp.text("up__pid"))
        os.kill(pid, signal.SIGSTOP)
        monkeypatch.setattr(mcp_backend, "POLL_S", 0.2)
        (backend,) = app.state.core.serving.now.backends
        backend.core._wake()
        await ended(pid)
        monkeypatch.setattr(mcp_backend, "POLL_S", 60)

        async def other() -> bool:
            answer = await mcp.call("up__pid")
            return not answer.get("isError") and answer["content"][0]["text"] != str(pid)

        await until(True, other)


async def test_a_program_that_is_not_there_is_named_and_holds_nothing_up() -> None:
    missing = {"kind": "mcp", "name": "up", "command": ["/nowhere/to/be/found"]}
    async with gateway_of(missing) as mcp:
        assert await names(mcp) == []
    with pytest.raises(ConfigError, match="'/nowhere/to/be/found' cannot be started: No such file"):
        await asyncio.to_thread(loading.load, config_of({"backends": [missing]}))


def test_aws_lambda_refuses_a_process() -> None:
    file = config_of({"backends": [process()]})
    for settings in ({"is_cold": True}, {"asks_servers": False}):
        with pytest.raises(ConfigError, match="AWS Lambda freezes and ends processes"):
            loading.load(file, **settings)  # type: ignore[arg-type]


async def test_the_official_sdk_over_its_standard_streams(tmp_path: Path) -> None:
    program = tmp_path / "server.py"
    program.write_text(
        "from mcp.server.mcpserver import MCPServer\n"
        "server = MCPServer('official')\n\n"
        "@server.tool()\n"
        "def add(a: int, b: int) -> int:\n"
        "    return a + b\n\n"
        "server.run('stdio')\n"
    )
    command = {"kind": "mcp", "name": "up", "command": [sys.executable, str(program)]}
    async with gateway_of(command) as mcp:
        await until(["up__add"], lambda: names(mcp))

        async def added() -> Any:
            return (await mcp.call("up__add", {"a": 1, "b": 2})).get("structuredContent")

        # on a busy machine the first process may be ended as too slow, and a call says so
        await until({"result": 3}, added)


def write_config(folder: Path, version: int, **backend: Any) -> Path:
    """A gateway.yaml with a server that is a process, and starts once there is a file `gate`."""
    path = folder / "gateway.yaml"
    wait = f"while [ ! -e {folder}/gate ]; do sleep 0.02; done"
    run = ["sh", "-c", f"{wait}; exec {sys.executable} {PROGRAM} modern"]
    up = {"kind": "mcp", "name": "up", "command": run, **backend}
    path.write_text(json.dumps({"server": {"version": str(version)}, "backends": [up]}))
    return path


def version_of(mcp: Any) -> Callable[[], Awaitable[str]]:
    async def version() -> str:
        return str((await mcp.http.get("/healthz")).json()["version"])

    return version


async def test_a_reload_keeps_the_process_of_a_pinned_server(tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    path = write_config(tmp_path, 1, changes="quarantine")
    assert await asyncio.to_thread(main, ["compile", str(path)]) == 0
    lock = tmp_path / "up.lock"
    pinned = json.loads(lock.read_text())
    app = await asyncio.to_thread(built, config.load(path), Settings(reload=True))
    async with stoppable(app), client(app) as mcp:
        await until(True, listed(mcp))
        pid = await mcp.text("up__pid")
        write_config(tmp_path, 2, changes="quarantine")
        await until("2", version_of(mcp))
        assert await mcp.text("up__pid") == pid
        lock.touch()
        write_config(tmp_path, 3, changes="quarantine")
        await until("3", version_of(mcp))
        assert await mcp.text("up__pid") == pid
        del pinned["tools"]["echo"]
        lock.write_text(json.dumps(pinned))
        await until(False, listed(mcp))
        assert await mcp.text("up__pid") == pid


async def test_the_old_process_serves_until_the_new_one_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    path = write_config(tmp_path, 1)
    app = await asyncio.to_thread(built, config.load(path), Settings(reload=True))
    async with stoppable(app), client(app) as mcp:
        await until(True, listed(mcp))
        old = await mcp.text("up__pid")
        gate.unlink()
        monkeypatch.setattr(mcp_backend, "START_S", 0.5)
        write_config(tmp_path, 2, refresh_s=100)
        await asyncio.sleep(2)  # a start would not have waited for so long
        assert await mcp.text("up__pid") == old
        gate.touch()
        await until("2", version_of(mcp))
        assert await mcp.text("up__pid") != old
