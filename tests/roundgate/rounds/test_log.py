"""What `roundgate serve` writes about rounds: how each ended, never what was
answered or remembered."""

from __future__ import annotations

import httpx

from tests.roundgate.rounds.conftest import Effects, Start
from tests.support import rounds
from tests.support.asgi import Client
from tests.support.rounds import CAPABILITIES, Conversation, accept, retry, sampled

SECRET = "tell-nobody-4711"


async def test_a_line_says_how_a_round_ended_and_nothing_of_what_was_said(
    start: Start, effects: Effects
) -> None:
    (server,) = start(GATEWAY_LOG_LEVEL="debug")
    states: list[str] = []
    answers = {
        "who": accept(name=SECRET),
        "blurb": sampled(SECRET),
        "folders": {"roots": [{"uri": f"file:///{SECRET}"}]},
        "sure": accept(ok=True, note=SECRET),
    }
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        mcp = Client(http)
        await Conversation(answers).have([mcp] * 4, *rounds.tool("book", city="Oslo"))
        await Conversation(answers).have([mcp] * 2, *rounds.tool("pay", amount=1))
        method, params = rounds.tool("book", city="Oslo")
        asked = await rounds.ask(mcp, method, params)
        states.append(asked["requestState"])
        again = await rounds.ask(mcp, method, retry(params, asked, who=accept(name=[SECRET])))
        states.append(again["requestState"])
        forged = {
            **params,
            "requestState": asked["requestState"] + SECRET,
            "inputResponses": {"who": SECRET},
        }
        await mcp.error(method, forged, clientCapabilities=CAPABILITIES)
        await mcp.error(
            method, params | {"inputResponses": SECRET}, clientCapabilities=CAPABILITIES
        )
        await mcp.error(method, params, clientCapabilities={})
    server.stop()  # the last lines are written together, a moment later
    written = server.log.read_text()
    assert SECRET not in written
    assert not [state for state in states if state[20:60] in written]
    calls = [line for line in server.lines() if line.get("method") == "tools/call"]
    assert [(line["name"], line["outcome"]) for line in calls] == [
        *[("book", "input_required")] * 3,
        ("book", "ok"),
        ("pay", "input_required"),
        ("pay", "ok"),
        *[("book", "input_required")] * 2,
        *[("book", "error")] * 3,
    ]
    assert [line["code"] for line in calls[-3:]] == [-32602, -32602, -32021]
    assert (calls[0]["status"], calls[0]["subject"], "error" in calls[0]) == (200, "local", False)
    assert calls[0]["bytes"] > 0
    (why,) = [line["reason"] for line in server.lines() if line["msg"] == "requestState refused"]
    assert why
