"""The console of a gateway: its pages, which entry points of the group `roundgate.pages` name, and its
layer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fastapi import APIRouter
from starlette.middleware import Middleware
from starlette.types import ASGIApp

from roundgate.auth import Principal, Verifier
from roundgate.clock import Clock
from roundgate.config import ConfigFile
from roundgate.extensions import entries
from roundgate.http import Health
from roundgate.http.replica import Replica
from roundgate.runtime.startup import make_ring
from roundgate.settings import ConsoleConfig, Settings
from roundgate_console import signing_in
from roundgate_console.access import ConsoleAccess
from roundgate_console.frame import Console, ConsolePage
from roundgate_console.sessions import OperatorSessions

log: Final = logging.getLogger("roundgate.console")


@dataclass(frozen=True, slots=True)
class Served:
    """The console of an app."""

    layer: Middleware
    """The layer in front of its routes."""
    router: APIRouter
    console: Console


def make_console(
    file: ConfigFile,
    using: Settings,
    clock: Clock,
    replica: Replica,
    verifier: Verifier,
    health: Callable[[], Health],
    serves_as: Callable[[Verifier], ASGIApp],
) -> Served:
    """Return the console of a gateway.

    Args:
        file: the configuration, with a section `console`.
        using: the settings of the environment.
        clock: the clock of the gateway.
        replica: the replica that this process serves.
        verifier: authenticates callers of the default endpoint.
        health: returns the current health.
        serves_as: returns the MCP endpoints with another verifier.
    """
    settings = file.config.console or ConsoleConfig()
    ring, store = make_ring(file.config, using, clock), replica.core.stores.sessions
    pages = list(_load_pages())
    console = Console(
        *(file, settings, using, clock, replica),
        OperatorSessions(ring, clock, settings.session_s, store),
        *(verifier, health, lambda principal: serves_as(KnownCaller(principal))),
        pages=sorted(pages, key=lambda page: (page.place, page.label)),
    )
    router = APIRouter()
    router.include_router(signing_in.make_router(console))
    for page in console.pages:
        router.include_router(page.make_router(console))
    return Served(Middleware(ConsoleAccess, console=console), router, console)


def _load_pages() -> Iterator[ConsolePage]:
    for name, entry in entries("roundgate.pages").items():
        try:
            page: ConsolePage = entry.load()
        except Exception as error:  # a page of another package must not end the gateway
            fields = {"page": name, "module": entry.module}
            log.error("cannot load a page of the console", exc_info=error, extra={"fields": fields})
        else:
            yield page


@dataclass(frozen=True, slots=True)
class KnownCaller:
    """The verifier of calls from the console, whose operator is authenticated already."""

    caller: Principal

    async def principal(
        self, authorization: bytes | None, claims: Mapping[str, Any] | None = None
    ) -> Principal:
        return self.caller
