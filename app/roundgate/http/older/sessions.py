"""The callers of requests in sessions, and the changes that a session may make: its log level, its
subscriptions, its end.

The session id holds the session itself; only its changes are stored. Each caller has at most
`BUCKETS` rows, each with the latest `PER_BUCKET` sessions that changed anything, which bounds the
storage of a caller that opens many sessions. A dropped session falls back to the defaults: the
default level, no subscriptions.

The end of a session is never dropped: a row also has the latest `ENDED_PER_BUCKET` ended sessions.
Before the row forgets an older one, that session's expiry becomes the row's floor. Sessions that
expire no later and are not in the row count as ended, too. Their clients open new sessions.

The end of a session is checked again after `KNOWN_MS`, not at every request; logging and streaming
read the row itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final
from zlib import crc32

from msgspec import Struct
from msgspec.structs import replace

from roundgate import json
from roundgate.auth import Principal
from roundgate.clock import Clock, Deadline
from roundgate.errors import (
    InvalidParams,
    ParseError,
    ResourceNotFound,
    SessionNotFound,
    Unavailable,
)
from roundgate.methods.parts import CurrentMethods
from roundgate.observability.tracing import TracedTransport
from roundgate.protocol import LOG_LEVELS, Params, Request, Uri, jsonrpc
from roundgate.protocol.v2025 import REVISIONS, OlderRevision
from roundgate.storage import RowsOf, write_row
from roundgate.storage.patience import RowPatience
from roundgate.tokens.ids import SessionFacts

BUCKETS: Final = 64
PER_BUCKET: Final = 16
ENDED_PER_BUCKET: Final = 200
KNOWN_MS: Final = 2_000
MAX_KNOWN: Final = 10_000
MAX_SUBSCRIPTIONS: Final = 100
MAX_SUBSCRIBED_CHARS: Final = 8_192
"""The maximum total length of the subscribed URIs of one session, in characters."""
LEEWAY_MS: Final = 60_000
"""Milliseconds for which the end of a session is kept after the session's expiry, because the
clocks of replicas differ."""
DEFAULT_LEVEL: Final = "info"
"""The level of a session that has not set one."""
_TRIES: Final = 20


class SessionCaller(Struct, frozen=True):
    """The caller of a request in a session, with the deadline that the environment sets."""

    session: SessionFacts
    principal: Principal
    deadline: Deadline
    remaining_ms: float | None
    """Milliseconds that the environment gave the request; `None` without a limit."""
    transport: TracedTransport
    """The HTTP exchange of the request, for spans."""
    address: str = ""
    """The address from which the request came."""

    @property
    def revision(self) -> OlderRevision:
        """The session's revision."""
        return REVISIONS[self.session.revision]

    @property
    def is_nearly_over(self) -> bool:
        """Return whether less than half of the request's time is left. The next round then gets a
        new request."""
        left_ms = self.deadline.remaining_ms()
        return (
            left_ms is not None
            and self.remaining_ms is not None
            and left_ms < self.remaining_ms / 2
        )


class SessionState(Struct, frozen=True):
    """The changes of a session. The defaults are the state of a new session."""

    level: str = DEFAULT_LEVEL
    uris: tuple[str, ...] = ()
    ended: bool = False


_NEW: Final = SessionState()


class Sessions:
    """Reads and changes the state of sessions."""

    def __init__(self, rows_of: RowsOf, clock: Clock) -> None:
        self._rows_of = rows_of
        self._patiently = RowPatience(clock)
        self._clock = clock
        self._known: OrderedDict[str, float] = OrderedDict()
        """The time at which each session was last known to be open, in milliseconds on the
        monotonic clock; oldest first."""

    async def check(self, session: SessionFacts, owner: Principal) -> None:
        """Check that a session has not been ended. The check may be `KNOWN_MS` out of date.

        Raises:
            SessionNotFound: it has been ended.
            Unavailable: the store cannot be reached.
        """
        seen_ms = self._known.get(session.id)
        if seen_ms is not None and self._clock.monotonic_ms() - seen_ms < KNOWN_MS:
            return
        await self.state(session, owner)

    async def state(self, session: SessionFacts, owner: Principal) -> SessionState:
        """Read the current changes of a session.

        Raises:
            SessionNotFound: it has been ended.
            Unavailable: the store cannot be reached.
        """
        rows = self._rows_of(owner)
        row = await self._patiently(lambda: rows.read(_key(session, owner)))
        bucket = _Bucket() if row is None else _Bucket.read(row.value)
        state = bucket.state(session)
        if state.ended:
            self._known.pop(session.id, None)
            raise SessionNotFound
        self._known[session.id] = self._clock.monotonic_ms()
        self._known.move_to_end(session.id)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return state

    async def set_level(self, session: SessionFacts, owner: Principal, level: str) -> None:
        """Set the least severe level to send; raise the errors of `state`."""
        await self._change(session, owner, lambda state: replace(state, level=level))

    async def subscribe(self, session: SessionFacts, owner: Principal, uri: str) -> None:
        """Subscribe to changes of a resource.

        Raises:
            InvalidParams: the session has too many subscriptions.
            SessionNotFound, Unavailable: see `state`.
        """

        def add(state: SessionState) -> SessionState:
            uris = tuple(dict.fromkeys((*state.uris, uri)))
            if len(uris) > MAX_SUBSCRIPTIONS or sum(map(len, uris)) > MAX_SUBSCRIBED_CHARS:
                raise InvalidParams(
                    f"A session may subscribe to at most {MAX_SUBSCRIPTIONS} resources, with at most"
                    f" {MAX_SUBSCRIBED_CHARS} characters in their URIs; unsubscribe from others first"
                )
            return replace(state, uris=uris)

        await self._change(session, owner, add)

    async def unsubscribe(self, session: SessionFacts, owner: Principal, uri: str) -> None:
        """Unsubscribe from changes of a resource; raise the errors of `state`."""

        def remove(state: SessionState) -> SessionState:
            return replace(state, uris=tuple(known for known in state.uris if known != uri))

        await self._change(session, owner, remove)

    async def end(self, session: SessionFacts, owner: Principal) -> None:
        """End a session; raise the errors of `state`."""
        self._known.pop(session.id, None)
        await self._change(session, owner, lambda state: SessionState(ended=True))
        self._known.pop(session.id, None)

    async def _change(
        self,
        session: SessionFacts,
        owner: Principal,
        change: Callable[[SessionState], SessionState],
    ) -> None:
        key, rows = _key(session, owner), self._rows_of(owner)
        for _ in range(_TRIES):
            row = await self._patiently(lambda: rows.read(key))
            bucket = _Bucket() if row is None else _Bucket.read(row.value)
            before = bucket.state(session)
            if before.ended:
                raise SessionNotFound
            bucket.change(session, change(before), self._clock.now_ms())
            value, forget_ms = bucket.written(), bucket.forget_ms
            if await self._patiently(partial(write_row, rows, key, value, row, forget_ms)):
                return
        raise Unavailable(
            "Too many sessions of this caller are being changed at once; try again soon"
        )


def _key(session: SessionFacts, owner: Principal) -> str:
    """Return the key of the row that a session shares with other sessions of its caller."""
    return f"state.{json.digest(list(owner.identity))}.{crc32(session.id.encode()) % BUCKETS}"


class _Bucket:
    """The sessions of one row, least recently changed first. Times are in milliseconds since the
    epoch."""

    def __init__(self) -> None:
        self.changed: dict[str, tuple[SessionState, int]] = {}
        """The changes and the expiry of each session."""
        self.ended: dict[str, int] = {}
        """The expiry of each session that was ended."""
        self.floor_ms = 0
        """The floor: unknown sessions that expire no later have been ended."""

    def state(self, session: SessionFacts) -> SessionState:
        """Return the changes of a session."""
        known = self.changed.get(session.id)
        if known is not None:
            return known[0]
        is_ended = session.id in self.ended or session.expires_ms <= self.floor_ms
        return SessionState(ended=True) if is_ended else _NEW

    def change(self, session: SessionFacts, state: SessionState, now_ms: int) -> None:
        """Record a change; drop expired sessions and sessions beyond the row's limits."""
        self.changed.pop(session.id, None)
        self.changed = {name: known for name, known in self.changed.items() if known[1] > now_ms}
        self.ended = {
            name: until for name, until in self.ended.items() if until + LEEWAY_MS > now_ms
        }
        if state.ended:
            while len(self.ended) >= ENDED_PER_BUCKET:
                self.floor_ms = max(self.floor_ms, self.ended.pop(next(iter(self.ended))))
            self.ended[session.id] = session.expires_ms
            return
        while len(self.changed) >= PER_BUCKET:
            self.changed.pop(next(iter(self.changed)))
        self.changed[session.id] = state, session.expires_ms

    @property
    def forget_ms(self) -> int:
        """The time from which the whole row may be forgotten, in milliseconds since the epoch."""
        changed = (until for _, until in self.changed.values())
        return max((*changed, *self.ended.values(), self.floor_ms)) + LEEWAY_MS

    def written(self) -> bytes:
        """Encode the row for `read`."""
        changed = {
            name: [state.level, list(state.uris), until]
            for name, (state, until) in self.changed.items()
        }
        return json.encode({"changed": changed, "ended": self.ended, "floor": self.floor_ms})

    @classmethod
    def read(cls, value: bytes) -> _Bucket:
        """Decode a stored row. Return an empty bucket for a row that another version wrote."""
        bucket = cls()
        try:
            row = json.decode(value)
            bucket.changed = {
                name: (SessionState(level, tuple(uris)), until)
                for name, (level, uris, until) in row["changed"].items()
            }
            bucket.ended, bucket.floor_ms = dict(row["ended"]), int(row["floor"])
        except (ParseError, AttributeError, KeyError, TypeError, ValueError):
            return cls()
        return bucket


_DONE = b"{}"
OWN: Final = frozenset({"ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"})
"""The methods that `own_result` may answer."""


class _SetLevelParams(Params, frozen=True):
    level: str


class _SubscribeParams(Params, frozen=True):
    uri: Uri


async def own_result(
    request: Request,
    caller: SessionCaller,
    methods: CurrentMethods,
    sessions: Sessions,
) -> bytes | None:
    """Return the result of a request about the session itself, or `None` for any other request.

    Raises:
        InvalidParams: the level is unknown, or the session has too many subscriptions.
        ResourceNotFound: the named view has no such resource, or the caller may not read it.
        SessionNotFound, Unavailable: see `Sessions.state`.
    """
    match request.method:
        case "ping":
            return _DONE
        case "logging/setLevel":
            level = jsonrpc.validate(_SetLevelParams, request.params).level
            if level not in LOG_LEVELS:
                raise InvalidParams(f"params.level must be one of {', '.join(LOG_LEVELS)}")
            await sessions.set_level(caller.session, caller.principal, level)
            return _DONE
        case "resources/subscribe" if {"resources", "subscriptions"} <= methods.features:
            uri = jsonrpc.validate(_SubscribeParams, request.params).uri
            if not methods.now.may_subscribe(uri, caller.principal):
                raise ResourceNotFound(uri)
            await sessions.subscribe(caller.session, caller.principal, uri)
            return _DONE
        case "resources/unsubscribe" if {"resources", "subscriptions"} <= methods.features:
            uri = jsonrpc.validate(_SubscribeParams, request.params).uri
            await sessions.unsubscribe(caller.session, caller.principal, uri)
            return _DONE
    return None
