"""When a request is sent again, and after which pause.

    sent ─▶ no answer, or 408 425 429 500 502 503 504 ─▶ pause, or Retry-After ─▶ sent …     while there is time

A request is sent again only if that changes nothing (`Outgoing.is_repeatable`), or if
it never left the gateway.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from email.utils import parsedate_to_datetime
from typing import Final

from roundgate.backends.http.messages import Answer, Outgoing
from roundgate.backends.http.reliability import RetryConfig
from roundgate.clock import Clock, Deadline
from roundgate.errors import NoAnswer

PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses that may be others a moment later."""
UNDER_WAY: Final = 409
"""To a key that was sent before: the service is still at the first request with it."""
MAX_PAUSE_S: Final = 10.0
MARGIN_S: Final = 0.1
"""What has to be left of a call's time after a pause, for it to be of any use."""

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
        """The first answer that is not worth another try, or the last.

        Args:
            outgoing: the request.
            once: sends it.
            deadline: of the call; no pause lasts longer.

        Raises:
            BackendError: what the last try raised.
        """
        within = self._clock.deadline(self._config.within_s * 1000)
        for attempt in range(1, self._config.attempts):
            asked_s: float | None = None
            try:
                answer = await once()
            except NoAnswer as error:
                if error.reached and not outgoing.is_repeatable:
                    raise
                pause_s = self._pause_s(attempt, None)
                if not _fits(pause_s, deadline, within):
                    raise
                why = error.reason
            else:
                if not _is_passing(answer, outgoing, attempt):
                    return answer
                asked_s = retry_after_s(answer.retry_after, self._clock)
                pause_s = self._pause_s(attempt, asked_s)
                if not _fits(pause_s, deadline, within):
                    return answer
                why = f"it answered {answer.status}"
            fields = {"backend": self._backend, "attempt": attempt, "error": why}
            log.info("a request is sent again", extra={"fields": fields})
            await self._clock.sleep(pause_s)
        return await once()

    def _pause_s(self, attempt: int, asked_s: float | None) -> float:
        """Spread out, so that many who failed together do not come back together."""
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
    """The seconds of a `Retry-After` (RFC 9110 section 10.2.3), which has these or a date;
    `None` if it has neither."""
    text = (value or "").strip()
    if text.isascii() and text.isdecimal():
        return float(text[:9])
    try:
        at = parsedate_to_datetime(text)
        return max(0.0, at.timestamp() - clock.now_ms() / 1000)
    except (ValueError, OverflowError, TypeError):
        return None
