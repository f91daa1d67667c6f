"""Ten conversations and more, each a function of a client that says what came of it: to be
recorded and replayed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from roundgate.client import VERSIONS, Client, Transport
from roundgate.errors import RpcError, TaskEnded

INFO: Final = {"name": "tests", "version": "1"}
Conversation = Callable[[Client], Awaitable[Any]]


async def plain_call(client: Client) -> Any:
    return (await client.call("add", a=2, b=40)).value


async def two_rounds(client: Client) -> Any:
    done = await client.call("refund", order=7, answers={"confirm": {"go": True}})
    return done.value, done.rounds


async def three_questions(client: Client) -> Any:
    names = {"first": "Ada", "last": "Lovelace", "sure": True}
    return (await client.call("introduce", answers=names)).value


async def url_question(client: Client) -> Any:
    return (await client.call("pay", answers={"pay": True})).value


async def sampling(client: Client) -> Any:
    return (await client.call("poem", answers={"line": "Roses are red"})).value


async def task_with_a_question(client: Client) -> Any:
    task = await client.start("deploy", env="prod")
    return (await task.wait(answers={"apply": {"go": True}}, timeout_s=60)).value


async def task_cancelled(client: Client) -> Any:
    task = await client.start("deploy", env="test")
    await task.cancel()
    try:
        await task.wait(timeout_s=60)
    except TaskEnded as ended:
        return ended.status


async def pages_of_a_list(client: Client) -> Any:
    return [tool.name for tool in await client.tools()]


async def listening(client: Client) -> Any:
    async with client.listen(tools=True) as changes:
        await client.call("grow")
        return (await asyncio.wait_for(anext(changes), 60)).method


async def older_session(client: Client) -> Any:
    return (await client.call("refund", order=8, answers={"go": True})).value


async def error(client: Client) -> Any:
    failed = await client.call("fail")
    try:
        await client.call("nothing")
    except RpcError as raised:
        return failed.text, raised.code


async def progress(client: Client) -> Any:
    seen: list[float] = []
    done = await client.call("count", on_progress=lambda one: seen.append(one.progress))
    return done.value, seen


ALL: Final[Mapping[str, Conversation]] = {
    one.__name__: one
    for one in (
        plain_call,
        two_rounds,
        three_questions,
        url_question,
        sampling,
        task_with_a_question,
        task_cancelled,
        pages_of_a_list,
        listening,
        older_session,
        error,
        progress,
    )
}

EXPECTED: Final[Mapping[str, Any]] = {
    "plain_call": 42,
    "two_rounds": ("Refunded order 7", 2),
    "three_questions": "Ada Lovelace",
    "url_question": "Paid",
    "sampling": "Roses are red",
    "task_with_a_question": "Deployed to prod",
    "task_cancelled": "cancelled",
    "pages_of_a_list": [
        *("add", "fail", "refund", "introduce", "pay", "poem", "deploy", "grow", "count"),
    ],
    "listening": "notifications/tools/list_changed",
    "older_session": "Refunded order 8",
    "error": ("The printer is on fire", -32602),
    "progress": ("Counted", [1, 2]),
}


async def held(name: str, url: str, transport: Transport) -> Any:
    """Hold a conversation; what came of it."""
    versions = ("2025-11-25",) if name == "older_session" else VERSIONS
    async with (
        asyncio.timeout(60),
        Client(url, transport=transport, info=INFO, versions=versions) as client,
    ):
        return await ALL[name](client)
