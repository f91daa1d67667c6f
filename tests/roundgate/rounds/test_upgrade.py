"""A new version of a handler in the middle of a call: what is still asked is not asked again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from itertools import chain, repeat
from typing import Any

import pytest
from pydantic import BaseModel

from roundgate import Context, Form, tool
from roundgate.settings.process import Settings
from tests.support import rounds
from tests.support.asgi import Client, client, gateway
from tests.support.replay import Name
from tests.support.rounds import KEYS, Conversation, accept


class Size(BaseModel):
    size: str


class Color(BaseModel):
    color: str


def version_a(drawn: list[str]) -> Callable[..., Any]:
    @tool
    async def order(ctx: Context) -> str:
        """Asks two things together, then for consent."""
        await ctx.step("draw", lambda: drawn.append("a"))
        await ctx.ask({"who": Form("For whom?", Name), "size": Form("Which size?", Size)})
        await ctx.elicit("last", "Anything else, from A?", Name)
        return "by A"

    return order


def version_b(drawn: list[str]) -> Callable[..., Any]:
    @tool
    async def order(ctx: Context) -> str:
        """Keeps `who`, no longer wants `size`, asks for a color."""
        await ctx.step("draw", lambda: drawn.append("b"))
        answers = await ctx.ask(
            {"who": Form("For whom?", Name), "color": Form("Which color?", Color)}
        )
        last = await ctx.elicit("last", "Anything else, from B?", Name)
        return f"{answers['who'].get().name}, {answers['color'].get().color}, {last.name}"

    return order


ANSWERS = {
    "who": accept(name="Ada"),
    "size": accept(size="M"),
    "color": accept(color="blue"),
    "last": accept(name="x"),
}


async def replicas(stack: AsyncExitStack, drawn: list[str]) -> tuple[Client, Client]:
    using = Settings(state_keys=KEYS)
    apps = gateway(version_a(drawn), using=using), gateway(version_b(drawn), using=using)
    a, b = [await stack.enter_async_context(client(app)) for app in apps]
    return a, b


async def ordered(which: str, drawn: list[str]) -> tuple[str, list[list[str]]]:
    """What comes of a call whose rounds reach these versions in turn, and what was asked in each."""
    async with AsyncExitStack() as stack:
        by_name = dict(zip("ab", await replicas(stack, drawn), strict=True))
        call = Conversation(ANSWERS)
        turn = chain(map(by_name.__getitem__, which), repeat(by_name[which[-1]]))
        result = await call.have(turn, *rounds.tool("order"))
        return result["content"][0]["text"], call.asked


@pytest.mark.parametrize(
    ("which", "text", "asked"),
    [
        ("ab", "Ada, blue, x", [["who", "size"], ["color"], ["last"]]),
        ("aab", "Ada, blue, x", [["who", "size"], ["last"], ["color"], ["last~2"]]),
        ("aba", "by A", [["who", "size"], ["color"], ["last"]]),
        ("abab", "Ada, blue, x", [["who", "size"], ["color"], ["last"], ["last~2"]]),
    ],
    ids=["kept, new and obsolete", "reads differently", "rolled back", "both serve"],
)
async def test_what_is_still_asked_is_not_asked_again(
    which: str, text: str, asked: list[list[str]]
) -> None:
    drawn: list[str] = []
    assert await ordered(which, drawn) == (text, asked)
    assert drawn == ["a"]
