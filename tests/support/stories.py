"""Whole lives of a task, told with processes that die: what the handler does, what the
client does, what must hold.

The client repeats whatever got no answer. After a crash there is nothing left of the process but
what it wrote; another one goes on. When nothing moves, the clock does: leases run out, sleeps end,
the sweep sends what was lost.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from pydantic import BaseModel, Field

from roundgate.auth import task_owner
from roundgate.auth.principal import Principal
from roundgate.errors import StepFailed, ToolError, Unavailable
from roundgate.protocol.jsonrpc import ClientCapabilities, Meta
from roundgate.replay import engine
from roundgate.replay.context import Context
from roundgate.replay.engine import Suspended
from roundgate.replay.journal import Journal
from roundgate.replay.questions import Form
from roundgate.replay.run import Call, Run
from roundgate.settings import TasksConfig
from roundgate.storage.ports import TaskQueue
from roundgate.storage.tasks import TaskRef
from roundgate.tasks import events
from roundgate.tasks.call import TaskCall
from roundgate.tasks.events import Delivered
from roundgate.tasks.stored import StoredTasks
from roundgate.tasks.turn import TurnResult
from tests.support.clocks import FixedClock
from tests.support.crashes import Crash, Life, Plan, When, bury
from tests.support.replay import Name
from tests.support.rounds import CAPABILITIES, accept
from tests.support.tasks import PUBLIC_URL, Workshop, catalog_of

Manner: TypeAlias = Literal["pool", "function"]
"""Who works: a pool deletes the message once the task is claimed, a function (Lambda) when its turn is over."""
TURNS = 60
QUIET_S = 10
"""How far the clock goes when nothing moves; further and further while still nothing does."""
LONGEST_S = 20_000
"""How far at most: a sweep looks before a task expires."""


class Floors(BaseModel):
    floors: int = Field(ge=1, le=9)


class Effects:
    """What steps did, in which life; none is done by a process that is dead."""

    def __init__(self, life: Life, clock: FixedClock) -> None:
        self._life = life
        self._clock = clock

    async def do(self, task: str | None, what: str, value: Any = None) -> Any:
        self._life.look_alive()
        self._life.plan.seen.append(("runs", f"{task} {what}"))
        await asyncio.sleep(0)
        return what if value is None else value

    async def fail(self, task: str | None, what: str) -> None:
        await self.do(task, what)
        raise ToolError("no such luck")

    async def look(self, task: str | None, since_ms: int) -> str | None:
        """A job that takes three seconds."""
        await self.do(task, "look")
        return "done" if self._clock.now_ms() >= since_ms + 3_000 else None


async def everything(ctx: Context, effects: Effects, clock: FixedClock) -> Any:
    """Steps before and after it becomes a task, questions side by side and alone, sleeps, a job, state, a shed."""
    plan = await ctx.step(
        "plan", effects.do, None, "plan", {"hosts": ["a", "b"]}
    )  # there is no task yet
    ctx.state["plan"] = plan["hosts"]
    await ctx.status("planned")
    await ctx.continue_as_task()
    await ctx.step("prepare", effects.do, ctx.task_id, "prepare")
    answers = await ctx.ask({"who": Form("Who?", Name), "where": Form("Where?", Name)})
    ctx.state["who"] = answers["who"].get().name
    await ctx.status("resting")
    await ctx.sleep(60)
    sides = await asyncio.gather(
        *(ctx.step(side, effects.do, ctx.task_id, side) for side in ("left", "right"))
    )
    how_many = await ctx.elicit("floors", f"How many floors for {ctx.state['who']}?", Floors)
    await ctx.shed()
    failed = None
    try:
        await ctx.step("fail", effects.fail, ctx.task_id, "fail")
    except (ToolError, StepFailed) as error:
        failed = str(error)
    begun_ms = await ctx.step("begin", lambda: effects.do(ctx.task_id, "begin", clock.now_ms()))
    job = await ctx.poll("job", effects.look, ctx.task_id, begun_ms, every_s=2)
    return [
        plan,
        answers["where"].get().name,
        sides,
        how_many.floors,
        failed,
        job,
        dict(sorted(ctx.state.items())),
    ]


async def questions(ctx: Context, effects: Effects, clock: FixedClock) -> Any:
    """The shortest that has a step on each side of two questions."""
    await ctx.continue_as_task()
    before = await ctx.step("before", effects.do, ctx.task_id, "before")
    answers = await ctx.ask({"who": Form("Who?", Name), "where": Form("Where?", Name)})
    return [before, *(answer.get().name for answer in answers.values())]


async def rest(ctx: Context, effects: Effects, clock: FixedClock) -> Any:
    """Nothing but steps around a sleep that the queue can delay, and one that only the sweep can end."""
    await ctx.continue_as_task()
    first = await ctx.step("first", effects.do, ctx.task_id, "first")
    await ctx.sleep(5)
    await ctx.sleep(3_600)
    return [first, await ctx.step("last", effects.do, ctx.task_id, "last")]


async def waits(ctx: Context, effects: Effects, clock: FixedClock) -> Any:
    """An event that a service may deliver as soon as it has its URL, beside a question."""
    await ctx.continue_as_task()
    paid = await ctx.event("paid")
    ordered = await ctx.step(
        "order", effects.do, ctx.task_id, "order", paid.url.partition("v1.")[0]
    )
    who, payment = await asyncio.gather(ctx.elicit("who", "Who?", Name), paid.wait())
    return [
        ordered,
        who.name,
        payment,
        await ctx.step("last", effects.do, ctx.task_id, "last"),
    ]


async def days(ctx: Context, effects: Effects, clock: FixedClock) -> Any:
    """Waits that are longer than a task is kept."""
    await ctx.continue_as_task()
    first = await ctx.step("first", effects.do, ctx.task_id, "first")
    await ctx.sleep(3 * 86_400)
    missed = await ctx.event("missed", timeout_s=2 * 86_400)
    try:
        await missed.wait()
    except TimeoutError:
        return [first, await ctx.step("last", effects.do, ctx.task_id, "last")]


STORIES: Mapping[str, tuple[Any, Any]] = {
    "everything": (
        everything,
        [
            {"hosts": ["a", "b"]},
            "here",
            ["left", "right"],
            3,
            "no such luck",
            "done",
            {"plan": ["a", "b"], "who": "me"},
        ],
    ),
    "questions": (questions, ["before", "me", "here"]),
    "rest": (rest, ["first", "last"]),
    "days": (days, ["first", "last"]),
    "waits": (waits, [f"{PUBLIC_URL}/events/", "me", {"amount": 7}, "last"]),
}
PAYMENT: Final = {"amount": 7}

ANSWERS: Mapping[str, Any] = {
    "who": accept(name="me"),
    "where": accept(name="here"),
    "floors": accept(floors=0),
}
"""The second attempt at a question gets the right one, below."""
RIGHT: Mapping[str, Any] = {"floors~2": accept(floors=3)}


@dataclass
class Client:
    """What the owner of the task knows and does; each answer it was given is checked against all before."""

    principal: Principal
    told: str | None = None
    """The id of the task."""
    acked: dict[str, Any] = field(default_factory=dict)
    asked: dict[str, str] = field(default_factory=dict)
    wants_to_cancel: bool = False
    cancelled_as: str | None = None
    """What it saw after its cancel was acknowledged."""
    delivered: bool = False
    """Whether the service was told that the event was accepted."""
    over: dict[str, Any] | None = None

    async def look(self, shop: Workshop) -> dict[str, Any]:
        assert self.told is not None
        over, acked = (
            self.over,
            set(self.acked),
        )  # as of the request: a cancel may come before its answer
        shown = await shop.shown(
            TaskRef("", self.told), self.principal
        )  # raises if what it was told is not found
        assert over is None or shown == over, "what is over does not change"
        for key, request in shown.get("inputRequests", {}).items():
            assert key not in acked, f"{key} was answered, and that was acknowledged"
            assert self.asked.setdefault(key, json.dumps(request)) == json.dumps(request), (
                f"{key} means two questions"
            )
        if self.over is None and shown["status"] in ("completed", "failed", "cancelled"):
            self.over = shown
        return shown

    async def answer(self, shop: Workshop, requests: Mapping[str, Any]) -> None:
        """The first of what is asked, and what nobody asked."""
        key = next(iter(requests))
        given = {key: RIGHT.get(key) or ANSWERS[key], "nobody": "asked"}
        await shop.tasks.update(self.principal, self.told or "", given)
        self.acked |= {key: given[key]}

    async def cancel(self, shop: Workshop) -> None:
        if self.told is None:
            return
        await shop.tasks.cancel(self.principal, self.told)
        self.cancelled_as = (await self.look(shop))["status"]


@dataclass
class Story:
    """One telling."""

    name: str
    store: StoredTasks
    queue: Callable[[FixedClock], TaskQueue]
    plan: Plan
    manner: Manner
    clock: FixedClock = field(default_factory=FixedClock)
    config: TasksConfig = field(default_factory=TasksConfig)

    def __post_init__(self) -> None:
        self.handler, self.expected = STORIES[self.name]
        self.client = Client(Principal("test", self.clock.new_id()))
        self.messages = self.queue(self.clock)

    def shop(self, life: Life) -> Workshop:
        """The objects of a new process."""
        effects = Effects(life, self.clock)

        async def tool(ctx: Context) -> Any:
            return await self.handler(ctx, effects, self.clock)

        queue = life.wraps(self.messages)
        tasks = StoredTasks(self.store.store, queue)
        store = life.wraps(_Own(tasks, task_owner(self.client.principal)))
        return Workshop(catalog_of(tool=tool), store, queue, self.clock, self.config)

    async def tell(self) -> dict[str, Any]:
        """From the first request to the end; what the client saw last."""
        for _ in range(20):
            life = self.plan.life()
            try:
                await self._live(self.shop(life), life)
                return self.client.over or {}
            except Crash:
                await bury()
            except Unavailable:
                self.clock.skip(1)  # and again
        raise AssertionError("it never ended")

    async def _live(self, shop: Workshop, life: Life) -> None:
        quiet_s = QUIET_S
        for _ in range(TURNS):
            if self.client.told is None:
                await self._call(shop, life)
            shown = await self.client.look(shop)
            if self.client.over is not None:
                return
            if shown["status"] == "input_required":
                await self.client.answer(shop, shown["inputRequests"])
            await self.deliver(shop)
            messages = await shop.messages()
            for message in messages:
                if self.manner == "pool":
                    await shop.take(message)
                else:
                    if await shop.worker.work(message.ref) is TurnResult.SUSPECT:
                        await shop.worker.work(message.ref, alone=True)
                    await shop.queue.delete([message])
            quiet_s = QUIET_S if messages else quiet_s * 4
            if not messages:
                self.clock.skip(min(quiet_s / 4, LONGEST_S))
                await shop.sweep.sweep()
        raise AssertionError(f"it goes on and on: {shown}")

    async def _call(self, shop: Workshop, life: Life) -> None:
        """`tools/call`, as `methods.tools` serves it: run until the handler wants to be a task."""
        declared = ClientCapabilities(CAPABILITIES)
        call = Call(
            principal=self.client.principal,
            meta=Meta(declared, None, None, None),
            deadline=self.clock.deadline(None),
            may_become_task=True,
        )
        run = Run(call, Journal())
        handler = shop.catalog.tools["tool"].tool.call
        outcome = await engine.run_handler(lambda: handler(Context(run), {}), run)
        life.look_alive()
        assert isinstance(outcome, Suspended)
        about = TaskCall("tool", {}, self.client.principal, CAPABILITIES)
        created = await shop.tasks.create(about, outcome.journal, message=run.message)
        self.client.told = created["taskId"]

    async def deliver(self, shop: Workshop) -> None:
        """A service that has the URL posts the payment until that is accepted."""
        task = self.client.told
        if self.client.delivered or task is None or ("runs", f"{task} order") not in self.plan.seen:
            return
        ref = TaskRef(task_owner(self.client.principal), task)
        delivered = await shop.deliver(ref, "event:paid", PAYMENT)
        accepted = (Delivered.WAKES, Delivered.KEPT, Delivered.AGAIN)
        assert delivered in accepted or self.client.cancelled_as is not None, delivered
        self.client.delivered = delivered in accepted

    async def service(self) -> None:
        """The same through another process."""
        await self.deliver(self.shop(Life(Plan())))

    async def outsider(self) -> None:
        """The client cancels through another process."""
        had_ended = ("ended", self.client.told) in self.plan.seen
        await self.client.cancel(self.shop(Life(Plan())))
        assert not had_ended or self.client.cancelled_as == "completed", (
            "what is over is not cancelled"
        )

    async def check(self) -> None:
        """What must hold, wherever who died."""
        crashes, over = len(self.plan.points), self.client.over
        assert over is not None
        _check_steps(
            self.plan.seen,
            crashes,
            all(how in ("before", "after") for how in self.plan.points.values()),
        )
        if over["status"] == "cancelled":
            assert self.client.cancelled_as == "cancelled"
        else:
            assert over["status"] == "completed", over
            assert "isError" not in over["result"], over
            assert over["result"]["structuredContent"] == self.expected
            done = {what: _of(self.client.told, what, self.plan.seen) for what in ("runs", "kept")}
            kept = {place.rpartition("/")[2] for place in done["kept"]}
            assert done["runs"] - {"look"} == kept - {"job"}, (
                "each step is written as soon as it has run"
            )
            assert self.plan.seen.count(("ended", self.client.told or "")) == 1
        if self.client.cancelled_as is not None:
            assert over["status"] == self.client.cancelled_as, (
                "a cancel that was acknowledged stays"
            )
        await self._nothing_follows()

    async def _nothing_follows(self) -> None:
        """Whatever is still under way changes nothing any more."""
        before = list(self.plan.seen)
        shop = self.shop(Life(Plan(seen=self.plan.seen)))
        for _ in range(3):
            self.clock.skip(1_000)
            await shop.sweep.sweep()
            for message in await shop.messages():
                await shop.take(message)
            await self.client.look(shop)
        done = [
            what
            for what in self.plan.seen[len(before) :]
            if what[1].startswith(f"{self.client.told} ")
        ]
        assert done == []
        mine = list(await shop.store.due(self.clock.now_ms() + 10**9, 1_000))
        assert self.client.told not in [task.ref.id for task in mine]
        for task in mine:  # created, but its id was never told: nobody will ever ask for it
            await self.store.apply(
                task.ref, events.Cancel("never told", self.clock.now_ms()), self.clock.now_ms()
            )


class _Own:
    """A store of which the sweep sees this story's tasks alone, so that many can be told on one table."""

    def __init__(self, store: StoredTasks, owner: str) -> None:
        self._store = store
        self._owner = owner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def due(self, now_ms: int, limit: int, shard: int | None = None) -> Any:
        return [
            task
            for task in await self._store.due(now_ms, limit, shard)
            if task.ref.owner == self._owner
        ]


def _of(task: str | None, what: str, seen: Sequence[tuple[str, str]]) -> set[str]:
    """The steps of a task that ran, or were written."""
    return {
        step.partition(" ")[2]
        for kind, step in seen
        if kind == what and step.startswith(f"{task} ")
    }


def _check_steps(seen: Sequence[tuple[str, str]], crashes: int, known: bool) -> None:
    kept: set[str] = set()
    ran: Counter[str] = Counter()
    for what, step in seen:
        if what == "ended":
            continue
        if what == "kept":
            assert step not in kept or not known, f"{step} was written twice"
            kept.add(step)
        elif not step.endswith(" look"):  # a poll is called again and again
            assert step not in kept, f"{step} ran again after it was written"
            ran[step] += 1
    again = {
        step: times for step, times in ran.items() if times > 1 and not step.startswith("None ")
    }
    assert sum(times - 1 for times in again.values()) <= 2 * crashes, (
        again
    )  # branches side by side die together


def points_of(calls: Sequence[str]) -> list[tuple[int, When]]:
    """Before and after each call of a store; those of the queue are the same for every store."""
    queue = ("send", "send_many", "receive", "delete", "put_back", "waiting", "depth", "forget")
    return [point for point in all_points(len(calls)) if calls[point[0]] not in queue]


def all_points(calls: int) -> list[tuple[int, When]]:
    """Before and after each call."""
    whens: tuple[When, When] = ("before", "after")
    return [(number, when) for number in range(calls) for when in whens]
