"""The console of a gateway: its pages, which entry points of the group `roundgate.pages` name, and its
layer."""

from __future__ import annotations

import logging
from bisect import insort
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any, Final

from fastapi import APIRouter, Depends, HTTPException
from starlette.middleware import Middleware
from starlette.routing import Match
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
    console = Console(
        *(file, settings, using, clock, replica),
        OperatorSessions(ring, clock, settings.session_s, store),
        *(verifier, health, lambda principal: serves_as(KnownCaller(principal))),
    )
    router = APIRouter()
    router.include_router(signing_in.make_router(console))
    _load_pages(console, router)
    return Served(Middleware(ConsoleAccess, console=console), router, console)


def _load_pages(console: Console, router: APIRouter) -> None:
    """Add all pages to the navigation, and their routes to `router`. A page of another package must
    not end the gateway or replace a page of the console: a broken one is left out."""
    found = entries("roundgate.pages").values()
    for entry in sorted(found, key=lambda entry: not entry.module.startswith(f"{__package__}.")):
        try:
            reason = _add_page(console, router, entry, entry.load())
        except Exception as error:
            _leave_out(console, entry, _failure(error), error)
            continue
        if reason:
            _leave_out(console, entry, reason)


def _leave_out(
    console: Console, entry: EntryPoint, reason: str, cause: Exception | None = None
) -> None:
    console.left_out.append(f"page {entry.name}: {reason}")
    fields = {"page": entry.name, "module": entry.module, "error": reason}
    log.error("cannot load a page of the console", exc_info=cause, extra={"fields": fields})


def _failure(error: Exception) -> str:
    return f"it failed with {type(error).__name__}; the log has the cause"


def _add_page(console: Console, router: APIRouter, entry: EntryPoint, page: object) -> str:
    """Add a page and return an empty text, or return the reason why the page is left out."""
    if not isinstance(page, ConsolePage):
        return f"it is no ConsolePage but a {type(page).__name__}"
    if _has_page(router, path := console.settings.path + page.path):
        return f"another page has the path {path}"
    own = page.make_router(console.of_page(page))
    if not _has_page(own, path):
        return f"its router has no GET {path}"
    start = own.lifespan_context

    async def check() -> None:
        if page not in console.pages:
            raise HTTPException(404)

    @asynccontextmanager
    async def lifespan(app: object) -> AsyncIterator[Mapping[str, Any]]:
        async with AsyncExitStack() as stack:
            state: Mapping[str, Any] | None = None
            try:
                state = await stack.enter_async_context(start(app))
            except Exception as error:
                console.pages.remove(page)
                _leave_out(console, entry, _failure(error), error)
            yield state or {}

    own.lifespan_context = lifespan
    insort(console.pages, page, key=lambda page: (page.place, page.label))
    router.include_router(own, dependencies=[Depends(check)])
    return ""


def _has_page(router: APIRouter, path: str) -> bool:
    scope = {"type": "http", "method": "GET", "path": path, "headers": []}
    return any(route.matches(scope)[0] is Match.FULL for route in router.routes)


@dataclass(frozen=True, slots=True)
class KnownCaller:
    """The verifier of calls from the console, whose operator is authenticated already."""

    caller: Principal

    async def principal(
        self, authorization: bytes | None, claims: Mapping[str, Any] | None = None
    ) -> Principal:
        return self.caller
