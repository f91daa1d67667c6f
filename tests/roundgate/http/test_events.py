"""`POST /events/{token}`: what services are told, and that nothing but a token leads anywhere."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from roundgate import Context, tool
from roundgate.auth.principal import LOCAL
from roundgate.cli import main
from roundgate.tokens import EventPlace, EventTokens, Key, KeyRing, TaskIds, TaskPlace
from roundgate.tokens.keys import parse
from tests.support.asgi import STATE_KEY
from tests.support.log_lines import LogLines, log_lines
from tests.support.task_client import TaskClient, ref_of, tasked

PUBLIC = "https://mcp.example.com"
SECRET = "4242 4242"
URLS: list[str] = []


def note(url: str) -> None:
    URLS.append(url)


@tool(task="optional")
async def buy(ctx: Context, timeout_s: float = 3_600) -> dict[str, Any]:
    """Waits for a payment."""
    paid = await ctx.event("paid", timeout_s=timeout_s)
    await ctx.step("order", note, paid.url)
    return {"paid": await paid.wait()}


@tool
async def never(ctx: Context) -> str:
    """Cannot be a task."""
    return str((await ctx.event("paid")).token)


@pytest.fixture(autouse=True)
def _no_urls() -> None:
    URLS.clear()


@pytest.fixture
def lines() -> Iterator[LogLines]:
    with log_lines() as lines:
        yield lines


@pytest.fixture
async def ann(tmp_path: Path) -> AsyncIterator[TaskClient]:
    async with tasked(tmp_path, buy, never, public_url=PUBLIC) as ann:
        yield ann


async def event_url(ann: TaskClient, **arguments: Any) -> tuple[str, str]:
    """A task, and the path of its event."""
    known = len(URLS)
    task_id = await ann.begin("buy", **arguments)
    until_s = time.monotonic() + 60
    while len(URLS) == known:
        assert time.monotonic() < until_s, await ann.get(task_id)
        await asyncio.sleep(0.01)
    assert URLS[-1].startswith(f"{PUBLIC}/events/")
    return task_id, URLS[-1].removeprefix(PUBLIC)


async def post(ann: TaskClient, path: str, payload: Any = None, **more: Any) -> httpx.Response:
    if "content" in more:
        headers = {"content-type": "application/json", **more.pop("headers", {})}
        return await ann.mcp.http.post(path, headers=headers, **more)
    return await ann.mcp.http.post(path, json=payload, **more)


async def test_a_service_delivers_once_and_may_repeat_itself(ann: TaskClient) -> None:
    task_id, path = await event_url(ann)
    first = await post(ann, path, {"amount": 7})
    assert (first.status_code, first.json()) == (202, {"status": "accepted"})
    task = await ann.over(task_id)
    assert task["result"]["structuredContent"] == {"paid": {"amount": 7}}
    again = await post(ann, path, {"amount": 7.0})
    assert (again.status_code, again.json()) == (200, {"status": "repeated"})
    other = await post(ann, path, {"amount": 8})
    assert (other.status_code, list(other.json())) == (409, ["error"])


async def test_nothing_is_accepted_for_a_task_that_was_cancelled(ann: TaskClient) -> None:
    task_id, path = await event_url(ann)
    await ann.cancel(task_id)
    assert (await post(ann, path, 7)).status_code == 410


async def test_a_payload_that_is_too_late_is_refused_and_the_handler_times_out(
    ann: TaskClient,
) -> None:
    task_id, path = await event_url(ann, timeout_s=0.3)
    task = await ann.over(task_id)
    assert task["result"]["isError"] is True
    assert (await post(ann, path, 7)).status_code == 410


async def test_every_token_that_was_not_sealed_for_an_event_gets_one_answer(
    ann: TaskClient,
) -> None:
    task_id, path = await event_url(ann)
    token = path.rpartition("/")[2]
    ring = KeyRing(parse(STATE_KEY, "test"))
    other_ring = KeyRing([Key(b"x" * 32)])
    place = EventPlace(ref_of(task_id).partition(".")[0], task_id, "event:paid")
    forged = {
        "nothing": "x",
        "another key": EventTokens(other_ring).seal(place),
        "another audience": EventTokens(KeyRing(ring.keys, "other")).seal(place),
        "a view": EventTokens(ring.of_view("other")).seal(place),
        "the id of a task": TaskIds(ring).seal(TaskPlace("b", "t", "i"), LOCAL),
        "no task": EventTokens(ring).seal(EventPlace("uX", "unknown", "event:paid")),
        "an owner that is none": EventTokens(ring).seal(EventPlace("", "", "")),
        "too long": token + "A" * 4_000,
        "cut": token[:-1],
        "in other words": token + "=",
        **{f"altered at {n}": _altered(token, n) for n in range(0, len(token), 7)},
    }
    answers = {}
    for name, one in forged.items():
        response = await post(ann, f"/events/{one}", 7)
        answers[name] = (response.status_code, response.text)
    assert set(answers.values()) == {(404, '{"error":"There is no such event"}')}, answers
    assert (await ann.get(task_id))["status"] == "working"
    closed = EventTokens(ring).seal(EventPlace(place.owner, task_id, "event:other"))
    assert (await post(ann, f"/events/{closed}", 7)).status_code == 410
    assert (await post(ann, path, 7)).status_code == 202


def _altered(token: str, place: int) -> str:
    other = "A" if token[place] != "A" else "B"
    return token[:place] + other + token[place + 1 :]


VALUES = {
    b"": None,
    b"null": None,
    b"0": 0,
    b'"\\u0000\\u202e"': "\0\u202e",
    b'{"n": 123456789012345678901234567890}': {"n": 123456789012345678901234567890},
}
REFUSED = {
    b'"\\ud800"': 400,
    b"{": 400,
    b"NaN": 400,
    b"1e999": 400,
    b'{"a": 1, "a": 2}': 400,
    b"[" * 500 + b"]" * 500: 400,
    b"[" * 101 + b"]" * 101: 400,  # a journal cannot keep it
    b"\xff": 400,
    b'"' + b"x" * 64_000 + b'"': 413,
    b"[" + b"1," * 3_000 + b"1]": 413,
}


async def test_a_payload_is_one_json_value_within_bounds(tmp_path: Path) -> None:
    async with tasked(tmp_path, buy, public_url=PUBLIC, http={"max_json_nodes": 2_000}) as ann:
        _, path = await event_url(ann)
        for body, status in REFUSED.items():
            response = await post(ann, path, content=body)
            assert response.status_code == status, (body[:20], response.text)
        assert (await post(ann, path, 7)).status_code == 202, "a refusal uses nothing up"
        for body, value in VALUES.items():
            task_id, path = await event_url(ann)
            assert (await post(ann, path, content=body)).status_code == 202, body
            task = await ann.over(task_id)
            assert task["result"]["structuredContent"] == {"paid": value}


async def test_a_body_of_unknown_length_is_bounded_too(ann: TaskClient) -> None:
    _, path = await event_url(ann)
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 10_000_000:
            sent += 10_000
            yield b" " * 10_000

    response = await post(ann, path, content=endless())
    assert response.status_code == 413
    assert "tasks.max_event_bytes" in response.json()["error"]
    assert (await post(ann, path, 7)).status_code == 202


async def test_only_post_and_json_are_taken(ann: TaskClient) -> None:
    _, path = await event_url(ann)
    for method in ("GET", "PUT", "DELETE", "PATCH"):
        assert (await ann.mcp.http.request(method, path, content=b"7")).status_code == 405
    for media, status in (
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("", 415),
        ("application/json; charset=utf-8", 202),
        ("Application/CloudEvents+JSON", 200),  # the same payload once more
    ):
        response = await post(ann, path, content=b"7", headers={"content-type": media})
        assert response.status_code == status, media


async def test_more_than_the_rate_allows_get_429_before_a_token_is_opened(tmp_path: Path) -> None:
    http = {"max_events_per_s": 3}
    async with tasked(tmp_path, buy, public_url=PUBLIC, http=http) as ann:
        answers = [await post(ann, "/events/forged", 7)]
        while (
            answers[-1].status_code == 404 and len(answers) < 1_000
        ):  # a slow machine sends few a second
            answers.append(await post(ann, "/events/forged", 7))
    assert len(answers) > 3
    assert answers[-1].status_code == 429
    assert answers[-1].headers["retry-after"] == "5"


async def test_neither_tokens_nor_payloads_reach_the_log(tmp_path: Path, lines: LogLines) -> None:
    async with tasked(tmp_path, buy, public_url=PUBLIC) as ann:
        task_id, path = await event_url(ann)
        token = path.rpartition("/")[2]
        await post(ann, path, {"card": SECRET})
        await post(ann, path, {"card": f"{SECRET} again"})
        await post(ann, f"/events/{_altered(token, 40)}", {"card": SECRET})
        await post(ann, path, content=f'{{"card": "{SECRET}"'.encode())
        await ann.over(task_id)
    text = "".join(lines.text)
    assert token not in text
    assert token[30:60] not in text
    assert SECRET not in text
    told = [
        (line["status"], line.get("outcome"), line.get("task"))
        for line in lines.of("an external event")
    ]
    ref = ref_of(task_id)
    accepted = told[0][1]
    assert accepted in ("kept", "wakes")
    assert told == [
        (202, accepted, ref),
        (409, "other", ref),
        (404, "unknown task", None),
        (400, None, None),
    ]


async def test_a_call_that_is_no_task_is_told_to_be_one(ann: TaskClient) -> None:
    for name, capabilities in (("never", ann.capabilities), ("buy", {})):
        plain = TaskClient(ann.mcp, capabilities)
        body = (await plain.call(name)).json()
        text = body["result"]["content"][0]["text"]
        assert body["result"]["isError"] is True
        assert "its call has to be a task" in text
        assert 'task="required"' in text
    assert URLS == []


async def test_without_a_public_url_the_caller_is_told_what_is_missing(tmp_path: Path) -> None:
    async with tasked(tmp_path, buy) as ann:
        task = await ann.over(await ann.begin("buy"))
    assert "GATEWAY_PUBLIC_URL is not set" in task["result"]["content"][0]["text"]


async def test_a_store_that_is_away_is_a_503(
    ann: TaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, path = await event_url(ann)

    def away(*args: Any, **kwargs: Any) -> Any:
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patched:
        patched.setattr("roundgate.storage.sqlite.tasks._record", away)
        response = await post(ann, path, 7)
    assert (response.status_code, response.headers["retry-after"]) == (503, "5")
    assert (await post(ann, path, 7)).status_code == 202


# the operator


async def _operate(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    status = await asyncio.to_thread(main, ["tasks", *arguments])
    return status, *capsys.readouterr()


async def test_an_operator_sees_events_and_delivers_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_STORE", f"sqlite:///{tmp_path / 'gateway.sqlite3'}")
    file = tmp_path / "payment.json"
    async with tasked(tmp_path, buy, public_url=PUBLIC) as ann:
        task_id, _ = await event_url(ann)
        ref = ref_of(task_id)
        until_s = time.monotonic() + 60
        while "awaited" not in (await _operate(capsys, "show", ref))[1]:
            assert time.monotonic() < until_s
            await asyncio.sleep(0.05)
        _, shown, _ = await _operate(capsys, "show", ref)
        assert "doing:        waits for event:paid\n" in shown
        assert "event:paid (awaited until 20" in shown
        assert "event:paid: can be delivered\n" in shown
        status, _, err = await _operate(capsys, "event", ref, "other")
        assert (status, err) == (1, f"{ref} has no event 'other'; its events are: paid\n")
        file.write_text("{")
        status, _, err = await _operate(capsys, "event", ref, "paid", "--payload-file", str(file))
        assert (status, err.startswith("--payload-file: ")) == (2, True)
        file.write_text(json.dumps({"amount": 7}))
        status, out, _ = await _operate(capsys, "event", ref, "paid", "--payload-file", str(file))
        assert (status, out) == (0, f"{ref} has the event and continues\n")
        task = await ann.over(task_id)
        assert task["result"]["structuredContent"] == {"paid": {"amount": 7}}
        status, _, err = await _operate(capsys, "event", ref, "event:paid")
        assert (status, "with another payload, which is kept" in err) == (1, True)
    _, shown, _ = await _operate(capsys, "show", ref, "--json")
    facts = json.loads(shown)
    assert [one["state"] for one in facts["events"]] == ["delivered"]
    assert SECRET not in shown
