"""Random handlers made of branches, all of which use the same names; the same from a seed in
every process and Python, or drawn by Hypothesis.

A program is a list of operations, each `[what, …]`, with programs inside those that have
branches. `perform` runs one with any context. What an operation does depends on where it
stands and on all that was learned before it, so whatever is served to the wrong asker shows in
the value or in the effects.
"""

from __future__ import annotations

import asyncio
import functools
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID, uuid4

from pydantic import BaseModel, Field

from roundgate.errors import NotJson, OutcomeUnknown, StepFailed, StepTimeout, ToolError
from roundgate.replay.context import Context
from roundgate.replay.questions import Answer, Form, Question, Roots, Sample, Url
from roundgate.replay.steps import check_return
from roundgate.replay.sync_context import SyncContext
from roundgate.replay.values import find_conversion
from tests.support.replay import Name
from tests.support.rounds import accept, sampled

Program: TypeAlias = list[Any]

STEPS = (
    "returns",
    "no arguments",
    "plain",
    "partial",
    "raises",
    "tells",
    "too slow",
    "retried",
    "at most once",
)
WIDE_STEPS = (
    *STEPS,
    "union",
    "ambiguous",
    "subclass",
    "exact",
    "retried if",
    "not retried",
    "tells again",
)
"""Steps that return members of unions, or say which errors they retry. Seeds of earlier programs have
only `STEPS`."""
LEAVES = ("step", "step", "step", "ask", "ask", "sleep", "long sleep", "poll", "shed", "wait", "wait", "fails", "cut",
          "cut sleep", "limited", "key", "changed", "changed", "now", "random", "uuid", "version")  # fmt: skip
TREES = ("loop", "try", "gather", "group", "create", "map", "map at most", "completed", "first", "wait for", "named",
         "in time", "in limit", "shielded", "orphan", "race")  # fmt: skip
BLOCKING_LEAVES = (
    "step",
    "step",
    "step",
    "ask",
    "sleep",
    "long sleep",
    "poll",
    "shed",
    "fails",
    "limited",
    "key",
    "now",
    "random",
    "uuid",
    "version",
)
BLOCKING_TREES = ("loop", "try", "map", "map at most", "named", "in limit")


class Charged(BaseModel):
    kind: Literal["charged"] = "charged"
    what: str
    day: date = date(2026, 1, 2)


class Paid(BaseModel):
    kind: Literal["paid"] = "paid"
    what: str


class PaidTwice(Paid):
    again: str = "yes"


def program(
    seed: int, *, blocking: bool = False, wide: bool = False, chance: bool = False
) -> Program:
    """The program of a number; a `wide` one has steps of all kinds, one of `chance` paths that another
    run may not take."""
    choices = random.Random(seed)
    leaves, trees = (BLOCKING_LEAVES, BLOCKING_TREES) if blocking else (LEAVES, TREES)
    leaves = (*leaves, *(["chance"] * 12 if chance else []))
    steps = WIDE_STEPS if wide else STEPS

    def some(room: int) -> Program:
        return [one(room) for _ in range(choices.randint(0 if room < 3 else 1, 3))]

    def one(room: int) -> list[Any]:
        if room == 0 or choices.random() < 0.45:
            what = choices.choice(leaves)
            return [what, choices.choice(steps)] if what == "step" else [what]
        return [choices.choice(trees), [some(room - 1) for _ in range(choices.randint(1, 3))]]

    return some(3)


def can_fail(body: Program) -> bool:
    """Whether a body may end with an error."""
    return any(
        operation[0] == "fails"
        or (
            operation[0] not in ("try", "race")
            and len(operation) > 1
            and operation[0] != "step"
            and any(map(can_fail, operation[1]))
        )
        for operation in body
    )


class World:
    """What effects are seen in. Those whose name begins with `?` may or may not happen."""

    def __init__(self) -> None:
        self.effects: Counter[str] = Counter()
        self.is_alive: Callable[[], bool] = lambda: True
        self.at_most_once: set[str] = set()
        self.retried: set[str] = set()
        """Effects of steps that are tried three times, in a branch that may or may not come so far."""
        self.values: dict[str, str] = {}
        """The first value that each step was given of those that the engine makes."""

    def happens(self, what: str) -> Any:
        if not self.is_alive():
            raise AssertionError("a dead process does nothing")
        self.effects[what] += 1
        return [what, {"of": what}]

    def is_given(self, what: str, value: str) -> str:
        """A step that runs again after a crash is given the same value."""
        self.happens(what)
        first = self.values.setdefault(what, value)
        if value != first:
            self.effects[f"?{what} is given {value} after {first}"] += 1_000
        return "given"

    def has_happened(self, what: str) -> bool:
        return self.effects[what] > 0

    def step(
        self, how: str, what: str
    ) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """The function of a step, what it is called with, and how it is run. Names of functions say nothing."""

        what = f"?{what}" if how == "too slow" else what  # it may be too slow even for its effect
        if how in ("retried", "retried if"):
            self.retried.add(what)

        async def work(what: str = what) -> Any:
            await asyncio.sleep(random.choice((0, 0, 0, 0.0005, 0.002)))
            value = self.happens(what)
            match how:
                case "at most once":
                    self.at_most_once.add(what)
                case "raises" | "not retried":
                    raise ValueError(what)
                case "retried if" if self.effects[what] < 3:
                    raise ConnectionError("not yet")
                case "tells" | "tells again":
                    raise ToolError(what)
                case "too slow":
                    await asyncio.Event().wait()
                case "retried" if self.effects[what] < 3:
                    raise ValueError("not yet")
            return value

        def plain(what: str) -> Any:
            return self.happens(what)

        async def union(what: str) -> Annotated[Charged | Paid, Field(discriminator="kind")]:
            self.happens(what)
            return Paid(what=what) if sum(what.encode()) % 2 else Charged(what=what)

        async def ambiguous(what: str) -> date | str:
            self.happens(what)
            return what

        async def subclass(what: str) -> Paid:
            self.happens(what)
            return PaidTwice(what=what)

        async def exact(what: str) -> tuple[Decimal, dict[int, Paid | None]]:
            self.happens(what)
            return Decimal("1.50"), {1: Paid(what=what), 2: None}

        options: dict[str, dict[str, Any]] = {
            "too slow": {"timeout_s": 0.01},
            "retried": {"retries": 2, "backoff": 0.001},
            "at most once": {"at_most_once": True},
            "retried if": {"retries": 2, "backoff": 0.001, "retry_if": ConnectionError},
            "not retried": {"retries": 2, "backoff": 0.001, "retry_if": is_connection_error},
            "tells again": {"retries": 2, "backoff": 0.001},
        }
        more = options.get(how, {})
        annotated = {f.__name__: f for f in (union, ambiguous, subclass, exact)}
        if how in annotated:
            return annotated[how], (what,), more
        match how:
            case "no arguments":
                return work, (), more
            case "plain":
                return plain, (what,), more
            case "partial":
                return functools.partial(work, what), (), more
        return work, (what,), more


def question(what: str, kind: str = "form") -> Question:
    match kind:
        case "url":
            return Url(f"Look, after {what}", "https://example.com/")
        case "sample":
            return Sample(f"Say, after {what}", max_tokens=5)
        case "roots":
            return Roots()
    return Form(f"Who, after {what}?", Name)


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """A response that depends on what the question says alone; some forms are declined or dismissed."""
    params = request.get("params", {})
    shown = str(params.get("message") or params.get("messages"))
    number = sum(shown.partition("\n\nThe last answer")[0].encode())
    match request.get("method"):
        case "sampling/createMessage":
            return sampled(f"said {number}")
        case "roots/list":
            return {"roots": [{"uri": "file:///root", "name": "root"}]}
    if number % 4 == 0 or number % 5 == 0:
        return {"action": "decline" if number % 4 == 0 else "cancel"}
    return accept(name=f"called {number}") if "requestedSchema" in params else {"action": "accept"}


def known(answers: Mapping[str, Answer]) -> list[Any]:
    return [[said.action, repr(said.value)] for said in answers.values()]


def _questions(about: str, kinds: Iterable[str]) -> dict[str, Question]:
    return {f"who{number}": question(about, kind) for number, kind in enumerate(kinds)}


_limit: ContextVar[float] = ContextVar("limit", default=1e9)


def is_connection_error(error: BaseException) -> bool:
    return isinstance(error, ConnectionError)


def _as_recorded(function: Any, value: Any) -> Any:
    """What a step gives back."""
    conversion = find_conversion(function)
    if conversion is None:
        return json.loads(json.dumps(value))
    return conversion.from_json(conversion.to_json(value, "value"), "value")


class Direct:
    """A context without an engine: every question is answered on the spot, every step simply called."""

    async def step(
        self,
        name: str,
        function: Any,
        *args: Any,
        retries: int = 0,
        retry_if: Any = Exception,
        **options: Any,
    ) -> Any:
        check_return(function, name)
        for left in reversed(range(retries + 1)):
            try:
                async with asyncio.timeout(options.get("timeout_s")):
                    value = function(*args)
                    return _as_recorded(
                        function, await value if asyncio.iscoroutine(value) else value
                    )
            except TimeoutError:
                raise StepTimeout(name) from None
            except (ValueError, ConnectionError) as error:
                again = (
                    isinstance(error, retry_if) if isinstance(retry_if, type) else retry_if(error)
                )
                if not left or not again:
                    raise StepFailed(
                        f"step {name!r} failed: {type(error).__name__}: {error}"
                    ) from None
        raise AssertionError

    async def ask(self, questions: Mapping[str, Question]) -> dict[str, Answer]:
        return {name: one.read(name, answer(one.to_wire())) for name, one in questions.items()}

    async def poll(self, name: str, function: Any, *args: Any, every_s: float) -> Any:
        while (value := await function(*args)) is None:
            pass
        return value

    async def shed(self, name: str) -> None: ...

    async def idempotency_key(self, name: str) -> str:
        return "key"

    def now(self) -> datetime:
        return datetime.now(UTC)

    def random(self) -> random.Random:
        return random.Random()

    def uuid(self) -> UUID:
        return uuid4()

    def version(self, name: str, newest: int) -> int:
        return newest

    async def sleep(self, seconds: float, name: str = "sleep") -> None:
        if seconds > _limit.get():
            raise TimeoutError

    async def map(
        self, function: Any, items: Any, *, at_most: int | None = None, key: Any = None
    ) -> list[Any]:
        return list(await asyncio.gather(*map(function, items)))

    @asynccontextmanager
    async def branch(self, name: str) -> AsyncIterator[None]:
        yield

    @asynccontextmanager
    async def timeout(self, seconds: float) -> AsyncIterator[None]:
        token = _limit.set(seconds)
        try:
            yield
        finally:
            _limit.reset(token)


_is_race: ContextVar[bool] = ContextVar("is_race", default=False)
"""Whether it matters what is first: then nothing may depend on a time that nobody remembers."""


async def real_wait() -> None:
    """Takes another time in every run."""
    if _is_race.get():
        return
    await asyncio.sleep(random.choice((0, 0, 0.0003, 0.001, 0.003)))


async def perform(
    ctx: Context | Direct, body: Program, world: World, place: str = "at"
) -> list[Any]:
    """Run a program."""
    learned: list[Any] = []
    for index, operation in enumerate(body):
        about = f"{place}.{index} {sum(json.dumps(learned).encode())}"
        learned.append(await _one(ctx, operation, world, f"{place}.{index}", about))
    return learned


async def _step(ctx: Any, world: World, how: str, about: str) -> Any:
    function, args, more = world.step(how, about)
    try:
        value = await ctx.step("do", function, *args, **more)
        return repr(value) if how in ("union", "exact") else value
    except NotJson:
        return "not JSON"
    except StepTimeout:
        return "too slow"
    except OutcomeUnknown:  # it looks whether it happened, as a careful handler does
        if await ctx.step("look", world.has_happened, about):
            return [about, {"of": about}]
        return await _step(ctx, world, "at most once", about)
    except (StepFailed, ToolError) as error:
        return [type(error).__name__, str(error)]


async def _one(ctx: Any, operation: list[Any], world: World, place: str, about: str) -> Any:
    match operation:
        case "step", how:
            return await _step(ctx, world, how, about)
        case ("ask",):
            return known(await ctx.ask({"who": question(about)}))
        case "ask all", kinds:
            return known(await ctx.ask(_questions(about, kinds)))
        case ("changed",):
            return await _changed(ctx, world, about)
        case ("sleep",):
            return await ctx.sleep(0.001)
        case ("long sleep",):
            return await ctx.sleep(30)
        case ("poll",):
            return await ctx.poll("do", _poll(world, about), every_s=0.001)
        case ("shed",):
            return await ctx.shed("do")
        case ("key",):
            return len(await ctx.idempotency_key("do")) > 0
        case ("now" | "random" | "uuid" | "version",):
            value = made_value(ctx, operation[0])
            return await ctx.step("do", world.is_given, about, value)
        case ("wait",):
            return await real_wait()
        case ("chance",):
            card = random.choice(("visa", "amex"))
            function, args, _ = world.step("returns", f"chance {place}")
            await ctx.step(f"charge_{card}", function, *args)
            return "charged"
        case ("fails",):
            function, args, _ = world.step("raises", about)
            return await ctx.step("do", function, *args)
        case ("cut",):
            function, args, _ = world.step("too slow", about)
            return await _in_vain(asyncio.timeout(0.01), lambda: ctx.step("do", function, *args))
        case ("cut sleep",):
            if isinstance(ctx, Direct):
                return "in vain"
            return await _in_vain(
                asyncio.timeout(0.01), lambda: ctx.sleep(10_000)
            )  # nobody's clock is set forward by that much
        case ("limited",):
            return await _in_vain(ctx.timeout(5), lambda: ctx.sleep(60))
    what, bodies = operation
    return await _of_bodies(ctx, what, bodies, world, place)


def made_value(ctx: Any, what: str) -> str:
    """A value that the engine makes: the same in every run."""
    match what:
        case "now":
            return str(ctx.now())
        case "random":
            draws = ctx.random()
            return f"{draws.random()} {draws.choice('abc')} {draws.randrange(99)}"
        case "uuid":
            return str(ctx.uuid())
    return str(ctx.version("change", 2))


async def _changed(ctx: Any, world: World, about: str) -> Any:
    """Change what a step and an answer gave, before and after it is given to another step."""
    function, args, _ = world.step("returns", about)
    value = await ctx.step("do", function, *args)
    await ctx.step("use", _use, value)
    value.append("more")
    value[1]["of"] += "!"
    fields = {"type": "object", "properties": {"name": {"type": "string"}}}
    said = (await ctx.ask({"who": Form(f"Who changes {about}?", fields)}))["who"]
    if said.accepted:
        said.value["name"] = [said.value["name"], "changed"]
        await ctx.step("use", _use, said.value)
    return [value, said.action, said.value]


async def _use(value: Any) -> int:
    return len(json.dumps(value))


def _poll(world: World, about: str) -> Any:
    async def polled() -> Any:
        return None if random.random() < 0.5 else world.happens(f"?{about}")

    return polled


async def _in_vain(limit: Any, work: Callable[[], Awaitable[Any]]) -> str:
    try:
        async with limit:
            await work()
    except TimeoutError:
        return "in vain"
    return "in time"


async def _of_bodies(ctx: Any, what: str, bodies: list[Program], world: World, place: str) -> Any:
    match what:
        case "loop":
            return [
                await perform(ctx, body, world, f"{place}:{at}") for at, body in enumerate(bodies)
            ]
        case "try":
            try:
                return [
                    await perform(ctx, body, world, f"{place}:{at}")
                    for at, body in enumerate(bodies)
                ]
            except (StepFailed, ExceptionGroup):
                return "failed"
        case "named":
            async with ctx.branch("part"):
                return await perform(ctx, bodies[0], world, f"{place}:0")
        case "in time":
            async with asyncio.timeout(60):
                return await perform(ctx, bodies[0], world, f"{place}:0")
        case "in limit":
            async with ctx.timeout(10**6):
                return await perform(ctx, bodies[0], world, f"{place}:0")
        case "wait for":
            return [
                await asyncio.wait_for(
                    branch(ctx, (body, world, f"{place}:{at}")), [None, 60][at % 2]
                )
                for at, body in enumerate(bodies)
            ]
        case "shielded":
            return [
                await asyncio.shield(branch(ctx, (body, world, f"{place}:{at}")))
                for at, body in enumerate(bodies)
            ]
        case "first":
            return await _first(ctx, bodies, world, place)
        case "orphan":
            return await _orphan(ctx, bodies, world, place)
        case "race":
            return await _race(ctx, bodies, world, place)
    is_certain = len(bodies) == 1 or not any(map(can_fail, bodies))
    prefix = "" if is_certain or place.startswith("?") else "?"
    branches = [(body, world, f"{prefix}{place}:{at}") for at, body in enumerate(bodies)]
    return await _side_by_side(ctx, what, branches)


async def branch(ctx: Any, given: tuple[Program, World, str]) -> Any:
    """A branch; all of them have this function."""
    if random.random() < 0.3:
        await real_wait()
    return await perform(ctx, *given)


async def _side_by_side(ctx: Any, what: str, branches: list[Any]) -> Any:
    match what:
        case "gather":
            return await asyncio.gather(*(branch(ctx, one) for one in branches))
        case "group":
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(branch(ctx, one)) for one in branches]
            return [task.result() for task in tasks]
        case "create":
            tasks = [asyncio.create_task(branch(ctx, one)) for one in branches]
            await real_wait()
            return [await task for task in reversed(tasks)][::-1]
        case "map" | "map at most":
            at_most = 1 if what == "map at most" else None
            return await ctx.map(
                functools.partial(branch, ctx),
                branches,
                at_most=at_most,
                key=lambda one: len(one[0]),
            )
        case "completed":
            return await _as_completed(ctx, branches)
    raise AssertionError(what)


async def _first(ctx: Any, bodies: list[Program], world: World, place: str) -> Any:
    """The first branch ends; the others, which never would, are cancelled wherever they are."""

    async def endless(at: int, body: Program) -> Any:
        value = await branch(ctx, (body, world, f"{'' if place[0] == '?' else '?'}{place}:{at}"))
        await asyncio.Event().wait()
        return value

    first = asyncio.create_task(branch(ctx, (bodies[0], world, f"{place}:0")))
    others = [asyncio.create_task(endless(at, body)) for at, body in enumerate(bodies) if at]
    pending: set[asyncio.Task[Any]] = {first, *others}
    while not first.done():
        _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    await _cancel(others)
    return first.result()


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks until all have ended: `asyncio.wait_for` of Python 3.11 swallows a cancellation that
    comes as its wait ends."""
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        ends = asyncio.ensure_future(asyncio.wait(left))
        nap = asyncio.ensure_future(asyncio.sleep(1))
        await asyncio.wait([ends, nap], return_when=asyncio.FIRST_COMPLETED)
        for task in (ends, nap):
            task.cancel()
        left = {task for task in left if not task.done()}


@contextmanager
def _race_begun() -> Iterator[None]:
    token = _is_race.set(True)
    try:
        yield
    finally:
        _is_race.reset(token)


async def _as_completed(ctx: Any, branches: list[Any]) -> Any:
    """What is done is noted one by one, in the same order in every run."""
    learned: list[str] = []
    with _race_begun():
        tasks = [asyncio.create_task(branch(ctx, one)) for one in branches]
    pending = set(tasks)
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in filter(
            done.__contains__, tasks
        ):  # asyncio.as_completed has those of one moment in any order
            learned.append(repr(await task))
            await _note(
                ctx, branches[0][1], f"?{branches[0][2]} {sum(map(len, learned))} {learned[-1]}"
            )
    return sorted(learned)


async def _race(ctx: Any, bodies: list[Program], world: World, place: str) -> Any:
    """What was first is used, and the others are given up: which of them it was is the same in every run."""
    given = [
        (body, world, f"{'' if place[0] == '?' else '?'}{place}:{at}")
        for at, body in enumerate(bodies)
    ]
    with _race_begun():
        tasks = [asyncio.create_task(branch(ctx, one)) for one in given]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    firsts = [at for at, task in enumerate(tasks) if task in done]
    await _note(ctx, world, f"?{place} {firsts}")
    await _cancel(pending)
    for task in tasks:
        task.cancelled() or task.exception()
    return "raced"


async def _note(ctx: Any, world: World, what: str) -> None:
    """A step that is another one if anything before it came in another order."""
    function, args, _ = world.step("returns", what)
    await ctx.step("note", function, *args)


async def _orphan(ctx: Any, bodies: list[Program], world: World, place: str) -> Any:
    """A branch that nobody waits for until the end."""
    task = asyncio.create_task(branch(ctx, (bodies[-1], world, f"{place}:9")))
    try:
        value: Any = await perform(ctx, bodies[0], world, f"{place}:0")
    except (StepFailed, ExceptionGroup):
        value = "failed"
    await asyncio.wait([task])
    return [value, await task]


def perform_blocking(ctx: SyncContext, body: Program, world: World, place: str = "at") -> list[Any]:
    """`perform` for a handler that is a plain function: its branches are threads."""
    learned: list[Any] = []
    for index, operation in enumerate(body):
        about = f"{place}.{index} {sum(json.dumps(learned).encode())}"
        learned.append(_one_blocking(ctx, operation, world, f"{place}.{index}", about))
    return learned


def _step_blocking(ctx: SyncContext, world: World, how: str, about: str) -> Any:
    function, args, more = world.step(how, about)
    try:
        return ctx.step("do", function, *args, **more)
    except StepTimeout:
        return "too slow"
    except OutcomeUnknown:
        if ctx.step("look", world.has_happened, about):
            return [about, {"of": about}]
        return _step_blocking(ctx, world, how, about)
    except (StepFailed, ToolError) as error:
        return [type(error).__name__, str(error)]


def _one_blocking(
    ctx: SyncContext, operation: list[Any], world: World, place: str, about: str
) -> Any:
    match operation:
        case "step", how:
            return _step_blocking(ctx, world, how, about)
        case ("ask",):
            return known(ctx.ask({"who": question(about)}))
        case "ask all", kinds:
            return known(ctx.ask(_questions(about, kinds)))
        case ("shed",):
            return ctx.shed("do")
        case ("sleep",):
            return ctx.sleep(0.001)
        case ("long sleep",):
            return ctx.sleep(30)
        case ("poll",):
            return ctx.poll("do", _poll(world, about), every_s=0.001)
        case ("key",):
            return len(ctx.idempotency_key("do")) > 0
        case ("now" | "random" | "uuid" | "version",):
            value = made_value(ctx, operation[0])
            return ctx.step("do", world.is_given, about, value)
        case ("fails",):
            function, args, _ = world.step("raises", about)
            return ctx.step("do", function, *args)
        case ("limited",):
            try:
                with ctx.timeout(5):
                    ctx.sleep(60)
            except TimeoutError:
                return "in vain"
            return "in time"
    what, bodies = operation
    return _of_bodies_blocking(ctx, what, bodies, world, place)


def _of_bodies_blocking(
    ctx: SyncContext, what: str, bodies: list[Program], world: World, place: str
) -> Any:
    match what:
        case "loop":
            return [
                perform_blocking(ctx, body, world, f"{place}:{at}")
                for at, body in enumerate(bodies)
            ]
        case "try":
            try:
                return [
                    perform_blocking(ctx, body, world, f"{place}:{at}")
                    for at, body in enumerate(bodies)
                ]
            except StepFailed:
                return "failed"
        case "named":
            with ctx.branch("part"):
                return perform_blocking(ctx, bodies[0], world, f"{place}:0")
        case "in limit":
            with ctx.timeout(10**6):
                return perform_blocking(ctx, bodies[0], world, f"{place}:0")
    is_certain = len(bodies) == 1 or not any(map(can_fail, bodies))
    prefix = "" if is_certain or place.startswith("?") else "?"
    branches = [(body, f"{prefix}{place}:{at}") for at, body in enumerate(bodies)]

    def one(given: tuple[Program, str]) -> Any:
        time.sleep(random.choice((0, 0, 0.0003, 0.002)))
        return perform_blocking(ctx, given[0], world, given[1])

    at_most = 1 if what == "map at most" else 3
    return ctx.map(one, branches, at_most=at_most, key=lambda given: len(given[0]))
