"""`Gateway.call(…, crash="everywhere")`: what it finds in handlers, and what it does not accuse."""

from __future__ import annotations

import importlib
import random
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from roundgate import Context, SyncContext, tool
from roundgate.errors import Diverged
from roundgate.settings.sections import TaskMode
from roundgate_testing import Gateway, crashes
from tests.roundgate_testing.orders import Confirm, order, order_as_task, outbox, send
from tests.support.rounds import names_in

GO = {"confirm": {"go": True}}
AUTH = {"issuer": "https://issuer.test", "jwks_url": "https://issuer.test/keys"}


@pytest.mark.parametrize("name", ["order", "order_as_task"])
async def test_a_handler_that_keeps_to_the_rule_survives(name: str) -> None:
    async with Gateway(order, order_as_task) as gateway:
        result = await gateway.call(
            name,
            number=3,
            answers=GO,
            crash="everywhere",
            observe=lambda: outbox,
            reset=outbox.clear,
        )
        assert result.value == "ship 3 True"


async def test_a_step_may_be_named() -> None:
    async with Gateway(order) as gateway:
        call = gateway.call
        await call("order", number=3, answers=GO, crash=("ship", "has run"), reset=outbox.clear)
        assert outbox == ["charge 3", "ship 3 True", "ship 3 True"]  # it was not remembered
        with pytest.raises(ValueError, match="its steps are: charge, request 1"):
            await call("order", number=3, answers=GO, crash=("pack", "begins"))


async def test_a_handler_that_goes_another_way_each_time_is_found() -> None:
    @tool(task="required")
    async def odd(ctx: Context) -> str:
        await ctx.step("charge", send, str(random.random()))
        await ctx.step("ship", send, "shipped")
        return "done"

    async with Gateway(odd) as gateway:
        with pytest.raises(
            Diverged, match="when charge is remembered, and its process dies"
        ) as caught:
            await gateway.call("odd", crash="everywhere")
        assert "took another path than before" in str(caught.value)


async def test_a_handler_whose_result_is_not_remembered_is_found() -> None:
    @tool
    async def lottery(ctx: Context) -> float:
        await ctx.step("draw", lambda: None)
        return random.random()

    async with Gateway(lottery) as gateway:
        with pytest.raises(Diverged, match="when draw begins, and its process dies: it returned"):
            await gateway.call("lottery", crash="everywhere")


async def test_what_is_done_outside_of_a_step_is_found(tmp_path: Path) -> None:
    @tool
    async def careless(ctx: Context) -> str:
        await ctx.step("charge", send, "charge")
        send("mail")
        return "done"

    @tool
    def writes(ctx: SyncContext) -> str:
        ctx.step("charge", send, "charge")
        (tmp_path / "log").write_text("charged")
        return "done"

    @tool
    async def careful(ctx: Context) -> str:
        await ctx.step("write", (tmp_path / "log").write_text, "charged")
        return "done"

    async with Gateway(careless, writes, careful) as gateway:
        with pytest.raises(Diverged, match="outside of a step, before its end: 'mail'"):
            await gateway.call("careless", crash="everywhere", observe=lambda: outbox)
        with pytest.raises(Diverged, match=r"it writes to '.*log' outside of a step"):
            await gateway.call("writes", crash="everywhere")
        await gateway.call("careful", crash="everywhere")


async def test_a_version_that_asks_otherwise_is_found() -> None:
    @tool(name="order")
    async def asks_otherwise(ctx: Context, number: int) -> str:
        await ctx.step("charge", send, f"charge {number}")
        answer = await ctx.elicit("confirm", "Shall we ship it?", Confirm)
        return str(await ctx.step("ship", send, f"ship {number} {answer.go}"))

    @tool(name="order")
    async def only_faster(ctx: Context, number: int) -> str:
        await ctx.step("charge", send, f"charge {number}")
        await ctx.step("audit", send, "audit")
        answer = await ctx.elicit("confirm", "Ship it?", Confirm)
        return str(await ctx.step("ship", send, f"ship {number} {answer.go}"))

    async with Gateway(order) as gateway:
        with pytest.raises(Diverged) as caught:
            await gateway.call("order", number=3, answers=GO, upgrade=asks_otherwise)
        assert "question confirm was answered, and is asked again because its text changed:" in str(
            caught.value
        )
        assert "'Ship it?', then 'Shall we ship it?'" in str(caught.value)
        assert (await gateway.call("order", number=3, answers=GO, upgrade=only_faster)).value


async def test_a_version_that_does_something_else_at_a_step_is_found() -> None:
    @tool(task="required", name="order_as_task")
    async def other_arguments(ctx: Context, number: int) -> str:
        await ctx.step("charge", send, f"charge {number} EUR")
        answer = await ctx.elicit("confirm", "Ship it?", Confirm)
        return str(await ctx.step("ship", send, f"ship {number} {answer.go}"))

    async with Gateway(order_as_task) as gateway:
        with pytest.raises(Diverged, match="the other version continues: it raised: NothingGoesOn"):
            await gateway.call("order_as_task", number=3, answers=GO, upgrade=other_arguments)


async def test_a_call_that_fails_by_itself_says_so() -> None:
    async with Gateway(order) as gateway:
        with pytest.raises(Diverged, match=r"Unanswered: .* without any crash"):
            await gateway.call("order", number=3, crash="everywhere")


async def test_a_handler_that_raises_what_nobody_expects_raises_it_everywhere() -> None:
    @tool
    async def broken(ctx: Context) -> str:
        await ctx.step("charge", send, "charge")
        raise ValueError("the error is in the log, under another reference each time")

    async with Gateway(broken) as gateway:
        result = await gateway.call("broken", crash="everywhere")
        assert result.is_error


async def test_what_is_done_once_may_say_that_its_outcome_is_not_known() -> None:
    @tool(once=True)
    async def pay(ctx: Context, number: int) -> str:
        answer = await ctx.elicit("confirm", "Pay?", Confirm)
        return str(await ctx.step("pay", send, f"pay {number} {answer.go}"))

    @tool(task="required")
    async def transfer(ctx: Context, number: int) -> str:
        return str(await ctx.step("pay", send, f"pay {number}", at_most_once=True))

    async with Gateway(pay, transfer) as gateway:
        result = await gateway.call(
            "pay", number=3, answers=GO, crash="everywhere", reset=outbox.clear
        )
        assert result.value == "pay 3 True"
        assert (await gateway.call("transfer", number=4, crash="everywhere")).value == "pay 4"


@pytest.mark.parametrize("task", ["forbidden", "required"])
async def test_values_of_the_engine_are_the_same_wherever_it_dies(task: Any) -> None:
    @tool(task=task)
    async def buy(ctx: Context) -> str:
        ordered, number = ctx.now(), ctx.uuid()
        host = ctx.random().choice("abcdefgh")
        await ctx.step("charge", send, f"{number} at {host}, {ordered:%H:%M:%S.%f}")
        await ctx.elicit("confirm", f"Order {number}?", Confirm)
        if ctx.version("audit", 2) == 2:
            await ctx.step("audit", send, await ctx.idempotency_key("audit"))
        await ctx.sleep(60)
        return f"{number} at {host}, {ordered} to {ctx.now()}, {await ctx.idempotency_key('x')}"

    @tool(task=task, name="buy")
    def blocking(ctx: SyncContext) -> str:
        ctx.step("charge", send, f"{ctx.uuid()} {ctx.now()}")
        ctx.elicit("confirm", f"Order {ctx.uuid()}?", Confirm)
        return f"{ctx.random().random()} {ctx.now()}"

    for handler in (buy, blocking):
        async with Gateway(handler) as gateway:
            first = await gateway.call("buy", answers=GO, crash="everywhere", reset=outbox.clear)
            again = await gateway.call("buy", answers=GO)
            assert first.value != again.value


async def test_a_restart_gets_the_time_anew() -> None:
    @tool(task="required")
    async def watch(ctx: Context, until: float = 0) -> str:
        until = until or (ctx.now() + timedelta(seconds=150)).timestamp()
        if ctx.now().timestamp() < until:
            await ctx.sleep(60)
            await ctx.restart(until=until)
        return "over"

    async with Gateway(watch) as gateway:
        assert (await gateway.call("watch", crash="everywhere")).value == "over"


@pytest.mark.parametrize("task", ["forbidden", "required"])
async def test_a_handler_that_reads_a_claim_survives(task: TaskMode) -> None:
    @tool(task=task)
    async def pay(ctx: Context) -> str:
        tenants = sorted(ctx.principal.claim("tenant") or ())
        return str(await ctx.step("pay", send, f"for {tenants}"))

    policy = [{"allow": {"claims": {"tenant": "acme"}}}]
    async with Gateway(pay, auth=AUTH, policy=policy, claims={"tenant": "acme"}) as gateway:
        assert (await gateway.call("pay", crash="everywhere")).value == "for ['acme']"


async def test_the_bytecode_of_a_module_is_no_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @tool
    async def late(ctx: Context) -> int:
        return int(importlib.import_module("imported_by_a_handler").NUMBER)

    (tmp_path / "imported_by_a_handler.py").write_text("NUMBER = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    async with Gateway(late) as gateway:
        assert (await gateway.call("late", crash="everywhere")).value == 7
    assert "__pycache__" in names_in(tmp_path)


async def test_a_version_lets_a_changed_handler_go_on_anywhere() -> None:
    @tool(task="optional", name="order")
    async def before(ctx: Context, number: int) -> str:
        await ctx.step("plan", send, f"plan {number}")
        await ctx.step("charge", send, f"charge {number}")
        await ctx.elicit("confirm", "Ship it?", Confirm)
        return "charged"

    @tool(task="optional", name="order")
    async def after(ctx: Context, number: int) -> str:
        await ctx.step("plan", send, f"plan {number}")
        if ctx.version("postage", 2) == 1:
            await ctx.step("charge", send, f"charge {number}")
        else:
            await ctx.step("weigh", send, f"weigh {number}")
            await ctx.step("charge", send, f"charge {number} with postage")
        await ctx.elicit("confirm", "Ship it?", Confirm)
        return "charged"

    @tool(task="optional", name="order")
    async def careless(ctx: Context, number: int) -> str:
        await ctx.step("plan", send, f"plan {number}")
        await ctx.step("weigh", send, f"weigh {number}")
        await ctx.step("charge", send, f"charge {number} with postage")
        await ctx.elicit("confirm", "Ship it?", Confirm)
        return "charged"

    async with Gateway(before) as gateway:
        call = gateway.call
        assert (await call("order", number=3, answers=GO, upgrade=after)).value == "charged"
        with pytest.raises(Diverged):
            await call("order", number=3, answers=GO, upgrade=careless)


KIND = """
from roundgate import ToolResult
from roundgate.backends import BackendConfig, Offering, Tool

made = []


class Kind:
    class Config(BackendConfig):
        pass

    def __init__(self, config, origin, shared):
        made.append(config.name)

    async def offer(self):
        definition = {"name": "ask", "description": "Asks.", "inputSchema": {"type": "object"}}
        return Offering([Tool(definition, self._call)])

    async def aclose(self):
        pass

    async def _call(self, context, arguments):
        await context.continue_as_task()
        await context.step("begin", dict)
        return ToolResult([await context.step("end", str)])
"""


async def test_back_ends_are_made_once_for_all_crashes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crashes, "PROGRESS_S", 0.0)
    caplog.set_level("INFO", "roundgate.testing")
    (tmp_path / "kind_of_a_test.py").write_text(KIND)
    config = tmp_path / "gateway.yaml"
    config.write_text("backends: [{kind: 'kind_of_a_test:Kind', name: own, prefix: ''}]\n")
    async with Gateway(config) as gateway:
        await gateway.call("ask", crash="everywhere")
    assert sys.modules["kind_of_a_test"].made == ["own"]
    assert "crash points of ask: 1 of 7 tried" in caplog.messages
