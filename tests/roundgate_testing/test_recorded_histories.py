"""Histories of tasks, recorded by workers as in production, replayed with other versions of their
handlers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from roundgate import Context, SyncContext, tool
from roundgate.auth import LOCAL, Principal
from roundgate.errors import HistoriesDiverged
from roundgate.operators.finding import tasks_with_work
from roundgate.operators.histories import (
    History,
    history_from_record,
    make_outline,
    without_secrets,
)
from roundgate.replay import Opened
from roundgate.settings import TasksConfig
from roundgate.storage import ANY
from roundgate_testing import Gateway
from roundgate_testing.histories import Given, replay
from tests.support.clocks import FixedClock, SkippingClock
from tests.support.programs import World, answer, perform, program
from tests.support.rounds import accept
from tests.support.tasks import Fast, Shared

RAN: list[str] = []
EMAIL = "ada@example.com"


class Confirm(BaseModel):
    go: bool
    email: str = ""


class Plan(BaseModel):
    total: int
    hosts: list[str]


async def make_plan(order: int) -> Plan:
    RAN.append("plan")
    return Plan(total=order * 10, hosts=["a", "b"])


async def charge(order: int, total: int, email: str = "") -> str:
    RAN.append("charge")
    return f"receipt {order} for {email}"


async def charge_card(order: int, total: int, email: str = "") -> str:
    return "receipt"


def weigh(order: int) -> int:
    RAN.append("weigh")
    return 7


def handler(**changes: Any) -> Any:
    """A handler, with changes."""

    async def refund(ctx: Context, order: int) -> str:
        if "first" in changes:
            await ctx.step("weigh", weigh, order)
        plan = await ctx.step("plan", make_plan, order)
        answer = await ctx.elicit("confirm", changes.get("asks", f"Refund {plan.total}?"), Confirm)
        if "raises" in changes:
            raise changes["raises"]
        if "returns" in changes:
            return "early"
        if "weighs" in changes and ("versioned" not in changes or ctx.version("weighs", 2) == 2):
            await ctx.step("weigh", weigh, order)
        if "skips" not in changes:
            total = plan.total + changes.get("more", 0)
            await ctx.step("charge", changes.get("calls", charge), order, total, answer.email)
        number, moment = ctx.uuid(), ctx.now()
        await ctx.step("note", str, f"{number} {moment}")
        await ctx.sleep(changes.get("sleeps", 3600))
        if "last" in changes:
            await ctx.step("audit", str, order)
        return str(await ctx.step("ship", str, order))

    return refund


def served(function: Any) -> Gateway:
    RAN.clear()
    return Gateway(tool(task="required", name="refund")(function))


Change = Callable[[History], History]


def whole(history: History) -> History:
    return history


async def record(
    file: Path,
    function: Any = None,
    change: Change = whole,
    *,
    asks_only: bool = False,
    principal: Principal = LOCAL,
) -> Path:
    """A file with the history of one task that waits."""
    shared = Shared(file.with_suffix(".sqlite3"), FixedClock(), TasksConfig())
    shop = shared.workshop(refund=function or handler())
    ref = await shop.begin("refund", order=7, principal=principal)
    await shop.all_turns()
    if not asks_only:
        await shop.answer(ref, confirm=accept(go=True, email=EMAIL))
        await shop.all_turns()
    histories = []
    async for task, work in tasks_with_work(shop.store, ANY):
        assert work is not None
        histories.append(change(history_from_record(task, work, shop.clock.now_ms())))
    await shared.aclose()
    return written(file, histories)


def written(file: Path, histories: list[History]) -> Path:
    file.write_text("".join(json.dumps(one.to_json()) + "\n" for one in histories))
    return file


@pytest.fixture
async def history(tmp_path: Path) -> Path:
    return await record(tmp_path / "histories.jsonl")


async def test_the_handler_that_recorded_it_keeps_to_its_history(history: Path) -> None:
    async with served(handler()) as gateway:
        (replayed,) = await gateway.replay(history)
    assert replayed.tool == "refund"
    assert replayed.reached == ["plan", "confirm", "charge", "note", "sleep:sleep"]
    assert (replayed.unchecked, replayed.departure) == ([], None)
    assert RAN == []


@pytest.mark.parametrize(
    "changes",
    [
        {"last": True},
        {"weighs": True, "versioned": True},
        {"raises": None},
    ],
    ids=["a step after the end", "a version", "nothing"],
)
async def test_a_change_that_keeps_calls_in_flight_on_their_way_is_none(
    history: Path, changes: dict[str, Any]
) -> None:
    changes = {name: value for name, value in changes.items() if value is not None}
    async with served(handler(**changes)) as gateway:
        (replayed,) = await gateway.replay(history)
    assert replayed.departure is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"first": True}, "it reaches 'weigh' before 'plan', which is recorded"),
        ({"weighs": True}, "it reaches 'weigh' before 'charge', which is recorded"),
        ({"skips": True}, "it waits before 'charge', which is recorded"),
        ({"more": 1}, "'charge' has other arguments than the recorded ones"),
        (
            {"calls": charge_card},
            "'charge' is recorded as 'step charge', but the handler uses it as 'step charge_card'",
        ),
        (
            {"sleeps": 60},
            "'sleep:sleep' is recorded as 'sleep 3600000', but the handler uses it as 'sleep 60000'",
        ),
        (
            {"asks": "Really?"},
            "'confirm' was answered, and is asked again because its text changed",
        ),
        ({"raises": KeyError("x")}, "it ends with KeyError: 'x'"),
        ({"returns": True}, "it ends before 'charge', which is recorded"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_a_departure_is_found_where_it_is(
    history: Path, changes: dict[str, Any], reason: str
) -> None:
    async with served(handler(**changes)) as gateway:
        with pytest.raises(HistoriesDiverged) as caught:
            await gateway.replay(history)
    (finding,) = caught.value.findings
    assert finding.splitlines()[0].partition(" of refund: ")[2] == reason
    assert RAN == []


async def test_a_handler_reads_the_claims_that_its_task_has(tmp_path: Path) -> None:
    async def refund(ctx: Context, order: int) -> str:
        tenants = sorted(ctx.principal.claim("tenant") or ())
        await ctx.step("charge", str, f"{order} of {tenants}")
        await ctx.sleep(60)
        return "done"

    ann = Principal("https://issuer.test", "ann", kept_claims={"tenant": ["acme"]})
    history = await record(tmp_path / "h.jsonl", refund, asks_only=True, principal=ann)
    async with served(refund) as gateway:
        (replayed,) = await gateway.replay(history)
    assert replayed.reached == ["charge", "sleep:sleep"]


async def test_it_is_shown_beside_what_is_recorded(history: Path) -> None:
    async with served(handler(weighs=True)) as gateway:
        with pytest.raises(HistoriesDiverged) as caught:
            await gateway.replay(history)
    head, first, *lines = str(caught.value).splitlines()
    assert head == "the handlers depart from 1 of 1 recorded histories:"
    assert first.startswith("  - task ")
    assert lines == [
        "        plan         step make_plan",
        "        confirm      question, answered",
        "      - charge       step charge (recorded)",
        "      - note         step str (recorded)",
        "      - sleep:sleep  sleep 3600000 (recorded)",
        "      + weigh        (new)",
    ]


async def test_a_new_step_that_is_meant_gets_its_result_from_the_test(history: Path) -> None:
    async with served(handler(weighs=True)) as gateway:
        (replayed,) = await gateway.replay(history, values={"weigh": 7})
    assert replayed.departure is None
    assert RAN == []


async def test_a_task_that_only_asks_may_be_asked_in_other_words(tmp_path: Path) -> None:
    history = await record(tmp_path / "h.jsonl", asks_only=True)
    for changes in ({"asks": "Really?"}, {"weighs": True}, {}):
        async with served(handler(**changes)) as gateway:
            (replayed,) = await gateway.replay(history)
        assert replayed.reached == ["plan", "confirm"]
    async with served(handler(first=True)) as gateway:
        with pytest.raises(HistoriesDiverged, match="it reaches 'weigh' before 'plan'"):
            await gateway.replay(history)


async def test_a_tool_that_is_gone_is_a_departure(history: Path) -> None:
    @tool
    async def other() -> str:
        return "other"

    async with Gateway(other) as gateway:
        with pytest.raises(HistoriesDiverged, match="the gateway does not serve this tool"):
            await gateway.replay(history)


async def test_branches_and_plain_functions_are_replayed_too(tmp_path: Path) -> None:
    def with_branches(names: str) -> Any:
        async def refund(ctx: Context, order: int) -> str:
            async def part(name: str) -> None:
                await ctx.step("do", str, name)
                await ctx.sleep(60)

            await ctx.map(part, list(names))
            return "done"

        return refund

    def plain(names: str) -> Any:
        def refund(ctx: SyncContext, order: int) -> str:
            for name in names:
                ctx.step(name, str, ctx.uuid())
            ctx.map(lambda name: ctx.step("do", str, name), list(names))
            ctx.sleep(60)
            return "done"

        return refund

    for number, kind in enumerate((with_branches, plain)):
        history = await record(tmp_path / f"{number}.jsonl", kind("abc"), asks_only=True)
        for names, is_good in (("abc", True), ("abcd", False), ("ab", False)):
            async with served(kind(names)) as gateway:
                if is_good:
                    (replayed,) = await gateway.replay(history)
                    assert len(replayed.reached) >= 6
                elif kind is with_branches and names == "abcd":
                    await gateway.replay(history)  # a branch more: its step is new, and waits
                else:
                    with pytest.raises(HistoriesDiverged):
                        await gateway.replay(history)


def two_parts(waits_s: float) -> Any:
    """A handler with two branches, of which one waits outside of ctx before its step."""

    async def refund(ctx: Context, order: int) -> str:
        async def slow() -> None:
            await asyncio.sleep(waits_s)
            await asyncio.sleep(waits_s)
            await ctx.step("do", str, order)

        async def quick() -> None:
            await ctx.sleep(60)

        await asyncio.gather(slow(), quick())
        return "done"

    return refund


@pytest.mark.parametrize("blocked_s", [0.0, 2.5])
@pytest.mark.parametrize("change", [whole, make_outline])
async def test_a_branch_that_waits_longer_than_in_production_is_no_departure(
    tmp_path: Path, change: Change, blocked_s: float
) -> None:
    history = await record(tmp_path / "h.jsonl", two_parts(0.0), change, asks_only=True)
    async with served(two_parts(0.1)) as gateway:
        asyncio.get_running_loop().call_later(0.05, time.sleep, blocked_s)
        (replayed,) = await gateway.replay(history, arguments={"order": 7})
    assert {"slow@0/do", "quick@0/sleep:sleep"} <= {*replayed.reached}


async def invoice(url: str) -> str:
    return f"posts to {url}"


def paying() -> Any:
    async def refund(ctx: Context, order: int) -> str:
        event = await ctx.event("paid", timeout_s=3600)
        await ctx.step("invoice", invoice, event.url)
        payment = await event.wait()
        await ctx.step("book", str, payment["amount"])
        await ctx.sleep(60)
        return "done"

    return refund


async def test_an_event_is_replayed_and_its_token_never_leaves(tmp_path: Path) -> None:
    shared = Shared(tmp_path / "tasks.sqlite3", FixedClock(), TasksConfig())
    shop = shared.workshop(refund=paying())
    ref = await shop.begin("refund", order=7)
    await shop.all_turns()
    histories = []
    for is_delivered in (False, True):
        if is_delivered:
            await shop.deliver(ref, "event:paid", {"amount": 4711})
            await shop.all_turns()
        _, work = await shop.store.read_work(ref)
        assert work is not None
        histories.append(history_from_record(await shop.record(ref), work, shop.clock.now_ms()))
    await shared.aclose()
    (token,) = [entry.token for entry in histories[0].entries() if isinstance(entry, Opened)]
    assert len(token) > 20
    values = {"invoice": "posted", "paid": {"amount": 1}, "book": "1"}
    for number, history in enumerate(histories):
        for name, left in (("values", without(history)), ("outline", make_outline(history))):
            file = written(tmp_path / f"{number}-{name}.jsonl", [left])
            assert token not in file.read_text()
            assert ("4711" in file.read_text()) == (name == "values" and number == 1)
            async with served(paying()) as gateway:
                (replayed,) = await gateway.replay(
                    file, arguments={"order": 7}, values=values if name == "outline" else {}
                )
            places = ["event:paid", "invoice", "wait:paid", "book", "sleep:sleep"]
            assert list(replayed.reached) == places[: 5 if number else 3], (number, name)
    outline = tmp_path / "1-outline.jsonl"
    del values["paid"]
    async with served(paying()) as gateway:
        (replayed,) = await gateway.replay(outline, arguments={"order": 7}, values=values)
    assert list(replayed.unchecked) == ["book", "sleep:sleep"]


@pytest.mark.parametrize("seed", [3, 8, 26, 32, 108, 150])
async def test_no_handler_departs_from_its_own_history(tmp_path: Path, seed: int) -> None:
    body, world = program(seed), World()

    async def random_handler(ctx: Context) -> dict[str, Any]:
        return {"value": await perform(ctx, body, world)}

    clock = SkippingClock()
    shared = Shared(tmp_path / "tasks.sqlite3", clock, TasksConfig(), database=Fast)
    shop = shared.workshop(tool=random_handler)
    ref = await shop.begin("tool")
    for _ in range(60):
        shown = await shop.shown(ref)
        if shown["status"] in ("completed", "failed"):
            break
        _, work = await shop.store.read_work(ref)
        assert work is not None
        history = history_from_record(await shop.record(ref), work, clock.now_ms())
        for one in (history, make_outline(history)):
            replayed = await replay(one, shop.catalog, Given(LOCAL, {}, {}))
            assert replayed.departure is None
        requests = shown.get("inputRequests", {})
        responses = {key: answer(request) for key, request in requests.items()}
        await shop.tasks.update(LOCAL, ref.id, responses)
        if not await shop.turns():
            clock.skip(31)
            await shop.sweep.sweep()
    assert shown["status"] in ("completed", "failed")
    await shared.aclose()


# what leaves production

SECRETS = (EMAIL, "receipt", "local", "70", "b]")


async def test_an_outline_has_no_values_and_no_digests(tmp_path: Path) -> None:
    file = await record(tmp_path / "h.jsonl", change=make_outline)
    text = file.read_text()
    assert not [secret for secret in SECRETS if secret in text]
    facts = json.loads(text)
    assert facts.keys() == {
        *("history", "task", "tool", "view", "generation", "exported_ms", "capabilities"),
        *("substituted", "journal", "is_redacted"),
    }
    assert [row for row in facts["journal"] if row[0] in "sa"] == [
        ["s", "plan", None, "step make_plan"],
        ["a", "confirm", "", 1, 0, None],
        ["s", "charge", None, "step charge"],
        ["s", "note", None, "step str"],
    ]


async def test_an_outline_is_replayed_as_far_as_the_test_has_values(tmp_path: Path) -> None:
    history = await record(tmp_path / "h.jsonl", change=make_outline)
    values: dict[str, Any] = {}
    more: list[tuple[str, Any]] = [
        ("plan", {"total": 1, "hosts": []}),
        ("confirm", {"go": True}),
        ("charge", "receipt"),
        ("note", "noted"),
    ]
    places = ["plan", "confirm", "charge", "note", "sleep:sleep"]
    for number, (name, value) in enumerate(more):
        async with served(handler()) as gateway:
            (replayed,) = await gateway.replay(history, arguments={"order": 3}, values=values)
        assert replayed.reached == places[: number + 1]
        assert replayed.unchecked == places[number + 1 :]
        values[name] = value
    async with served(handler()) as gateway:
        (replayed,) = await gateway.replay(history, arguments={"order": 3}, values=values)
    assert (replayed.reached, replayed.unchecked) == (places, [])
    async with served(handler(calls=charge_card)) as gateway:
        with pytest.raises(HistoriesDiverged, match=r"\(an outline\).*'step charge_card'"):
            await gateway.replay(history, arguments={"order": 3}, values=values)
    assert RAN == []


async def test_members_that_are_named_are_replaced_wherever_their_values_are(
    tmp_path: Path,
) -> None:
    def change(history: History) -> History:
        return without(history, "email")

    file = await record(tmp_path / "h.jsonl", change=change)
    assert EMAIL not in file.read_text()
    assert "receipt 7 for ***" in file.read_text()
    async with served(handler()) as gateway:
        (replayed,) = await gateway.replay(file)
    assert replayed.reached[-1] == "sleep:sleep"
    async with served(handler(calls=charge_card)) as gateway:
        with pytest.raises(HistoriesDiverged, match=r"\(redacted\)"):
            await gateway.replay(file)


def without(history: History, *names: str) -> History:
    left = without_secrets(history, names)
    assert left is not None
    return left


async def test_members_that_look_secret_need_not_be_named() -> None:
    def of(journal: Any, **arguments: Any) -> History:
        return History(
            *("id", "tool", "", 1, 0, {}, {}, journal),
            arguments=arguments,
            principal=["", "subject", "", []],
            client_info={},
            state={},
        )

    token = "tok-123456"
    rows = [
        ["s", "login", {"session": token, "id": 12345678}, "step login"],
        ["e", "use", f"ValueError: {token} is 12345678", False, "step use"],
        ["a", "ask", "digest", 1, 0, {"action": "accept", "content": {"pin": "1234567", "n": 1}}],
        ["s", "part/api_key#2", ["abcdefgh", 5, True, None], "step key"],
        ["r", "seed:", "seed"],
    ]
    left = without(of(rows, password="hunter2", keep="hunter2 and more"), "id", "pin")
    assert left.is_redacted
    assert left.arguments == {"password": "***", "keep": "*** and more"}
    assert left.journal == [
        ["s", "login", {"session": "***", "id": 0}, "step login"],
        ["e", "use", "ValueError: *** is ***", False, "step use"],
        ["a", "ask", "", 1, 0, {"action": "accept", "content": {"pin": "***", "n": 1}}],
        ["s", "part/api_key#2", ["***", 0, True, None], "step key"],
        ["r", "seed:", "seed"],
    ]
    exact = of([["s", "plan", 1, "step plan Xy3abcdefgh"]], order=7)
    assert without(exact) == exact
    assert without(exact, "order").journal == [["s", "plan", 1, "step plan"]]
    assert without(exact, "principal").principal == ["***", "***", "***", []]
    assert without_secrets(of([["s", "map/hunter2/do", 1]], password="hunter2"), []) is None


async def test_a_redacted_value_that_does_not_fit_ends_the_replay_quietly(tmp_path: Path) -> None:
    class Choice(BaseModel):
        number: int
        day: str

    async def choose() -> Choice:
        return Choice(number=12345, day="monday")

    async def refund(ctx: Context, order: int) -> str:
        await ctx.step("choose", choose)
        await ctx.elicit("confirm", "Go?", Confirm)
        return "done"

    def change(history: History) -> History:
        rows = json.loads(json.dumps(history.journal).replace("12345", '"***"'))
        return History(**{**_members(history), "journal": rows, "is_redacted": True})

    file = await record(tmp_path / "h.jsonl", refund, change, asks_only=True)
    async with served(refund) as gateway:
        (replayed,) = await gateway.replay(file)
    assert replayed.departure is None


def _members(history: History) -> dict[str, Any]:
    return {name: getattr(history, name) for name in History.__struct_fields__}


@pytest.mark.parametrize(
    "line",
    ["{", "[]", "3", '{"history": 2}', '{"history": 1}', '{"history": 1, "task": "x", "more": 1}'],
)
async def test_a_line_that_is_no_history_is_named(tmp_path: Path, line: str) -> None:
    file = await record(tmp_path / "h.jsonl")
    file.write_text(file.read_text() + "\n" + line + "\n")
    async with served(handler()) as gateway:
        with pytest.raises(ValueError, match=r"h\.jsonl:3: "):
            await gateway.replay(file)
