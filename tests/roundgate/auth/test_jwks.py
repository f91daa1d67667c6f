"""The cache of an issuer's keys, against a real server: few questions, stale keys rather than
none, no bad document."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from roundgate.auth.jwks import AGAIN_MS, FRESH_MS, MAX_BYTES, RETRY_MS, KeySet, KeysUnavailable
from tests.support.clocks import FixedClock
from tests.support.issuer import jwks, public_jwk
from tests.support.services import Service, answer, service

DOWN = answer(b"out of order", "503 Service Unavailable")
FRESH_S, RETRY_S, AGAIN_S = FRESH_MS / 1000, RETRY_MS / 1000, AGAIN_MS / 1000


@asynccontextmanager
async def key_set(
    *answers: bytes, pause_s: float = 0
) -> AsyncIterator[tuple[KeySet, Service, FixedClock]]:
    async with service(*answers, pause_s=pause_s) as server:
        clock = FixedClock()
        yield KeySet(f"{server.url}/jwks", clock), server, clock


async def known(keys: KeySet, *kids: str) -> list[bool]:
    return [await keys.key(kid) is not None for kid in kids]


async def test_the_issuer_is_asked_once_for_all_its_keys() -> None:
    async with key_set(answer(jwks("rsa", "ec"))) as (keys, server, clock):
        for _ in range(20):
            assert await known(keys, "rsa", "ec") == [True, True]
            clock.skip(RETRY_S + 1)
        assert server.request_lines == ["GET /jwks HTTP/1.1"]


async def test_it_is_not_asked_before_it_is_needed() -> None:
    async with key_set(answer(jwks("ec"))) as (_, server, _):
        assert server.requests == []


async def test_keys_are_read_again_when_they_are_no_longer_fresh() -> None:
    async with key_set(answer(jwks("rsa", "ec")), answer(jwks("ec"))) as (keys, server, clock):
        assert await known(keys, "rsa") == [True]
        clock.skip(FRESH_S + 1)
        assert await known(keys, "rsa", "ec") == [False, True], "a key that was withdrawn is gone"
        assert len(server.requests) == 2


async def test_callers_that_come_at_once_ask_once() -> None:
    async with key_set(answer(jwks("ec")), pause_s=0.05) as (keys, server, _):
        assert all(await asyncio.gather(*(keys.key("ec") for _ in range(100))))
        assert len(server.requests) == 1


async def test_whatever_kids_callers_make_up_the_issuer_is_asked_once_an_interval() -> None:
    async with key_set(answer(jwks("ec"))) as (keys, server, clock):
        await keys.key("ec")
        for interval in range(1, 4):
            clock.skip(RETRY_S + 1)
            made_up = [keys.key(f"stranger {n}") for n in range(200)]
            assert set(await asyncio.gather(*made_up)) == {None}
            assert len(server.requests) == 1 + interval
        assert await known(keys, "ec") == [True]


async def test_a_new_key_is_found_when_the_first_token_with_it_comes() -> None:
    async with key_set(answer(jwks("ec")), answer(jwks("ec", "ec-next"))) as (keys, server, clock):
        assert await known(keys, "ec") == [True]
        clock.skip(RETRY_S + 1)
        assert await known(keys, "ec-next", "ec") == [True, True]
        assert len(server.requests) == 2


async def test_while_the_issuer_is_down_stale_keys_serve() -> None:
    async with key_set(answer(jwks("ec")), DOWN) as (keys, server, clock):
        await keys.key("ec")
        for _ in range(5):
            clock.skip(FRESH_S + 1)
            assert await known(keys, "ec", "ec") == [True, True]
        assert len(server.requests) == 6, "once an interval, not once a caller"


async def test_keys_that_were_never_read_are_not_there_and_the_issuer_is_spared() -> None:
    async with key_set(DOWN) as (keys, server, clock):
        for asked in (1, 2):
            for _ in range(10):
                with pytest.raises(KeysUnavailable):
                    await keys.key("ec")
            assert len(server.requests) == asked
            clock.skip(RETRY_S + 1)


async def test_when_the_issuer_is_back_its_keys_are_read() -> None:
    async with key_set(DOWN, answer(jwks("ec"))) as (keys, _, clock):
        with pytest.raises(KeysUnavailable):
            await keys.key("ec")
        clock.skip(AGAIN_S + 0.1)
        assert await known(keys, "ec") == [True]


async def test_when_the_issuer_is_back_its_new_key_is_found_within_seconds() -> None:
    answers = answer(jwks("ec")), DOWN, answer(jwks("ec", "ec-next"))
    async with key_set(*answers) as (keys, _, clock):
        assert await known(keys, "ec") == [True]
        clock.skip(RETRY_S + 1)
        with pytest.raises(KeysUnavailable):
            await keys.key("ec-next")
        clock.skip(AGAIN_S + 0.1)
        assert await known(keys, "ec-next") == [True]


async def test_when_the_issuer_is_back_the_trouble_ends_though_every_key_is_known() -> None:
    answers = answer(jwks("ec")), DOWN, answer(jwks("ec"))
    async with key_set(*answers) as (keys, _, clock):
        await keys.key("ec")
        clock.skip(RETRY_S + 1)
        with pytest.raises(KeysUnavailable):
            await keys.key("ec-next")
        assert keys.trouble is not None
        clock.skip(RETRY_S + 1)
        assert await known(keys, "ec") == [True]
        assert keys.trouble is None


async def test_a_key_that_is_unknown_while_the_keys_cannot_be_read_may_be_a_new_one() -> None:
    answers = answer(jwks("ec")), DOWN, answer(jwks("ec"))
    async with key_set(*answers) as (keys, _, clock):
        assert await known(keys, "ec") == [True]
        clock.skip(RETRY_S + 1)
        with pytest.raises(KeysUnavailable):
            await keys.key("ec-next")
        assert await known(keys, "ec") == [True]
        clock.skip(RETRY_S + 1)
        assert await known(keys, "ec-next") == [False]


async def test_nobody_listening_is_an_issuer_that_is_down() -> None:
    with pytest.raises(KeysUnavailable):
        await KeySet("http://127.0.0.1:9/jwks", FixedClock()).key("ec")


BAD_KEYS: dict[str, Any] = {
    "no kid": {name: value for name, value in public_jwk("ec").items() if name != "kid"},
    "kid is a list": {**public_jwk("ec"), "kid": ["x"]},
    "unknown kty": {"kty": "PQC", "kid": "x"},
    "no kty": {"kid": "x"},
    "a point off the curve": {"kty": "EC", "crv": "P-256", "x": "AAAA", "y": "AAAA", "kid": "x"},
    "half a point": {"kty": "EC", "crv": "P-256", "x": public_jwk("ec")["x"], "kid": "x"},
    "an even exponent": {**public_jwk("rsa"), "e": "Ag", "kid": "x"},
    "n is a number": {**public_jwk("rsa"), "n": 7, "kid": "x"},
    "not base64": {**public_jwk("rsa"), "n": "ü", "kid": "x"},
    "unknown alg": {**public_jwk("rsa"), "alg": "RS1", "kid": "x"},
    "alg of another kind": {**public_jwk("rsa"), "alg": "ES256", "kid": "x"},
    "a shared secret": {"kty": "oct", "k": "c2VjcmV0", "kid": "x"},
    "to encrypt with": {**public_jwk("rsa"), "use": "enc", "kid": "x"},
    "a string": "x",
    "null": None,
    "a list": [],
}


@pytest.mark.parametrize("bad", BAD_KEYS)
async def test_a_key_that_cannot_be_used_costs_none_of_the_others(bad: str) -> None:
    document = json.dumps(
        {"keys": [BAD_KEYS[bad], public_jwk("ec", use="sig"), BAD_KEYS[bad]]}
    ).encode()
    async with key_set(answer(document)) as (keys, _, _):
        assert await known(keys, "ec", "x") == [True, False]


BAD_ANSWERS = {
    "empty": answer(b""),
    "no JSON": answer(b"<html>login</html>"),
    "half": answer(jwks("ec")[:-5]),
    "a list": answer(b"[]"),
    "null": answer(b"null"),
    "no keys": answer(b'{"keys": []}'),
    "keys is null": answer(b'{"keys": null}'),
    "keys is an object": answer(b'{"keys": {"ec": 1}}'),
    "only bad keys": answer(json.dumps({"keys": list(BAD_KEYS.values())}).encode()),
    "not UTF-8": answer(b"\xff\xfe"),
    "deep": answer(b"[" * 100_000),
    "too large": answer(jwks("ec") + b" " * MAX_BYTES),
    "too large, unannounced": b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    + jwks("ec")
    + b" " * MAX_BYTES,
    "a redirect": answer(jwks("ec"), "302 Found", Location="http://127.0.0.1:9/"),
    "404": answer(jwks("ec"), "404 Not Found"),
    "cut short": b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 100000\r\n\r\n"
    + jwks("ec"),
    "no HTTP": b"220 mail.example.com ESMTP\r\n\r\n",
}


@pytest.mark.parametrize("bad", BAD_ANSWERS)
async def test_a_document_that_is_none_leaves_the_keys_as_they_were(
    bad: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with key_set(answer(jwks("ec")), BAD_ANSWERS[bad], answer(jwks("rsa"))) as (
        keys,
        _,
        clock,
    ):
        await keys.key("ec")
        clock.skip(FRESH_S + 1)
        assert await known(keys, "ec") == [True]
        clock.skip(RETRY_S + 1)
        assert await known(keys, "ec", "rsa") == [False, True], "and the next good one is taken"
    (record,) = caplog.records
    fields = vars(record)["fields"]
    assert fields["url"] == keys.url
    assert fields["reason"]


async def test_a_document_of_the_largest_size_is_read() -> None:
    document = jwks("ec")
    async with key_set(answer(document + b" " * (MAX_BYTES - len(document)))) as (keys, _, _):
        assert await known(keys, "ec") == [True]


async def test_while_one_caller_waits_for_a_slow_issuer_stale_keys_serve_the_others() -> None:
    answered = asyncio.Event()

    async def fetch(url: str) -> bytes:
        if first_read.is_set():
            await answered.wait()
        first_read.set()
        return jwks("ec")

    first_read, clock = asyncio.Event(), FixedClock()
    keys = KeySet("unused", clock, fetch)
    await keys.key("ec")
    clock.skip(FRESH_S + 1)
    waiting = asyncio.create_task(keys.key("ec"))
    await asyncio.sleep(0)
    assert await asyncio.wait_for(keys.key("ec"), 60)
    assert not waiting.done()
    answered.set()
    assert await waiting


async def test_an_issuer_whose_bytes_drip_is_given_up() -> None:
    async with service(answer(jwks("ec")), pause_s=0.1, at_once=10) as server:
        keys = KeySet(f"{server.url}/jwks", FixedClock(), timeout_s=0.3)
        with pytest.raises(KeysUnavailable):
            await asyncio.wait_for(keys.key("ec"), 60)
