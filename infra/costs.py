"""What the deployed gateway costs, and how much it holds: counted units, times published prices.

    python -m infra.costs                                   the tables
    python -m infra.costs --set gateway_ms=80 --set api=1.11   with your durations, and the prices of your region
    python -m infra.costs --write                           the tables into docs/appendix-aws.md

What is counted is in infra/measured.json: tests/functions/test_costs_at_aws.py lets both functions
work and counts, and with MEASURE=1 in its environment writes what it has counted. What is assumed
is in `Assumed`, what AWS asks in `Prices`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from roundgate.deployment.template import Template

MILLION = 1_000_000
GB = 1_000_000_000
MINUTES = 30 * 24 * 60
"""Of a month."""


@dataclass(frozen=True)
class Prices:
    """In dollars: us-east-1, without free tiers and volume discounts, as
    looked up on 2026-11-22."""

    api: float = 1.00
    """A million requests of an HTTP API, each 512 KB begun:
    https://aws.amazon.com/api-gateway/pricing/"""
    invocations: float = 0.20
    """A million: https://aws.amazon.com/lambda/pricing/"""
    gb_s: float = 0.0000133334
    """A GB-second on arm64; 0.0000166667 on x86_64: the same page"""
    writes: float = 0.625
    """A million write request units, on demand:
    https://aws.amazon.com/dynamodb/pricing/on-demand/"""
    reads: float = 0.125
    """A million read request units: the same page"""
    messages: float = 0.40
    """A million requests of a standard queue: https://aws.amazon.com/sqs/pricing/"""
    secret: float = 0.40
    """A secret for a month: https://aws.amazon.com/secrets-manager/pricing/"""
    secret_reads: float = 5.00
    """A million calls: the same page"""
    log_gb: float = 0.50
    """A GB of logs that comes in: https://aws.amazon.com/cloudwatch/pricing/"""
    alarm: float = 0.10
    """An alarm for a month: the same page"""
    metric: float = 0.30
    """A metric of one's own for a month: the same page"""
    dashboard: float = 3.00
    """A dashboard for a month, of which the first three of an account are free: the same page"""


@dataclass(frozen=True)
class Assumed:
    """What depends on your tools and your traffic. Cold starts are left out: so is what they
    bill."""

    gateway_ms: float = 20
    """Of the gateway function for a request; a tool that waits for somebody is
    billed while it waits."""
    worker_ms: float = 100
    """Of the worker function for a message, and for a sweep."""
    requests_per_key_read: float = 300
    """An environment reads the keys every five minutes if it sees rounds:
    here with one a second."""
    steps: int = 3
    polls: int = 10
    resends: float = 0
    """Messages for a task that the sweep sent again: of workers that died, and in a backlog."""


T = TypeVar("T", Prices, Assumed)


@dataclass(frozen=True)
class Units:
    """What one of something uses."""

    requests: float = 0
    """Of the API, each of which is an invocation of the gateway function."""
    turns: float = 0
    """Invocations of the worker function."""
    writes: float = 0
    reads: float = 0
    messages: float = 0
    secret_reads: float = 0
    log_bytes: float = 0
    """In log lines, what AWS adds to each left out."""


REQUEST_LOG_BYTES = 200
"""Our line of a request."""
CALL_ID_BYTES = 35
"""The id of its call in a line."""
TASK_NAME_BYTES = 65
"""The name of its task in a line."""
TURN_LOG_BYTES = 260
"""Our line of a worker's turn."""
SWEEP_LOG_BYTES = 680
"""Our line of a sweep, which is the metrics as well."""
AWS_LOG_BYTES = {"api": 100 + 26, "function": 270 + 3 * 26}
"""The API's line as template.yaml words it; START, END and REPORT of an
invocation; 26 for each line."""

LONG_STEPS, LONG_STEP_BYTES = 20, 200
"""Of the longer task that is counted: its row grows with what it remembers, and each write pays for
the whole row."""


@dataclass(frozen=True)
class Writes:
    """Write units of one operation."""

    table: float
    due: float
    """For the index of what is due, whose keys are the shards."""
    owned: float
    """For the index of owners, each of whom is a key."""

    @property
    def together(self) -> float:
        return self.table + self.due + self.owned

    def __add__(self, other: Writes) -> Writes:
        return Writes(self.table + other.table, self.due + other.due, self.owned + other.owned)

    def __mul__(self, times: float) -> Writes:
        return Writes(self.table * times, self.due * times, self.owned * times)

    def __sub__(self, other: Writes) -> Writes:
        return self + other * -1


@dataclass(frozen=True)
class Measured:
    """What DynamoDB Local has counted: rows of a task, and their entry in the index, put or moved
    as its time changes.

    A turn is what a worker writes of a task that it takes up, without steps. `step` is one of few
    and small ones, `long_step` one of `LONG_STEPS` with `LONG_STEP_BYTES` each, on average.
    """

    create: Writes
    turn_that_asks: Writes
    turn_that_ends: Writes
    step: Writes
    long_step: Writes
    answer: Writes
    resend: Writes
    sweep: Writes
    """Of a sweep that finds nothing: it leaves its time in the table."""
    poll_reads: float
    sweep_reads: float

    @classmethod
    def read(cls) -> Measured:
        """From `MEASURED`."""
        values: dict[str, Any] = json.loads(MEASURED.read_text("utf-8"))
        fields: dict[str, Any] = {
            name: Writes(*one) if isinstance(one, list) else one for name, one in values.items()
        }
        return cls(**fields)

    def write(self) -> None:
        """To `MEASURED`."""
        values = {
            name: [one.table, one.due, one.owned] if isinstance(one, Writes) else one
            for name, one in vars(self).items()
        }
        lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in values.items()]
        MEASURED.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")

    def task(self, assumed: Assumed) -> Writes:
        """Of a task with few small steps and a question."""
        turns = self.create + self.turn_that_asks + self.answer + self.turn_that_ends
        return turns + self.step * assumed.steps + self.resend * assumed.resends

    def long_task(self, assumed: Assumed) -> Writes:
        """Of one with many steps and no question."""
        turn = self.create + self.turn_that_ends
        return turn + self.long_step * LONG_STEPS + self.resend * assumed.resends


ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "infra/measured.json"
DOCUMENT = ROOT / "docs/appendix-aws.md"


def plain_call() -> Units:
    """A call that is answered at once."""
    return Units(requests=1, log_bytes=REQUEST_LOG_BYTES)


def call_in_rounds(rounds: int, assumed: Assumed) -> Units:
    """A call that asks: nothing of it is kept."""
    return Units(
        requests=rounds,
        secret_reads=rounds / assumed.requests_per_key_read,
        log_bytes=rounds * (REQUEST_LOG_BYTES + CALL_ID_BYTES),
    )


def task(assumed: Assumed, measured: Measured) -> Units:
    """A call that becomes a task, asks once, and is polled: every value small, every message
    in a batch of its own."""
    return _task(measured.task(assumed), 2, assumed, measured)


def long_task(assumed: Assumed, measured: Measured) -> Units:
    """A call that becomes a task of many steps, and is polled."""
    return _task(measured.long_task(assumed), 1, assumed, measured)


def _task(writes: Writes, turns: int, assumed: Assumed, measured: Measured) -> Units:
    requests, sent = (
        turns + assumed.polls,
        turns + assumed.resends,
    )  # a call or an answer before each turn
    # a claim, an answer and a sweep read the head before they write it
    changes = 2 * turns - 1 + 2 * assumed.resends
    return Units(
        requests=requests,
        turns=sent,
        writes=writes.together,
        reads=assumed.polls * measured.poll_reads + changes,
        messages=3 * sent,  # sent, received, deleted
        log_bytes=requests * (REQUEST_LOG_BYTES + TASK_NAME_BYTES) + sent * TURN_LOG_BYTES,
    )


@dataclass(frozen=True)
class Bill:
    """What units cost, in dollars a million."""

    units: Units
    prices: Prices
    assumed: Assumed
    gateway_gb: float
    worker_gb: float

    def lines(self) -> Iterator[tuple[str, float]]:
        """Service by service."""
        units, prices = self.units, self.prices
        gateway_gb_s = units.requests * self.assumed.gateway_ms / 1000 * self.gateway_gb
        worker_gb_s = units.turns * self.assumed.worker_ms / 1000 * self.worker_gb
        invocations = units.requests + units.turns
        aws_bytes = units.requests * AWS_LOG_BYTES["api"] + invocations * AWS_LOG_BYTES["function"]
        yield "HTTP API: requests", units.requests * prices.api
        yield "Lambda: invocations", invocations * prices.invocations
        yield "Lambda: GB-seconds", (gateway_gb_s + worker_gb_s) * prices.gb_s * MILLION
        yield "DynamoDB: request units", units.writes * prices.writes + units.reads * prices.reads
        yield "SQS: requests", units.messages * prices.messages
        yield "Secrets Manager: reads", units.secret_reads * prices.secret_reads
        yield (
            "CloudWatch: logs",
            (units.log_bytes + aws_bytes + 26 * invocations) * MILLION / GB * prices.log_gb,
        )


def idle(
    template: Template, prices: Prices, assumed: Assumed, measured: Measured, worker_gb: float
) -> Iterator[tuple[str, float]]:
    """What a month costs in which nobody calls."""
    resources = [one["Type"] for one in template.source["Resources"].values()]
    sweep = assumed.worker_ms / 1000 * worker_gb * prices.gb_s + prices.invocations / MILLION
    sweep_log = (SWEEP_LOG_BYTES + 26 + AWS_LOG_BYTES["function"]) / GB * prices.log_gb
    yield "alarms", resources.count("AWS::CloudWatch::Alarm") * prices.alarm
    yield "dashboard", resources.count("AWS::CloudWatch::Dashboard") * prices.dashboard
    yield "metrics of the sweep", METRICS * prices.metric
    yield "secret", prices.secret
    yield (
        "sweep, each minute",
        MINUTES
        * (
            sweep
            + sweep_log
            + measured.sweep_reads * prices.reads / MILLION
            + measured.sweep.together * prices.writes / MILLION
        ),
    )
    yield (
        "queue: 5 pollers of the event source, each 20 s",
        MINUTES * 15 / MILLION * prices.messages,
    )


NEW_TABLE, WARMED_TABLE, PARTITION = 4_000, 40_000, 1_000
"""Write units a second: of a table on demand that is new, of one that has been warmed with each of
its indexes to an account's first quota, and of one key of an index."""
SHARDS = (8, 32)
"""Keys among which the index has the open tasks."""


def ceilings(
    template: Template, measured: Measured, assumed: Assumed
) -> Iterator[tuple[str, list[float]]]:
    """Yield how many tasks a second, begun and ended, each part holds; beyond that requests are
    answered 429, or writes are throttled."""
    rate = template.source["Parameters"]["RequestRate"]["Default"]
    requests = (task(assumed, measured).requests, long_task(assumed, measured).requests)
    yield f"API, {rate:,} requests a second (`RequestRate`)", [rate / one for one in requests]
    kinds = (measured.task(assumed), measured.long_task(assumed))
    for what, units in (("new table", NEW_TABLE), ("warmed table and indexes", WARMED_TABLE)):
        for shards in SHARDS:
            held = [_ceiling(writes, units, shards) for writes in kinds]
            yield f"{what}, {units:,} units; {shards} shards", held


def _ceiling(writes: Writes, units: int, shards: int) -> float:
    of_due = min(units, shards * PARTITION)
    return min(units / writes.table, of_due / writes.due, units / writes.owned)


METRICS = 6
"""Members of the sweep's line that CloudWatch makes metrics of."""


def tables(prices: Prices, assumed: Assumed) -> str:
    """All of them, as Markdown."""
    template, measured = Template(ROOT / "template.yaml", {}, {}), Measured.read()
    gateway_gb, worker_gb = (
        template.source["Parameters"][name]["Default"] / 1024
        for name in ("GatewayMemory", "WorkerMemory")
    )
    columns = {
        "plain call": plain_call(),
        "call in 3 rounds": call_in_rounds(3, assumed),
        f"task: {assumed.steps} steps, 1 question, {assumed.polls} polls": task(assumed, measured),
        f"task: {LONG_STEPS} steps of {LONG_STEP_BYTES} bytes, {assumed.polls} polls": long_task(
            assumed, measured
        ),
    }
    bills = [Bill(units, prices, assumed, gateway_gb, worker_gb) for units in columns.values()]
    each = [dict(bill.lines()) for bill in bills]
    rows = [(name, [costs[name] for costs in each]) for name in each[0]]
    months = [(name, [cost]) for name, cost in idle(template, prices, assumed, measured, worker_gb)]
    held = [
        (name, [float(int(one)) for one in tasks])
        for name, tasks in ceilings(template, measured, assumed)
    ]
    kinds = list(columns)[2:]
    parts = [
        *table(["$ per million", *columns], rows),
        "",
        *table(["idle, $ per month", ""], months),
        "",
    ]
    written = [
        (name, [one.table, one.due, one.owned])
        for name, one in vars(measured).items()
        if isinstance(one, Writes)
    ]
    parts += [
        *plain_table(
            ["write units", "table", "index of due tasks", "index of owners"], written, "{:g}"
        ),
        "",
    ]
    return "\n".join(
        [*parts, *plain_table(["tasks a second, at most", *kinds], held, "{:,.0f}"), ""]
    )


def table(head: Sequence[str], rows: Sequence[tuple[str, Sequence[float]]]) -> list[str]:
    """Lines of Markdown: names and dollars, and their sums."""
    sums = [sum(column) for column in zip(*(costs for _, costs in rows), strict=True)]
    together = f"| **together** | {' | '.join(f'**{cost:.2f}**' for cost in sums)} |"
    return [*plain_table(head, rows, "{:.2f}"), together]


def plain_table(
    head: Sequence[str], rows: Sequence[tuple[str, Sequence[float]]], form: str
) -> list[str]:
    """Lines of Markdown: names and numbers."""
    body = [
        f"| {name.replace('_', ' ')} | " + " | ".join(map(form.format, numbers)) + " |"
        for name, numbers in rows
    ]
    return [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1), *body]


BEGIN, END = "<!-- python -m infra.costs --write -->", "<!-- end -->"


def documented(text: str) -> str:
    """The document with the tables between its marks."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{tables(Prices(), Assumed())}{END}{rest.partition(END)[2]}"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m infra.costs", description=__doc__.partition("\n")[0]
    )
    known = [field.name for one in (Prices, Assumed) for field in fields(one)]
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"one of {', '.join(known)}",
    )
    parser.add_argument(
        "--write", action="store_true", help="put the tables into docs/appendix-aws.md"
    )
    arguments = parser.parse_args(argv)
    if arguments.write:
        DOCUMENT.write_text(documented(DOCUMENT.read_text("utf-8")), "utf-8")
        return 0
    chosen = dict(one.partition("=")[::2] for one in arguments.set)
    if unknown := chosen.keys() - set(known):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    print(tables(_with(Prices(), chosen), _with(Assumed(), chosen)), end="")
    return 0


def _with(one: T, chosen: Mapping[str, str]) -> T:
    """The same with what was chosen otherwise, each as what it is."""
    known = vars(one)
    changes: dict[str, Any] = {
        name: type(known[name])(text) for name, text in chosen.items() if name in known
    }
    return replace(one, **changes)


if __name__ == "__main__":
    sys.exit(main())
