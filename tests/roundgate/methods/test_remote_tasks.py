"""Tasks of others: a service behind a tool runs them, and every replica passes on what is
asked and said of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from roundgate.auth.principal import LOCAL, Principal
from roundgate.settings import TasksConfig
from roundgate.tasks import service as owners_tasks
from roundgate.tokens.ids import TaskIds, TaskPlace
from roundgate.tokens.keys import parse
from roundgate.tokens.sealed import KeyRing
from tests.support import wire
from tests.support.asgi import STATE_KEY, Exchange, client
from tests.support.issuer import ISSUER, PUBLIC_URL, bearer, guarded, jwks, token
from tests.support.rounds import CAPABILITIES, accept
from tests.support.services import answer, service
from tests.support.task_client import DECLARED, TaskClient, valid_created
from tests.support.task_service import QUESTION, Service, ServiceBackend, serving_service

NOT_FOUND = "AAAAAAAAAAAAAAAAAAAAAA"


@pytest.fixture
def jobs() -> Service:
    return Service()


@asynccontextmanager
async def replica(directory: Path, jobs: Service, **options: Any) -> AsyncIterator[TaskClient]:
    async with (
        serving_service(directory, ServiceBackend(jobs, **options)) as app,
        client(app) as mcp,
    ):
        yield TaskClient(mcp)


@pytest.fixture
async def ann(tmp_path: Path, jobs: Service) -> AsyncIterator[TaskClient]:
    async with replica(tmp_path, jobs) as one:
        yield one


async def refusals(who: TaskClient, task_id: str) -> list[tuple[int, dict[str, Any]]]:
    """What each request about a task is refused with."""
    return [
        await who.error("tasks/get", {"taskId": task_id}),
        await who.error("tasks/update", {"taskId": task_id, "inputResponses": {}}),
        await who.error("tasks/cancel", {"taskId": task_id}),
    ]


# a call becomes a task of its service


async def test_the_client_is_told_of_a_task_under_an_id_that_tells_nothing(
    ann: TaskClient, jobs: Service
) -> None:
    created = valid_created((await ann.call("dispatch")).json())
    assert (created["status"], created["ttlMs"]) == ("working", 60_000)
    (theirs,) = jobs.tasks
    assert theirs not in created["taskId"]
    assert len(created["taskId"]) > 64


async def test_a_service_that_wants_to_be_asked_more_seldom_is(
    tmp_path: Path, jobs: Service
) -> None:
    async with replica(tmp_path, jobs) as ann:
        task_id = await ann.begin("dispatch")
        jobs.change(pollIntervalMs=30_000)
        assert (await ann.get(task_id))["pollIntervalMs"] == 30_000
        jobs.change(pollIntervalMs=1)
        assert (await ann.get(task_id))["pollIntervalMs"] == 100


async def test_a_client_without_the_extension_gets_no_task(ann: TaskClient) -> None:
    response = await TaskClient(ann.mcp, CAPABILITIES).call("dispatch")
    assert response.json()["result"]["content"] == [{"type": "text", "text": "done at once"}]


@pytest.mark.parametrize(
    "capabilities", [CAPABILITIES, DECLARED], ids=["no extension", "a task already"]
)
async def test_a_tool_that_hands_over_what_nobody_can_follow_has_failed(
    ann: TaskClient, capabilities: dict[str, Any]
) -> None:
    who = TaskClient(ann.mcp, capabilities)
    if capabilities is DECLARED:
        result = (await who.over(await who.begin("careless", task=True)))["result"]
    else:
        result = (await who.call("careless")).json()["result"]
    assert result["isError"] is True
    assert "failed unexpectedly" in result["content"][0]["text"]


async def test_a_back_end_that_offers_no_source_can_hand_nothing_over(
    tmp_path: Path, jobs: Service
) -> None:
    async with replica(tmp_path, jobs, offers_source=False) as ann:
        result = (await ann.call("dispatch")).json()["result"]
    assert result["isError"] is True
    assert "cannot follow" in result["content"][0]["text"]


async def test_the_server_says_that_it_has_tasks_though_it_runs_none(
    tmp_path: Path, jobs: Service
) -> None:
    async with replica(tmp_path, jobs) as ann:
        found = await ann.mcp.result("server/discover")
    assert "io.modelcontextprotocol/tasks" in found["capabilities"]["extensions"]


# what is asked of it


async def test_it_is_read_answered_and_read_to_its_end(ann: TaskClient, jobs: Service) -> None:
    task_id = await ann.begin("dispatch")
    assert (await ann.get(task_id))["status"] == "working"
    jobs.change(
        status="input_required", statusMessage="asking", inputRequests={"who are you?": QUESTION}
    )
    task = await ann.get(task_id)
    assert (task["taskId"], task["statusMessage"], task["inputRequests"]) == (
        task_id,
        "asking",
        {"who are you?": QUESTION},
    )
    await ann.answer(task_id, {"who are you?": accept(name="Ann")})
    assert list(jobs.answers.values()) == [{"who are you?": accept(name="Ann")}]
    jobs.finish("dug")
    assert await ann.text(task_id) == "dug"


async def test_any_replica_passes_it_on(tmp_path: Path, jobs: Service, ann: TaskClient) -> None:
    task_id = await ann.begin("dispatch")
    async with replica(tmp_path, jobs) as other:
        assert (await other.get(task_id))["taskId"] == task_id
        await other.cancel(task_id)
    assert (await ann.get(task_id))["status"] == "cancelled"
    assert jobs.asked == {"get": 2, "cancel": 1}


@pytest.mark.parametrize(("theirs", "ours"), [(-32602, -32602), (-32000, -32603), (-32042, -32603)])
async def test_a_failure_has_no_code_that_the_protocol_does_not_have(
    ann: TaskClient, jobs: Service, theirs: int, ours: int
) -> None:
    task_id = await ann.begin("dispatch")
    jobs.change(
        status="failed",
        statusMessage="no",
        error={"code": theirs, "message": "broken", "data": {"why": 1}},
    )
    assert (await ann.get(task_id))["error"] == {
        "code": ours,
        "message": "broken",
        "data": {"why": 1},
    }


async def test_a_task_that_its_service_has_no_more_is_not_found(
    ann: TaskClient, jobs: Service
) -> None:
    task_id = await ann.begin("dispatch")
    jobs.tasks.clear()
    for refused in await refusals(ann, task_id):
        assert refused == await ann.error("tasks/get", {"taskId": NOT_FOUND})


# whose it is


@pytest.fixture
async def guarded_app(tmp_path: Path, jobs: Service) -> AsyncIterator[FastAPI]:
    async with service(answer(jwks("ec"))) as keys:
        auth = {"issuer": ISSUER, "scopes": []}
        file = guarded(f"{keys.url}/jwks", auth=auth, tasks={"poll_interval_ms": 100})
        backend = ServiceBackend(jobs, scopes=frozenset({"dig"}))
        async with serving_service(tmp_path, backend, file=file, public_url=PUBLIC_URL) as app:
            yield app


@pytest.fixture
async def of(guarded_app: FastAPI) -> AsyncIterator[Callable[..., TaskClient]]:
    """A client whose token has these claims."""
    async with client(guarded_app) as mcp:
        yield lambda **claims: TaskClient(
            mcp, DECLARED, bearer(token(**{"scope": "dig", **claims}))
        )


async def test_another_caller_s_task_is_as_unknown_as_one_that_there_never_was(
    of: Callable[..., TaskClient], jobs: Service
) -> None:
    task_id = await of(sub="ann").begin("dispatch")
    jobs.asked.clear()
    eve = of(sub="eve")
    assert await refusals(eve, task_id) == await refusals(eve, NOT_FOUND)
    assert jobs.asked == {}


async def test_the_service_is_told_on_whose_behalf_it_is_asked(
    of: Callable[..., TaskClient], jobs: Service
) -> None:
    ann = of(sub="ann")
    await ann.cancel(await ann.begin("dispatch"))
    assert jobs.callers == {"ann"}


async def test_a_token_that_does_not_grant_the_tool_does_not_grant_its_tasks(
    of: Callable[..., TaskClient], jobs: Service
) -> None:
    task_id = await of().begin("dispatch")
    jobs.asked.clear()
    for method in ("tasks/get", "tasks/cancel", "tasks/update"):
        response = await of(scope="other").send(method, {"taskId": task_id, "inputResponses": {}})
        assert response.status_code == 403
        assert 'scope="dig"' in response.headers["www-authenticate"]
    assert jobs.asked == {}


async def test_a_stream_is_open_but_silent_about_a_task_of_a_tool_that_is_not_granted(
    of: Callable[..., TaskClient], guarded_app: FastAPI
) -> None:
    task_id = await of().begin("dispatch")
    asked = listen_to(task_id)
    headers = {**wire.headers(asked), "authorization": f"Bearer {token(scope='other')}"}
    async with Exchange(guarded_app, asked, headers) as stream:
        first = await stream.event()
    assert first is not None
    assert "taskIds" not in first["params"]["notifications"]


# ids that nobody was given

RING = KeyRing(parse(STATE_KEY, "test"))


def forged() -> dict[str, str]:
    good = TaskIds(RING).seal(TaskPlace("jobs", "dispatch", "job/1 of [us]"), LOCAL)
    return {
        "one character changed": good[:-5] + ("A" if good[-5] != "A" else "B") + good[-4:],
        "cut": good[:-1],
        "longer": good + "A",
        "another caller's": TaskIds(RING).seal(
            TaskPlace("jobs", "dispatch", "job/1 of [us]"), Principal("", "eve")
        ),
        "sealed for another purpose": RING.seal(
            b'["session","jobs","dispatch","job/1 of [us]"]', LOCAL
        ),
        "of another shape": RING.seal(b'["task","jobs"]', LOCAL),
        "no JSON": RING.seal(b"job/1 of [us]", LOCAL),
        "by another key": TaskIds(KeyRing(parse("A" * 43 + "=", "test"))).seal(
            TaskPlace("jobs", "d", "1"), LOCAL
        ),
        "the service's own": "job.1",
        "endless": "v1." + "A" * 100_000,
        "no text at all": ".",
    }


async def test_a_forged_id_is_the_same_not_found(ann: TaskClient, jobs: Service) -> None:
    await ann.begin("dispatch")
    unknown = await refusals(ann, NOT_FOUND)
    for kind, task_id in forged().items():
        assert await refusals(ann, task_id) == unknown, kind
    assert jobs.asked == {}


async def test_an_id_that_was_sealed_for_its_caller_opens(ann: TaskClient) -> None:
    """Else the ids above would be refused for no reason at all."""
    await ann.begin("dispatch")
    task_id = TaskIds(RING).seal(TaskPlace("jobs", "dispatch", "job/1 of [us]"), LOCAL)
    assert (await ann.get(task_id))["status"] == "working"


# sources in trouble


async def test_a_source_that_is_away_is_to_be_asked_again_later(
    ann: TaskClient, jobs: Service
) -> None:
    task_id = await ann.begin("dispatch")
    jobs.is_away = True
    assert [(status, error["message"]) for status, error in await refusals(ann, task_id)] == [
        (503, "The service cannot be reached")
    ] * 3
    jobs.is_away = False
    assert (await ann.get(task_id))["status"] == "working"


async def test_a_source_that_does_not_answer_is_not_waited_for(
    ann: TaskClient, jobs: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_id = await ann.begin("dispatch")
    jobs.hangs = asyncio.Event()
    monkeypatch.setattr(owners_tasks, "SOURCE_S", 0.05)
    status, error = await ann.error("tasks/get", {"taskId": task_id})
    assert (status, error["message"]) == (
        503,
        "The service that has this task does not answer; ask again later",
    )


async def test_a_source_that_is_not_served_any_more_is_to_be_asked_again_later(
    tmp_path: Path, jobs: Service, ann: TaskClient
) -> None:
    task_id = await ann.begin("dispatch")
    async with replica(tmp_path, jobs, offers_source=False) as without:
        for status, error in await refusals(without, task_id):
            assert (status, "not served now" in error["message"]) == (503, True)
    assert (await ann.get(task_id))["status"] == "working"


MALFORMED: list[dict[str, Any]] = [
    {"status": "done"},
    {"status": None},
    {"createdAt": "yesterday"},
    {"createdAt": "2026-01-01T00:00:00"},
    {"lastUpdatedAt": 5},
    {"ttlMs": "for ever"},
    {"ttlMs": float("inf")},
    {"taskId": 7},
    {"taskId": "x" * 600},
    {"status": "input_required", "inputRequests": {"who": {"method": "shell/run"}}},
    {"status": "input_required", "inputRequests": ["who"]},
    {"status": "input_required", "inputRequests": {str(n): QUESTION for n in range(101)}},
    {"status": "completed", "result": {"content": "dug"}},
    {"status": "completed", "result": ["dug"]},
    {"status": "failed", "error": "no"},
]


async def test_what_is_not_of_the_protocol_s_shape_is_not_passed_on(
    ann: TaskClient, jobs: Service, caplog: pytest.LogCaptureFixture
) -> None:
    for members in MALFORMED:
        jobs.tasks.clear()
        caplog.clear()
        task_id = await ann.begin("dispatch")
        jobs.change(**members)
        status, error = await ann.error("tasks/get", {"taskId": task_id})
        assert (status, error["code"]) == (200, -32603), members
        assert "does not know" in caplog.text


async def test_a_result_that_is_too_large_is_an_error_of_the_tool(
    ann: TaskClient, jobs: Service
) -> None:
    task_id = await ann.begin("dispatch")
    jobs.finish("x" * TasksConfig().max_result_bytes)
    result = (await ann.get(task_id))["result"]
    assert result["isError"] is True
    assert "too large" in result["content"][0]["text"]


# streams


def listen_to(*task_ids: str) -> dict[str, Any]:
    wanted = {"notifications": {"taskIds": list(task_ids)}}
    return wire.message("subscriptions/listen", wanted, 7, clientCapabilities=DECLARED)


async def told(stream: Exchange) -> str:
    event = await stream.event()
    assert event is not None
    assert event["method"] == "notifications/tasks"
    status: str = event["params"]["status"]
    return status


@pytest.mark.parametrize("tells", [False, True], ids=["polled", "told"])
async def test_a_stream_on_any_replica_is_told_of_every_state(tmp_path: Path, tells: bool) -> None:
    jobs = Service(tells=tells)
    async with (
        replica(tmp_path, jobs) as ann,
        serving_service(tmp_path, ServiceBackend(jobs)) as other,
    ):
        task_id = await ann.begin("dispatch")
        async with Exchange(other, listen_to(task_id)) as stream:
            first = await stream.event()
            assert first is not None
            assert first["params"]["notifications"] == {"taskIds": [task_id]}
            assert await told(stream) == "working"
            jobs.change(status="input_required", inputRequests={"who": QUESTION})
            assert await told(stream) == "input_required"
            await ann.answer(task_id, {"who": accept(name="Ann")})
            assert await told(stream) == "working"
            jobs.finish("dug")
            assert await told(stream) == "completed"
        assert jobs.watchers == []


async def test_a_service_that_tells_of_changes_need_not_be_polled(tmp_path: Path) -> None:
    jobs = Service(tells=True)
    async with serving_service(tmp_path, ServiceBackend(jobs)) as app, client(app) as mcp:
        task_id = await TaskClient(mcp).begin("dispatch")
        jobs.change(pollIntervalMs=3_600_000)
        async with Exchange(app, listen_to(task_id)) as stream:
            await stream.event()
            assert await told(stream) == "working"
            jobs.finish("dug")
            assert await told(stream) == "completed"


async def test_a_stream_outlives_the_absence_of_a_source(tmp_path: Path, jobs: Service) -> None:
    async with serving_service(tmp_path, ServiceBackend(jobs)) as app, client(app) as mcp:
        task_id = await TaskClient(mcp).begin("dispatch")
        jobs.is_away = True
        async with Exchange(app, listen_to(task_id)) as stream:
            first = await stream.event()
            assert first is not None
            assert first["params"]["notifications"] == {"taskIds": [task_id]}
            while jobs.asked["get"] < 2:  # noqa: ASYNC110 (the service knows nothing of this test)
                await asyncio.sleep(0.01)
            jobs.is_away = False
            assert await told(stream) == "working"


async def test_nobody_asks_the_source_once_nobody_listens(tmp_path: Path, jobs: Service) -> None:
    async with serving_service(tmp_path, ServiceBackend(jobs)) as app, client(app) as mcp:
        task_id = await TaskClient(mcp).begin("dispatch")
        async with Exchange(app, listen_to(task_id)) as stream:
            await stream.event()
            await told(stream)
        await asyncio.sleep(0.1)  # one that was on its way
        jobs.asked.clear()
        await asyncio.sleep(0.3)
        assert jobs.asked == {}


async def test_two_streams_are_served_by_one_look(tmp_path: Path, jobs: Service) -> None:
    async with serving_service(tmp_path, ServiceBackend(jobs)) as app, client(app) as mcp:
        task_id = await TaskClient(mcp).begin("dispatch")
        jobs.change(pollIntervalMs=3_600_000)
        async with Exchange(app, listen_to(task_id)) as one:
            await one.event()
            assert await told(one) == "working"
            asked = jobs.asked["get"]
            async with Exchange(app, listen_to(task_id)) as two:
                await two.event()
                assert await told(two) == "working"
            assert jobs.asked["get"] == asked + 1
