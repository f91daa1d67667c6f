"""One call leaves one trace over a client, a gateway, a worker and a server behind it, each a process
with OpenTelemetry's SDK."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.trace import Span, picture, span_from_json, tree
from tests.support.rounds import KEYS
from tests.support.server import running
from tests.support.worker import working

TRACED = Path(__file__).parent / "traced"
POLLS = frozenset({"tasks/get", "server/discover", "tools/list"})
CALL = [
    "client refund order 7 INTERNAL",
    " client tools/call refund CLIENT",
    "  gateway tools/call refund SERVER",
    "   worker task refund CONSUMER linked",
    "    worker tools/call refund CLIENT",
    "     bank tools/call refund SERVER",
    " client tools/call refund CLIENT",
    "  gateway tools/call refund SERVER",
]
"""The spans of the call by process, name and kind; each below its parent, or the span that it links to."""


def spans_of(file: Path) -> list[dict[str, Any]]:
    """The spans that processes have exported so far."""
    whole = file.read_text().rpartition("\n")[0] if file.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


def has_ended(file: Path, service: str, name: str) -> bool:
    """Whether a span has ended."""
    return any(
        (span["resource"]["attributes"]["service.name"], span["name"]) == (service, name)
        for span in spans_of(file)
    )


def config(directory: Path, name: str, backend: dict[str, Any]) -> Path:
    """A gateway.yaml in a directory of its own."""
    (directory / name).mkdir()
    file = directory / name / "gateway.yaml"
    tasks = {"poll_interval_ms": 100, "sweep_every_s": 0.5}
    file.write_text(json.dumps({"backends": [backend], "tasks": tasks}))
    return file


def test_one_call_is_one_trace_over_four_processes(tmp_path: Path) -> None:
    file = tmp_path / "spans.jsonl"
    paths = os.pathsep.join([str(TRACED), os.environ.get("PYTHONPATH", "")])
    shared = {"SPANS": str(file), "PYTHONPATH": paths}
    store = {
        "GATEWAY_STORE": f"sqlite:///{tmp_path / 'shared.sqlite3'}",
        "GATEWAY_STATE_KEYS": KEYS,
    }
    own = {"kind": "python", "name": "bank", "prefix": "", "path": str(TRACED / "bank.py")}
    bank = config(tmp_path, "bank", own)
    bank_store = {"GATEWAY_STORE": f"sqlite:///{tmp_path / 'bank.sqlite3'}"}
    with running(bank, {**shared, **bank_store, "OTEL_SERVICE_NAME": "bank"}) as behind:
        front = {
            "kind": "mcp",
            "name": "up",
            "prefix": "",
            "url": f"{behind.url}/mcp",
            "approve": "destructive",
            "override": {"refund": {"task": "required"}},
        }
        gateway, worker = config(tmp_path, "gateway", front), config(tmp_path, "worker", front)
        of_gateway = {"OTEL_SERVICE_NAME": "gateway", "GATEWAY_WORKER": "off"}
        of_worker = {"OTEL_SERVICE_NAME": "worker"}
        with (
            running(gateway, {**shared, **store, **of_gateway}) as served,
            working(worker, tmp_path / "worker.log", {**shared, **store, **of_worker}),
        ):
            client = subprocess.run(
                [sys.executable, str(TRACED / "client.py"), f"{served.url}/mcp"],
                env={**os.environ, **shared, "OTEL_SERVICE_NAME": "client"},
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert client.stdout == "7 is paid back\n", client.stderr
            until = time.monotonic() + 60
            while not has_ended(file, "worker", "task refund") and time.monotonic() < until:
                time.sleep(0.05)
    exported = spans_of(file)
    rows = tree([span_from_json(value) for value in exported], "refund order 7", POLLS)
    assert [shape(depth, span) for depth, span in rows] == CALL

    by_id = {value["context"]["span_id"]: value for value in exported}
    values = [by_id[span.id] for _, span in rows]
    traces = [value["context"]["trace_id"] for value in values]
    of_client = {traces[index] for index in (0, 1, 2, 6, 7)}
    of_worker_trace = {traces[index] for index in (3, 4, 5)}
    assert len(of_client) == len(of_worker_trace) == 1
    first, turn, second = values[2], values[3], values[7]
    for linked in (turn, second):
        assert first["context"] in [link["context"] for link in linked["links"]]
    calls = {value["attributes"].get("roundgate.call.id") for value in (first, turn, second)}
    assert len(calls) == 1
    assert None not in calls
    assert "<svg" in picture(rows)


def shape(depth: int, span: Span) -> str:
    """A span in a line, indented below the one above it."""
    linked = " linked" if span.is_linked else ""
    return f"{' ' * depth}{span.service} {span.name} {span.kind}{linked}"
