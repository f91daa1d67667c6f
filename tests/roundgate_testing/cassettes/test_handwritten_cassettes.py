"""Cassettes that somebody wrote or changed by hand: what a stand-in answers from them, and what
verifying them tells of a server that says something else."""

from __future__ import annotations

import asyncio
import json
import textwrap
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roundgate.client import Bearer, Client
from roundgate.errors import ConnectionLost, UsageError
from roundgate_testing.cassettes import (
    Cassette,
    CassetteVerifier,
    Player,
    Recorder,
    StandIn,
    WebReply,
    read,
    write,
)
from tests.roundgate_testing.cassettes.conftest import HERE
from tests.support.scripted import (
    STREAM_HEAD,
    Asked,
    Script,
    error,
    event,
    http,
    modern,
    result,
    scripted,
    text,
)

NOWHERE = "http://nobody.example/mcp"


def recorded(name: str) -> Cassette:
    return read(HERE / "recorded" / f"{name}.yaml")


def written(folder: Path, interactions: str) -> Cassette:
    """A cassette of these interactions."""
    file = folder / "written.yaml"
    inside = textwrap.indent(textwrap.dedent(interactions), "  ")
    file.write_text(f"cassette: 1\ninteractions:\n{inside}")
    return read(file)


async def said(stand_in: StandIn, message: Any, **headers: str) -> tuple[int, str]:
    """Status and body of a reply, to the end."""
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    reply = await stand_in.answer("POST" if body else "GET", headers, body)
    assert reply is not None
    return reply.status, await whole(reply)


async def whole(reply: WebReply) -> str:
    if reply.stream is None:
        return reply.body.decode()
    return b"".join([part async for part in reply.stream]).decode()


CALL = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "t"}}


async def told(cassette: Cassette, script: Script, **options: Any) -> dict[int, list[str]]:
    """What verifying tells of a server that answers so, by the number of the interaction."""
    async with scripted(script) as server, asyncio.timeout(60):
        verifier = CassetteVerifier(cassette, [server.url], **options)
        return {
            one.number: [str(found) for found in one.differences]
            async for one in verifier.run()
            if one.differences
        }


# -- a stand-in
# ------------------------------------------------------------------------------------


async def test_a_task_stays_where_it_was_until_what_comes_next_is_done() -> None:
    """However often a client looks, and although the recorded one looked once."""
    async with Client(NOWHERE, transport=Player(recorded("task_with_a_question"))) as client:
        task = await client.start("deploy", env="prod")
        for _ in range(3):
            assert (await task.get()).status == "input_required"
        assert (await task.wait(answers={"apply": {"go": True}})).value == "Deployed to prod"


async def test_a_task_that_told_nothing_is_as_it_was_created() -> None:
    cassette = recorded("task_with_a_question")
    created = replace(cassette, interactions=cassette.interactions[:5])
    async with Client(NOWHERE, transport=Player(created)) as client:
        task = await client.start("deploy", env="prod")
        assert (await task.get()).status == "working"
    stand_in = StandIn(created)
    asked = {**CALL, "method": "tasks/get", "params": {"taskId": "another"}}
    assert "no tasks/get was recorded" in (await said(stand_in, asked))[1]


async def test_looks_at_two_tasks_are_told_apart(tmp_path: Path) -> None:
    tasks = "".join(
        f"""
        - request: {{method: tools/call, params: {{name: {name}}}}}
          response: {{result: {{resultType: task, taskId: "${{task:{number}}}", status: working}}}}
        """
        for number, name in enumerate(("a", "b"), 1)
    )
    looks = "".join(
        f"""
        - request: {{method: tasks/get, params: {{taskId: "${{task:{number}}}"}}}}
          response: {{result: {{taskId: "${{task:{number}}}", status: {status}}}}}
        """
        for number, status in ((1, "failed"), (2, "completed"))
    )
    stand_in = StandIn(written(tmp_path, tasks + looks))
    ids = {}
    for name in ("a", "b"):
        _, body = await said(stand_in, {**CALL, "params": {"name": name}})
        ids[name] = json.loads(body)["result"]["taskId"]
    assert ids["a"] != ids["b"]
    for name, status in (("b", "completed"), ("a", "failed")):
        look = {**CALL, "method": "tasks/get", "params": {"taskId": ids[name]}}
        assert json.loads((await said(stand_in, look))[1])["result"]["status"] == status


async def test_progress_is_for_who_wants_it() -> None:
    stand_in = StandIn(recorded("progress"))
    call = {**CALL, "params": {"name": "count", "arguments": {}}}
    _, without = await said(stand_in, call)
    assert "Counted" in without
    assert "notifications/progress" not in without
    wanted = {**call["params"], "_meta": {"progressToken": "mine"}}  # type: ignore[dict-item]
    _, with_it = await said(stand_in, {**call, "params": wanted})
    assert with_it.count('"progressToken":"mine"') == 2


async def test_placeholders_of_an_answer_are_filled_and_a_secret_is_not_made_up(
    tmp_path: Path,
) -> None:
    cassette = written(
        tmp_path,
        """
        - request: {method: tools/call, params: {name: t}}
          response:
            result: {order: "${uuid:3}", again: "${uuid:3}", state: "${state:1}", pin: "${secret:PIN}"}
        """,
    )
    _, body = await said(StandIn(cassette), CALL)
    assert json.loads(body) == {
        "jsonrpc": "2.0",
        "id": 7,
        "result": {
            "order": "00000000-0000-4000-8000-000000000003",
            "again": "00000000-0000-4000-8000-000000000003",
            "state": "state-1",
            "pin": "(secret PIN)",
        },
    }


async def test_what_is_no_json_rpc_is_said_again_as_it_was(tmp_path: Path) -> None:
    """A server may have left out its version, and sent events that are no JSON."""
    cassette = written(
        tmp_path,
        r"""
        - request: {method: tools/call, params: {name: t}}
          response:
            events:
              - {message: "two\nlines"}
              - {message: {jsonrpc: null, id: 1, result: {}}}
              - {message: {jsonrpc: "1.0", id: 1, result: {}}}
        """,
    )
    assert await said(StandIn(cassette), CALL) == (
        200,
        "data: two\ndata: lines\n\n"
        'data: {"id":1,"result":{}}\n\n'
        'data: {"jsonrpc":"1.0","id":1,"result":{}}\n\n',
    )


async def test_what_is_asked_and_was_never_recorded_is_refused_each_in_its_way() -> None:
    stand_in = StandIn(recorded("plain_call"))
    assert (await said(stand_in, b"{"))[0] == 400
    assert await said(stand_in, {"jsonrpc": "2.0", "method": "notifications/x"}) == (202, "")
    status, body = await said(stand_in, {"jsonrpc": "2.0", "id": "q", "result": {}})
    assert status == 400
    assert json.loads(body)["error"]["message"] == (
        "This request was not recorded: an answer to a question"
    )
    assert (await said(stand_in, b""))[0] == 405


WAITS = """
- request: {method: tools/call, params: {name: t}}
  response: {after: 2, result: {done: true}}
- request: {id: q, result: {action: accept}}
  response: {status: 202}
"""


@pytest.mark.parametrize(
    ("action", "end"),
    [("accept", {"result": {"done": True}}), ("decline", {"error": {"code": -32602}})],
)
async def test_a_result_waits_for_the_answer_that_it_follows(
    tmp_path: Path, action: str, end: dict[str, Any]
) -> None:
    stand_in = StandIn(written(tmp_path, WAITS))
    call = asyncio.ensure_future(said(stand_in, CALL))
    await asyncio.sleep(0)
    assert not call.done()
    await said(stand_in, {"jsonrpc": "2.0", "id": "q", "result": {"action": action}})
    answered = json.loads((await asyncio.wait_for(call, 60))[1])
    assert answered["id"] == 7
    assert answered.get("result") == end.get("result")
    assert answered.get("error", {}).get("code") == end.get("error", {}).get("code")
    if "error" in answered:
        assert 'is now "decline"' in answered["error"]["message"]


async def test_a_stream_whose_question_got_another_answer_ends_with_an_error() -> None:
    stand_in = StandIn(recorded("older_session"))
    call = {**CALL, "params": {"name": "refund", "arguments": {"order": 8}}}
    reply = await stand_in.answer("POST", {}, json.dumps(call).encode())
    assert reply is not None
    stream = asyncio.ensure_future(whole(reply))
    await asyncio.sleep(0)
    no = {"action": "accept", "content": {"go": False}}
    assert (await said(stand_in, {"jsonrpc": "2.0", "id": "request-1", "result": no}))[0] == 400
    *_, last = (await asyncio.wait_for(stream, 60)).strip().split("data: ")
    assert (
        "content.go was recorded as true and is now false" in json.loads(last)["error"]["message"]
    )


async def test_a_stream_goes_on_behind_the_event_that_is_named(tmp_path: Path) -> None:
    cassette = written(
        tmp_path,
        """
        - request: {method: tools/call, params: {name: t}}
          response: {events: [{event_id: "${event:1}", retry_ms: 10}], end: cut}
        - request: {http: GET, headers: {last-event-id: "${event:1}"}}
          response: {events: [{result: {done: true}}]}
        """,
    )
    stand_in = StandIn(cassette)
    assert (await said(stand_in, CALL))[0] == 200
    assert (await said(stand_in, b"", **{"last-event-id": "event-9"}))[0] == 405
    assert '"done":true' in (await said(stand_in, b"", **{"last-event-id": "event-1"}))[1]


# -- verifying
# -------------------------------------------------------------------------------------

ONE = "- request: {method: tools/call, params: {name: t}}\n  response: "


def streams(*pieces: bytes) -> Script:
    async def script(_: Asked) -> AsyncGenerator[bytes, None]:
        yield STREAM_HEAD
        for piece in pieces:
            yield piece

    return script


async def silence(_: Asked) -> AsyncGenerator[bytes, None]:
    yield STREAM_HEAD
    await asyncio.sleep(600)


def done(value: Any) -> bytes:
    return event({"jsonrpc": "2.0", "id": 1, "result": value})


GONE = "{status: 410, text: Gone}"
TWO = "{events: [{result: {n: 1}}, {result: {n: 2}}]}"
NOTE = "{events: [{message: plain words}]}"


@pytest.mark.parametrize(
    ("response", "script", "found"),
    [
        (GONE, lambda asked: http(410, b"Gone", "text/plain"), []),
        (GONE, lambda asked: http(410, b"Moved", "text/plain"), ["text", '"Gone"', '"Moved"']),
        (GONE, lambda asked: http(404, b"Gone", "text/plain"), ["HTTP status", "410", "404"]),
        (TWO, streams(done({"n": 1}), done({"n": 2})), []),
        (TWO, streams(done({"n": 1})), ["events[1]", '{"result": {"n": 2}}', "(nothing)"]),
        (
            "{events: [{result: {n: 1}}]}",
            streams(done({"n": 1}), done({"n": 2})),
            ["events[1]", "(nothing)", '{"result": {"n": 2}}'],
        ),
        (NOTE, streams(b"data: plain words\n\n"), []),
        (NOTE, streams(b"data: other words\n\n"), ["events[0]", "plain words", "other words"]),
        (NOTE, streams(b"data:\n\n"), ["events[0]", "plain words", "null"]),
        ("{events: [{result: {}}]}", silence, ["(the answer)", "an answer", "no answer within"]),
    ],
)
async def test_each_way_in_which_an_answer_may_differ_is_told(
    tmp_path: Path, response: str, script: Script, found: list[str]
) -> None:
    timeout_s = 0.5 if script is silence else 60
    differing = await told(written(tmp_path, ONE + response), script, timeout_s=timeout_s)
    if not found:
        assert differing == {}
        return
    [line] = differing[1]
    lines = [part.strip() for part in line.splitlines()]
    assert lines[0] == found[0]
    assert found[1] in lines[1].replace('":', '": ').replace('":  ', '": ')
    assert found[2] in lines[2].replace('":', '": ').replace('":  ', '": ')


async def test_a_request_without_a_recorded_answer_is_not_waited_for(tmp_path: Path) -> None:
    def script(one: Asked) -> Any:
        return silence(one) if one.params["name"] == "never" else result(one, text("done"))

    cassette = written(
        tmp_path,
        """
        - request: {method: tools/call, params: {name: never}}
        - request: {method: tools/call, params: {name: t}}
          response: {result: {resultType: complete, content: [{type: text, text: done}]}}
        """,
    )
    assert await told(cassette, script) == {}
    assert list(await told(cassette, lambda asked: result(asked, text("changed")))) == [2]


async def test_a_server_that_no_longer_knows_a_task_differs_and_is_not_asked_for_ever(
    tmp_path: Path,
) -> None:
    look = '- request: {method: tasks/get, params: {taskId: "t1"}}\n'
    cassette = written(tmp_path, look + "  response: {result: {status: completed}}")
    differing = await told(cassette, lambda asked: error(asked, -32602, "Unknown task", status=200))
    assert any("Unknown task" in line for line in differing[1])


async def test_requests_are_sent_again_with_the_credentials_of_now(tmp_path: Path) -> None:
    def script(asked: Asked) -> bytes:
        return result(asked, {"by": asked.headers.get("authorization")})

    cassette = written(tmp_path, ONE + "{result: {resultType: complete, by: Bearer of-now}}")
    assert await told(cassette, script, auth=Bearer("of-now")) == {}
    assert 1 in await told(cassette, script)


# -- writing and recording


def test_a_cassette_that_cannot_be_written_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    taken = tmp_path / "taken.yaml"
    taken.mkdir()
    with pytest.raises(UsageError, match="cannot be written: Is a directory"):
        write(recorded("plain_call"), taken)
    assert [one.name for one in tmp_path.iterdir()] == ["taken.yaml"]


async def test_a_request_whose_answer_was_lost_is_recorded_without_one() -> None:
    async with scripted(modern(lambda asked: None)) as server:
        recorder = Recorder(None, server.url)
        async with Client(server.url, transport=recorder) as client:
            with pytest.raises(ConnectionLost):
                await client.call("t")
            assert recorder.cassette.interactions[-1].response is None
