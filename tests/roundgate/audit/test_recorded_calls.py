"""The audit log has who called which tool, what they were asked, by digest what they answered, what
they approved and what came of it; and nothing in clear."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roundgate import Context, prompt, resource, tool
from roundgate.cli import main
from roundgate.clock import Clock
from roundgate.config import ConfigFile
from roundgate.errors import ConfigError, ToolError
from roundgate.json import encode
from roundgate.main import build_app
from roundgate.methods.rounds import IDEMPOTENCY_KEY
from roundgate.settings.process import Settings
from roundgate.storage import TaskRef
from roundgate.storage.sqlite import queue
from roundgate.tasks import events
from tests.support.asgi import STATE_KEY, built, client, config_file
from tests.support.audit import (
    DIGESTS,
    KEY,
    audited,
    blocked,
    files,
    records,
    text,
    verified,
    written,
)
from tests.support.issuer import ISSUER, bearer, gateway_for, token
from tests.support.log_lines import log_lines
from tests.support.rounds import Name, accept, ask, retry
from tests.support.sessions import calling, opened
from tests.support.task_client import DECLARED, TaskClient, ref_of, serving, tasked

SECRET = "tell-nobody-4711"


@tool
async def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@tool
async def greet(ctx: Context, greeting: str = "") -> str:
    """Asks who it is."""
    return f"Hello {(await ctx.elicit('who', 'Who are you?', Name)).name}"


@tool
async def fails(secret: str) -> str:
    """Fails."""
    raise ToolError(f"no {secret}")


@tool(destructive=True)
async def wipe(disk: str) -> str:
    """Wipes a disk."""
    return "wiped"


@tool(task="optional")
async def ship(ctx: Context, parcel: str) -> str:
    """Asks, and goes on as a task that asks once more."""
    who = await ctx.elicit("who", "For whom?", Name)
    await ctx.continue_as_task()
    where = await ctx.elicit("where", "Where to?", Name)
    return f"{parcel} to {who.name} in {where.name}"


@tool(scopes=["keys"])
async def unlock() -> str:
    """Needs more than most callers have."""
    return "unlocked"


@prompt
async def letter(ctx: Context, to: str) -> str:
    """A letter."""
    return f"Dear {to}"


@resource("notes://all")
async def notes() -> str:
    """All notes."""
    return "none"


TOOLS = (add, greet, fails, wipe, ship)
QUICK = {"sweep_every_s": 0.2, "requeue_after_s": 1, "lease_s": 3}


def facts(record: dict[str, Any], *names: str) -> tuple[Any, ...]:
    """Members of a record."""
    return tuple(record.get(name) for name in names)


async def test_a_call_has_a_record_before_its_handler_and_one_after(tmp_path: Path) -> None:
    async with tasked(tmp_path, *TOOLS, audit=audited(tmp_path)) as ann:
        await ann.mcp.call("add", {"a": 1, "b": 2})
        await ann.mcp.call("fails", {"secret": SECRET})
        await ann.mcp.post("tools/list")
    directory = tmp_path / "audit"
    called, ended, *failed = records(directory, "called", "ended")
    assert facts(called, "method", "name", "backend", "view", "round") == (
        *("tools/call", "add", "python", ""),
        1,
    )
    assert called["who"] == {"issuer": "local", "subject": "local", "client": ""}
    assert called["arguments"] == DIGESTS.of({"b": 2, "a": 1})
    assert facts(ended, "call", "outcome") == (called["call"], "ok")
    assert failed[1]["outcome"] == "tool_error"
    assert SECRET not in text(directory)
    assert verified(directory).problems == []
    started, stopped = records(directory, "started", "stopped")
    assert facts(started, "role", "key") == ("gateway", DIGESTS.key_id)
    assert stopped["n"] == 5


async def test_the_rounds_of_a_call_have_one_id_with_questions_and_answers(tmp_path: Path) -> None:
    params = {"name": "greet", "arguments": {"greeting": SECRET}}
    async with tasked(tmp_path, *TOOLS, audit=audited(tmp_path)) as ann:
        asked = await ask(ann.mcp, "tools/call", params)
        await ann.mcp.post("tools/call", retry(params, asked, who=accept(name=SECRET)))
    directory = tmp_path / "audit"
    first, questions, pause, second, end = records(directory, "called", "asked", "ended")
    assert {record["call"] for record in (first, questions, pause, second, end)} == {first["call"]}
    assert [record["round"] for record in (first, questions, pause, second, end)] == [1, 1, 1, 2, 2]
    assert questions["questions"] == {"who": DIGESTS.of(asked["inputRequests"]["who"])}
    answer = {"action": "accept", "digest": DIGESTS.of(accept(name=SECRET))}
    assert second["answers"] == {"who": answer}
    assert [pause["outcome"], end["outcome"]] == ["input_required", "ok"]
    assert SECRET not in text(directory)


@pytest.mark.parametrize(
    ("answer", "event", "outcome"),
    [
        (accept(approve=True), "approved", "ok"),
        (accept(approve=False), "declined", "tool_error"),
        ({"action": "decline"}, "declined", "tool_error"),
    ],
)
async def test_an_approval_is_recorded_with_its_caller_and_runs_once(
    tmp_path: Path, answer: dict[str, Any], event: str, outcome: str
) -> None:
    params = {"name": "wipe", "arguments": {"disk": SECRET}}
    sections = {"audit": audited(tmp_path), "backend": {"approve": "destructive"}}
    async with tasked(tmp_path, *TOOLS, **sections) as ann:
        asked = await ask(ann.mcp, "tools/call", params)
        for _ in range(2):  # the answer was lost, and the client sends it again
            await ann.mcp.post("tools/call", retry(params, asked, approve=answer))
    directory = tmp_path / "audit"
    (decided,) = records(directory, "approved", "declined")
    called, *_ = records(directory, "called")
    assert facts(decided, "event", "call", "tool") == (event, called["call"], "wipe")
    assert decided["who"]["subject"] == "local"
    assert [record["outcome"] for record in records(directory, "ran")][1:] == [outcome]
    assert [record["outcome"] for record in records(directory, "ended")][1:] == [outcome] * 2
    assert SECRET not in text(directory)


async def test_a_round_that_got_no_place_is_not_recorded_as_run(tmp_path: Path) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    @tool(once=True)
    async def order(ctx: Context) -> str:
        begun.set()
        await may_end.wait()
        return "ordered"

    sections = {
        "audit": audited(tmp_path),
        "backend": {"limits": {"concurrent": 1, "wait_s": 0.01}},
    }
    async with tasked(tmp_path, order, **sections) as ann:

        async def send(key: str) -> str:
            meta: dict[str, Any] = {IDEMPOTENCY_KEY: key}
            result = await ann.mcp.result("tools/call", {"name": "order", "arguments": {}}, **meta)
            return str(result["content"][0]["text"])

        first = asyncio.create_task(send("first"))
        await begun.wait()
        assert "is busy" in await send("second")
        may_end.set()
        assert [await first, await send("second")] == ["ordered"] * 2
    outcomes = [record["outcome"] for record in records(tmp_path / "audit", "ran")]
    assert outcomes == ["ok", "ok"]


async def test_a_call_through_search_has_the_tool_that_runs(tmp_path: Path) -> None:
    async with tasked(tmp_path, *TOOLS, search={}, audit=audited(tmp_path)) as ann:
        through = {"name": "add", "arguments": {"a": 1, "b": 2}}
        await ann.mcp.call("call_tool", through)
        await ann.mcp.call("call_tool", {"name": "none"})
    called, ended, unknown = records(tmp_path / "audit", "called", "ended", "refused")
    assert facts(called, "name", "through") == ("add", "call_tool")
    assert called["arguments"] == DIGESTS.of({"a": 1, "b": 2})
    assert ended["call"] == called["call"]
    assert facts(unknown, "event", "name", "outcome") == ("ended", "call_tool", "tool_error")


async def test_a_task_is_recorded_until_its_end(tmp_path: Path) -> None:
    params = {"name": "ship", "arguments": {"parcel": SECRET}}
    async with tasked(tmp_path, *TOOLS, audit=audited(tmp_path)) as ann:
        asked = await ask(ann.mcp, "tools/call", params, **DECLARED)
        again = retry(params, asked, who=accept(name=SECRET))
        created = (await ann.send("tools/call", again)).json()["result"]
        await ann.asked(created["taskId"])
        await ann.answer(created["taskId"], {"where": accept(name=SECRET)})
        await ann.text(created["taskId"])
        second = (await ann.send("tools/call", again)).json()["result"]
        assert second["taskId"] == created["taskId"]
        await written(tmp_path / "audit", "turn_ended", 2)
    directory, ref = tmp_path / "audit", ref_of(created["taskId"])
    call = records(directory, "called")[0]["call"]
    events = [record["event"] for record in records(directory) if record.get("task") == ref]
    assert events.count("task_created") == events.count("task_ended") == 1
    assert events.count("turn") == events.count("turn_ended") == 2
    (answered,) = records(directory, "answered")
    assert answered["answers"]["where"]["digest"] == DIGESTS.of(accept(name=SECRET))
    (end,) = records(directory, "task_ended")
    assert facts(end, "call", "tool", "outcome") == (call, "ship", "ok")
    in_task = [record for record in records(directory, "asked") if "task" in record]
    assert [record["questions"].keys() for record in in_task] == [{"where"}]
    assert {turn["call"] for turn in records(directory, "turn", "turn_ended")} == {call}
    assert SECRET not in text(directory)
    assert verified(directory).problems == []


async def test_a_caller_that_cancels_a_task_is_recorded(tmp_path: Path) -> None:
    params = {"name": "ship", "arguments": {"parcel": "a"}}
    async with tasked(tmp_path, *TOOLS, audit=audited(tmp_path)) as ann:
        asked = await ask(ann.mcp, "tools/call", params, **DECLARED)
        again = retry(params, asked, who=accept(name="Ann"))
        created = (await ann.send("tools/call", again)).json()["result"]
        await ann.asked(created["taskId"])
        await ann.cancel(created["taskId"])
    (cancel,) = records(tmp_path / "audit", "cancel")
    assert facts(cancel, "task") == (ref_of(created["taskId"]),)
    assert cancel["who"]["subject"] == "local"
    (end,) = records(tmp_path / "audit", "task_ended")
    assert end["outcome"] == "cancelled"


async def test_a_request_that_is_refused_is_recorded_with_its_caller(tmp_path: Path) -> None:
    async with gateway_for(unlock, greet, audit=audited(tmp_path)) as (mcp, _):
        denied = await mcp.post("tools/call", {"name": "unlock"}, headers=bearer(token()))
        assert denied.status_code == 403
        await mcp.post("tools/call", {"name": "none"}, headers=bearer(token()))
        forged = {"name": "greet", "arguments": {}, "requestState": SECRET}
        await mcp.post("tools/call", forged, headers=bearer(token()))
    refused = records(tmp_path / "audit", "refused")
    assert [facts(record, "name", "reason") for record in refused] == [
        ("unlock", "InsufficientScope"),
        ("none", "InvalidParams"),
        ("greet", "StateRefused"),
    ]
    caller = {"issuer": ISSUER, "subject": "ann", "client": "cli"}
    assert all(record["who"] == caller for record in refused)
    assert SECRET not in text(tmp_path / "audit")


async def test_prompts_and_resources_are_recorded(tmp_path: Path) -> None:
    async with tasked(tmp_path, letter, notes, audit=audited(tmp_path)) as ann:
        await ann.mcp.result("prompts/get", {"name": "letter", "arguments": {"to": SECRET}})
        await ann.mcp.result("resources/read", {"uri": "notes://all"})
    called = records(tmp_path / "audit", "called")
    assert [facts(record, "method", "name") for record in called] == [
        ("prompts/get", "letter"),
        ("resources/read", "notes://all"),
    ]
    assert SECRET not in text(tmp_path / "audit")


async def test_a_call_of_a_client_with_a_session_is_one_call(tmp_path: Path) -> None:
    app = built(config_file(*TOOLS, audit=audited(tmp_path)))
    session = await opened(app)
    async with session.stream(app, calling("greet", greeting=SECRET)) as stream:
        question = await stream.asked()
        await session.answer(app, question, accept(name=SECRET))
        await stream.message()
    directory = tmp_path / "audit"
    called = records(directory, "called")
    assert [record["round"] for record in called] == [1, 2]
    assert len({record["call"] for record in called}) == 1
    assert called[1]["answers"]["who"]["action"] == "accept"
    assert records(directory, "task_created") == []
    assert SECRET not in text(directory)


async def test_calls_are_refused_while_the_log_cannot_be_written(tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    async with tasked(tmp_path, *TOOLS, audit=audited(tmp_path, max_file_bytes=4_096)) as ann:
        await ann.mcp.call("add", {"a": 1, "b": 2})
        with blocked(directory):
            status = 200
            for _ in range(20):
                response = await ann.mcp.post(
                    "tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}
                )
                if (status := response.status_code) != 200:
                    break
            assert (status, "audit log" in response.text) == (503, True)
            assert response.headers["retry-after"]
            health = (await ann.mcp.http.get("/healthz")).json()
            assert any("audit log" in trouble for trouble in health["troubles"])
        assert await ann.mcp.text("add", {"a": 1, "b": 2}) == "3"
        assert (await ann.mcp.http.get("/healthz")).json()["status"] == "ok"
    assert verified(directory).problems == []
    assert len(records(directory, "resumed")) == 1


async def test_workers_begin_no_turn_while_the_log_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "HIDDEN_MS", 2_000)  # until its message is delivered again
    directory = tmp_path / "audit"
    params = {"name": "ship", "arguments": {"parcel": "a"}}
    settings = audited(tmp_path, max_file_bytes=4_096)
    async with (
        serving(tmp_path, *TOOLS, audit=settings, tasks=QUICK) as app,
        client(app) as mcp,
    ):
        ann = TaskClient(mcp)
        asked = await ask(ann.mcp, "tools/call", params, **DECLARED)
        again = retry(params, asked, who=accept(name="Ann"))
        created = (await ann.send("tools/call", again)).json()["result"]
        await ann.asked(created["taskId"])
        await written(directory, "turn_ended")
        trail, tasks = app.state.core.trail, app.state.core.stores.tasks
        with blocked(directory), log_lines() as logged:
            while trail.trouble is None:
                trail.record("called", {"to": "fill the file"})
            ref, answer = TaskRef.parse(ref_of(created["taskId"])), encode(accept(name="Oslo"))
            now_ms = Clock().now_ms()
            await tasks.apply(ref, events.TakeAnswers({"where": answer}, now_ms), now_ms)
            async with asyncio.timeout(60):
                await until(lambda: logged.of("a task waits for the store or the queue"))
            assert (await ann.get(created["taskId"]))["status"] == "working"
        assert await ann.text(created["taskId"]) == "a to Ann in Oslo"
    assert verified(directory).problems == []
    assert len(records(directory, "resumed")) == 1


async def until(ready: Callable[[], object]) -> None:
    """Return once something is so."""
    while True:
        if ready():
            return
        await asyncio.sleep(0.05)


async def test_calls_go_on_while_the_log_cannot_be_written_if_configured(tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    settings = audited(tmp_path, max_file_bytes=4_096, on_failure="continue")
    async with tasked(tmp_path, *TOOLS, audit=settings) as ann:
        await ann.mcp.call("add", {"a": 1, "b": 2})
        with blocked(directory):
            for _ in range(20):
                assert await ann.mcp.text("add", {"a": 1, "b": 2}) == "3"
            for _ in range(3):  # refused before its round
                await ann.mcp.post("tools/call", {"name": "unknown", "arguments": {}})
        await ann.mcp.call("add", {"a": 1, "b": 2})
    assert verified(directory).problems == []
    assert len(records(directory, "called")) == len(records(directory, "ended")) == 22
    assert len(records(directory, "refused")) == 3


async def test_without_a_section_there_is_no_log(tmp_path: Path) -> None:
    async with tasked(tmp_path, *TOOLS) as ann:
        await ann.mcp.call("add", {"a": 1, "b": 2})
    assert files(tmp_path, "*audit*") == []


def problem(file: ConfigFile, **settings: Any) -> str:
    """Why a gateway does not start."""
    using = Settings(state_keys=STATE_KEY, store="sqlite:///unused.sqlite3", **settings)
    with pytest.raises(ConfigError) as refused:
        build_app(file, using)
    (problem,) = refused.value.problems
    assert problem.remedy
    return f"{problem.path} {problem.message}"


def test_a_log_that_cannot_be_written_prevents_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    blocked = config_file(add, audit={"directory": str(tmp_path / "file" / "audit"), "key": KEY})
    assert "audit.directory is not a directory" in problem(blocked)
    assert "audit.key is not 32 bytes" in problem(config_file(add, audit={"key": "c2hvcnQ="}))
    assert "audit.key is not set" in problem(config_file(add, audit={"to": "stdout"}))
    durable = config_file(add, audit={"to": "stdout", "key": KEY, "durable": True})
    assert "audit.durable is true" in problem(durable)
    on_lambda = config_file(add, audit=audited(tmp_path))
    assert "audit.to is files" in problem(on_lambda, on_lambda=True, allow_anonymous=True)


async def test_records_on_standard_output_can_be_verified(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    app = built(config_file(*TOOLS, audit={"to": "stdout", "key": KEY}))
    async with client(app) as mcp:
        for number in range(3):
            await mcp.call("add", {"a": number, "b": 2})
    await app.state.core.trail.aclose()
    lines = tmp_path / "lines"
    lines.write_text("START RequestId: 1\n" + capfd.readouterr().out)
    assert main(["audit", "verify", "--mixed", str(lines)]) == 0
    assert capfd.readouterr().out == "1 chains, 8 records, 0 checkpoints: no problems\n"
    assert main(["audit", "verify", str(lines)]) == 1


def test_check_finds_a_log_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_STORE", f"sqlite:///{tmp_path / 'gateway.sqlite3'}")
    (tmp_path / "tools.py").write_text(
        "from roundgate import tool\n\n@tool\ndef add(a: int) -> int:\n    return a\n"
    )
    path = tmp_path / "gateway.yaml"
    path.write_text(
        "audit: {directory: tools.py/audit}\n"
        "backends: [{kind: python, name: own, path: tools.py}]\n"
    )
    assert main(["check", str(path)]) == 1
    assert "audit.directory: is not a directory" in capsys.readouterr().err


async def test_a_section_without_settings_is_on(tmp_path: Path) -> None:
    directory = tmp_path / ".roundgate" / "audit"
    (tmp_path / "tools.py").write_text(
        "from roundgate import tool\n\n@tool\ndef add(a: int, b: int) -> int:\n    return a + b\n"
    )
    path = tmp_path / "gateway.yaml"
    path.write_text("audit:\nbackends: [{kind: python, name: own, prefix: '', path: tools.py}]\n")
    from roundgate import config

    app = built(config.load(path), Settings(config=path, store=f"sqlite:///{tmp_path}/s.sqlite3"))
    async with client(app) as mcp:
        await mcp.call("add", {"a": 1, "b": 2})
    assert [record["event"] for record in records(directory)] == ["started", "called", "ended"]
    assert (directory / "digest.key").stat().st_mode & 0o777 == 0o600


async def test_a_digest_can_be_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, arguments = tmp_path / "gateway.yaml", tmp_path / "arguments.json"
    monkeypatch.setenv("AUDIT_KEY", KEY)
    path.write_text(
        "audit: {key: '${AUDIT_KEY}'}\nbackends: [{kind: python, name: own, path: tools.py}]\n"
    )
    arguments.write_text('{"b": 2.0, "a": 1}')
    assert main(["audit", "digest", str(arguments), "--config", str(path)]) == 0
    assert capsys.readouterr().out.strip() == DIGESTS.of({"a": 1, "b": 2})


async def test_an_operator_is_recorded_before_and_after_the_act(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, path = tmp_path / "audit", tmp_path / "gateway.yaml"
    settings = json.dumps({"audit": audited(tmp_path)})
    path.write_text(f'{settings[:-1]}, "backends": [{{kind: python, name: own, path: tools.py}}]}}')
    monkeypatch.setenv("GATEWAY_STORE", f"sqlite:///{tmp_path / 'gateway.sqlite3'}")
    params = {"name": "ship", "arguments": {"parcel": "a"}}
    async with tasked(tmp_path, *TOOLS, audit=audited(tmp_path)) as ann:
        asked = await ask(ann.mcp, "tools/call", params, **DECLARED)
        again = retry(params, asked, who=accept(name="Ann"))
        created = (await ann.send("tools/call", again)).json()["result"]
        await ann.asked(created["taskId"])
        ref = ref_of(created["taskId"])
        command = ["tasks", "cancel", ref, "--config", str(path)]
        assert await asyncio.to_thread(main, command) == 0
        assert await asyncio.to_thread(main, ["tasks", "list", "--config", str(path)]) == 0
    capsys.readouterr()
    begun, ended = records(directory, "operator", "operator_ended")
    assert facts(begun, "action", "task") == ("cancel", ref)
    assert begun["who"]["user"]
    assert ended["outcome"] == "is cancelled"
    (task_ended,) = records(directory, "task_ended")
    assert task_ended["chain"] == begun["chain"]
    roles = [record["role"] for record in records(directory, "started")]
    assert sorted(roles) == ["command", "gateway"]

    call = records(directory, "called")[0]["call"]
    assert main(["audit", "show", call, "--config", str(path)]) == 0
    shown = capsys.readouterr().out
    for event in ("called", "asked", "task_created", "operator", "task_ended"):
        assert f"  {event} " in shown
    assert main(["audit", "verify", "--config", str(path)]) == 0
