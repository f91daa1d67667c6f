"""What a client hears of a requestState that is not taken: one frozen sentence, whatever
was wrong, and nothing runs.

The reason is in the log, and of the token there is nothing in it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from roundgate import Context, prompt, resource, tool
from roundgate.auth.principal import Principal
from roundgate.errors import REFUSAL
from roundgate.main import build_app
from roundgate.observability import JsonFormatter
from roundgate.settings.process import Settings
from roundgate.tokens import keys
from roundgate.tokens.sealed import Binding, KeyRing, StateSealer
from tests.support import wire
from tests.support.asgi import Client, client, config_file
from tests.support.clocks import SkippingClock
from tests.support.issuer import ISSUER, PUBLIC_URL, bearer, guarded, jwks, token
from tests.support.services import answer, service

ONE, TWO = keys.new_key(), keys.new_key()
ANN = Principal(ISSUER, "ann", "cli")
ARGUMENTS = {"room": "blue", "nights": 2}
ANSWER = {"guests": {"action": "accept", "content": {"count": 4}}}
FORM = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
ELICITS: dict[str, Any] = {"elicitation": {"form": {}}}

runs = count()


@tool
async def book(ctx: Context, room: str, nights: float) -> str:
    """Books a room."""
    next(runs)
    guests = await ctx.elicit("guests", "How many?", FORM)
    return f"{room} for {guests['count']}"


@tool
async def cancel(ctx: Context, room: str, nights: float) -> str:
    """Takes the same arguments, and never asks."""
    next(runs)
    return "cancelled"


@prompt(name="book")
async def book_prompt(ctx: Context, room: str = "", nights: str = "") -> str:
    """A prompt of the same name."""
    next(runs)
    return str(await ctx.elicit("guests", "How many?", FORM))


@resource("note://book")
async def note(ctx: Context) -> str:
    """A resource that asks."""
    next(runs)
    return str(await ctx.elicit("guests", "How many?", FORM))


@dataclass
class Desk:
    """A gateway whose clock and keys a test can change, as if the next request met another replica."""

    jwks_url: str
    store: str
    clock: SkippingClock
    state_keys: str = ONE
    audience: str = "desk"
    issuer: str = ISSUER

    async def post(self, params: dict[str, Any]) -> httpx.Response:
        """The answer of a replica with the present keys, clock and audience; `method` and `caller` are taken out."""
        sent = {name: value for name, value in params.items() if name not in ("method", "caller")}
        caller = params.get("caller") or token(iss=self.issuer)
        state = {"audience": self.audience, "max_bytes": 2048}
        auth = {"issuer": self.issuer}
        file = guarded(self.jwks_url, book, cancel, book_prompt, note, state=state, auth=auth)
        using = Settings(public_url=PUBLIC_URL, state_keys=self.state_keys, store=self.store)
        async with client(build_app(file, using, clock=self.clock)) as mcp:
            method = params.get("method", "tools/call")
            return await mcp.post(method, sent, headers=bearer(caller), clientCapabilities=ELICITS)

    def ring(self) -> KeyRing:
        """What the replicas have."""
        return KeyRing(keys.parse(self.state_keys, "test"), self.audience)

    async def begin(self) -> str:
        """The state that the first round gives out."""
        result = (await self.post({"name": "book", "arguments": ARGUMENTS})).json()["result"]
        assert result["resultType"] == "input_required"
        state: str = result["requestState"]
        return state


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with service(answer(jwks("ec"))) as keys_server:
        yield Desk(f"{keys_server.url}/jwks", f"sqlite:///{tmp_path}/store", SkippingClock())


Params = dict[str, Any]
Change = Callable[[Desk, Params], None]
"""Changes what comes back, or the replica that it comes back to."""


def _state(make: Callable[[Desk, str], str]) -> Change:
    return lambda desk, params: params.update(requestState=make(desk, params["requestState"]))


def _flipped(place: int) -> Change:
    def flip(desk: Desk, state: str) -> str:
        other = "A" if state[place] != "A" else "B"
        return state[:place] + other + state[place:][1:]

    return _state(flip)


def _sent(**members: Any) -> Change:
    return lambda desk, params: params.update(members)


def _caller(**claims: Any) -> Change:
    """Another caller, whose token is made when the test runs: it holds for five minutes."""
    return lambda desk, params: params.update(caller=token(**claims))


def _replica(**members: Any) -> Change:
    def change(desk: Desk, params: Params) -> None:
        for name, value in members.items():
            setattr(desk, name, value)

    return change


def _an_unknown_journal(desk: Desk, state: str) -> str:
    ring, binding = desk.ring(), Binding.of("tools/call", "book", ARGUMENTS)
    return StateSealer(ring, desk.clock).seal([[["?", "x"]], {}], ANN, binding, round_=1, origin={})


CHANGES: dict[str, Change] = {
    "ciphertext": _flipped(80),
    "empty": _sent(requestState=""),
    "not ASCII": _sent(requestState="v1.ü.ü\u0000"),
    "over-long": _state(lambda desk, state: state * 40),
    "incompatible journal": _state(_an_unknown_journal),
    "argument": _sent(arguments={**ARGUMENTS, "nights": 3}),
    "no arguments": _sent(arguments={}),
    "tool": _sent(name="cancel"),
    "method": _sent(method="prompts/get", arguments={"room": "blue", "nights": "2"}),
    "resource": _sent(method="resources/read", uri="note://book"),
    "issuer": _replica(issuer="https://login.example.org/"),
    "subject": _caller(sub="bob"),
    "client": _caller(client_id="web"),
    "audience": _replica(audience="other"),
    "retired key": _replica(state_keys=TWO),
    "expired": lambda desk, params: desk.clock.skip(906),
    "from the future": lambda desk, params: desk.clock.skip(-60),
}


REASONS = {
    "over-long": "too long",
    "expired": "expired",
    "from the future": "not yet valid",
    "ciphertext": "changed in transit",
    "incompatible journal": "incompatible version",
    **dict.fromkeys(("empty", "not ASCII", "retired key"), "unknown version or key"),
    **dict.fromkeys(("issuer", "subject", "client", "audience"), "another caller"),
    **dict.fromkeys(
        ("argument", "no arguments", "tool", "method", "resource"),
        "another method, target or arguments",
    ),
}


def logged(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(JsonFormatter().format(record) for record in caplog.records)


@pytest.mark.parametrize("change", CHANGES)
async def test_a_state_that_is_not_taken_is_refused_in_one_sentence_and_nothing_runs(
    desk: Desk, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    state = await desk.begin()
    params: Params = {
        "name": "book",
        "arguments": ARGUMENTS,
        "requestState": state,
        "inputResponses": ANSWER,
    }
    CHANGES[change](desk, params)
    before = next(runs)
    response = await desk.post(params)
    assert next(runs) == before + 1, "the handler has run"
    error = wire.valid_error(response)
    assert (response.status_code, error) == (400, {"code": -32602, "message": REFUSAL})
    (refusal,) = [
        vars(record)["fields"] for record in caplog.records if record.name == "roundgate.tokens"
    ]
    assert REASONS[change] in refusal["reason"]
    text = logged(caplog)
    _, _, secret = params["requestState"].rpartition(".")
    assert not [
        piece for piece in (secret[:12], secret[-12:], state[14:26]) if piece and piece in text
    ]
    assert refusal["reason"] not in response.text


async def test_the_state_itself_is_taken_by_another_replica(desk: Desk) -> None:
    params = {
        "name": "book",
        "arguments": ARGUMENTS,
        "requestState": await desk.begin(),
        "inputResponses": ANSWER,
    }
    desk.state_keys = f"{TWO},{ONE}"
    result = (await desk.post(params)).json()["result"]
    assert result["content"][0]["text"] == "blue for 4"


async def test_arguments_in_another_spelling_are_the_same_call(desk: Desk) -> None:
    params = {
        "name": "book",
        "arguments": {"nights": 2.0, "room": "blue"},
        "requestState": await desk.begin(),
        "inputResponses": ANSWER,
    }
    response = await desk.post(params)
    assert response.json()["result"]["content"][0]["text"] == "blue for 4"


@pytest.mark.parametrize("state", [1, {}, [], True], ids=str)
async def test_a_state_that_is_no_string_is_an_invalid_parameter(desk: Desk, state: Any) -> None:
    response = await desk.post({"name": "book", "arguments": ARGUMENTS, "requestState": state})
    assert (response.status_code, wire.valid_error(response)["code"]) == (400, -32602)


async def test_a_tool_that_never_asks_refuses_a_foreign_state_too(desk: Desk) -> None:
    response = await desk.post({"name": "cancel", "arguments": ARGUMENTS, "requestState": "v1.x.y"})
    assert wire.valid_error(response)["message"] == REFUSAL


@tool
async def hoard(ctx: Context, size: int) -> str:
    """Remembers too much."""
    await ctx.step("small", lambda: "x")
    await ctx.step("plan", lambda: "x" * size)
    await ctx.elicit("go", "Go on?", FORM)
    return "done"


async def test_a_state_over_the_bound_is_an_error_that_names_the_largest_entry_in_the_log(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    using = Settings(state_keys=ONE, store=f"sqlite:///{tmp_path}/store")
    app = build_app(config_file(hoard, state={"max_bytes": 2048}), using)
    async with client(app) as mcp:
        fits: Client = mcp
        small = await fits.post(
            "tools/call", {"name": "hoard", "arguments": {"size": 500}}, clientCapabilities=ELICITS
        )
        assert small.json()["result"]["resultType"] == "input_required"
        result = await mcp.call("hoard", {"size": 3000}, clientCapabilities=ELICITS)
    assert result["isError"]
    assert "step 'plan' (30" in logged(caplog)
    assert "above the limit of 2048" in logged(caplog)
