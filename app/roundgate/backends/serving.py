"""The offers of all back ends, the catalog that they become, and earlier catalogs that calls still
use.

`ask` asks all back ends at once; `merge` puts each back end's prefix in front of its
names. A name that two back ends offer is an error that names both.

    swap:     old ───calls that have begun run to their end───▶ after the last call, its back ends are closed
                  └▶ new: every call that begins from now on

A `Snapshot` never changes. A call takes the current catalog once and keeps it to its end:

    with serving.use() as catalog:
        …
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from roundgate.backends.base import (
    Backend,
    EncodedDefinitions,
    LiveBackend,
    NamedBackend,
    Offering,
    Prompt,
    Resource,
    SendingBackend,
    ServerState,
    Tool,
    renamed,
)
from roundgate.backends.catalog import (
    MAX_NAME,
    NAME,
    Catalog,
    Missing,
    ServedTemplate,
    ServedTool,
    offer_problem,
    serve,
)
from roundgate.backends.service_tasks import TaskSource
from roundgate.backends.shaping import ConfiguredBackend
from roundgate.background import detached
from roundgate.errors import ConfigError, Problem
from roundgate.protocol import Pages
from roundgate.settings import Origin

if TYPE_CHECKING:  # loaded only if a back end has skills
    from roundgate.backends.skills.source import SkillSource

log = logging.getLogger("roundgate.backends")


class CatalogSource(Protocol):
    """A provider of the catalog for a call. A `Catalog` provides itself."""

    def use(self) -> AbstractContextManager[Catalog]:
        """Return the current catalog; its back ends stay open until the block ends."""


class Snapshot:
    """A catalog and its back ends."""

    def __init__(
        self, catalog: Catalog, backends: Sequence[NamedBackend], offers: Offers | None = None
    ) -> None:
        self.catalog = catalog
        self.backends = backends
        self.offers = offers or Offers(backends)
        """The offers from which the catalog was made."""

    def limit_uses(self) -> dict[str, tuple[int, int]]:
        """Return the numbers of running and waiting calls of each back end and tool with `limits`."""
        return {
            name: use
            for backend in self.backends
            if isinstance(backend, ConfiguredBackend) and backend.limiters is not None
            for name, use in backend.limiters.uses().items()
        }

    def pause_reasons(self) -> dict[str, list[str]]:
        """Return a sentence for each failing host to which requests are paused, by back end."""
        cores = ((backend.name, core_of(backend)) for backend in self.backends)
        return {
            name: [reason for sender in core.senders.values() if (reason := sender.pause_reason())]
            for name, core in cores
            if isinstance(core, SendingBackend)
        }

    def servers(self) -> list[ServerState]:
        """Return the state of each server whose offer a back end follows."""
        cores = map(core_of, self.backends)
        return [core.state() for core in cores if isinstance(core, LiveBackend)]

    async def aclose(self, others: Sequence[Snapshot] = ()) -> None:
        """Close all back ends except those that other snapshots use. Log an error and continue."""
        shared_ids = {id(core_of(backend)) for snapshot in others for backend in snapshot.backends}
        for backend in self.backends:
            if id(core_of(backend)) in shared_ids:
                continue
            try:
                await backend.aclose()
            except Exception as error:
                log.error(
                    "a back end could not be closed",
                    exc_info=error,
                    extra={"fields": {"backend": backend.name}},
                )


class Serving:
    """The current snapshot, and earlier snapshots that calls still use."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.now = snapshot
        """The current snapshot; calls go through `use`."""
        self._retiring: dict[asyncio.Task[None], Snapshot] = {}
        self._closing: set[Snapshot] = set()
        """The retiring snapshots that are closing their back ends and so keep no back end open."""

    @property
    def catalog(self) -> Catalog:
        return self.now.catalog

    def use(self) -> AbstractContextManager[Catalog]:
        """Return the current catalog, kept open for a call."""
        return self.now.catalog.use()

    def swap(self, snapshot: Snapshot) -> None:
        """Serve another snapshot, and close the old one when its last call has ended."""
        old, self.now = self.now, snapshot
        closing = detached(asyncio.create_task, self._retire(old))
        self._retiring[closing] = old
        closing.add_done_callback(self._forget)

    async def aclose(self) -> None:
        """Close all snapshots, even if calls use them."""
        old = list(self._retiring.items())
        for closing, _ in old:
            closing.cancel()
        await asyncio.gather(*(closing for closing, _ in old), return_exceptions=True)
        for snapshot in [*(snapshot for _, snapshot in old), self.now]:
            await snapshot.aclose()

    async def _retire(self, old: Snapshot) -> None:
        await old.catalog.users.until_unused()
        kept_ids = {id(core_of(backend)) for backend in self.now.backends}
        for core in map(core_of, old.backends):
            if isinstance(core, LiveBackend) and id(core) not in kept_ids:
                await core.until_unused()
        self._closing.add(old)
        await old.aclose([self.now, *(set(self._retiring.values()) - self._closing)])

    def _forget(self, closing: asyncio.Task[None]) -> None:
        self._closing.discard(self._retiring.pop(closing))


class ViewSource:
    """The current catalog of one view (`CatalogSource`)."""

    def __init__(self, serving: Serving, view: str) -> None:
        self._serving = serving
        self._view = view

    def use(self) -> AbstractContextManager[Catalog]:
        return self._serving.catalog.of_view(self._view).use()


class ToolScopes:
    """The scopes that the current tools of a view need."""

    def __init__(self, serving: Serving, view: str = "") -> None:
        self._serving = serving
        self._view = view

    def __iter__(self) -> Iterator[str]:
        return iter(self._serving.catalog.of_view(self._view).all_scopes())


def core_of(backend: NamedBackend) -> Backend:
    """Return the back end itself, which several snapshots may share under different settings."""
    core: Backend = getattr(backend, "core", backend)
    return core


OFFER_S: Final = 120.0
"""Seconds within which a back end that may be missing must return its offer."""

T = TypeVar("T", Tool, Prompt, Resource)
P = TypeVar("P", Tool, Prompt)


class _ListProblems(Struct):
    """The problems of all lists: errors, and omitted entries."""

    origins: Mapping[str, Origin]
    tolerated: Collection[str]
    problems: list[Problem] = field(default_factory=list)
    left_out: list[Problem] = field(default_factory=list)

    def problems_for(self, backend: str) -> list[Problem]:
        return self.left_out if backend in self.tolerated else self.problems


class _Entries(Struct, Generic[T]):
    """The entries of one list in order, each with the name of its back end."""

    kind: str
    list_problems: _ListProblems
    entries: dict[str, tuple[T, str]] = field(default_factory=dict)

    def put(self, key: str, item: T, backend: str) -> bool:
        """Add an entry and return `True`. If the key is taken or invalid, record a problem and
        return `False`."""
        if key in self.entries:
            message = f"{self.kind} {key!r} is offered by {self.entries[key][1]!r} too"
            remedy = "rename one, or give one of the back ends another prefix"
        elif self.kind in ("tool", "prompt") and not NAME.fullmatch(key):
            allowed = f"1 to {MAX_NAME} of A-Z a-z 0-9 _ . -"
            message = f"{self.kind} name {key!r} must be {allowed} (it has {len(key)} characters)"
            remedy = "rename it, or shorten the back end's prefix"
        else:
            self.entries[key] = (item, backend)
            return True
        place, origin = f"back end {backend!r}", self.list_problems.origins.get(backend)
        self.list_problems.problems_for(backend).append(
            offer_problem(origin, place, message, remedy)
        )
        return False

    def remove(self, key: str) -> None:
        del self.entries[key]

    def items(self) -> dict[str, T]:
        return {key: item for key, (item, _) in self.entries.items()}

    def pages(self, size: int) -> Pages:
        definitions = [(key, item.definition) for key, (item, _) in self.entries.items()]
        return Pages(EncodedDefinitions(definitions), size)


class Offers(Struct, frozen=True):
    """The offers of back ends, in the order of the lists."""

    backends: Sequence[NamedBackend] = ()
    offerings: Mapping[str, Offering] = field(default_factory=dict)
    """The offers by back-end name, without missing back ends."""
    missing: Mapping[str, Missing] = field(default_factory=dict)
    tolerated: frozenset[str] = frozenset()
    """Back ends with offers from a server: a faulty entry is omitted, the rest is served."""

    @property
    def offered(self) -> list[tuple[NamedBackend, Offering]]:
        """Return each back end that is not missing, with its offer."""
        by_name = self.offerings
        return [(each, by_name[each.name]) for each in self.backends if each.name in by_name]

    async def again(self, names: Collection[str]) -> Offers:
        """Return the offers after asking the named back ends again. A back end that fails becomes
        missing."""
        problems: list[Problem] = []
        chosen = [backend for backend in self.backends if backend.name in names]
        renewed = await ask(chosen, problems, {}, names, self.tolerated)
        missing = {name: gap for name, gap in self.missing.items() if name not in names}
        offerings = {**self.offerings, **renewed.offerings}
        for name in renewed.missing:
            offerings.pop(name, None)
        return replace(self, offerings=offerings, missing={**missing, **renewed.missing})


async def ask(
    backends: Sequence[NamedBackend],
    problems: list[Problem],
    missing: Mapping[str, Missing],
    may_be_missing: Collection[str] = (),
    tolerated: frozenset[str] = frozenset(),
) -> Offers:
    """Ask back ends concurrently for their offers; add the problems of required back ends to
    `problems`.

    Args:
        backends: the back ends, in the order of the lists.
        problems: the list to which the problems are added.
        missing: back ends that could not be created.
        may_be_missing: names of optional back ends.
        tolerated: see `Offers.tolerated`.
    """
    absent = dict(missing)
    offered = await asyncio.gather(
        *(_offer(backend, problems, absent, may_be_missing) for backend in backends)
    )
    offerings = {
        backend.name: offering
        for backend, offering in zip(backends, offered, strict=True)
        if backend.name not in absent
    }
    return Offers(backends, offerings, absent, tolerated)


async def _offer(
    backend: NamedBackend,
    problems: list[Problem],
    missing: dict[str, Missing],
    may_be_missing: Collection[str],
) -> Offering:
    name = backend.name
    if name not in may_be_missing:
        try:
            offering = await backend.offer()
            problems.extend(offering.missing)
            return offering
        except ConfigError as error:
            problems.extend(error.problems)
            return Offering()
    try:
        async with asyncio.timeout(OFFER_S):
            offering = await backend.offer()
    except Exception as error:
        missing[name] = missing_for(name, backend.prefix, error)
        return Offering()
    if offering.missing:
        missing[name] = Missing(backend.prefix, offering.missing, heals_itself=True)
    return offering


def missing_for(name: str, prefix: str, error: Exception) -> Missing:
    """Return the `Missing` of a failed back end. Log any error other than a ConfigError."""
    if isinstance(error, ConfigError):
        return Missing(prefix, error.problems)
    log.error("a back end has failed", exc_info=error, extra={"fields": {"backend": name}})
    message = f"it failed with {type(error).__name__}"
    if isinstance(error, TimeoutError):
        message = f"it did not return its tools within {OFFER_S:g} s"
    remedy = "see the log for the cause; the gateway tries again"
    return Missing(prefix, [Problem("gateway.yaml", f"back end {name!r}", message, remedy)])


def merge(
    offers: Offers, page_size: int, problems: Sequence[Problem], origins: Mapping[str, Origin]
) -> Catalog:
    """Merge all offers into a catalog.

    Args:
        problems: problems found earlier.
        origins: the places of back ends in the configuration.

    Raises:
        ConfigError: lists every problem, except the problems of back ends that may be missing.
    """
    list_problems = _ListProblems(origins, offers.tolerated)
    tools = _Entries[Tool]("tool", list_problems)
    prompts = _Entries[Prompt]("prompt", list_problems)
    resources = _Entries[Resource]("resource", list_problems)
    templates = _Entries[Resource]("resource template", list_problems)
    offered = offers.offered
    served: dict[str, ServedTool] = {}
    unlisted: dict[str, Resource] = {}
    skill_sources: dict[str, SkillSource] = {}
    task_sources: dict[str, TaskSource] = {}
    for backend, offering in offered:
        served |= _served_tools(backend, offering, tools, list_problems, origins)
        for prompt in offering.prompts:
            prompt = replace(_called(prompt, backend.prefix), backend=backend.name)
            prompts.put(prompt.definition["name"], prompt, backend.name)
        for resource in offering.resources:
            resource = replace(resource, backend=backend.name)
            if (template := resource.definition.get("uriTemplate")) is not None:
                templates.put(template, resource, backend.name)
            else:
                resources.put(resource.definition["uri"], resource, backend.name)
        for start, resource in offering.unlisted.items():
            unlisted[start] = replace(resource, backend=backend.name)
        if offering.skill_source is not None:
            skill_sources[backend.name] = offering.skill_source
        if offering.task_source is not None:
            task_sources[backend.name] = offering.task_source
    if all_problems := [*problems, *list_problems.problems]:
        raise ConfigError(all_problems)
    every = [offering for _, offering in offered]
    left_out = [problem for offering in every for problem in offering.left_out]
    skills = [entry for source in skill_sources.values() for entry in source.entries]
    return Catalog(
        tools=served,
        prompts=prompts.items(),
        resources=resources.items(),
        templates=[_template(text, resource) for text, resource in templates.items().items()],
        tool_pages=tools.pages(page_size),
        prompt_pages=prompts.pages(page_size),
        resource_pages=resources.pages(page_size),
        template_pages=templates.pages(page_size),
        unlisted=unlisted,
        skill_sources=skill_sources,
        skill_pages=Pages(
            EncodedDefinitions([(skill["uri"], skill) for skill in skills]), page_size
        ),
        prefixes={backend.name: backend.prefix for backend, _ in offered},
        task_sources=task_sources,
        files=frozenset().union(*(offering.files for offering in every)),
        left_out=[*left_out, *list_problems.left_out],
        missing=offers.missing,
        is_tolerant=bool(offers.tolerated),
        may_list=frozenset().union(*(offering.may_list for offering in every)),
        has_private_lists=any(offering.is_private for offering in every),
    )


def _served_tools(
    backend: NamedBackend,
    offering: Offering,
    tools: _Entries[Tool],
    list_problems: _ListProblems,
    origins: Mapping[str, Origin],
) -> dict[str, ServedTool]:
    served: dict[str, ServedTool] = {}
    problems = list_problems.problems_for(backend.name)
    for tool in offering.tools:
        tool = _called(tool, backend.prefix)
        name = tool.definition["name"]
        if not tools.put(name, tool, backend.name):
            continue
        ready = serve(name, tool, backend.name, problems, origins)
        if ready is None:
            tools.remove(name)
        else:
            served[name] = ready
    return served


def _template(text: str, resource: Resource) -> ServedTemplate:
    if resource.pattern is not None:
        return ServedTemplate(resource.pattern, resource)
    from roundgate.protocol.uri_template import UriTemplate

    return ServedTemplate(UriTemplate.parse(text), resource)


def _called(item: P, prefix: str) -> P:
    name = prefix + item.definition["name"]
    return replace(item, definition=renamed(item.definition, name)) if prefix else item
