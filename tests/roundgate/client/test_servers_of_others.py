"""The official Python SDK's server, in two eras: lists, calls, progress, and a
question on its stream."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from roundgate.client import DECLINE, Client
from roundgate_aws.machine import reserved_port
from tests.support.sdk_servers import NEW, SdkServer


@pytest.fixture
async def url() -> AsyncIterator[str]:
    program = str(Path(__file__).with_name("served_by_mcp.py"))
    with reserved_port() as port:
        server = SdkServer({}, Path(os.devnull), (NEW, program, str(port)))
        await server.start()
        yield f"http://127.0.0.1:{port}/mcp"
        await server.kill()


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25", "2025-06-18"])
async def test_it_is_spoken_to_in_each_of_its_revisions(url: str, version: str) -> None:
    seen: list[Any] = []
    async with Client(url, versions=[version]) as client:
        about = await client.connect()
        assert (about.name, about.protocol_version) == ("official", version)
        assert {tool.name for tool in await client.tools()} == {"add", "steps", "greet", "sign"}
        assert (await client.call("add", a=1, b=2)).text == "3"
        await client.call("steps", on_progress=lambda progress: seen.append(progress.progress))
    assert seen == [1, 2]


async def test_the_newest_revision_that_both_know_is_chosen(url: str) -> None:
    async with Client(url) as client:
        assert (await client.connect()).is_modern


async def test_what_it_asks_in_a_round_is_answered(url: str) -> None:
    async with Client(url) as client:
        done = await client.call("sign", answers={"who": {"name": "Ada"}})
    assert (done.text, done.rounds) == ("signed, Ada", 2)


@pytest.mark.parametrize(
    ("answer", "said"), [({"name": "Ada"}, "Hello, Ada"), (DECLINE, "decline")]
)
async def test_what_it_asks_on_a_stream_is_answered(url: str, answer: Any, said: str) -> None:
    async with Client(url, versions=["2025-11-25"]) as client:
        assert (await client.call("greet", answers=lambda question: answer)).text == said
