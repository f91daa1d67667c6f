"""The loading of a configuration into a snapshot: back ends are created, and their offers merged
into a catalog."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from roundgate.aio import Threads
from roundgate.backends import BackendConfig
from roundgate.backends.base import Backend, LiveBackend, MakeBackend, NamedBackend, Shared
from roundgate.backends.catalog import Catalog, Missing, with_reading, with_rules
from roundgate.backends.fallback import check_names
from roundgate.backends.modules import Modules
from roundgate.backends.registry import imported, kind_of, report_failures
from roundgate.backends.serving import Offers, Snapshot, ask, core_of, merge, missing_for
from roundgate.backends.shaping import ConfiguredBackend
from roundgate.clock import Clock
from roundgate.config import ConfigFile
from roundgate.errors import ConfigError, Problem
from roundgate.protocol import skills
from roundgate.settings import Origin
from roundgate.storage import SessionStore

if TYPE_CHECKING:  # loaded only if they are configured
    from roundgate.backends.limits import Limiters
    from roundgate.policy.config import Kind
    from roundgate.policy.rules import Policy

T = TypeVar("T")

log = logging.getLogger("roundgate.backends")
ONE_PAGE: Final = 1_000_000_000
"""The page size that puts all entries on one page."""


def load(
    file: ConfigFile,
    modules: Modules | None = None,
    *,
    fetches: bool = False,
    fetched: dict[str, bytes] | None = None,
    may_be_missing: Collection[str] = (),
    is_cold: bool = False,
    asks_servers: bool = True,
    rows: SessionStore | None = None,
) -> Snapshot:
    """Load a configuration without an event loop: at a start, or for a command.

    Args:
        file: the configuration.
        modules: the user's modules that are already loaded.
        fetches: whether documents without an index may be fetched.
        fetched: the fetched documents by URL; the function adds new documents.
        may_be_missing: names of back ends without which the rest is served (`Catalog.missing`).
        is_cold: whether a caller waits for this start. If so, services and secrets are read only
            when a call needs them.
        asks_servers: whether MCP servers may be asked for their tools.
        rows: the store of shared limits; without it, each process counts by itself.

    Raises:
        ConfigError: a required back end or the merged catalog has problems, or no back end can be
            served; the error lists the problems.
    """
    threads, documents = Threads(file.config.limits.threads), {} if fetched is None else fetched
    shared = Shared(
        threads,
        modules or Modules(),
        fetches,
        documents,
        is_cold,
        asks_servers=asks_servers,
        rows=rows,
    )
    return apart(_offered(_make(file, shared, may_be_missing), file, may_be_missing))


async def load_again(
    file: ConfigFile,
    modules: Modules,
    may_be_missing: Collection[str] = (),
    before: Snapshot | None = None,
    rows: SessionStore | None = None,
) -> Snapshot:
    """Load a configuration while the server runs. Modules are imported in the calling thread.
    Servers with the same settings as in the snapshot `before` stay connected, and calls that it runs
    count for the limits of their back ends.

    Raises:
        ConfigError: as for `load`.
    """
    shared = Shared(Threads(file.config.limits.threads), modules, rows=rows)
    parts = _make(file, shared, may_be_missing, () if before is None else before.backends)
    return await _offered(parts, file, {*may_be_missing, *parts.live})


async def refreshed(file: ConfigFile, snapshot: Snapshot, names: Collection[str]) -> Snapshot:
    """Return a snapshot of the same back ends with new offers of the back ends in
    `names`.

    Raises:
        ConfigError: the new offers conflict with each other.
    """
    offers = await snapshot.offers.again(names)
    origins = {entry.name: file.backend_origin(index) for index, entry in enumerate(file.backends)}
    arranged = await asyncio.to_thread(_arranged, offers, (), origins, file)
    return Snapshot(arranged, snapshot.backends, offers)


def tell_missing(
    catalog: Catalog, known: Mapping[str, Missing] | None = None, *, follows: bool = True
) -> None:
    """Log each back end that is not served, with its problems.

    Args:
        catalog: the served catalog.
        known: the missing back ends that were logged before.
        follows: whether this process asks servers again. They log by themselves that they are
            unavailable, if they take longer than a start waits for them.
    """
    for name, missing in catalog.missing.items():
        if (known or {}).get(name) == missing or (follows and missing.heals_itself):
            continue
        problems = [str(problem) for problem in missing.problems]
        fields = {"backend": name, "problems": problems}
        log.error("cannot serve a back end; the others are served", extra={"fields": fields})


def uncovered_kinds(catalog: Catalog) -> list[Kind]:
    """Return the kinds of prompts and resources that are served, and that no rule of `policy` names,
    so that every caller may use them."""
    served: dict[Kind, bool] = {
        "prompt": bool(catalog.prompts),
        "resource": bool(catalog.resources or catalog.templates or catalog.skill_sources),
    }
    policy = catalog.policy
    return [kind for kind in served if served[kind] and policy and not policy.covers(kind)]


def tell_uncovered(catalog: Catalog) -> None:
    """Log the kinds of prompts and resources about which the policy has no rule."""
    if kinds := uncovered_kinds(catalog):
        log.warning(
            "the policy has no rule for prompts or resources", extra={"fields": {"kinds": kinds}}
        )


class _Made(Struct):
    """The back ends that were created, and the problems of the others."""

    backends: list[NamedBackend] = field(default_factory=list)
    new: list[NamedBackend] = field(default_factory=list)
    """The back ends that no earlier snapshot has."""
    problems: list[Problem] = field(default_factory=list)
    missing: dict[str, Missing] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)

    @property
    def live(self) -> frozenset[str]:
        return frozenset(
            backend.name for backend in self.backends if isinstance(core_of(backend), LiveBackend)
        )


def _make(
    file: ConfigFile,
    shared: Shared,
    may_be_missing: Collection[str],
    before: Sequence[NamedBackend] = (),
) -> _Made:
    # before modules are imported, because they may read variables
    os.environ.update(file.environment)
    parts = _Made()
    for index, entry in enumerate(file.backends):
        origin = parts.origins[entry.name] = file.backend_origin(index)
        try:
            if ":" in entry.kind:  # a user's module: register it, so that a reload imports it again
                shared.modules.named(entry.kind.partition(":")[0], file.origin.base_dir)
            make: MakeBackend = kind_of(entry).factory()
            connected = _kept(entry, make, before)
            with report_failures(entry, origin):
                own = replace(shared, replaces_server=_is_up(entry.name, before))
                backend = connected or make(entry, origin, own)
            is_tolerant = bool(before) or entry.name in may_be_missing
            named = ConfiguredBackend(
                backend,
                entry,
                origin,
                is_tolerant=is_tolerant,
                has_policy=file.config.policy is not None,
                limiters=_limiters(entry, shared, before),
            )
            parts.backends.append(named)
            if connected is None:
                parts.new.append(named)
        except Exception as error:
            if entry.name in may_be_missing:
                parts.missing[entry.name] = missing_for(entry.name, entry.effective_prefix, error)
            elif isinstance(error, ConfigError):
                parts.problems.extend(error.problems)
            else:
                raise
    return parts


def _kept(
    entry: BackendConfig, make: MakeBackend, before: Sequence[NamedBackend]
) -> Backend | None:
    """Return the connected back end of a server with unchanged settings, or `None`."""
    for named in before:
        core = core_of(named)
        if (
            isinstance(named, ConfiguredBackend)
            and isinstance(core, LiveBackend)
            and type(core) is make
            and named.config == entry
            and core.has_current_files()
        ):
            return core
    return None


def _limiters(
    entry: BackendConfig, shared: Shared, before: Sequence[NamedBackend]
) -> Limiters | None:
    """Return the limits on calls of a back end and its tools, or `None` if it has none."""
    if entry.limits is None and all(own.limits is None for own in entry.override.values()):
        return None
    from roundgate.backends.limits import Limiters  # loaded only if there are limits

    earlier = next(
        (
            named.limiters
            for named in before
            if isinstance(named, ConfiguredBackend) and named.name == entry.name
        ),
        None,
    )
    return Limiters(entry, earlier, shared.rows, Clock())


def _is_up(name: str, before: Sequence[NamedBackend]) -> bool:
    cores = [core_of(backend) for backend in before if backend.name == name]
    return any(isinstance(core, LiveBackend) and core.state().is_up for core in cores)


async def _offered(parts: _Made, file: ConfigFile, may_be_missing: Collection[str]) -> Snapshot:
    try:
        tolerated = parts.live & frozenset(may_be_missing)
        problems = list(parts.problems)
        offers = await ask(parts.backends, problems, parts.missing, may_be_missing, tolerated)
        absent = offers.missing.values()
        heals = any(missing.heals_itself for missing in absent)
        if len(absent) == len(file.backends) and not heals:
            raise ConfigError([problem for missing in absent for problem in missing.problems])
        arranged = _arranged(offers, problems, parts.origins, file)
        return Snapshot(arranged, parts.backends, offers)
    except BaseException:
        for backend in parts.new:
            await backend.aclose()
        raise


def _arranged(
    offers: Offers,
    earlier_problems: Sequence[Problem],
    origins: Mapping[str, Origin],
    file: ConfigFile,
) -> Catalog:
    """Return the catalog of offers, with rules, views, `read_more`, and search.

    Raises:
        ConfigError: lists `earlier_problems`, and every problem of these parts.
    """
    page_size = file.config.limits.page_size or ONE_PAGE
    served = merge(offers, page_size, earlier_problems, origins)
    named = frozenset().union(*(backend.named_claims for backend in file.backends))
    served = replace(served, checks_scopes=file.config.auth != "none", kept_claims=named)
    problems: list[Problem] = []
    if file.config.policy is not None:
        from roundgate.policy.rules import Policy

        with _collected(problems):
            policy = Policy.of(file.config.policy, file.origin.at("policy"))
            served = with_rules(replace(served, kept_claims=named | policy.claims), policy)
    if file.config.views:
        from roundgate.backends.views import with_views

        with _collected(problems):
            served = with_views(
                served,
                file.config.views,
                file.origin.at("views"),
                page_size,
            )
    with _collected(problems):
        served = with_reading(served, file.origin.at("backends"))
    if file.config.search is not None:
        from roundgate.backends.search import with_search  # imported only if it is configured

        place = file.origin.at("search")
        with _collected(problems):
            served = with_search(served, file.config.search, place)
    with _collected(problems):
        continue_tool = file.config.sessions.continue_tool
        check_names(served, file.config.fallback, file.origin, continue_tool)
    problems += _unused_limits(served, file)
    if served.policy is not None:
        problems += _unused_rules(served, served.policy, file)
    if problems:
        raise ConfigError(problems)
    return served


def _unused_limits(served: Catalog, file: ConfigFile) -> Iterator[Problem]:
    """Yield a problem for each row of `rate.tools` without a tool; none if tools may be missing
    now."""
    if served.missing or served.is_tolerant:
        return
    names = {
        tool.whole_name for part in (served, *served.views.values()) for tool in part.tools.values()
    }
    for pattern in file.config.rate.tools:
        if not any(fnmatchcase(name, pattern) for name in names):
            place = file.origin.at("rate", "tools", pattern)
            remedy = "correct the name; `roundgate check` lists them, with their prefixes"
            yield place.problem(f"no tool is called {pattern!r}", remedy)


def _unused_rules(served: Catalog, policy: Policy, file: ConfigFile) -> Iterator[Problem]:
    known: dict[str, Collection[str]] = {
        "backend": {entry.name for entry in file.backends},
        "view": {"", *(view.name for view in file.config.views)},
    }
    uris: list[str] | None = None
    if not (served.missing or served.is_tolerant):
        known["tool"] = {tool.whole_name for tool in served.tools.values() if tool.backend}
        known["prompt"] = served.prompts.keys()
        uris = list(_uris(served))
    for number, member, text in policy.unused_texts(known, uris):
        effect = "allow" if policy.rules[number].allows else "deny"
        place = file.origin.at("policy", number, effect, member)
        if member == "resource":
            remedy = "correct the URI; `roundgate check` lists them, with their schemes"
            yield place.problem(f"no resource can have the URI {text!r}", remedy)
            continue
        kind = {"backend": "back end"}.get(member, member)
        remedy = "correct the name; `roundgate check` lists them"
        yield place.problem(f"no {kind} is called {text!r}", remedy)


def _uris(catalog: Catalog) -> Iterator[str]:
    """Yield the URIs of resources, and patterns of the URIs of templates, pages and skills."""
    from roundgate.policy.texts import template_pattern

    yield from catalog.resources
    for template in catalog.templates:
        yield template_pattern(template.resource.definition["uriTemplate"], {})
    yield from (f"{start}*" for start in catalog.unlisted)
    for name in catalog.skill_sources:
        yield from (f"{skills.SCHEME}{name}", f"{skills.SCHEME}{name}/*")


@contextmanager
def _collected(problems: list[Problem]) -> Iterator[None]:
    """Suppress a ConfigError of the block and add its problems to `problems`."""
    try:
        yield
    except ConfigError as error:
        problems += error.problems


def apart(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in an event loop of a new thread, because this thread may have a running
    loop."""
    with ThreadPoolExecutor(1, "offers") as thread:
        return thread.submit(asyncio.run, coroutine).result()


def compile_documents(file: ConfigFile, say: Callable[[str], None]) -> None:
    """Write the indexes of back ends beside the configuration, so that no replica downloads
    documents.

    Raises:
        ConfigError: an index cannot be made.
    """
    for index, backend in enumerate(file.backends):
        if compiler := kind_of(backend).compiler:
            say(imported(compiler)(backend, file.backend_origin(index)))


def pin_definitions(file: ConfigFile, say: Callable[[str], None]) -> None:
    """Write the lock files of back ends, which accept the current offers of their servers.

    Raises:
        ConfigError: a server is unavailable, or a file cannot be written.
    """
    for index, backend in enumerate(file.backends):
        if pinner := kind_of(backend).pinner:
            say(imported(pinner)(backend, file.backend_origin(index)))
