"""`roundgate tasks`: what an operator can see of tasks, and do about them.

Of a call's arguments, answers and results nothing is shown: they belong to its owner.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeAlias

from roundgate.cli.arguments import UNITS_S
from roundgate.cli.terminal import say
from roundgate.clock import Clock, iso
from roundgate.config import TasksConfig, settings
from roundgate.errors import Unavailable
from roundgate.json import decode
from roundgate.protocol import Status
from roundgate.startup import Stores, make_stores
from roundgate.storage import TaskRecord, TaskRef
from roundgate.tasks import Sweep

CANCELLED_BY_OPERATOR: Final = "The operator cancelled the task"

Action: TypeAlias = Callable[[argparse.Namespace, Stores, Clock], Awaitable[int]]


def run(arguments: argparse.Namespace) -> int:
    """List, show, cancel or requeue; status 1 if there is no such task."""
    clock = Clock()
    stores = make_stores(settings.from_environment(os.environ), clock)
    try:
        return asyncio.run(_do(_ACTIONS[arguments.action], arguments, stores, clock))
    except (Unavailable, OSError) as error:
        say(error, to=sys.stderr)
        return 1


async def _do(action: Action, arguments: argparse.Namespace, stores: Stores, clock: Clock) -> int:
    try:
        return await action(arguments, stores, clock)
    finally:
        await stores.queue.aclose()
        await stores.tasks.aclose()


async def _list(arguments: argparse.Namespace, stores: Stores, clock: Clock) -> int:
    now_ms = clock.now_ms()
    found = await stores.tasks.find(
        owner=arguments.owner,
        status=None if arguments.status is None else Status(arguments.status),
        created_before_ms=None if arguments.older_than is None else now_ms - arguments.older_than,
        limit=arguments.limit,
    )
    rows = [_line(record, now_ms) for record in sorted(found, key=lambda record: record.created_ms)]
    _print_table(("TASK", "TOOL", "STATUS", "AGE", "CHANGED", "ATTEMPTS", "DOING"), rows)
    return 0


def _line(record: TaskRecord, now_ms: int) -> tuple[str, ...]:
    return (
        str(record.ref),
        record.tool,
        "expired" if record.expires_ms <= now_ms else record.status.value,
        _ago(now_ms - record.created_ms),
        _ago(now_ms - record.updated_ms),
        str(record.attempts),
        _doing(record, now_ms),
    )


def _doing(record: TaskRecord, now_ms: int) -> str:
    """What an open task is waiting for."""
    if record.status.is_terminal or record.expires_ms <= now_ms:
        return "-"
    if record.status is Status.INPUT_REQUIRED:
        return "waits for its client"
    if record.wake_ms >= record.expires_ms:
        return "parked: waits for `tasks retry`"
    if record.declined_ms:
        return "waits for a worker that serves it"
    if record.wake_ms > now_ms:
        return f"sleeps for {_ago(record.wake_ms - now_ms)}"
    if record.lease_until_ms > now_ms:
        return "runs alone" if record.alone else "runs"
    return (
        "waits to be run alone" if record.suspect or record.lease_until_ms else "waits for a worker"
    )


async def _show(arguments: argparse.Namespace, stores: Stores, clock: Clock) -> int:
    record = await stores.tasks.read(arguments.task, 0)  # an expired one too
    if record is None:
        return _unknown(arguments.task)
    facts = {
        "task": record.ref,
        "tool": record.tool,
        "status": record.status,
        "message": record.status_message,
        "doing": _doing(record, clock.now_ms()),
        "created": iso(record.created_ms),
        "changed": iso(record.updated_ms),
        "expires": iso(record.expires_ms),
        "asks": ", ".join(
            f"{key} ({decode(request)['method']})" for key, request in record.requests.items()
        ),
        "outcome": None if record.outcome is None else f"{len(record.outcome)} bytes",
        "attempts": record.attempts,
        "deaths": record.deaths or None,
        "suspect": "a worker died or stalled with it: it is run alone" if record.suspect else None,
        "declined": f"since {iso(record.declined_ms)}: no worker serves it"
        if record.declined_ms
        else None,
        "claims": record.fence,
        "leased until": iso(record.lease_until_ms) if record.lease_until_ms else None,
        "wakes": iso(record.wake_ms) if record.wake_ms else None,
        "due": iso(record.due_ms) if record.due_ms else None,
    }
    for name, value in facts.items():
        if value not in (None, ""):
            say(f"{name + ':':14}{value}")
    return 0


async def _cancel(arguments: argparse.Namespace, stores: Stores, clock: Clock) -> int:
    if not await stores.tasks.cancel(arguments.task, CANCELLED_BY_OPERATOR, clock.now_ms()):
        return _unknown(arguments.task)
    record = await stores.tasks.read(arguments.task, clock.now_ms())
    say(f"{arguments.task} is {record.status.value if record else 'gone'}")
    return 0


async def _requeue(arguments: argparse.Namespace, stores: Stores, clock: Clock) -> int:
    now_ms = clock.now_ms()
    if not await stores.tasks.requeue(arguments.task, now_ms, now_ms):
        say(
            f"{arguments.task} is not working: only a task that waits for a worker can be queued",
            to=sys.stderr,
        )
        return 1
    await stores.queue.send(arguments.task)
    say(f"{arguments.task} is queued; whoever had it can write to it no more")
    return 0


async def _count(arguments: argparse.Namespace, stores: Stores, clock: Clock) -> int:
    census = await Sweep(stores.tasks, stores.queue, clock, TasksConfig.model_construct()).census()
    for name, value in census.fields().items():
        say(f"{name:28}{value:>10}")
    return 0


_ACTIONS: Final[dict[str, Action]] = {
    "list": _list,
    "show": _show,
    "cancel": _cancel,
    "requeue": _requeue,
    "retry": _requeue,
    "count": _count,
}


def _unknown(ref: TaskRef) -> int:
    say(f"there is no task {ref}", to=sys.stderr)
    return 1


def _ago(ms: int) -> str:
    """A span of time in its largest fitting unit."""
    seconds = ms / 1000
    unit = next((unit for unit in "dhm" if seconds >= UNITS_S[unit]), "s")
    return f"{seconds / UNITS_S[unit]:.3g}{unit}"


def _print_table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    table: list[tuple[Any, ...]] = [head, *rows]
    widths = [max(len(str(row[column])) for row in table) for column in range(len(head))]
    for row in table:
        say(
            "  ".join(
                str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)
            ).rstrip()
        )
