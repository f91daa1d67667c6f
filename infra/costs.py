"""What the deployed gateway costs: counted units, times published prices. docs/deploy.md has what this prints.

    python -m infra.costs                                   the tables
    python -m infra.costs --set gateway_ms=80 --set api=1.11   with your durations, and the prices of your region

What is counted is held by tests/functions/test_costs.py, which lets both functions work and counts. What is assumed is
in `Assumed`, what AWS asks in `Prices`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from infra.stack.template import Template

MILLION = 1_000_000
GB = 1_000_000_000
MINUTES = 30 * 24 * 60
"""Of a month."""


@dataclass(frozen=True)
class Prices:
    """In dollars: us-east-1, without free tiers and volume discounts, as looked up on 2026-11-22."""

    api: float = 1.00
    """A million requests of an HTTP API, each 512 KB begun: https://aws.amazon.com/api-gateway/pricing/"""
    invocations: float = 0.20
    """A million: https://aws.amazon.com/lambda/pricing/"""
    gb_s: float = 0.0000133334
    """A GB-second on arm64; 0.0000166667 on x86_64: the same page"""
    writes: float = 0.625
    """A million write request units, on demand: https://aws.amazon.com/dynamodb/pricing/on-demand/"""
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
    """What depends on your tools and your traffic. Cold starts are left out: so is what they bill."""

    gateway_ms: float = 20
    """Of the gateway function for a request; a tool that waits for somebody is billed while it waits."""
    worker_ms: float = 100
    """Of the worker function for a message, and for a sweep."""
    requests_per_key_read: float = 300
    """An environment reads the keys every five minutes if it sees rounds: here with one a second."""
    steps: int = 3
    polls: int = 10


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
TURN_LOG_BYTES = 200
"""Our line of a worker's turn."""
SWEEP_LOG_BYTES = 680
"""Our line of a sweep, which is the metrics as well."""
AWS_LOG_BYTES = {"api": 100 + 26, "function": 270 + 3 * 26}
"""The API's line as template.yaml words it; START, END and REPORT of an invocation; 26 for each line."""

CREATE_WRITES, ANSWER_WRITES = 3, 3
"""The head, and its entries in two indexes: that of due tasks, where it is put, or moved (two units) as its time
changes, and that of owners, where it stays until the end."""
CLAIM_WRITES, SUSPEND_WRITES, FINISH_WRITES, STEP_WRITES = 3, 3, 3, 1
"""The head, and both entries in the first index, or one in each. A task of many steps writes its journal to rows of its
own as well: 1.3 units a step over 10,000 (docs/tasks.md)."""
SWEEP_READS = 8
"""Eight parts of the index, asked twice, half a unit each."""


def plain_call() -> Units:
    """A call that is answered at once."""
    return Units(requests=1, log_bytes=REQUEST_LOG_BYTES)


def call_in_rounds(rounds: int, assumed: Assumed) -> Units:
    """A call that asks: nothing of it is kept."""
    return Units(
        requests=rounds, secret_reads=rounds / assumed.requests_per_key_read, log_bytes=rounds * REQUEST_LOG_BYTES
    )


def task(assumed: Assumed) -> Units:
    """A call that becomes a task, asks once, and is polled: every value small, every message in a batch of its own."""
    turns, sent, requests = 2, 2, 1 + assumed.polls + 1
    return Units(
        requests=requests,
        turns=turns,
        writes=(
            CREATE_WRITES
            + turns * CLAIM_WRITES
            + assumed.steps * STEP_WRITES
            + SUSPEND_WRITES
            + ANSWER_WRITES
            + FINISH_WRITES
        ),
        reads=assumed.polls,
        messages=3 * sent,  # sent, received, deleted
        log_bytes=requests * REQUEST_LOG_BYTES + turns * TURN_LOG_BYTES,
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
        yield "CloudWatch: logs", (units.log_bytes + aws_bytes + 26 * invocations) * MILLION / GB * prices.log_gb


def idle(template: Template, prices: Prices, assumed: Assumed, worker_gb: float) -> Iterator[tuple[str, float]]:
    """What a month costs in which nobody calls."""
    resources = [one["Type"] for one in template.source["Resources"].values()]
    sweep = assumed.worker_ms / 1000 * worker_gb * prices.gb_s + prices.invocations / MILLION
    sweep_log = (SWEEP_LOG_BYTES + 26 + AWS_LOG_BYTES["function"]) / GB * prices.log_gb
    yield "alarms", resources.count("AWS::CloudWatch::Alarm") * prices.alarm
    yield "dashboard", resources.count("AWS::CloudWatch::Dashboard") * prices.dashboard
    yield "metrics of the sweep", METRICS * prices.metric
    yield "secret", prices.secret
    yield "sweep, each minute", MINUTES * (sweep + sweep_log + SWEEP_READS * prices.reads / MILLION)
    yield "queue: 5 pollers of the event source, each 20 s", MINUTES * 15 / MILLION * prices.messages


METRICS = 6
"""Members of the sweep's line that CloudWatch makes metrics of."""


def tables(prices: Prices, assumed: Assumed) -> str:
    """Both, as Markdown."""
    template = Template(Path(__file__).parents[1] / "template.yaml", {}, {})
    gateway_gb, worker_gb = (
        template.source["Parameters"][name]["Default"] / 1024 for name in ("GatewayMemory", "WorkerMemory")
    )
    columns = {
        "plain call": plain_call(),
        "call in 3 rounds": call_in_rounds(3, assumed),
        f"task: {assumed.steps} steps, 1 question, {assumed.polls} polls": task(assumed),
    }
    bills = [Bill(units, prices, assumed, gateway_gb, worker_gb) for units in columns.values()]
    each = [dict(bill.lines()) for bill in bills]
    rows = [(name, [costs[name] for costs in each]) for name in each[0]]
    months = [(name, [cost]) for name, cost in idle(template, prices, assumed, worker_gb)]
    return "\n".join(
        [*table(["$ per million", *columns], rows), "", *table(["idle, $ per month", ""], months), ""],
    )


def table(head: Sequence[str], rows: Sequence[tuple[str, Sequence[float]]]) -> list[str]:
    """Lines of Markdown: names and dollars, and their sums."""
    sums = [sum(column) for column in zip(*(costs for _, costs in rows), strict=True)]
    body = [f"| {name} | " + " | ".join(f"{cost:.2f}" for cost in costs) + " |" for name, costs in rows]
    together = f"| **together** | {' | '.join(f'**{cost:.2f}**' for cost in sums)} |"
    return [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1), *body, together]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m infra.costs", description=__doc__.partition("\n")[0])
    known = [field.name for one in (Prices, Assumed) for field in fields(one)]
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=f"one of {', '.join(known)}")
    chosen = dict(one.partition("=")[::2] for one in parser.parse_args(argv).set)
    if unknown := chosen.keys() - set(known):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    print(tables(_with(Prices(), chosen), _with(Assumed(), chosen)), end="")
    return 0


def _with(one: T, chosen: Mapping[str, str]) -> T:
    """The same with what was chosen otherwise, each as what it is."""
    known = vars(one)
    changes: dict[str, Any] = {name: type(known[name])(text) for name, text in chosen.items() if name in known}
    return replace(one, **changes)


if __name__ == "__main__":
    sys.exit(main())
