"""The start of the console: the conditions under which a gateway serves it, and its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from starlette.middleware import Middleware
from starlette.types import ASGIApp

from roundgate.auth import Principal, Verifier
from roundgate.clock import Clock
from roundgate.config import ConfigFile
from roundgate.errors import ConfigError, Problem
from roundgate.http import Health
from roundgate.http.replica import Replica
from roundgate.runtime.startup import is_private, make_ring
from roundgate.settings import Settings

if TYPE_CHECKING:  # they import Jinja2, which is an extra
    from roundgate.console.frame import Console


def check(file: ConfigFile, using: Settings) -> None:
    """Check that this process can serve the console.

    Raises:
        ConfigError: an extra is missing, or others than operators could use the console.
    """
    if problems := list(_problems(file, using)):
        raise ConfigError(problems)


def _problems(file: ConfigFile, using: Settings) -> Iterator[Problem]:
    """Yield the reasons why this process cannot serve the console."""
    place = file.origin.at("console")
    if find_spec("jinja2") is None:
        yield place.problem(
            "needs the extra console, which is not installed", "pip install 'roundgate[console]'"
        )
    if file.config.auth == "none" and not is_private(file, using):
        yield place.problem(
            "is on without auth, but not only this machine can call",
            "configure auth with operator_scope; or unset GATEWAY_PUBLIC_URL and "
            "GATEWAY_ALLOW_ANONYMOUS",
        )


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
    settings = file.config.console
    if settings is None:
        raise ValueError("the configuration has no console")
    from roundgate.console import access, frame, routes, sessions

    ring, store = make_ring(file.config, using, clock), replica.core.stores.sessions
    console = frame.Console(
        *(file, settings, using, clock, replica),
        sessions.Sessions(ring, clock, settings.session_s, store),
        *(verifier, health, lambda principal: serves_as(KnownCaller(principal))),
    )
    layer = Middleware(access.ConsoleAccess, console=console)
    return Served(layer, routes.make_console_router(console), console)


@dataclass(frozen=True, slots=True)
class KnownCaller:
    """The verifier of calls from the console, whose operator is authenticated already."""

    caller: Principal

    async def principal(
        self, authorization: bytes | None, claims: Mapping[str, Any] | None = None
    ) -> Principal:
        return self.caller
