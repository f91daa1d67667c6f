"""The time of a `tools/call` inside the gateway, without sockets and kernel: microseconds by part.

Run by `bench.run` with its settings as JSON (`python -m bench.parts '{…}'`). The bytes of requests
are fed into a process as in `bench.edge`. A timer of processor time interrupts the process, and
each tick counts towards the innermost function that belongs to a part. A function without a part,
such as a lock, counts towards its caller. Prints one sample per line.
"""

import asyncio
import gc
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping
from types import FrameType
from typing import Final

import uvloop

from bench.edge import BATCH, Client, batch, connection
from bench.wire import WORKLOADS

TICK_S: Final = 0.001
"""The requested interval in seconds; the kernel's clock may tick less often."""
SHARE: Final = 20
"""The duration as a multiple of a load's duration: about four thousand ticks, for a precision of 1
% of the whole."""
PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "HTTP: head and body in, answer out, the task of a request": (
        "/uvicorn/",
        "/roundgate/http/connections.py",
        "/roundgate/http/arrival.py",
        "/roundgate/http/room.py",
        "/roundgate/replay/driving.py:TaskFactory.__call__",
        "/bench/edge.py:batch",
    ),
    "layers: Host and Origin, errors, head, who calls": (
        "/roundgate/http/bodies.py",
        "/roundgate/http/request.py",
        "/roundgate/http/exchange.py",
        "/roundgate/auth/",
    ),
    "endpoint: the body read, JSON parsed, a client that leaves": (
        "/roundgate/http/endpoint.py",
        "/roundgate/http/exchange.py:DisconnectWatch",
        "/roundgate/protocol/jsonrpc.py",
        "/roundgate/protocol/inbound.py",
        "/roundgate/observability/tracing.py",
    ),
    "envelope: _meta, capabilities, version, mirrored headers": (
        "/roundgate/protocol/v2026_07_28/requests.py",
        "/roundgate/protocol/inbound.py",
    ),
    "method: parameters, the tool found, scopes, the call": (
        "/roundgate/methods/",
        "/roundgate/protocol/params.py",
        "/roundgate/backends/catalog.py",
        "/roundgate/backends/serving.py",
    ),
    "engine: a run, its deadline, the handler driven": (
        "/roundgate/replay/",
        "/roundgate/aio/",
        "/roundgate/clock.py",
    ),
    "tool: arguments bound and checked, the function, its result": (
        "/roundgate/backends/",
        "/roundgate/protocol/schemas.py",
        "/roundgate/protocol/content.py",
        "/bench/apps/",
    ),
    "answer: the result and its JSON, headers": (
        "/roundgate/methods/parts.py:Results",
        "/roundgate/protocol/v2026_07_28/results.py",
        "/roundgate/protocol/jsonrpc.py:result_response",
        "/roundgate/http/exchange.py:Responder",
    ),
    "the line in the log": (
        "/roundgate/observability/",
        "/roundgate/http/exchange.py:Exchange.write_line",
    ),
}
"""The parts, each with fragments of file names, or of `file:function`. The longest fragment that a
frame contains decides."""
REST: Final = "the event loop, and what measures"


class Ticks:
    """A count of the timer's signals by the running part."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._known: dict[tuple[str, str], str | None] = {}

    def __call__(self, _signal: int, frame: FrameType | None) -> None:
        part = None
        while frame is not None and part is None:
            part, frame = self._find_part(frame), frame.f_back
        self.counts[part or REST] += 1

    def _find_part(self, frame: FrameType) -> str | None:
        key = frame.f_code.co_filename, frame.f_code.co_qualname
        if key not in self._known:
            self._known[key] = part_of(*key)
        return self._known[key]


def part_of(file: str, function: str) -> str | None:
    """Return the part to which a function belongs, or `None` if it counts towards its caller."""
    whole = f"{file}:{function}"
    parts = [
        (len(place), part) for part, places in PARTS.items() for place in places if place in whole
    ]
    return max(parts)[1] if parts else None


def main() -> None:
    """Measure a call that logs only warnings, and a call with a line in the log."""
    seconds = SHARE * json.loads(sys.argv[1])["seconds"]
    for case, is_logged in (("with warnings only", False), ("with its line in the log", True)):
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            for part, us in runner.run(measured(seconds, is_logged=is_logged)).items():
                sample = {"case": case, "subject": part, "values": {"us": us}}
                print(json.dumps(sample), flush=True)


async def measured(seconds: float, *, is_logged: bool) -> dict[str, float]:
    """Return the microseconds of processor time per request, by part and in total."""
    protocol, tasks = connection("gateway", is_logged=is_logged)
    client, ticks = Client(), Ticks()
    protocol.connection_made(client)
    requests = [exchange.request for exchange in WORKLOADS["call_add"](64)]
    await batch(protocol, tasks, client, requests, BATCH)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGPROF, ticks)
    count, began = 0, time.process_time()
    signal.setitimer(signal.ITIMER_PROF, TICK_S, TICK_S)
    while time.process_time() - began < seconds:
        await batch(protocol, tasks, client, requests, BATCH)
        count += BATCH
    signal.setitimer(signal.ITIMER_PROF, 0)
    us = 1e6 * (time.process_time() - began) / count
    shares = {part: ticks.counts[part] / ticks.counts.total() for part in (*PARTS, REST)}
    return {part: us * share for part, share in shares.items()} | {"together": us}


if __name__ == "__main__":
    main()
