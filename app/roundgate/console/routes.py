"""The pages of the console, in the order of the navigation, and its router."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from fastapi import APIRouter

from roundgate.console import audit, calls, limits, overview, signing_in, tasks, tools
from roundgate.console.frame import Console, Entry

PAGES: Final[Mapping[Entry, Callable[[Console], APIRouter]]] = MappingProxyType(
    {
        Entry("Overview", ""): overview.make_router,
        Entry("Calls", "/calls"): calls.make_router,
        Entry("Tasks", "/tasks"): tasks.make_router,
        Entry("Tools", "/tools"): tools.make_router,
        Entry("Limits", "/limits"): limits.make_router,
        Entry("Audit log", "/audit"): audit.make_router,
    }
)
"""The functions that make the routes of each page, or group of pages, in the navigation. Routes begin
with `console.router()`."""


def make_console_router(console: Console) -> APIRouter:
    """Return all routes of the console, and set its navigation."""
    router = APIRouter()
    for make_router in (signing_in.make_router, *PAGES.values()):
        router.include_router(make_router(console))
    console.entries = tuple(PAGES)
    return router
