"""`roundgate tasks cancel | requeue | retry | purge`: for tasks that are
named, or all that are found.

Tasks that are found are counted first, and somebody has to agree. What would surprise an operator
is not found: tasks that a worker runs are taken from it only by name, also where it began after
they were found, and an open task is never purged.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, TypeAlias

from roundgate.cli.output import Status as StatusLine
from roundgate.cli.output import say, show_json
from roundgate.cli.task_lines import is_parked, is_to_be_retried
from roundgate.client import Progress
from roundgate.clock import Clock
from roundgate.errors import NotRetryable, Unavailable
from roundgate.protocol import OPEN, TERMINAL, Status
from roundgate.runtime.startup import Stores
from roundgate.storage import Ending, TaskRecord, TaskRef, Wanted
from roundgate.tasks.events import Cancelled
from roundgate.tasks.operating import retry

CANCELLED_BY_OPERATOR: Final = "The operator cancelled the task"
PAGE: Final = 100
_AT_ONCE: Final = 16
_WHICH: Final = (
    "name tasks, or say which with --owner, --tool, --status, --outcome, --older-than: one of both"
)

Chosen: TypeAlias = tuple[TaskRef, int | None]
"""A task, and the fence with which it was found; `None` of one that was named, which is
meant whatever it does."""
Act: TypeAlias = Callable[[Stores, Chosen, int], Awaitable[str | None]]
"""Acts on one task: what has become of it, or `None` if nothing was done. Takes the time in ms."""


@dataclass(frozen=True, slots=True)
class Action:
    """What is done to tasks, and to which of those that are found."""

    act: Act
    statuses: frozenset[Status]
    refusal: str
    """Why nothing was done to a task, after its name."""
    is_meant: Callable[[TaskRecord, int], bool] = lambda record, now_ms: True


async def _cancel(stores: Stores, chosen: Chosen, now_ms: int) -> str | None:
    ref = chosen[0]
    cancelled = await stores.tasks.cancel(ref, CANCELLED_BY_OPERATOR, now_ms)
    if cancelled is Cancelled.UNKNOWN_TASK:
        return None
    if cancelled is Cancelled.CLEAN_UP:
        with suppress(Unavailable):  # a sweep finds it
            await stores.queue.send(ref)
        return "is cancelled; a worker cancels its job"
    record = await stores.tasks.read(ref, now_ms)
    return f"is {record.status.value if record else 'gone'}"


async def _requeue(stores: Stores, chosen: Chosen, now_ms: int) -> str | None:
    ref, fence = chosen
    if not await stores.tasks.requeue(ref, now_ms, now_ms, fence=fence):
        return None
    await stores.queue.send(ref)
    return "is queued; whoever had it can write to it no more"


async def _retry(stores: Stores, chosen: Chosen, now_ms: int) -> str | None:
    """Retry a task at the step that ended it; queue a parked task."""
    ref = chosen[0]
    record = await stores.tasks.read(ref, now_ms)
    if record is None or record.ending is not Ending.STEP_FAILED:
        return await _requeue(stores, chosen, now_ms)
    going_on = await retry(stores.tasks, stores.queue, ref, now_ms)
    return f"goes on as {going_on}: its finished steps are remembered, the failed one runs again"


async def _purge(stores: Stores, chosen: Chosen, now_ms: int) -> str | None:
    return "is purged" if await stores.tasks.purge(chosen[0], now_ms) else None


def _waits(record: TaskRecord, now_ms: int) -> bool:
    """Nobody runs it, and it does not sleep."""
    return record.lease_until_ms <= now_ms and record.wake_ms <= now_ms


def _is_alive(record: TaskRecord, now_ms: int) -> bool:
    return record.expires_ms > now_ms


_WORKING: Final = frozenset({Status.WORKING})
_NOT_WORKING: Final = (
    "is not working, or a worker has begun with it since it was found:"
    " only a task that waits for a worker can be queued"
)

ACTIONS: Final[dict[str, Action]] = {
    "cancel": Action(_cancel, OPEN, "is not there", _is_alive),
    "requeue": Action(
        _requeue, _WORKING, _NOT_WORKING, lambda one, now: _is_alive(one, now) and _waits(one, now)
    ),
    "retry": Action(
        _retry,
        _WORKING | {Status.FAILED},
        "was neither parked nor ended by a failed step, or a worker has begun with it since it was"
        " found: there is nothing to try again",
        lambda one, now: _is_alive(one, now) and (is_parked(one) or is_to_be_retried(one)),
    ),
    "purge": Action(_purge, TERMINAL, "is not there, or is open: cancel it first"),
}


async def act(arguments: argparse.Namespace, stores: Stores, clock: Clock) -> int:
    """Do it; status 1 if it could not be done to a task that was named, 2 if nobody said to
    which."""
    action = ACTIONS[arguments.action]
    if bool(arguments.task) == _is_narrowed(arguments):
        say(_WHICH, to=sys.stderr)
        return 2
    if arguments.task:
        chosen: Sequence[Chosen] = [(ref, None) for ref in dict.fromkeys(arguments.task)]
    else:
        chosen = await _found(action, arguments, stores, clock)
    if not _is_agreed(arguments, [ref for ref, _ in chosen]):
        return 0 if arguments.dry_run or not chosen else 1
    refused = 0
    with StatusLine(sys.stderr) as line:
        for number, some in enumerate(_batches(chosen)):
            if len(chosen) > _AT_ONCE:
                done = Progress(number * _AT_ONCE, float(len(chosen)), arguments.action)
                line.progressed(done)
            became = await asyncio.gather(
                *(action.act(stores, one, clock.now_ms()) for one in some), return_exceptions=True
            )
            line.hide()
            for (ref, _), text in zip(some, became, strict=True):
                _tell(arguments, ref, text, action.refusal)
                refused += text is None or isinstance(text, NotRetryable)
            for one in became:
                if isinstance(one, BaseException) and not isinstance(one, NotRetryable):
                    raise one
    return 1 if refused and arguments.task else 0


def _is_narrowed(arguments: argparse.Namespace) -> bool:
    told = (
        *(arguments.owner, arguments.tool, arguments.status, arguments.outcome),
        arguments.older_than,
    )
    return any(one is not None for one in told)


def _tell(
    arguments: argparse.Namespace, ref: TaskRef, became: str | BaseException | None, refusal: str
) -> None:
    if isinstance(became, NotRetryable):
        became, refusal = None, str(became)
    if isinstance(became, BaseException):
        say(f"{ref} may have been changed or not: look at it, and try again", to=sys.stderr)
    elif arguments.json:
        show_json({"task": str(ref), "done": became is not None, "text": became or refusal})
    elif became is None:
        say(f"{ref} {refusal}", to=sys.stderr)
    else:
        say(f"{ref} {became}")


def wanted_by(arguments: argparse.Namespace, now_ms: int) -> Wanted:
    """What the options narrow a search to."""
    return Wanted(
        owner=arguments.owner,
        tool=arguments.tool,
        statuses=frozenset(map(Status, arguments.status)) if arguments.status else None,
        endings=frozenset(map(Ending, arguments.outcome)) if arguments.outcome else None,
        created_before_ms=None if arguments.older_than is None else now_ms - arguments.older_than,
    )


async def _found(
    action: Action, arguments: argparse.Namespace, stores: Stores, clock: Clock
) -> list[Chosen]:
    now_ms = clock.now_ms()
    wanted = wanted_by(arguments, now_ms)
    wanted = replace(wanted, statuses=(wanted.statuses or action.statuses) & action.statuses)
    fences: dict[TaskRef, int] = {}
    cursor, is_begun = None, False
    while wanted.statuses and (cursor is not None or not is_begun):
        some = await stores.tasks.find(wanted, PAGE, cursor)
        fences |= {one.ref: one.fence for one in some.records if action.is_meant(one, now_ms)}
        cursor, is_begun = some.cursor, True
    return list(fences.items())


def _is_agreed(arguments: argparse.Namespace, refs: Sequence[TaskRef]) -> bool:
    """Whether what was chosen is to be acted on: because it was named, by option, or
    by whoever sits there."""
    count = f"{len(refs)} task{'s' * (len(refs) != 1)}"
    if arguments.dry_run or not refs:
        for ref in refs:
            say(ref)
        say(f"{arguments.action}: {count}", to=sys.stderr)
        return False
    if arguments.yes or arguments.task:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        say(f"{arguments.action} {count}: say so with --yes", to=sys.stderr)
        return False
    say(f"{arguments.action} {count}? [y/N]", to=sys.stderr)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _batches(chosen: Iterable[Chosen]) -> Iterable[list[Chosen]]:
    left = iter(chosen)
    while some := list(islice(left, _AT_ONCE)):
        yield some
