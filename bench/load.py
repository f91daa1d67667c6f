"""The load generator, a separate process: `python -m bench.load '{"port": 8000,
"workload": "call_add", …}'`.

Each connection is an asyncio Protocol on uvloop that sends a request, waits for the answer, checks
it, and sends the next request (a closed loop over keep-alive sockets). A wrong answer ends the run
with an error. The load begins when all connections are open and have received an answer, because a
busy server may leave a new connection unread for a second. Prints one JSON object (`Outcome`).
Running it needs uvloop; importing it needs only the standard library.
"""

import asyncio
import dataclasses
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from bench.http1 import MalformedResponseError, Response, ResponseReader
from bench.wire import WORKLOADS, Exchange, WrongAnswerError

DIFFERENT_REQUESTS = 64
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Order:
    """The settings of a load. It lasts for `requests` requests if that is set, otherwise for
    `seconds` after `warm_up_s`.

    A timed load continues until each connection has `least_answers` answers: a slow server answers
    all connections in bursts, and a window of two and a half bursts would distort the result.
    """

    port: int
    workload: str
    connections: int
    seconds: float = 0.0
    warm_up_s: float = 0.0
    least_answers: int = 0
    requests: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """The headers added to each request."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of the measured window. Only `answered` includes the answers of the warm-up.

    `generator_busy` is the share of the window that this process spent on its own CPU. Near 1, the
    generator was the limit, not the server. `generator_waited` is the share in which it was ready
    to run but another process had its core.
    """

    answered: int
    requests: int
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    response_bytes: int
    generator_busy: float
    generator_waited: float
    sse: bool


class Load:
    """The state that the connections share: the time window, the latencies, and the answers already
    verified."""

    def __init__(self, order: Order) -> None:
        self.exchanges: Sequence[Exchange] = [
            each.sent_with(order.headers) for each in WORKLOADS[order.workload](DIFFERENT_REQUESTS)
        ]
        self.known_right: list[bytes | None] = [None] * DIFFERENT_REQUESTS
        self.latencies_s: list[float] = []
        self.answered = 0
        self.response_bytes = 0
        self.is_sse = False
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._order = order
        self._opens_at = self._closes_at = float("inf")
        self._least = (
            order.connections * order.least_answers if order.requests is None else order.requests
        )
        self._busy_at_open_s = self._waited_at_open_s = 0.0

    def begin(self) -> None:
        """Start the window. Earlier answers do not count."""
        self._opens_at = time.perf_counter() + self._order.warm_up_s
        self._closes_at = self._opens_at + (
            self._order.seconds if self._order.requests is None else 0.0
        )

    def record(self, sent_at: float, now: float) -> None:
        """Count a correct answer if the window is open, and close the window once it has lasted
        long enough and has enough answers."""
        self.answered += 1
        if now < self._opens_at or self.finished.done():
            return
        if not self.latencies_s:
            self._busy_at_open_s, self._waited_at_open_s = time.process_time(), waited_s()
        self.latencies_s.append(now - sent_at)
        if now >= self._closes_at and len(self.latencies_s) >= self._least:
            self._closes_at = now
            self.finish()

    def check(self, number: int, response: Response, *, fully: bool) -> None:
        """Check the answer to request `number`: verify it fully, or compare it with a verified
        answer."""
        if fully or response.status != 200 or response.body != self.known_right[number]:
            self.exchanges[number].check(response)
            self.known_right[number] = response.body
            self.response_bytes = max(
                self.response_bytes, len(response.body)
            )  # ids differ in length
            self.is_sse = response.media_type == "text/event-stream"

    def finish(self) -> None:
        if not self.finished.done():
            self.finished.set_result(None)

    def fail(self, reason: Exception) -> None:
        if not self.finished.done():
            self.finished.set_exception(reason)

    def outcome(self) -> Outcome:
        """Return the results of the load. Call it after the end."""
        wall_s = self._closes_at - self._opens_at
        latencies_s = sorted(self.latencies_s)
        return Outcome(
            answered=self.answered,
            requests=len(latencies_s),
            requests_per_s=len(latencies_s) / wall_s,
            p50_ms=1000 * percentile(latencies_s, 0.50),
            p99_ms=1000 * percentile(latencies_s, 0.99),
            response_bytes=self.response_bytes,
            generator_busy=(time.process_time() - self._busy_at_open_s) / wall_s,
            generator_waited=(waited_s() - self._waited_at_open_s) / wall_s,
            sse=self.is_sse,
        )


class Connection(asyncio.Protocol):
    """A keep-alive connection. `first` is the number of its first request, so connections do not
    send the same requests in step."""

    def __init__(self, load: Load, first: int) -> None:
        self.is_introduced: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._load = load
        self._number = first
        self._reader = ResponseReader()
        self._transport: asyncio.Transport | None = None
        self._sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(
            "asyncio.Transport", transport
        )  # uvloop's class is not a subclass of asyncio's

    def data_received(self, data: bytes) -> None:
        # asyncio only logs an exception of a protocol's callback, so pass it on explicitly
        try:
            response = self._reader.feed(data)
            if response is not None:
                self._answered(response)
        except (WrongAnswerError, MalformedResponseError, ValueError) as reason:
            self._load.fail(reason)

    def connection_lost(self, exc: Exception | None) -> None:
        self._load.fail(exc or MalformedResponseError("the server closed the connection"))

    def send(self) -> None:
        """Send the next request. After the first answer, continue until the load is over."""
        assert self._transport is not None
        self._sent_at = time.perf_counter()
        self._transport.write(self._load.exchanges[self._number].request)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _answered(self, response: Response) -> None:
        now = time.perf_counter()
        is_first = not self.is_introduced.done()
        self._load.check(self._number, response, fully=is_first)
        self._load.record(self._sent_at, now)
        self._number = (self._number + 1) % DIFFERENT_REQUESTS
        if is_first:
            self.is_introduced.set_result(None)
        elif not self._load.finished.done():
            self.send()


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of the values do not exceed (nearest
    rank)."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def waited_s() -> float:
    """Return the seconds for which this process was ready to run without getting its core
    (Linux)."""
    return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9


async def run(order: Order) -> Outcome:
    """Open the connections, keep them busy until the window closes, and return the results."""
    load = Load(order)
    async with asyncio.timeout(order.seconds + order.warm_up_s + PATIENCE_S):
        connections = [
            await _introduced(load, n * 7 % DIFFERENT_REQUESTS, order.port)
            for n in range(order.connections)
        ]
        load.begin()
        for connection in connections:
            connection.send()
        await load.finished
    outcome = load.outcome()
    for connection in connections:
        connection.close()
    return outcome


async def _introduced(load: Load, first: int, port: int) -> Connection:
    """Open a connection and wait until its first request is answered correctly."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: Connection(load, first), "127.0.0.1", port)
    connection.send()
    await asyncio.wait(
        [connection.is_introduced, load.finished], return_when=asyncio.FIRST_COMPLETED
    )
    if load.finished.done():
        load.finished.result()
    return connection


def main() -> None:
    import uvloop

    order = Order(**json.loads(sys.argv[1]))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        outcome = runner.run(run(order))
    print(json.dumps(dataclasses.asdict(outcome)))


if __name__ == "__main__":
    main()
