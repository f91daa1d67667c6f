"""`roundgate_testing`: a gateway in the process of a test, its callers, its time."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from roundgate import Context, SyncContext, ToolError, resource, tool
from roundgate.client import DECLINE, Question
from roundgate.errors import (
    Diverged,
    HttpRefused,
    NondeterminismError,
    RpcError,
    Unanswered,
)
from roundgate_testing import Gateway, VirtualClock

AUTH = {"issuer": "https://issuer.test", "jwks_url": "https://issuer.test/keys"}
DAY_S = 86_400


class Confirm(BaseModel):
    go: bool


@tool
async def refund(ctx: Context, order: int) -> str:
    amount = await ctx.step("look", lambda: order * 2)
    answer = await ctx.elicit("confirm", f"Refund {amount}?", Confirm)
    return f"refunded {amount}" if answer.go else "kept"


@tool
def plain(ctx: SyncContext, order: int) -> str:  # a handler that is a plain function
    return f"who: {ctx.principal.subject}, {order}"


@tool(task="required")
async def ship(ctx: Context, order: int) -> str:
    await ctx.step("pack", str, order)
    await ctx.sleep(DAY_S / 2)
    answer = await ctx.elicit("sign", "Signed?", Confirm)
    return f"shipped {order}: {answer.go}"


@tool(task="required")
async def stuck(ctx: Context) -> str:
    await ctx.step(f"at{time.monotonic_ns()}", lambda: None)
    await ctx.step("second", time.monotonic_ns)
    await ctx.sleep(60)
    await ctx.step("third", lambda at: None, time.monotonic_ns())
    await ctx.sleep(60)
    return "never"


@tool(task="required")
async def hibernate(ctx: Context, days: int) -> str:
    await ctx.sleep(days * DAY_S)
    return "spring"


@tool(scopes=["stock:write"])
async def restock(ctx: Context) -> str:
    return ctx.principal.subject


@resource("stock://{item}")
async def stock(item: str) -> str:
    return f"3 of {item}"


async def test_a_call_goes_through_its_rounds_each_at_another_instance() -> None:
    async with Gateway(refund, plain) as gateway:
        result = await gateway.call("refund", order=7, answers={"confirm": {"go": True}})
        assert (result.value, result.rounds) == ("refunded 14", 2)
        assert (await gateway.call("refund", {"order": 8}, answers={"go": False})).value == "kept"
        declined = await gateway.call("refund", order=7, answers={"confirm": DECLINE})
        assert declined.is_error
        with pytest.raises(Unanswered, match=r"Refund 14\?"):
            await gateway.call("refund", order=7)
        assert (await gateway.call("plain", order=1)).value == "who: local, 1"


async def test_one_instance_for_everything_if_that_is_wanted() -> None:
    async with Gateway(refund, fresh=False) as gateway:
        result = await gateway.call("refund", order=7, answers={"confirm": {"go": True}})
        assert result.value == "refunded 14"


async def test_a_task_sleeps_half_a_day_in_no_time() -> None:
    async with Gateway(ship) as gateway:
        begun_ms, begun_s = gateway.clock.now_ms(), time.monotonic()
        result = await gateway.call("ship", order=3, answers={"sign": {"go": True}})
        assert result.value == "shipped 3: True"
        assert gateway.clock.now_ms() - begun_ms >= DAY_S / 2 * 1000
        assert time.monotonic() - begun_s < 60


async def test_a_task_is_started_looked_at_answered_and_waited_for() -> None:
    async with Gateway(ship) as gateway:
        task = await gateway.start("ship", order=3)
        assert (await task.get()).status == "working"
        while (await task.get()).status != "input_required":
            await gateway.advance(1)
        await task.update({"sign": {"go": False}})
        assert (await task.wait()).value == "shipped 3: False"


async def test_time_passes_when_the_test_says_so() -> None:
    clock = VirtualClock(1_000)
    done: list[int] = []
    clock.call_later(10, lambda: done.append(clock.now_ms()))
    clock.call_later(5, lambda: done.append(clock.now_ms()))
    clock.call_later(7, lambda: done.append(-1)).cancel()
    clock.skip(8)
    assert (done, clock.now_ms(), clock.monotonic_ms()) == ([6_000], 9_000, 8_000)
    clock.move_to(500)  # over
    await clock.sleep(1)  # for no handler: nobody would notice that nothing else is left to do
    assert clock.now_ms() == 10_000
    assert clock.pass_time()
    assert done == [6_000, 11_000]
    assert not clock.pass_time()


async def test_a_task_that_waits_for_nothing_is_no_endless_test() -> None:
    async with Gateway(stuck) as gateway:
        with pytest.raises(NondeterminismError, match="took another path than before"):
            await gateway.call("stuck")


async def test_a_sleep_longer_than_a_task_is_kept_extends_the_task_up_to_a_setting() -> None:
    async with Gateway(hibernate) as gateway:
        assert (await gateway.call("hibernate", days=3)).value == "spring"
        result = await gateway.call("hibernate", days=30)
        assert result.is_error
        assert "tasks.max_ttl_s" in str(result.value)
    async with Gateway(hibernate, tasks={"max_ttl_s": 60 * DAY_S}) as gateway:
        assert (await gateway.call("hibernate", days=30)).value == "spring"


async def test_a_task_that_is_late_waits_for_a_sweep_that_another_is_at() -> None:
    async with Gateway(ship) as gateway:
        task = await gateway.start("ship", order=1)
        rows = gateway._memory.connection
        rows.execute("delete from waiting")  # its message is lost
        gateway.clock.skip(3_600)
        another = json.dumps(["another", gateway.clock.now_ms() + 60_000]).encode()
        rows.execute(
            "insert or replace into sessions (key, version, forget_ms, value)"
            " values ('sweep.0', 1, 1e15, ?)",
            (another,),
        )
        for _ in range(100):
            if (await task.get()).status == "input_required":
                break
            await gateway.advance(1)
        assert (await task.get()).status == "input_required"


async def test_callers_have_scopes_and_tasks_of_their_own() -> None:
    async with Gateway(restock, ship, auth=AUTH) as gateway:
        assert (await gateway.call("restock")).value == "user"
        ann = gateway.client("ann", scopes=["stock:write"])
        bob = gateway.client("bob")
        assert (await ann.call("restock")).value == "ann"
        assert [one.name for one in await bob.tools()] == ["ship"]
        task = await ann.start("ship", order=1)
        with pytest.raises(RpcError, match="Unknown task"):
            await bob.resume(task.id).get()


async def test_rules_see_the_claims_of_each_caller() -> None:
    policy = [{"allow": {"claims": {"role": "clerk"}}}]
    async with Gateway(ship, auth=AUTH, policy=policy, claims={"role": "clerk"}) as gateway:
        ann = gateway.client("ann", claims={"role": ["guest", "clerk"]})
        bob = gateway.client("bob")
        tools = [len(await client.tools()) for client in (gateway.client(), ann, bob)]
        assert tools == [1, 1, 0]


async def test_whatever_a_client_can_ask_is_answered(tmp_path: Path) -> None:
    async with Gateway(stock) as gateway:
        client = gateway.client(versions=["2025-06-18"])
        assert (await client.read("stock://pears")).text == "3 of pears"
        assert client.server is not None
        assert client.server.protocol_version == "2025-06-18"


async def test_an_older_client_is_asked_on_its_stream() -> None:
    asked: list[str] = []

    def answer(question: Question) -> object:
        asked.append(question.message)
        return {"go": True}

    async with Gateway(refund, fresh=False) as gateway:
        client = gateway.client(versions=["2025-11-25"])
        result = await client.call("refund", order=7, answers=answer)
        assert (result.value, asked) == ("refunded 14", ["Refund 14?"])


async def test_what_a_handler_raises_is_a_result_that_says_so() -> None:
    @tool
    async def fails() -> str:
        raise ToolError("there is no such order")

    async with Gateway(fails) as gateway:
        result = await gateway.call("fails")
        assert (result.is_error, result.text) == (True, "there is no such order")


async def test_a_gateway_is_made_of_a_file_a_module_or_a_python_file(tmp_path: Path) -> None:
    tools = tmp_path / "greetings.py"
    tools.write_text(
        "from roundgate import tool\n\n@tool\ndef hello() -> str:\n    return 'hello'\n"
    )
    file = tmp_path / "gateway.yaml"
    file.write_text(
        "server: {name: '${NAME}'}\n"
        "backends: [{kind: python, name: g, prefix: '', path: greetings.py}]\n"
    )
    async with Gateway(tools) as gateway:
        assert (await gateway.call("hello")).value == "hello"
    async with Gateway(file, environ={"NAME": "shop"}) as gateway:
        assert (await gateway.client().connect()).name == "shop"
        assert (await gateway.call("hello")).value == "hello"
    with pytest.raises(TypeError, match="must be the only source"):
        async with Gateway(file, limits={"threads": 2}):
            pass


async def test_a_call_that_is_given_up_is_cancelled_where_it_is() -> None:
    heard: list[str] = []
    begun = asyncio.Event()

    @tool
    async def waits() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            heard.append("cancelled")
            raise
        return "never"

    async with Gateway(waits) as gateway:
        call = asyncio.ensure_future(gateway.call("waits"))
        await asyncio.wait_for(begun.wait(), 60)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert heard == ["cancelled"]


async def test_a_caller_that_the_gateway_does_not_know_is_refused() -> None:
    async with Gateway(restock, auth=AUTH) as gateway:
        known = gateway.client("ann", scopes=["stock:write"])
        assert (await known.call("restock")).value == "ann"
        stranger = gateway.client(headers={"Authorization": "Bearer nobody"})
        with pytest.raises(HttpRefused, match="401"):
            await stranger.call("restock")


async def test_the_usual_caller_has_the_scopes_that_are_given_and_no_more() -> None:
    async with Gateway(restock, ship, auth=AUTH, scopes=["other"]) as gateway:
        assert [one.name for one in await gateway.client().tools()] == ["ship"]
    async with Gateway(restock, ship, auth=AUTH, scopes=["stock:write"]) as gateway:
        assert (await gateway.call("restock")).value == "user"


PAID_URLS: list[str] = []


async def make_order(url: str) -> str:
    PAID_URLS.append(url)
    return "ordered"


@tool(task="required")
async def buy(ctx: Context, timeout_s: float = 3_600) -> str:
    paid = await ctx.event("paid", timeout_s=timeout_s)
    await ctx.step("order", make_order, paid.url)
    try:
        payment = await paid.wait()
    except TimeoutError:
        return "not paid in time"
    return f"paid {payment['amount']}"


async def test_an_event_is_delivered_once_its_task_waits_for_it() -> None:
    async with Gateway(buy) as gateway:
        result = await gateway.call("buy", events={"paid": {"amount": 7}})
        assert result.value == "paid 7"
        result = await gateway.call("buy")
        assert result.value == "not paid in time"


async def test_a_call_with_an_event_survives_everywhere() -> None:
    PAID_URLS.clear()
    async with Gateway(buy) as gateway:
        result = await gateway.call("buy", events={"paid": {"amount": 7}}, crash="everywhere")
    assert result.value == "paid 7"
    # the first call and one without replay; then three deaths of a step and lost answers, of which
    # two let the step run again
    assert len(PAID_URLS) >= 7


async def test_a_handler_that_is_not_the_same_after_its_event_is_found() -> None:
    deliveries: list[Any] = []

    @tool(task="required")
    async def forgets(ctx: Context) -> str:
        paid = await ctx.event("paid")
        deliveries.append(await paid.wait())
        await ctx.step("note", lambda: None)
        return f"{len(deliveries)}"

    async with Gateway(forgets) as gateway:
        with pytest.raises(
            Diverged, match=r"event:paid is answered, .* instead of: it returned: 1"
        ):
            await gateway.call("forgets", events={"paid": 7}, crash="everywhere")


async def test_a_test_posts_a_payload_itself() -> None:
    async with Gateway(buy) as gateway:
        task = await gateway.start("buy")
        with pytest.raises(LookupError, match="0 tasks have an event 'paid'"):
            await gateway.deliver("paid", {"amount": 7})
        await gateway.work()
        assert await gateway.deliver("paid", {"amount": 7}) == 202
        assert await gateway.deliver("paid", {"amount": 7}, task=task.id) == 200
        assert await gateway.deliver("paid", {"amount": 8}) == 409
        assert (await task.wait()).value == "paid 7"


async def test_an_event_that_nobody_delivers_times_out_at_once() -> None:
    @tool(task="required")
    async def waits(ctx: Context) -> str:
        try:
            return str(await (await ctx.event("paid")).wait())
        except TimeoutError as error:
            return str(error)

    async with Gateway(waits) as gateway:
        assert (await gateway.call("waits")).value == "event 'paid' was not delivered in time"
