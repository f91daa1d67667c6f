"""One caller does not have all threads for plain functions, whatever it runs in them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from roundgate import Context, prompt, resource, tool
from tests.support.asgi import Client
from tests.support.issuer import bearer, gateway_for, token

THREADS = 4
go = threading.Event()


@pytest.fixture(autouse=True)
def _let_go() -> Iterator[None]:
    go.clear()
    yield
    go.set()


@tool
def hold() -> str:
    """Keeps a thread."""
    go.wait(60)
    return "held"


@tool
async def hold_in_steps(ctx: Context) -> str:
    """Keeps as many threads as steps may have."""
    await asyncio.gather(*(ctx.step("hold", hold) for _ in range(60)))
    return "held"


def hold_and_complete(typed: str) -> list[str]:
    go.wait(60)
    return [typed]


@prompt(complete={"word": hold_and_complete})
def hold_prompt(word: str) -> str:
    """Keeps a thread."""
    go.wait(60)
    return word


@resource("hold://{what}")
def hold_resource(what: str) -> str:
    """Keeps a thread."""
    go.wait(60)
    return what


@tool
def quick() -> str:
    """Needs a thread for a moment."""
    return "done"


@tool
async def quick_step(ctx: Context) -> str:
    """Needs a thread of a step for a moment."""
    return str(await ctx.step("quick", quick))


@pytest.fixture
async def mcp() -> AsyncIterator[Client]:
    functions = (hold, hold_in_steps, hold_prompt, hold_resource, quick, quick_step)
    async with gateway_for(*functions, limits={"threads": THREADS}) as (made, _):
        yield made


HOLDING: dict[str, tuple[str, dict[str, Any]]] = {
    "tools": ("tools/call", {"name": "hold", "arguments": {}}),
    "prompts": ("prompts/get", {"name": "hold_prompt", "arguments": {"word": "a"}}),
    "resources": ("resources/read", {"uri": "hold://a"}),
    "completions": (
        "completion/complete",
        {
            "ref": {"type": "ref/prompt", "name": "hold_prompt"},
            "argument": {"name": "word", "value": "a"},
        },
    ),
    "steps": ("tools/call", {"name": "hold_in_steps", "arguments": {}}),
}


@pytest.mark.parametrize("what", HOLDING)
async def test_another_caller_gets_a_thread_while_one_holds_as_many_as_it_can(
    mcp: Client, what: str
) -> None:
    method, params = HOLDING[what]
    ann = bearer(token(sub="ann"))
    held = [
        asyncio.ensure_future(mcp.post(method, params, headers=ann)) for _ in range(2 * THREADS)
    ]
    await asyncio.sleep(0.3)
    for name in ("quick", "quick_step"):
        asked = mcp.post(
            "tools/call", {"name": name, "arguments": {}}, headers=bearer(token(sub="eve"))
        )
        answered = await asyncio.wait_for(asked, 60)
        assert answered.json()["result"]["content"][0]["text"] == "done"
    go.set()
    assert {one.status_code for one in await asyncio.gather(*held)} == {200}
