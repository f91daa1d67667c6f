"""The handlers that the recorded histories belong to. Do not change one; add another and record it.

Each comes with what the client said, round for round. `python -m tests.roundgate.replay.histories.record`
writes the histories that are not there yet.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field

from roundgate.errors import StepFailed, StepTimeout, ToolError
from roundgate.replay.context import Context
from roundgate.replay.questions import Form, Roots, Sample, Url
from tests.support.replay import Effects
from tests.support.rounds import accept, sampled


class Confirm(BaseModel):
    go: bool
    why: str | None = None


class Region(enum.StrEnum):
    NORTH = "north"
    SOUTH = "south"


class Place(BaseModel):
    region: Region
    floors: int = Field(ge=1, le=9)
    extras: list[Literal["lift", "garden"]] = []


@dataclass(frozen=True)
class Story:
    """A handler, and the answers to each of its rounds."""

    handler: Callable[[Context, Effects], Awaitable[Any]]
    responses: Sequence[Mapping[str, Any]]


async def deploy(ctx: Context, effects: Effects) -> Any:
    """A step, a question, a step, as the README has it."""
    plan = await ctx.step("plan", effects.do, {"env": "test", "hosts": ["a", "b"], "cost": 1.5})
    answer = await ctx.elicit("confirm", f"Apply to {', '.join(plan['hosts'])}?", Confirm)
    if not answer.go:
        return "nothing done"
    return [await ctx.step("apply", effects.do_async, plan["hosts"]), answer.why]


async def survey(ctx: Context, effects: Effects) -> Any:
    """One name used again and again; answers that do not fit on the way."""
    places = [await ctx.elicit("place", f"Place number {number}?", Place) for number in range(2)]
    return [place.model_dump(mode="json") for place in places]


async def everything_at_once(ctx: Context, effects: Effects) -> Any:
    """All kinds of questions side by side, one of them behind a step."""

    async def say() -> str:
        about = await ctx.step("about", effects.do, "the weather")
        said = await ctx.ask(
            {"say": Sample(f"Say something about {about}", 20, system_prompt="Be brief")}
        )
        return str(said["say"].get().text)

    async with asyncio.TaskGroup() as group:
        form = group.create_task(
            ctx.ask({"go": Form("Go?", Confirm), "sign_in": Url("Sign in", "https://a.example/")})
        )
        said = group.create_task(say())
        roots = group.create_task(ctx.ask({"roots": Roots()}))
    answers = form.result() | roots.result()
    return [
        said.result(),
        [answer.action for answer in answers.values()],
        answers["roots"].get()[0].uri,
    ]


async def failures_and_sheds(ctx: Context, effects: Effects) -> Any:
    """Steps that raise, a turn given back, state of its own."""

    def fail(error: Exception) -> None:
        effects.do(str(error))
        raise error

    learned: list[str] = []
    for name, error in (("told", ToolError("out of tea")), ("crash", ValueError("no such row"))):
        try:
            await ctx.step(name, fail, error)
        except (ToolError, StepFailed) as raised:
            learned.append(f"{type(raised).__name__}: {raised}")
        ctx.state[name] = {"seen": ctx.state.get(name, {}).get("seen", 0) + 1}
        await ctx.shed()
    return [learned, ctx.state]


async def low_level(ctx: Context, effects: Effects) -> Any:
    """Questions as they stand on the wire, looked up by the handler itself."""
    response = ctx.input_response("roots")
    if response is None or not response.get("roots"):
        ctx.state["asked"] = ctx.state.get("asked", 0) + 1
        await ctx.request_input({"roots": {"method": "roots/list"}})
    return [response, ctx.state["asked"]]


async def upgraded(ctx: Context, effects: Effects) -> Any:
    """A version that asks differently from its second run on."""
    ctx.state["runs"] = ctx.state.get("runs", 0) + 1
    stale = await ctx.elicit("stale", f"As version {min(ctx.state['runs'], 2)} asks?", Confirm)
    await ctx.step("between", effects.do, "between")
    more = await ctx.elicit("more", "More?", Confirm)
    return [stale.why, more.why]


async def waits(ctx: Context, effects: Effects) -> Any:
    """Sleeps of one name around a question, and a job that is done when it has been looked at twice."""

    def look() -> str | None:
        effects.do("look")
        return "done" if len(effects.seen) == 2 else None

    await ctx.sleep(0.02)
    job = await ctx.poll("job", look, every_s=0.01)
    answer = await ctx.elicit("more", f"It is {job}. More?", Confirm)
    await ctx.sleep(0.02)
    return [job, answer.why]


async def orders(ctx: Context, effects: Effects) -> Any:
    """Branches that share all their names: gather, a named branch, a map, a time limit, a step that times out."""

    async def order(number: int) -> Any:
        charged = await ctx.step("charge", effects.do_async, number)
        answer = await ctx.elicit("confirm", f"Ship order {number}?", Confirm)
        return await ctx.step("ship", effects.do_async, [charged, answer.go])

    async def slow() -> None:
        await asyncio.sleep(5)

    shipped = list(await asyncio.gather(*(order(number) for number in range(2))))
    async with ctx.branch("gift"), ctx.timeout(3600):
        shipped.append(await order(7))
    try:
        await ctx.step("slow", slow, timeout_s=0.01)
    except StepTimeout as error:
        effects.do(str(error))
    return [shipped, await ctx.map(order, [8, 9], at_most=1, name="rest")]


async def values(ctx: Context, effects: Effects) -> Any:
    """Times, ids, random numbers, keys and versions, in branches too."""

    async def order(number: int) -> Any:
        await ctx.step("charge", effects.do, [number, str(ctx.uuid()), ctx.random().randrange(100)])
        return [str(ctx.now()), ctx.version("change", 3), await ctx.idempotency_key("order")]

    ordered = [str(ctx.now("ordered")), ctx.random("draw").random()]
    async with ctx.branch("gift"):
        ordered += await order(1)
    await ctx.elicit("more", f"More than {ordered[0]}?", Confirm)
    return [ordered, await ctx.gather(order(2), order(3)), str(ctx.uuid("last"))]


GO = accept(go=True)

FLOORLESS = accept(region="north", floors=0)
NORTH, SOUTH = accept(region="north", floors=1), accept(region="south", floors=9, extras=["lift"])

STORIES: Mapping[str, Story] = {
    "deploy": Story(deploy, [{"confirm": accept(go=True, why="it is time")}]),
    "survey": Story(
        survey,
        [
            {"place": FLOORLESS},
            {"place~2": "?"},
            {"place~3": NORTH},
            {},
            {"place#2": FLOORLESS},
            {"place#2~2": SOUTH},
        ],
    ),
    "everything_at_once": Story(
        everything_at_once,
        [
            {"go": {"action": "decline"}, "say": sampled("It is raining"), "nobody": "asked this"},
            {
                "sign_in": {"action": "accept"},
                "roots": {"roots": [{"uri": "file:///home", "name": "Home"}]},
            },
        ],
    ),
    "failures_and_sheds": Story(failures_and_sheds, [{}, {}]),
    "low_level": Story(
        low_level, [{"roots": {"roots": []}}, {"roots~2": {"roots": [{"uri": "file:///"}]}}]
    ),
    "waits": Story(waits, [{}, {"more": accept(go=True, why="why not")}]),
    "orders": Story(
        orders,
        [
            {"confirm": GO},
            {"confirm#2": GO},
            {"confirm#3": GO},
            {"confirm#4": GO},
            {"confirm#5": GO},
        ],
    ),
    "values": Story(values, [{"more": GO}]),
    "upgraded": Story(
        upgraded,
        [
            {"stale": accept(go=True, why="a")},
            {"stale~2": accept(go=True, why="b")},
            {"more": accept(go=True)},
        ],
    ),
}
