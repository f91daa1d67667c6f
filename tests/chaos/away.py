"""`scripts/chaos away`: the store is away while a gateway and a worker serve live traffic.

    sqlite    another process holds the lock of the file, for longer than a writer waits
    postgres  the server is stopped and started; so behind PgBouncer
    dynamodb  the network to DynamoDB Local is silent, then refuses connections

Must hold: calls that need no store (plain, of steps, streams, questions) all end rightly; others get
503 with `Retry-After` and the reason; every task that a client was told of ends with its result;
`/healthz` says `degraded` during the outage and `ok` after it, `/readyz` stays 200; metrics and spans
count the outage as errors; each process logs its beginning and its end, and no other error.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from opentelemetry.proto.trace.v1.trace_pb2 import Status

from roundgate.storage.sqlite.database import BUSY_S
from tests.chaos.tasks import Shared, store, stores
from tests.chaos.traffic import TOOLS, Clients, Told, connections, repeated
from tests.support.otlp import Collector, collecting, instrumented
from tests.support.proxy import Proxy, Way
from tests.support.server import Server, wait_until_it_answers

AT_ONCE: Final = 40
LONGEST_S: Final = 2
STORELESS: Final = ("plain", "steps", "stream", "question")
KINDS: Final = (*STORELESS, "task")
MAY_REFUSE: Final = {
    "sqlite": "The store cannot be used just now: database is locked",
    "postgres": "The database cannot be used just now",
    "dynamodb": "The store cannot be reached just now",
}
CONFIG: Final = """
http: {metrics: true}
tasks: {concurrency: 40, max_open_per_owner: 10000, lease_s: 5, clock_skew_s: 0, requeue_after_s: 5}
backends: [{kind: python, name: own, prefix: '', path: tools.py}]
"""
PATIENCE_S: Final = 30
"""Seconds after the outage within which health and telemetry must agree."""


@asynccontextmanager
async def _away(
    kind: str, directory: Path, shared: Shared, proxy: Proxy | None, seconds: float
) -> AsyncIterator[None]:
    """Take the store away for `seconds`, which the block may look at; then give it back."""
    ends = asyncio.get_running_loop().time() + seconds
    if shared.database is not None:
        await asyncio.to_thread(shared.database.stop)
        yield
        await asyncio.sleep(max(0, ends - asyncio.get_running_loop().time()))
        await asyncio.to_thread(shared.database.start)
    elif proxy is not None:
        proxy.turn(Way.SILENT)
        await asyncio.sleep(seconds / 2)
        proxy.turn(Way.SHUT)
        yield
        await asyncio.sleep(max(0, ends - asyncio.get_running_loop().time()))
        proxy.turn(Way.OPEN)
    else:
        db = sqlite3.connect(directory / "gateway.sqlite3", isolation_level=None, timeout=30)
        db.execute("begin immediate")
        yield
        await asyncio.sleep(max(0, ends - asyncio.get_running_loop().time()))
        db.execute("rollback")
        db.close()


async def outlasted(
    kind: str, directory: Path, seconds: float, at_once: int, dice: random.Random
) -> tuple[Told, dict[str, float]]:
    """Take the store away once. Return what the clients were told, and figures of the outage."""
    told, figures = Told(), dict[str, float]()
    (directory / "tools.py").write_text(TOOLS)
    (directory / "gateway.yaml").write_text(CONFIG)
    with ExitStack() as stack:
        shared = stack.enter_context(store(kind, directory))
        collector = stack.enter_context(collecting())
        environment = {**shared.environment, **collector.environment}
        seconds += BUSY_S if kind == "sqlite" else 0
        proxy = None
        if url := environment.get("AWS_ENDPOINT_URL_DYNAMODB"):
            proxy = stack.enter_context(Proxy(url))
            environment["AWS_ENDPOINT_URL_DYNAMODB"] = proxy.url
        off = {"GATEWAY_WORKER": "off"}
        gateway, worker = (
            stack.enter_context(instrumented(directory, environment | more, command))
            for command, more in (("serve", off), ("worker", {}))
        )
        await asyncio.to_thread(wait_until_it_answers, gateway)
        async with connections() as http:
            refusal = MAY_REFUSE["postgres" if shared.database else kind]
            words = f"{refusal}|task of this call (could not be written|may or may not exist)"
            refusals = dict.fromkeys(("task", "tasks/get"), words)
            clients = Clients(http, f"{gateway.url}/mcp", told, dice, LONGEST_S, refusals)
            async with clients.calling(KINDS, at_once):
                await _until(told, lambda: told.outcomes["task: done"] > 0)
                before = told.done(STORELESS)
                async with _away(kind, directory, shared, proxy, seconds):
                    creating = asyncio.create_task(clients.once("task"))
                    tried = ("task: shed", "task: 503")
                    await _until(told, lambda: any(told.outcomes[name] for name in tried))
                    health = (await http.get(f"{gateway.url}/healthz")).json()
                    if health["status"] != "degraded":
                        told.wrong.append(f"/healthz says {health}")
                    if (await http.get(f"{gateway.url}/readyz")).status_code != 200:
                        told.wrong.append("/readyz is not 200")
                await creating
                figures["calls that need no store, meanwhile"] = told.done(STORELESS) - before
                began, ended = time.monotonic(), told.outcomes["task: done"]
                await _until(told, lambda: told.outcomes["task: done"] > ended)
                figures["s until a task ended again"] = round(time.monotonic() - began, 1)
            health = (await http.get(f"{gateway.url}/healthz")).json()
            if health["status"] != "ok":
                told.wrong.append(f"/healthz says {health} afterwards")
            metrics = (await http.get(f"{gateway.url}/metrics")).text
        told.wrong += _wrong_in_telemetry(kind, metrics, collector)
        told.wrong += [line for server in (gateway, worker) for line in _wrong_in_log(server)]
    return told, figures


async def _until(told: Told, happened: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not happened():
        if time.monotonic() > until:
            told.wrong.append(f"nothing happened for {PATIENCE_S} s: {told.outcomes}")
            return
        await asyncio.sleep(0.1)


def _wrong_in_telemetry(kind: str, metrics: str, collector: Collector) -> list[str]:
    expected = {"store": 'store_duration_seconds_count{error_type="Unavailable"'}
    if kind != "sqlite":  # a locked file can be read, and calls that write are shed
        of_gets = 'mcp_server_operation_duration_seconds_count{error_type="[^"]+".*"tasks/get"'
        expected["tasks/get"] = of_gets
    wrong = [
        f"no failed {name} in /metrics"
        for name, pattern in expected.items()
        if not re.search(pattern, metrics)
    ]
    red = [
        span.name
        for span in collector.spans()
        if span.status.code == Status.StatusCode.STATUS_CODE_ERROR
        and any(attribute.key == "error.type" for attribute in span.attributes)
    ]
    is_red = "tasks/get" in red or kind == "sqlite"
    return wrong if is_red else [*wrong, f"red spans: {sorted({*red})}"]


def _wrong_in_log(server: Server) -> list[str]:
    lines = server.lines()
    counts = [
        sum(line["msg"] == message for line in lines)
        for message in ("cannot use the database", "the database answers again")
    ]
    errors = [f"{line}"[:600] for line in lines if line["level"] == "error"]
    name = server.log.name
    return errors if counts == [1, 1] else [*errors, f"{name}: away and back {counts} times"]


async def chaos(kind: str, arguments: argparse.Namespace) -> bool:
    """One run; whether everything held."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        dice = random.Random(arguments.seed)
        told, figures = await outlasted(kind, Path(place), arguments.count, AT_ONCE, dice)
        again = repeated(Path(place), told).total()
    before = {
        "seconds away, at least": arguments.count,
    }
    after = {
        **figures,
        "steps that ran again": again,
        "wrong": len(told.wrong),
        "seconds": round(time.monotonic() - begun),
    }
    return told.report(f"an outage of {kind}", before, after)


def main(arguments: argparse.Namespace) -> bool:
    """Every store that was asked for; whether everything held."""
    results = [asyncio.run(chaos(kind, arguments)) for kind in stores(arguments)]
    return all(results)
