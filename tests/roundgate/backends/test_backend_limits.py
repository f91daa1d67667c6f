"""Limits on the calls of a back end or tool: places, tokens, turns of callers, and tasks."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from roundgate import Context, tool
from roundgate.backends.config import BackendLimits
from roundgate.backends.limits import CallLimiter, WaitingCall, WaitingCalls
from roundgate.errors import BackendBusy, ConfigError
from roundgate.methods.rounds import IDEMPOTENCY_KEY
from roundgate.storage.rates import Caller
from tests.support.asgi import Client, built, client, config_file, stoppable
from tests.support.clocks import FixedClock, SkippingClock
from tests.support.rounds import accept, retry
from tests.support.task_client import TaskClient

ANN, BEN = ("i", "ann", ""), ("i", "ben", "")


class Shop:
    """A service that counts its concurrent calls."""

    def __init__(self) -> None:
        self.now = self.most = self.calls = 0
        self.may_end = asyncio.Event()

    async def serve(self) -> int:
        self.now += 1
        self.calls += 1
        self.most = max(self.most, self.now)
        try:
            await self.may_end.wait()
        finally:
            self.now -= 1
        return self.calls


@asynccontextmanager
async def serving(
    *functions: Callable[..., Any], limits: dict[str, Any] | None = None, **sections: Any
) -> AsyncIterator[Client]:
    backend = {} if limits is None else {"limits": limits}
    backend |= sections.pop("backend", {})
    app = built(config_file(*functions, backend=backend, **sections))
    async with stoppable(app), client(app) as mcp:
        yield mcp


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("has_ctx", [False, True])
@pytest.mark.parametrize("of_tool", [False, True])
async def test_no_more_calls_run_at_once_than_the_limit_allows(
    has_ctx: bool, of_tool: bool
) -> None:
    shop = Shop()

    @tool
    async def order() -> int:
        return await shop.serve()

    @tool(name="order")
    async def order_with_ctx(ctx: Context) -> int:
        return await shop.serve()

    limits = {"concurrent": 3}
    chosen = {"override": {"order": {"limits": limits}}} if of_tool else {"limits": limits}
    async with serving(order_with_ctx if has_ctx else order, backend=chosen) as mcp:
        calls = [asyncio.create_task(mcp.call("order")) for _ in range(20)]
        await until(lambda: shop.now == 3)
        shop.may_end.set()
        results = await asyncio.gather(*calls)
    assert not [result for result in results if result.get("isError")]
    assert (shop.most, shop.calls) == (3, 20)


async def test_a_call_that_cannot_wait_says_why_and_a_cancelled_one_leaves_its_place() -> None:
    shop = Shop()

    @tool
    async def order() -> int:
        return await shop.serve()

    limits = {"concurrent": 1, "waiting": 1, "wait_s": 0.2}
    async with serving(order, limits=limits) as mcp:
        first = asyncio.create_task(mcp.call("order"))
        await until(lambda: shop.now == 1)
        two = [asyncio.create_task(mcp.text("order")) for _ in range(2)]
        texts = sorted(await asyncio.gather(*two))
        assert texts == [
            "python is busy: it takes 1 calls at once, and 1 calls wait for it already; try again later",
            "python is busy: it takes 1 calls at once, and this call has waited for 0.2 s; try again later",
        ]
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first
        shop.may_end.set()
        assert await mcp.text("order") == "2"


async def test_calls_a_minute_are_spread_over_the_minutes() -> None:
    clock = SkippingClock()
    limiter = CallLimiter("shop", BackendLimits(calls_per_minute=60, burst=2), None, None, clock)
    begun: list[float] = []
    for _ in range(4):
        async with limiter.place(ANN, inf):
            begun.append(clock.monotonic_ms())
    assert begun[1] - begun[0] < 900
    assert all(after - before > 900 for before, after in pairwise(begun[1:]))


async def test_replicas_share_calls_a_minute_if_asked() -> None:
    @tool
    def order() -> str:
        return "ordered"

    limits = {"calls_per_minute": 4, "shared": True, "wait_s": 0.01}
    file = config_file(order, backend={"limits": limits})
    texts: list[str] = []
    for _ in range(2):
        app = built(file)
        async with stoppable(app), client(app) as mcp:
            texts += [await mcp.text("order") for _ in range(3)]
    assert texts.count("ordered") == 4
    assert "it takes 4 calls a minute" in texts[-1]


async def test_callers_take_turns() -> None:
    limiter = CallLimiter("shop", BackendLimits(concurrent=1), None, None, FixedClock())
    order: list[str] = []

    async def call(caller: Caller) -> None:
        async with limiter.place(caller, inf):
            order.append(caller[1])
            await asyncio.sleep(0)

    async with limiter.place(ANN, inf):
        callers = [ANN, ANN, ANN, BEN, BEN]
        calls = [asyncio.create_task(call(caller)) for caller in callers]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert limiter.use == (1, 5)
    await asyncio.gather(*calls)
    assert order == ["ann", "ben", "ann", "ben", "ann"]
    assert limiter.use == (0, 0)


async def test_a_caller_with_many_calls_does_not_keep_another_out_of_the_queue() -> None:
    limits = BackendLimits(concurrent=1, waiting=4)
    limiter = CallLimiter("shop", limits, None, None, FixedClock())
    order: list[str] = []

    async def call(caller: Caller) -> None:
        try:
            async with limiter.place(caller, inf):
                order.append(caller[1])
        except BackendBusy:
            order.append(f"not {caller[1]}")

    async with limiter.place(ANN, inf):
        callers = [*[ANN] * 5, BEN, BEN, BEN]
        calls = [asyncio.create_task(call(caller)) for caller in callers]
        await until(lambda: len(order) == 4)
        assert sorted(order) == ["not ann", "not ann", "not ann", "not ben"]
    await asyncio.gather(*calls)
    assert order[4:] == ["ann", "ben", "ann", "ben"]
    assert limiter.use == (0, 0)


STEPS = ["join", "leave", "cancel", "displace"]


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 9))))
async def test_the_queue_always_has_a_first_call_while_calls_wait(steps: list[Any]) -> None:
    queue, calls = WaitingCalls(), list[tuple[Caller, WaitingCall]]()
    for step, number in steps:
        caller = ("i", str(number % 3), "")
        if step == "join":
            calls.append((caller, queue.join(caller)))
        elif step == "displace":
            if calls and queue.displace(caller):
                (displaced,) = (call for call in calls if call[1].done() and not call[1].result())
                calls.remove(displaced)
                queue.leave(*displaced)
        elif calls:
            caller, turn = calls.pop(number % len(calls))
            if step == "cancel":
                turn.cancel()
            queue.leave(caller, turn)
        first = [turn for _, turn in calls if turn.done()]
        assert len(first) == bool(calls)
        assert len(queue) == len(calls)


async def test_a_waiter_that_is_cancelled_at_any_moment_loses_no_place() -> None:
    for moments in range(8):
        limiter = CallLimiter("shop", BackendLimits(concurrent=1), None, None, FixedClock())

        async def call(limiter: CallLimiter = limiter) -> None:
            async with limiter.place(ANN, inf):
                await asyncio.sleep(0)

        calls = [asyncio.create_task(call()) for _ in range(3)]
        for _ in range(moments):
            await asyncio.sleep(0)
        calls[1].cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert limiter.use == (0, 0)
        async with limiter.place(ANN, inf):
            pass


async def test_a_plain_function_holds_its_place_until_it_ends() -> None:
    running, most, may_end = 0, 0, threading.Event()

    @tool
    def order() -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        may_end.wait(60)
        running -= 1
        return "ordered"

    backend = {"limits": {"concurrent": 1, "wait_s": 0.1}}
    app = built(config_file(order, backend=backend, limits={"call_timeout_s": 0.3}))
    async with stoppable(app), client(app) as mcp:
        await mcp.text("order")
        for _ in range(3):
            assert "is busy" in await mcp.text("order")
        may_end.set()
        assert await mcp.text("order") == "ordered"
    assert most == 1


async def test_a_call_that_only_becomes_a_task_takes_no_token() -> None:
    @tool(task="required")
    def order() -> str:
        return "ordered"

    async with serving(order, limits={"calls_per_minute": 2, "wait_s": 0.01}) as mcp:
        tasks = TaskClient(mcp)
        ids = [await tasks.begin("order") for _ in range(2)]
        assert [await tasks.text(each) for each in ids] == ["ordered"] * 2


async def test_a_retry_of_a_call_that_got_no_place_runs_it_once() -> None:
    shop = Shop()

    @tool
    async def order() -> int:
        return await shop.serve()

    bought = 0

    @tool(once=True)
    async def buy(ctx: Context) -> int:
        nonlocal bought
        bought += 1
        return bought

    async def buying(key: str) -> str:
        asked = {"name": "buy", "arguments": {}}
        result = await mcp.result("tools/call", asked, **{IDEMPOTENCY_KEY: key})
        return str(result["content"][0]["text"])

    async with serving(order, buy, limits={"concurrent": 1, "wait_s": 0.01}) as mcp:
        running = asyncio.create_task(mcp.call("order"))
        await until(lambda: shop.now == 1)
        for _ in range(2):
            assert "is busy" in await buying("k")
        shop.may_end.set()
        await running
        assert [await buying(key) for key in ("k", "k", "other")] == ["1", "1", "2"]


async def test_a_retry_that_waits_for_a_call_without_a_place_has_to_be_sent_again() -> None:
    shop = Shop()

    @tool(once=True)
    async def buy(ctx: Context) -> int:
        return await shop.serve()

    asked = {"name": "buy", "arguments": {}}
    async with serving(buy, limits={"concurrent": 1, "wait_s": 0.3}) as mcp:
        running = asyncio.create_task(mcp.post("tools/call", asked))
        await until(lambda: shop.now == 1)
        key: dict[str, Any] = {IDEMPOTENCY_KEY: "second"}
        calls = [mcp.post("tools/call", asked, **key) for _ in range(2)]
        second, retry = sorted(await asyncio.gather(*calls), key=lambda each: each.status_code)
        assert "is busy" in second.text
        assert retry.status_code == 503
        assert "send it again" in retry.text
        shop.may_end.set()
        assert (await running).json()["result"]["content"][0]["text"] == "1"


async def test_an_approval_and_its_answer_take_one_token() -> None:
    @tool
    async def order() -> str:
        return "ordered"

    limits = {"calls_per_minute": 1, "wait_s": 0.01}
    can: dict[str, Any] = {"elicitation": {"form": {}}}
    asked = {"name": "order", "arguments": {}}
    async with serving(order, limits=limits, backend={"approve": "always"}) as mcp:
        response = await mcp.post("tools/call", asked, clientCapabilities=can)
        result = response.json()["result"]
        (key,) = result["inputRequests"]
        again = retry(asked, result, **{key: accept(approve=True)})
        done = await mcp.result("tools/call", again, clientCapabilities=can)
    assert done["content"][0]["text"] == "ordered"


async def test_arguments_that_the_policy_refuses_take_no_token() -> None:
    @tool
    def order(article: str) -> str:
        return article

    policy = [
        {"deny": {"arguments": {"properties": {"article": {"const": "gun"}}}}},
        {"allow": {}},
    ]
    limits = {"calls_per_minute": 1, "wait_s": 0.01}
    async with serving(order, limits=limits, policy=policy) as mcp:
        await mcp.post("tools/call", {"name": "order", "arguments": {"article": "gun"}})
        assert await mcp.text("order", {"article": "tea"}) == "tea"
        assert "is busy" in await mcp.text("order", {"article": "tea"})


async def test_a_task_waits_without_a_worker_and_says_so() -> None:
    shop = Shop()

    @tool
    async def order() -> int:
        return await shop.serve()

    @tool(task="required")
    async def report(ctx: Context) -> int:
        return await shop.serve()

    chosen = {"limits": {"concurrent": 1}}
    async with serving(order, report, backend=chosen, tasks={"concurrency": 1}) as mcp:
        tasks = TaskClient(mcp)
        first = asyncio.create_task(mcp.call("order"))
        await until(lambda: shop.now == 1)
        ids = [await tasks.begin("report") for _ in range(2)]
        for each in ids:
            async with asyncio.timeout(30):
                while "statusMessage" not in (task := await tasks.get(each)):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert task["statusMessage"] == "Waiting for a place at its back end"
        shop.may_end.set()
        await first
        assert sorted([await tasks.text(each) for each in ids]) == ["2", "3"]
    assert shop.most == 1


async def test_many_waiting_tasks_do_not_delay_other_tasks() -> None:
    shop = Shop()

    @tool(task="required")
    async def report(ctx: Context) -> int:
        await ctx.continue_as_task()
        return await shop.serve()

    @tool(task="required")
    def other() -> str:
        return "other"

    override = {"report": {"limits": {"concurrent": 1}}}
    async with serving(
        report, other, backend={"override": override}, tasks={"concurrency": 4}
    ) as mcp:
        tasks = TaskClient(mcp)
        ids = await asyncio.gather(*(tasks.begin("report") for _ in range(30)))
        await until(lambda: shop.now == 1)
        async with asyncio.timeout(20):  # 30 s if each task waits with a worker
            assert await tasks.text(await tasks.begin("other")) == "other"
        shop.may_end.set()
        async with asyncio.timeout(60):
            assert len({*await asyncio.gather(*map(tasks.text, ids))}) == 30


async def test_a_call_that_has_waited_in_vain_replays_without_its_wait() -> None:
    shop = Shop()

    @tool
    async def order() -> int:
        return await shop.serve()

    @tool(task="required")
    async def report(ctx: Context) -> str:
        await ctx.continue_as_task()
        return str(await ctx.step("text", lambda: "reported"))

    async with serving(order, report, limits={"concurrent": 1}) as mcp:
        tasks = TaskClient(mcp)
        running = asyncio.create_task(mcp.call("order"))
        await until(lambda: shop.now == 1)
        task = await tasks.begin("report")
        shop.may_end.set()
        await running
        assert await tasks.text(task) == "reported"


async def test_a_reload_keeps_the_running_calls_and_takes_the_new_limits() -> None:
    clock = FixedClock()
    before = CallLimiter("shop", BackendLimits(concurrent=1), None, None, clock)
    async with before.place(ANN, inf):
        after = CallLimiter("shop", BackendLimits(concurrent=2), before, None, clock)
        async with after.place(ANN, inf):
            assert after.use == before.use == (2, 0)
            with pytest.raises(BackendBusy):
                async with before.place(ANN, 0.01):
                    pass


async def test_a_reload_that_raises_a_limit_lets_waiting_calls_run() -> None:
    clock, may_end = FixedClock(), asyncio.Event()
    before = CallLimiter("shop", BackendLimits(concurrent=1), None, None, clock)

    async def call(limiter: CallLimiter) -> None:
        async with limiter.place(ANN, inf):
            await may_end.wait()

    calls = [asyncio.create_task(call(before)) for _ in range(3)]
    await until(lambda: before.use == (1, 2))
    after = CallLimiter("shop", BackendLimits(concurrent=4), before, None, clock)
    calls.append(asyncio.create_task(call(after)))
    await until(lambda: after.use == (4, 0))
    may_end.set()
    await asyncio.gather(*calls)


def test_a_limiter_forgets_the_calls_of_an_event_loop_that_has_ended() -> None:
    limiter = CallLimiter("shop", BackendLimits(concurrent=1), None, None, FixedClock())

    async def enter() -> None:
        await limiter.place(ANN, inf).__aenter__()

    for _ in range(2):
        asyncio.run(enter())


def test_a_view_has_no_limits_of_its_own() -> None:
    @tool
    def order() -> str:
        return ""

    view = {"name": "v", "override": {"order": {"limits": {"concurrent": 1}}}}
    with pytest.raises(ConfigError, match="is not a setting of a view"):
        built(config_file(order, views=[view]))


class Name(BaseModel):
    name: str


async def test_each_round_of_a_call_that_asks_takes_a_place_and_frees_it() -> None:
    @tool
    async def greet(ctx: Context) -> str:
        return (await ctx.elicit("who", "Who?", Name)).name

    can: dict[str, Any] = {"elicitation": {"form": {}}}
    asked = {"name": "greet", "arguments": {}}
    async with serving(greet, limits={"concurrent": 1, "wait_s": 0.01}) as mcp:
        for _ in range(3):
            response = await mcp.post("tools/call", asked, clientCapabilities=can)
            again = retry(asked, response.json()["result"], who=accept(name="Ann"))
            done = await mcp.result("tools/call", again, clientCapabilities=can)
            assert done["content"][0]["text"] == "Ann"


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({}, "give at least one of concurrent and calls_per_minute"),
        ({"concurrent": 1, "shared": True}, "shared needs calls_per_minute"),
        ({"concurrent": 0}, "greater than or equal to 1"),
    ],
)
def test_limits_that_limit_nothing_are_refused(limits: dict[str, Any], message: str) -> None:
    @tool
    def order() -> str:
        return ""

    with pytest.raises(ConfigError, match=message):
        config_file(order, backend={"limits": limits})
