"""A large request gives others their turn, and is read like a small one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from roundgate import tool
from roundgate.errors import ParseError
from roundgate.json import LARGE, decode, fresh
from tests.support import wire
from tests.support.asgi import Exchange, gateway, stoppable


async def turns_before(text: str) -> int:
    """How often other work ran between the last byte of a body and the call of its tool."""
    turns, seen = 0, list[int]()

    @tool
    async def measure(text: str) -> int:
        seen.append(turns)
        return len(text)

    async def other_work() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    asked = wire.call("measure", {"text": text})
    async with stoppable(gateway(measure)) as app:
        other = asyncio.create_task(other_work())
        async with Exchange(app, asked) as exchange:
            assert b"structuredContent" in await exchange.body()
        other.cancel()
    return seen[0]


async def test_others_have_a_turn_before_and_after_a_large_body_is_decoded() -> None:
    assert await turns_before("x" * LARGE) == await turns_before("x") + 2


TOO_LARGE = [b"1e999", b"-1E+400", b"1" + b"0" * 400 + b".0", b"9" * 300 + b"e99"]


@pytest.mark.parametrize("number", TOO_LARGE)
@pytest.mark.parametrize("beside", [b'"%b"' % (b"x" * LARGE), b"1," * LARGE + b"1"])
def test_a_number_beyond_a_double_is_found_in_any_large_body(number: bytes, beside: bytes) -> None:
    for body in (b"[%b,%b]", b'[%b,[{"a":[%b]}]]'):
        with pytest.raises(ParseError, match="too large for a double"):
            decode(body % (beside, number))


@pytest.mark.parametrize("beside", [b'"%b"' % (b"1e999 " * LARGE), b"1e300," * LARGE + b"1"])
def test_a_large_body_without_one_is_read(beside: bytes) -> None:
    assert decode(b"[%b]" % beside)


@pytest.mark.parametrize(
    "value", [[1, "a", None, True, 1.5], {"a": 1, "b": "x"}, [[1], {"a": [2]}], {"a": [1]}, [], {}]
)
def test_a_copy_shares_no_list_or_dict(value: Any) -> None:
    copied = fresh(value)
    assert copied == value
    assert not {id(part) for part in containers(copied)} & {id(part) for part in containers(value)}


def containers(value: Any) -> list[Any]:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value, *(inner for part in parts for inner in containers(part))] if parts != () else []
