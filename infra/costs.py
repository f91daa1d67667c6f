"""The cost and capacity of the deployed gateway: counted units times published prices.

    python -m infra.costs             print the tables
    python -m infra.costs --write     write the tables into bench/costs.md

The counts are in infra/measured.json. tests/roundgate_aws/functions/test_costs_at_aws.py runs both functions and
counts their units; with MEASURE=1 in its environment it writes the file. `Assumed` has the
assumptions, `Prices` the prices of AWS: edit them to see the costs of your tools and region.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roundgate_aws.template import StackTemplate

MILLION = 1_000_000
GB = 1_000_000_000
MINUTES = 30 * 24 * 60
"""The number of minutes in a month of 30 days."""


@dataclass(frozen=True)
class Prices:
    """The prices in us-east-1 in dollars on 2026-11-22, without free tiers and volume discounts."""

    api: float = 1.00
    """Per million requests of an HTTP API, each started 512 KB counting as one:
    https://aws.amazon.com/api-gateway/pricing/"""
    invocations: float = 0.20
    """Per million invocations: https://aws.amazon.com/lambda/pricing/"""
    gb_s: float = 0.0000133334
    """Per GB-second on arm64, from the same page; 0.0000166667 on x86_64"""
    writes: float = 0.625
    """Per million write request units, on demand:
    https://aws.amazon.com/dynamodb/pricing/on-demand/"""
    reads: float = 0.125
    """Per million read request units, from the same page"""
    messages: float = 0.40
    """Per million requests of a standard queue: https://aws.amazon.com/sqs/pricing/"""
    secret: float = 0.40
    """Per secret and month: https://aws.amazon.com/secrets-manager/pricing/"""
    secret_reads: float = 5.00
    """Per million API calls, from the same page"""
    log_gb: float = 0.50
    """Per GB of ingested logs: https://aws.amazon.com/cloudwatch/pricing/"""
    alarm: float = 0.10
    """Per metric of an alarm and month, from the same page"""
    metric: float = 0.30
    """Per custom metric and month, from the same page"""
    dashboard: float = 3.00
    """Per dashboard and month, from the same page; an account's first three are free"""
    snapshot: float = 0.0000015046
    """Per GB-second that a snapshot of a Python function is kept, from the page of AWS Lambda"""
    restore: float = 0.0001397998
    """Per GB that is restored from one, from the same page"""
    key: float = 1.00
    """Per key and month: https://aws.amazon.com/kms/pricing/"""
    key_calls: float = 3.00
    """Per million calls, from the same page"""
    nat: float = 0.045
    """Per NAT gateway and hour, and the same per GB: https://aws.amazon.com/vpc/pricing/"""
    endpoint: float = 0.01
    """Per interface endpoint, zone and hour: https://aws.amazon.com/privatelink/pricing/"""
    traces: float = 5.00
    """Per million traces: https://aws.amazon.com/xray/pricing/"""


@dataclass(frozen=True)
class Assumed:
    """The assumptions about tools and traffic."""

    gateway_ms: float = 20
    """The milliseconds of the gateway function for a request. A tool that waits for a service is
    billed while it waits."""
    worker_ms: float = 100
    """The milliseconds of the worker function for a message or a sweep."""
    requests_per_key_read: float = 300
    """The requests between two reads of the keys. An environment that serves rounds reads them
    every five minutes; the default is one request a second."""
    steps: int = 3
    polls: int = 10
    resends: float = 0
    """The messages that the sweep resends for a task, after a worker died or in a backlog."""
    cold_ms: float = 361
    """The milliseconds of a cold start of the gateway function (`start_ms` of bench/results.json),
    which AWS bills like an invocation."""
    cold: float = 0.01
    """The share of requests that start a function."""
    zones: int = 2
    key_calls: float = 10
    """The calls of a key in five minutes: DynamoDB and SQS keep what they decrypt for so long."""
    traced: float = 0.05
    """The share of requests that AWS X-Ray samples, beside one a second."""


@dataclass(frozen=True)
class Units:
    """The billable units of one operation."""

    requests: float = 0
    """The requests to the API; each is an invocation of the gateway function."""
    turns: float = 0
    """The invocations of the worker function."""
    writes: float = 0
    reads: float = 0
    messages: float = 0
    secret_reads: float = 0
    log_bytes: float = 0
    """The bytes of the log lines, without the bytes that AWS adds to each."""


LEVELS, FORMATS = ("debug", "info", "warning", "error"), ("json", "text")
LOGGED = "info json"
"""The level and format of the computed costs, the defaults of the stack."""
AWS_LOG_BYTES = {"api": 219 + 26, "function": 266 + 3 * 26}
"""The bytes of AWS's own lines: the API's line as defined in template.yaml; START, END and REPORT
of an invocation; and 26 for each line."""

LONG_STEPS, LONG_STEP_BYTES = 20, 200
"""The steps, and bytes per step, of the longer task that is counted. Its row grows with each step,
and each write is billed for the whole row."""


@dataclass(frozen=True)
class Writes:
    """The write units of one operation."""

    table: float
    due: float
    """The writes of the index of due tasks, whose keys are the shards."""
    owned: float
    """The writes of the index of owners, in which each owner is a key."""

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
    """The units counted by DynamoDB Local: a task's rows, and the index entries written or moved
    for them.

    A turn is all that a worker writes when it runs a task, except the steps. `step` is a step of a
    task with few and small steps; `long_step` is the average of `LONG_STEPS` steps of
    `LONG_STEP_BYTES` each.
    """

    create: Writes
    turn_that_asks: Writes
    turn_that_ends: Writes
    step: Writes
    long_step: Writes
    answer: Writes
    resend: Writes
    sweep: Writes
    """The writes of a sweep that finds no tasks: it records its time in the table."""
    poll_reads: float
    sweep_reads: float
    log_bytes: Mapping[str, Mapping[str, int]]
    """The bytes that both functions log for each operation, by level and format."""

    @property
    def logged(self) -> Mapping[str, int]:
        """The bytes that the functions log for each operation with the defaults of the stack."""
        return self.log_bytes[LOGGED]

    @classmethod
    def read(cls) -> Measured:
        """Read the counts from `MEASURED`."""
        values: dict[str, Any] = json.loads(MEASURED.read_text("utf-8"))
        fields: dict[str, Any] = {
            name: Writes(*value) if isinstance(value, list) else value
            for name, value in values.items()
        }
        return cls(**fields)

    def write(self) -> None:
        """Write the counts to `MEASURED`."""
        values = {
            name: [writes.table, writes.due, writes.owned] if isinstance(writes, Writes) else writes
            for name, writes in vars(self).items()
        }
        lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in values.items()]
        MEASURED.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")

    def task(self, assumed: Assumed) -> Writes:
        """Return the write units of a task with few small steps and a question."""
        turns = self.create + self.turn_that_asks + self.answer + self.turn_that_ends
        return turns + self.step * assumed.steps + self.resend * assumed.resends

    def long_task(self, assumed: Assumed) -> Writes:
        """Return the write units of a task with many steps and no question."""
        turn = self.create + self.turn_that_ends
        return turn + self.long_step * LONG_STEPS + self.resend * assumed.resends


ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "infra/measured.json"
DOCUMENT = ROOT / "bench/costs.md"


def plain_call(measured: Measured) -> Units:
    """Return the units of a call that is answered immediately."""
    return Units(requests=1, log_bytes=measured.logged["plain call"])


def call_in_rounds(rounds: int, assumed: Assumed, measured: Measured) -> Units:
    """Return the units of a call that asks questions and stores nothing."""
    return Units(
        requests=rounds,
        secret_reads=rounds / assumed.requests_per_key_read,
        log_bytes=rounds * measured.logged["round"],
    )


def task(assumed: Assumed, measured: Measured) -> Units:
    """Return the units of a call that becomes a task, asks once and is polled. All values are
    small, and each message is a batch of its own."""
    return _task(measured.task(assumed), 2, assumed, measured, "task")


def long_task(assumed: Assumed, measured: Measured) -> Units:
    """Return the units of a call that becomes a task of many steps and is polled."""
    return _task(measured.long_task(assumed), 1, assumed, measured, "long task")


def _task(writes: Writes, turns: int, assumed: Assumed, measured: Measured, kind: str) -> Units:
    requests, sent = (
        turns + assumed.polls,
        turns + assumed.resends,
    )  # each turn follows a call or an answer
    # a claim, an answer and a sweep read the head before they write it
    changes = 2 * turns - 1 + 2 * assumed.resends
    return Units(
        requests=requests,
        turns=sent,
        writes=writes.together,
        reads=assumed.polls * measured.poll_reads + changes,
        messages=3 * sent,  # sent, received, deleted
        log_bytes=measured.logged[kind],  # with ten polls and no resends
    )


@dataclass(frozen=True)
class Bill:
    """The cost of units, in dollars per million operations."""

    units: Units
    prices: Prices
    assumed: Assumed
    gateway_gb: float
    worker_gb: float

    def lines(self) -> Iterator[tuple[str, float]]:
        """Yield each service with its cost in dollars."""
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
    template: StackTemplate, prices: Prices, assumed: Assumed, measured: Measured, worker_gb: float
) -> Iterator[tuple[str, float]]:
    """Yield each item of a month without calls, with its cost in dollars."""
    resources = [resource["Type"] for resource in template.source["Resources"].values()]
    sweep = assumed.worker_ms / 1000 * worker_gb * prices.gb_s + prices.invocations / MILLION
    sweep_log = (measured.logged["sweep"] + 26 + AWS_LOG_BYTES["function"]) / GB * prices.log_gb
    yield "metrics of alarms", alarm_metrics(template) * prices.alarm
    yield "dashboard", resources.count("AWS::CloudWatch::Dashboard") * prices.dashboard
    yield "metrics of the sweep", len(SWEEP_METRICS) * prices.metric
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


def alarm_metrics(template: StackTemplate) -> int:
    """Return the number of metrics that the alarms look at. An expression is not billed."""
    names = template.named("AWS::CloudWatch::Alarm")
    looked_at = (template.properties(name).get("Metrics", [{}]) for name in names)
    return sum("Expression" not in metric for metrics in looked_at for metric in metrics)


ENDPOINTS = ("SQS", "Secrets Manager")
"""The services that functions in a network reach through interface endpoints. The gateway endpoint
of DynamoDB is free."""


def options(
    prices: Prices, assumed: Assumed, gateway_gb: float
) -> Iterator[tuple[str, list[float]]]:
    """Yield the costs of options that are in no other table: dollars per month, and per million
    requests."""
    cold = assumed.cold * MILLION
    hours = MINUTES / 60
    keeping = gateway_gb * MINUTES * 60 * prices.snapshot
    key_calls = assumed.key_calls * MINUTES / 5 / MILLION * prices.key_calls
    yield (
        f"cold starts, one request in {1 / assumed.cold:.0f}",
        [0, cold * assumed.cold_ms / 1000 * gateway_gb * prices.gb_s],
    )
    yield "`SnapStart=on`, likewise", [keeping, cold * gateway_gb * prices.restore]
    yield "`KmsKeyArn`: a key and its calls", [prices.key + key_calls, 0]
    yield "`Tracing=Active`", [0, assumed.traced * prices.traces]
    yield (
        f"a network: a NAT gateway in each of {assumed.zones} zones",
        [assumed.zones * hours * prices.nat, 0],
    )
    yield (
        f"a network: endpoints of {' and '.join(ENDPOINTS)} in {assumed.zones} zones",
        [len(ENDPOINTS) * assumed.zones * hours * prices.endpoint, 0],
    )


NEW_TABLE, WARMED_TABLE, PARTITION = 4_000, 40_000, 1_000
"""The write units per second of a new on-demand table, of a table warmed with its indexes to an
account's initial quota, and of one key of an index."""
SHARDS = (8, 32)
"""The numbers of keys among which the index distributes the open tasks."""
ACCOUNT_REQUESTS = 10_000
"""The initial quota of requests per second for all HTTP APIs of an account in a region; 2,500 in
some regions: https://docs.aws.amazon.com/apigateway/latest/developerguide/limits.html"""
EXECUTIONS = {"a new account": 10, "an older account": 1_000}
"""The initial quotas of concurrent functions of an account in a region."""
INVOCATIONS_PER_EXECUTION = 10
"""The invocations per second that an account may make for each concurrent execution, however short:
https://docs.aws.amazon.com/lambda/latest/dg/lambda-concurrency.html"""


def ceilings(
    template: StackTemplate, measured: Measured, assumed: Assumed
) -> Iterator[tuple[str, list[float]]]:
    """Yield the number of tasks per second that each part supports from creation to end. Beyond it,
    requests get 429, or writes are throttled."""
    parameters = template.source["Parameters"]
    rate, workers = (parameters[name]["Default"] for name in ("RequestRate", "WorkerConcurrency"))
    both = (task(assumed, measured), long_task(assumed, measured))
    for whose, executions in EXECUTIONS.items():
        held = [_tasks_per_second(units, assumed, executions) for units in both]
        yield f"{whose}, {executions:,} functions at once", held
    turn_s = assumed.worker_ms / 1000
    held = [workers / (units.turns * turn_s) for units in both]
    yield f"workers, {workers} at once (`WorkerConcurrency`)", held
    for whose, most in (("`RequestRate`", rate), ("an account, at first", ACCOUNT_REQUESTS)):
        held = [most / units.requests for units in both]
        yield f"API, {most:,} requests a second ({whose})", held
    kinds = (measured.task(assumed), measured.long_task(assumed))
    for what, units in (("new table", NEW_TABLE), ("warmed table and indexes", WARMED_TABLE)):
        for shards in SHARDS:
            held = [_ceiling(writes, units, shards) for writes in kinds]
            yield f"{what}, {units:,} units; {shards} shards", held


def _tasks_per_second(units: Units, assumed: Assumed, executions: int) -> float:
    """Return the tasks per second that an account's functions support, by their time and number."""
    busy_s = (units.requests * assumed.gateway_ms + units.turns * assumed.worker_ms) / 1000
    invocations = units.requests + units.turns
    return min(executions / busy_s, executions * INVOCATIONS_PER_EXECUTION / invocations)


def _ceiling(writes: Writes, units: int, shards: int) -> float:
    of_due = min(units, shards * PARTITION)
    return min(units / writes.table, of_due / writes.due, units / writes.owned)


SWEEP_METRICS = ("overdue_s", "late")
"""The metrics that CloudWatch extracts from a sweep's log line."""
TASK_METRICS = ("created", "claimed", "ended", "ended")
"""The metrics of tasks, which are billed while there are tasks. Both functions end tasks."""


def tables(prices: Prices, assumed: Assumed) -> str:
    """Return all tables as Markdown."""
    template, measured = StackTemplate({}, {}), Measured.read()
    gateway_gb, worker_gb = (
        template.source["Parameters"][name]["Default"] / 1024
        for name in ("GatewayMemory", "WorkerMemory")
    )
    columns = {
        "plain call": plain_call(measured),
        "call in 3 rounds": call_in_rounds(3, assumed, measured),
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
        (name, [float(int(value)) for value in tasks])
        for name, tasks in ceilings(template, measured, assumed)
    ]
    kinds = list(columns)[2:]
    parts = [
        *table(["$ per million", *columns], rows),
        "",
        *table(["idle, $ per month", ""], months),
        "",
    ]
    more = list(options(prices, assumed, gateway_gb))
    head = ["more, $", "per month", "per million requests"]
    parts += [*plain_table(head, more, "{:.2f}"), ""]
    written = [
        (name, [value.table, value.due, value.owned])
        for name, value in vars(measured).items()
        if isinstance(value, Writes)
    ]
    parts += [
        *plain_table(
            ["write units", "table", "index of due tasks", "index of owners"], written, "{:g}"
        ),
        "",
    ]
    parts += [*plain_table(["tasks a second, at most", *kinds], held, "{:,.0f}"), ""]
    logged = [
        (settings.replace(" ", ", "), [float(count) for count in operations.values()])
        for settings, operations in measured.log_bytes.items()
    ]
    head = ["bytes of logs", *measured.logged]
    return "\n".join([*parts, *plain_table(head, logged, "{:,.0f}"), ""])


def table(head: Sequence[str], rows: Sequence[tuple[str, Sequence[float]]]) -> list[str]:
    """Return the lines of a Markdown table of costs in dollars, with a row of sums."""
    sums = [sum(column) for column in zip(*(costs for _, costs in rows), strict=True)]
    together = f"| **together** | {' | '.join(f'**{cost:.2f}**' for cost in sums)} |"
    return [*plain_table(head, rows, "{:.2f}"), together]


def plain_table(
    head: Sequence[str], rows: Sequence[tuple[str, Sequence[float]]], form: str
) -> list[str]:
    """Return the lines of a Markdown table of numbers."""
    body = [
        f"| {name.replace('_', ' ')} | " + " | ".join(map(form.format, numbers)) + " |"
        for name, numbers in rows
    ]
    return [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1), *body]


BEGIN, END = "<!-- python -m infra.costs --write -->", "<!-- end -->"


def documented(text: str) -> str:
    """Return the document with new tables between its markers."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{tables(Prices(), Assumed())}{END}{rest.partition(END)[2]}"


def main() -> None:
    """Print the tables, or write them into the document."""
    if sys.argv[1:] == ["--write"]:
        DOCUMENT.write_text(documented(DOCUMENT.read_text("utf-8")), "utf-8")
    else:
        print(tables(Prices(), Assumed()), end="")


if __name__ == "__main__":
    main()
