"""From a configuration to what can be served: back ends are made, asked what they offer, and merged into a catalog."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from roundgate.aio import Threads
from roundgate.backends import catalog
from roundgate.backends.base import Backend, MakeBackend, Shared
from roundgate.backends.fallback import check_names
from roundgate.backends.python.modules import Modules
from roundgate.backends.registry import kind_of
from roundgate.backends.serving import Snapshot
from roundgate.backends.shaping import shaped
from roundgate.config import ConfigFile
from roundgate.errors import ConfigError, Problem

T = TypeVar("T")

ONE_PAGE: Final = 1_000_000_000
"""Entries on a page where no list has a second one."""


def load(file: ConfigFile, modules: Modules | None = None, *, fetches: bool = False) -> Snapshot:
    """What the configuration serves, for a caller that has no event loop, or none to spare: at a start.

    With `fetches`, documents that back ends are described by are fetched where no index of them is kept.

    Raises:
        ConfigError: everything that is wrong in all back ends, and between them.
    """
    made, problems = _make(file, modules or Modules(), fetches=fetches)
    return apart(_offered(made, file, problems))


async def load_again(file: ConfigFile, modules: Modules) -> Snapshot:
    """The same beside a running server: modules are imported here, the back ends are waited for.

    Raises:
        ConfigError: as `load`.
    """
    made, problems = _make(file, modules)
    return await _offered(made, file, problems)


def _make(
    file: ConfigFile, modules: Modules, *, fetches: bool = False
) -> tuple[list[Backend], list[Problem]]:
    limits = file.config.limits
    shared = Shared(Threads(limits.threads, limits.threads_per_caller), modules, fetches)
    made: list[Backend] = []
    problems: list[Problem] = []
    for index, entry in enumerate(file.config.backends):
        make: MakeBackend = kind_of(entry).factory()
        try:
            origin = file.origin.at("backends", index)
            made.append(shaped(make(entry, origin, shared), entry, origin))
        except ConfigError as error:
            problems.extend(error.problems)
    return made, problems


async def _offered(made: list[Backend], file: ConfigFile, problems: list[Problem]) -> Snapshot:
    try:
        page_size = file.config.limits.page_size or ONE_PAGE
        built = await catalog.build(made, page_size, problems)
        checks_scopes = file.config.auth != "none"
        if file.config.views:
            from roundgate.backends.views import with_views

            built = with_views(
                built,
                file.config.views,
                file.origin.at("views"),
                page_size,
                checks_scopes=checks_scopes,
            )
        built = catalog.with_reading(built, file.origin.at("backends"))
        if file.config.search is not None:
            from roundgate.backends.search import with_search  # not needed for a list

            place = file.origin.at("search")
            built = with_search(built, file.config.search, place, checks_scopes=checks_scopes)
        continue_tool = file.config.sessions.continue_tool
        check_names(built, file.config.fallback, file.origin, continue_tool)
        return Snapshot(built, made)
    except BaseException:
        for backend in made:
            await backend.aclose()
        raise


def apart(coroutine: Coroutine[Any, Any, T]) -> T:
    """Its value, from an event loop in a thread of its own: in this one a loop may be running already."""
    with ThreadPoolExecutor(1, "offers") as thread:
        return thread.submit(asyncio.run, coroutine).result()
