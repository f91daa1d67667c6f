"""The pages of tasks: found, looked at and acted on by their operator."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from roundgate import Context, tool
from roundgate.auth import LOCAL, task_owner
from roundgate.clock import Clock
from roundgate.console.acting import Act, Acting
from roundgate.json import encode
from roundgate.protocol import Status
from roundgate.settings import TasksConfig
from roundgate.storage import Ending, TaskRef
from roundgate.tasks.events import Answered
from tests.support.audit import KEY, records
from tests.support.console import csrf_of, elements
from tests.support.console_tasks import add, eventually, operated

SCRIPT = '"><script>alert(1)</script><img src=x onerror=alert(1)>'


class Confirm(BaseModel):
    go: bool
    why: str = "late"


is_down = [True]


@pytest.fixture(autouse=True)
def service() -> None:
    """The service that `pay` needs is down."""
    is_down[:] = [True]


def pay() -> str:
    if is_down[0]:
        raise ConnectionError("4111 1111 1111 1111")
    return "paid"


@tool(task="required")
async def refund(ctx: Context, order: str) -> str:
    await ctx.step("plan", lambda: "plan")
    confirmed = await ctx.elicit("confirm", f"Refund {order}?", Confirm)
    if not confirmed.go:
        return "declined"
    await ctx.step("pay", pay)
    return f"refunded {order}"


@tool(task="required")
async def ship(ctx: Context) -> str:
    event = await ctx.event("paid")
    paid = await event.wait()
    return f"shipped: {paid}"


ACCEPTED = {"action/0": "accept", "answer/0/go": "true", "answer/0/why": "late"}


async def test_a_task_is_found_by_each_of_its_facts(tmp_path: Path) -> None:
    async with operated(tmp_path) as gateway:
        store = gateway.store
        await add(store, 1, tool="pay", status_message="waits for the bank", call_id="CALLONE")
        await add(store, 2, owner="uOther", status=Status.FAILED, status_message="The Bank said no")
        await add(store, 3, status=Status.COMPLETED, ending=Ending.TOOL_ERROR)
        searches = {
            "": {"task00001", "task00002", "task00003"},
            "tool=pay": {"task00001"},
            "owner=uOther": {"task00002"},
            "status=completed": {"task00003"},
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


async def test_pages_follow_each_other_until_each_task_was_shown_once(tmp_path: Path) -> None:
    async with operated(tmp_path) as gateway:
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


@pytest.mark.parametrize("path", ["/tasks?cursor=wrong", "/api/tasks?cursor=wrong"])
async def test_a_wrong_cursor_is_refused(tmp_path: Path, path: str) -> None:
    async with operated(tmp_path) as gateway:
        response = await gateway.browser.get(path)
        assert response.status_code == 400
        assert "cursor" in response.text


@pytest.mark.parametrize("task", ["uNobody.nothing", "malformed", "%2e%2e", "a.b.c", "é.é"])
async def test_a_task_that_does_not_exist_is_not_found(tmp_path: Path, task: str) -> None:
    async with operated(tmp_path) as gateway:
        for path in (f"/tasks/{task}", f"/api/tasks/{task}", f"/tasks/{task}/state"):
            assert (await gateway.browser.get(path)).status_code == 404, path
        response = await gateway.browser.submit(f"/tasks/{task}/actions/cancel", {})
        assert response.status_code == 404


async def test_a_task_shows_why_it_waits_and_its_line_of_time(tmp_path: Path) -> None:
    async with operated(tmp_path, refund) as gateway:
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
        assert await gateway.browser.page(f"/tasks/{task}/state?left=3&seen=2")


async def test_values_are_hidden_unless_they_are_configured(tmp_path: Path) -> None:
    async with operated(tmp_path, refund) as gateway:
        task = await gateway.task("refund", "input_required", order="SECRET-ORDER")
        for path in (f"/tasks/{task}", f"/api/tasks/{task}", "/tasks", "/calls"):
            assert "SECRET-ORDER" not in (await gateway.browser.get(path)).text
        assert "console.show_values" in await gateway.browser.page(f"/tasks/{task}")


async def test_values_are_shown_if_they_are_configured(tmp_path: Path) -> None:
    async with operated(tmp_path, refund, show_values=True) as gateway:
        task = await gateway.task("refund", "input_required", order="ORDER-1")
        page = html.unescape(await gateway.browser.page(f"/tasks/{task}"))
        assert "Refund ORDER-1?" in page
        assert '{"order":"ORDER-1"}' in page


async def test_an_operator_answers_a_question_and_retries_the_step_that_failed(
    tmp_path: Path,
) -> None:
    async with operated(tmp_path, refund, show_values=True) as gateway:
        task = await gateway.task("refund", "input_required", order="A-1")
        assert "has the answer and continues" in await gateway.act(task, "answer", **ACCEPTED)
        failed = await gateway.until(task, "failed")
        assert failed["actions"] == ["retry", "purge"]
        assert any(each["title"] == "operator: answer" for each in failed["moments"])
        is_down[:] = [False]
        page = await gateway.act(task, "retry")
        (successor,) = re.findall(r"continues as ([\w.-]+):", page)
        done = await gateway.until(successor, "completed")
        assert done["facts"]["outcome"] == "ok"
        assert successor in await gateway.browser.page(f"/tasks/{task}")


async def test_nothing_happens_before_an_action_is_confirmed(tmp_path: Path) -> None:
    async with operated(tmp_path, refund) as gateway:
        task = await gateway.task("refund", "input_required", order="A-1")
        page = (await gateway.browser.submit(f"/tasks/{task}/actions/cancel", {})).text
        assert "Cancel this task?" in page
        assert (await gateway.shown(task))["facts"]["status"] == "input_required"
        assert "is cancelled" in await gateway.act(task, "cancel")
        assert (await gateway.shown(task))["facts"]["status"] == "cancelled"
        assert "is purged" in await gateway.act(task, "purge")
        assert (await gateway.browser.get(f"/tasks/{task}")).status_code == 404


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
        acts = records(tmp_path / "audit", "operator", "operator_ended")
        assert [(act["event"], act["action"], act["task"]) for act in acts] == [
            ("operator", "answer", task),
            ("operator_ended", "answer", task),
            ("operator", "purge", task),
            ("operator_ended", "purge", task),
        ]
        assert acts[0]["who"] == {"issuer": "local", "subject": "local", "client": ""}
        assert acts[0]["answers"]["confirm"]["action"] == "accept"
        assert "late" not in str(acts)


async def test_an_event_is_delivered_by_its_operator(tmp_path: Path) -> None:
    async with operated(tmp_path, ship) as gateway:
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


async def test_a_retry_from_a_step_says_what_is_repeated(tmp_path: Path) -> None:
    async with operated(tmp_path, refund, show_values=True) as gateway:
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
    monkeypatch.setattr("roundgate.console.searching.BATCH", 2)
    monkeypatch.setattr("roundgate.console.tasks.BATCH", 2)
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


@pytest.mark.parametrize(
    ("owner", "text"),
    [
        (task_owner(LOCAL), "has the answer and continues"),
        ("uSomebody", "which only the caller can give"),
    ],
)
async def test_an_operator_gives_no_approval_of_another_caller(
    tmp_path: Path, owner: str, text: str
) -> None:
    async with operated(tmp_path, show_values=True) as gateway:
        asks = {"status": Status.INPUT_REQUIRED, "requests": {"approve": encode(APPROVAL)}}
        task = str(await add(gateway.store, 1, owner=owner, **asks))
        approves = {"action/0": "accept", "answer/0/approve": "true"}
        assert text in await gateway.act(task, "answer", **approves)


async def test_an_answer_is_not_given_to_a_question_that_was_asked_later(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"go": {"type": "boolean"}}}

    def question(text: str) -> dict[str, Any]:
        params = {"message": text, "requestedSchema": schema}
        request = encode({"method": "elicitation/create", "params": params})
        return {"status": Status.INPUT_REQUIRED, "requests": {"confirm": request}}

    async with operated(tmp_path, show_values=True) as gateway:
        seen = str(await add(gateway.store, 1, **question("Refund 1?")))
        later = str(await add(gateway.store, 2, **question("Refund 1000?")))
        page = await gateway.browser.page(f"/tasks/{seen}")
        shown = next(each["value"] for _, each in elements(page) if each.get("name") == "asks")
        answer = {"action/0": "accept", "answer/0/go": "true", "asks": shown}
        assert "asks other questions now" in await gateway.act(later, "answer", **answer)
        assert (await gateway.shown(later))["facts"]["status"] == "input_required"
        assert "has the answer" in await gateway.act(seen, "answer", **answer)


async def test_an_answer_holds_only_for_questions_that_the_operator_could_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = {"method": "elicitation/create", "params": {"message": "Why?", "requestedSchema": {}}}
    async with operated(tmp_path) as gateway:
        asks = {"status": Status.INPUT_REQUIRED, "requests": {"why": encode(plain)}}
        ref = await add(gateway.store, 1, **asks)
        stored: list[set[str]] = []

        async def answer(ref: TaskRef, answers: dict[str, bytes], *rest: Any) -> Answered:
            stored.append(set(answers))
            return Answered.FULLY

        monkeypatch.setattr(gateway.store, "answer", answer)
        accepts = {"action": "accept", "content": {"approve": True}}
        acting = Acting(gateway.store, Clock(), TasksConfig(), LOCAL, [""])
        await acting.act(ref, Act(action="answer", answers={"why": accepts, "approve": accepts}))
        assert stored == [{"why"}]


@pytest.mark.parametrize("method", ["sampling/createMessage", "roots/list", "other/method"])
async def test_a_question_for_a_model_is_shown_by_its_name_alone(
    tmp_path: Path, method: str
) -> None:
    async with operated(tmp_path, show_values=True) as gateway:
        request = encode({"method": method, "params": {"messages": [], "maxTokens": 1}})
        asks = {"status": Status.INPUT_REQUIRED, "requests": {"think": request}}
        task = str(await add(gateway.store, 1, **asks))
        page = await gateway.browser.page(f"/tasks/{task}")
        assert "The console cannot answer this" in page
        assert "no longer asks" in await gateway.act(task, "answer")


async def test_a_requeued_task_is_queued_and_a_running_one_can_be_taken(tmp_path: Path) -> None:
    async with operated(tmp_path) as gateway:
        task = str(await add(gateway.store, 1))
        assert (await gateway.shown(task))["actions"] == ["requeue", "cancel"]
        assert "is queued" in await gateway.act(task, "requeue")
        assert "cancel it first" in await gateway.act(task, "purge")
        await gateway.act(task, "cancel")
        assert "Nothing was done" in await gateway.act(task, "requeue")


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


@pytest.mark.parametrize("text", ["%00", "%ed%a0%80", "%ff", "%27%3B--", "%25", "\u202e"])
async def test_odd_texts_find_nothing(tmp_path: Path, text: str) -> None:
    async with operated(tmp_path) as gateway:
        for path in ("/tasks", "/api/tasks"):
            query = "&".join(f"{name}=x{text}x" for name in ("text", "tool", "owner", "status"))
            assert (await gateway.browser.get(f"{path}?{query}")).status_code == 200
        assert (await gateway.browser.get(f"/tasks/a{text}.b{text}")).status_code == 404
