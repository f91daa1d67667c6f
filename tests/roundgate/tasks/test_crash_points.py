"""Crash before and after every store write, every read and every queue call: the
task ends once, and rightly.

Each story runs once without a crash, which counts its calls; then once for each call and each
side of it, in a short run for a sample of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import combinations, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundgate.storage.dynamodb.tasks import DynamoDbTasks
from roundgate.storage.ports import TaskQueue
from roundgate.storage.postgres import PostgresDatabase, PostgresTasks
from roundgate.storage.sqlite.queue import SqliteQueue
from roundgate.storage.sqlite.tasks import SqliteTasks
from roundgate.tasks import lease, service
from roundgate.tasks.stored import StoredTasks
from tests.support.clocks import FixedClock
from tests.support.crashes import How, Plan, When
from tests.support.dynamodb import Emulator
from tests.support.long import Case, examples, sampled
from tests.support.postgresql import Server
from tests.support.stories import STORIES, Manner, Story, all_points, points_of
from tests.support.tasks import Fast, Files

MANNERS: list[Manner] = ["pool", "function"]
CASES = list(product(STORIES, MANNERS))
IDS = [f"{name} in a {manner}" for name, manner in CASES]


def report(points: int) -> None:
    """For `pytest -rP`."""
    print(f"{points} points")


def sample(name: str, points: Sequence[Case], every: int = 13) -> Sequence[Case]:
    """Return all points of a story, in a short run one of `every`; each day of "days" makes the same calls."""
    return sampled(points, every * 5 if name == "days" else every)


def tell(
    files: Files,
    name: str,
    plan: Plan,
    manner: Manner = "pool",
    *,
    store: Callable[[], StoredTasks] | None = None,
    close: Callable[[], Awaitable[None]] | None = None,
    cancel_at: tuple[int, When] | None = None,
    deliver_at: tuple[int, When] | None = None,
) -> int:
    """One story on a new file; how many calls it took."""

    async def telling() -> int:
        database = Fast(path)

        def queue(clock: FixedClock) -> TaskQueue:
            return SqliteQueue(database, clock)

        story = Story(
            name, store() if store else StoredTasks(SqliteTasks(database)), queue, plan, manner
        )
        if cancel_at is not None:
            plan.meanwhile = {cancel_at: story.outsider}
        if deliver_at is not None:
            plan.meanwhile = {deliver_at: story.service}
        try:
            await story.tell()
            calls = len(plan.calls)
            await story.check()
        finally:
            await database.aclose()
            if close is not None:
                await close()
        return calls

    path = files.new()
    try:
        return asyncio.run(telling())
    except BaseException as error:
        error.add_note(
            f"{name} in a {manner}, {plan.points}, cancelled {cancel_at}, delivered {deliver_at}; calls: {plan.calls}"
        )
        raise
    finally:
        for file in path.parent.glob(f"{path.name}*"):
            file.unlink()


@pytest.mark.parametrize(("name", "manner"), CASES, ids=IDS)
def test_a_process_dies_at_any_call(files: Files, name: str, manner: Manner) -> None:
    points = sample(name, all_points(tell(files, name, Plan(), manner)))
    for number, when in points:
        tell(files, name, Plan({number: when}), manner)
    report(len(points))


@pytest.mark.parametrize(("name", "manner"), CASES, ids=IDS)
@pytest.mark.parametrize("dies", [False, True], ids=["alone", "and the process dies there too"])
def test_a_cancel_comes_at_any_call(files: Files, name: str, manner: Manner, dies: bool) -> None:
    points = sample(name, all_points(tell(files, name, Plan(), manner)))
    for number, when in points:
        tell(files, name, Plan({number: when} if dies else {}), manner, cancel_at=(number, when))
    report(len(points))


@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("dies", [False, True], ids=["alone", "and the process dies there too"])
def test_a_service_delivers_at_any_call(
    files: Files, manner: Manner, dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # an answer to a task that goes on because of the delivery is to be sent again
    monkeypatch.setattr(service, "ANSWER_WAIT_S", 0)
    points = sampled(all_points(tell(files, "waits", Plan(), manner)))
    for number, when in points:
        plan = Plan({number: when} if dies else {})
        tell(files, "waits", plan, manner, deliver_at=(number, when))
    report(len(points))


@pytest.mark.parametrize(("name", "manner"), CASES, ids=IDS)
def test_any_call_times_out_and_may_have_happened_or_not(
    files: Files, name: str, manner: Manner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "PAUSES_S", (0,) * 4)
    points = sample(name, all_points(tell(files, name, Plan(), manner)))
    for number, when in points:
        how: How = "times out before" if when == "before" else "times out after"
        tell(files, name, Plan({number: how}), manner)
    report(len(points))


def test_two_processes_die_at_any_two_calls(files: Files) -> None:
    manner: Manner = "pool"
    calls = tell(files, "questions", Plan(), manner)
    longest = max(
        tell(files, "questions", Plan({number: when}), manner)
        for number, when in sampled(all_points(calls))
    )
    # whoever dies before a call has died after the one before it, and has run what is between them
    pairs = list(combinations([point for point in all_points(longest) if point[1] == "before"], 2))
    pairs = list(sampled(pairs, 101))
    for pair in pairs:
        tell(files, "questions", Plan(dict(pair)), manner)
    report(len(pairs))


@examples(120)
@given(
    st.dictionaries(
        st.integers(0, 90), st.sampled_from(["before", "after"]), min_size=2, max_size=6
    ),
    st.sampled_from(MANNERS),
)
def test_processes_die_again_and_again(
    files: Files, points: Mapping[int, How], manner: Manner
) -> None:
    tell(files, "everything", Plan(points), manner)


@pytest.fixture
def table(dynamodb: Emulator) -> Iterator[Callable[[], StoredTasks]]:
    """Makes stores, each on a table of its own: stories beside each other have different times."""
    client = dynamodb.client(max_pool_connections=50)
    with ExitStack() as tables:

        def make() -> StoredTasks:
            name = tables.enter_context(dynamodb.table())
            return StoredTasks(DynamoDbTasks(dynamodb.open(name, lambda: client)))

        yield make
    client.close()


# "everything" is questions and rest, and takes as long; each day of "days" makes the same calls
@pytest.mark.parametrize(
    ("name", "every", "is_cancelled"),
    [(*story, False) for story in (("questions", 1), ("rest", 1), ("days", 5), ("waits", 1))]
    + [("questions", 1, True)],
)
def test_a_process_dies_at_any_call_of_dynamodb_and_a_cancel_comes_there_too(
    files: Files, table: Callable[[], StoredTasks], name: str, every: int, is_cancelled: bool
) -> None:
    tell(files, name, plan := Plan(), store=table)
    points = sampled(points_of(plan.calls)[::every], 47)

    def one(point: tuple[int, When]) -> Any:
        cancel_at = point if is_cancelled else None
        return tell(files, name, Plan(dict([point])), store=table, cancel_at=cancel_at)

    with ThreadPoolExecutor(6) as threads:
        assert len(list(threads.map(one, points))) == len(points)
    report(len(points))


# "days" in four parts, because all of its points take minutes on a busy machine
@pytest.mark.parametrize(
    ("name", "first", "every"),
    [("questions", 0, 1), ("rest", 0, 1), *(("days", first, 4) for first in range(4))],
)
def test_a_process_dies_at_any_call_of_postgresql(
    files: Files, postgresql: Server, name: str, first: int, every: int
) -> None:
    def one(plan: Plan) -> None:
        postgresql.empty()
        database = PostgresDatabase(postgresql.url, 2)
        tell(
            *(files, name, plan),
            store=lambda: StoredTasks(PostgresTasks(database)),
            close=database.aclose,
        )

    one(plan := Plan())
    points = sample(name, points_of(plan.calls)[first::every], 23)
    for point in points:
        one(Plan(dict([point])))
    report(len(points))
