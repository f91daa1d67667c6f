"""Whatever a handler is made of: interrupted at every question and gone on with elsewhere,
it ends as if it never was.

A handler here is a random tree of steps (that return, raise, run in threads), questions of all
kinds (alone, several at once, declined), sheds, loops, `gather` and `TaskGroup`. What it asks and
does depends on all that it learned before.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from roundgate.replay.context import Context
from roundgate.replay.engine import Suspended
from roundgate.replay.journal import Answered, Journal, Passed
from roundgate.replay.sync_context import SyncContext
from tests.support.clocks import FixedClock
from tests.support.long import examples
from tests.support.programs import Direct, Program, World, answer, perform, perform_blocking
from tests.support.replay import play, value_of
from tests.support.rounds import accept

SIMPLE = st.one_of(
    st.tuples(st.just("step"), st.sampled_from(["returns", "plain", "raises", "tells"])),
    st.tuples(
        st.just("ask all"),
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


class Timed(World):
    """What effects are seen in; each takes `STEP_S` of the clock."""

    def __init__(self, clock: FixedClock) -> None:
        super().__init__()
        self._clock = clock

    def happens(self, what: str) -> Any:
        self._clock.skip(STEP_S)
        return super().happens(what)


def responses_to(requests: Mapping[str, Any], manner: str) -> dict[str, Any]:
    proper = {key: answer(request) for key, request in requests.items()}
    match manner:
        case "one":
            return dict(list(proper.items())[:1])
        case "none":
            return {}
        case "junk":
            return proper | {"nobody": {"asked": "this"}, "who0~99": accept(name="nor this")}
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

        interrupts = Timed(clock)
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
        world = Timed(clock)

        def handler(ctx: SyncContext) -> list[Any]:
            return perform_blocking(ctx, program, world)

        value, _ = await interrupted(handler, manners, clock=clock, within_ms=within_ms)
        assert (value, world.effects) == (expected, plain.effects)

    asyncio.run(scenario())
