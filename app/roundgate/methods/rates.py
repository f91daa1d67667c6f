"""Limits on the calls of each caller (`rate` in gateway.yaml).

A call is a request that runs a handler or asks a back end: tools/call, and the methods whose row
has `Method.counts`. A tools/call counts at the tool that really runs, so a call through search
counts as a call of the named tool, and each request of a batch counts.

    a call    ──▶ the caller's limit, and each row of `tools` that its tool matches
    a retry   ──▶ the same limits, but with a bucket of its own of the same size
    the rest  ──▶ does not count: lists, which are in memory; polls, answers and cancellations of
                  tasks, whose number the calls bound; answers of older clients

A retry (a request with `requestState`) continues a call that has counted. It does not count as
another, and a state that this process has not seen passes all limits: it brings the user's answers,
which no limit may lose. But a client can send the same state repeatedly until it expires, and each
time the gateway runs a round. So repeated states are limited, and retries have buckets of their own.
An older client cannot repeat a round, so only the first round of its call counts.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from hashlib import blake2b
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import Struct

from roundgate.auth import LOCAL, Principal
from roundgate.backends import Catalog
from roundgate.clock import Clock
from roundgate.errors import RateExceeded
from roundgate.methods.rounds import RequestContext, Response
from roundgate.net.addresses import client_address
from roundgate.observability.metrics import Metrics
from roundgate.protocol import Params
from roundgate.settings import CallLimits, RateConfig
from roundgate.storage import SessionStore

if TYPE_CHECKING:  # loaded only if calls a minute are limited
    from roundgate.storage.rates import Buckets, Caller

P = TypeVar("P", bound=Params)
R = TypeVar("R", bound=Response)

TELL_EVERY_MS: Final = 60_000
"""The log names a caller at most once in this time, in milliseconds, for each limit."""
MAX_TOLD: Final = 1_000
"""The maximum number of callers that the log names in that time for one limit."""
MAX_STATES: Final = 10_000
"""The maximum number of states that a process remembers. A forged state passes, too, but runs
nothing."""
MAX_ADDRESS: Final = 64
"""The maximum length of an address; a proxy may pass on any text."""
_WILDCARDS: Final = frozenset("*?[")
_RETRY_CONCURRENT_S: Final = 1
"""Seconds after which a caller with too many calls at once may try again."""

log: Final = logging.getLogger("roundgate.rates")


class Use(Struct, frozen=True):
    """The present use of a limit by a caller, in this process."""

    row: str
    """The name of the limit: `callers`, `tools PATTERN` or `scopes SCOPE`."""
    caller: Caller
    running: int
    """The number of calls that run, if the row limits them."""
    left: int | None
    """The number of calls that the caller may make at once; `None` if the row does not limit them,
    or the store counts them."""


class Limit:
    """One row of `rate`: the limits that it sets, and what each caller has used of them.

    Args:
        name: the row: `callers`, `tools PATTERN` or `scopes SCOPE`.
        rows: the store of shared buckets; `None` makes this process count by itself.
        clock: the clock of the process.
    """

    def __init__(self, name: str, rows: SessionStore | None, clock: Clock) -> None:
        self.name = name
        self._rows = rows
        self._clock = clock
        self.most: int | None = None
        """The number of calls of a caller that run at once; `None` without a limit."""
        self.calls: Buckets | None = None
        """The buckets of calls; `None` without a limit."""
        self.retries: Buckets | None = None
        """The buckets of retries; `None` without a limit."""
        self._running: dict[Caller, int] = {}
        self._told: set[Caller] = set()
        self._told_since_ms = 0.0

    def configure(self, config: CallLimits) -> None:
        """Set the limits; callers keep what they have used."""
        self.most = config.concurrent
        if config.calls_per_minute is None:
            self.calls = self.retries = None
            return
        from roundgate.storage.rates import Quota, make_buckets

        quota = Quota(config.calls_per_minute, config.burst or config.calls_per_minute)
        if self.calls is None or self.retries is None:
            self.calls = make_buckets(self.name, quota, self._rows, self._clock)
            self.retries = make_buckets(f"{self.name} retries", quota, self._rows, self._clock)
        self.calls.quota = self.retries.quota = quota

    def enter(self, caller: Caller, most: float) -> bool:
        """Count a running call of a caller; return `False` if it already has `most`."""
        running = self._running.get(caller, 0)
        if running < most:
            self._running[caller] = running + 1
        return running < most

    def leave(self, caller: Caller) -> None:
        """Stop counting a call of a caller as running."""
        running = self._running.pop(caller) - 1
        if running:
            self._running[caller] = running

    def uses(self, most: int) -> list[Use]:
        """Return the present use of the limit by at most `most` callers, the latest first."""
        left = {} if self.calls is None else self.calls.left(most)
        callers = dict.fromkeys([*left, *islice(self._running, most)])
        return [
            Use(self.name, caller, self._running.get(caller, 0), left.get(caller))
            for caller in islice(callers, most)
        ]

    def too_many_at_once(self, tool: str) -> RateExceeded:
        """Return the error of a call of a tool that `enter` refused."""
        return RateExceeded(f"{self.most} at once{self._for(tool)}", _RETRY_CONCURRENT_S)

    def too_many(self, tool: str, buckets: Buckets, wait_ms: int) -> RateExceeded:
        """Return the error of a call of a tool for which its caller has no token."""
        most = f"{buckets.quota.per_minute} a minute{self._for(tool)}"
        return RateExceeded(most, -(-wait_ms // 1000))

    def is_to_tell(self, caller: Caller) -> bool:
        """Return whether the log has not named the caller recently."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._told_since_ms >= TELL_EVERY_MS:
            self._told.clear()
            self._told_since_ms = now_ms
        if caller in self._told or len(self._told) >= MAX_TOLD:
            return False
        self._told.add(caller)
        return True

    def _for(self, tool: str) -> str:
        """Return the tools of a row in words, by the name under which the caller knows the tool."""
        kind, _, pattern = self.name.partition(" ")
        others = " and tools that share its limit" if _WILDCARDS.intersection(pattern) else ""
        return f" for {tool}{others}" if kind == "tools" else ""


class Rates:
    """The limits of a process, for all its endpoints and over reloads.

    Args:
        rows: the store of shared buckets.
        clock: the clock of the process.
        metrics: counts refused calls.
    """

    def __init__(self, rows: SessionStore, clock: Clock, metrics: Metrics) -> None:
        self._rows = rows
        self._clock = clock
        self.metrics = metrics
        self._limits: dict[tuple[str, bool], Limit] = {}
        self._states = _States()

    def limits(self, config: RateConfig) -> ConfiguredLimits | None:
        """Return the limits of a configuration, or `None` if it sets none. Limits with the name of
        earlier ones continue to count where these stopped."""
        rows = {
            "callers": config,
            **{f"scopes {scope}": row for scope, row in config.scopes.items()},
            **{f"tools {pattern}": row for pattern, row in config.tools.items()},
        }
        if not any(row.calls_per_minute or row.concurrent for row in rows.values()):
            self._limits = {}
            return None
        shared = self._rows if config.shared else None
        self._limits = {
            (name, config.shared): self._limits.get((name, config.shared))
            or Limit(name, shared, self._clock)
            for name in rows
        }
        for name, row in rows.items():
            self._limits[name, config.shared].configure(row)
        by_name = {name: limit for (name, _), limit in self._limits.items()}
        return ConfiguredLimits(config, by_name, self.metrics, self._states)

    def uses(self, most: int) -> list[Use]:
        """Return the present use of each limit, by at most `most` callers each."""
        return [use for limit in self._limits.values() for use in limit.uses(most)]


class _States:
    """The states of calls that this process has seen, the latest `MAX_STATES`."""

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def is_new(self, state: str) -> bool:
        """Return whether a state was not seen before, and remember it."""
        key = blake2b(state.encode("utf-8", "replace"), digest_size=16).digest()
        is_new = key not in self._seen
        self._seen[key] = None
        self._seen.move_to_end(key)
        if len(self._seen) > MAX_STATES:
            self._seen.popitem(last=False)
        return is_new


class ConfiguredLimits:
    """The limits of one configuration.

    Args:
        config: the configuration.
        rows: the limit of each row, by name.
        metrics: counts refused calls.
        states: the states that the process has seen.
    """

    def __init__(
        self, config: RateConfig, rows: Mapping[str, Limit], metrics: Metrics, states: _States
    ) -> None:
        self._general = rows["callers"]
        self._scopes = [(scope, rows[f"scopes {scope}"]) for scope in config.scopes]
        self._patterns = [(pattern, rows[f"tools {pattern}"]) for pattern in config.tools]
        self._metrics = metrics
        self._states = states

    def of_tools(self, catalog: Catalog) -> Mapping[str, Sequence[Limit]]:
        """Return the limits of the tools that match a row of `tools`, by the name of the tool."""
        if not self._patterns:
            return {}
        limits = {
            name: [
                limit
                for pattern, limit in self._patterns
                if fnmatchcase(served.whole_name, pattern)
            ]
            for name, served in catalog.tools.items()
        }
        return {name: matching for name, matching in limits.items() if matching}

    async def serve(
        self,
        context: RequestContext,
        params: P,
        serve: Callable[[RequestContext, P], Awaitable[R]],
        limits_of_tool: Sequence[Limit] = (),
        tool: str = "",
    ) -> R:
        """Serve a request that counts, for a tool of this name if it is one of a tool.

        Raises:
            RateExceeded: the request is beyond a limit, and was not served.
        """
        if not context.is_counted:
            return await serve(context, params)
        state: str | None = getattr(params, "request_state", None)
        has_answers = state is not None and self._states.is_new(state)
        caller = _caller(context)
        entered: list[Limit] = []
        taken: list[Buckets] = []
        try:
            for limit in (self._of_caller(context.principal), *limits_of_tool):
                if limit.most is not None:
                    if not limit.enter(caller, inf if has_answers else limit.most):
                        error = limit.too_many_at_once(tool)
                        raise self._refused(error, limit, taken, context)
                    entered.append(limit)
                buckets = limit.calls if state is None else limit.retries
                if buckets is not None:
                    wait_ms = await buckets.take(caller)
                    if wait_ms and not has_answers:
                        error = limit.too_many(tool, buckets, wait_ms)
                        raise self._refused(error, limit, taken, context)
                    if not wait_ms:
                        taken.append(buckets)
            return await serve(context, params)
        finally:
            work = context.continued
            if work is None or work.done():
                _leave(entered, caller)
            else:
                work.add_done_callback(lambda _: _leave(entered, caller))

    def _of_caller(self, principal: Principal) -> Limit:
        for scope, limit in self._scopes:
            if scope in principal.scopes:
                return limit
        return self._general

    def _refused(
        self,
        error: RateExceeded,
        limit: Limit,
        taken: Sequence[Buckets],
        context: RequestContext,
    ) -> RateExceeded:
        """Return the tokens that a refused call has taken, count it, log the first of a caller in a
        minute, and return the error."""
        caller = _caller(context)
        for buckets in taken:
            buckets.give_back(caller)
        self._metrics.refused(limit.name)
        if limit.is_to_tell(caller):
            names = context.principal.names if caller[0] else {"address": caller[1]}
            fields = {"row": limit.name, "limit": error.limit, **names}
            log.warning("a caller makes too many calls", extra={"fields": fields})
        return error


def _leave(limits: Sequence[Limit], caller: Caller) -> None:
    for limit in limits:
        limit.leave(caller)


def _caller(context: RequestContext) -> Caller:
    """Return the caller that a request counts for: the principal, or without authentication the
    client's address."""
    principal = context.principal
    if principal.issuer == LOCAL.issuer and principal.identity == LOCAL.identity:
        return "", client_address(context.address)[:MAX_ADDRESS], ""
    return principal.identity
