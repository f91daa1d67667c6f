"""What is logged of states that were refused: one line per caller and
minute, however many are sent.

Everybody may send as many states as they like; without a bound each would be a line, and
the log's disk the limit.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from roundgate.auth import Principal
from roundgate.json import digest

EVERY_MS: Final = 60_000
MAX_CALLERS: Final = 1_000
"""Callers that are remembered; of more the one that was refused longest ago is forgotten."""

log = logging.getLogger("roundgate.tokens")


@dataclass(slots=True)
class _Told:
    at_ms: float
    untold: int = 0


@dataclass(slots=True)
class Refusals:
    """Who was refused of late; `of_sessions` where it is ids of sessions that
    were refused, not states."""

    of_sessions: bool = False
    _told: OrderedDict[str, _Told] = field(default_factory=OrderedDict)

    def note(self, reason: str, owner: Principal, at_ms: float) -> None:
        """Log a refusal, unless this caller had one within the last minute; `at_ms` is
        monotonic."""
        caller = digest([owner.issuer, owner.subject, owner.client_id])
        before = self._told.get(caller)
        if before is not None and at_ms - before.at_ms < EVERY_MS:
            before.untold += 1
            return
        untold = {} if before is None else {"refused_since_then": before.untold}
        self._told[caller] = _Told(at_ms)
        self._told.move_to_end(caller)
        if len(self._told) > MAX_CALLERS:
            self._told.popitem(last=False)
        fields = {"reason": reason, "subject": owner.subject[:200], **untold}
        if self.of_sessions:
            log.warning("session refused", extra={"fields": fields})
        else:
            log.warning("requestState refused", extra={"fields": fields})
