"""A circuit breaker: a host that fails again and again is left alone for a while.

    closed ──failures in a row──▶ open ──pause_s──▶ half open: one request is let through, others are refused
      ▲                            ▲                    │
      └────────── it succeeds ─────┼────────────────────┤
                                   └──── it fails ──────┘

What counts as a failure is up to who reports it. An answer that refuses the caller is
none, so nobody can shut a service off for others by asking for nonsense. It is kept
by each process for itself.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from math import ceil
from typing import Final

from roundgate.backends.http.reliability import BreakerConfig
from roundgate.clock import Clock
from roundgate.errors import BackendError
from roundgate.observability import metrics

log: Final = logging.getLogger("roundgate.backends")


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
