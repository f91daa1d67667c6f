"""`roundgate tasks`: what an operator can see of tasks, and do about them."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from roundgate import config
from roundgate.cli import task_acting
from roundgate.cli.arguments import configuration_file
from roundgate.cli.output import say, show_json
from roundgate.cli.task_lines import HEAD, doing, facts_of, print_facts, print_table, row_of
from roundgate.clock import Clock, iso
from roundgate.errors import Unavailable
from roundgate.protocol import Status
from roundgate.runtime.startup import Stores, make_stores
from roundgate.settings import Settings, TasksConfig
from roundgate.settings import process as settings
from roundgate.storage import TaskRecord, TaskRef
from roundgate.tasks.operating import steps_done
from roundgate.tasks.sweep import Sweep

PLACEHOLDER: Final = "unset-while-tasks-are-looked-at"
"""Stands for variables that only the gateway has."""

Action: TypeAlias = Callable[[argparse.Namespace, Stores, Clock], Awaitable[int]]


def run(arguments: argparse.Namespace) -> int:
    """Run a `tasks` action (`roundgate docs cli`). Return 1 if there is no such task or no store to
    read."""
    clock = Clock()
    file = configuration_file(arguments.config)
    using = settings.from_environment({**os.environ, "GATEWAY_CONFIG": str(file)})
    if using.dynamodb_table is None and not using.sqlite_path.exists():
        say(_no_store(using), to=sys.stderr)
        return 1
    stores = make_stores(using, clock, _shards(using))
    try:
        return asyncio.run(_do(_ACTIONS[arguments.action], arguments, stores, clock))
    except (Unavailable, OSError) as error:
        say(error, to=sys.stderr)
        return 1


def _shards(using: Settings) -> int:
    """`tasks.shards` of the gateway.yaml, as far as it can be read: a list looks into
    each part of the index."""
    usual = TasksConfig().shards
    if using.dynamodb_table is None or not using.config.is_file():
        return usual
    file = config.inspect(using.config, placeholder=PLACEHOLDER).file
    if file is None:
        say(
            f"{using.config} cannot be read, so tasks.shards is taken to be {usual};"
            " roundgate check says what is wrong with it",
            to=sys.stderr,
        )
        return usual
    return file.config.tasks.shards


def _no_store(using: Settings) -> str:
    """A store that is not there is not made by looking for tasks."""
    return (
        f"there is no store at {using.sqlite_path}: set GATEWAY_STORE to that of the gateway,"
        " or give its gateway.yaml with --config"
    )


async def _do(action: Action, arguments: argparse.Namespace, stores: Stores, clock: Clock) -> int:
    try:
        return await action(arguments, stores, clock)
    finally:
        await stores.queue.aclose()
        await stores.tasks.aclose()


async def _list(arguments: argparse.Namespace, stores: Stores, clock: Clock) -> int:
    now_ms = clock.now_ms()
    wanted = task_acting.wanted_by(arguments, now_ms)
    records: list[TaskRecord] = []
    cursor, is_begun = arguments.cursor, False
    while len(records) < arguments.limit and (cursor is not None or not is_begun):
        try:
            some = await stores.tasks.find(wanted, arguments.limit - len(records), cursor)
        except ValueError as error:
            say(f"--cursor: {error}", to=sys.stderr)
            return 2
        records += some.records
        cursor, is_begun = some.cursor, True
    records.sort(key=lambda record: record.created_ms)
    if arguments.json:
        for record in records:
            show_json(facts_of(record, now_ms))
    else:
        print_table(HEAD, [row_of(record, now_ms) for record in records])
    if cursor is not None:
        say(f"there are more: --cursor={cursor}", to=sys.stderr)
    return 0


async def _show(arguments: argparse.Namespace, stores: Stores, clock: Clock) -> int:
    record = await stores.tasks.read(arguments.task, 0)  # an expired one too
    if record is None:
        return _unknown(arguments.task)
    work = await stores.tasks.read_work(arguments.task)
    steps = None if work is None else steps_done(work)
    if arguments.json:
        show_json(facts_of(record, clock.now_ms(), steps))
    else:
        print_facts(record, clock.now_ms(), steps)
    return 0


async def _watch(arguments: argparse.Namespace, stores: Stores, clock: Clock) -> int:
    """A line for each change, until the task is over; status 0 if it is completed."""
    shown = None
    while True:
        now_ms = clock.now_ms()
        record = await stores.tasks.read(arguments.task, now_ms)
        if record is None:
            return _unknown(arguments.task)
        seen = (record.revision, record.attempts, record.fence, doing(record, now_ms).split()[0])
        if seen != shown:
            _print_change(record, now_ms, as_json=arguments.json)
            shown = seen
        if record.status.is_terminal:
            return 0 if record.shown_status is Status.COMPLETED else 1
        await asyncio.sleep(arguments.interval)


def _print_change(record: TaskRecord, now_ms: int, *, as_json: bool) -> None:
    if as_json:
        show_json(facts_of(record, now_ms))
        return
    said = f": {record.status_message}" if record.status_message else ""
    does = doing(record, now_ms)
    does = "" if does == "-" else f" ({does})"
    say(f"{iso(now_ms)}  {record.shown_status.value}{does}{said}")
    sys.stdout.flush()


async def _count(arguments: argparse.Namespace, stores: Stores, clock: Clock) -> int:
    census = await Sweep(stores.tasks, stores.queue, clock, TasksConfig.model_construct()).census()
    if arguments.json:
        show_json(census.fields())
        return 0
    fields = census.fields()
    fields.pop("at_least", None)
    for name, value in fields.items():
        shown = f"at least {value}" if census.is_capped and name in census.open else str(value)
        say(f"{name:28}{shown:>16}")
    return 0


_ACTIONS: Final[dict[str, Action]] = {
    "list": _list,
    "show": _show,
    "watch": _watch,
    "count": _count,
    **dict.fromkeys(task_acting.ACTIONS, task_acting.act),
}


def _unknown(ref: TaskRef) -> int:
    say(f"there is no task {ref}", to=sys.stderr)
    return 1
