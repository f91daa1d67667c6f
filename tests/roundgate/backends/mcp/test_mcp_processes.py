"""Servers that are processes: started, restarted, and ended with everything that they started."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from roundgate import config
from roundgate.backends.mcp import backend as mcp_backend
from roundgate.backends.mcp import server as mcp_server
from roundgate.cli import main
from roundgate.client import Limits, stdio
from roundgate.client.messages import Listener
from roundgate.client.stdio import StdioLink
from roundgate.errors import BadAnswer, ConfigError, ConnectionLost, TimedOut
from roundgate.runtime import loading
from roundgate.settings import Settings
from tests.support import wire
from tests.support.asgi import Client, Exchange, built, client, config_of, stoppable
from tests.support.upstreams import (
    PROGRAM,
    app_of,
    gateway_of,
    health,
    linked,
    names,
    process,
    state,
    until,
)

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
    await until(False, lambda: is_running(pid))


async def is_listed(mcp: Client) -> bool:
    return "up__echo" in await names(mcp)


@asynccontextmanager
async def listed(*how: str, **settings: Any) -> AsyncIterator[Client]:
    """A client of a gateway that has listed the tools of a process."""
    async with gateway_of(process(*how, **settings)) as mcp:
        await until(True, lambda: is_listed(mcp))
        yield mcp


async def is_another(mcp: Client, pid: str = "") -> bool:
    """Whether a call is answered by another process."""
    answer = await mcp.call("up__pid")
    return not answer.get("isError") and answer["content"][0]["text"] != pid


async def call(link: StdioLink, name: str, **arguments: Any) -> Any:
    params = {"name": name, "arguments": arguments}
    return await link.request("tools/call", params, may_repeat=False)


@pytest.mark.parametrize("how", [[], ["modern"], ["silent"], ["leaves"], ["noisy"]])
async def test_a_process_of_any_revision_is_spoken_to(
    how: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == ["silent"]:
        monkeypatch.setattr(stdio, "PROBE_S", 1.0)
    async with listed(*how) as mcp:
        assert json.loads(await mcp.text("up__echo", ECHO)) == ECHO
        state = await health(mcp)
        expected = "2026-07-28" if how == ["modern"] else "2025-11-25"
        assert (state["status"], state["revision"]) == ("up", expected)


async def test_calls_share_one_process_whose_messages_do_not_mix() -> None:
    async with listed() as mcp:
        found = await asyncio.gather(*(mcp.text("up__pid") for _ in range(10)))
        assert len(set(found)) == 1
        counted = await asyncio.gather(
            *(mcp.post("tools/call", {"name": "up__count"}, progressToken=n) for n in range(5))
        )
        for number, response in enumerate(counted):
            *notices, last = wire.events(response.text)
            assert [one["params"]["progressToken"] for one in notices] == [number] * 2
            assert last["result"]["content"][0]["text"] == "counted"
        answer = await mcp.call("up__ask", clientCapabilities={"elicitation": {}})
        assert answer["isError"]
        assert "elicitation/create is not supported" in answer["content"][0]["text"]


async def test_a_process_gets_no_secrets_of_the_gateway_and_callers_get_none_of_the_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GATEWAY_STATE_KEYS_SECRET", "secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    (tmp_path / "sub").mkdir()
    (tmp_path / "url").write_text("postgres://u:pppppppp@db")
    variables = {"DB": "${file:url}", "ZONE": "Europe/Vienna", "API_KEY": "kkkkkkkkkkkk"}
    backend = process(env=variables, cwd=str(tmp_path / "sub"))
    path = tmp_path / "gateway.yaml"
    path.write_text(json.dumps({"auth": "none", "backends": [backend]}))
    app = await asyncio.to_thread(built, config.load(path))
    async with stoppable(app), client(app) as mcp:
        await until(True, lambda: is_listed(mcp))
        env = json.loads(await mcp.text("up__env"))
    assert env["API_KEY"] == env["DB"] == "[redacted]"  # by its name, and as a reference
    assert env["ZONE"] == "Europe/Vienna"
    assert env["PATH"] == os.environ["PATH"]
    assert {name for name in env if name.startswith(("GATEWAY_", "AWS_"))} == set()


async def test_its_standard_error_is_in_the_log_without_any_part_of_a_secret(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "roundgate.backends")
    secret = "kV9-very-secret-token"

    def lines() -> list[Any]:
        told = [one for one in caplog.records if one.msg == "standard error of a server"]
        return [one.__dict__["fields"] for one in told]

    async with listed(env={"API_KEY": secret}) as mcp:
        await mcp.call("up__complain")
        await until([{"backend": "up", "line": "something is wrong"}], lines)
        await mcp.call("up__complain", {"line": "." * 1_990 + secret})  # beyond the longest line
        await until(True, lambda: len(lines()) > 1)
        assert secret[:5] not in str(lines())


async def test_a_process_that_dies_in_a_call_is_one_tool_error_and_starts_again() -> None:
    async with listed() as mcp:
        pid = await mcp.text("up__pid")
        died = await mcp.call("up__crash")
        assert died["isError"]
        assert "may have taken effect" in died["content"][0]["text"]

        await until(True, lambda: is_another(mcp, pid))


async def test_a_call_that_a_process_died_of_is_not_sent_again(tmp_path: Path) -> None:
    note = tmp_path / "calls"
    async with listed("once", str(note), retry={"attempts": 3}) as mcp:
        assert (await mcp.call("up__echo"))["isError"]
        assert note.read_text() == "x"


async def test_a_cancelled_call_is_cancelled_at_the_process(tmp_path: Path) -> None:
    file = tmp_path / "slow"
    async with app_of(process()) as app, client(app) as mcp:
        await until(True, lambda: is_listed(mcp))
        arguments = {"file": str(file)}
        asked = wire.message("tools/call", {"name": "up__slow", "arguments": arguments})
        async with Exchange(app, asked):
            await until(True, file.exists)

        await until("cancelled", file.read_text)


async def test_a_call_that_is_given_up_for_its_notifications_is_cancelled_at_the_process() -> None:
    def refuse(method: str, params: dict[str, Any]) -> None:
        raise BadAnswer("The server sends notifications without end")

    def observe(way: str, message: Any, _: Any) -> None:
        sent.append(message.get("method") if way == "sent" else 0)

    sent: list[Any] = []
    listener = Listener(refuse, meta={"progressToken": "token"})
    async with linked(str(PROGRAM), observer=observe) as link:
        with pytest.raises(BadAnswer, match="without end"):
            await link.request("tools/call", {"name": "count"}, may_repeat=False, listener=listener)
        assert "notifications/cancelled" in sent


async def test_a_request_counts_as_sent_although_an_answer_could_not_be_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(request_id: Any, method: str, params: dict[str, Any]) -> dict[str, Any]:
        monkeypatch.setattr(stdio, "MAX_UNWRITTEN", -1)  # as if the process no longer read
        return {"result": {}}

    listener = Listener(on_request=refuse)
    async with linked(str(PROGRAM)) as link:
        with pytest.raises(ConnectionLost, match="does not read its input") as lost:
            await link.request("tools/call", {"name": "ask"}, may_repeat=False, listener=listener)
        assert lost.value.was_sent


@pytest.mark.parametrize("how", [["stubborn"], []])
async def test_nothing_is_left_of_a_process_when_the_gateway_ends(
    how: list[str], tmp_path: Path
) -> None:
    child = tmp_path / "child"
    before = len(os.listdir("/proc/self/fd"))
    async with listed("child", str(child), *how) as mcp:
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
    async with linked(str(PROGRAM), "child", str(child), *how) as link:
        try:
            async with asyncio.timeout(60):
                with pytest.raises(ConnectionLost, match="status 7"):
                    await call(link, "crash")
            if not how:
                await ended(int(child.read_text()))
        finally:
            if is_running(left := int(child.read_text())):
                os.kill(left, signal.SIGKILL)
    await asyncio.sleep(0.05)


@pytest.mark.parametrize("name", ["request_s", "idle_s"])
async def test_the_limit_that_ended_the_wait_for_an_answer_is_named(
    tmp_path: Path, name: str
) -> None:
    limits: Any = {name: 0.2}
    async with linked(str(PROGRAM), limits=Limits(**limits)) as link:
        with pytest.raises(TimedOut, match=rf"within 0\.2 s \(limit {name}\)"):
            await call(link, "slow", file=str(tmp_path / "slow"))


async def test_the_id_of_a_process_that_ended_long_ago_gets_no_signal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    signalled: list[int] = []  # another group may have the id now
    async with linked(str(PROGRAM)) as link:
        with pytest.raises(ConnectionLost, match="status 7"):
            await call(link, "crash")
        await asyncio.sleep(3 * stdio.EXIT_POLL_S)
        monkeypatch.setattr(os, "killpg", lambda group, number: signalled.append(group))
    assert signalled == []


async def test_a_process_that_closes_its_output_and_runs_on_is_ended() -> None:
    code = "import os, time; input(); os.close(1); time.sleep(600)"
    async with linked("-c", code) as link:
        with pytest.raises(ConnectionLost, match="status -9"):
            await call(link, "x")


async def test_a_process_that_babbles_is_ended() -> None:
    async with gateway_of(process("babbles")) as mcp:
        await until("down", lambda: state(mcp, "status"))


async def test_a_message_beyond_the_limit_is_a_tool_error_and_the_server_starts_again() -> None:
    async with listed(max_response_bytes=2_000) as mcp:
        flooded = await mcp.call("up__flood")
        assert flooded["isError"]
        assert "2000 bytes (max_response_bytes)" in flooded["content"][0]["text"]

        await until(True, lambda: is_another(mcp))


async def test_a_process_that_does_not_read_holds_no_call_for_ever() -> None:
    async with listed("deaf", timeout_s=0.5) as mcp:
        large = {"text": "x" * 300_000}  # more than a pipe holds
        answers = await asyncio.gather(*(mcp.call("up__echo", large) for _ in range(3)))
        assert all("did not answer" in one["content"][0]["text"] for one in answers)


async def test_a_process_that_hangs_is_started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_backend, "POLL_S", 0.2)
    monkeypatch.setattr(mcp_backend, "LEAST_PAUSE_S", 0.05)
    async with app_of(process(timeout_s=1)) as app, client(app) as mcp:
        monkeypatch.setattr(mcp_backend, "POLL_S", 60)
        await until(True, lambda: is_listed(mcp))
        pid = int(await mcp.text("up__pid"))
        os.kill(pid, signal.SIGSTOP)
        monkeypatch.setattr(mcp_backend, "POLL_S", 0.2)
        (backend,) = app.state.core.serving.now.backends
        backend.core._wake()
        await ended(pid)
        monkeypatch.setattr(mcp_backend, "POLL_S", 60)

        await until(True, lambda: is_another(mcp, str(pid)))


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


def write_config(folder: Path, version: int, **backend: Any) -> Path:
    """A gateway.yaml with a server that is a process, and starts once there is a file `gate`."""
    path = folder / "gateway.yaml"
    wait = f"while [ ! -e {folder}/gate ]; do sleep 0.02; done"
    run = ["sh", "-c", f"{wait}; exec {sys.executable} {PROGRAM} modern"]
    up = {"kind": "mcp", "name": "up", "command": run, **backend}
    path.write_text(json.dumps({"server": {"version": str(version)}, "backends": [up]}))
    return path


async def version(mcp: Client) -> Any:
    return (await mcp.http.get("/healthz")).json()["version"]


async def test_a_reload_keeps_the_process_of_a_pinned_server(tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    path = write_config(tmp_path, 1, changes="quarantine")
    assert await asyncio.to_thread(main, ["compile", str(path)]) == 0
    lock = tmp_path / "up.lock"
    pinned = json.loads(lock.read_text())
    app = await asyncio.to_thread(built, config.load(path), Settings(reload=True))
    async with stoppable(app), client(app) as mcp:
        await until(True, lambda: is_listed(mcp))
        pid = await mcp.text("up__pid")
        write_config(tmp_path, 2, changes="quarantine")
        await until("2", lambda: version(mcp))
        assert await mcp.text("up__pid") == pid
        lock.touch()
        write_config(tmp_path, 3, changes="quarantine")
        await until("3", lambda: version(mcp))
        assert await mcp.text("up__pid") == pid
        del pinned["tools"]["echo"]
        lock.write_text(json.dumps(pinned))
        await until(False, lambda: is_listed(mcp))
        assert await mcp.text("up__pid") == pid


async def test_the_old_process_serves_until_the_new_one_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    path = write_config(tmp_path, 1)
    app = await asyncio.to_thread(built, config.load(path), Settings(reload=True))
    async with stoppable(app), client(app) as mcp:
        await until(True, lambda: is_listed(mcp))
        old = await mcp.text("up__pid")
        gate.unlink()
        monkeypatch.setattr(mcp_backend, "START_S", 0.5)
        write_config(tmp_path, 2, refresh_s=100)
        await asyncio.sleep(2)  # a start would not have waited for so long
        assert await mcp.text("up__pid") == old
        gate.touch()
        await until("2", lambda: version(mcp))
        assert await mcp.text("up__pid") != old
