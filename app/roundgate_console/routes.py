"""The console of a gateway: its pages, in the order of the navigation, and its layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from fastapi import APIRouter
from starlette.middleware import Middleware
from starlette.types import ASGIApp

from roundgate.auth import Principal, Verifier
from roundgate.clock import Clock
from roundgate.config import ConfigFile
from roundgate.http import Health
from roundgate.http.replica import Replica
from roundgate.runtime.startup import make_ring
from roundgate.settings import ConsoleConfig, Settings
from roundgate_console import audit, calls, overview, signing_in, tasks, tools
from roundgate_console.access import ConsoleAccess
from roundgate_console.frame import Console
from roundgate_console.sessions import Sessions

PAGES: Final[Mapping[str, tuple[str, Callable[[Console], APIRouter]]]] = MappingProxyType(
    {
        "": ("Overview", overview.make_router),
        "/calls": ("Calls", calls.make_router),
        "/tasks": ("Tasks", tasks.make_router),
        "/tools": ("Tools", tools.make_router),
        "/limits": ("Limits", overview.make_limits_router),
        "/audit": ("Audit log", audit.make_router),
    }
)
"""Each page in the navigation, or group of pages, by its path: its label, and the function that makes
its routes."""


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
        Sessions(ring, clock, settings.session_s, store),
        *(verifier, health, lambda principal: serves_as(KnownCaller(principal))),
        entries={path: label for path, (label, _) in PAGES.items()},
    )
    router = APIRouter()
    router.include_router(signing_in.make_router(console))
    for _, make_router in PAGES.values():
        router.include_router(make_router(console))
    return Served(Middleware(ConsoleAccess, console=console), router, console)


@dataclass(frozen=True, slots=True)
class KnownCaller:
    """The verifier of calls from the console, whose operator is authenticated already."""

    caller: Principal

    async def principal(
        self, authorization: bytes | None, claims: Mapping[str, Any] | None = None
    ) -> Principal:
        return self.caller
