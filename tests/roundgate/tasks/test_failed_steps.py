"""A step that fails for good: what its operator sees, and how the work is taken up again there."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from roundgate import Context, StepFailed, ToolError, tool
from roundgate.auth import task_owner
from roundgate.auth.principal import LOCAL
from roundgate.cli import main
from roundgate.clock import Clock, iso
from roundgate.errors import InvalidParams, NotRetryable
from roundgate.operators.continuing import retry, steps_done
from roundgate.operators.control import ACTIONS
from roundgate.operators.facts import activity, task_facts
from roundgate.replay import steps
from roundgate.storage import HIDDEN, Ending, TaskRef
from roundgate.storage.sqlite import SqliteDatabase, SqliteTasks
from roundgate.tasks import events
from roundgate.tasks.stored import Claimed, StoredTasks
from roundgate.tasks.turn import TurnResult
from tests.support.clocks import FixedClock
from tests.support.log_lines import LogLines, log_lines
from tests.support.replay import Name
from tests.support.rounds import accept
from tests.support.task_client import TaskClient, tasked
from tests.support.task_client import ref_of as ref
from tests.support.tasks import Shared

SECRET = "4242 4242 4242 4242"
CALLS: Counter[str] = Counter()
BROKEN: set[str] = set()
"""The services that are away."""


def service(name: str, *given: Any) -> str:
    """An effect that is counted, of a service that may be away."""
    CALLS[name] += 1
    if name in BROKEN:
        raise ConnectionError(f"{name} is away for {SECRET}")
    return f"{name} {CALLS[name]}"


@tool(task="required")
async def order(ctx: Context, card: str) -> list[str]:
    """Three steps, a question, and a payment that is tried three times."""
    await ctx.continue_as_task()
    done = [await ctx.step("reserve", service, "reserve")]
    who = await ctx.elicit("who", "For whom?", Name)
    key = await ctx.idempotency_key("charge")
    done.append(await ctx.step("charge", service, "charge", card, key, retries=2, backoff=0))
    done.append(await ctx.step("ship", service, "ship", who.name, ctx.task_id))
    return done


@tool(task="required")
async def compensate(ctx: Context) -> str:
    """Refunds what was done when the payment fails."""
    await ctx.continue_as_task()
    await ctx.step("reserve", service, "reserve")
    try:
        return str(await ctx.step("charge", service, "charge"))
    except StepFailed as error:
        await ctx.step("release", service, "release")
        raise ToolError("not paid; the reservation was released") from error


@tool(task="required")
async def explain(ctx: Context) -> str:
    """Says in its own words what failed."""
    await ctx.continue_as_task()
    try:
        return str(await ctx.step("charge", service, "charge"))
    except StepFailed:
        raise ToolError("the payment does not work; ask the desk") from None


@tool(task="required")
async def handle(ctx: Context) -> str:
    """Goes on without the payment."""
    await ctx.continue_as_task()
    try:
        return str(await ctx.step("charge", service, "charge"))
    except StepFailed:
        return "paid later"


@tool(task="required")
async def at_most_once(ctx: Context) -> str:
    """A payment that must not be made twice."""
    await ctx.continue_as_task()
    return str(await ctx.step("charge", service, "charge", at_most_once=True))


@tool(task="required")
async def several(ctx: Context) -> list[str]:
    """Three steps at once, of which all that fail are told."""
    await ctx.continue_as_task()
    names = ("charge", "book", "print")
    async with asyncio.TaskGroup() as group:
        steps = [group.create_task(ctx.step(name, service, name)) for name in names]
    return [step.result() for step in steps]


def refuse() -> str:
    """A service that refuses."""
    raise ToolError(f"the card {SECRET} was declined; use another one")


@tool(task="required")
async def decline(ctx: Context) -> str:
    """A payment that is refused."""
    await ctx.continue_as_task()
    return str(await ctx.step("charge", refuse))


TOOLS = (order, compensate, explain, handle, at_most_once, several, decline)


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    CALLS.clear()
    BROKEN.clear()
    monkeypatch.setenv("GATEWAY_STORE", f"sqlite:///{tmp_path / 'gateway.sqlite3'}")
    yield
    BROKEN.clear()


@pytest.fixture
def lines() -> Iterator[LogLines]:
    with log_lines() as lines:
        yield lines


class Operator:
    """Runs `roundgate tasks`."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    async def __call__(self, *arguments: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        status = await asyncio.to_thread(main, ["tasks", *arguments])
        return status, *self._capsys.readouterr()

    async def retry(self, task_id: str) -> str:
        """The reference of the task that continues one."""
        status, out, err = await self("retry", ref(task_id))
        assert (status, err) == (0, "")
        return out.partition("continues as ")[2].partition(":")[0]

    async def found(self, *arguments: str) -> list[str]:
        """The ids that a list finds."""
        _, out, _ = await self("list", "--json", *arguments)
        return [json.loads(line)["task"].partition(".")[2] for line in out.splitlines()]


@pytest.fixture
def operator(capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(capsys)


async def failed_order(ann: TaskClient) -> str:
    """The id of an order whose payment has failed for good."""
    BROKEN.add("charge")
    task_id = await ann.begin("order", card=SECRET)
    await ann.asked(task_id)
    await ann.answer(task_id, {"who": accept(name="Ada")})
    task = await ann.over(task_id)
    assert (task["status"], task["result"]["isError"]) == ("completed", True)
    BROKEN.clear()
    return task_id


async def test_a_task_that_a_failed_step_ended_is_found_by_its_operator(
    tmp_path: Path, operator: Operator
) -> None:
    async with tasked(tmp_path, *TOOLS) as ann:
        task_id = await failed_order(ann)
        fine = await ann.begin("several")
        await ann.text(fine)
    assert await operator.found("--status", "failed") == [task_id]
    assert await operator.found("--outcome", "step_failed") == [task_id]
    assert await operator.found("--status", "completed") == [fine]
    assert await operator.found("--outcome", "ok") == [fine]
    _, table, _ = await operator("list", "--status", "failed")
    assert table.splitlines()[1].split()[1:4] == ["order", "failed", "step_failed"]
    assert table.splitlines()[1].endswith("failed at charge")


async def test_a_watch_ends_with_the_failed_step(tmp_path: Path, operator: Operator) -> None:
    async with tasked(tmp_path, *TOOLS) as ann:
        task_id = await failed_order(ann)
    status, out, _ = await operator("watch", ref(task_id))
    assert (status, "  failed (failed at charge): " in out) == (1, True)


async def test_the_log_tells_the_story_of_a_step_that_failed_for_good(
    tmp_path: Path, lines: LogLines
) -> None:
    async with tasked(tmp_path, *TOOLS) as ann:
        task_id = await failed_order(ann)
    about = {"task": ref(task_id), "tool": "order", "step": "charge"}
    again = lines.of("a step failed, trying again")
    assert [line["attempt"] for line in again] == [1, 2]
    assert all(line["again"].startswith("20") for line in again)
    (given_up,) = lines.of("a step failed")
    (ended,) = lines.of("a failed step has ended a task")
    for line in (*again, given_up, ended):
        assert {**line, **about} == line
        assert line["level"] == "warning"
    assert (given_up["attempt"], given_up["reason"], ended["attempt"]) == (3, "ConnectionError", 3)
    turns = [line for line in lines.of("task") if line["task"] == ref(task_id)]
    assert [turn["outcome"] for turn in turns] == ["asked", "step failed"]
    assert len({line["call"] for line in (*again, given_up, ended, *turns)}) == 1


async def test_a_task_tells_its_operator_why_and_when_its_step_failed(
    tmp_path: Path, operator: Operator, lines: LogLines
) -> None:
    async with tasked(tmp_path, *TOOLS) as ann:
        task_id = await failed_order(ann)
    _, out, _ = await operator("show", ref(task_id))
    (line,) = lines.of("a step failed")
    reference = line["reference"]
    (told,) = [one for one in out.splitlines() if one.startswith("last failure:")]
    assert re.search(r"charge at 20\S+Z: ConnectionError \(reference", told)
    assert f"grep -e {reference} LOG" in told
    assert SECRET not in out, "gateway.yaml has no console.show_values"


async def test_the_caller_gets_the_reference_of_the_step_that_failed(
    tmp_path: Path, lines: LogLines
) -> None:
    async with tasked(tmp_path, *TOOLS) as ann:
        task = await ann.get(await failed_order(ann))
    (step,) = lines.of("a step failed")
    (tool,) = lines.of("tool order failed")
    assert tool["reference"] == step["reference"]
    assert task["result"]["content"][0]["text"].endswith(f"under reference {step['reference']}")


async def test_a_task_between_two_attempts_tells_its_last_failure(shared: Shared) -> None:
    async def stubborn(ctx: Context) -> None:
        await ctx.step("charge", broken, retries=3, backoff=3_600)

    def broken() -> None:
        raise ValueError("no such card")

    shop = shared.workshop(stubborn=stubborn)
    ref = await shop.begin("stubborn")
    await shop.all_turns()
    record, work = await shop.store.read_work(ref)
    assert record is not None
    assert work is not None
    facts = task_facts(record, shop.clock.now_ms(), steps_done(record, work), shows_values=True)
    failure = facts["lastFailure"]
    assert (failure["type"], failure["text"]) == ("ValueError", "no such card")
    assert failure["at"] == iso(shop.clock.now_ms())


async def test_a_task_is_taken_up_again_at_the_failed_step(
    tmp_path: Path, operator: Operator
) -> None:
    async with tasked(tmp_path, *TOOLS) as ann:
        task_id = await failed_order(ann)
        before = await ann.get(task_id)
        going_on = await operator.retry(task_id)
        new_id = going_on.partition(".")[2]
        task = await ann.over(new_id)
        assert task["result"]["structuredContent"] == ["reserve 1", "charge 4", "ship 1"]
        assert await ann.get(task_id) == before
        again = await operator("retry", ref(task_id))
    assert CALLS == {"reserve": 1, "charge": 4, "ship": 1}
    assert again == (1, "", f"{ref(task_id)} was already retried as {going_on}\n")
    _, shown, _ = await operator("show", ref(task_id), "--json")
    assert json.loads(shown)["retriedAs"] == going_on
    _, table, _ = await operator("list", "--status", "failed")
    assert table.splitlines()[1].endswith(f"retried as {going_on}")


async def test_a_task_that_was_given_up_after_deaths_continues_after_its_finished_steps(
    shared: Shared, clock: FixedClock
) -> None:
    async def heavy(ctx: Context) -> list[str]:
        return [
            await ctx.step("reserve", service, "reserve"),
            await ctx.step("charge", service, "charge"),
        ]

    shop = shared.workshop(heavy=heavy)
    task = await shop.begin("heavy")
    lapse_s = shop.config.lease_s + 60
    dying = await shop.worker.claim(task)
    assert isinstance(dying, Claimed)
    done = events.Added([b'["s","reserve","reserved before"]'])
    await shop.store.write(dying.lease, events.Checkpoint(added=done), clock.now_ms())
    for _ in range(shop.config.max_deaths):
        clock.skip(lapse_s)
        assert await shop.worker.work(task) is TurnResult.SUSPECT
        assert isinstance(await shop.worker.claim(task, alone=True), Claimed)
    clock.skip(lapse_s)
    assert await shop.worker.work(task, alone=True) is TurnResult.GIVEN_UP

    record = await shop.record(task)
    assert activity(record, clock.now_ms()) == "given up"
    assert ACTIONS["retry"].applies(record, clock.now_ms())
    hidden = replace(record, ref=TaskRef(task.owner, HIDDEN + task.id))
    for other in (hidden, replace(record, cleans_up=True), replace(record, deaths=0)):
        assert not other.may_be_retried
    successor = await retry(shop.store, task, clock.now_ms())
    assert await shop.worker.work(successor) is TurnResult.FINISHED
    assert await shop.value(successor) == ["reserved before", "charge 1"]
    assert CALLS == {"charge": 1}
    assert (await shop.record(task)).retried_as == successor.id
    with pytest.raises(NotRetryable, match="was already retried as"):
        await retry(shop.store, task, clock.now_ms())


async def test_a_task_that_was_given_up_at_once_continues(
    shared: Shared, clock: FixedClock
) -> None:
    shared.config = shared.config.model_copy(update={"unserved_s": 0})

    async def quick(ctx: Context) -> str:
        return "served"

    task = await shared.workshop(quick=quick).begin("quick")
    assert await shared.workshop(other=quick).turns() == [TurnResult.GIVEN_UP]
    shop = shared.workshop(quick=quick)
    successor = await retry(shop.store, task, clock.now_ms())
    assert await shop.worker.work(successor) is TurnResult.FINISHED


async def test_an_error_of_a_handler_after_a_decline_is_not_taken_for_giving_up(
    shared: Shared, clock: FixedClock
) -> None:
    async def refuse(ctx: Context) -> str:
        raise InvalidParams("no such order")

    task = await shared.workshop(refuse=refuse).begin("refuse")
    assert await shared.workshop(other=refuse).turns() == [TurnResult.DECLINED]
    clock.skip(60)
    shop = shared.workshop(refuse=refuse)
    assert await shop.turns() == [TurnResult.FINISHED]
    record = await shop.record(task)
    assert (record.ending, record.may_be_retried) == (Ending.ERROR, False)
    with pytest.raises(NotRetryable, match="nor was given up"):
        await retry(shop.store, task, clock.now_ms())


async def test_all_that_a_failed_step_ended_are_taken_up_again_at_once(
    tmp_path: Path, operator: Operator
) -> None:
    async with tasked(tmp_path, *TOOLS) as ann:
        first, second = await failed_order(ann), await failed_order(ann)
        await ann.text(await ann.begin("several"))
        chosen = ("--tool", "order", "--outcome", "step_failed")
        status, out, _ = await operator("retry", *chosen, "--yes")
        assert (status, out.count("continues as")) == (0, 2)
        for line in out.splitlines():
            new_id = line.partition("continues as ")[2].partition(":")[0].partition(".")[2]
            await ann.text(new_id)
        assert await operator("retry", *chosen, "--dry-run") == (0, "", "retry: 0 tasks\n")
    assert {line.partition(" ")[0] for line in out.splitlines()} == {ref(first), ref(second)}


async def test_one_that_fails_again_can_be_taken_up_again_again(
    tmp_path: Path, operator: Operator
) -> None:
    async with tasked(tmp_path, *TOOLS) as ann:
        task_id = await failed_order(ann)
        BROKEN.add("charge")
        second = await operator.retry(task_id)
        assert (await ann.over(second.partition(".")[2]))["result"]["isError"] is True
        BROKEN.clear()
        third = await operator.retry(second.partition(".")[2])
        await ann.text(third.partition(".")[2])
    assert (CALLS["reserve"], CALLS["ship"]) == (1, 1)


async def test_what_was_compensated_is_not_taken_up_again(
    tmp_path: Path, operator: Operator
) -> None:
    async with tasked(tmp_path, *TOOLS) as ann:
        BROKEN.add("charge")
        task_id = await ann.begin("compensate")
        await ann.over(task_id)
        BROKEN.clear()
        assert await operator.found("--outcome", "step_failed") == [task_id]
        status, out, err = await operator("retry", ref(task_id))
    assert (status, out) == (1, "")
    assert "release happened after charge had failed, perhaps because of the failure" in err
    assert CALLS == {"reserve": 1, "charge": 1, "release": 1}


async def test_an_error_in_the_words_of_the_tool_is_that_of_its_step(
    tmp_path: Path, operator: Operator
) -> None:
    async with tasked(tmp_path, *TOOLS) as ann:
        BROKEN.add("charge")
        task_id = await ann.begin("explain")
        await ann.over(task_id)
        BROKEN.clear()
        new_id = (await operator.retry(task_id)).partition(".")[2]
        assert await ann.text(new_id) == "charge 2"


async def test_a_tool_error_of_a_step_is_an_answer_and_no_failed_step(
    tmp_path: Path, operator: Operator, lines: LogLines
) -> None:
    async with tasked(tmp_path, *TOOLS) as ann:
        task_id = await ann.begin("decline")
        task = await ann.over(task_id)
        assert "declined" in task["result"]["content"][0]["text"]
        assert await operator.found("--outcome", "tool_error") == [task_id]
        assert await operator.found("--status", "failed") == []
    (line,) = lines.of("a step ended with a tool error")
    assert (line["level"], line["step"], line["attempt"]) == ("info", "charge", 1)
    assert not [line for line in lines.all() if line["level"] == "warning"]
    assert SECRET not in "".join(lines.text)


async def test_a_failure_that_its_handler_deals_with_is_none(
    tmp_path: Path, operator: Operator
) -> None:
    async with tasked(tmp_path, *TOOLS) as ann:
        BROKEN.add("charge")
        task_id = await ann.begin("handle")
        assert await ann.text(task_id) == "paid later"
        assert await operator.found("--outcome", "ok") == [task_id]
        status, _, err = await operator("retry", ref(task_id))
    assert (status, "is not parked, and neither failed at a step" in err) == (1, True)


async def test_a_step_that_may_run_only_once_is_not_run_again(
    tmp_path: Path, operator: Operator
) -> None:
    async with tasked(tmp_path, *TOOLS) as ann:
        BROKEN.add("charge")
        task_id = await ann.begin("at_most_once")
        await ann.over(task_id)
        BROKEN.clear()
        status, _, err = await operator("retry", ref(task_id))
    assert (status, "charge may run only once (at_most_once)" in err) == (1, True)
    assert CALLS == {"charge": 1}


@pytest.mark.parametrize("broken", [{"charge"}, {"charge", "book"}, {"charge", "book", "print"}])
async def test_of_steps_beside_the_failed_one_those_that_ended_well_are_remembered(
    tmp_path: Path, operator: Operator, broken: set[str]
) -> None:
    async with tasked(tmp_path, *TOOLS) as ann:
        BROKEN.update(broken)
        task_id = await ann.begin("several")
        await ann.over(task_id)
        BROKEN.clear()
        new_id = (await operator.retry(task_id)).partition(".")[2]
        assert len((await ann.over(new_id))["result"]["structuredContent"]) == 3


async def test_show_says_which_steps_are_done_and_what_the_counters_count(
    tmp_path: Path, operator: Operator
) -> None:
    async with tasked(tmp_path, *TOOLS) as ann:
        task_id = await failed_order(ann)
    _, text, _ = await operator("show", ref(task_id))
    steps = text.partition("steps:")[2].split("\n")
    assert [step.strip() for step in steps if step] == [
        "reserve: done",
        "who: answered",
        "charge: failed after 3 attempts",
    ]
    assert "turns:        2 (workers have begun)" in text
    assert "faults:       0 (turns in a row that a fault of the gateway ended)" in text
    _, out, _ = await operator("show", ref(task_id), "--json")
    assert json.loads(out)["steps"][-1] == {"name": "charge", "state": "failed", "attempts": 3}
    assert "Ada" not in text + out
    assert SECRET not in text + out


async def test_a_step_that_takes_long_is_logged_while_it_runs(
    tmp_path: Path, lines: LogLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "SLOW_S", 0.01)

    def until_it_is_logged() -> str:
        while not lines.of("a step takes long"):
            time.sleep(0.01)
        return "over"

    @tool(task="required")
    async def slow(ctx: Context) -> str:
        await ctx.continue_as_task()
        return str(await ctx.step("wait", until_it_is_logged))

    async with tasked(tmp_path, slow) as ann:
        task_id = await ann.begin("slow")
        assert await ann.text(task_id) == "over"
    (line,) = lines.of("a step takes long")
    about = {"task": ref(task_id), "tool": "slow", "step": "wait", "attempt": 1, "seconds": 0.01}
    assert {**line, **about} == line
    assert line["call"] == lines.of("request")[0]["call"]


async def test_who_takes_a_task_over_says_whose_it_is(tmp_path: Path, lines: LogLines) -> None:
    database = SqliteDatabase(tmp_path / "gateway.sqlite3")
    async with tasked(tmp_path, *TOOLS, works=False) as idle:
        task_id = await idle.begin("several")
    store, place = StoredTasks(SqliteTasks(database)), TaskRef(task_owner(LOCAL), task_id)
    now_ms = Clock().now_ms()
    # a worker that died with it an hour ago
    claimed = await store.claim(place, events.Claim(now_ms - 3_600_000, now_ms, now_ms), now_ms)
    assert isinstance(claimed, Claimed)
    async with tasked(tmp_path, *TOOLS, tasks={"requeue_after_s": 1}) as ann:
        await ann.text(task_id)
    await store.aclose()
    (line,) = lines.of("a task is taken over")
    about = {"task": ref(task_id), "tool": "several", "subject": "local", "deaths": 0}
    assert {**line, **about} == line
