"""Whatever a handler is made of: interrupted at every question and gone on with elsewhere,
it ends as if it never was.

A handler here is a random tree of steps (that return, raise, run in threads), questions of all
kinds (alone, several at once, declined), sheds, loops, `gather` and `TaskGroup`. What it asks and
does depends on all that it learned before.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from roundgate.errors import StepFailed, ToolError
from roundgate.replay.context import Context
from roundgate.replay.engine import Suspended
from roundgate.replay.journal import Answered, Journal, Passed
from roundgate.replay.questions import Answer, Form, Question, Roots, Sample, Url
from roundgate.replay.sync_context import SyncContext
from tests.support.clocks import FixedClock
from tests.support.long import examples
from tests.support.replay import Name, play, value_of
from tests.support.rounds import accept, sampled

Program: TypeAlias = list[Any]
"""Operations in order: ("step", how), ("ask", kinds), ("shed",), ("loop" | "gather" | "group", [programs])."""

SIMPLE = st.one_of(
    st.tuples(st.just("step"), st.sampled_from(["returns", "in a thread", "raises", "tells"])),
    st.tuples(
        st.just("ask"),
        st.lists(st.sampled_from(["form", "url", "sample", "roots"]), min_size=1, max_size=3),
    ),
    st.just(("shed",)),
)
SEQUENCES = st.lists(SIMPLE, max_size=6)
PROGRAMS: st.SearchStrategy[Program] = st.recursive(
    st.lists(SIMPLE, max_size=4),
    lambda inner: st.lists(
        st.one_of(
            SIMPLE,
            st.tuples(
                st.sampled_from(["loop", "gather", "group"]),
                st.lists(inner, min_size=1, max_size=3),
            ),
        ),
        max_size=4,
    ),
    max_leaves=6,
)
MANNERS = st.lists(st.sampled_from(["all", "one", "none", "junk", "invalid"]), max_size=6)
"""How the client answers each round; later ones all at once."""

STEP_S = 100
"""Seconds of the test's clock. The deadlines of rounds are longer than one or three steps. They also
hold in real time, so they are longer than a busy machine takes for a round."""


def client(request: Mapping[str, Any]) -> Any:
    """A response that depends on what the question says; every third form is declined, every fifth dismissed."""
    params = request.get("params", {})
    shown = str(params.get("message") or params.get("messages")).partition("\n\nThe last answer")[0]
    number = sum(shown.encode())
    match request["method"]:
        case "sampling/createMessage":
            return sampled(f"said {number}")
        case "roots/list":
            return {"roots": [{"uri": "file:///root", "name": "root"}]}
    if number % 3 == 0 or number % 5 == 0:
        return {"action": "decline" if number % 3 == 0 else "cancel"}
    return accept(name=f"called {number}") if "requestedSchema" in params else {"action": "accept"}


def question(kind: str, about: str) -> Question:
    match kind:
        case "form":
            return Form(f"Who, after {about}?", Name)
        case "url":
            return Url(f"Look, after {about}", "https://example.com/")
        case "sample":
            return Sample(f"Say, after {about}", max_tokens=5)
        case _:
            return Roots()


def known(answers: Mapping[str, Answer]) -> list[Any]:
    return [[answer.action, repr(answer.value)] for answer in answers.values()]


class World:
    """What effects are seen in; each takes `STEP_S` of the clock."""

    def __init__(self, clock: FixedClock | None = None) -> None:
        self.effects: Counter[str] = Counter()
        self._clock = clock or FixedClock()

    def function(self, how: str) -> Any:
        async def returns(what: str) -> Any:
            await asyncio.sleep(0)
            return self._happens(what)

        async def raises(what: str) -> Any:
            self._happens(what)
            raise ValueError(what)

        async def tells(what: str) -> Any:
            self._happens(what)
            raise ToolError(what)

        return {"returns": returns, "in a thread": self._happens, "raises": raises, "tells": tells}[
            how
        ]

    def _happens(self, what: str) -> Any:
        self.effects[what] += 1
        self._clock.skip(STEP_S)
        return (what, {"in": [what]}, 1.5, None)


class Direct:
    """A context without an engine: every question is answered on the spot, every step simply called."""

    async def step(self, name: str, function: Any, what: str) -> Any:
        try:
            value = function(what)
            return json.loads(json.dumps(await value if asyncio.iscoroutine(value) else value))
        except ValueError as error:
            raise StepFailed(f"step {name!r} failed: ValueError: {error}") from None

    async def ask(self, questions: Mapping[str, Question]) -> dict[str, Answer]:
        return {name: one.read(name, client(one.to_wire())) for name, one in questions.items()}

    async def shed(self, name: str) -> None:
        """Nothing to give back."""


async def perform(
    ctx: Context | Direct, program: Program, world: World, place: str = "at"
) -> list[Any]:
    """Runs a program; what each operation does is made of all that was learned before it. Names repeat."""
    learned: list[Any] = []
    for index, operation in enumerate(program):
        about = f"{place} {sum(json.dumps(learned).encode())}"
        match operation:
            case "step", how:
                try:
                    learned.append(
                        await ctx.step(f"{place}.step", world.function(how), f"{about}/{index}")
                    )
                except (StepFailed, ToolError) as error:
                    learned.append([type(error).__name__, str(error)])
            case "ask", kinds:
                asked = {
                    f"{place}.{number}": question(kind, about) for number, kind in enumerate(kinds)
                }
                learned.append(known(await ctx.ask(asked)))
            case ("shed",):
                await ctx.shed(f"{place}.shed")
            case "loop", bodies:
                learned.append(
                    [await perform(ctx, body, world, f"{place}.{index}") for body in bodies]
                )
            case "gather", branches:
                places = [f"{place}.{index}.{number}" for number in range(len(branches))]
                runs = (
                    perform(ctx, branch, world, at)
                    for branch, at in zip(branches, places, strict=True)
                )
                learned.append(await asyncio.gather(*runs))
            case "group", branches:
                async with asyncio.TaskGroup() as group:
                    tasks = [
                        group.create_task(perform(ctx, branch, world, f"{place}.{index}.{number}"))
                        for number, branch in enumerate(branches)
                    ]
                learned.append([task.result() for task in tasks])
    return learned


def perform_blocking(ctx: SyncContext, program: Program, world: World) -> list[Any]:
    """`perform` for a handler that is a plain function, which has no branches."""
    learned: list[Any] = []
    for index, operation in enumerate(program):
        about = f"at {sum(json.dumps(learned).encode())}"
        match operation:
            case "step", how:
                try:
                    learned.append(ctx.step("at.step", world.function(how), f"{about}/{index}"))
                except (StepFailed, ToolError) as error:
                    learned.append([type(error).__name__, str(error)])
            case "ask", kinds:
                asked = {f"at.{number}": question(kind, about) for number, kind in enumerate(kinds)}
                learned.append(known(ctx.ask(asked)))
            case ("shed",):
                ctx.shed("at.shed")
    return learned


def responses_to(requests: Mapping[str, Any], manner: str) -> dict[str, Any]:
    proper = {key: client(request) for key, request in requests.items()}
    match manner:
        case "one":
            return dict(list(proper.items())[:1])
        case "none":
            return {}
        case "junk":
            return proper | {"nobody": {"asked": "this"}, "at.0~99": accept(name="nor this")}
        case "invalid":
            return {key: {"action": "perhaps"} for key in proper}
    return proper


async def interrupted(handler: Any, manners: Sequence[str], **limits: Any) -> tuple[Any, Journal]:
    """The value of a call whose every round starts from bytes, and its journal; no key ever means two questions."""
    journal, told = Journal(), dict[str, str]()
    responses: dict[str, Any] = {}
    left = [*manners]
    for _ in range(500):
        outcome = await play(handler, journal, responses, **limits)
        if not isinstance(outcome, Suspended):
            journal.receive(responses)
            return value_of(outcome), journal
        for key, request in outcome.requests.items():
            assert told.setdefault(key, json.dumps(request)) == json.dumps(request)
        journal = outcome.journal
        responses = responses_to(outcome.requests, left.pop(0) if left else "all")
    raise AssertionError("it never ended")


def without_steps(journal: Journal) -> Journal:
    """A journal that knows every answer and no step: nothing interrupts the handler that starts with it."""
    answers = Journal()
    for entry in journal.entries():
        if isinstance(entry, (Answered, Passed)):
            answers.add(entry)
    return answers


def of(program: Program, world: World) -> Any:
    async def handler(ctx: Context) -> list[Any]:
        return await perform(ctx, program, world)

    return handler


@examples(250)
@given(PROGRAMS, MANNERS, st.sampled_from([None, 150_000, 350_000]))
def test_a_handler_interrupted_anywhere_and_continued_elsewhere_ends_the_same(
    program: Program, manners: list[str], within_ms: int | None
) -> None:
    async def scenario() -> None:
        plain, clock = World(), FixedClock()
        expected = await perform(Direct(), program, plain)

        interrupts = World(clock)
        limits = {"clock": clock, "within_ms": within_ms}
        value, journal = await interrupted(of(program, interrupts), manners, **limits)
        assert (value, interrupts.effects) == (expected, plain.effects)

        at_once = World()
        value = value_of(await play(of(program, at_once), without_steps(journal)))
        assert (value, at_once.effects) == (expected, plain.effects)

    asyncio.run(scenario())


@examples(80)
@given(SEQUENCES, MANNERS, st.sampled_from([None, 150_000]))
def test_so_does_a_handler_that_is_a_plain_function(
    program: Program, manners: list[str], within_ms: int | None
) -> None:
    async def scenario() -> None:
        plain, clock = World(), FixedClock()
        expected = await perform(Direct(), program, plain)
        world = World(clock)

        def handler(ctx: SyncContext) -> list[Any]:
            return perform_blocking(ctx, program, world)

        value, _ = await interrupted(handler, manners, clock=clock, within_ms=within_ms)
        assert (value, world.effects) == (expected, plain.effects)

    asyncio.run(scenario())
