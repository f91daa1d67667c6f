"""The pages of the console, in the order of the navigation, and its router."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from fastapi import APIRouter

from roundgate.console import audit, calls, limits, overview, signing_in, tasks, tools
from roundgate.console.access import Authenticate
from roundgate.console.frame import Console, Entry


@dataclass(frozen=True, slots=True)
class Page:
    """A page, or a group of pages, of one module."""

    label: str
    """Its name in the navigation; empty for a page without an entry."""
    path: str
    """The path below the console's own."""
    make_router: Callable[[Console], APIRouter]
    """Returns the routes. They begin with `console.router()`."""


PAGES: Final[Sequence[Page]] = (
    Page("Overview", "", overview.make_router),
    Page("Calls", "/calls", calls.make_router),
    Page("Tasks", "/tasks", tasks.make_router),
    Page("Tools", "/tools", tools.make_router),
    Page("Limits", "/limits", limits.make_router),
    Page("Audit log", "/audit", audit.make_router),
)


def make_console_router(console: Console, authenticate: Authenticate | None) -> APIRouter:
    """Return all routes of the console, and set its navigation."""
    router = APIRouter()
    router.include_router(signing_in.make_router(console, authenticate), include_in_schema=False)
    for page in PAGES:
        router.include_router(page.make_router(console))
    console.entries = [Entry(page.label, page.path) for page in PAGES if page.label]
    return router
