"""Requests about a session itself: ping, its log level, its subscriptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from roundgate.errors import InvalidParams, ResourceNotFound
from roundgate.http.older.caller import Caller
from roundgate.http.older.sessions import Sessions
from roundgate.methods.parts import CurrentMethods
from roundgate.protocol import LOG_LEVELS, Params, Request, Uri, validate

_DONE = b"{}"
OWN: Final = frozenset({"ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"})
"""The methods that `OwnRequests` may answer."""


class _SetLevelParams(Params):
    level: str


class _SubscribeParams(Params):
    uri: Uri


class OwnRequests:
    """Answers requests about a session itself.

    Args:
        methods: the methods of each revision, by version.
        sessions: the changes that sessions have made.
    """

    def __init__(self, methods: Mapping[str, CurrentMethods], sessions: Sessions) -> None:
        self._methods = methods
        self._sessions = sessions

    async def result(self, request: Request, caller: Caller) -> bytes | None:
        """Return the result of a request about the session itself, or `None` for any other request.

        Raises:
            InvalidParams: the level is unknown, or the session has too many subscriptions.
            ResourceNotFound: the named view has no such resource, or the caller may not read it.
            SessionNotFound, Unavailable: see `Sessions.state`.
        """
        methods = self._methods[caller.session.revision]
        match request.method:
            case "ping":
                return _DONE
            case "logging/setLevel":
                level = validate(_SetLevelParams, request.params).level
                if level not in LOG_LEVELS:
                    raise InvalidParams(f"params.level must be one of {', '.join(LOG_LEVELS)}")
                await self._sessions.set_level(caller.session, caller.principal, level)
                return _DONE
            case "resources/subscribe" if {"resources", "subscriptions"} <= methods.features:
                uri = validate(_SubscribeParams, request.params).uri
                if not methods.now.may_subscribe(uri, caller.principal):
                    raise ResourceNotFound(uri)
                await self._sessions.subscribe(caller.session, caller.principal, uri)
                return _DONE
            case "resources/unsubscribe" if {"resources", "subscriptions"} <= methods.features:
                uri = validate(_SubscribeParams, request.params).uri
                await self._sessions.unsubscribe(caller.session, caller.principal, uri)
                return _DONE
        return None
