"""Retries, and the limits of each host: requests at once, and a circuit breaker.

    closed ──failures in a row──▶ open ──pause_s──▶ half open: one request is sent, others are refused
      ▲                            ▲                    │
      └────────── it succeeds ─────┼────────────────────┤
                                   └──── it fails ──────┘

A refusal of the caller (4xx) is no failure, so no caller can open the breaker with invalid
requests. Each process counts for itself. A request is retried only if a repetition changes nothing
(`Outgoing.is_repeatable`), or if it never left the gateway.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from math import ceil
from typing import Final
from urllib.parse import urlsplit

from roundgate.backends.http.config import BreakerConfig, LimitConfig, RemoteConfig, RetryConfig
from roundgate.backends.http.messages import Answer, Outgoing
from roundgate.clock import Clock, Deadline
from roundgate.errors import BackendError, NoAnswer, UnexpectedAnswer
from roundgate.observability import metrics

AWAY: Final = frozenset({502, 503, 504})
"""Statuses of a service that is away. Not 500, which the request of one caller may cause."""
PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses after which a retry may succeed."""
UNDER_WAY: Final = 409
"""The status for a repeated key while the service processes the first request with it."""
MAX_PAUSE_S: Final = 10.0
MARGIN_S: Final = 0.1
"""The time of a call that must be left after a pause, for a retry to be of use."""

log: Final = logging.getLogger("roundgate.backends")


class Retries:
    """Sends requests of one service, again where that is wanted and safe."""

    def __init__(self, config: RetryConfig | None, backend: str, clock: Clock) -> None:
        self._config = config or RetryConfig(attempts=1)
        self._backend = backend
        self._clock = clock

    async def send(
        self, outgoing: Outgoing, once: Callable[[], Awaitable[Answer]], deadline: Deadline
    ) -> Answer:
        """Return the first answer that is not worth a retry, or the last.

        Args:
            outgoing: the request.
            once: sends it.
            deadline: of the call; no pause lasts longer.

        Raises:
            BackendError: as the last attempt.
        """
        within = self._clock.deadline(self._config.within_s * 1000)
        for attempt in range(1, self._config.attempts):
            try:
                answer = await once()
            except NoAnswer as error:
                pause_s = self._pause_s(attempt, None)
                is_safe = outgoing.is_repeatable or not error.reached
                if not is_safe or not _fits(pause_s, deadline, within):
                    raise
                reason = error.reason
            else:
                if not _is_passing(answer, outgoing, attempt):
                    return answer
                asked_s = retry_after_s(answer.retry_after, self._clock)
                pause_s = self._pause_s(attempt, asked_s)
                if not _fits(pause_s, deadline, within):
                    return answer
                reason = f"it answered {answer.status}"
            fields = {"backend": self._backend, "attempt": attempt, "error": reason}
            log.info("a request is sent again", extra={"fields": fields})
            await self._clock.sleep(pause_s)
        return await once()

    def _pause_s(self, attempt: int, asked_s: float | None) -> float:
        """Return a random pause, so that callers that failed together do not retry together."""
        usual = min(self._config.pause_s * 2.0 ** (attempt - 1), MAX_PAUSE_S)
        spread = usual * self._clock.fraction()
        return usual / 2 + spread / 2 if asked_s is None else asked_s + spread


def _is_passing(answer: Answer, outgoing: Outgoing, attempt: int) -> bool:
    if answer.status == UNDER_WAY:
        return attempt > 1 and outgoing.has_key
    return outgoing.is_repeatable and answer.status in PASSING


def _fits(pause_s: float, *deadlines: Deadline) -> bool:
    needed_ms = (pause_s + MARGIN_S) * 1000
    left = (deadline.remaining_ms() for deadline in deadlines)
    return all(one is None or one > needed_ms for one in left)


def retry_after_s(value: str | None, clock: Clock) -> float | None:
    """Return the seconds of a `Retry-After` (RFC 9110 section 10.2.3), from a number or a date;
    `None` if it is neither."""
    text = (value or "").strip()
    if text.isascii() and text.isdecimal():
        return float(text[:9])
    try:
        at = parsedate_to_datetime(text)
        return max(0.0, at.timestamp() - clock.now_ms() / 1000)
    except (ValueError, OverflowError, TypeError):
        return None


class Slots:
    """The requests to one host that one process may have under way; others wait in order."""

    def __init__(self, config: LimitConfig, backend: str) -> None:
        self._config = config
        self._backend = backend
        self._free = asyncio.Semaphore(config.concurrent)
        self._waiting = 0

    @asynccontextmanager
    async def one(self, deadline: Deadline) -> AsyncIterator[None]:
        """Hold a slot for the block.

        Raises:
            BackendError: too many requests wait, or no slot became free in time.
        """
        if self._free.locked():
            await self._wait(deadline)
        else:
            await self._free.acquire()
        try:
            yield
        finally:
            self._free.release()

    async def _wait(self, deadline: Deadline) -> None:
        config = self._config
        if self._waiting >= config.waiting:
            raise self._busy(f"and {self._waiting} more wait")
        left_ms = deadline.remaining_ms()
        wait_s = config.wait_s if left_ms is None else min(config.wait_s, left_ms / 1000)
        self._waiting += 1
        try:
            async with asyncio.timeout(wait_s):
                await self._free.acquire()
        except TimeoutError:
            raise self._busy(f"and none was over within {wait_s:.3g} s") from None
        finally:
            self._waiting -= 1

    def _busy(self, reason: str) -> BackendError:
        return BackendError(
            f"{self._backend} is busy: {self._config.concurrent} requests to its service are under "
            f"way {reason}; try again later"
        )


class Breaker:
    """The circuit breaker of one host."""

    def __init__(self, config: BreakerConfig, backend: str, host: str, clock: Clock) -> None:
        """Close the breaker. `host` is host and port."""
        self._config = config
        self._backend = backend
        self._host = host
        self._clock = clock
        self._failures = 0
        self._reason = ""
        self._retry_ms: float | None = None
        self._is_tried = False
        self._period = 0
        """Raised whenever the breaker opens or closes."""

    def check(self) -> None:
        """Raise BackendError, with reason and time, unless a request may be sent now."""
        if self._retry_ms is None:
            return
        left_ms = self._retry_ms - self._clock.monotonic_ms()
        if left_ms > 0 or self._is_tried:
            again = f"in {ceil(left_ms / 1000)} s" if left_ms > 0 else "in a moment"
            raise BackendError(
                f"{self._backend} is left alone for a while: its service has failed {self._failures} times in a"
                f" row, last because {self._reason}; try again {again}"
            )

    async def watch(self, send: Callable[[], Awaitable[Answer]]) -> Answer:
        """Send a request and count its outcome, unless the breaker has opened or closed meanwhile.

        Raises:
            BackendError: no request may be sent now; or as `send`.
        """
        self.check()
        self._is_tried = self._retry_ms is not None
        period = self._period
        try:
            answer = await send()
        except NoAnswer as error:
            self._count_failure(period, error.reason)
            raise
        except UnexpectedAnswer:  # too long, or a redirect to another origin: still an answer
            self._count_success(period)
            raise
        except BaseException:  # the caller went away, or the request could not be sent
            if period == self._period:
                self._is_tried = False
            raise
        if answer.status in AWAY:
            self._count_failure(period, f"it answered {answer.status}")
        else:
            self._count_success(period)
        return answer

    def _count_success(self, period: int) -> None:
        if period != self._period:
            return
        self._failures = 0
        if self._retry_ms is not None:
            self._begin_period(None)
            fields = {"backend": self._backend, "host": self._host}
            log.info("a host is called again", extra={"fields": fields})

    def _count_failure(self, period: int, reason: str) -> None:
        """Count a failure. Callers read the reason after "because"."""
        if period != self._period:
            return
        self._failures += 1
        self._reason = reason
        if self._retry_ms is not None or self._failures >= self._config.failures:
            self._begin_period(self._clock.monotonic_ms() + self._config.pause_s * 1000)
            about = {"backend": self._backend, "host": self._host}
            fields = {**about, "failures": self._failures, "error": reason}
            log.warning("a host is left alone for a while", extra={"fields": fields})

    def _begin_period(self, retry_ms: float | None) -> None:
        """Close the breaker, or open it until then."""
        self._period += 1
        self._retry_ms = retry_ms
        self._is_tried = False
        is_open = retry_ms is not None
        metrics.set_up().circuit(self._backend, self._host, is_open=is_open)


class Gate:
    """The slots and the breaker of one host, where they are configured."""

    def __init__(self, config: RemoteConfig, host: str, clock: Clock) -> None:
        name = config.name
        self._slots = None if config.limit is None else Slots(config.limit, name)
        self._breaker = (
            None if config.breaker is None else Breaker(config.breaker, name, host, clock)
        )

    def check(self) -> None:
        """Raise BackendError while the breaker is open."""
        if self._breaker is not None:
            self._breaker.check()

    async def through(self, send: Callable[[], Awaitable[Answer]], deadline: Deadline) -> Answer:
        """Send a request.

        Raises:
            BackendError: the breaker is open or the host busy; or as `send`.
        """
        self.check()  # before a wait for a slot that would be of no use
        if self._slots is None:
            return await self._watched(send)
        async with self._slots.one(deadline):
            return await self._watched(send)

    async def _watched(self, send: Callable[[], Awaitable[Answer]]) -> Answer:
        return await (send() if self._breaker is None else self._breaker.watch(send))


class Hosts:
    """The hosts of one back end. Services at one host share its gate, whatever their
    credentials."""

    def __init__(self, config: RemoteConfig, clock: Clock | None = None) -> None:
        self._config = config
        self.clock = clock or Clock()
        self._gates: dict[str, Gate] = {}

    def gate(self, base_url: str) -> Gate:
        """Return the gate of a base URL's host."""
        parts = urlsplit(base_url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
        host = f"{parts.hostname}:{port}"
        if host not in self._gates:
            self._gates[host] = Gate(self._config, host, self.clock)
        return self._gates[host]
