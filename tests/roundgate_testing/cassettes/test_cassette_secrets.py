"""Secrets never reach a cassette, whatever said them; and what a replay does with requests that
were never recorded."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from roundgate.client import Client, HttpRequest, Limits, Url
from roundgate.errors import HttpRefused, RpcError, UsageError
from roundgate_testing.cassettes import (
    RULES,
    Cassette,
    CassetteVerifier,
    Player,
    Recorder,
    read,
    secret_names,
)
from roundgate_testing.cassettes.files import as_text
from roundgate_testing.cassettes.normalize import make_cassette
from roundgate_testing.cassettes.recording import Recording
from tests.roundgate_testing.cassettes.conftest import HERE
from tests.roundgate_testing.cassettes.conversations import INFO, held
from tests.support.scripted import Asked, http, modern, result, scripted, text

NOWHERE = "http://nobody.example/mcp"
PIN_TOOL = {
    "name": "t",
    "inputSchema": {
        "type": "object",
        "properties": {"pin": {"type": "string", "format": "password"}},
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"code": {"type": "string", "writeOnly": True}, "city": {"type": "string"}},
}
FORM = {"method": "elicitation/create", "params": {"message": "Who?", "requestedSchema": SCHEMA}}
SECRETS = (
    "sesame-of-the-header",
    "cookie-of-somebody",
    "4711-pin",
    "code-of-the-form",
    "env-sesame",
)


def asks_for_secrets(asked: Asked) -> Any:
    if "inputResponses" not in asked.params:
        asking = {"resultType": "input_required", "inputRequests": {"who": FORM}}
        return result(
            asked, {**asking, "requestState": "s1"}, Set_Cookie=f"sid={SECRETS[1]}; Path=/"
        )
    told = f"{asked.headers['authorization']} {json.dumps(asked.params)} {SECRETS[1]} {SECRETS[4]}"
    return result(asked, text(told))


async def recorded_with_secrets() -> tuple[str, Cassette]:
    async with scripted(modern(asks_for_secrets, [PIN_TOOL])) as server:
        recorder = Recorder(
            None, server.url, redact=["arguments.token"], secrets={"SESAME": SECRETS[4]}
        )
        headers = {"X-Api-Key": "an-api-key-value", "Cookie": "a=other-cookie-value"}
        async with Client(
            server.url, transport=recorder, auth=SECRETS[0], headers=headers, info=INFO
        ) as client:
            answers = {"who": {"code": SECRETS[3], "city": "Paris"}}
            done = await client.call("t", pin=SECRETS[2], token=12345678, answers=answers)
        assert all(secret in done.text for secret in SECRETS), "the client saw all of it"
        return as_text(recorder.cassette), recorder.cassette


async def test_no_secret_is_in_a_cassette_wherever_it_came_up() -> None:
    written, _ = await recorded_with_secrets()
    for secret in (*SECRETS, "12345678", "an-api-key-value", "other-cookie-value"):
        assert secret not in written
    assert "Paris" in written
    for name in ("CASSETTE_PIN", "CASSETTE_CODE", "CASSETTE_TOKEN", "SESAME"):
        assert f"${{secret:{name}}}" in written


PASSWORD = {"format": "password", "type": "string", "writeOnly": True}
NESTED_TOOL = {
    "name": "t",
    "inputSchema": {  # as pydantic writes SecretStr | None, a model in a model, list[SecretStr]
        "type": "object",
        "properties": {
            "password": {"anyOf": [PASSWORD, {"type": "null"}]},
            "inner": {"$ref": "#/$defs/Inner"},
            "many": {"type": "array", "items": PASSWORD},
            "pin": {"type": "integer", "writeOnly": True},
        },
        "$defs": {"Inner": {"type": "object", "properties": {"word": PASSWORD}}},
    },
}


async def test_no_secret_is_in_a_cassette_however_it_is_nested_and_written() -> None:
    given: dict[str, Any] = {
        "password": 'pass-"of"\nthe user',
        "inner": {"word": "inner-secret"},
        "many": ["first-secret", "other-secret"],
        "pin": 48151623,
        "credentials": {"name": "named-secret"},
    }

    def repeats(asked: Asked) -> Any:
        written = json.dumps(given)
        in_words = f"q={quote(given['password'])} Bearer%20token-of-header x_env-sesame"
        in_words += f" {base64.b64encode(b'user:first-secret').decode()} {b'env-sesame'.hex()}"
        told = f"{written} {in_words} {json.dumps({'a': 'line' + chr(10) + 'env-sesame'})}"
        return result(asked, {**text(told), "structuredContent": given})

    async with scripted(modern(repeats, [NESTED_TOOL])) as server:
        secrets = {"SESAME": "env-sesame"}
        recorder = Recorder(None, server.url, redact=["credentials"], secrets=secrets)
        async with Client(server.url, transport=recorder, auth="token-of-header") as client:
            assert (await client.call("t", given)).value == given
        written = as_text(recorder.cassette)
    parts = ["pass-", "-secret", "48151623", "token-of-header", "env-sesame"]
    parts += [base64.b64encode(b"user:first-secret").decode()[8:-4], b"env-sesame".hex()]
    for part in parts:
        assert part not in written


def test_schemas_of_a_server_that_refer_to_themselves_are_looked_at_with_an_end() -> None:
    members = {name: {"$ref": "#"} for name in "abcdefgh"}
    tool = {"name": "t", "inputSchema": {"properties": {**members, "pin": PASSWORD}}}
    recording = Recording()
    exchange = recording.begin("POST", [], b'{"method": "tools/list"}')
    recording.head(exchange, 200, {"content-type": "application/json"})
    recording.arrived(exchange, json.dumps({"result": {"tools": [tool]}}).encode())
    call = {"method": "tools/call", "params": {"name": "t", "arguments": {"pin": "4711"}}}
    recording.begin("POST", [], json.dumps(call).encode())
    assert "4711" not in as_text(make_cassette(recording, RULES))


async def test_a_replay_takes_secrets_from_the_environment() -> None:
    _, cassette = await recorded_with_secrets()
    names = secret_names(cassette)
    assert names == ["CASSETTE_CODE", "CASSETTE_PIN", "CASSETTE_TOKEN"]
    async with scripted(modern(asks_for_secrets, [PIN_TOOL])) as server:
        environment = dict(zip(names, ("the code", "the pin", "the token"), strict=True))
        verifier = CassetteVerifier(
            cassette,
            [server.url],
            environment=environment,
            headers=[("Authorization", f"Bearer {SECRETS[0]}")],
        )
        outcomes = [one async for one in verifier.run()]
        assert [str(one) for outcome in outcomes for one in outcome.differences] == []
        assert server.asked[-1].params["inputResponses"]["who"]["content"]["code"] == "the code"
        with pytest.raises(UsageError, match="environment variable CASSETTE_PIN"):
            [one async for one in CassetteVerifier(cassette, [server.url], environment={}).run()]


async def test_a_redirect_to_elsewhere_is_not_followed() -> None:
    def script(asked: Asked) -> bytes:
        return http(307, Location="http://elsewhere.example/mcp")

    async with scripted(script) as server:
        recorder = Recorder(None, server.url)
        async with Client(server.url, transport=recorder) as client:
            with pytest.raises(HttpRefused, match=r"elsewhere\.example"):
                await client.connect()
        assert len(server.asked) == 1
        assert [one.response and one.response.status for one in recorder.cassette.interactions] == [
            307
        ]


async def test_what_goes_to_another_address_is_no_part_of_the_conversation() -> None:
    async with scripted(lambda asked: http(200)) as server:
        recorder = Recorder(None, server.url)
        login = HttpRequest("POST", Url.parse(f"{server.origin}/token"), [], b"client_secret=1")
        await (await recorder.send(login)).close()
        await recorder.close()
        assert len(server.asked) == 1
        assert recorder.cassette.interactions == ()


def cassette(name: str) -> Cassette:
    return read(HERE / "recorded" / f"{name}.yaml")


# -- what was never recorded
# ------------------------------------------------------------------------


async def test_what_was_never_recorded_is_an_error_that_names_the_nearest() -> None:
    async with Client(NOWHERE, transport=Player(cassette("two_rounds"))) as client:
        with pytest.raises(RpcError) as caught:
            await client.call("refund", order=9)
        assert caught.value.message == (
            'This request was not recorded: tools/call refund {"order":9}; the nearest is interaction 5 '
            "(tools/call refund): params.arguments.order was recorded as 7 and is now 9"
        )
        with pytest.raises(RpcError, match="no prompts/list was recorded"):
            await client.prompts()
        with pytest.raises(RpcError, match="requestState"):
            await client.call(
                "refund", order=7, request_state="forged", input_responses={"confirm": {}}
            )


async def test_an_answer_that_was_not_recorded_ends_the_call_of_an_older_client() -> None:
    transport = Player(cassette("older_session"))
    async with (
        asyncio.timeout(60),
        Client(NOWHERE, transport=transport, versions=["2025-11-25"]) as client,
    ):
        with pytest.raises((RpcError, HttpRefused)):
            await client.call("refund", order=8, answers={"go": False})


async def test_a_conversation_can_be_held_again_and_by_several_at_once() -> None:
    player = Player(cassette("task_with_a_question"))
    for _ in range(2):
        assert await held("task_with_a_question", NOWHERE, player) == "Deployed to prod"
    player = Player(cassette("two_rounds"))
    both = await asyncio.gather(*(held("two_rounds", NOWHERE, player) for _ in range(3)))
    assert both == [("Refunded order 7", 2)] * 3


@pytest.mark.parametrize(("calls", "is_kept"), [(2, True), (3, False)])
async def test_a_cassette_has_as_many_requests_as_the_limit(
    monkeypatch: pytest.MonkeyPatch, calls: int, is_kept: bool
) -> None:
    monkeypatch.setattr("roundgate_testing.cassettes.recording.MAX_EXCHANGES", 2)
    async with scripted(lambda asked: http(204)) as server:
        recorder = Recorder(None, server.url)
        for _ in range(calls):
            response = await recorder.send(HttpRequest("GET", Url.parse(server.url), []))
            await response.close()
        await recorder.close()
    if is_kept:
        assert recorder.cassette.interactions
        assert len(recorder.recording.exchanges) == calls
    else:
        with pytest.raises(UsageError, match="record a shorter conversation"):
            _ = recorder.cassette


async def test_a_conversation_without_end_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("roundgate_testing.cassettes.recording.MAX_RECORDED_BYTES", 1000)
    async with scripted(modern(lambda asked: result(asked, text("x" * 2000)))) as server:
        recorder = Recorder(tmp_path / "long.yaml", server.url)
        client = Client(server.url, transport=recorder, limits=Limits())
        assert len((await client.call("t")).text) == 2000, "the conversation itself goes on"
        with pytest.raises(UsageError, match="record a shorter conversation"):
            await client.close()
    assert os.listdir(tmp_path) == []
