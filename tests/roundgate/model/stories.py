"""What the tasks of the model do, and how each must end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from roundgate.backends.catalog import Catalog
from roundgate.errors import OutcomeUnknown
from roundgate.replay.context import Context
from tests.roundgate.model.processes import Shared, WorkerProcess
from tests.support.replay import Name
from tests.support.tasks import catalog_of

UNKNOWN: Final = "unknown"


@dataclass
class Plan:
    """One task: what is called, and what its client does."""

    id: str
    tool: str
    arguments: Mapping[str, Any]
    begins_s: float = 0.0
    cancels_after_s: float | None = None
    sends: int = 1
    """How often the client sends the request, because it has seen no answer, or because it can."""
    accepted: list[str] = field(default_factory=list)
    """Answers to its question that the client has sent."""
    delivers_s: tuple[float, ...] = ()
    """When a service posts the payload of its event, in seconds after the beginning."""
    delivered: set[str] = field(default_factory=set)
    """What the service was told of that."""


def right(plan: Plan, value: Mapping[str, Any]) -> bool:
    """Whether this is what its handler returns when everything happened as it should."""
    pauses: Sequence[float] = plan.arguments.get("pauses", ())
    values = value["values"]
    match plan.tool:
        case "orders":
            return bool(values == [f"order {number}" for number in range(len(pauses))])
        case "branches":
            return bool(
                values == [[f"charge {number}", f"ship {number}"] for number in range(len(pauses))]
            )
        case "asks":
            return bool(
                values[0] == "before" and values[1] in plan.accepted and values[2] == "after"
            )
        case "waits":
            possible = {"paid", "late"}
            if plan.delivered & {"kept", "wakes", "again"}:
                possible = {"paid"}
            elif plan.delivered or not plan.delivers_s:
                possible = {"late"}
            return values[0] == "order" and values[1] in possible and values[2] == "ship"
        case "once":
            return all(one in (UNKNOWN, f"once {number}") for number, one in enumerate(values))
        case "restarts":
            return bool(values == [f"round {plan.arguments['left']}", "round 0"])
    return False


def serving(shared: Shared) -> Catalog:
    """The tools of every worker."""
    witness = shared.witness

    async def work(label: str, seconds: float) -> str:
        witness.begins()
        await asyncio.sleep(seconds / 2)
        witness.effect(label)
        await asyncio.sleep(seconds / 2)
        return label

    async def work_once(label: str, seconds: float) -> str:
        witness.begins()
        witness.effect(label, at_most_once=True)
        await asyncio.sleep(seconds)
        return label

    async def die() -> None:
        process = _worker(shared)
        shared.kill(process)
        await asyncio.sleep(0)

    async def block(seconds: float) -> None:
        _worker(shared).stop(seconds)
        await asyncio.sleep(0)

    async def orders(
        ctx: Context, pauses: Sequence[float], nap_s: float, think_s: float
    ) -> dict[str, Any]:
        values = []
        for number, seconds in enumerate(pauses):
            await asyncio.sleep(think_s)  # with nothing of the engine: nobody writes meanwhile
            values.append(await ctx.step("order", work, f"order {number}", seconds))
            if number == 0 and nap_s:
                await ctx.sleep(nap_s, "nap")
        return {"values": values}

    async def branches(ctx: Context, pauses: Sequence[float]) -> dict[str, Any]:
        async def one(number: int, seconds: float) -> list[str]:
            await ctx.status(f"charging {number}")
            charged = await ctx.step("charge", work, f"charge {number}", seconds)
            return [charged, await ctx.step("ship", work, f"ship {number}", seconds)]

        values = await asyncio.gather(
            *(one(number, seconds) for number, seconds in enumerate(pauses))
        )
        return {"values": values}

    async def asks(ctx: Context, pauses: Sequence[float]) -> dict[str, Any]:
        before = await ctx.step("before", work, "before", pauses[0])
        answer = await ctx.elicit("who", "Who is it?", Name)
        return {"values": [before, answer.name, await ctx.step("after", work, "after", pauses[0])]}

    async def waits(ctx: Context, pauses: Sequence[float], limit_s: float) -> dict[str, Any]:
        paid = await ctx.event("paid", timeout_s=limit_s)
        ordered = await ctx.step("order", work, "order", pauses[0])
        try:
            payload = await paid.wait()
        except TimeoutError:
            payload = "late"
        return {"values": [ordered, payload, await ctx.step("ship", work, "ship", pauses[-1])]}

    async def once(ctx: Context, pauses: Sequence[float]) -> dict[str, Any]:
        values = []
        for number, seconds in enumerate(pauses):
            try:
                values.append(
                    await ctx.step("once", work_once, f"once {number}", seconds, at_most_once=True)
                )
            except OutcomeUnknown:
                values.append(UNKNOWN)
        return {"values": values}

    async def restarts(
        ctx: Context, left: int, pauses: Sequence[float], values: Sequence[str] = ()
    ) -> dict[str, Any]:
        done = await ctx.step("round", work, f"round {left}", pauses[0])
        if left:
            await ctx.restart(left=0, pauses=pauses, values=[*values, done])
        return {"values": [*values, done]}

    async def dies(ctx: Context, pauses: Sequence[float]) -> dict[str, Any]:
        await asyncio.sleep(pauses[0])
        await ctx.step("die", die)
        return {"values": []}

    async def blocks(ctx: Context, pauses: Sequence[float]) -> dict[str, Any]:
        await ctx.step("block", block, pauses[0])
        return {"values": []}

    return catalog_of(
        orders=orders,
        branches=branches,
        asks=asks,
        once=once,
        waits=waits,
        restarts=restarts,
        dies=dies,
        blocks=blocks,
    )


def _worker(shared: Shared) -> WorkerProcess:
    process = shared.running()
    assert isinstance(process, WorkerProcess)
    return process
