"""Any request at all: one well-formed answer, in time, and never one that blames the server.

`--long` tries the same 5,000 cases every time, a short run the first 1,000. For a run with new ones:

    FUZZ_CASES=20000 [FUZZ_SEED=…] pytest tests/roundgate/http/test_any_request.py -s
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import secrets
import time
from collections import Counter
from collections.abc import Coroutine, Iterator, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from fastapi import FastAPI

from roundgate.auth import task_owner
from roundgate.auth.principal import LOCAL
from roundgate.clock import Clock
from roundgate.json import encode
from roundgate.observability import JsonFormatter
from roundgate.protocol import v2025
from roundgate.runtime.startup import Stores, make_stores
from roundgate.storage.tasks import TaskRef
from roundgate.tasks import events
from roundgate.tasks.events import NewTask
from roundgate.tasks.stored import Claimed
from tests.support import wire
from tests.support.functions import EVERYTHING
from tests.support.jobs import dig
from tests.support.long import is_long
from tests.support.mutations import A_TASK, ANOTHER_TASK, Case, case
from tests.support.task_client import (
    EXTENSION,
    serving,
    task_settings,
    valid_acknowledgement,
    valid_created,
    valid_got,
)

T = TypeVar("T")

USUAL_SEED = "2026-07-28"
TIME_LIMIT_S, TICKS = 20.0, 20
STATUSES = {200, 202, 400, 403, 404, 405, 406, 413, 415}
UNREAD = {403, 405, 406, 413, 415}
"""Statuses of requests that are refused before their body is looked at."""
MAX_BODY = 30_000


@dataclass
class Answer:
    """What the app sent."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    starts: int = 0
    ended: bool = False

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type") == "text/event-stream"


async def send(app: FastAPI, request: Case) -> Answer:
    """Play a server with a client that hangs up after the first event of a stream that does not end by itself."""
    answer, streaming, sent = Answer(), asyncio.Event(), iter(enumerate(request.chunks, 1))

    async def receive() -> dict[str, Any]:
        for number, chunk in sent:
            return {
                "type": "http.request",
                "body": chunk,
                "more_body": number < len(request.chunks),
            }
        await streaming.wait()
        return {"type": "http.disconnect"}

    async def take(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            answer.starts += 1
            answer.status = message["status"]
            answer.headers = {
                name.decode(): value.decode("latin-1") for name, value in message["headers"]
            }
        else:
            answer.body += message["body"]
            answer.ended = not message.get("more_body", False)
            if answer.is_stream and not answer.ended:
                streaming.set()

    scope = {
        "type": "http",
        "method": request.method,
        "path": "/mcp",
        "query_string": b"",
        "headers": request.headers,
    }
    await app(scope, receive, take)
    return answer


def read(body: bytes) -> Any:
    """The body by an independent reading of the rules.

    Raises:
        ValueError, RecursionError: it is not the JSON that the gateway may take.
    """

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) < len(pairs):
            raise ValueError("a key twice")
        return dict(pairs)

    def number(text: str) -> float:
        if math.isinf(float(text)):
            raise ValueError("too large for a double")
        return float(text)

    def constant(text: str) -> float:
        raise ValueError(text)

    text = body.decode("utf-8")
    return json.loads(text, object_pairs_hook=members, parse_float=number, parse_constant=constant)


def may_be_refused(value: Any) -> bool:
    """Whether a strict reader may take offence at JSON that others take: it is deep, or has half a surrogate pair."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return _depth(value) > 150


def _depth(value: Any) -> int:
    deepest, level = 0, [value]
    while level:
        deepest += 1
        level = [inner for one in level for inner in _inner(one)]
    return deepest


def _inner(value: Any) -> list[Any]:
    return (
        list(value.values())
        if isinstance(value, dict)
        else value
        if isinstance(value, list)
        else []
    )


def is_id(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= 256
    return type(value) is int and -(2**63) <= value < 2**63


def is_preflight(request: Case) -> bool:
    """Whether it is a question of a browser about CORS, which is not an MCP message and not answered as one."""
    asked = request.header(b"access-control-request-method")
    return (
        request.method == "OPTIONS" and asked is not None and request.header(b"origin") is not None
    )


def judge(request: Case, answer: Answer) -> str:
    """Check an answer by everything that must hold for any; returns what it was, for the count."""
    assert answer.starts == 1
    if (
        is_preflight(request) and answer.status != 403
    ):  # the guard refuses these as it refuses any other
        assert answer.status in (200, 400)
        return "preflight"
    assert answer.status in STATUSES
    if answer.is_stream:
        return judge_stream(request, answer)
    assert answer.ended
    assert int(answer.headers["content-length"]) == len(answer.body)
    if answer.status == 202:
        assert answer.body == b""
        assert "id" not in read(request.body)
        return "202"
    response = httpx.Response(answer.status, headers=answer.headers, content=answer.body)
    if answer.status == 200 and "result" in response.json():
        asked = read(request.body)
        assert response.json()["id"] == asked["id"]
        return judge_result(asked, response)
    code = wire.valid_error(response)["code"]
    assert code != -32603, (
        "nothing in these requests makes a handler fail, so it must have been the gateway"
    )
    judge_error(request, answer.status, code, response.json())
    return f"{answer.status} {code}"


def judge_result(asked: dict[str, Any], response: httpx.Response) -> str:
    method, result = asked["method"], response.json()["result"]
    if method == "initialize":
        assert result["protocolVersion"] in v2025.VERSIONS
        assert "mcp-session-id" in response.headers
        return "session"
    if result["resultType"] == "task":
        assert method == "tools/call"
        assert (
            EXTENSION in asked["params"]["_meta"][wire.PREFIX + "clientCapabilities"]["extensions"]
        )
        valid_created(response.json())
        return "created"
    if method == "tasks/get":
        valid_got(response.json())
        return "task"
    if method.startswith("tasks/"):
        valid_acknowledgement(response)
        return "acknowledged"
    wire.valid_result(method, response.json())
    return "result"


def judge_error(request: Case, status: int, code: int, response: dict[str, Any]) -> None:
    if (status in UNREAD or request.method != "POST") and "id" not in response:
        return
    try:
        asked = read(request.body)
    except (ValueError, RecursionError):
        assert code == -32700
        assert "id" not in response
        return
    if code == -32700 and may_be_refused(asked):
        return
    assert code != -32700, "the body is JSON"
    readable = isinstance(asked, dict) and is_id(asked.get("id"))
    assert ("id" in response) == readable
    if readable:
        assert response["id"] == asked["id"]
        assert type(response["id"]) is type(asked["id"])


def judge_stream(request: Case, answer: Answer) -> str:
    asked = read(request.body)
    messages = wire.events(answer.body.decode())
    assert answer.status == 200
    if asked["method"] == "subscriptions/listen":
        assert messages[0]["method"] == "notifications/subscriptions/acknowledged"
        assert messages[0]["params"]["_meta"][wire.SUBSCRIPTION_ID] == asked["id"]
        return "listening"
    *notifications, last = messages
    assert all(
        one["method"].startswith("notifications/") and "id" not in one for one in notifications
    )
    assert last["id"] == asked["id"]
    assert ("result" in last) != ("error" in last)
    return "stream"


def chosen() -> tuple[int, str]:
    """How many cases, and the seed of all of them."""
    cases = os.environ.get("FUZZ_CASES")
    seed = os.environ.get("FUZZ_SEED") or (secrets.token_hex(4) if cases else USUAL_SEED)
    return int(cases or (5_000 if is_long() else 1_000)), seed


class Lines(logging.Handler):
    """Writes every record as the gateway does, and notes what must not be."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.failures: list[str] = []
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        assert json.loads(line)["msg"]
        assert len(line) < 3000
        self.count += record.name == "roundgate.request"
        if record.levelno >= logging.WARNING and record.name not in (
            "roundgate.stalls",
            "roundgate.tokens",
        ):  # of the generator, which shares the loop
            self.failures.append(line)


@pytest.fixture
def lines() -> Iterator[Lines]:
    logger, handler = logging.getLogger("roundgate"), Lines()
    before = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
    logger.level, logger.propagate = before
    logger.setLevel(before[0])


async def make_tasks(stores: Stores) -> None:
    """Two tasks that ask: `A_TASK` something that no request answers, too."""
    for task_id in (A_TASK, ANOTHER_TASK):
        now_ms = Clock().now_ms()
        ref = TaskRef(task_owner(LOCAL), task_id)
        await stores.tasks.create(NewTask(ref, "dig", b"{}", now_ms, now_ms + 3_600_000, now_ms))
        claimed = await stores.tasks.claim(
            ref, events.Claim(now_ms + 1_000, now_ms + 1_000, now_ms), now_ms
        )
        assert isinstance(claimed, Claimed)
        roots = encode({"method": "roots/list"})
        await stores.tasks.write(
            claimed.lease, events.SuspendTask({"who": roots, "unanswered": roots}), now_ms
        )


async def test_any_request_gets_one_well_formed_answer_in_time(
    lines: Lines, tmp_path: Path
) -> None:
    cases, seed = chosen()
    print(f"\nFUZZ_CASES={cases} FUZZ_SEED={seed}")
    functions = [
        one for one in EVERYTHING if one.__name__ not in ("crash", "broken_prompt", "broken_note")
    ]
    stores = make_stores(task_settings(tmp_path), Clock())
    async with serving(
        tmp_path, *functions, dig, http={"max_body_bytes": MAX_BODY}, stores=stores, works=False
    ) as app:
        await make_tasks(stores)
        await try_all(app, cases, seed, lines)


async def in_time(sending: Coroutine[Any, Any, T], limit_s: float = TIME_LIMIT_S) -> T:
    """What is sent, unless it takes too long: in ticks of this event loop, so that a process which the system does not
    let run is not taken for an answer that does not come."""
    task = asyncio.ensure_future(sending)
    for _ in range(TICKS):
        done, _ = await asyncio.wait([task], timeout=limit_s / TICKS)
        if done:
            return task.result()
    task.cancel()
    await asyncio.wait([task])
    raise TimeoutError(f"no answer in {limit_s:g} s")


async def test_an_answer_that_never_comes_is_a_failure() -> None:
    with pytest.raises(TimeoutError, match="no answer"):
        await in_time(asyncio.Event().wait(), limit_s=0.5)


async def try_all(app: FastAPI, cases: int, seed: str, lines: Lines) -> None:
    kinds: Counter[str] = Counter()
    slowest, began = 0.0, time.perf_counter()
    for number in range(cases):
        request, started = case(f"{seed}:{number}"), time.perf_counter()
        try:
            answer = await in_time(send(app, request))
            kinds[judge(request, answer)] += 1
            assert lines.failures == []
            assert lines.count == sum(kinds.values()) - kinds["preflight"]
        except BaseException as error:
            error.add_note(f"case {seed}:{number}: {request}"[:5000])
            raise
        slowest = max(slowest, time.perf_counter() - started)
    took = time.perf_counter() - began
    print(f"{took:.1f} s, slowest {slowest * 1000:.0f} ms: {dict(kinds.most_common())}")
    assert kinds.keys() >= EVERY_KIND


EVERY_KIND = {
    "result", "created", "task", "acknowledged", "stream", "listening", "202",
    "404 -32601", "403 -32600", "405 -32600", "406 -32600", "413 -32600",
    "415 -32600", "400 -32700", "400 -32600", "400 -32602", "400 -32020", "400 -32021", "400 -32022", "preflight",
}  # fmt: skip
"""A generator that does not get every one of these answers does not test what it says."""
