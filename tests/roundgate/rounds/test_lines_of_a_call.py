"""The log names the tool that really runs, who called it, and what belongs to one call; and nothing
that was said to it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roundgate import Context, Form, tool
from roundgate.auth import task_owner
from roundgate.auth.principal import LOCAL
from roundgate.settings.process import Settings
from tests.support.asgi import client, gateway
from tests.support.issuer import ISSUER, bearer, gateway_for, token
from tests.support.log_lines import LogLines, log_lines
from tests.support.replay import Name
from tests.support.rounds import CAPABILITIES, KEYS, accept, ask, retry
from tests.support.sessions import calling, opened, request
from tests.support.task_client import DECLARED, tasked

SECRET = "tell-nobody-4711"


@tool
async def greet(ctx: Context, greeting: str = "") -> str:
    """Asks who it is."""
    return f"Hello {(await ctx.elicit('who', 'Who are you?', Name)).name}"


@tool(task="optional")
async def ship(ctx: Context, parcel: str) -> str:
    """Asks, and goes on as a task that asks once more."""
    who = await ctx.elicit("who", "For whom?", Name)
    await ctx.continue_as_task()
    where = await ctx.elicit("where", "Where to?", Name)
    return f"{parcel} to {who.name} in {where.name}"


@tool(destructive=True)
async def wipe(disk: str) -> str:
    """Wipes a disk."""
    return "wiped"


@tool(task="required")
async def approved_later(ctx: Context) -> str:
    """Asks for an approval when it is a task already."""
    await ctx.continue_as_task()
    schema = {
        "type": "object",
        "properties": {"approve": {"type": "boolean", "title": "Go ahead", "default": False}},
        "required": ["approve"],
    }
    answer = (await ctx.ask({"approve": Form("Sure?", schema)}))["approve"]
    again = await ctx.elicit("who", "Who are you?", Name)
    return f"{answer.action} {again.name}"


@tool(scopes=["keys"])
async def unlock() -> str:
    """Needs more than most callers have."""
    return "unlocked"


TOOLS = (greet, ship, wipe, approved_later)


@pytest.fixture
def lines() -> Iterator[LogLines]:
    with log_lines() as lines:
        yield lines


def calls(lines: LogLines) -> list[dict[str, Any]]:
    """The lines of tools/call."""
    return [line for line in lines.of("request") if line["method"] == "tools/call"]


async def test_one_id_is_in_every_line_of_a_call_over_its_rounds_and_its_task(
    tmp_path: Path, lines: LogLines
) -> None:
    asked = {"name": "ship", "arguments": {"parcel": SECRET}}
    async with tasked(tmp_path, *TOOLS) as ann:
        first = await ask(ann.mcp, "tools/call", asked, **DECLARED)
        again = retry(asked, first, who=accept(name=SECRET))
        created = (await ann.send("tools/call", again)).json()["result"]
        await ann.asked(created["taskId"])
        await ann.answer(created["taskId"], {"where": accept(name=SECRET)})
        await ann.text(created["taskId"])
        await ann.call("ship", {"parcel": "another"})
    first_round, second_round, other = calls(lines)
    ref = f"{task_owner(LOCAL)}.{created['taskId']}"
    assert second_round["task"] == ref
    assert "task" not in first_round
    turns = [line for line in lines.of("task") if line["task"] == ref]
    assert [turn["outcome"] for turn in turns] == ["asked", "finished"]
    assert {line["call"] for line in (first_round, second_round, *turns)} == {first_round["call"]}
    assert other["call"] != first_round["call"]
    updates = [line for line in lines.of("request") if line["method"] == "tasks/update"]
    assert [line["task"] for line in updates] == [ref]
    assert SECRET not in "".join(lines.text)


async def test_a_call_through_search_has_the_name_of_the_tool_that_runs(lines: LogLines) -> None:
    app = gateway(*TOOLS, search={}, backend={"approve": "destructive"})
    through = {"name": "call_tool", "arguments": {"name": "wipe", "arguments": {"disk": SECRET}}}
    async with client(app) as mcp:
        await ask(mcp, "tools/call", through)
        await mcp.post("tools/call", {**through, "arguments": {"name": "none"}})
    wiped, unknown = calls(lines)
    assert (wiped["name"], wiped["through"]) == ("wipe", "call_tool")
    assert (unknown["name"], unknown["through"]) == ("call_tool", "call_tool")
    assert SECRET not in "".join(lines.text)


async def test_what_a_caller_may_not_call_is_named_too(lines: LogLines) -> None:
    async with gateway_for(unlock, greet, search={}) as (mcp, _):
        through = {"name": "call_tool", "arguments": {"name": "unlock"}}
        response = await mcp.post("tools/call", through, headers=bearer(token()))
        assert response.status_code == 403
    (line,) = calls(lines)
    assert (line["name"], line["through"]) == ("unlock", "call_tool")
    assert (line["subject"], line["issuer"], line["client"]) == ("ann", ISSUER, "cli")


async def test_answers_in_words_have_the_name_of_the_tool_that_goes_on(
    tmp_path: Path, lines: LogLines
) -> None:
    using = Settings(store=f"sqlite:///{tmp_path}/shared.sqlite3", state_keys=KEYS)
    app = gateway(*TOOLS, using=using, fallback={"ask_in_words": True})
    async with client(app) as mcp:
        told = await mcp.call("greet", {"greeting": "Hello"})
        example = json.loads(told["content"][0]["text"].splitlines()[-1])
        answers = {"who": accept(name=SECRET)}
        result = await mcp.call("answer", {"state": example["state"], "answers": answers})
        assert result["content"][0]["text"] == f"Hello {SECRET}"
    first, second = calls(lines)
    assert (first["name"], "through" in first) == ("greet", False)
    assert (second["name"], second["through"]) == ("greet", "answer")
    assert first["call"] == second["call"]
    assert SECRET not in "".join(lines.text)


async def test_the_line_of_an_approved_call_has_the_reason_of_its_failure(lines: LogLines) -> None:
    @tool(destructive=True)
    async def shred(disk: str) -> str:
        raise KeyError(disk)

    asked = {"name": "shred", "arguments": {"disk": SECRET}}
    async with client(gateway(shred, backend={"approve": "always"})) as mcp:
        again = retry(asked, await ask(mcp, "tools/call", asked), approve=accept(approve=True))
        await mcp.post("tools/call", again, clientCapabilities=CAPABILITIES)
    _, line = calls(lines)
    assert (line["outcome"], line.get("reason")) == ("tool_error", "KeyError")


async def test_a_call_that_is_continued_has_the_name_of_its_tool(
    tmp_path: Path, lines: LogLines
) -> None:
    using = Settings(listen="off", store=f"sqlite:///{tmp_path}/s.sqlite3", state_keys=KEYS)
    app = gateway(*TOOLS, using=using)
    session = await opened(app, "2025-06-18", {"elicitation": {}})
    async with session.stream(app, calling("greet")) as stream:
        question = await stream.asked()
        (pending,) = await stream.over()
    await session.answer(app, question, accept(name=SECRET))
    given = pending["result"]["content"][0]["text"].split()[1]
    await session.send(app, calling("continue_call", 8, token=given))
    first, second = calls(lines)
    assert (first["name"], "through" in first) == ("greet", False)
    assert (second["name"], second["through"]) == ("greet", "continue_call")
    assert first["call"] == second["call"]
    assert SECRET not in "".join(lines.text)


async def test_each_request_of_a_batch_has_a_line_with_its_tool(lines: LogLines) -> None:
    app = gateway(*TOOLS, search={})
    session = await opened(app, "2025-03-26")
    named = {"name": "wipe", "arguments": {"disk": SECRET}}
    through = request("tools/call", {"name": "call_tool", "arguments": named}, "a")
    await session.send(app, [through, request("ping", request_id="b"), calling("no", "c")])
    elements = [line for line in lines.of("request") if line["method"] in ("tools/call", "ping")]
    found = {line.get("name", line["method"]): line for line in elements}
    assert found.keys() == {"wipe", "ping", "no"}
    assert (found["wipe"]["through"], found["wipe"]["outcome"]) == ("call_tool", "ok")
    assert (found["no"]["outcome"], found["no"]["code"]) == ("error", -32602)
    assert all(line["subject"] == "local" and line["ms"] >= 0 for line in elements)
    assert SECRET not in "".join(lines.text)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (accept(approve=True), "a call was approved"),
        (accept(approve=False), "a call was not approved"),
        ({"action": "decline"}, "a call was not approved"),
        ({"action": "cancel"}, "a call was not approved"),
    ],
)
async def test_an_approval_leaves_a_line(
    lines: LogLines, answer: dict[str, Any], message: str
) -> None:
    async with gateway_for(wipe, backend={"approve": "always"}) as (mcp, _):
        headers, asked = bearer(token()), {"name": "wipe", "arguments": {"disk": SECRET}}
        more: dict[str, Any] = {"headers": headers, "clientCapabilities": CAPABILITIES}
        first = (await mcp.post("tools/call", asked, **more)).json()["result"]
        answer = {**answer, "note": SECRET}
        for _ in range(2):  # the second one is the same request, which runs nothing
            await mcp.post("tools/call", retry(asked, first, approve=answer), **more)
    decisions = [line for line in lines.all() if "approved" in line["msg"]]
    (line,) = decisions
    assert (line["msg"], line["tool"]) == (message, "wipe")
    assert (line["subject"], line["issuer"], line["client"]) == ("ann", ISSUER, "cli")
    assert line["call"] == calls(lines)[0]["call"]
    assert SECRET not in "".join(lines.text)


async def test_an_approval_is_logged_once_however_many_rounds_follow(lines: LogLines) -> None:
    @tool(destructive=True)
    async def erase(ctx: Context) -> str:
        """Asks something of its own after it was approved."""
        return (await ctx.elicit("who", "Who?", Name)).name

    async with client(gateway(erase, backend={"approve": "always"})) as mcp:
        asked: dict[str, Any] = {"name": "erase", "arguments": {}}
        first = await ask(mcp, "tools/call", asked)
        second = await ask(mcp, "tools/call", retry(asked, first, approve=accept(approve=True)))
        await mcp.post(
            "tools/call",
            retry(asked, second, who=accept(name="Ann")),
            clientCapabilities=CAPABILITIES,
        )
    assert len(lines.of("a call was approved")) == 1


@pytest.mark.parametrize("approve", [True, False])
async def test_an_approval_in_a_task_is_logged_when_it_is_given(
    tmp_path: Path, lines: LogLines, approve: bool
) -> None:
    async with tasked(tmp_path, *TOOLS) as ann:
        task_id = await ann.begin("approved_later")
        await ann.asked(task_id)
        await ann.answer(task_id, {"approve": accept(approve=approve)})
        await ann.answer(task_id, {"approve": accept(approve=approve)})  # not asked any more
        await ann.asked(task_id)
        await ann.answer(task_id, {"who": accept(name="Ann")})
        await ann.text(task_id)
    (line,) = [line for line in lines.all() if "approved" in line["msg"]]
    assert line["msg"] == ("a call was approved" if approve else "a call was not approved")
    assert (line["tool"], line["subject"]) == ("approved_later", "local")
    assert line["task"] == f"{task_owner(LOCAL)}.{task_id}"
    assert line["call"] == calls(lines)[0]["call"]


async def test_lines_of_a_handlers_own_logger_have_the_ids_too(lines: LogLines) -> None:
    @tool
    def note() -> str:
        """Logs with the standard library, in a thread."""
        logging.getLogger("roundgate.of_a_user").warning("noted")
        return "noted"

    async with client(gateway(note)) as mcp:
        await mcp.call("note")
    (line,) = lines.of("noted")
    assert (line["tool"], line["call"]) == ("note", calls(lines)[0]["call"])
