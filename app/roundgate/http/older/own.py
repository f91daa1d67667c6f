"""Requests about a session itself: whether it is there, what it is told of."""

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
"""The methods that may be about the session; of all others nothing has to be asked here."""


class _SetLevelParams(Params):
    level: str


class _SubscribeParams(Params):
    uri: Uri


class OwnRequests:
    """Answers what a session asks about itself.

    Args:
        methods: those of each revision, by its version.
        sessions: what sessions have changed.
        view: which view is asked; that of everything has no name.
    """

    def __init__(
        self, methods: Mapping[str, CurrentMethods], sessions: Sessions, view: str
    ) -> None:
        self._methods = methods
        self._sessions = sessions
        self._view = view

    async def result(self, request: Request, caller: Caller) -> bytes | None:
        """The result of a request about the session itself; `None` for all others.

        Raises:
            InvalidParams: there is no such level, or the session has
                subscribed to too many resources.
            ResourceNotFound: the view has none under that URI.
            SessionNotFound, Unavailable: as `Sessions.state`.
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
                if self._view and not methods.now.has_resource(uri):
                    raise ResourceNotFound(uri)
                await self._sessions.subscribe(caller.session, caller.principal, uri)
                return _DONE
            case "resources/unsubscribe" if {"resources", "subscriptions"} <= methods.features:
                uri = validate(_SubscribeParams, request.params).uri
                await self._sessions.unsubscribe(caller.session, caller.principal, uri)
                return _DONE
        return None
