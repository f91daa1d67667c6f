"""The contract of the pages of tasks: they find, show and change tasks of each store alike."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from itertools import product
from typing import Any, TypeAlias
from urllib.parse import quote

import pytest

from roundgate.json import encode
from roundgate.protocol import Status
from roundgate.storage import Ending
from tests.support.console import elements
from tests.support.console_tasks import (
    ACCEPTED,
    Operated,
    add,
    eventually,
    is_down,
    refund,
    ship,
)

Operating: TypeAlias = Callable[..., AbstractAsyncContextManager[Operated]]
"""Serves a gateway with the store, as `operated` does."""


class TaskPagesContract:
    """Subclasses have a fixture `operated`."""

    async def test_sessions_are_revoked_and_begin_again(self, operated: Operating) -> None:
        async with operated() as gateway:
            browser, sessions = gateway.browser, gateway.app.state.console.sessions
            copied = browser.session
            await browser.submit("/sign-out", {"everywhere": "yes"})
            browser.session = copied
            assert (await browser.get()).status_code == 303
            browser.http.cookies.clear()
            await browser.get(f"/enter?token={sessions.seal_link()}")
            assert "Overview" in await browser.page()

    async def test_a_task_is_found_by_each_of_its_facts(self, operated: Operating) -> None:
        async with operated() as gateway:
            store = gateway.store
            await add(store, 1, tool="pay", status_message="waits for the bank", call_id="CALLONE")
            await add(
                store, 2, owner="uOther", status=Status.FAILED, status_message="The Bank said no"
            )
            await add(store, 3, status=Status.COMPLETED, ending=Ending.TOOL_ERROR)
            searches = {
                "": {"task00001", "task00002", "task00003"},
                "tool=pay": {"task00001"},
                "owner=uOther": {"task00002"},
                "status=completed": {"task00003"},
                "status=completed&status=working": {"task00001", "task00003"},
                "owner=uOther&status=working&status=failed": {"task00002"},
                "outcome=tool_error": {"task00003"},
                "text=BANK": {"task00001", "task00002"},
                "text=bank&status=failed": {"task00002"},
                "text=callone": {"task00001"},
                "text=uOther.task00002": {"task00002"},
                "text=task00003": {"task00003"},
                "text=nothing": set(),
                "status=unknown": {"task00001", "task00002", "task00003"},
            }
            for query, ids in searches.items():
                listed = (await gateway.browser.get(f"/api/tasks?{query}")).json()["tasks"]
                assert {row["task"].partition(".")[2] for row in listed} == ids, query
                page = await gateway.browser.page(f"/tasks?{query}")
                assert set(re.findall(r"/console/tasks/\w+\.(task\d+)", page)) == ids, query

    async def test_tasks_that_need_a_person_are_counted_and_listed_by_the_reason(
        self, operated: Operating
    ) -> None:
        asked = {"approve": b'{"method": "elicitation/create"}'}, {"why": b'{"method": "m"}'}
        waiting: list[dict[str, Any]] = [
            {"status": Status.INPUT_REQUIRED, "requests": requests} for requests in asked
        ]
        failed: dict[str, Any] = {"status": Status.FAILED, "ending": Ending.ERROR}
        stored = [failed, failed, *waiting, {"status": Status.COMPLETED, "ending": Ending.OK}, {}]
        async with operated() as gateway:
            for number, facts in enumerate(stored):
                await add(gateway.store, number, **facts)
            overview = (await gateway.browser.get("/api/overview")).json()
            counts = {each["need"]: each["tasks"] for each in overview["needs"]}
            assert counts == {"failed": 2, "operator": 0, "approval": 1, "client": 1, "worker": 0}
            assert len(overview["latest"]) == 4
            page = await gateway.browser.page()
            for need, count in counts.items():
                assert f"/console/tasks?needs={need}" in page
                found, path = set[str](), f"/api/tasks?needs={need}"
                listed: dict[str, Any] = {"cursor": ""}
                while (cursor := listed["cursor"]) is not None:
                    listed = (await gateway.browser.get(f"{path}&cursor={quote(cursor)}")).json()
                    found |= {row["task"] for row in listed["tasks"]}
                assert len(found) == count, need
            assert "No task needs this" in await gateway.browser.page("/tasks?needs=operator")

    async def test_pages_follow_each_other_until_each_task_was_shown_once(
        self, operated: Operating
    ) -> None:
        async with operated() as gateway:
            for number in range(230):
                await add(gateway.store, number)
            seen: list[str] = []
            path: str | None = "/tasks"
            while path is not None:
                page = await gateway.browser.page(path)
                seen += re.findall(r"/console/tasks/\w+\.(task\d+)", page)
                links = [each.get("href") or "" for tag, each in elements(page) if tag == "a"]
                path = next((link[len("/console") :] for link in links if "cursor=" in link), None)
            assert sorted(seen) == [f"task{number:05}" for number in range(230)]

    async def test_a_wrong_cursor_is_refused(self, operated: Operating) -> None:
        forged = b'[0,{"pk":"","sk":"0"}]', b"[9e99,null]"
        cursors = ["wrong", *(base64.urlsafe_b64encode(text).decode() for text in forged)]
        filters = "", "status=failed&", "owner=uSomebody&status=working&"
        async with operated() as gateway:
            for path, filter_, cursor in product(("/tasks", "/api/tasks"), filters, cursors):
                query = f"{filter_}cursor={quote(cursor)}"
                response = await gateway.browser.get(f"{path}?{query}")
                assert response.status_code == 400, query
                assert "cursor" in response.text

    async def test_a_search_reads_a_bounded_part_and_goes_on_from_there(
        self, operated: Operating, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("roundgate.operators.finding.BATCH", 2)
        async with operated() as gateway:
            for number in range(20):
                await add(gateway.store, number, status_message="late" if number % 9 == 4 else "")
            path, shown, pages = "/tasks?text=late", list[str](), 0
            while path:
                page = await gateway.browser.page(path)
                shown += re.findall(r"/console/tasks/\w+\.(task\d+)", page)
                (read,) = re.findall(r"of (\d+) that were read", page)
                assert int(read) <= 8
                more = re.search(r'href="/console([^"]+)">Search further', page)
                path, pages = html.unescape(more[1]) if more else "", pages + 1
            assert sorted(shown) == ["task00004", "task00013"]
            assert pages >= 3

    async def test_a_task_that_does_not_exist_is_not_found(self, operated: Operating) -> None:
        async with operated() as gateway:
            for task in ("uNobody.nothing", "malformed", "%2e%2e", "a.b.c", "é.é"):
                for path in (f"/tasks/{task}", f"/api/tasks/{task}", f"/tasks/{task}/state"):
                    assert (await gateway.browser.get(path)).status_code == 404, path
                response = await gateway.browser.submit(f"/tasks/{task}/actions/cancel", {})
                assert response.status_code == 404, task

    async def test_a_task_shows_why_it_waits_and_its_line_of_time(
        self, operated: Operating
    ) -> None:
        async with operated(refund) as gateway:
            task = await gateway.task("refund", "input_required", order="A-1")
            expected = {"task created", "turn of a worker", "step plan", "asks confirm"}

            async def told() -> set[str] | None:
                """The titles, once the lines of the turn are written: they follow its last write."""
                titles = {moment["title"] for moment in (await gateway.shown(task))["moments"]}
                return titles if titles >= {"round 1: tools/call refund", *expected} else None

            titles = await eventually(told)
            page = await gateway.browser.page(f"/tasks/{task}")
            assert "waits for its client" in page
            for title in titles:
                assert title in page
            assert "<svg" in page
            state = await gateway.browser.get(f"/tasks/{task}/state?left=3&seen=another")
            assert "The task has changed" in state.text
            assert "hx-refresh" not in state.headers  # its page has a form

    async def test_an_operator_answers_a_question_and_retries_the_step_that_failed(
        self, operated: Operating
    ) -> None:
        async with operated(refund, show_values=True) as gateway:
            task = await gateway.task("refund", "input_required", order="A-1")
            assert "has the answer and continues" in await gateway.act(task, "answer", **ACCEPTED)
            failed = await gateway.until(task, "failed")
            assert failed["actions"] == ["retry", "purge"]
            assert any(each["title"] == "operator: answer" for each in failed["moments"])
            page = await gateway.browser.page(f"/tasks/{task}")
            assert '<option value="" selected>pay (failed)</option><option value="plan">' in page
            assert "the failed step" in page
            assert "Failed at step pay: ConnectionError" in page
            is_down[:] = [False]
            page = await gateway.act(task, "retry")
            (successor,) = re.findall(r"continues as ([\w.-]+):", page)
            done = await gateway.until(successor, "completed")
            assert done["facts"]["outcome"] == "ok"
            assert successor in await gateway.browser.page(f"/tasks/{task}")

    async def test_nothing_happens_before_an_action_is_confirmed(self, operated: Operating) -> None:
        async with operated(refund) as gateway:
            task = await gateway.task("refund", "input_required", order="A-1")
            page = (await gateway.browser.submit(f"/tasks/{task}/actions/cancel", {})).text
            assert "Cancel this task?" in page
            assert (await gateway.shown(task))["facts"]["status"] == "input_required"
            assert "is cancelled" in await gateway.act(task, "cancel")
            assert (await gateway.shown(task))["facts"]["status"] == "cancelled"
            assert "is purged" in await gateway.act(task, "purge")
            assert (await gateway.browser.get(f"/tasks/{task}")).status_code == 404

    async def test_an_event_is_delivered_by_its_operator(self, operated: Operating) -> None:
        async with operated(ship) as gateway:
            task = await gateway.task("ship", "working")
            event = {"event": "paid", "payload": '{"amount": 5}'}

            async def is_open() -> dict[str, Any] | None:
                facts: dict[str, Any] = (await gateway.shown(task))["facts"]
                return facts if facts.get("events") else None

            await eventually(is_open)
            wrong = await gateway.browser.submit(
                f"/tasks/{task}/actions/event", {**event, "payload": "{"}
            )
            assert (wrong.status_code, "not JSON" in wrong.text) == (400, True)
            assert "has no event" in await gateway.act(task, "event", event="refunded", payload="")
            assert "has the event" in await gateway.act(task, "event", **event)
            await gateway.until(task, "completed")

    async def test_a_retry_from_a_step_says_what_is_repeated(self, operated: Operating) -> None:
        async with operated(refund, show_values=True) as gateway:
            task = await gateway.task("refund", "input_required", order="A-1")
            await gateway.act(task, "answer", **ACCEPTED)
            await gateway.until(task, "failed")
            path = f"/tasks/{task}/actions/retry"
            page = (await gateway.browser.submit(path, {"step": "plan"})).text
            assert "Runs again" in page
            assert "plan, pay" in page
            assert "Is asked again" in page
            wrong = (await gateway.browser.submit(path, {"step": "nothing"})).text
            assert "has no step" in wrong
            assert "continues as" in await gateway.act(task, "retry", step="plan")

    async def test_an_answer_is_not_given_to_a_question_that_was_asked_later(
        self, operated: Operating
    ) -> None:
        schema = {"type": "object", "properties": {"go": {"type": "boolean"}}}

        def question(text: str) -> dict[str, Any]:
            params = {"message": text, "requestedSchema": schema}
            request = encode({"method": "elicitation/create", "params": params})
            return {"status": Status.INPUT_REQUIRED, "requests": {"confirm": request}}

        async with operated(show_values=True) as gateway:
            seen = str(await add(gateway.store, 1, **question("Refund 1?")))
            later = str(await add(gateway.store, 2, **question("Refund 1000?")))
            page = await gateway.browser.page(f"/tasks/{seen}")
            shown = next(each["value"] for _, each in elements(page) if each.get("name") == "asks")
            answer = {"action/0": "accept", "answer/0/go": "true", "asks": shown}
            assert "asks other questions now" in await gateway.act(later, "answer", **answer)
            assert (await gateway.shown(later))["facts"]["status"] == "input_required"
            assert "has the answer" in await gateway.act(seen, "answer", **answer)

    async def test_a_requeued_task_is_queued_and_a_running_one_can_be_taken(
        self, operated: Operating
    ) -> None:
        async with operated() as gateway:
            task = str(await add(gateway.store, 1))
            assert (await gateway.shown(task))["actions"] == ["requeue", "cancel"]
            assert "is queued" in await gateway.act(task, "requeue")
            state = await gateway.browser.get(f"/tasks/{task}/state?left=3&seen=another")
            assert state.headers["hx-refresh"] == "true"
            assert "cancel it first" in await gateway.act(task, "purge")
            await gateway.act(task, "cancel")
            assert "Nothing was done" in await gateway.act(task, "requeue")

    async def test_odd_texts_find_nothing(self, operated: Operating) -> None:
        async with operated() as gateway:
            for text in ("%00", "%ed%a0%80", "%ff", "%27%3B--", "%25", "\u202e"):
                query = "&".join(f"{name}=x{text}x" for name in ("text", "tool", "owner", "status"))
                for path in ("/tasks", "/api/tasks"):
                    found = await gateway.browser.get(f"{path}?{query}")
                    assert found.status_code == 200, text
                unknown = await gateway.browser.get(f"/tasks/a{text}.b{text}")
                assert unknown.status_code == 404, text
