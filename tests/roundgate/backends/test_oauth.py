"""Tokens of the gateway itself: had once, renewed early, renewed when they are not
taken, and never shown."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from roundgate.backends.http import oauth
from roundgate.backends.http.credential_config import ClientCredential
from roundgate.backends.http.oauth import TokenSource
from roundgate.backends.http.tls import Certificates
from roundgate.backends.secret_reading import SecretTexts
from roundgate.errors import BackendError
from roundgate.settings import Origin
from roundgate.settings.yaml_file import Located
from tests.support.clocks import FixedClock, pass_time
from tests.support.services import Service, answer, gateway_to, service

SECRET = "s€cret & more"


def granted(token: str, **members: Any) -> bytes:
    return answer(
        json.dumps(
            {"access_token": token, "token_type": "Bearer", "expires_in": 100, **members}
        ).encode()
    )


def source(told: Service, clock: Any = None, **settings: Any) -> TokenSource:
    given = {
        "client_credentials": "me:1",
        "client_secret": SECRET,
        "token_url": f"{told.url}/token",
        **settings,
    }
    config = ClientCredential.model_validate(given)
    origin = Origin(Located(Path("gateway.yaml"), {}, {}))
    return TokenSource(config, SecretTexts(clock), Certificates(config.tls, origin), clock)


async def test_the_request_for_a_token_is_that_of_the_specification() -> None:
    async with service(granted("one-token")) as told:
        more = {"token_scopes": ["a", "b"], "token_parameters": {"audience": "https://api"}}
        assert await source(told, **more).token() == "one-token"
    [header] = told.header("authorization")
    assert base64.b64decode(header.removeprefix("Basic ")) == b"me%3A1:s%E2%82%ACcret%20%26%20more"
    assert parse_qs(told.body().decode()) == {
        "grant_type": ["client_credentials"],
        "scope": ["a b"],
        "audience": ["https://api"],
    }


async def test_a_token_is_renewed_before_it_expires() -> None:
    clock = FixedClock()
    async with service(granted("first-token"), granted("second-token")) as told:
        tokens = source(told, clock)
        assert await tokens.token() == "first-token"
        clock.skip(74)
        assert await tokens.token() == "first-token"
        clock.skip(2)
        assert await tokens.token() == "second-token"
        assert tokens.recent == ("first-token", "second-token")


async def test_a_token_that_holds_serves_while_there_is_no_other() -> None:
    clock = FixedClock()
    async with service(granted("first-token"), answer(status="503 No")) as told:
        tokens = source(told, clock)
        await tokens.token()
        clock.skip(80)
        assert await tokens.token() == "first-token"
        clock.skip(21)
        with pytest.raises(BackendError, match="gave the gateway no token: 503"):
            await tokens.token()


@pytest.mark.parametrize(
    "said",
    [
        answer(b"{}"),
        answer(b"[]"),
        answer(b"no"),
        granted("t", token_type="mac"),
        granted("a\nb"),
        granted("é"),
        granted(""),
        answer(b"x" * 70_000),
        answer(status="302 Found", location="http://127.0.0.1:1/"),
    ],
)
async def test_what_is_no_token_is_an_error_that_names_the_server(said: bytes) -> None:
    async with service(said) as told:
        with pytest.raises(BackendError, match=f"The authorization server {told.url}/token"):
            await source(told).token()


async def test_a_server_that_is_not_there_is_an_error() -> None:
    async with service() as told:
        tokens = source(told)
    with pytest.raises(BackendError, match="could not be reached"):
        await tokens.token()


def credential(told: Service) -> dict[str, Any]:
    return {
        "client_credentials": "me",
        "client_secret": "sesame-sesame",
        "token_url": f"{told.url}/token",
    }


async def test_a_token_that_is_not_taken_is_renewed_once_and_the_call_sent_again() -> None:
    async with service(granted("first-token"), granted("second-token")) as issuer:
        async with service(answer(status="401 Unauthorized"), answer(b'{"ok":1}')) as told:
            tool = {"method": "POST", "arguments": {"a": {}}}
            async with gateway_to(told.url, tool, credential=credential(issuer)) as gate:
                assert (await gate.call("tool", {"a": "x"}))["structuredContent"] == {"ok": 1}
        assert [told.header("authorization", one) for one in (0, 1)] == [
            ["Bearer first-token"],
            ["Bearer second-token"],
        ]
        assert [told.body(one) for one in (0, 1)] == [b'{"a":"x"}', b'{"a":"x"}']
        assert len(issuer.requests) == 2


async def test_who_is_slow_to_give_tokens_is_no_trouble_of_the_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(oauth, "TIMEOUT_S", 600.0)
    good = answer(b'"good"')
    settings = {"timeout_s": 30, "breaker": {"failures": 1}}
    async with (
        service(granted("late-token"), pause_s=20) as issuer,
        service(good) as told,
        gateway_to(told.url, {}, credential=credential(issuer), **settings) as gate,
    ):
        first = asyncio.create_task(gate.text("tool"))
        while not issuer.requests:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        pass_time(31)
        assert [await first, await gate.text("tool")] == ["good"] * 2


@pytest.mark.parametrize(
    "url", ["http://example.com/token", "https://user@example.com/", "ftp://example.com"]
)
def test_a_token_is_not_asked_for_in_the_open(url: str) -> None:
    with pytest.raises(ValueError, match="token_url"):
        ClientCredential.model_validate(
            {"client_credentials": "a", "client_secret": "b", "token_url": url}
        )
