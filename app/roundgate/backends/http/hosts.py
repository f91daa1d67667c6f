"""What each request to a host passes: a place among those under way, and a circuit breaker, where
these are configured.

    closed ──failures in a row──▶ open ──pause_s──▶ half open: one request is let through, others are refused
      ▲                            ▲                    │
      └────────── it succeeds ─────┼────────────────────┤
                                   └──── it fails ──────┘

A refusal of the caller (4xx) is no failure, so nobody can shut a service off for others by asking
for nonsense. Each process counts for itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import ceil
from typing import Final
from urllib.parse import urlsplit

from roundgate.backends.http.messages import Answer
from roundgate.backends.http.reliability import BreakerConfig, LimitConfig
from roundgate.backends.http.remote_config import RemoteConfig
from roundgate.clock import Clock, Deadline
from roundgate.errors import BackendError, NoAnswer, UnexpectedAnswer
from roundgate.observability import metrics

log: Final = logging.getLogger("roundgate.backends")

AWAY: Final = frozenset({502, 503, 504})
"""Statuses of a service that is away. Not 500: that may be due to what one caller asks for."""


class Slots:
    """The places of one host in one process; further requests wait for their turn, in order, for a
    time."""

    def __init__(self, config: LimitConfig, backend: str) -> None:
        self._config = config
        self._backend = backend
        self._free = asyncio.Semaphore(config.concurrent)
        self._waiting = 0

    @asynccontextmanager
    async def one(self, deadline: Deadline) -> AsyncIterator[None]:
        """A place, for as long as the block lasts.

        Raises:
            BackendError: too many wait already, or none became free in time.
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

    def _busy(self, why: str) -> BackendError:
        return BackendError(
            f"{self._backend} is busy: {self._config.concurrent} requests to its service are under "
            f"way {why}; try again later"
        )


@dataclass(frozen=True, slots=True)
class Host:
    """Whom it is about."""

    backend: str
    """The back end's name."""
    address: str
    """Host and port."""


class Breaker:
    """The state of one host, as one process knows it."""

    def __init__(self, config: BreakerConfig, host: Host, clock: Clock) -> None:
        self._config = config
        self._host = host
        self._clock = clock
        self._failures = 0
        self._reason = ""
        self._retry_ms: float | None = None
        self._is_tried = False
        self._period = 0

    def check(self) -> None:
        """Do nothing if a request may be sent now.

        Raises:
            BackendError: none may; says since when, why, and until when.
        """
        if self._retry_ms is None:
            return
        left_ms = self._retry_ms - self._clock.monotonic_ms()
        if left_ms > 0 or self._is_tried:
            again = f"in {ceil(left_ms / 1000)} s" if left_ms > 0 else "in a moment"
            raise BackendError(
                f"{self._host.backend} is left alone for a while: its service has failed {self._failures} times in a"
                f" row, last because {self._reason}; try again {again}"
            )

    def admit(self) -> int:
        """As `check`, for a request that is sent at once; the number belongs to its report.

        Raises:
            BackendError: as `check`.
        """
        self.check()
        self._is_tried = self._retry_ms is not None
        return self._period

    def succeeded(self, admitted: int) -> None:
        """The host answered."""
        if admitted != self._period:
            return  # the answer to a request of an earlier period says nothing of this one
        self._failures = 0
        if self._retry_ms is not None:
            self._begin(None)
            log.info("a host is called again", extra={"fields": self._fields()})

    def failed(self, admitted: int, reason: str) -> None:
        """It did not, or is in trouble. `reason` continues "because …", and has nothing that
        a caller must not read."""
        if admitted != self._period:
            return
        self._failures += 1
        self._reason = reason
        if self._retry_ms is not None or self._failures >= self._config.failures:
            self._begin(self._clock.monotonic_ms() + self._config.pause_s * 1000)
            fields = {**self._fields(), "failures": self._failures, "error": reason}
            log.warning("a host is left alone for a while", extra={"fields": fields})

    def gave_up(self, admitted: int) -> None:
        """Nobody knows: the caller went away, or the request could not be sent."""
        if admitted == self._period:
            self._is_tried = False

    def _begin(self, retry_ms: float | None) -> None:
        """Another period: closed, or open until then."""
        self._period += 1
        self._retry_ms = retry_ms
        self._is_tried = False
        is_open = retry_ms is not None
        metrics.set_up().circuit(self._host.backend, self._host.address, is_open=is_open)

    def _fields(self) -> dict[str, object]:
        return {"backend": self._host.backend, "host": self._host.address}


class Gate:
    """What each request to one host goes through."""

    def __init__(self, config: RemoteConfig, host: Host, clock: Clock) -> None:
        self._slots = None if config.limit is None else Slots(config.limit, config.name)
        self._breaker = None if config.breaker is None else Breaker(config.breaker, host, clock)

    def check(self) -> None:
        """Do nothing if a request may be sent now.

        Raises:
            BackendError: the host is left alone for a while.
        """
        if self._breaker is not None:
            self._breaker.check()

    async def through(self, send: Callable[[], Awaitable[Answer]], deadline: Deadline) -> Answer:
        """What `send` returns.

        Raises:
            BackendError: the host is left alone or busy; or as `send` does.
        """
        self.check()  # nobody waits for a place that would be of no use
        async with self._place(deadline):
            if self._breaker is None:
                return await send()
            return await _watched(self._breaker, send)

    @asynccontextmanager
    async def _place(self, deadline: Deadline) -> AsyncIterator[None]:
        if self._slots is None:
            yield
            return
        async with self._slots.one(deadline):
            yield


async def _watched(breaker: Breaker, send: Callable[[], Awaitable[Answer]]) -> Answer:
    admitted = breaker.admit()
    try:
        answer = await send()
    except NoAnswer as error:
        breaker.failed(admitted, error.reason)
        raise
    except UnexpectedAnswer:  # which is one: too long, or a redirect that is not followed
        breaker.succeeded(admitted)
        raise
    except BaseException:
        breaker.gave_up(admitted)
        raise
    if answer.status in AWAY:
        breaker.failed(admitted, f"it answered {answer.status}")
    else:
        breaker.succeeded(admitted)
    return answer


class Hosts:
    """The hosts of one back end; services at one host, with other credentials,
    share what belongs to it."""

    def __init__(self, config: RemoteConfig, clock: Clock | None = None) -> None:
        self._config = config
        self.clock = clock or Clock()
        self._gates: dict[str, Gate] = {}

    def gate(self, base_url: str) -> Gate:
        """Of the host of a base URL."""
        parts = urlsplit(base_url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
        address = f"{parts.hostname}:{port}"
        if address not in self._gates:
            self._gates[address] = Gate(self._config, Host(self._config.name, address), self.clock)
        return self._gates[address]
