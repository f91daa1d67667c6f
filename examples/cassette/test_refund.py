"""A test of a client that answers a server's question. It needs no server: the cassette has the
answers."""

from __future__ import annotations

import asyncio

from roundgate_testing.cassettes.pytest_plugin import CassetteOfTest

DESK = "http://127.0.0.1:8000/mcp"


async def refund(cassette: CassetteOfTest) -> str:
    """Refund an order, and agree when asked."""
    async with cassette.client(DESK, info={"name": "example", "version": "1"}) as client:
        done = await client.call("refund", order=7, answers={"confirm": {"go": True}})
        return done.text


def test_a_refund(cassette: CassetteOfTest) -> None:
    assert asyncio.run(refund(cassette)) == "Refunded order 7"
