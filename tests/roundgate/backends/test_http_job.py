"""Jobs of an HTTP service, over sockets: started, followed without holding a worker,
fetched; plain calls as tasks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from roundgate.auth import task_owner
from roundgate.auth.principal import LOCAL
from roundgate.backends.http.exchanges import INPUT_REQUIRED
from roundgate.cli import main
from roundgate.clock import Clock
from roundgate.errors import LeaseLost
from roundgate.main import build_app
from roundgate.runtime.startup import Stores, make_stores
from roundgate.storage.tasks import TaskRecord, TaskRef
from roundgate.tasks.events import Claim
from roundgate.tasks.turn import TurnResult
from tests.support import wire
from tests.support.asgi import NO_FALLBACK, Exchange, client, config_of, stoppable
from tests.support.clocks import SkippingClock
from tests.support.rounds import CAPABILITIES, accept
from tests.support.scripted import Asked, scripted
from tests.support.services import Service, answer, service
from tests.support.task_client import DECLARED, MISSING, TaskClient, task_settings

JOB = {
    "poll": "/jobs/{id}",
    "succeeded": ["done"],
    "failed": ["broken", "gone"],
    "error": "/why",
    "every_s": 0.1,
}
DECLARATION = {
    "name": "run",
    "description": "Runs.",
    "method": "POST",
    "path": "/jobs",
    "arguments": {"what": {"required": True}},
    "task": "optional",
}
STARTED = answer(b'{"id":"j-1"}', "202 Accepted")
RUNNING, DONE = answer(b'{"status":"running"}'), answer(b'{"status":"done","rows":3}')


@dataclass
class House:
    """A gateway in front of a service, and what its tasks look like in the store."""

    ann: TaskClient
    told: Service
    clock: SkippingClock
    stores: Stores
    app: FastAPI

    async def run(self, *answers: bytes) -> dict[str, Any]:
        """The task of a call, to which the service says these answers, once it is terminal."""
        return await self.ann.over(await self.begin(*answers))

    async def begin(self, *answers: bytes) -> str:
        """The id of the task of a call, to which the service says these answers."""
        self.told.requests.clear()
        self.told.answers = answers
        return await self.ann.begin("run", what="x")

    async def record(self, task_id: str) -> TaskRecord:
        found = await self.stores.tasks.read(
            TaskRef(task_owner(LOCAL), task_id), self.clock.now_ms()
        )
        assert found is not None
        return found

    async def quiet(self, task_id: str, requests: int) -> TaskRecord:
        """The row once so many requests were sent and no worker has the task."""
        until = self.clock.monotonic_ms() + 60_000
        while (
            len(self.told.requests) < requests
            or (record := await self.record(task_id)).lease_until_ms
        ):
            assert Clock().monotonic_ms() < until, self.told.request_lines
            await asyncio.sleep(0.01)
        return record


@asynccontextmanager
async def house(
    directory: Path,
    *answers: bytes,
    job: dict[str, Any] | None = None,
    works: bool = True,
    **tool: Any,
) -> AsyncIterator[House]:
    """A gateway whose one tool is `run`, of a service that says these answers."""
    async with AsyncExitStack() as stack:
        told = await stack.enter_async_context(service(*answers))
        yield await stack.enter_async_context(
            house_before(directory, told, job=job, works=works, **tool)
        )


@asynccontextmanager
async def house_before(
    directory: Path,
    told: Service,
    *,
    job: dict[str, Any] | None,
    works: bool = True,
    tasks: dict[str, Any] | None = None,
    base_url: str = "",
    **tool: Any,
) -> AsyncIterator[House]:
    declared = {**DECLARATION, **tool} | ({} if job is None else {"job": {**JOB, **job}})
    backend = {
        "kind": "http",
        "name": "api",
        "prefix": "",
        "base_url": base_url or told.url,
        "tools": [declared],
    }
    sections = {"poll_interval_ms": 100, "sweep_every_s": 0.1, **(tasks or {})}
    file = config_of({"backends": [backend], "tasks": sections, "fallback": NO_FALLBACK})
    clock = SkippingClock()
    using = task_settings(directory, worker="on" if works else "off")
    stores = make_stores(using, clock)
    async with (
        stoppable(build_app(file, using, clock=clock, stores=stores)) as app,
        client(app) as mcp,
    ):
        yield House(TaskClient(mcp), told, clock, stores, app)


async def test_a_job_is_started_followed_and_fetched(tmp_path: Path) -> None:
    rows = answer(b'{"rows":[1,2]}')
    job = {"fetch": "/results/{id}"}
    async with house(
        tmp_path, STARTED, RUNNING, RUNNING, DONE, rows, job=job, result="/rows"
    ) as one:
        task = await one.ann.over(await one.ann.begin("run", what="report"))
        assert one.told.request_lines == [
            "POST /jobs HTTP/1.1", *["GET /jobs/j-1 HTTP/1.1"] * 3, "GET /results/j-1 HTTP/1.1",
        ]  # fmt: skip
        assert json.loads(one.told.body(0)) == {"what": "report"}
        assert [one.told.body(number) for number in range(1, 5)] == [b""] * 4
    assert task["result"]["structuredContent"] == [1, 2]


async def test_what_every_request_has_in_its_query_polls_have_too(tmp_path: Path) -> None:
    rows = answer(b'{"rows":[1,2]}')
    arguments = {"what": {"in": "query"}}
    fixed: dict[str, Any] = {"query": {"api-version": "2024-01"}, "arguments": arguments}
    job = {"fetch": "/results/{id}"}
    async with house(tmp_path, STARTED, RUNNING, DONE, rows, job=job, **fixed) as one:
        await one.ann.over(await one.ann.begin("run", what="x"))
        assert one.told.request_lines == [
            "POST /jobs?api-version=2024-01&what=x HTTP/1.1",
            *["GET /jobs/j-1?api-version=2024-01 HTTP/1.1"] * 2,
            "GET /results/j-1?api-version=2024-01 HTTP/1.1",
        ]


async def test_without_a_place_to_fetch_it_from_the_last_poll_is_the_result(tmp_path: Path) -> None:
    async with house(tmp_path, STARTED, DONE, job={}) as one:
        task = await one.ann.over(await one.ann.begin("run", what="x"))
    assert task["result"]["structuredContent"] == {"status": "done", "rows": 3}


async def test_no_worker_has_the_task_between_two_polls(tmp_path: Path) -> None:
    async with house(
        tmp_path, STARTED, RUNNING, RUNNING, RUNNING, DONE, job={"every_s": 60}
    ) as one:
        task_id = await one.ann.begin("run", what="x")
        for polls in (1, 2, 3):
            record = await one.quiet(task_id, 1 + polls)
            assert (record.fence, record.lease_until_ms, record.wake_ms > one.clock.now_ms()) == (
                polls,
                0,
                True,
            )
            assert (await one.ann.get(task_id))["status"] == "working"
            await asyncio.sleep(0.3)
            assert len(one.told.requests) == 1 + polls  # nobody polls before it is time
            one.clock.skip(61)
        task = await one.ann.over(task_id)
        assert (task["result"]["structuredContent"]["rows"], len(one.told.requests)) == (3, 5)


async def test_a_worker_that_dies_between_polls_is_not_missed_and_the_job_is_started_once(
    tmp_path: Path,
) -> None:
    job = {"every_s": 60}
    async with service(STARTED, RUNNING, DONE) as told:
        async with house_before(tmp_path, told, job=job) as one:
            task_id = await one.ann.begin("run", what="x")
            await one.quiet(task_id, 2)
        async with house_before(tmp_path, told, job=job) as other:
            other.clock.skip(61)
            assert (await other.ann.over(task_id))["result"]["structuredContent"]["rows"] == 3
        assert told.request_lines.count("POST /jobs HTTP/1.1") == 1


@pytest.mark.parametrize(
    ("capabilities", "task"), [(CAPABILITIES, "optional"), (DECLARED, "forbidden")]
)
async def test_as_a_plain_call_it_is_followed_while_the_client_waits(
    tmp_path: Path, capabilities: dict[str, Any], task: str
) -> None:
    async with house(tmp_path, STARTED, RUNNING, DONE, job={}, task=task) as one:
        one.ann.capabilities = capabilities
        result = wire.valid_result("tools/call", (await one.ann.call("run", {"what": "x"})).json())
        assert (result["structuredContent"]["rows"], len(one.told.requests)) == (3, 3)
        assert one.told.header("idempotency-key", 0) == []


async def test_a_job_that_fails_is_a_tool_error_with_the_reason(tmp_path: Path) -> None:
    reasons = {
        b'{"status":"broken","why":"disk full"}': "The job ended as broken: disk full",
        b'{"status":"gone"}': "The job ended as gone",
        b'{"status":"broken","why":{"code":7}}': 'The job ended as broken: {"code":7}',
        b'{"status":"broken","why":null}': "The job ended as broken",
    }
    async with house(tmp_path, job={}) as one:
        for body, says in reasons.items():
            task = await one.run(STARTED, RUNNING, answer(body))
            assert (task["status"], task["result"]["isError"]) == ("completed", True)
            assert task["result"]["content"][0]["text"] == says


NO_HTTP = b"SSH-2.0 hello\r\n\r\n"
PASSING = ("408 Request Timeout", "429 Too Many Requests", "500 Oops", "503 Service Unavailable")


async def test_a_service_that_is_down_for_some_polls_is_asked_again(tmp_path: Path) -> None:
    async with house(tmp_path, job={}) as one:
        for trouble in (*(answer(b"", status) for status in PASSING[1:]), NO_HTTP):
            task = await one.run(STARTED, RUNNING, trouble, trouble, DONE)
            rows = task["result"]["structuredContent"]["rows"]
            assert (rows, len(one.told.requests)) == (3, 5), trouble


async def test_a_result_that_cannot_be_had_just_now_is_fetched_again(tmp_path: Path) -> None:
    async with house(tmp_path, job={"fetch": "/results/{id}"}) as one:
        for status in PASSING:
            task = await one.run(STARTED, DONE, answer(b"", status), NO_HTTP, answer(b"[1]"))
            found = task["result"]["structuredContent"], len(one.told.requests)
            assert found == ([1], 5), status


def sent_to(url: str) -> bytes:
    return answer(b"", "302 Found", Location=url)


UNUSABLE: dict[str, tuple[tuple[bytes, ...], str]] = {
    "a start without an id": ((answer(b"{}"),), "its answer has nothing at /id, the job's variable id"),
    "a start whose id is null": ((answer(b'{"id":null}'),), "its answer has nothing at /id"),
    "a start that is no JSON": ((answer(b"started", content_type="text/plain"),), "its answer is not JSON"),
    "a start with a Location alone": ((answer(b"", "202 Accepted", Location="/jobs/7"),), "its answer is not JSON"),
    "a start that is refused": ((answer(b"{}", "409 Conflict"),), "The service answered 409 Conflict to starting"),
    "a poll without a status": ((STARTED, answer(b'{"state":"done"}')), "has nothing at /status"),
    "a poll that is no JSON": ((STARTED, answer(b"done")), "not JSON"),
    "a poll that says nothing": ((STARTED, answer(b"", "204 No Content")), "not JSON"),
    "a poll that is refused": ((STARTED, answer(b"{}", "404 Not Found")), "answered 404 Not Found to following"),
    "a poll that is a list": ((STARTED, answer(b"[1]")), "has nothing at /status"),
    "a result that is gone": ((STARTED, DONE, answer(b"{}", "410 Gone")), "The service answered 410 Gone"),
    "a result that is too long": ((STARTED, DONE, answer(b"x" * 2_000_000)), "answered more than 1000000 bytes"),
    "a result elsewhere": ((STARTED, DONE, sent_to("http://127.0.0.1:1/")), "redirects to another host"),
    "a poll that goes nowhere": ((STARTED, sent_to("mailto:ann")), "redirects to an invalid URL"),
    "an empty id": ((answer(b'{"id":""}'),), "cannot be part of a path"),
    "an id that climbs": ((answer(b'{"id":".."}'),), "cannot be part of a path"),
}  # fmt: skip


async def test_an_answer_that_is_of_no_use_is_a_tool_error(tmp_path: Path) -> None:
    async with house(tmp_path, job={"fetch": "/results/{id}"}) as one:
        for name, (answers, says) in UNUSABLE.items():
            task = await one.run(*answers)
            assert len(one.told.requests) == len(answers), name
            assert (task["status"], task["result"]["isError"]) == ("completed", True), name
            assert says in task["result"]["content"][0]["text"], name


SEGMENTS = {
    '"ab?c=d#e"': "ab%3Fc%3Dd%23e",
    '"a\\r\\nX-Evil: 1"': "a%0D%0AX-Evil%3A%201",
    '"{id}"': "%7Bid%7D",
    "17": "17",
    '"ü"': "%C3%BC",
}
ELSEWHERE = ("..", "../admin", "a/b", "%2e%2e", "//evil.example", "..;a", "")


async def test_the_id_of_a_job_stays_one_segment_of_the_path_or_ends_it(tmp_path: Path) -> None:
    async with house(tmp_path, job={}) as one:
        for job_id, segment in SEGMENTS.items():
            await one.run(answer(b'{"id":%b}' % job_id.encode()), DONE)
            assert one.told.request_lines[1] == f"GET /jobs/{segment} HTTP/1.1"
        for job_id in ELSEWHERE:
            task = await one.run(answer(b'{"id":"%b"}' % job_id.encode()), DONE)
            assert task["result"]["isError"] is True
            assert "cannot be part of a path" in task["result"]["content"][0]["text"], job_id
            assert len(one.told.request_lines) == 1


async def test_a_path_may_have_several_variables_from_anywhere_in_the_answer(
    tmp_path: Path,
) -> None:
    job = {
        "variables": {"zone": "/where/zone", "n": "/jobs/0"},
        "poll": "/{zone}/jobs/{n}/state",
        "status": "",
    }
    started = answer(b'{"where":{"zone":"eu"},"jobs":[4]}')
    async with house(tmp_path, started, answer(b'"running"'), answer(b'"done"'), job=job) as one:
        task = await one.ann.over(await one.ann.begin("run", what="x"))
        assert one.told.request_lines[1:] == ["GET /eu/jobs/4/state HTTP/1.1"] * 2
    assert task["result"]["content"][0]["text"] == "done"


async def test_a_job_lives_under_what_the_call_names(tmp_path: Path) -> None:
    tool: dict[str, Any] = {
        "path": "/projects/{what}/jobs",
        "arguments": {"what": {}, "zone": {"in": "query", "default": "eu"}},
        "job": {**JOB, "poll": "/{zone}/projects/{what}/jobs/{id}", "fetch": "/{what}/{id}/out"},
        "result_headers": {"count": "X-Count"},
    }
    out = answer(b"[7]", X_Count="1")
    async with house(tmp_path, STARTED, RUNNING, DONE, out, **tool) as one:
        task = await one.ann.over(await one.ann.begin("run", what="a b"))
        assert one.told.request_lines == [
            "POST /projects/a%20b/jobs?zone=eu HTTP/1.1",
            *["GET /eu/projects/a%20b/jobs/j-1 HTTP/1.1"] * 2,
            "GET /a%20b/j-1/out HTTP/1.1",
        ]
    assert task["result"]["structuredContent"] == {"result": [7], "count": "1"}


async def test_a_job_that_could_not_be_followed_is_not_started(tmp_path: Path) -> None:
    tool: dict[str, Any] = {
        "arguments": {"what": {}, "zone": {"required": True}},
        "job": {**JOB, "poll": "/{zone}/{id}"},
    }
    async with house(tmp_path, STARTED, **tool) as one:
        result = await one.ann.mcp.call("run", {"what": "x", "zone": "../a"})
        assert result["content"][0]["text"].startswith("arguments.zone: may not have")
        assert one.told.requests == []


# ---- plain calls as tasks


async def test_an_ordinary_request_can_be_a_task_too(tmp_path: Path) -> None:
    async with house(tmp_path, answer(b'{"ok":true}'), task="required") as one:
        status, error = await TaskClient(one.ann.mcp, CAPABILITIES).error(
            "tools/call", {"name": "run"}
        )
        assert (status, error["code"], error["data"], one.told.requests) == (
            400,
            -32021,
            MISSING,
            [],
        )
        task_id = await one.ann.begin("run", what="x")
        assert (await one.ann.over(task_id))["result"]["structuredContent"] == {"ok": True}
        assert one.told.header("idempotency-key") == [task_id]


@pytest.mark.parametrize("name", ["Idempotency-Key", "idempotency-key"])
async def test_a_key_of_the_tools_own_is_sent_alone(tmp_path: Path, name: str) -> None:
    async with house(tmp_path, answer(), headers={name: "fixed"}) as one:
        await one.ann.over(await one.ann.begin("run", what="x"))
        assert one.told.header("idempotency-key") == ["fixed"]


@pytest.mark.parametrize(
    ("method", "sent"), [("POST", True), ("PATCH", True), ("PUT", False), ("DELETE", False)]
)
async def test_only_what_is_not_repeatable_by_itself_carries_a_key(
    tmp_path: Path, method: str, sent: bool
) -> None:
    async with house(tmp_path, answer(), method=method) as one:
        await one.ann.over(await one.ann.begin("run", what="x"))
        assert bool(one.told.header("idempotency-key")) is sent


async def test_a_turn_that_is_repeated_sends_the_same_key_again(tmp_path: Path) -> None:
    async with house(tmp_path, answer(), works=False) as one:
        task_id = await one.ann.begin("run", what="x")
        ref = TaskRef(task_owner(LOCAL), task_id)
        another = house_before(tmp_path, one.told, job=None, works=False)
        async with sent_and_not_noted(one, tmp_path, ref), another as other:
            other.clock.skip(40)  # the lease of the first is over
            worker, aclose = worker_of(other, tmp_path)
            assert await worker.work(ref, alone=True) is TurnResult.FINISHED
            await aclose()
        keys = [
            one.told.header("idempotency-key", number) for number in range(len(one.told.requests))
        ]
        assert keys == [[task_id], [task_id]]
        assert (await one.ann.get(task_id))["status"] == "completed"


@asynccontextmanager
async def sent_and_not_noted(one: House, directory: Path, ref: TaskRef) -> AsyncIterator[None]:
    """A worker has sent the request, and stands still before it can note what came of it."""
    goes_on = asyncio.Event()

    async def stands_still(*arguments: Any, **more: Any) -> None:
        await goes_on.wait()
        raise LeaseLost(str(ref))

    async with house_before(directory, one.told, job=None, works=False) as other:
        worker, aclose = worker_of(other, directory)
        worker._store.write = stands_still
        turn = asyncio.create_task(worker.work(ref))
        while not one.told.requests:  # noqa: ASYNC110 - in another gateway's service
            await asyncio.sleep(0.01)
        yield
        goes_on.set()
        assert await turn is TurnResult.LOST
        await aclose()


def worker_of(other: House, directory: Path) -> tuple[Any, Callable[[], Any]]:
    """A worker of a process of its own, and what closes it."""
    from roundgate.runtime.startup import build_core

    backend = {"kind": "http", "name": "api", "prefix": "", "base_url": other.told.url}
    file = config_of({"backends": [{**backend, "tools": [DECLARATION]}]})
    core = build_core(file, task_settings(directory), other.clock)
    return core.worker(file.config, other.clock), core.aclose


async def test_each_exchange_of_a_service_that_asks_has_a_key_of_its_own(tmp_path: Path) -> None:
    form = {"type": "object", "properties": {"size": {"type": "string"}}, "required": ["size"]}
    size = {
        "method": "elicitation/create",
        "params": {"message": "Which size?", "requestedSchema": form},
    }
    asks = answer(
        json.dumps({"inputRequests": {"size": size}, "state": 1}).encode(),
        content_type=INPUT_REQUIRED,
    )
    async with house(tmp_path, asks, asks, answer(b'{"ok":1}'), interactive=True) as one:
        task_id = await one.ann.begin("run", what="x")
        for _ in range(2):
            await one.ann.answer(
                task_id, {key: accept(size="M") for key in await one.ann.asked(task_id)}
            )
        assert (await one.ann.over(task_id))["result"]["structuredContent"] == {"ok": 1}
        keys = [one.told.header("idempotency-key", number) for number in range(3)]
        assert keys == [[task_id], [f"{task_id}-2"], [f"{task_id}-3"]]


# ---- cancelled where it runs

CANCEL = {"every_s": 600, "cancel": {"path": "/jobs/{id}/cancel"}}
CANCELLED = answer(b"", "202 Accepted")
CANCELS = "POST /jobs/j-1/cancel HTTP/1.1"


async def cancelled(one: House, task_id: str, cancels: int = 1) -> None:
    """Cancel a task whose job is between two polls, and wait until the service was told so often."""
    before = (await one.quiet(task_id, 2)).fence
    await one.ann.cancel(task_id)
    assert (await one.ann.get(task_id))["status"] == "cancelled"
    await cleaned(one, task_id, 2 + cancels)
    assert (await one.record(task_id)).fence == before + cancels


async def cleaned(one: House, task_id: str, requests: int) -> None:
    until = Clock().monotonic_ms() + 60_000
    while len(one.told.requests) < requests or (await one.record(task_id)).due_ms is not None:
        assert Clock().monotonic_ms() < until, one.told.request_lines
        await asyncio.sleep(0.01)
        if len(one.told.requests) < requests:
            one.clock.skip(1)


async def test_a_cancelled_task_cancels_its_job_between_two_polls(tmp_path: Path) -> None:
    async with house(tmp_path, STARTED, RUNNING, CANCELLED, job=CANCEL) as one:
        await cancelled(one, await one.ann.begin("run", what="x"))
        assert one.told.request_lines[2:] == [CANCELS]
        assert one.told.body() == b""
        assert one.told.header("content-type") == []
        assert one.told.header("idempotency-key") == []


@pytest.mark.parametrize(
    ("cancel", "line", "content_type", "body"),
    [
        ({"method": "DELETE", "path": "/jobs/{id}"}, "DELETE /jobs/j-1", [], b""),
        ({"path": "/stop", "query": {"job": "{id}", "why": ["a b", "{what}"], "none": "{zone}"}},
         "POST /stop?v=1&job=j-1&why=a%20b&why=x%2Fy", [], b""),
        ({"method": "PATCH", "path": "/jobs/{id}", "body": {"state": "off", "of": "{what}", "n": "{n}"}},
         "PATCH /jobs/j-1?v=1", ["application/json"], b'{"state":"off","of":"x/y","n":7}'),
        ({"path": "/jobs/{id}", "form": {"Status": "canceled", "n": "{n}"}},
         "POST /jobs/j-1?v=1", ["application/x-www-form-urlencoded"], b"Status=canceled&n=7"),
        ({"path": "/{n}/{id}/stop", "body": {}}, "POST /7/j-1/stop?v=1", ["application/json"], b"{}"),
    ],
    ids=["delete", "query", "body", "form", "parent"],
)  # fmt: skip
async def test_the_request_says_what_the_start_answered_and_what_the_call_said(
    tmp_path: Path, cancel: dict[str, Any], line: str, content_type: list[str], body: bytes
) -> None:
    tool: dict[str, Any] = {
        "arguments": {
            "what": {},
            "zone": {},
            "n": {"schema": {"type": "integer"}, "default": 7},
        },
        "query": {"v": "1"},
    }
    job = {**CANCEL, "cancel": cancel}
    async with house(tmp_path, STARTED, RUNNING, CANCELLED, job=job, **tool) as one:
        await cancelled(one, await one.ann.begin("run", what="x/y"))
        expected = line if "?" in line else f"{line}?v=1"
        assert one.told.request_lines[2:] == [f"{expected} HTTP/1.1"]
        assert one.told.header("content-type") == content_type
        assert one.told.body() == body


@pytest.mark.parametrize("status", ["204 No Content", "200 OK"])
async def test_a_cancel_that_is_taken_is_sent_once(tmp_path: Path, status: str) -> None:
    told = answer(b"", status, content_type=None)
    async with house(tmp_path, STARTED, RUNNING, told, job=CANCEL) as one:
        await cancelled(one, await one.ann.begin("run", what="x"))
        one.clock.skip(600)
        await asyncio.sleep(0.3)
        assert len(one.told.requests) == 3


NOTHING_TO_CANCEL = [
    answer(b"", status, content_type=None)
    for status in ("404 Not Found", "409 Conflict", "410 Gone")
]


async def test_a_job_that_is_over_already_is_as_good_as_cancelled(tmp_path: Path) -> None:
    async with house(tmp_path, job=CANCEL) as one:
        for told in NOTHING_TO_CANCEL:
            for job in (DONE, answer(b"{}", "404 Not Found")):
                task_id = await one.begin(STARTED, RUNNING, told, job)
                await one.quiet(task_id, 2)
                await one.ann.cancel(task_id)
                await cleaned(one, task_id, 4)
                assert one.told.request_lines[2:] == [CANCELS, "GET /jobs/j-1 HTTP/1.1"]


async def test_a_running_job_is_cancelled_again_though_its_service_had_nothing_to_cancel(
    tmp_path: Path,
) -> None:
    async with house(tmp_path, job=CANCEL) as one:
        for told in NOTHING_TO_CANCEL:
            task_id = await one.begin(STARTED, RUNNING, told, RUNNING, CANCELLED)
            await one.quiet(task_id, 2)
            await one.ann.cancel(task_id)
            await cleaned(one, task_id, 5)
            asked = [line for line in one.told.request_lines[2:] if line.startswith("POST")]
            assert asked == [CANCELS] * 2


async def test_a_job_that_cannot_be_followed_any_more_is_cancelled(tmp_path: Path) -> None:
    lost = {
        "not JSON": answer(b"no", content_type="text/plain"),
        "403 Forbidden to following": answer(b"{}", "403 Forbidden"),
        "has nothing at /status": answer(b'{"state":1}'),
    }
    async with house(tmp_path, job=CANCEL) as one:
        for says, told in lost.items():
            task_id = await one.begin(STARTED, told, CANCELLED)
            task = await one.ann.over(task_id)
            assert says in task["result"]["content"][0]["text"]
            await cleaned(one, task_id, 3)
            assert one.told.request_lines[2:] == [CANCELS]


KEYED: dict[str, Any] = {"idempotency_key": "Idempotency-Key"}


async def test_a_start_without_an_answer_is_asked_for_by_its_key_and_the_job_cancelled(
    tmp_path: Path,
) -> None:
    async with house(tmp_path, job=CANCEL, **KEYED) as one:
        for lost in (NO_HTTP, answer(b"", "500 Oops"), answer(b"", "408 Request Timeout")):
            task_id = await one.begin(lost, STARTED, CANCELLED)
            assert (await one.ann.over(task_id))["result"]["isError"] is True
            await cleaned(one, task_id, 3)
            assert one.told.request_lines == [*["POST /jobs HTTP/1.1"] * 2, CANCELS]
            first, second = (one.told.header("idempotency-key", number) for number in (0, 1))
            assert first == second


async def test_a_start_that_is_refused_leaves_nothing_to_cancel(tmp_path: Path) -> None:
    async with house(tmp_path, answer(b"{}", "400 Bad Request"), job=CANCEL, **KEYED) as one:
        task_id = await one.ann.begin("run", what="x")
        await one.ann.over(task_id)
        assert (await one.record(task_id)).due_ms is None
        assert len(one.told.requests) == 1


async def test_a_service_that_does_not_take_the_cancel_is_told_again(tmp_path: Path) -> None:
    statuses = ("503 Service Unavailable", "401 Unauthorized")
    async with house(tmp_path, job=CANCEL) as one:
        for trouble in (*(answer(b"", status) for status in statuses), NO_HTTP):
            task_id = await one.begin(STARTED, RUNNING, trouble, CANCELLED)
            await one.quiet(task_id, 2)
            await one.ann.cancel(task_id)
            await cleaned(one, task_id, 4)
            asked = [line for line in one.told.request_lines[2:] if line.startswith("POST")]
            assert set(asked) == {CANCELS}


async def test_a_task_that_takes_too_long_cancels_its_job(tmp_path: Path) -> None:
    job = {**CANCEL, "every_s": 60}
    async with house(
        tmp_path, STARTED, RUNNING, CANCELLED, job=job, tasks={"task_timeout_s": 30}
    ) as one:
        task_id = await one.ann.begin("run", what="x")
        await one.quiet(task_id, 2)
        one.clock.skip(61)
        assert (
            "tasks.task_timeout_s" in (await one.ann.over(task_id))["result"]["content"][0]["text"]
        )
        await cleaned(one, task_id, 3)
        assert one.told.request_lines[2:] == [CANCELS]


async def test_a_call_that_was_approved_and_filled_in_is_cancelled_as_it_was_started(
    tmp_path: Path,
) -> None:
    tool: dict[str, Any] = {
        "approve": "always",
        "ask_for": ["what"],
        "arguments": {"what": {"required": True}},
    }
    job = {**CANCEL, "cancel": {"path": "/jobs/{id}", "body": {"of": "{what}"}}}
    async with house(tmp_path, STARTED, RUNNING, CANCELLED, job=job, **tool) as one:
        params: dict[str, Any] = {}
        while (said := (await one.ann.call("run", {}, **params)).json()["result"]).get(
            "requestState"
        ):
            given = {"approve": accept(approve=True), "arguments": accept(what="paper")}
            answers = {key: given[key] for key in said["inputRequests"]}
            params = {"inputResponses": answers, "requestState": said["requestState"]}
        await cancelled(one, said["taskId"])
        assert one.told.request_lines[2:] == ["POST /jobs/j-1 HTTP/1.1"]
        assert json.loads(one.told.body()) == {"of": "paper"}


class Held:
    """A service that answers neither polls nor, if `holds_start`, the start."""

    def __init__(self, *, holds_start: bool = False) -> None:
        self.holds_start = holds_start
        self.waits = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.lines: list[str] = []

    async def __call__(self, asked: Asked) -> bytes:
        self.lines.append(f"{asked.method} {asked.target}")
        if asked.target.endswith("/cancel"):
            self.cancelled.set()
            return CANCELLED
        is_first = len(self.lines) == 1
        if asked.method == "GET" or (self.holds_start and is_first):
            self.waits.set()
            await asyncio.Event().wait()
        return STARTED

    async def is_cancelled(self) -> None:
        await asyncio.wait_for(self.cancelled.wait(), 60)


async def test_a_cancel_reaches_the_service_while_a_worker_waits_for_a_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roundgate.tasks.turn.LOOK_S", 3_600.0)
    held = Held()
    async with (
        scripted(held) as told,
        house_before(tmp_path, Service((), 0, 1), job=CANCEL, base_url=told.origin) as one,
    ):
        task_id = await one.ann.begin("run", what="x")
        await asyncio.wait_for(held.waits.wait(), 60)
        await one.ann.cancel(task_id)
        await held.is_cancelled()
        assert held.lines == ["POST /jobs", "GET /jobs/j-1", "POST /jobs/j-1/cancel"]


@pytest.mark.parametrize("holds_start", [False, True], ids=["in a poll", "in the start"])
async def test_a_client_that_hangs_up_cancels_the_job_of_its_ordinary_call(
    tmp_path: Path, holds_start: bool
) -> None:
    held = Held(holds_start=holds_start)
    called = wire.message("tools/call", {"name": "run", "arguments": {"what": "x"}})
    async with (
        scripted(held) as told,
        house_before(tmp_path, Service((), 0, 1), job=CANCEL, base_url=told.origin, **KEYED) as one,
    ):
        async with Exchange(one.app, called) as exchange:
            await asyncio.wait_for(held.waits.wait(), 60)
            exchange.hang_up()
        await held.is_cancelled()
        again = "POST /jobs" if holds_start else "GET /jobs/j-1"
        assert held.lines == ["POST /jobs", again, "POST /jobs/j-1/cancel"]


async def test_without_a_cancel_the_job_goes_on(tmp_path: Path) -> None:
    async with house(tmp_path, STARTED, RUNNING, job={"every_s": 600}) as one:
        task_id = await one.ann.begin("run", what="x")
        await one.quiet(task_id, 2)
        await one.ann.cancel(task_id)
        assert (await one.record(task_id)).due_ms is None
        one.clock.skip(601)
        await asyncio.sleep(0.3)
        assert len(one.told.requests) == 2


@pytest.mark.parametrize("declared", [True, False], ids=["takes keys", "takes none"])
async def test_a_start_whose_answer_was_lost_is_asked_for_by_its_key_and_cancelled(
    tmp_path: Path, declared: bool
) -> None:
    keys = KEYED if declared else {}
    async with house(tmp_path, STARTED, CANCELLED, job=CANCEL, works=False, **keys) as one:
        task_id = await one.ann.begin("run", what="x")
        ref = TaskRef(task_owner(LOCAL), task_id)
        now_ms = one.clock.now_ms()
        # a worker had it, and died before it could write what the service said
        await one.stores.tasks.claim(ref, Claim(now_ms + 1, now_ms + 1, now_ms), now_ms)
        await one.ann.cancel(task_id)
        async with house_before(tmp_path, one.told, job=CANCEL, **keys) as other:
            other.clock.skip(120)
            await cleaned(other, task_id, 2 if declared else 0)
        lines = ["POST /jobs HTTP/1.1", CANCELS]
        assert one.told.request_lines == (lines if declared else [])


# ---- configuration

MISFITS = {
    "job: {poll: '/jobs/{job}', succeeded: [ok]}": "needs job, which neither job.variables nor",
    "job: {poll: '/{id}', fetch: '/x/{y}', succeeded: [ok]}": "needs y, which neither job.variables nor",
    "arguments: {p: {}}, job: {poll: '/{p}/{id}', succeeded: [ok]}": "needs the argument p, which a call may omit",
    "job: {poll: '/{id}', succeeded: [ok], cancel: {path: '/x/{y}'}}": "needs y, which neither job.variables nor",
    "arguments: {p: {}}, job: {poll: '/{id}', succeeded: [ok], cancel: {path: '/{p}'}}":
        "needs the argument p, which a call may omit",
    "job: {poll: '/{id}', succeeded: [ok], cancel: {path: '/x', body: {a: ['{y}']}}}":
        "job.cancel needs y, which neither job.variables nor",
}  # fmt: skip
"""Tools that cannot be offered, and what is wrong with each."""
NO_SETTINGS = {
    "job: {poll: '/jobs/{id}', succeeded: [ok]}, interactive: true": "interactive and job cannot be combined",
    "job: {poll: '/{id}', succeeded: [ok], cancel: {path: '/x', body: {}, form: {}}}":
        "body and form cannot be combined; choose one",
    "job: {poll: '/{id}', succeeded: [ok], cancel: {path: x}}": ".job.cancel.path",
    "job: {poll: '/jobs/{id}', succeeded: []}": "at least 1 item",
    "job: {poll: 'jobs', succeeded: [ok]}": ".job.poll",
    "job: {poll: '/jobs', succeeded: [ok], status: state}": ".job.status",
    "job: {poll: '/jobs', succeeded: [ok], every_s: 0}": ".job.every_s",
    "task: sometimes": ".task",
}  # fmt: skip
"""Settings of tools that are none, and what is wrong with each."""


@pytest.mark.parametrize("wrong", [MISFITS, NO_SETTINGS], ids=["misfits", "no settings"])
def test_what_is_wrong_with_a_job_is_said_by_the_check(
    wrong: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tools = "".join(
        f"\n      - {{name: run{number}, description: Runs., method: POST, path: /jobs, {more}}}"
        for number, more in enumerate(wrong)
    )
    backend = (
        f"\n  - kind: http\n    name: api\n    base_url: http://localhost:1\n    tools:{tools}\n"
    )
    (tmp_path / "gateway.yaml").write_text(f"backends:{backend}")
    assert main(["check", str(tmp_path / "gateway.yaml")]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"{len(wrong)} problem(s):")
    for number, says in enumerate(wrong.values()):
        assert any(f"tools[{number}]" in line and says in line for line in told.splitlines()), told
