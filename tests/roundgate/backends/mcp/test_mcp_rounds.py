"""Questions of a server through the gateway: its keys kept, its state inside our seal, any replica
continues, and nobody else does."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from roundgate.backends.mcp import calls
from roundgate.client import DECLINE, Client
from tests.support.asgi import Client as Mcp
from tests.support.asgi import client as client_of
from tests.support.scripted import Asked, error, result, scripted, text
from tests.support.server import Server, running
from tests.support.upstreams import Upstream, app_of, entry, fronted, tool
from tests.support.wire import forged

FORM = {
    "method": "elicitation/create",
    "params": {
        "message": "Who are you?",
        "requestedSchema": {
            "type": "object",
            "properties": {"name": {"type": "string"}},
            "required": ["name"],
        },
        "com.example/unknown": 1,
    },
}
CAPABLE: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}
ADA = {"action": "accept", "content": {"name": "Ada"}}
STATE = "state-of-the-server"


def asks(requests: dict[str, Any], state: str | None = STATE) -> dict[str, Any]:
    more = {} if state is None else {"requestState": state}
    asked = {"inputRequests": requests} if requests else {}
    return {"resultType": "input_required", **asked, **more}


def greeter(asked: Asked) -> Any:
    """A tool that asks once, under the key `who.is-it`."""
    answer = asked.params.get("inputResponses", {}).get("who.is-it")
    if answer is None:
        return result(asked, asks({"who.is-it": FORM}))
    if asked.params.get("requestState") != STATE:
        return error(asked, -32602, "another state than mine")
    return result(asked, text(json.dumps(answer)))


async def call(mcp: Mcp, arguments: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """The whole response of a call by a client that can be asked."""
    params = {"name": "up__t", "arguments": arguments or {}, **more}
    response = await mcp.post("tools/call", params, clientCapabilities=CAPABLE)
    body: dict[str, Any] = response.json()
    return body


async def test_a_question_keeps_its_key_and_any_replica_continues() -> None:
    async with (
        scripted(Upstream(greeter)) as server,
        app_of(entry(server)) as one,
        app_of(entry(server)) as other,
        client_of(one) as first,
        client_of(other) as second,
    ):
        asked = (await call(first, {"a": 1}))["result"]
        assert asked["resultType"] == "input_required"
        assert asked["inputRequests"] == {"who.is-it": FORM}
        answered = await call(
            second,
            {"a": 1},
            inputResponses={"who.is-it": ADA},
            requestState=asked["requestState"],
        )
    assert json.loads(answered["result"]["content"][0]["text"]) == ADA
    begun, ended = (one.params for one in server.asked if one.rpc == "tools/call")
    assert "requestState" not in begun
    assert ended["requestState"] == STATE
    assert ended["arguments"] == begun["arguments"] == {"a": 1}


async def test_a_call_that_asks_takes_one_place_a_round_and_keeps_its_projection() -> None:
    settings: dict[str, Any] = {
        "limits": {"calls_per_minute": 2, "wait_s": 0.1},
        "override": {"t": {"result": "name"}},
    }

    def answers_with_structure(asked: Asked) -> Any:
        if "inputResponses" not in asked.params:
            return result(asked, asks({"who.is-it": FORM}))
        return result(asked, {**text("{}"), "structuredContent": {"name": "Ada", "age": 36}})

    async with fronted(Upstream(answers_with_structure), **settings) as (server, mcp):
        state = (await call(mcp))["result"]["requestState"]
        answered = await call(mcp, inputResponses={"who.is-it": ADA}, requestState=state)
        busy = await call(mcp)
    assert answered["result"]["structuredContent"] == "Ada"
    assert "busy" in busy["result"]["content"][0]["text"]
    assert sum(one.rpc == "tools/call" for one in server.asked) == 2


async def test_an_error_of_a_server_is_one_request_and_one_failure() -> None:
    def fails(asked: Asked) -> Any:
        return error(asked, -32603, "it broke")

    async with fronted(Upstream(fails)) as (server, mcp):
        failed = await call(mcp)
    assert "it broke" in json.dumps(failed)
    assert sum(one.rpc == "tools/call" for one in server.asked) == 1


async def test_the_servers_state_is_sealed_and_bound_to_the_call() -> None:
    async with fronted(Upstream(greeter, [tool("t"), tool("other")])) as (server, mcp):
        asked = (await call(mcp, {"a": 1}))["result"]
        state = asked["requestState"]
        raw = base64.urlsafe_b64decode(state.partition(".")[2].replace(".", "") + "===")
        assert STATE not in state
        assert STATE.encode() not in raw
        before = len(server.asked)
        answers = {"who.is-it": ADA}
        for wrong in (
            {"name": "up__t", "arguments": {"a": 2}, "requestState": state},
            {"name": "up__other", "arguments": {"a": 1}, "requestState": state},
            {"name": "up__t", "arguments": {"a": 1}, "requestState": STATE},
            {"name": "up__t", "arguments": {"a": 1}, "requestState": forged(state)},
        ):
            _, refused = await mcp.error(
                "tools/call", {**wrong, "inputResponses": answers}, clientCapabilities=CAPABLE
            )
            assert refused["code"] == -32602
        assert len(server.asked) == before


async def test_an_answer_that_was_not_asked_for_does_not_reach_the_server() -> None:
    async with fronted(Upstream(greeter)) as (server, mcp):
        asked = (await call(mcp, inputResponses={"who.is-it": ADA}))["result"]
        assert asked["resultType"] == "input_required"
        assert all("inputResponses" not in one.params for one in server.asked)


async def test_a_refusal_of_the_user_is_the_servers_to_judge() -> None:
    async with fronted(Upstream(greeter)) as (_, mcp):
        for answer in ({"action": "decline"}, {"action": "cancel"}):
            asked = (await call(mcp))["result"]
            more = {"inputResponses": {"who.is-it": answer}, "requestState": asked["requestState"]}
            done = (await call(mcp, **more))["result"]
            assert json.loads(done["content"][0]["text"]) == answer


async def test_several_questions_over_several_rounds() -> None:
    sampling = {
        "method": "sampling/createMessage",
        "params": {"messages": [], "maxTokens": 5, "unknown": True},
    }
    rounds: list[dict[str, Any]] = [
        asks({"a": FORM, "b": {"method": "roots/list"}}, "one"),
        asks({"c": sampling, "a": FORM}, None),
    ]

    def script(asked: Asked) -> Any:
        number = len([one for one in server.asked if one.rpc == "tools/call"])
        if number <= len(rounds):
            return result(asked, rounds[number - 1])
        return result(asked, text(json.dumps(asked.params)))

    async with fronted(Upstream(script)) as (server, mcp):
        first = (await call(mcp))["result"]
        assert first["inputRequests"].keys() == {"a", "b"}
        roots = {"roots": [{"uri": "file:///x"}], "_meta": {"kept": 1}}
        more = {"inputResponses": {"a": ADA, "b": roots}, "requestState": first["requestState"]}
        second = (await call(mcp, **more))["result"]
        assert second["inputRequests"] == {"c": sampling, "a#2": FORM}  # the client has seen "a"
        sampled = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "x"}}
        more = {
            "inputResponses": {"c": sampled, "a#2": {"action": "decline"}},
            "requestState": second["requestState"],
        }
        done = (await call(mcp, **more))["result"]
    params = json.loads(done["content"][0]["text"])
    assert params["inputResponses"] == {"c": sampled, "a": {"action": "decline"}}
    assert "requestState" not in params
    two = [one.params for one in server.asked if one.rpc == "tools/call"][1]
    assert (two["inputResponses"], two["requestState"]) == ({"a": ADA, "b": roots}, "one")


async def test_an_answered_request_is_sent_again_only_if_the_tool_may_be_repeated() -> None:
    def loses(asked: Asked) -> Any:
        return None if "requestState" in asked.params else greeter(asked)

    tools = [tool("t"), tool("reads", annotations={"readOnlyHint": True})]
    retry = {"attempts": 2, "pause_s": 0.01}
    async with fronted(Upstream(loses, tools), retry=retry) as (server, mcp):
        for name, count in (("t", 1), ("reads", 2)):
            asked = (await call(mcp, name=f"up__{name}"))["result"]
            more = {"inputResponses": {"who.is-it": ADA}, "requestState": asked["requestState"]}
            assert (await call(mcp, name=f"up__{name}", **more))["result"]["isError"]
            calls = [one.params["name"] for one in server.asked if one.rpc == "tools/call"]
            assert calls.count(name) == 1 + count


async def test_a_state_without_a_question_goes_back_at_once() -> None:
    def sheds(asked: Asked) -> Any:
        state = int(asked.params.get("requestState", "0"))
        return result(asked, text("done") if state == 3 else asks({}, str(state + 1)))

    async with fronted(Upstream(sheds)) as (server, mcp):
        assert (await call(mcp))["result"]["content"][0]["text"] == "done"
        assert server.methods().count("tools/call") == 4


async def test_a_call_that_goes_back_names_its_whole_time_limit() -> None:
    async def sheds(asked: Asked) -> Any:
        await asyncio.sleep(60 if "requestState" in asked.params else 2.4)
        return result(asked, asks({}))

    async with fronted(Upstream(sheds), sections={"limits": {"call_timeout_s": 4}}) as (
        server,
        mcp,
    ):
        late = (await call(mcp))["result"]["content"][0]["text"]
    assert server.methods().count("tools/call") == 2
    limit = re.search(r"did not finish within (\S+) s \(limits\.call_timeout_s\)", late)
    assert limit is not None
    assert float(limit[1]) > 2


async def test_a_server_that_sheds_without_end_is_a_tool_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "MAX_EXCHANGES", 5)
    async with fronted(Upstream(lambda asked: result(asked, asks({}, "s")))) as (_, mcp):
        done = (await call(mcp))["result"]
        assert "more than 5 times" in done["content"][0]["text"]


PASSWORD = {
    "method": "elicitation/create",
    "params": {
        "message": "?",
        "requestedSchema": {
            "type": "object",
            "properties": {"p": {"type": "string", "format": "password"}},
        },
    },
}
PAGE = {
    "method": "elicitation/create",
    "params": {"mode": "url", "message": "?", "url": "javascript:alert(1)"},
}


UNKNOWN = "in a form that the gateway does not know"
UNCARRIED: list[tuple[dict[str, Any], str]] = [
    (asks({"k": PASSWORD}), UNKNOWN),
    (asks({"k": PAGE}), UNKNOWN),
    (asks({"k": {"method": "tools/call"}}), UNKNOWN),
    (asks({"k": 7}), UNKNOWN),
    (asks({"k/ä": FORM}), "under a key"),
    (asks({}, None), "neither questions"),
    ({"resultType": "input_required", "inputRequests": [FORM]}, "not an object"),
    (asks({"k": FORM}, "s" * 2_000_000), "characters"),
    (asks({str(n): FORM for n in range(101)}), "more than 100 questions"),
]


async def test_a_question_that_cannot_be_carried_is_a_tool_error() -> None:
    upstream = Upstream()
    async with fronted(upstream) as (_, mcp):
        for asked_for, words in UNCARRIED:
            upstream.call = partial(result, value=asked_for)
            done = (await call(mcp))["result"]
            assert done["isError"]
            assert words in done["content"][0]["text"]


async def test_a_question_that_the_client_did_not_declare_is_a_tool_error() -> None:
    async with fronted(Upstream(greeter)) as (_, mcp):
        done = await mcp.call("up__t", clientCapabilities={"sampling": {}})
        assert done["isError"]
        assert "elicitation/create, which the client did not declare" in done["content"][0]["text"]


async def test_an_approval_comes_before_the_servers_question() -> None:
    async with fronted(Upstream(greeter), approve="always") as (server, mcp):
        first = (await call(mcp))["result"]
        assert first["inputRequests"].keys() == {"approve"}
        assert "tools/call" not in server.methods()
        yes = {"action": "accept", "content": {"approve": True}}
        more = {"inputResponses": {"approve": yes}, "requestState": first["requestState"]}
        second = (await call(mcp, **more))["result"]
        assert second["inputRequests"].keys() == {"who.is-it"}
        more = {"inputResponses": {"who.is-it": ADA}, "requestState": second["requestState"]}
        done = (await call(mcp, **more))["result"]
        assert json.loads(done["content"][0]["text"]) == ADA


DESK = """
from pydantic import BaseModel

from roundgate import Context, tool

class Name(BaseModel):
    name: str

@tool
async def greet(ctx: Context, times: int) -> str:
    who = await ctx.elicit("who", "Who are you?", Name)
    again = await ctx.elicit("again", f"Sure, {who.name}?", Name)
    await ctx.progress(1, 2)
    return f"{who.name} {again.name} {times}"
"""


async def test_a_gateway_behind_a_gateway_asks_clients_of_each_revision(tmp_path: Path) -> None:
    def gateway(name: str, backend: str) -> AbstractContextManager[Server]:
        (tmp_path / f"{name}.yaml").write_text(f"backends: [{backend}]\n")
        environment = {"GATEWAY_STORE": f"sqlite:///{tmp_path}/{name}.sqlite3"}
        return running(tmp_path / f"{name}.yaml", environment)

    (tmp_path / "desk.py").write_text(DESK)
    answers = {"who": {"name": "Ada"}, "again": {"name": "yes"}}
    python = "{kind: python, name: desk, prefix: '', path: desk.py}"
    with (
        gateway("inner", python) as behind,
        gateway("outer", f"{{kind: mcp, name: up, url: '{behind.url}/mcp'}}") as front,
    ):
        for revision in ("2026-07-28", "2025-11-25", "2025-06-18"):
            async with (
                asyncio.timeout(60),
                Client(
                    f"{front.url}/mcp",
                    versions=[revision],
                    answers=lambda question: _by_message(question, answers),
                ) as client,
            ):
                progress: list[Any] = []
                done = await client.call("up__greet", times=2, on_progress=progress.append)
                assert done.value == "Ada yes 2" or done.structured == {"result": "Ada yes 2"}
                assert [one.total for one in progress] == [2]
                declined = await client.call("up__greet", times=1, answers=lambda _: DECLINE)
                assert declined.is_error


def _by_message(question: Any, answers: dict[str, Any]) -> Any:
    return answers["who" if question.message.startswith("Who") else "again"]


def needs(required: Any) -> Any:
    """A tool whose server needs client capabilities."""

    def answer(asked: Asked) -> Any:
        return error(asked, -32021, "you lack something", {"requiredCapabilities": required})

    return answer


async def test_capabilities_that_a_server_needs_are_named_to_the_client() -> None:
    required: dict[str, Any] = {"sampling": {"tools": {}}, "elicitation": {"form": {}}}
    async with fronted(Upstream(needs(required))) as (_, mcp):
        params = {"name": "up__t", "arguments": {}}
        status, refused = await mcp.error(
            "tools/call", params, clientCapabilities={"elicitation": {}}
        )
    assert (status, refused["code"]) == (400, -32021)
    assert refused["data"] == {"requiredCapabilities": {"sampling": {"tools": {}}}}
    assert "The tool t of up" in refused["message"]


NEEDED: list[tuple[Any, str]] = [
    ({"sampling": {}}, "sampling"),  # declared, so the server is wrong
    ({"sampling": True}, "you lack something"),
    ({"a" * 2_000: {}}, "you lack something"),
    (["sampling"], "you lack something"),
    (None, "you lack something"),
]


async def test_a_server_that_needs_what_is_declared_or_nonsense_fails_its_call() -> None:
    upstream = Upstream()
    async with fronted(upstream) as (_, mcp):
        for required, reason in NEEDED:
            upstream.call = needs(required)
            failed = (await call(mcp))["result"]
            assert failed["isError"] is True
            assert reason in failed["content"][0]["text"]
