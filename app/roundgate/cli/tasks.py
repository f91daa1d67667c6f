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
from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any, Final

from roundgate import config
from roundgate.cli.arguments import (
    Commands,
    add_config_option,
    age_ms,
    command,
    configuration_file,
    flag,
    number,
    repeated,
    task_ref,
)
from roundgate.cli.output import OutputStatus as StatusLine
from roundgate.cli.output import say, show_json, show_table, show_text
from roundgate.client import Progress
from roundgate.clock import Clock, iso, span
from roundgate.config import ConfigFile
from roundgate.errors import ConfigError, NotRetryable, ParseError, Unavailable
from roundgate.json import encode
from roundgate.operators import ACTIONS, Act, Acted, TaskControl
from roundgate.operators.continuing import StepDone, steps_done
from roundgate.operators.facts import activity, details, known, task_facts
from roundgate.operators.finding import count_versions, search
from roundgate.operators.histories import export
from roundgate.protocol import OPEN, Status
from roundgate.runtime.startup import Stores, make_stores, make_trail
from roundgate.settings import Settings, TasksConfig
from roundgate.settings import process as settings
from roundgate.storage import Ending, TaskRecord, TaskRef, Wanted
from roundgate.tasks.external import decode_payload

PLACEHOLDER: Final = "unset-while-tasks-are-looked-at"
"""The value of `${…}` references whose variables only the gateway has."""
COUNTED: Final = 100_000
"""The limit on the open tasks that `count` reads, which take some 60 MB of memory."""
_AT_ONCE: Final = 16
_ACTS: Final = (
    (
        "cancel",
        "cancel tasks",
        "roundgate tasks cancel OWNER.ID",
        "roundgate tasks cancel --tool refund --older-than 1d --dry-run",
    ),
    (
        "requeue",
        "queue waiting tasks again, and named tasks even if a worker runs them",
        "roundgate tasks requeue OWNER.ID",
    ),
    (
        "retry",
        "continue tasks at their failed step, and parked tasks",
        "roundgate tasks retry OWNER.ID",
        "roundgate tasks retry OWNER.ID --from charge",
        "roundgate tasks retry --tool refund --outcome step_failed --yes",
    ),
    (
        "purge",
        "delete tasks that ended, with their results",
        "roundgate tasks purge OWNER.ID",
        "roundgate tasks purge --owner OWNER --older-than 30d --yes",
    ),
)
"""The actions on several tasks: the name of each, its help, and examples."""


def declare(commands: Commands) -> None:
    """Add `roundgate tasks`."""
    tasks = command(commands, "tasks", "list and manage tasks, as the operator", run=run)
    actions = tasks.add_subparsers(dest="action", required=True)

    listed = _task_action(
        actions,
        "list",
        "list tasks",
        "roundgate tasks list --status working --older-than 1h",
        "roundgate tasks list --status failed --tool refund --json | jq -r .task",
        "roundgate tasks list --outcome step_failed",
    )
    _add_filters(listed)
    about = "maximum number of tasks to show (default: %(default)s)"
    listed.add_argument("--limit", type=number(int, 1, 999_999_999), default=100, help=about)
    listed.add_argument(
        "--cursor", help="continue a list from the value that the previous page printed"
    )

    about = "show a task, without its arguments, answers and result"
    show = _task_action(actions, "show", about, "roundgate tasks show OWNER.ID")
    show.add_argument("task", type=task_ref, help=_AS_LISTED)
    about = "print a line for each change of a task, until it ends"
    watch = _task_action(actions, "watch", about, "roundgate tasks watch OWNER.ID")
    watch.add_argument("task", type=task_ref, help=_AS_LISTED)
    seconds, about = number(float, 0.1, 3_600), "seconds between two reads (default: %(default)s)"
    watch.add_argument("--interval", type=seconds, default=1.0, metavar="SECONDS", help=about)

    about = "count open tasks, and show the age of the oldest"
    _task_action(actions, "count", about, "roundgate tasks count")
    about = "count open tasks by their version of a changed handler (ctx.version)"
    versions = _task_action(actions, "versions", about, "roundgate tasks versions --tool refund")
    versions.add_argument("--tool", help="only tasks of this tool")
    _declare_export(actions)
    for name, about, *examples in _ACTS:
        action = _task_action(actions, name, about, *examples)
        action.add_argument("task", type=task_ref, nargs="*", help=_AS_LISTED)
        _add_filters(action)
        flag(action, "--dry-run", "only print the tasks")
        flag(action, "--yes", "do not ask for confirmation")
        if name == "retry":
            about = "repeat this step, named as `show` prints it, and all later steps; for one task"
            action.add_argument("--from", dest="from_step", metavar="STEP", help=about)
    about = "deliver an external event that a task waits for"
    event = _task_action(
        actions,
        "event",
        about,
        "roundgate tasks event OWNER.ID paid --payload-file payment.json",
        "roundgate tasks event OWNER.ID paid --payload-file - < payment.json",
    )
    event.add_argument("task", type=task_ref, help=_AS_LISTED)
    event.add_argument("event", metavar="NAME", help="name of the event, as `show` prints it")
    about = "file with the payload as JSON; - for standard input (default: null)"
    event.add_argument("--payload-file", metavar="FILE", help=about)


def _declare_export(actions: Commands) -> None:
    about = "print recorded histories of tasks, one per line, to replay in a test"
    export = command(
        actions, "export", about, "roundgate tasks export --tool refund > histories.jsonl",
        "roundgate tasks export --values --redact email --limit 20 > histories.jsonl",
    )  # fmt: skip
    add_config_option(export, "of the tasks")
    _add_filters(export)
    about = "maximum number of tasks to export (default: %(default)s)"
    export.add_argument("--limit", type=number(int, 1, 1_000_000), default=100, help=about)
    about = "skip tasks with a longer history, in bytes (default: %(default)s)"
    export.add_argument("--max-bytes", type=number(int, 1, 10**9), default=1_000_000, help=about)
    flag(export, "--values", "include arguments, results, answers and callers, for an exact replay")
    about = "redact the values of this member, step or field; may be repeated"
    repeated(export, "--redact", "NAME", about)


_AS_LISTED: Final = "task, as `list` prints it"


def _task_action(
    actions: Commands, name: str, about: str, *examples: str
) -> argparse.ArgumentParser:
    action = command(actions, name, about, *examples)
    add_config_option(action, "of the tasks")
    flag(action, "--json", "print JSON objects, one per line")
    return action


def _add_filters(parser: argparse.ArgumentParser) -> None:
    about = "only tasks of this owner: the part of OWNER.ID before the dot"
    parser.add_argument("--owner", help=about)
    parser.add_argument("--tool", help="only tasks of this tool")
    statuses = ("working", "input_required", "completed", "failed", "cancelled")
    about = "only tasks with this status, where a failed step counts as failed; may be repeated"
    parser.add_argument("--status", choices=statuses, action="append", help=about)
    outcomes = ("ok", "tool_error", "step_failed", "error", "cancelled")
    about = "only tasks with this outcome; may be repeated"
    parser.add_argument("--outcome", choices=outcomes, action="append", help=about)
    about = "only tasks older than this age: 90s, 15m, 2h, 1d"
    parser.add_argument("--older-than", type=age_ms, metavar="AGE", help=about)


def run(arguments: argparse.Namespace) -> int:
    """Run a `tasks` action and return its exit status (`roundgate docs cli`): 1 if the task does
    not exist or the store cannot be reached.

    Raises:
        ConfigError: a setting in the environment is invalid, or an act cannot be recorded.
    """
    clock = Clock()
    file = configuration_file(arguments.config)
    using = settings.from_environment({**os.environ, "GATEWAY_CONFIG": str(file)})
    if using.store_kind.is_file and not using.store_file.exists():
        say(
            f"there is no store at {using.store_file}: set GATEWAY_STORE to the gateway's store,"
            " or pass its gateway.yaml with --config",
            to=sys.stderr,
        )
        return 1
    gateway = _configuration(using, arguments.action)
    tasks = TasksConfig() if gateway is None else gateway.config.tasks
    trail = None
    if gateway is not None and arguments.action in ACTIONS:
        trail = make_trail(gateway, using, clock, "command")
    stores = make_stores(using, clock, tasks.shards, trail=trail)
    try:
        return asyncio.run(_run(arguments, gateway, stores, clock))
    except Unavailable as error:
        reason = "" if error.__cause__ is None else str(error.__cause__)
        say(str(error) if reason in str(error) else f"{error}: {reason}", to=sys.stderr)
        return 1


def _configuration(using: Settings, action: str) -> ConfigFile | None:
    """Return the gateway.yaml, if the action needs it and it can be read. A search reads every shard
    of the DynamoDB index, acts are recorded in the audit log, and `show` may show values.

    Raises:
        ConfigError: the gateway.yaml does not say whether an act has to be recorded.
    """
    has_shards, is_act = using.store_kind.has_shards, action in ACTIONS
    is_named = is_act and "GATEWAY_CONFIG" in os.environ
    if not (using.config.is_file() or is_named) or not (has_shards or is_act or action == "show"):
        return None
    inspected = config.inspect(using.config, placeholder=PLACEHOLDER)
    file = inspected.file
    if is_act and (
        file is None or any(each.path.startswith("audit") for each in inspected.problems)
    ):
        raise ConfigError(inspected.problems)
    if file is None and has_shards:
        say(
            f"{using.config} cannot be read, so the default of tasks.shards,"
            f" {TasksConfig().shards}, is used; run `roundgate check`",
            to=sys.stderr,
        )
    return file


async def _run(
    arguments: argparse.Namespace, gateway: ConfigFile | None, stores: Stores, clock: Clock
) -> int:
    control = TaskControl(stores.tasks, clock, TasksConfig.model_construct())
    console = None if gateway is None else gateway.config.console
    shows_values = console is not None and console.show_values
    try:
        match arguments.action:
            case "list":
                return await _list(arguments, stores, clock)
            case "show":
                return await _show(arguments, stores, clock, shows_values=shows_values)
            case "watch":
                return await _watch(arguments, stores, clock)
            case "count":
                return await _count(arguments, stores, clock)
            case "event":
                return await _deliver(arguments, control)
            case "retry" if arguments.from_step is not None:
                return await _retry_from(arguments, control)
            case "versions":
                return await _versions(arguments, stores, clock)
            case "export":
                filters = _wanted(arguments, clock.now_ms())
                return await _export(arguments, filters, stores, clock)
            case _:
                return await _act(arguments, control)
    finally:
        await stores.queue.aclose()
        await stores.tasks.aclose()
        if stores.tasks.trail is not None:
            await stores.tasks.trail.aclose()


async def _list(arguments: argparse.Namespace, stores: Stores, clock: Clock) -> int:
    now_ms = clock.now_ms()
    try:
        page = await search(
            stores.tasks,
            _wanted(arguments, now_ms),
            cursor=arguments.cursor,
            limit=arguments.limit,
            max_calls=inf,
        )
    except ValueError as error:
        say(f"--cursor: {error}", to=sys.stderr)
        return 2
    records = page.records[::-1]
    if arguments.json:
        for record in records:
            show_json(task_facts(record, now_ms))
    else:
        show_table([_HEAD, *(_row(record, now_ms) for record in records)])
    if page.cursor is not None:
        say(f"more tasks follow: continue with --cursor={page.cursor}", to=sys.stderr)
    return 0


def _wanted(arguments: argparse.Namespace, now_ms: int) -> Wanted:
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


async def _deliver(arguments: argparse.Namespace, control: TaskControl) -> int:
    """Deliver an external event. Return 1 if it was not accepted, and 2 if the payload is not JSON
    or cannot be read."""
    try:
        payload = _payload(arguments.payload_file)
    except (OSError, ParseError) as error:
        say(f"--payload-file: {error}", to=sys.stderr)
        return 2
    act = Act(action="event", event=arguments.event, payload=payload)
    return _report(arguments, await control.act(arguments.task, act))


def _payload(file: str | None) -> Any:
    if file is None:
        return None
    return decode_payload(sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes())


async def _retry_from(arguments: argparse.Namespace, control: TaskControl) -> int:
    """Continue a parked or failed task from a chosen step, after showing the parts that are
    repeated. Return the exit status: 1 if the task cannot continue or the operator did not confirm,
    2 if the arguments name no single task."""
    if len(arguments.task) != 1 or _has_filters(arguments):
        say("--from needs exactly one task: name it, without filters", to=sys.stderr)
        return 2
    (ref,), step = arguments.task, arguments.from_step
    try:
        repeated = await control.repeats(ref, step)
    except NotRetryable as refusal:
        return _report(arguments, Acted(task=str(ref), done=False, text=str(refusal)))
    for effect, names in repeated.lines():
        say(f"{effect}: {names}", to=sys.stderr)
    if not _is_agreed(arguments, [ref], is_named=False):
        return 0 if arguments.dry_run else 1
    return _report(arguments, await control.act(ref, Act(action="retry", step=step)))


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


_HEAD: Final = ("TASK", "TOOL", "STATUS", "OUTCOME", "AGE", "CHANGED", "TURNS", "DEATHS", "DOING")


def _row(record: TaskRecord, now_ms: int) -> tuple[str, ...]:
    return (
        str(record.ref),
        record.tool,
        "expired" if record.expires_ms <= now_ms else record.shown_status.value,
        "-" if record.ending is None else record.ending.value,
        span(now_ms - record.created_ms),
        span(now_ms - record.updated_ms),
        str(record.fence),
        str(record.deaths),
        activity(record, now_ms),
    )


def _print_facts(facts: Mapping[str, Any], steps: Sequence[StepDone] | None) -> None:
    for detail in details(facts):
        say(f"{detail.label + ':':14}{detail.text}")
    if steps is None:
        say(f"{'steps:':14}unknown: they have expired, or were written by a later version")
    for index, step in enumerate(steps or ()):
        say(f"{'steps:' if index == 0 else '':14}{step.name}: {_step_state(step)}")


def _step_state(step: StepDone) -> str:
    times = "" if step.attempts is None else f" after {step.attempts} attempt"
    times += "s" if (step.attempts or 1) > 1 else ""
    if step.again_ms is not None:
        return f"failed{times}, will be retried at {iso(step.again_ms)}"
    return f"{step.state}{times}"


async def _export(
    arguments: argparse.Namespace, filters: Wanted, stores: Stores, clock: Clock
) -> int:
    """Print the histories of the tasks that a search selects, one per line; return 0. Report skipped
    tasks on standard error."""
    skipped: Counter[str] = Counter()
    written = 0
    async for exported in export(
        stores.tasks, filters, clock, arguments.redact if arguments.values else None
    ):
        if written == arguments.limit:
            say(f"more tasks exist than --limit={arguments.limit}", to=sys.stderr)
            break
        if isinstance(exported, str):
            skipped[exported] += 1
        elif len(line := encode(exported.to_json())) > arguments.max_bytes:
            skipped[f"longer than --max-bytes={arguments.max_bytes}"] += 1
        else:
            show_text(line.decode())
            written += 1
    for reason, count in skipped.items():
        say(f"skipped, {reason}: {count}", to=sys.stderr)
    return 0


async def _act(arguments: argparse.Namespace, control: TaskControl) -> int:
    """Act on the named or selected tasks. Return 1 if a named task could not be changed or the
    operator did not confirm, and 2 if the arguments have both names and filters, or neither."""
    if bool(arguments.task) == _has_filters(arguments):
        say(
            "name tasks, or select them with --owner, --tool, --status, --outcome or --older-than,"
            " but not both",
            to=sys.stderr,
        )
        return 2
    act = Act(action=arguments.action)
    is_named = bool(arguments.task)
    chosen: Mapping[TaskRef, int | None] = dict.fromkeys(arguments.task)
    if not is_named:
        wanted = _wanted(arguments, control.clock.now_ms())
        chosen = await control.select(act.action, wanted)
    if not _is_agreed(arguments, list(chosen), is_named=is_named):
        return 0 if arguments.dry_run or not chosen else 1
    status = 0
    with StatusLine(sys.stderr) as line:
        for start in range(0, len(chosen), _AT_ONCE):
            batch = list(chosen.items())[start : start + _AT_ONCE]
            if len(chosen) > _AT_ONCE:
                line.progressed(Progress(start, float(len(chosen)), arguments.action))
            results = await asyncio.gather(
                *(control.act(ref, act, fence) for ref, fence in batch), return_exceptions=True
            )
            line.hide()
            for (ref, _), result in zip(batch, results, strict=True):
                if isinstance(result, BaseException):
                    what = "may or may not have been changed: check it with `tasks show`, and try again"
                    say(f"{ref} {what}", to=sys.stderr)
                else:
                    status |= _report(arguments, result)
            for result in results:
                if isinstance(result, BaseException):
                    raise result
    return status if is_named else 0


def _report(arguments: argparse.Namespace, acted: Acted) -> int:
    """Print the result of an action; return 0 if it was done, otherwise 1."""
    if arguments.json:
        show_json(acted.model_dump())
    else:
        say(f"{acted.task} {acted.text}", to=sys.stdout if acted.done else sys.stderr)
    return 0 if acted.done else 1


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
    say(ACTIONS[arguments.action].effect, to=sys.stderr)
    say(f"{arguments.action} {count}? [y/N]", to=sys.stderr)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
