"""Time limits around any wait: what a limit did in the first run it does in every later one, however
fast or slow that is, or the handler is stopped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest

from roundgate.errors import NondeterminismError
from roundgate.replay.context import Context
from roundgate.replay.engine import Failed, Suspended
from roundgate.replay.journal import Entry, Journal, Told
from tests.support.clocks import SkippingClock
from tests.support.lives import DiesAt, Story, every_death
from tests.support.replay import Name, asked_of, error_of, play, value_of
from tests.support.rounds import accept
from tests.support.task_runs import SharedJournal

LIMIT_S = 0.1
LONG_S = 0.25
"""Longer than the limit."""
SHORT_S = 0.0


class Signals:
    """A thing to wait for of each kind; `set` ends all the waits."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.event = asyncio.Event()
        self.future: asyncio.Future[None] = loop.create_future()
        self.queue: asyncio.Queue[str] = asyncio.Queue()
        self.lock = asyncio.Lock()
        self.condition = asyncio.Condition()
        self.is_set = False

    async def set(self) -> None:
        self.is_set = True
        self.event.set()
        if not self.future.done():
            self.future.set_result(None)
        self.queue.put_nowait("item")
        if self.lock.locked():
            self.lock.release()
        async with self.condition:
            self.condition.notify_all()


Wait = Callable[[Signals, "asyncio.Task[None]"], Awaitable[Any]]


async def on_event(signals: Signals, task: asyncio.Task[None]) -> None:
    await signals.event.wait()


async def on_future(signals: Signals, task: asyncio.Task[None]) -> None:
    await asyncio.shield(signals.future)


async def on_queue(signals: Signals, task: asyncio.Task[None]) -> None:
    await signals.queue.get()


async def on_lock(signals: Signals, task: asyncio.Task[None]) -> None:
    await signals.lock.acquire()


async def on_condition(signals: Signals, task: asyncio.Task[None]) -> None:
    async with signals.condition:
        await signals.condition.wait_for(lambda: signals.is_set)


async def on_shielded_task(signals: Signals, task: asyncio.Task[None]) -> None:
    await asyncio.shield(task)


async def on_tasks(signals: Signals, task: asyncio.Task[None]) -> None:
    await asyncio.wait([task])


async def on_gathered(signals: Signals, task: asyncio.Task[None]) -> None:
    await asyncio.shield(asyncio.gather(task, signals.event.wait()))


async def on_completion(signals: Signals, task: asyncio.Task[None]) -> None:
    for one in asyncio.as_completed([asyncio.shield(task)]):
        await one


WAITS: list[Wait] = [
    on_event,
    on_future,
    on_queue,
    on_lock,
    on_condition,
    on_shielded_task,
    on_tasks,
    on_gathered,
    on_completion,
]

Limited = Callable[[Context, Callable[[], Awaitable[Any]]], Awaitable[Any]]


async def by_ctx(ctx: Context, wait: Callable[[], Awaitable[Any]]) -> None:
    async with ctx.timeout(LIMIT_S):
        await wait()


async def by_timeout(ctx: Context, wait: Callable[[], Awaitable[Any]]) -> None:
    async with asyncio.timeout(LIMIT_S):
        await wait()


async def by_timeout_at(ctx: Context, wait: Callable[[], Awaitable[Any]]) -> None:
    async with asyncio.timeout_at(asyncio.get_running_loop().time() + LIMIT_S):
        await wait()


async def by_wait_for(ctx: Context, wait: Callable[[], Any]) -> None:
    await asyncio.wait_for(wait(), LIMIT_S)


async def by_anyio(ctx: Context, wait: Callable[[], Awaitable[Any]]) -> None:
    with anyio.fail_after(LIMIT_S):
        await wait()


async def by_nested(ctx: Context, wait: Callable[[], Awaitable[Any]]) -> None:
    async with ctx.timeout(60), asyncio.timeout(60), ctx.timeout(LIMIT_S, "inner"):
        await wait()


LIMITS: list[Limited] = [by_ctx, by_timeout, by_timeout_at, by_wait_for, by_anyio, by_nested]


class Shop:
    """Handlers that ship in time, or refund after a limit; and what they did."""

    def __init__(self) -> None:
        self.effects: list[str] = []

    async def does(self, what: str) -> str:
        self.effects.append(what)
        return what

    def handler(
        self,
        limited: Limited,
        wait: Wait,
        takes_s: float,
        *,
        asks: bool = True,
        in_branch: bool = False,
    ) -> Callable[[Context], Awaitable[str]]:
        async def handler(ctx: Context) -> str:
            signals = Signals()
            await signals.lock.acquire()

            async def sibling() -> None:
                await ctx.step("work", asyncio.sleep, takes_s)
                await signals.set()

            task = asyncio.create_task(sibling())

            async def limits() -> str:
                try:
                    await limited(ctx, lambda: wait(signals, task))
                except TimeoutError:
                    return str(await ctx.step("act", self.does, "refund"))
                return str(await ctx.step("act", self.does, "ship"))

            said = await (asyncio.create_task(limits()) if in_branch else limits())
            await task
            if asks:
                await ctx.elicit("who", "Who?", Name)
            return said

        return handler


def name_of(function: Any) -> str:
    return str(function.__name__)


KINDS = [(limited, on_event) for limited in LIMITS] + [
    (limited, wait) for wait in WAITS[1:] for limited in (by_ctx, by_timeout, by_wait_for)
]
HOMES = [(None, False), (None, True), ("task", False)]
OF_ALL_KINDS = pytest.mark.parametrize(("limited", "wait"), KINDS, ids=name_of)


@OF_ALL_KINDS
@pytest.mark.parametrize(("task_id", "in_branch"), HOMES, ids=["rounds", "branch", "task"])
async def test_a_limit_that_passed_passes_in_every_later_run(
    limited: Limited, wait: Wait, task_id: str | None, in_branch: bool
) -> None:
    shop, clock = Shop(), SkippingClock()
    handler = shop.handler(limited, wait, LONG_S, asks=False, in_branch=in_branch)
    home = SharedJournal(task_id=task_id, clock=clock)
    assert value_of(await home.run(handler)) == "refund"
    clock.skip(1000)
    assert value_of(await home.run(handler)) == "refund"
    assert shop.effects == ["refund"]


STALL_S = 0.3


def block_the_loop() -> None:
    """Block the event loop from before the limit until after the end of the sibling's step, so that
    both are due in one turn."""
    asyncio.get_running_loop().call_later(LIMIT_S / 2, time.sleep, STALL_S)


@pytest.mark.parametrize("in_branch", [False, True], ids=["", "branch"])
@pytest.mark.parametrize(
    ("limited", "wait"),
    [(limited, on_event) for limited in LIMITS] + [(by_ctx, on_future), (by_ctx, on_tasks)],
    ids=name_of,
)
async def test_a_limit_precedes_a_later_result_if_the_loop_was_blocked_until_both_were_due(
    limited: Limited, wait: Wait, in_branch: bool
) -> None:
    shop = Shop()
    handler = shop.handler(limited, wait, LONG_S, in_branch=in_branch)
    block_the_loop()
    first = await play(handler)
    assert shop.effects == ["refund"]
    assert value_of(await play(handler, first, {"who": accept(name="Ada")})) == "refund"
    assert shop.effects == ["refund"]


@pytest.mark.parametrize("limited", LIMITS, ids=name_of)
async def test_so_it_does_in_a_task_and_in_what_is_written_of_it(limited: Limited) -> None:
    shop = Shop()
    handler = shop.handler(limited, on_event, LONG_S, asks=False)
    home = SharedJournal(clock=SkippingClock())
    block_the_loop()
    assert value_of(await home.run(handler)) == "refund"
    journal = Journal()
    for entry in home.written:
        journal.add(entry)
    assert [*journal.steps] == [*home.journal.steps]
    assert value_of(await home.run(handler)) == "refund"
    assert shop.effects == ["refund"]


@pytest.fixture
def ample_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the limit longer than a busy machine may delay a step that takes no time."""
    monkeypatch.setitem(globals(), "LIMIT_S", 30.0)


@pytest.mark.usefixtures("ample_limit")
@OF_ALL_KINDS
async def test_a_limit_that_did_not_pass_does_not_in_a_later_run(
    limited: Limited, wait: Wait
) -> None:
    shop, clock = Shop(), SkippingClock()
    handler = shop.handler(limited, wait, SHORT_S, asks=False)
    home = SharedJournal(clock=clock)
    assert value_of(await home.run(handler)) == "ship"
    clock.skip(1000)
    assert value_of(await home.run(handler)) == "ship"
    assert shop.effects == ["ship"]


@pytest.mark.parametrize("limited", [by_ctx, by_timeout], ids=name_of)
@pytest.mark.parametrize("wait", [on_event, on_tasks], ids=name_of)
@pytest.mark.parametrize("takes_s", [SHORT_S, LONG_S])
async def test_so_it_is_when_the_process_dies_before_or_after_any_write(
    limited: Limited, wait: Wait, takes_s: float, request: pytest.FixtureRequest
) -> None:
    if takes_s == SHORT_S:
        request.getfixturevalue("ample_limit")

    async def lived(fate: DiesAt) -> None:
        shop = Shop()
        story = Story(
            shop.handler(limited, wait, takes_s), lambda request: accept(name="Ada"), fate
        )
        value = value_of(await story.told())
        assert set(shop.effects) == {value}
        assert len(shop.effects) <= 1 + story.deaths

    await every_death(lived)


# own waits that take another time in every run


class Uneven(Shop):
    """A handler that waits for something of its own, which takes another time in each run."""

    def __init__(self, *takes_s: float) -> None:
        super().__init__()
        self.takes_s = list(takes_s)

    def alone(self, limited: Limited) -> Callable[[Context], Awaitable[str]]:
        async def handler(ctx: Context) -> str:
            takes_s = self.takes_s.pop(0)
            try:
                await limited(ctx, lambda: asyncio.sleep(takes_s))
            except TimeoutError:
                said = await ctx.step("refund", self.does, "refund")
            else:
                said = await ctx.step("ship", self.does, "ship")
            await ctx.elicit("who", "Who?", Name)
            return str(said)

        return handler


async def test_a_limit_of_ctx_passes_again_where_a_wait_is_faster_in_a_later_run() -> None:
    shop = Uneven(LONG_S, 0)
    first = await play(shop.alone(by_ctx))
    assert value_of(await play(shop.alone(by_ctx), first, {"who": accept(name="Ada")})) == "refund"
    assert shop.effects == ["refund"]


async def test_a_limit_of_ctx_that_was_left_in_time_is_over_where_a_wait_is_slower_later() -> None:
    shop = Uneven(0, LONG_S)
    first = await play(shop.alone(by_ctx))
    assert value_of(await play(shop.alone(by_ctx), first, {"who": accept(name="Ada")})) == "ship"
    assert shop.effects == ["ship"]


@pytest.mark.parametrize("limited", [by_timeout, by_timeout_at, by_wait_for, by_anyio], ids=name_of)
@pytest.mark.parametrize("times", [(LONG_S, 0), (0, LONG_S)], ids=["faster", "slower"])
async def test_an_asyncio_limit_that_behaves_differently_later_is_an_error_with_a_remedy(
    limited: Limited, times: tuple[float, float]
) -> None:
    shop = Uneven(*times)
    first = await play(shop.alone(limited))
    error = error_of(await play(shop.alone(limited), first, {"who": accept(name="Ada")}))
    assert isinstance(error, NondeterminismError)
    assert "ctx.timeout" in str(error)
    assert len(shop.effects) == 1


# limits that end a wait without cancelling it


async def by_wait(task: asyncio.Task[None], signals: Signals) -> None:
    await asyncio.wait([task], timeout=LIMIT_S)


async def by_wait_of_futures(task: asyncio.Task[None], signals: Signals) -> None:
    await asyncio.wait([signals.future], timeout=LIMIT_S)


async def by_shield(task: asyncio.Task[None], signals: Signals) -> None:
    await asyncio.wait_for(asyncio.shield(task), LIMIT_S)


async def by_wait_for_a_future(task: asyncio.Task[None], signals: Signals) -> None:
    await asyncio.wait_for(signals.future, LIMIT_S)


async def by_wait_for_a_task(task: asyncio.Task[None], signals: Signals) -> None:
    await asyncio.wait_for(task, LIMIT_S)


async def by_completion(task: asyncio.Task[None], signals: Signals) -> None:
    for one in asyncio.as_completed([task], timeout=LIMIT_S):
        await one


async def by_completion_of_coroutines(task: asyncio.Task[None], signals: Signals) -> None:
    for one in asyncio.as_completed([signals.event.wait()], timeout=LIMIT_S):
        await one


async def in_a_generator(task: asyncio.Task[None], signals: Signals) -> None:
    async def items() -> AsyncIterator[int]:
        await asyncio.wait([task], timeout=LIMIT_S)
        yield 1

    async for _ in items():
        pass


async def in_a_manager(task: asyncio.Task[None], signals: Signals) -> None:
    @asynccontextmanager
    async def waited() -> AsyncIterator[None]:
        await asyncio.wait([task], timeout=LIMIT_S)
        yield

    async with waited():
        pass


async def in_an_object(task: asyncio.Task[None], signals: Signals) -> None:
    class Waiting:
        def __await__(self) -> Any:
            return asyncio.wait([task], timeout=LIMIT_S).__await__()

    await Waiting()


REFUSED = [
    by_wait,
    by_wait_of_futures,
    by_shield,
    by_wait_for_a_future,
    by_wait_for_a_task,
    by_completion,
    by_completion_of_coroutines,
    in_a_generator,
    in_a_manager,
    in_an_object,
]


@pytest.mark.parametrize("wait", REFUSED, ids=name_of)
@pytest.mark.parametrize("task_id", [None, "task"])
async def test_a_limit_that_nobody_could_repeat_is_refused_with_the_remedy(
    wait: Any, task_id: str | None
) -> None:
    async def handler(ctx: Context) -> None:
        signals = Signals()

        async def sibling() -> None:
            await ctx.step("work", asyncio.sleep, SHORT_S)
            await signals.set()

        await wait(asyncio.create_task(sibling()), signals)

    error = error_of(await SharedJournal(task_id=task_id).run(handler))
    assert isinstance(error, RuntimeError)
    assert "ctx.timeout" in str(error)


@pytest.mark.parametrize("wait", [by_wait, by_shield, by_completion], ids=name_of)
async def test_in_a_step_any_limit_is_welcome(wait: Any) -> None:
    async def work() -> str:
        with suppress(TimeoutError):
            await wait(asyncio.create_task(asyncio.sleep(LONG_S)), Signals())
        return "worked"

    async def handler(ctx: Context) -> Any:
        return await ctx.step("work", work)

    assert value_of(await SharedJournal().run(handler)) == "worked"


# limits of ctx and the time between runs


async def test_a_limit_around_a_wait_of_its_own_wakes_the_task_whose_sibling_sleeps() -> None:
    async def handler(ctx: Context) -> str:
        slept = asyncio.Event()

        async def sleeps() -> None:
            await ctx.sleep(7200)
            slept.set()

        task = asyncio.create_task(sleeps())
        try:
            async with ctx.timeout(3600):
                await slept.wait()
        except TimeoutError:
            task.cancel()
            return "given up"
        return "slept"

    clock = SkippingClock()
    home = SharedJournal(clock=clock)
    outcome = await home.run(handler)
    assert isinstance(outcome, Suspended)
    assert outcome.wake_ms is not None
    assert 3500 < (outcome.wake_ms - clock.now_ms()) / 1000 <= 3600
    clock.skip(3601)
    assert value_of(await home.run(handler)) == "given up"
    assert [value_of(await home.run(handler)) for _ in range(2)] == ["given up", "given up"]


async def test_a_limit_that_is_over_between_two_rounds_takes_no_answer_that_came_in_time() -> None:
    async def handler(ctx: Context) -> str:
        async def asks() -> str:
            return (await ctx.elicit("who", "Who?", Name)).name

        task = asyncio.create_task(asks())
        try:
            async with ctx.timeout(60):
                said = await asyncio.shield(task)
        except TimeoutError:
            said = "nobody"
        await ctx.elicit("next", f"For {said}?", Name)
        return said

    clock = SkippingClock()
    first = await play(handler, clock=clock)
    clock.skip(100)
    second = await play(handler, first, {"who": accept(name="Ada")}, clock=clock)
    assert isinstance(second, Suspended)
    clock.skip(100)
    assert value_of(await play(handler, second, {"next": accept(name="x")}, clock=clock)) == "Ada"


async def test_a_limit_that_passes_is_noted_before_the_handler_learns_of_it() -> None:
    noted: list[list[str]] = []

    async def handler(ctx: Context) -> None:
        try:
            async with ctx.timeout(LIMIT_S):
                await asyncio.Event().wait()
        except TimeoutError:
            noted.append([entry.key for entry in home.written if isinstance(entry, Told)])

    home = SharedJournal(clock=SkippingClock())
    await home.run(handler)
    assert noted == [["told:timeout:timeout"]]


class Stops(BaseException):
    """An error that only ends its own task, as a killed process in a test."""


async def test_a_limit_that_cannot_be_recorded_ends_its_block_whatever_the_error() -> None:
    class Journal(SharedJournal):
        async def checkpoint(self, *entries: Entry) -> None:
            if any(isinstance(entry, Told) for entry in entries):
                raise Stops
            await super().checkpoint(*entries)

    async def handler(ctx: Context) -> None:
        async with ctx.timeout(5):
            await ctx.sleep(60)

    clock = SkippingClock()
    home = Journal(clock=clock)
    assert isinstance(await home.run(handler), Suspended)
    clock.skip(6)
    async with asyncio.timeout(60):
        assert "Stops" in str(error_of(await home.run(handler)))


async def waits_in_its_cleanup(ctx: Context, task: asyncio.Task[str]) -> str:
    try:
        await asyncio.Event().wait()
    finally:
        await task
    raise AssertionError("nothing sets the event")


async def goes_on_in_its_block(ctx: Context, task: asyncio.Task[str]) -> str:
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    await ctx.step("own", asyncio.sleep, 0)
    return await task


@pytest.mark.parametrize(
    ("block", "ends"), [(waits_in_its_cleanup, "passed"), (goes_on_in_its_block, "worked")]
)
async def test_a_limit_that_has_passed_holds_up_no_call_of_ctx_in_a_block_that_goes_on(
    block: Callable[[Context, asyncio.Task[str]], Awaitable[str]], ends: str
) -> None:
    async def works(ctx: Context) -> str:
        await ctx.step("first", asyncio.sleep, LONG_S)
        await ctx.step("second", asyncio.sleep, 0)
        return "worked"

    async def handler(ctx: Context) -> str:
        try:
            async with ctx.timeout(LIMIT_S):
                return await block(ctx, asyncio.create_task(works(ctx)))
        except TimeoutError:
            return "passed"

    home = SharedJournal(clock=SkippingClock())
    async with asyncio.timeout(60):
        assert [value_of(await home.run(handler)) for _ in range(3)] == [ends] * 3


async def test_nothing_begins_in_a_group_whose_limit_has_passed() -> None:
    begun: list[str] = []

    async def handler(ctx: Context) -> str:
        async def works() -> None:
            await asyncio.sleep(LONG_S)
            await ctx.step("work", begun.append, "work")

        try:
            async with ctx.timeout(LIMIT_S), asyncio.TaskGroup() as group:
                group.create_task(works())
                await ctx.sleep(60)
        except TimeoutError:
            return "passed"
        return "in time"

    clock = SkippingClock()
    home = SharedJournal(clock=clock)
    outcome = await home.run(handler)
    while isinstance(outcome, Suspended):
        clock.skip(1)
        outcome = await home.run(handler)
    assert (value_of(outcome), begun) == ("passed", [])


@pytest.mark.parametrize("in_wait_for", [False, True])
async def test_a_sibling_that_fails_while_a_limit_passes_fails_in_every_later_run(
    in_wait_for: bool,
) -> None:
    is_slow = True

    async def gives_up(ctx: Context) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LIMIT_S):
                await ctx.step("slow", asyncio.sleep, 10)

    async def waits(ctx: Context) -> None:
        async with asyncio.timeout(LIMIT_S):
            await asyncio.Event().wait()

    async def fails(ctx: Context) -> None:
        await ctx.step("work", asyncio.sleep, 0)
        if is_slow:
            time.sleep(LONG_S)  # noqa: ASYNC251  # the limit passes in the tick that ends this task
        await asyncio.sleep(0)
        raise LookupError

    async def handler(ctx: Context) -> str:
        async def limited() -> None:
            await (asyncio.wait_for(gives_up(ctx), 60) if in_wait_for else waits(ctx))

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(limited())
                group.create_task(fails(ctx))
        except* LookupError:
            pass
        await ctx.step("act", asyncio.sleep, 0)
        return "failed"

    home = SharedJournal(clock=SkippingClock())
    assert value_of(await home.run(handler)) == "failed"
    is_slow = False
    assert [value_of(await home.run(handler)) for _ in range(2)] == ["failed"] * 2


async def ask(ctx: Context) -> str:
    return (await ctx.elicit("who", "Who?", Name)).name


async def asks_in_a_timeout(ctx: Context) -> str:
    async with asyncio.timeout(3_600):
        return await ask(ctx)


async def asks_in_a_named_timeout(ctx: Context) -> str:
    async with asyncio.timeout(3_600) as limit:
        assert limit.when() is not None
        return await ask(ctx)


async def asks_in_wait_for(ctx: Context) -> str:
    return await asyncio.wait_for(ask(ctx), 3_600)


async def asks_in_a_branch(ctx: Context) -> str:
    async with asyncio.timeout(3_600):
        return await asyncio.create_task(ask(ctx))


async def asks_in_a_branch_with_its_own(ctx: Context) -> str:
    return (await asyncio.gather(asks_in_a_timeout(ctx)))[0]


ASKING = [
    asks_in_a_timeout,
    asks_in_a_named_timeout,
    asks_in_wait_for,
    asks_in_a_branch,
    asks_in_a_branch_with_its_own,
]


@pytest.mark.parametrize("task_id", ["task", None])
@pytest.mark.parametrize("handler", ASKING, ids=name_of)
async def test_a_limit_that_cannot_end_a_question_is_refused_before_it_is_asked(
    handler: Callable[[Context], Any], task_id: str | None
) -> None:
    outcome = await SharedJournal(task_id=task_id).run(handler)
    assert isinstance(outcome, Failed), outcome
    assert "use `async with ctx.timeout(seconds):`" in str(outcome.error)


@pytest.mark.parametrize("seconds", [None, 30, *[60] * 20])
async def test_a_limit_that_a_task_can_keep_is_allowed_around_a_question(
    seconds: float | None,
) -> None:
    async def handler(ctx: Context) -> str:
        async with asyncio.timeout(seconds):
            return await ask(ctx)

    assert isinstance(await SharedJournal(clock=SkippingClock()).run(handler), Suspended)


async def test_a_limit_around_a_question_that_ctx_keeps_is_allowed() -> None:
    async def handler(ctx: Context) -> str:
        async with ctx.timeout(3_600):
            return await ask(ctx)

    assert list(asked_of(await play(handler))) == ["who"]
