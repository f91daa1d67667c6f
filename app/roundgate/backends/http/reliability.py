"""Retries, and a circuit breaker for each host.

    closed ──failures in a row──▶ open ──pause_s──▶ half open: one request is sent, others are refused
      ▲                            ▲                    │
      └────────── it succeeds ─────┼────────────────────┤
                                   └──── it fails ──────┘

A 4xx answer is not a failure, so no caller can open the breaker with invalid requests. Each process
counts separately. A request is retried only if it is repeatable or has a key, or if no connection
was made.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from email.utils import parsedate_to_datetime
from math import ceil
from typing import Final, Protocol, TypeVar
from urllib.parse import urlsplit

from roundgate.backends.http.config import BreakerConfig, RemoteConfig, RetryConfig
from roundgate.backends.http.messages import with_doubt
from roundgate.clock import Clock, Deadline
from roundgate.errors import BackendBusy, BackendError, NoAnswer, UnexpectedAnswer
from roundgate.net.request import DEFAULT_PORTS
from roundgate.observability.metrics import Metrics

AWAY: Final = frozenset({502, 503, 504})
"""Statuses of an unavailable service. 500 is excluded, because one caller's request can cause it."""
PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses after which a retry may succeed."""
UNDER_WAY: Final = 409
"""The status for a repeated key while the service still processes the first request."""
MAX_PAUSE_S: Final = 10.0
MARGIN_S: Final = 0.1
"""Seconds that a call must have left after a pause to make a retry useful."""

log: Final = logging.getLogger("roundgate.backends")


class AttemptAnswer(Protocol):
    """The part of an answer that decides about retries and the breaker."""

    @property
    def status(self) -> int:
        """The HTTP status."""

    @property
    def retry_after(self) -> str | None:
        """The header `Retry-After`; `None` without it."""


A = TypeVar("A", bound=AttemptAnswer)


class Attempts:
    """The requests of one back end to one host: their retries and their circuit breaker."""

    def __init__(self, config: RemoteConfig, host: str, clock: Clock) -> None:
        self._config = config.retry or RetryConfig(attempts=1)
        self._backend = config.name
        self._clock = clock
        self._breaker = (
            None if config.breaker is None else Breaker(config.breaker, config.name, host, clock)
        )

    def pause_reason(self) -> str | None:
        """Return `Breaker.pause_reason`, or `None` without a breaker."""
        return None if self._breaker is None else self._breaker.pause_reason()

    async def send(
        self,
        once: Callable[[], Awaitable[A]],
        deadline: Deadline | None,
        *,
        is_repeatable: bool,
        has_key: bool = False,
        prepare: Callable[[], Awaitable[object]] | None = None,
    ) -> A:
        """Send a request with retries. Return the first answer that needs no retry, or the last
        answer.

        Args:
            once: the function that sends the request.
            deadline: the call's deadline; no pause exceeds it.
            is_repeatable: whether sending the request twice changes no more than sending it once.
            has_key: whether the request has a key by which the service recognizes a repetition. A
                key protects the attempts of one call only.
            prepare: called before each attempt, unless the breaker is open.

        Raises:
            BackendBusy: the breaker is open, and no attempt was sent.
            BackendError: the breaker opened after an attempt, or the last attempt raised it. See
                `with_doubt`.
        """
        if self._config.attempts > 1:
            within = self._clock.deadline(self._config.within_s * 1000)
            deadlines = [within] if deadline is None else [deadline, within]
        is_sent = False  # whether an earlier attempt reached the service, or may have
        is_unclear = False  # whether it may have taken effect
        try:
            for attempt in range(1, self._config.attempts):
                try:
                    answer = await self._attempt(once, prepare)
                except NoAnswer as error:
                    is_sent = is_sent or error.reached
                    is_unclear = is_unclear or error.reached
                    pause_s = self._pause_s(attempt, None)
                    is_safe = is_repeatable or not error.reached
                    if not is_safe or not _fits(pause_s, *deadlines):
                        raise
                    reason = error.reason
                else:
                    is_sent = True
                    is_under_way = answer.status == UNDER_WAY and attempt > 1 and has_key
                    if not is_under_way and not (is_repeatable and answer.status in PASSING):
                        return answer
                    asked_s = retry_after_s(answer.retry_after, self._clock)
                    pause_s = self._pause_s(attempt, asked_s)
                    if not _fits(pause_s, *deadlines):
                        return answer
                    reason = f"it answered {answer.status}"
                fields = {"backend": self._backend, "attempt": attempt, "error": reason}
                log.info("a request is sent again", extra={"fields": fields})
                await self._clock.sleep(pause_s)
            return await self._attempt(once, prepare)
        except BackendError as error:
            is_late = is_sent and isinstance(error, BackendBusy)
            failure = BackendError(str(error)) if is_late else error
            if has_key or not is_repeatable:
                with_doubt(failure, is_unclear=is_unclear)
            raise failure from error.__cause__

    async def _attempt(
        self,
        once: Callable[[], Awaitable[A]],
        prepare: Callable[[], Awaitable[object]] | None,
    ) -> A:
        if prepare is not None:
            if self._breaker is not None:
                self._breaker.check()
            await prepare()
        return await (once() if self._breaker is None else self._breaker.watch(once))

    def _pause_s(self, attempt: int, asked_s: float | None) -> float:
        """Return a pause in seconds, at random so that callers do not retry together. The pause is
        at least `asked_s`."""
        usual = min(self._config.pause_s * 2.0 ** (attempt - 1), MAX_PAUSE_S)
        spread = usual * self._clock.fraction()
        return usual / 2 + spread / 2 if asked_s is None else asked_s + spread


def _fits(pause_s: float, *deadlines: Deadline) -> bool:
    needed_ms = (pause_s + MARGIN_S) * 1000
    left = (deadline.remaining_ms() for deadline in deadlines)
    return all(limit_ms is None or limit_ms > needed_ms for limit_ms in left)


def retry_after_s(value: str | None, clock: Clock) -> float | None:
    """Return the seconds until the time in a `Retry-After` (RFC 9110 section 10.2.3), a number or
    a date; `None` if it is neither."""
    text = (value or "").strip()
    if text.isascii() and text.isdecimal():
        return float(text[:9])
    try:
        at = parsedate_to_datetime(text)
        return max(0.0, at.timestamp() - clock.now_ms() / 1000)
    except (ValueError, OverflowError, TypeError):
        return None


class Breaker:
    """The circuit breaker of one host."""

    def __init__(self, config: BreakerConfig, backend: str, host: str, clock: Clock) -> None:
        """Create a closed breaker. `host` is `host:port`."""
        self._config = config
        self._backend = backend
        self._host = host
        self._clock = clock
        self._failures = 0
        self._reason = ""
        self._retry_ms: float | None = None
        self._is_tried = False
        self._period = 0
        """A counter that increases whenever the breaker opens or closes."""

    def pause_reason(self) -> str | None:
        """Return a sentence about the host with the reason while the breaker is open or half open;
        `None` while it is closed."""
        if self._retry_ms is None:
            return None
        is_open = self._retry_ms > self._clock.monotonic_ms()
        state = "are paused" if is_open else "are tried again, one at a time"
        return f"requests to {self._host} {state}: {self._reason}"

    def check(self) -> None:
        """Raise BackendBusy while the breaker is open, or half open with a request under way. The
        error states the reason and when to retry."""
        if self._retry_ms is None:
            return
        left_ms = self._retry_ms - self._clock.monotonic_ms()
        if left_ms > 0 or self._is_tried:
            again = f"in {ceil(left_ms / 1000)} s" if left_ms > 0 else "in a moment"
            raise BackendBusy(
                f"{self._backend} is paused: its service has failed {self._failures} times in a row,"
                f" last because {self._reason}; try again {again}"
            )

    async def watch(self, send: Callable[[], Awaitable[A]]) -> A:
        """Send a request and count its outcome, unless the breaker opens or closes meanwhile.

        Raises:
            BackendBusy: the breaker is open.
            BackendError: `send` raised it.
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
            log.info("requests to a host are resumed", extra={"fields": fields})

    def _count_failure(self, period: int, reason: str) -> None:
        """Count a failure. `reason` completes a sentence after "because"."""
        if period != self._period:
            return
        self._failures += 1
        self._reason = reason
        if self._retry_ms is not None or self._failures >= self._config.failures:
            self._begin_period(self._clock.monotonic_ms() + self._config.pause_s * 1000)
            about = {"backend": self._backend, "host": self._host}
            fields = {**about, "failures": self._failures, "error": reason}
            log.warning("requests to a host are paused", extra={"fields": fields})

    def _begin_period(self, retry_ms: float | None) -> None:
        """Open the breaker until `retry_ms`, or close it if that is `None`."""
        self._period += 1
        self._retry_ms = retry_ms
        self._is_tried = False
        is_open = retry_ms is not None
        Metrics().circuit(self._backend, self._host, is_open=is_open)


def host_attempts(
    config: RemoteConfig, base_url: str, known: dict[str, Attempts], clock: Clock | None = None
) -> Attempts:
    """Return the sender of requests to a base URL's host. Services at one host share the sender in
    `known`, and so its circuit breaker."""
    parts = urlsplit(base_url)
    host = f"{parts.hostname}:{parts.port or DEFAULT_PORTS[parts.scheme]}"
    if host not in known:
        known[host] = Attempts(config, host, clock or Clock())
    return known[host]
