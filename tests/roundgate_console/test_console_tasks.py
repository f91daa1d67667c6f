"""The pages of tasks: found, looked at and acted on by their operator."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest

from roundgate import Context, tool
from roundgate.auth import LOCAL, task_owner
from roundgate.clock import Clock
from roundgate.json import encode
from roundgate.operators import Act, TaskControl
from roundgate.protocol import Status
from roundgate.settings import TasksConfig
from roundgate.storage import TaskRef
from roundgate.tasks.events import AnswersTaken, Refused, TakeAnswers
from tests.support.audit import KEY, records
from tests.support.console import csrf_of, elements
from tests.support.console_tasks import ACCEPTED, Confirm, add, operated, refund

SCRIPT = '"><script>alert(1)</script><img src=x onerror=alert(1)>'


async def test_values_are_shown_only_if_that_is_configured(tmp_path: Path) -> None:
    async with operated(tmp_path / "hidden", refund) as gateway:
        task = await gateway.task("refund", "input_required", order="SECRET-ORDER")
        for path in (f"/tasks/{task}", f"/api/tasks/{task}", "/tasks", "/calls"):
            assert "SECRET-ORDER" not in (await gateway.browser.get(path)).text
        assert "console.show_values" in await gateway.browser.page(f"/tasks/{task}")
    async with operated(tmp_path / "shown", refund, show_values=True) as gateway:
        task = await gateway.task("refund", "input_required", order="ORDER-1")
        page = html.unescape(await gateway.browser.page(f"/tasks/{task}"))
        assert "Refund ORDER-1?" in page
        assert '{"order":"ORDER-1"}' in page


async def test_a_form_without_the_token_of_the_session_is_refused(tmp_path: Path) -> None:
    async with operated(tmp_path, refund) as gateway:
        task = await gateway.task("refund", "input_required", order="A-1")
        path, fields = f"/tasks/{task}/actions/cancel", {"confirmed": "yes"}
        assert (await gateway.browser.post(path, fields)).status_code == 403
        token = csrf_of(await gateway.browser.page())
        foreign = await gateway.browser.post(
            path, {**fields, "csrf_token": token}, origin="https://evil.example"
        )
        assert foreign.status_code == 403
        api = f"/console/api/tasks/{task}/actions"
        response = await gateway.browser.http.post(api, json={"action": "cancel"})
        assert response.status_code == 403
        assert (await gateway.shown(task))["facts"]["status"] == "input_required"


async def test_each_act_is_in_the_audit_log_with_its_operator(tmp_path: Path) -> None:
    audit = {"directory": str(tmp_path / "audit"), "key": KEY}
    async with operated(tmp_path, refund, audit=audit, show_values=True) as gateway:
        task = await gateway.task("refund", "input_required", order="A-1")
        await gateway.act(task, "answer", **ACCEPTED)
        await gateway.until(task, "failed")
        await gateway.act(task, "purge")
        entered, *acts = records(tmp_path / "audit", "operator", "operator_ended")
        assert entered["action"] == "sign_in"
        assert [(act["event"], act["action"], act["task"]) for act in acts] == [
            ("operator", "answer", task),
            ("operator_ended", "answer", task),
            ("operator", "purge", task),
            ("operator_ended", "purge", task),
        ]
        assert acts[0]["who"] == {"issuer": "local", "subject": "local", "client": ""}
        assert acts[0]["answers"]["confirm"]["action"] == "accept"
        assert "late" not in str(acts)


async def test_a_program_acts_with_json(tmp_path: Path) -> None:
    async with operated(tmp_path, refund) as gateway:
        task = await gateway.task("refund", "input_required", order="A-1")
        headers = {
            **gateway.browser.same_origin,
            "x-csrf-token": csrf_of(await gateway.browser.page()),
        }

        async def act(body: dict[str, Any]) -> tuple[int, Any]:
            path = f"/console/api/tasks/{task}/actions"
            response = await gateway.browser.http.post(path, json=body, headers=headers)
            return response.status_code, response.json()

        assert (await act({"action": "explode"}))[0] == 422
        assert (await act({"action": "cancel", "also": 1}))[0] == 422
        nothing = await act({"action": "retry"})
        assert (nothing[0], nothing[1]["done"]) == (200, False)
        answers = {"confirm": {"action": "decline"}}
        assert (await act({"action": "answer", "answers": answers}))[1]["done"] is True
        assert (await act({"action": "answer", "answers": answers}))[1]["done"] is False


async def test_a_page_says_why_a_step_failed_and_where_the_log_says_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for shows in (False, True):
        async with operated(tmp_path / str(shows), refund, show_values=shows) as gateway:
            task = await gateway.task("refund", "input_required", order="A-1")
            await gateway.act(task, "answer", **ACCEPTED)
            facts = (await gateway.until(task, "failed"))["facts"]
            failure = facts["lastFailure"]
            assert (failure["step"], failure["type"]) == ("pay", "ConnectionError")
            assert failure.get("text") == ("4111 1111 1111 1111" if shows else None)
            assert facts["created"] <= failure["at"] <= facts["changed"]
            lines = [line for line in caplog.records if failure["reference"] in str(vars(line))]
            messages = ["a step failed", "tool refund failed"]
            assert [line.getMessage() for line in lines] == messages
            page = await gateway.browser.page(f"/tasks/{task}")
            assert f"grep -e {failure['reference']} LOG" in page
            assert ("4111" in page) is shows
            results = re.findall("<details.*<summary>(Arguments|Result of step .*)</summary>", page)
            assert results == (["Arguments", "Result of step plan"] if shows else [])
            (link,) = re.findall(r'href="([^"]+)">Open tasks of this owner', page)
            assert link.endswith("&amp;status=working&amp;status=input_required")


async def test_texts_of_callers_and_tools_are_texts(tmp_path: Path) -> None:
    @tool(task="required")
    async def hostile(ctx: Context, order: str) -> str:
        await ctx.status(SCRIPT)
        await ctx.step("s", lambda: SCRIPT)
        await ctx.elicit("q", SCRIPT, Confirm)
        raise RuntimeError(SCRIPT)

    async with operated(tmp_path, hostile, show_values=True) as gateway:
        task = await gateway.task("hostile", "input_required", order=SCRIPT)
        confirmation = await gateway.browser.submit(f"/tasks/{task}/actions/answer", ACCEPTED)
        pages = [
            await gateway.browser.page("/tasks"),
            await gateway.browser.page(f"/tasks?text={SCRIPT}&tool={SCRIPT}"),
            await gateway.browser.page(f"/tasks/{task}"),
            confirmation.text,
            await gateway.act(task, "answer", **ACCEPTED),
        ]
        await gateway.until(task, "completed")
        pages += [
            await gateway.browser.page(f"/tasks/{task}"),
            await gateway.browser.page("/calls"),
        ]
        call = (await gateway.shown(task))["facts"]["call"]
        pages.append(await gateway.browser.page(f"/calls/{call}"))
        pages.append(await gateway.browser.page(f"/calls?text={SCRIPT}"))
        pages.append((await gateway.browser.get(f"/calls/{SCRIPT.replace('/', '')}")).text)
        pages.append((await gateway.browser.get("/tasks/a." + SCRIPT.replace("/", ""))).text)
        for page in pages:
            for tag, attributes in elements(page):
                assert tag != "img"
                assert tag != "script" or (attributes.get("src") or "").startswith("/console/")
                assert not [name for name in attributes if name.startswith("on")]


async def test_a_page_stops_to_update_itself(tmp_path: Path) -> None:
    async with operated(tmp_path, refund) as gateway:
        task = await gateway.task("refund", "input_required", order="A-1")
        state = f"/tasks/{task}/state"

        def polls(page: str) -> list[str | None]:
            return [each["hx-get"] for _, each in elements(page) if "hx-get" in each]

        assert "left=4" in str(polls(await gateway.browser.page(f"{state}?left=5")))
        assert polls(await gateway.browser.page(f"{state}?left=0")) == []
        assert "left=199" in str(polls(await gateway.browser.page(f"{state}?left=99999999")))
        assert "left=4" in str(polls(await gateway.browser.page("/tasks?left=5")))
        assert polls(await gateway.browser.page("/tasks?left=0")) == []
        forged = polls(await gateway.browser.page(f"{state}?seen=1%26left=200&left=5"))
        assert "left=200" not in str(forged)
        newer = await gateway.browser.page(f"{state}?seen=1&left=5")
        assert "The task has changed" in newer
        await gateway.act(task, "cancel")
        assert polls(await gateway.browser.page(f"/tasks/{task}")) == []


async def test_a_search_that_reads_many_tasks_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roundgate.operators.finding.BATCH", 2)
    async with operated(tmp_path) as gateway:
        for number in range(5):
            await add(gateway.store, number)
        assert 'hx-trigger="every' in await gateway.browser.page("/tasks?status=failed&text=no")
        assert 'hx-trigger="every' not in await gateway.browser.page("/tasks?text=no")


APPROVAL = {
    "method": "elicitation/create",
    "params": {
        "mode": "form",
        "message": "Delete the database?",
        "requestedSchema": {
            "type": "object",
            "properties": {"approve": {"type": "boolean", "title": "Go ahead", "default": False}},
            "required": ["approve"],
        },
    },
}


async def test_an_operator_gives_no_approval_of_another_caller(tmp_path: Path) -> None:
    async with operated(tmp_path, show_values=True) as gateway:
        for owner, text in (
            (task_owner(LOCAL), "has the answer and continues"),
            ("uSomebody", "which only the caller can give"),
        ):
            asks = {"status": Status.INPUT_REQUIRED, "requests": {"approve": encode(APPROVAL)}}
            task = str(await add(gateway.store, 1, owner=owner, **asks))
            approves = {"action/0": "accept", "answer/0/approve": "true"}
            assert text in await gateway.act(task, "answer", **approves)


async def test_an_answer_holds_only_for_questions_that_the_operator_could_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = {"method": "elicitation/create", "params": {"message": "Why?", "requestedSchema": {}}}
    async with operated(tmp_path) as gateway:
        asks = {"status": Status.INPUT_REQUIRED, "requests": {"why": encode(plain)}}
        ref = await add(gateway.store, 1, **asks)
        stored: list[set[str]] = []

        async def answer(ref: TaskRef, event: TakeAnswers, now_ms: int) -> Refused:
            stored.append(set(event.answers))
            return Refused(AnswersTaken.FULLY)

        monkeypatch.setattr(gateway.store, "apply", answer)
        accepts = {"action": "accept", "content": {"approve": True}}
        control = TaskControl(gateway.store, Clock(), TasksConfig(), LOCAL, [""])
        await control.act(ref, Act(action="answer", answers={"why": accepts, "approve": accepts}))
        assert stored == [{"why"}]


async def test_a_question_for_a_model_is_shown_by_its_name_alone(tmp_path: Path) -> None:
    methods = "sampling/createMessage", "roots/list", "other/method"
    async with operated(tmp_path, show_values=True) as gateway:
        for number, method in enumerate(methods):
            request = encode({"method": method, "params": {"messages": [], "maxTokens": 1}})
            asks = {"status": Status.INPUT_REQUIRED, "requests": {"think": request}}
            task = str(await add(gateway.store, number, **asks))
            page = await gateway.browser.page(f"/tasks/{task}")
            assert "The console cannot answer this" in page, method
            assert "no longer asks" in await gateway.act(task, "answer"), method


async def test_a_call_of_an_older_client_can_only_be_cancelled(tmp_path: Path) -> None:
    async with operated(tmp_path, show_values=True) as gateway:
        ref = TaskRef("uSomebody", "~hidden")
        asks = {"status": Status.INPUT_REQUIRED, "requests": {"approve": encode(APPROVAL)}}
        task = str(await add(gateway.store, 1, ref=ref, **asks))
        assert (await gateway.shown(task))["actions"] == ["cancel"]
        page = await gateway.browser.page(f"/tasks/{task}")
        assert "The console cannot answer this" in page
        fields = {"action/0": "accept", "answer/0/approve": "true"}
        assert "answers on its own stream" in await gateway.act(task, "answer", **fields)
