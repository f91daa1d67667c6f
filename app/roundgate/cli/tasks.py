"""`roundgate tasks`: the operator's view of tasks, and actions on them.

`cancel`, `requeue`, `retry` and `purge` act on tasks that the operator names or that filters
select. For selected tasks, the command prints their number and asks the operator to confirm.
`requeue` takes a named task from the worker that runs it; a selected task that a worker claims
after the search is left alone. An open task is never purged. `retry --from` and `event` are for one
task.

Arguments, answers and results of a call are never shown, because they belong to its owner.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from roundgate import config
from roundgate.cli import histories
from roundgate.cli.arguments import configuration_file
from roundgate.cli.output import Status as StatusLine
from roundgate.cli.output import say, show_json, show_table
from roundgate.client import Progress
from roundgate.clock import Clock, iso, span
from roundgate.errors import NotRetryable, ParseError, Unavailable
from roundgate.protocol import OPEN, Status
from roundgate.runtime.startup import Stores, make_stores, make_trail
from roundgate.settings import Settings, TasksConfig
from roundgate.settings import process as settings
from roundgate.storage import Ending, TaskRecord, TaskRef, Wanted
from roundgate.tasks.acts import (
    ACCEPTED,
    ACTIONS,
    DELIVERED,
    Action,
    Chosen,
    find_event,
    recorded,
    retry_from,
    short_event,
)
from roundgate.tasks.events import marks_from_record
from roundgate.tasks.external import Deliveries, decode_payload
from roundgate.tasks.facts import activity, known, task_facts
from roundgate.tasks.machine import is_parked
from roundgate.tasks.operating import Repeated, StepDone, repeated, steps_done
from roundgate.tasks.versions import count_versions

if TYPE_CHECKING:  # loaded only if there is an audit log
    from roundgate.audit import Trail

PLACEHOLDER: Final = "unset-while-tasks-are-looked-at"
"""The value of `${…}` references whose variables only the gateway has."""
PAGE: Final = 100
COUNTED: Final = 100_000
"""The limit on the open tasks that `count` reads, which take some 60 MB of memory."""
_AT_ONCE: Final = 16
_ACTS: Final = frozenset({*ACTIONS, "event"})
"""The actions that change tasks, which the audit log records."""


def run(arguments: argparse.Namespace) -> int:
    """Run a `tasks` action and return its exit status (`roundgate docs cli`): 1 if the task does
    not exist or the store cannot be reached.

    Raises:
        ConfigError: a setting in the environment is invalid.
    """
    clock = Clock()
    file = configuration_file(arguments.config)
    using = settings.from_environment({**os.environ, "GATEWAY_CONFIG": str(file)})
    if using.is_store_local and not using.sqlite_path.exists():
        say(
            f"there is no store at {using.sqlite_path}: set GATEWAY_STORE to the gateway's store,"
            " or pass its gateway.yaml with --config",
            to=sys.stderr,
        )
        return 1
    trail = _trail(using, clock) if arguments.action in _ACTS else None
    stores = make_stores(using, clock, _shards(using), trail=trail)
    try:
        return asyncio.run(_run(arguments, using, stores, clock))
    except (Unavailable, OSError) as error:
        reason = f": {error.__cause__}" if error.__cause__ is not None else ""
        say(f"{error}{reason}", to=sys.stderr)
        return 1


def _shards(using: Settings) -> int:
    """Return `tasks.shards` of gateway.yaml, or the default. A search reads every shard of the
    DynamoDB index."""
    default = TasksConfig().shards
    if using.dynamodb_table is None or not using.config.is_file():
        return default
    file = config.inspect(using.config, placeholder=PLACEHOLDER).file
    if file is None:
        say(
            f"{using.config} cannot be read, so the default of tasks.shards, {default}, is used;"
            " run `roundgate check`",
            to=sys.stderr,
        )
        return default
    return file.config.tasks.shards


def _trail(using: Settings, clock: Clock) -> Trail | None:
    """Return the audit log of the gateway.yaml, if it has one.

    Raises:
        ConfigError: this process cannot write it.
    """
    if not using.config.is_file():
        return None
    file = config.inspect(using.config, placeholder=PLACEHOLDER).file
    return None if file is None else make_trail(file, using, clock, "command")


def _shows_values(using: Settings) -> bool:
    """Return `console.show_values` of gateway.yaml."""
    if not using.config.is_file():
        return False
    file = config.inspect(using.config, placeholder=PLACEHOLDER).file
    console = None if file is None else file.config.console
    return console is not None and console.show_values


async def _run(arguments: argparse.Namespace, using: Settings, stores: Stores, clock: Clock) -> int:
    try:
        match arguments.action:
            case "list":
                return await _list(arguments, stores, clock)
            case "show":
                return await _show(arguments, stores, clock, shows_values=_shows_values(using))
            case "watch":
                return await _watch(arguments, stores, clock)
            case "count":
                return await _count(arguments, stores, clock)
            case "event":
                return await _deliver(arguments, stores, clock)
            case "retry" if arguments.from_step is not None:
                return await _retry_from(arguments, stores, clock)
            case "versions":
                return await _versions(arguments, stores, clock)
            case "export":
                filters = _wanted(arguments, clock.now_ms())
                return await histories.export(arguments, filters, stores.tasks, clock)
            case action:
                return await _act(ACTIONS[action], arguments, stores, clock)
    finally:
        await stores.queue.aclose()
        await stores.tasks.aclose()
        if stores.tasks.trail is not None:
            await stores.tasks.trail.aclose()


async def _list(arguments: argparse.Namespace, stores: Stores, clock: Clock) -> int:
    now_ms = clock.now_ms()
    filters = _wanted(arguments, now_ms)
    records: list[TaskRecord] = []
    cursor, is_begun = arguments.cursor, False
    while len(records) < arguments.limit and (cursor is not None or not is_begun):
        try:
            page = await stores.tasks.find(filters, arguments.limit - len(records), cursor)
        except ValueError as error:
            say(f"--cursor: {error}", to=sys.stderr)
            return 2
        records += page.records
        cursor, is_begun = page.cursor, True
    records.sort(key=lambda record: record.created_ms)
    if arguments.json:
        for record in records:
            show_json(task_facts(record, now_ms))
    else:
        show_table([_HEAD, *(_row(record, now_ms) for record in records)])
    if cursor is not None:
        say(f"more tasks follow: continue with --cursor={cursor}", to=sys.stderr)
    return 0


def _wanted(arguments: argparse.Namespace, now_ms: int) -> Wanted:
    """Return the filters of a search."""
    return Wanted(
        owner=arguments.owner,
        tool=arguments.tool,
        statuses=frozenset(map(Status, arguments.status)) if arguments.status else None,
        endings=frozenset(map(Ending, arguments.outcome)) if arguments.outcome else None,
        created_before_ms=None if arguments.older_than is None else now_ms - arguments.older_than,
    )


def _has_filters(arguments: argparse.Namespace) -> bool:
    filters = (arguments.owner, arguments.tool, arguments.status, arguments.outcome)
    return any(value is not None for value in (*filters, arguments.older_than))


async def _show(
    arguments: argparse.Namespace, stores: Stores, clock: Clock, *, shows_values: bool
) -> int:
    record = await stores.tasks.read(arguments.task, 0)  # time 0: include expired tasks
    if record is None:
        return _unknown(arguments.task)
    _, work = await stores.tasks.read_work(arguments.task)
    steps = None if work is None else steps_done(record, work)
    facts = task_facts(record, clock.now_ms(), steps, shows_values=shows_values)
    if arguments.json:
        show_json(facts)
    else:
        _print_facts(facts, steps)
    return 0


async def _watch(arguments: argparse.Namespace, stores: Stores, clock: Clock) -> int:
    """Print a line for each change of a task until it ends; return 0 if it completed, otherwise
    1."""
    shown = None
    while True:
        now_ms = clock.now_ms()
        record = await stores.tasks.read(arguments.task, now_ms)
        if record is None:
            return _unknown(arguments.task)
        doing = activity(record, now_ms)
        state = (record.revision, record.attempts, record.fence, doing.split()[0])
        if state != shown and arguments.json:
            show_json(task_facts(record, now_ms))
        elif state != shown:
            message = f": {record.status_message}" if record.status_message else ""
            does = "" if doing == "-" else f" ({doing})"
            say(f"{iso(now_ms)}  {record.shown_status.value}{does}{message}")
        sys.stdout.flush()
        shown = state
        if record.status.is_terminal:
            return 0 if record.shown_status is Status.COMPLETED else 1
        await asyncio.sleep(arguments.interval)


async def _count(arguments: argparse.Namespace, stores: Stores, clock: Clock) -> int:
    tasks, is_capped = await stores.tasks.open_tasks(COUNTED)
    now_ms = clock.now_ms()
    ages_ms = {
        status: [now_ms - task.created_ms for task in tasks if task.status is status]
        for status in sorted(OPEN)
    }
    late_ms = [now_ms - task.due_ms for task in tasks]
    counts: dict[str, Any] = {status.value: len(ages) for status, ages in ages_ms.items()}
    ages = {f"oldest_{status.value}_s": max(ages, default=0) for status, ages in ages_ms.items()}
    ages["overdue_s"] = max(0, *late_ms, 0)
    fields = counts | {name: round(age_ms / 1000, 1) for name, age_ms in ages.items()}
    if arguments.json:
        show_json({**fields, **({"at_least": True} if is_capped else {})})
        return 0
    for name, value in fields.items():
        shown = f"at least {value}" if is_capped and name in counts else str(value)
        say(f"{name:28}{shown:>16}")
    return 0


async def _deliver(arguments: argparse.Namespace, stores: Stores, clock: Clock) -> int:
    """Deliver an external event. Return 1 if it was not accepted, and 2 if the payload is not JSON
    or cannot be read."""
    try:
        payload = _payload(arguments.payload_file)
    except (OSError, ParseError) as error:
        say(f"--payload-file: {error}", to=sys.stderr)
        return 2
    record = await stores.tasks.read(arguments.task, 0)
    if record is None:
        return _unknown(arguments.task)
    name = find_event(record, arguments.event)
    if name is None:
        names = ", ".join(short_event(mark.name) for mark in marks_from_record(record)) or "none"
        say(
            f"{record.ref} has no event {arguments.event!r}; its events are: {names}", to=sys.stderr
        )
        return 1
    deliveries = Deliveries(stores.tasks, clock, TasksConfig.model_construct())
    delivered = await recorded(
        stores.tasks,
        arguments.action,
        record.ref,
        lambda: deliveries.deliver(record.ref, name, payload),
    )
    is_accepted = delivered in ACCEPTED
    text = DELIVERED.get(delivered, "does not exist any more")
    if arguments.json:
        facts = {"task": str(record.ref), "event": name, "done": is_accepted, "text": text}
        show_json(facts)
    else:
        say(f"{name}: {record.ref} {text}", to=sys.stdout if is_accepted else sys.stderr)
    return 0 if is_accepted else 1


def _payload(file: str | None) -> Any:
    if file is None:
        return None
    return decode_payload(sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes())


async def _retry_from(arguments: argparse.Namespace, stores: Stores, clock: Clock) -> int:
    """Continue a parked or failed task from a chosen step, after showing the parts that are
    repeated. Return the exit status: 1 if the task cannot continue or the operator did not confirm,
    2 if the arguments name no single task."""
    if len(arguments.task) != 1 or _has_filters(arguments):
        say("--from needs exactly one task: name it, without filters", to=sys.stderr)
        return 2
    (ref,), step, now_ms = arguments.task, arguments.from_step, clock.now_ms()
    record, work = await stores.tasks.read_work(ref)
    result: str | BaseException | None = None
    try:
        if record is None or work is None:
            return _unknown(ref)
        if not (is_parked(record) or record.ending is Ending.STEP_FAILED):
            raise NotRetryable("is not parked, and no failed step ended it")
        again = repeated(work, step)
        if not _is_confirmed(arguments, ref, again):
            return 0 if arguments.dry_run else 1
        result = await recorded(
            stores.tasks,
            "retry",
            ref,
            lambda: retry_from(stores.tasks, record, now_ms, step),
        )
    except NotRetryable as error:
        result = error
    _report(arguments, ref, result, "")
    return 1 if isinstance(result, NotRetryable) else 0


def _is_confirmed(arguments: argparse.Namespace, ref: TaskRef, again: Repeated) -> bool:
    """Show the parts of a task that are repeated; return whether the operator confirms."""
    for label, names in (
        ("runs again", again.steps),
        ("may take effect twice, although it is at_most_once", again.once),
        ("is asked again", again.questions),
        ("is awaited again, with a new URL", again.events),
    ):
        if names:
            say(f"{label}: {', '.join(names)}", to=sys.stderr)
    if again.has_state:
        say("ctx.state is kept", to=sys.stderr)
    return _is_agreed(arguments, [ref], is_named=False)


async def _versions(arguments: argparse.Namespace, stores: Stores, clock: Clock) -> int:
    now_ms = clock.now_ms()
    counts = await count_versions(stores.tasks, arguments.tool, now_ms)
    rows = [("TOOL", "NAME", "VERSION", "OPEN", "OLDEST")]
    for count in counts:
        oldest = {"oldest": iso(count.oldest_ms), "tasks": count.tasks}
        if arguments.json:
            named = known({"name": count.name, "version": count.version})
            show_json({"tool": count.tool, **named, **oldest})
        version = "-" if count.version is None else str(count.version)
        age = span(now_ms - count.oldest_ms)
        rows.append((count.tool, count.name or "-", version, str(count.tasks), age))
    if not arguments.json:
        show_table(rows)
    return 0


def _unknown(ref: TaskRef) -> int:
    say(f"there is no task {ref}", to=sys.stderr)
    return 1


_HEAD: Final = ("TASK", "TOOL", "STATUS", "OUTCOME", "AGE", "CHANGED", "ATTEMPTS", "DOING")


def _row(record: TaskRecord, now_ms: int) -> tuple[str, ...]:
    return (
        str(record.ref),
        record.tool,
        "expired" if record.expires_ms <= now_ms else record.shown_status.value,
        "-" if record.ending is None else record.ending.value,
        span(now_ms - record.created_ms),
        span(now_ms - record.updated_ms),
        str(record.attempts),
        activity(record, now_ms),
    )


_LABELS: Final = {
    "outcomeBytes": "result",
    "leasedUntil": "leased until",
    "failedSteps": "failed at",
    "retriedAs": "retried as",
    "lastFailure": "last failure",
}
_COUNTED: Final = {
    "attempts": "consecutive faults of the gateway",
    "deaths": "workers that died or stalled while they ran only this task",
    "claims": "turns that workers began",
}
"""The meanings of the counters."""


def _print_facts(facts: Mapping[str, Any], steps: Sequence[StepDone] | None) -> None:
    """Print the facts about a task as text."""
    for name, value in facts.items():
        match name:
            case "steps":
                continue
            case "expired" if not value:
                continue
            case "attempts" | "deaths" | "claims":
                value = f"{value} ({_COUNTED[name]})"
            case "failedSteps":
                value = ", ".join(value)
            case "lastFailure":
                text = f": {value['text']}" if "text" in value else ""
                value = (
                    f"{value['step']} at {value['at']}: {value['type']}{text} "
                    f"(reference {value['reference']}, see `{value['find']}`)"
                )
            case "asks":
                value = ", ".join(f"{question['key']} ({question['method']})" for question in value)
            case "events":
                value = ", ".join(f"{event['name']} ({_event_state(event)})" for event in value)
            case "outcomeBytes":
                value = f"{value} bytes"
            case "hidden":
                value = (
                    "a call of a client whose revision has no tasks; the client's requests run it"
                )
            case "suspect":
                value = "a worker died or stalled with this task, so it runs alone"
            case "declined":
                value = f"since {value}: no worker serves it"
        say(f"{_LABELS.get(name, name) + ':':14}{value}")
    if steps is None:
        say(f"{'steps:':14}unknown: they have expired, or were written by a later version")
    for number, step in enumerate(steps or ()):
        say(f"{'steps:' if number == 0 else '':14}{step.name}: {_step_state(step)}")


def _event_state(event: Mapping[str, str]) -> str:
    is_over = event["state"] == "delivered"
    return event["state"] if is_over else f"{event['state']} until {event['until']}"


def _step_state(step: StepDone) -> str:
    times = "" if step.attempts is None else f" after {step.attempts} attempt"
    times += "s" if (step.attempts or 1) > 1 else ""
    if step.again_ms is not None:
        return f"failed{times}, will be retried at {iso(step.again_ms)}"
    return f"{step.state}{times}"


async def _act(action: Action, arguments: argparse.Namespace, stores: Stores, clock: Clock) -> int:
    """Act on the named or selected tasks. Return 1 if a named task could not be changed or the
    operator did not confirm, and 2 if the arguments have both names and filters, or neither."""
    if bool(arguments.task) == _has_filters(arguments):
        say(
            "name tasks, or select them with --owner, --tool, --status, --outcome or --older-than,"
            " but not both",
            to=sys.stderr,
        )
        return 2
    chosen: Sequence[Chosen] = [(ref, None) for ref in dict.fromkeys(arguments.task)]
    if not chosen:
        chosen = await _find(action, arguments, stores, clock)
    is_named = bool(arguments.task)
    if not _is_agreed(arguments, [ref for ref, _ in chosen], is_named=is_named):
        return 0 if arguments.dry_run or not chosen else 1
    refused = 0
    with StatusLine(sys.stderr) as line:
        for start in range(0, len(chosen), _AT_ONCE):
            batch = chosen[start : start + _AT_ONCE]
            if len(chosen) > _AT_ONCE:
                line.progressed(Progress(start, float(len(chosen)), arguments.action))
            results = await asyncio.gather(
                *(_acted(action, arguments.action, stores, value, clock) for value in batch),
                return_exceptions=True,
            )
            line.hide()
            for (ref, _), result in zip(batch, results, strict=True):
                _report(arguments, ref, result, action.refusal)
                refused += result is None or isinstance(result, NotRetryable)
            for result in results:
                if isinstance(result, BaseException) and not isinstance(result, NotRetryable):
                    raise result
    return 1 if refused and arguments.task else 0


async def _acted(
    action: Action, name: str, stores: Stores, chosen: Chosen, clock: Clock
) -> str | None:
    return await recorded(
        stores.tasks, name, chosen[0], lambda: action.act(stores.tasks, chosen, clock.now_ms())
    )


async def _find(
    action: Action, arguments: argparse.Namespace, stores: Stores, clock: Clock
) -> list[Chosen]:
    now_ms = clock.now_ms()
    filters = _wanted(arguments, now_ms)
    filters = replace(filters, statuses=(filters.statuses or action.statuses) & action.statuses)
    fences: dict[TaskRef, int] = {}
    cursor, is_begun = None, False
    while filters.statuses and (cursor is not None or not is_begun):
        page = await stores.tasks.find(filters, PAGE, cursor)
        fences |= {
            record.ref: record.fence for record in page.records if action.is_meant(record, now_ms)
        }
        cursor, is_begun = page.cursor, True
    return list(fences.items())


def _report(
    arguments: argparse.Namespace, ref: TaskRef, result: str | BaseException | None, refusal: str
) -> None:
    if isinstance(result, NotRetryable):
        result, refusal = None, str(result)
    if isinstance(result, BaseException):
        say(
            f"{ref} may or may not have been changed: check it with `tasks show`, and try again",
            to=sys.stderr,
        )
    elif arguments.json:
        show_json({"task": str(ref), "done": result is not None, "text": result or refusal})
    elif result is None:
        say(f"{ref} {refusal}", to=sys.stderr)
    else:
        say(f"{ref} {result}")


def _is_agreed(arguments: argparse.Namespace, refs: Sequence[TaskRef], *, is_named: bool) -> bool:
    """Return whether to act on the tasks: they were named, `--yes` is set, or the operator
    confirms. For `--dry-run`, print them and return False."""
    count = f"{len(refs)} task{'s' * (len(refs) != 1)}"
    if arguments.dry_run or not refs:
        for ref in refs:
            say(ref)
        say(f"{arguments.action}: {count}", to=sys.stderr)
        return False
    if arguments.yes or is_named:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        say(f"{arguments.action} {count}: confirm with --yes", to=sys.stderr)
        return False
    say(f"{arguments.action} {count}? [y/N]", to=sys.stderr)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
