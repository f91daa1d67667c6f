"""What a session may change after it was opened: its log level, its subscriptions, its end.

A session itself is in its id and kept nowhere. These few facts are in rows of its caller: `BUCKETS`
rows at most, each with the latest `PER_BUCKET` sessions that have changed anything, so a caller
that opens session after session takes no more room than that. What is dropped then is what a new
session has: the default level, no subscriptions.

Whether a session has been ended is looked at again after `KNOWN_MS`, not with every request;
whoever logs or streams looks at the row itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final
from zlib import crc32

from roundgate import json
from roundgate.auth import Principal
from roundgate.clock import Clock
from roundgate.errors import InvalidParams, ParseError, SessionNotFound, Unavailable
from roundgate.storage import SessionStore
from roundgate.tokens import SessionFacts
from roundgate.values import dataclass

BUCKETS: Final = 64
PER_BUCKET: Final = 16
KNOWN_MS: Final = 2_000
MAX_KNOWN: Final = 10_000
MAX_SUBSCRIPTIONS: Final = 100
MAX_SUBSCRIBED_CHARS: Final = 8_192
"""Of the URIs of one session together."""
DEFAULT_LEVEL: Final = "info"
"""What a session is told that has never said what it wants."""
_TRIES: Final = 20


@dataclass(frozen=True, slots=True)
class SessionState:
    """What has changed of a session; as it stands here it is that of a new one."""

    level: str = DEFAULT_LEVEL
    uris: tuple[str, ...] = ()
    """The resources that it has subscribed to."""
    ended: bool = False


_NEW: Final = SessionState()


class Sessions:
    """Reads and changes the state of sessions."""

    def __init__(self, store: SessionStore, clock: Clock) -> None:
        self._rows = store
        self._clock = clock
        self._known: OrderedDict[str, float] = OrderedDict()
        """Sessions that were alive at a moment of the monotonic clock, the one
        looked at longest ago first."""

    async def check(self, session: SessionFacts, owner: Principal) -> None:
        """Do nothing if a session has not been ended, as far as is known here.

        Raises:
            SessionNotFound: it has.
            Unavailable: the store cannot be reached.
        """
        seen_ms = self._known.get(session.id)
        if seen_ms is not None and self._clock.monotonic_ms() - seen_ms < KNOWN_MS:
            return
        await self.state(session, owner)

    async def state(self, session: SessionFacts, owner: Principal) -> SessionState:
        """What has changed of a session, as of now.

        Raises:
            SessionNotFound: it has been ended.
            Unavailable: the store cannot be reached.
        """
        row = await self._rows.read(_key(session, owner))
        state = _NEW if row is None else _states(row.value).get(session.id, (_NEW, 0))[0]
        if state.ended:
            self._known.pop(session.id, None)
            raise SessionNotFound
        self._known[session.id] = self._clock.monotonic_ms()
        self._known.move_to_end(session.id)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return state

    async def set_level(self, session: SessionFacts, owner: Principal, level: str) -> None:
        """From now on tell it of this level and what is more severe. Raises as `state`."""
        await self._change(session, owner, lambda state: replace(state, level=level))

    async def subscribe(self, session: SessionFacts, owner: Principal, uri: str) -> None:
        """Tell it of changes of a resource.

        Raises:
            InvalidParams: it has subscribed to too many.
            SessionNotFound, Unavailable: as `state`.
        """

        def add(state: SessionState) -> SessionState:
            uris = tuple(dict.fromkeys((*state.uris, uri)))
            if len(uris) > MAX_SUBSCRIPTIONS or sum(map(len, uris)) > MAX_SUBSCRIBED_CHARS:
                raise InvalidParams(
                    f"A session subscribes to {MAX_SUBSCRIPTIONS} resources at most, with {MAX_SUBSCRIBED_CHARS}"
                    " characters in their URIs together; unsubscribe from others first"
                )
            return replace(state, uris=uris)

        await self._change(session, owner, add)

    async def unsubscribe(self, session: SessionFacts, owner: Principal, uri: str) -> None:
        """Tell it of changes of a resource no more. Raises as `state`."""
        await self._change(
            session, owner, lambda s: replace(s, uris=tuple(one for one in s.uris if one != uri))
        )

    async def end(self, session: SessionFacts, owner: Principal) -> None:
        """Take its id no more. Raises as `state`."""
        self._known.pop(session.id, None)
        await self._change(session, owner, lambda state: SessionState(ended=True))
        self._known.pop(session.id, None)

    async def _change(
        self,
        session: SessionFacts,
        owner: Principal,
        change: Callable[[SessionState], SessionState],
    ) -> None:
        key = _key(session, owner)
        for _ in range(_TRIES):
            row = await self._rows.read(key)
            states = {} if row is None else _states(row.value)
            before, _until = states.pop(session.id, (_NEW, 0))
            if before.ended:
                raise SessionNotFound
            now_ms = self._clock.now_ms()
            kept = {name: one for name, one in states.items() if one[1] > now_ms}
            while len(kept) >= PER_BUCKET:
                kept.pop(next(iter(kept)))
            kept[session.id] = change(before), session.expires_ms
            value = json.encode({name: _written(*one) for name, one in kept.items()})
            forget_ms = max(until for _, until in kept.values())
            if row is None:
                done = await self._rows.put_new(key, value, forget_ms)
            else:
                done = await self._rows.replace(key, value, row.version, forget_ms)
            if done:
                return
        raise Unavailable(
            "Too many sessions of this caller are being changed at once; try again soon"
        )


def _key(session: SessionFacts, owner: Principal) -> str:
    """The row that a session shares with others of its caller."""
    return f"state.{json.digest(list(owner.identity))}.{crc32(session.id.encode()) % BUCKETS}"


def _written(state: SessionState, until_ms: int) -> list[Any]:
    return [state.level, list(state.uris), state.ended, until_ms]


def _states(value: bytes) -> dict[str, tuple[SessionState, int]]:
    """Sessions by id, with until when each holds, the one that changed longest ago first; of a row
    that another version wrote, none."""
    try:
        return {
            name: (SessionState(level, tuple(uris), ended), until)
            for name, (level, uris, ended, until) in json.decode(value).items()
        }
    except (ParseError, AttributeError, TypeError, ValueError):
        return {}
