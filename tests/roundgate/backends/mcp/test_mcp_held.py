"""Older servers that ask, on the official Python SDK 1.x and 2.x: every kind of question, answered
at any replica, and every way in which it may go wrong."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from roundgate.backends.mcp import calls, held, held_sessions
from roundgate.backends.mcp import server as mcp_server
from roundgate.client import DECLINE, VERSIONS, Client, link
from roundgate.errors import QuotaExceeded, StoreAway
from roundgate.main import build_app
from roundgate.tasks.events import Cancel, Finish
from roundgate.tasks.hidden import HiddenTasks
from roundgate.tasks.stored import StoredTasks
from tests.support import wire
from tests.support.asgi import Client as Mcp
from tests.support.asgi import Exchange, client, config_of, stoppable
from tests.support.clocks import SkippingClock
from tests.support.issuer import ISSUER, PUBLIC_URL, bearer, jwks, token
from tests.support.older_servers import (
    ADA,
    BOB,
    BOTH,
    CAPABLE,
    KINDS,
    SAMPLE,
    Asking,
    again,
    answer_to,
    asking,
    call,
    clients,
    gateways,
    older_server,
    replica,
    said,
    to_the_end,
)
from tests.support.round_robin import RoundRobin
from tests.support.scripted import (
    STREAM_HEAD,
    Asked,
    event,
    http,
    result,
    result_event,
    scripted,
    text,
)
from tests.support.sdk_servers import (
    OLDER,
    SdkServer,
    needs_older,
    over_stdio,
)
from tests.support.server import Server
from tests.support.services import answer, service
from tests.support.task_client import TaskClient, task_settings
from tests.support.upstreams import Upstream, entry, process, until
from tests.support.wire import forged


@pytest.mark.parametrize("kind", KINDS)
async def test_each_kind_of_question_is_answered_at_any_replica(kind: str, tmp_path: Path) -> None:
    large = {"greeting": "ä" * 200_000}
    async with older_server(tmp_path, kind) as up, clients(tmp_path, up.entry) as (one, two):
        for other in (one, two):
            asked = await call(one, "greet", large)
            assert [each["method"] for each in asked["result"]["inputRequests"].values()] == [
                "elicitation/create"
            ]
            greeted = await again(other, "greet", asked, ADA, arguments=large)
            assert said(greeted) == f"{large['greeting']}, Ada"
            declined = await again(other, "greet", await call(one, "greet"), {"action": "decline"})
            assert said(declined) == "decline"
            asked = await call(one, "both")
            assert len(asked["result"]["inputRequests"]) == 2
            assert said(await again(other, "both", asked, ADA, BOB)) == "Ada and Bob"
            asked = await again(other, "twice", await call(one, "twice"), ADA)
            assert list(asked["result"]["inputRequests"]) == ["question-2"]
            assert said(await again(one, "twice", asked, BOB)) == "Ada and Bob"
            asked = await call(one, "motto")
            assert said(await again(other, "motto", asked, SAMPLE)) == "sampled: Carpe"
            asked = await call(one, "where")
            roots = {"roots": [{"uri": "file:///home/ada"}]}
            assert said(await again(other, "where", asked, roots)) == "file:///home/ada"
            assert said(await call(one, "plain")) == "done"
        assert up.noted() == ["greet", "greeted", "greet", "greeted", "plain"] * 2


@pytest.mark.parametrize("kind", BOTH)
async def test_clients_of_every_revision_answer_at_replicas_in_turn(
    kind: str, tmp_path: Path
) -> None:
    async with older_server(tmp_path, kind) as up:
        with (
            gateways(tmp_path, up.entry) as servers,
            RoundRobin([each.url for each in servers]) as balancer,
        ):
            for version in VERSIONS[:3]:
                async with Client(balancer.url, versions=[version], answers=answer_to) as ann:
                    assert (await ann.call("up__greet")).text == "Hello, Ada"
                    assert (await ann.call("up__both")).text == "Ada and Bob"
                    assert (await ann.call("up__twice")).text == "Ada and Bob"
                    assert (await ann.call("up__motto")).text == "sampled: Carpe"
                    assert (await ann.call("up__where")).text == "file:///home/ada"
                    declined = await ann.call("up__greet", answers=lambda _: DECLINE)
                    assert declined.text == "decline"
    assert up.noted() == ["greet", "greeted"] * 6


async def test_a_killed_holder_ends_the_call_with_an_honest_error(tmp_path: Path) -> None:
    async with older_server(tmp_path) as up:
        # a round ends before the holder counts as dead
        limits = {"call_timeout_s": 5}
        with gateways(tmp_path, up.entry, limits=limits) as (holder, other):
            async with httpx.AsyncClient(timeout=60) as http:
                one, two = Mcp(http, f"{holder.url}/mcp"), Mcp(http, f"{other.url}/mcp")
                asked = await call(one, "greet")
                holder.stop(signal.SIGKILL)
                pending = await again(two, "greet", asked, ADA)
                assert "requestState" in pending["result"]
                ended = await to_the_end(two, "greet", pending)
                assert ended["result"]["isError"] is True
                assert "may have taken effect" in said(ended)
    assert up.noted().count("greet") == 1


async def test_a_stopped_holder_says_so_at_once(tmp_path: Path) -> None:
    async with older_server(tmp_path) as up, replica(tmp_path, up.entry) as b:
        async with replica(tmp_path, up.entry) as a, client(a) as one:
            asked = await call(one, "greet")
        async with client(b) as two:
            ended = await again(two, "greet", asked, ADA)
    assert ended["result"]["isError"] is True
    assert "was stopped" in said(ended)
    assert up.noted() == ["greet"]


async def change_held_s(gateway: Server, up: SdkServer, folder: Path) -> None:
    """Change a setting of the server, and return once the gateway has reloaded it."""
    file = folder / "gateway.json"
    file.write_text(json.dumps({"backends": [{**up.entry, "held_s": 30}]}))
    gateway.process.send_signal(signal.SIGHUP)
    await asyncio.to_thread(gateway.logged, msg=f"reloaded {file}")


@pytest.mark.parametrize("kind", BOTH)
async def test_a_reload_that_changes_the_server_keeps_the_time_for_answers(
    kind: str, tmp_path: Path
) -> None:
    async with older_server(tmp_path, kind, held_s=4) as up:
        with gateways(tmp_path, up.entry, 1) as (holder,):
            async with httpx.AsyncClient(timeout=60) as http:
                await call(Mcp(http, f"{holder.url}/mcp"), "greet")
            await change_held_s(holder, up, tmp_path / "0")

            await until(["greet", "greeted"], up.noted)  # with the answer "cancel"


async def test_a_reload_that_changes_the_server_keeps_a_call_that_waits_for_answers(
    tmp_path: Path,
) -> None:
    async with older_server(tmp_path) as up:
        with gateways(tmp_path, up.entry) as (holder, other):
            async with httpx.AsyncClient(timeout=60) as http:
                one, two = Mcp(http, f"{holder.url}/mcp"), Mcp(http, f"{other.url}/mcp")
                asked = await call(one, "greet")
                await change_held_s(holder, up, tmp_path / "0")
                await call(one, "plain")  # the new back end is served
                assert said(await again(two, "greet", asked, ADA)) == "Hello, Ada"
    assert up.noted() == ["greet", "plain", "greeted"]


async def test_a_stop_waits_for_the_end_of_calls_that_have_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "STOP_S", 60.0)  # a busy machine may need more than 2 s
    called: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    cancelled = []

    async def waits(asked: Asked) -> AsyncIterator[bytes]:
        called.set_result(asked.message["id"])
        yield STREAM_HEAD
        await asyncio.sleep(60)

    async def takes(asked: Asked) -> bytes:
        cancelled.append(asked.params["requestId"])  # a list of tools may be cancelled too
        await asyncio.sleep(0.3 if asked.params["requestId"] == called.result() else 0)
        return http(202)

    up = Upstream(lambda asked: waits(asked) if asked.rpc == "tools/call" else takes(asked))
    up.session = "s1"
    async with scripted(up) as server:
        async with replica(tmp_path, entry(server)) as app, client(app) as mcp:
            calling = asyncio.create_task(call(mcp, "t"))
            call_id = await asyncio.wait_for(called, 60)
        assert call_id in cancelled
        assert server.methods().count("DELETE") == server.methods().count("initialize")
        await asyncio.wait_for(calling, 60)


@pytest.mark.parametrize("kind", BOTH)
async def test_a_server_that_dies_while_its_user_thinks_is_an_honest_error(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "UNREACHABLE_S", 0.5)
    async with (
        older_server(tmp_path, kind) as up,
        clients(tmp_path, up.entry) as (one, two),
    ):
        asked = await call(one, "greet")
        await up.kill()
        ended = await again(two, "greet", asked, ADA)
    assert ended["result"]["isError"] is True
    assert "may have taken effect" in said(ended)


@pytest.mark.parametrize("kind", BOTH)
async def test_answers_that_never_come_are_cancelled_at_the_server(
    kind: str, tmp_path: Path
) -> None:
    async with (
        older_server(tmp_path, kind, held_s=0.5) as up,
        replica(tmp_path, up.entry) as a,
        client(a) as mcp,
    ):
        asked = await call(mcp, "greet")

        await until(["greet", "greeted"], up.noted)  # with the answer "cancel"
        late = await again(mcp, "greet", asked, ADA)
        assert late["result"]["isError"] is True
        assert "too late" in said(late)
        assert said(await call(mcp, "plain")) == "done"


@pytest.mark.parametrize("kind", BOTH)
async def test_rounds_that_are_repeated_or_reach_replicas_at_once_have_one_outcome(
    kind: str, tmp_path: Path
) -> None:
    async with older_server(tmp_path, kind) as up, clients(tmp_path, up.entry) as both:
        asked = await call(both[0], "greet")
        first, second = await asyncio.gather(*(again(mcp, "greet", asked, ADA) for mcp in both))
        assert said(first) == said(second) == said(await again(both[1], "greet", asked, ADA))
        other = await again(both[1], "greet", asked, BOB)
        assert other["result"]["isError"] is True
        assert "already answered" in said(other)
        asked = await call(both[0], "twice")
        twins = await asyncio.gather(*(again(mcp, "twice", asked, ADA) for mcp in both))
        for twin in twins:
            assert list(twin["result"]["inputRequests"]) == ["question-2"]
        ended = await asyncio.gather(
            *(again(mcp, "twice", twin, BOB) for mcp in both for twin in twins)
        )
    assert [said(each) for each in ended] == ["Ada and Bob"] * 4
    assert up.noted() == ["greet", "greeted"]


async def test_sessions_are_reused_and_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_sessions, "IDLE_MS", 1_500)
    async with (
        scripted(Upstream(session="s1")) as server,
        replica(tmp_path, entry(server)) as a,
        client(a) as mcp,
    ):

        async def sessions() -> int:
            return server.methods().count("initialize")

        await until(2, sessions)  # the start, and the list
        for _ in range(3):
            assert said(await call(mcp, "t")) == "done"
        assert await sessions() == 3
        ends = server.methods().count("DELETE")

        await until(1, lambda: server.methods().count("DELETE") - ends)
        assert said(await call(mcp, "t")) == "done"
        assert await sessions() == 4


async def test_progress_after_a_question_arrives_under_the_clients_token(tmp_path: Path) -> None:
    def after(asked: Asked) -> list[Any]:
        params = {"progressToken": asked.params["_meta"]["progressToken"], "progress": 1}
        noted = {"level": "error", "data": "x"}
        return [
            {"method": "notifications/progress", "params": params},
            {"method": "notifications/message", "params": noted},
        ]

    async with asking(tmp_path, Asking(after)) as (_, app), client(app) as mcp:
        params = {"name": "up__t", "arguments": {}}
        meta: Any = {"clientCapabilities": CAPABLE, "progressToken": 5, "logLevel": "info"}
        asked = (await mcp.post("tools/call", params, **meta)).json()
        state = {"requestState": asked["result"]["requestState"]}
        answers = {"inputResponses": {"question-1": ADA}}
        response = await mcp.post("tools/call", {**params, **state, **answers}, **meta)
        *notices, last = wire.events(response.text)
    assert said(last) == "done"
    assert [each["params"] for each in notices] == [
        {"progressToken": 5, "progress": 1},
        {"level": "error", "data": "x"},
    ]


async def test_only_the_wait_for_answers_counts_against_held_s(tmp_path: Path) -> None:
    clock = SkippingClock()
    asks = Asking(works=lambda: clock.skip(21))
    async with asking(tmp_path, asks, clock, held_s=20) as (_, app), client(app) as mcp:
        asked = await call(mcp, "t")
        assert said(await again(mcp, "t", asked, ADA)) == "done"


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_fault_of_the_gateway_ends_a_held_call_at_once(
    is_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(relay: Any, method: str, params: Any) -> None:
        raise RuntimeError("no text of this may be shown")

    def after(asked: Asked) -> list[Any]:
        return [{"method": "notifications/message", "params": {"level": "error", "data": "x"}}]

    async def notifies(asked: Asked) -> AsyncIterator[bytes]:
        yield STREAM_HEAD
        for message in after(asked):
            yield event({"jsonrpc": "2.0", **message})
        await asyncio.sleep(60)

    tool = notifies if is_first else Asking(after)
    async with asking(tmp_path, tool) as (_, app), client(app) as mcp, asyncio.timeout(60):
        if is_first:
            monkeypatch.setattr(calls.Relay, "notify", fail)
            ended = await call(mcp, "t")
        else:
            asked = await call(mcp, "t")
            monkeypatch.setattr(calls.Relay, "notify", fail)
            ended = await again(mcp, "t", asked, ADA)
            assert "failed in the gateway" in said(ended)
    assert ended["result"]["isError"] is True
    assert "no text" not in said(ended)


async def receiving() -> int:
    """The number of tasks that wait for the answers of a round."""
    names = [getattr(each.get_coro(), "__qualname__", "") for each in asyncio.all_tasks()]
    return names.count(HiddenTasks.receive.__qualname__)


async def test_no_process_waits_for_answers_to_a_call_that_has_ended(tmp_path: Path) -> None:
    ends = asyncio.Event()

    async def gives_up(asked: Asked) -> AsyncIterator[bytes]:
        yield STREAM_HEAD
        params = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}
        question = {"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": params}
        yield event(question)
        await ends.wait()
        yield result_event(asked, text("without you"))

    async with asking(tmp_path, gives_up) as (_, app), client(app) as mcp, asyncio.timeout(60):
        asked = await call(mcp, "t")
        await until(1, receiving)
        ends.set()
        await until(0, receiving)
        assert said(await again(mcp, "t", asked, ADA)) == "without you"


async def test_a_round_that_an_operator_ends_cancels_the_questions_at_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cancelled_first(store: Any, ref: Any, claim: Any, now_ms: int) -> Any:
        await store.apply(ref, Cancel("The operator cancelled the task", now_ms), now_ms)
        return await claims(store, ref, claim, now_ms)

    claims = StoredTasks.claim
    asks = Asking()
    async with asking(tmp_path, asks) as (server, app), client(app) as mcp, asyncio.timeout(60):
        asked = await call(mcp, "t")
        monkeypatch.setattr(StoredTasks, "claim", cancelled_first)
        assert "An operator of the gateway ended" in said(await again(mcp, "t", asked, ADA))

        await until(1, lambda: server.methods().count("(answer)"))
        await until(0, receiving)


@pytest.mark.parametrize("fault", ["away", "full"])
async def test_an_outcome_that_cannot_be_stored_now_is_not_lost_in_silence(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = StoredTasks.write
    faults = [StoreAway("away") if fault == "away" else QuotaExceeded(9)]

    async def write_later(tasks: Any, lease: Any, event: Any, now_ms: int) -> None:
        if faults and isinstance(event, Finish):
            raise faults.pop()
        await write(tasks, lease, event, now_ms)

    async with (
        asking(tmp_path, Asking()) as (server, a),
        replica(tmp_path, entry(server)) as b,
        client(a) as one,
        client(b) as two,
    ):
        asked = await call(one, "t")
        monkeypatch.setattr(StoredTasks, "write", write_later)
        ended = said(await again(two, "t", asked, ADA))
    assert ended == "done" if fault == "away" else "max_stored_bytes" in ended


async def test_a_session_is_closed_if_its_call_is_given_up_before_it_begins(tmp_path: Path) -> None:
    leveled = asyncio.Event()

    async def older(asked: Asked) -> Any:
        if asked.rpc == "logging/setLevel":
            leveled.set()
            await asyncio.sleep(60)
        if asked.rpc == "initialize":
            about = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}, "logging": {}}}
            done = {**about, "serverInfo": {"name": "old", "version": "1"}}
            return result(asked, done, Mcp_Session_Id="s1")
        return up(asked)

    up = Upstream(session="s1")
    async with (
        scripted(older) as server,
        replica(tmp_path, entry(server)) as app,
    ):
        meta = {"clientCapabilities": CAPABLE, "logLevel": "info"}
        asked = wire.message("tools/call", {"name": "up__t", "arguments": {}}, **meta)
        ends = server.methods().count("DELETE")
        async with Exchange(app, asked):
            await asyncio.wait_for(leveled.wait(), 60)

        await until(1, lambda: server.methods().count("DELETE") - ends)


async def test_the_session_in_place_of_a_forgotten_one_gets_the_log_level_too(
    tmp_path: Path,
) -> None:
    steps: list[str] = []

    def older(asked: Asked) -> Any:
        if asked.rpc in ("logging/setLevel", "tools/call"):
            steps.append(asked.rpc)
        if asked.rpc == "logging/setLevel":
            return result(asked, {})
        if asked.rpc == "initialize":
            about = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}, "logging": {}}}
            done = {**about, "serverInfo": {"name": "old", "version": "1"}}
            return result(asked, done, Mcp_Session_Id="s1")
        if asked.rpc == "tools/call" and steps.count("tools/call") == 2:
            return http(404)
        return up(asked)

    up = Upstream(session="s1")
    async with (
        scripted(older) as server,
        replica(tmp_path, entry(server)) as app,
        client(app) as mcp,
    ):
        meta = {"clientCapabilities": CAPABLE, "logLevel": "info"}
        for _ in range(2):
            await mcp.result("tools/call", {"name": "up__t", "arguments": {}}, **meta)
    assert steps == [
        "logging/setLevel",
        "tools/call",
        "tools/call",
        "logging/setLevel",
        "tools/call",
    ]


async def test_a_process_that_ended_between_two_calls_is_not_used_again(tmp_path: Path) -> None:
    async with replica(tmp_path, process(questions=True)) as app, client(app) as mcp:
        pid = int(said(await call(mcp, "pid")))
        assert int(said(await call(mcp, "pid"))) == pid
        os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(0.5)
        assert int(said(await call(mcp, "pid"))) != pid


async def test_a_caller_whose_processes_die_waits_for_the_next_one_and_others_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_server, "FIRST_PAUSE_S", 600.0)
    monkeypatch.setattr(mcp_server, "LONGEST_PAUSE_S", 600.0)
    async with service(answer(jwks("ec"))) as keys:
        auth = {"issuer": ISSUER, "jwks_url": f"{keys.url}/jwks"}
        file = config_of({"backends": [process(questions=True)], "auth": auth})
        using = task_settings(tmp_path, public_url=PUBLIC_URL)
        app = await asyncio.to_thread(build_app, file, using)
        async with stoppable(app), client(app) as mcp:

            async def text(subject: str, name: str) -> str:
                response = await mcp.post(
                    *("tools/call", {"name": f"up__{name}", "arguments": {}}),
                    headers=bearer(token(sub=subject)),
                    clientCapabilities=CAPABLE,
                )
                body = response.json()
                return said(body) if "result" in body else ""

            async def is_listed() -> bool:
                return (await text("ann", "pid")).isdigit()

            await until(True, is_listed)
            for _ in range(2):  # the first process may be replaced at once
                assert "may have taken effect" in await text("ann", "crash")
            refused = await text("ann", "crash")
            assert "can restart in" in refused
            assert "may have taken effect" not in refused
            assert (await text("eve", "pid")).isdigit()


async def test_tampered_moved_and_foreign_state_is_refused(tmp_path: Path) -> None:
    async with (
        older_server(tmp_path, "2.x keeps") as up,
        replica(tmp_path, up.entry) as a,
        client(a) as mcp,
    ):
        asked = await call(mcp, "greet", {"greeting": "Hi"})
        state = asked["result"]["requestState"]
        answers = {"inputResponses": {"question-1": ADA}}
        for wrong in (
            {"name": "up__greet", "arguments": {"greeting": "Ho"}, "requestState": state},
            {"name": "up__twice", "arguments": {"greeting": "Hi"}, "requestState": state},
            *(
                {"name": "up__greet", "arguments": {"greeting": "Hi"}, "requestState": odd}
                for odd in (forged(state), "question-1")
            ),
        ):
            _, refused = await mcp.error(
                "tools/call", {**wrong, **answers}, clientCapabilities=CAPABLE
            )
            assert refused["code"] == -32602
        assert up.noted() == ["greet"]
        done = await again(mcp, "greet", asked, ADA, arguments={"greeting": "Hi"})
        assert said(done) == "Hi, Ada"


async def test_another_caller_cannot_answer(tmp_path: Path) -> None:
    async with older_server(tmp_path) as up, service(answer(jwks("ec"))) as keys:
        auth = {"issuer": ISSUER, "jwks_url": f"{keys.url}/jwks"}
        file = config_of({"backends": [up.entry], "auth": auth})
        using = task_settings(tmp_path, public_url=PUBLIC_URL)
        app = await asyncio.to_thread(build_app, file, using)
        async with stoppable(app), client(app) as mcp:

            async def post(subject: str, **more: Any) -> Any:
                params = {"name": "up__greet", "arguments": {}, **more}
                headers = bearer(token(sub=subject))
                return await mcp.post(
                    "tools/call", params, headers=headers, clientCapabilities=CAPABLE
                )

            async def state() -> Any:
                return (await post("ann")).json().get("result", {}).get("requestState")

            async with asyncio.timeout(60):
                while (asked := await state()) is None:  # noqa: ASYNC110 - until it is listed
                    await asyncio.sleep(0.05)
            answers = {"requestState": asked, "inputResponses": {"question-1": ADA}}
            refused = (await post("eve", **answers)).json()
            assert refused["error"]["code"] == -32602
            assert said((await post("ann", **answers)).json()) == "Hello, Ada"
    assert up.noted().count("greeted") == 1


async def test_a_server_sees_what_this_request_declares_and_no_more(tmp_path: Path) -> None:
    async with (
        older_server(tmp_path) as up,
        replica(tmp_path, up.entry) as a,
        client(a) as mcp,
    ):

        async def failed(tool: str, capabilities: dict[str, Any]) -> str:
            params = {"name": f"up__{tool}", "arguments": {}}
            body = (await mcp.post("tools/call", params, clientCapabilities=capabilities)).json()
            assert body["result"]["isError"] is True
            return said(body)

        assert await failed("greet", {})
        assert await failed("motto", {"elicitation": {"form": {}}})
        assert await failed("greet", {"sampling": {}})


@pytest.mark.parametrize("kind", BOTH)
async def test_a_task_asks_its_user_and_any_worker_continues(kind: str, tmp_path: Path) -> None:
    async with (
        older_server(tmp_path, kind, override={"twice": {"task": "required"}}) as up,
        clients(tmp_path, up.entry, worker="on") as (one, two),
    ):
        ann, bob = TaskClient(one), TaskClient(two)
        task_id = await ann.begin("up__twice")
        (first,) = await ann.asked(task_id)
        await bob.answer(task_id, {first: ADA})

        async def asks() -> list[str]:
            return list((await bob.get(task_id)).get("inputRequests", {}))

        await until(["question-2"], asks)
        await ann.answer(task_id, {"question-2": BOB})
        done = await bob.over(task_id)
    assert done["result"]["content"][0]["text"] == "Ada and Bob"


async def test_calls_beyond_the_limit_are_told_so(tmp_path: Path) -> None:
    async with (
        older_server(tmp_path, max_held_calls=1) as up,
        replica(tmp_path, up.entry) as a,
        client(a) as mcp,
    ):
        asked = await call(mcp, "greet")
        busy = await call(mcp, "greet")
        assert busy["result"]["isError"] is True
        assert "max_held_calls" in said(busy)
        assert said(await again(mcp, "greet", asked, ADA)) == "Hello, Ada"
        at_once = await asyncio.gather(*(call(mcp, "greet") for _ in range(3)))
        assert sum("inputRequests" in each["result"] for each in at_once) == 1


@needs_older
async def test_a_process_asks_if_it_may(tmp_path: Path) -> None:
    for questions in (True, False):
        up = over_stdio(OLDER, tmp_path, questions=questions)
        up.entry["timeout_s"] = 60
        async with clients(tmp_path, up.entry) as (one, two):
            asked = await call(one, "greet")
            if not questions:
                assert asked["result"]["isError"] is True
                continue
            assert said(await again(two, "greet", asked, ADA)) == "Hello, Ada"
            asked = await call(one, "both")
            assert said(await again(two, "both", asked, ADA, BOB)) == "Ada and Bob"
            asked = await call(one, "motto")
            assert said(await again(one, "motto", asked, SAMPLE)) == "sampled: Carpe"
            asked = await call(one, "where")
            roots = {"roots": [{"uri": "file:///home/ada"}]}
            assert said(await again(one, "where", asked, roots)) == "file:///home/ada"
            assert said(await call(one, "plain")) == "done"


async def test_questions_can_be_turned_off(tmp_path: Path) -> None:
    async with (
        older_server(tmp_path, questions=False) as up,
        replica(tmp_path, up.entry) as a,
        client(a) as mcp,
    ):
        assert (await call(mcp, "greet"))["result"]["isError"] is True
