"""The catalog of all tools, prompts and resources of the back ends, with look-ups by name or URI
and serialized lists.

A catalog is immutable; a reload makes another one. Names get their back end's prefix, and a
collision is an error that names both back ends. Each entry of a list is serialized once; a page
joins serialized entries.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, TypeVar

from roundgate.backends.base import (
    NamedBackend,
    Offering,
    Prompt,
    Resource,
    Returned,
    SkillSource,
    TaskSource,
    Tool,
    UriPattern,
)
from roundgate.backends.definitions import EncodedDefinitions, StoredDefinition, encoded, renamed
from roundgate.errors import (
    MAX_URI,
    ConfigError,
    InvalidParams,
    Problem,
    PromptNotFound,
    ResourceNotFound,
    Unavailable,
)
from roundgate.protocol import (
    NEWEST,
    ForwardedRead,
    MirroredArgument,
    Pages,
    ResourceContents,
    Schema,
    UriTemplate,
)
from roundgate.protocol.uri_template import has_dot_segments
from roundgate.replay import Context
from roundgate.settings import Kind, Origin

if TYPE_CHECKING:  # loaded only if there is a policy
    from roundgate.auth import Principal
    from roundgate.backends.item_rules import ItemRules
    from roundgate.backends.rules import Policy, Rule, ToolRules

log = logging.getLogger("roundgate.backends")

OFFER_S: Final = 120.0
"""Seconds within which a back end that may be missing must return its offer."""
MAX_NAME: Final = 64
ListName: TypeAlias = Literal["prompts", "resources", "templates", "skills"]
"""The lists of a catalog besides the list of tools."""
MAX_SCOPE_SETS: Final = 256
"""The maximum number of sets of scopes and rules with cached pages."""
NAME: Final = re.compile(rf"[A-Za-z0-9_.-]{{1,{MAX_NAME}}}")


@dataclass(slots=True)
class ServedTool:
    """A tool under its final name, ready for calls."""

    name: str
    tool: Tool
    mirrored: Sequence[MirroredArgument]
    backend: str
    """The name of the tool's back end."""
    _arguments: Schema | None = None
    other_name: str | None = None
    """The tool's name in the catalog of all tools, if a view gives it another."""
    rules: ToolRules | None = None
    """The rules of `policy` for the tool at this endpoint; `None` if its calls need no rule."""

    @property
    def whole_name(self) -> str:
        """The tool's name in the catalog of all tools."""
        return self.name if self.other_name is None else self.other_name

    def is_for(self, principal: Principal, *, checks_scopes: bool) -> bool:
        """Return whether some call of a caller may be allowed, by its scopes if they are checked, and
        by the rules of `policy`."""
        has_scopes = not checks_scopes or self.tool.scopes <= principal.scopes
        return has_scopes and (self.rules is None or self.rules.may_allow(principal))

    def call(self, context: Context, arguments: dict[str, Any]) -> Awaitable[Returned]:
        """Call the tool; return at most `max_result` characters of the result's text, if a limit is
        set."""
        if self.tool.max_result is None:
            return self.tool.call(context, arguments)
        return self._bounded_call(context, arguments, self.tool.max_result)

    async def _bounded_call(
        self, context: Context, arguments: dict[str, Any], limit: int
    ) -> Returned:
        from roundgate.backends.bounded import bounded

        returned = await self.tool.call(context, arguments)
        return await bounded(returned, limit, self.tool.scopes, context)

    @property
    def arguments(self) -> Schema:
        """The compiled schema of the tool's arguments; for a stored definition, compiled at first
        use."""
        if self._arguments is None:
            self._arguments = Schema.compile(self.tool.definition["inputSchema"])
        return self._arguments


@dataclass(frozen=True, slots=True)
class ServedTemplate:
    """A resource template with its parsed URI."""

    pattern: UriPattern
    resource: Resource


@dataclass(frozen=True, slots=True)
class Missing:
    """A back end that is currently unavailable."""

    prefix: str
    """The prefix of its tools and prompts."""
    problems: Sequence[Problem]
    heals_itself: bool = False
    """Whether the back end reports its own recovery (`LiveBackend`)."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """The tools, prompts and resources of one endpoint."""

    tools: Mapping[str, ServedTool]
    prompts: Mapping[str, Prompt]
    resources: Mapping[str, Resource]
    templates: Sequence[ServedTemplate]
    tool_pages: Pages
    prompt_pages: Pages
    resource_pages: Pages
    template_pages: Pages
    unlisted: Mapping[str, Resource] = field(default_factory=dict)
    """See `Offering.unlisted`."""
    unlisted_patterns: Sequence[str] = ("*",)
    """The URIs of unlisted resources, and of skills, that may be read; `*` stands for any text."""
    skill_sources: Mapping[str, SkillSource] = field(default_factory=dict)
    """The skills of back ends, by the name of the back end."""
    skill_pages: Pages = field(default_factory=lambda: Pages((), 1))
    """The list of all skills."""
    prefixes: Mapping[str, str] = field(default_factory=dict)
    """The text before the names of a back end's tools, by the name of the back end."""
    task_sources: Mapping[str, TaskSource] = field(default_factory=dict)
    """The tasks of services, by the name of the back end."""
    files: frozenset[Path] = frozenset()
    """The files that the back ends depend on, besides gateway.yaml and Python modules."""
    left_out: Sequence[Problem] = ()
    """A problem for each part that is left out while the rest is served."""
    missing: Mapping[str, Missing] = field(default_factory=dict)
    """Unavailable back ends, by name."""
    call_tool: str | None = None
    """The name of the tool that calls other tools, if search replaces the list
    (`roundgate.backends.search`)."""
    views: Mapping[str, Catalog] = field(default_factory=dict)
    """The catalog of each view, by its name (`roundgate.backends.views`)."""
    is_tolerant: bool = False
    """Whether servers may list further tools later, so that unknown names are not errors."""
    may_list: frozenset[str] = frozenset()
    """See `Offering.may_list`."""
    has_private_lists: bool = False
    """Whether a service says that shared caches must not keep its lists."""
    checks_scopes: bool = False
    """Whether `read_resource` checks the caller's scopes."""
    policy: Policy | None = None
    """The rules, if there are any."""
    item_rules: ItemRules | None = None
    """The rules for prompts and resources, if there are any rules."""
    _visible: dict[tuple[Any, ...], Pages] = field(default_factory=dict)

    def use(self) -> AbstractContextManager[Catalog]:
        """Return this catalog: a `CatalogSource` that is never swapped."""
        return nullcontext(self)

    def of_view(self, name: str) -> Catalog:
        """Return the catalog of a view; the whole catalog if `name` is empty."""
        return self.views[name] if name else self

    def lists_that_differ(self, other: Catalog) -> frozenset[str]:
        """Return the names of the lists ("tools", "prompts", "resources") that may have other entries
        for a client than the lists of `other`."""
        mine, others = self._lists(), other._lists()
        return frozenset(name for name in mine if mine[name] != others[name])

    def _lists(self) -> Mapping[str, Any]:
        return {
            "tools": (
                self.tool_pages.items,
                [
                    (
                        *(served.tool.scopes, served.tool.ask_in_words, served.tool.without_tasks),
                        served.rules,
                    )
                    for served in self.tools.values()
                ],
            ),
            "prompts": (
                self.prompt_pages.items,
                [prompt.scopes for prompt in self.prompts.values()],
                self._rules_about("prompt"),
            ),
            "resources": (
                self.resource_pages.items,
                self.template_pages.items,
                [resource.scopes for resource in self._resources()],
                self._rules_about("resource"),
            ),
        }

    def _rules_about(self, kind: Kind) -> Sequence[Rule] | None:
        """Return the rules about prompts or resources; `None` if these need no rule."""
        return None if self.policy is None else self.policy.rules_about(kind)

    def _resources(self) -> list[Resource]:
        """Return all resources, templates, and readers of unlisted resources."""
        listed = [*self.resources.values(), *(served.resource for served in self.templates)]
        return [*listed, *self.unlisted.values()]

    def tool_pages_for(self, principal: Principal, *, checks_scopes: bool) -> Pages:
        """Return the pages of the tools that a caller may call, by its scopes if they are checked,
        and by the rules of `policy`."""
        granted = principal.scopes & self.all_scopes() if checks_scopes else None
        rules = None if self.policy is None else self.policy.callers_key(principal)
        if granted is None and rules is None:
            return self.tool_pages
        return self._chosen(
            ("tools", granted, rules),
            self.tool_pages,
            lambda name: self.tools[name].is_for(principal, checks_scopes=checks_scopes),
        )

    def pages_for(self, name: ListName, principal: Principal, *, checks_scopes: bool) -> Pages:
        """Return the pages of the entries of a list that a caller may use, by its scopes if they are
        checked, and by the rules of `policy`; cached."""
        pages, rules = self._pages_of(name), self.item_rules
        granted = principal.scopes & self.all_scopes() if checks_scopes else None
        if rules is not None and not rules.covers("prompt" if name == "prompts" else "resource"):
            rules = None
        if rules is None and granted is None:
            return pages
        caller = None if rules is None else rules.caller(principal)
        entries: dict[str, tuple[frozenset[str], str]] = {}

        def is_for_caller(key: str) -> bool:
            if not entries:
                entries.update(self._entries(name))
            scopes, backend = entries[key]
            has_scopes = granted is None or scopes <= granted
            return has_scopes and (
                rules is None or caller is None or rules.allows(name, key, backend, caller)
            )

        by_rules = None if rules is None else rules.policy.callers_key(principal)
        return self._chosen((name, granted, by_rules), pages, is_for_caller)

    def _pages_of(self, name: ListName) -> Pages:
        match name:
            case "prompts":
                return self.prompt_pages
            case "resources":
                return self.resource_pages
            case "templates":
                return self.template_pages
        return self.skill_pages

    def _entries(self, name: ListName) -> Iterator[tuple[str, tuple[frozenset[str], str]]]:
        """Yield the key of each entry of a list, with its scopes and its back end."""
        if name == "skills":
            for backend, source in self.skill_sources.items():
                yield from ((entry["uri"], (source.scopes, backend)) for entry in source.entries)
            return
        of_kind = "prompt" if name == "prompts" else "resource"
        for kind, key, item in self.items():
            if kind == of_kind:
                yield key, (item.scopes, item.backend)

    def _chosen(
        self, key: tuple[Any, ...], pages: Pages, is_chosen: Callable[[str], bool]
    ) -> Pages:
        """Return the pages of the entries whose keys are chosen, cached under `key`."""
        if key in self._visible:
            return self._visible[key]
        chosen = Pages([item for item in pages.items if is_chosen(item[0])], pages.size)
        if len(self._visible) < MAX_SCOPE_SETS:
            self._visible[key] = chosen
        return chosen

    def all_scopes(self) -> frozenset[str]:
        """Return every scope that any tool, prompt or resource needs."""
        return frozenset().union(
            *(served.tool.scopes for served in self.tools.values()),
            *(prompt.scopes for prompt in self.prompts.values()),
            *(resource.scopes for resource in self._resources()),
        )

    def tool(self, name: str) -> ServedTool:
        """Return a tool by its name.

        Raises:
            InvalidParams: the tool does not exist.
            Unavailable: the tool's back end is missing now.
        """
        served = self.tools.get(name)
        if served is None:
            self._refuse_missing(name)
            raise InvalidParams(f"Unknown tool: {name[:MAX_NAME]}{self._meant(name)}")
        return served

    def _meant(self, name: str) -> str:
        """Return a hint if a name lacks the prefix of its back end, as names in HTML pages do;
        otherwise an empty text."""
        for prefix in self.prefixes.values():
            if prefix and prefix + name in self.tools:
                return f"; is {prefix}{name} meant?"
        return ""

    def prompt(self, name: str) -> Prompt:
        """Return a prompt by its name.

        Raises:
            InvalidParams: the prompt does not exist.
            Unavailable: the prompt's back end is missing now.
        """
        served = self.prompts.get(name)
        if served is None:
            self._refuse_missing(name)
            raise PromptNotFound(name)
        return served

    def _refuse_missing(self, name: str) -> None:
        """Raise Unavailable if a name has the prefix of a back end that is missing now."""
        for backend, missing in self.missing.items():
            if missing.prefix and name.startswith(missing.prefix):
                raise Unavailable(f"The back end {backend} is not served just now; try later")

    def resource(self, uri: str) -> tuple[Resource, Mapping[str, Any]]:
        """Return the resource with this URI, or the first template that matches the URI with the
        values of its variables.

        Raises:
            ResourceNotFound: neither exists.
            Unavailable: neither exists, and the resource may be a server's that is missing now.
        """
        if uri in self.resources:
            return self.resources[uri], {}
        if (unlisted := self._unlisted(uri)) is not None:
            return unlisted, {}
        for served in self.templates:
            values = served.pattern.match(uri)
            if values is not None:
                return served.resource, values
        absent = sorted(name for name, missing in self.missing.items() if missing.heals_itself)
        if absent:
            raise Unavailable(
                f"Resource not found: {uri[:MAX_URI]}; it may belong to {', '.join(absent)}, "
                "which is not served just now"
            )
        raise ResourceNotFound(uri)

    def _unlisted(self, uri: str) -> Resource | None:
        start = uri[: uri.find("/", uri.find("://") + 3) + 1]
        return self.unlisted.get(start) if self._is_part(uri) else None

    def _is_part(self, uri: str) -> bool:
        """Return whether the catalog may serve an unlisted URI: a pattern matches it, and it has no
        dot segments."""
        return not has_dot_segments(uri) and any(
            fnmatchcase(uri, pattern) for pattern in self.unlisted_patterns
        )

    def skill_source(self, uri: str) -> SkillSource | None:
        """Return the source of the skill or directory with this URI, if there is one."""
        return self.skill_sources.get(skill_backend(uri)) if self._is_part(uri) else None

    async def read_resource(
        self, context: Context, uri: str, kept_claims: Mapping[str, Sequence[str]] | None = None
    ) -> Sequence[ResourceContents]:
        """Return the contents at a URI; raise ResourceNotFound if the caller may read no resource
        there. `kept_claims` has the claims of a task's caller, as `Policy.kept_claims`."""
        resource, values = self.resource(uri)
        principal, rules = context.principal, self.item_rules
        if self.checks_scopes and not resource.scopes <= principal.scopes:
            raise ResourceNotFound(uri)
        if rules is not None:
            caller = rules.caller(principal, kept_claims)
            if rules.resource_refusal(uri, resource.backend, caller) is not None:
                raise ResourceNotFound(uri)
        result = await resource.read(context, uri, values)
        return result.contents if isinstance(result, ForwardedRead) else result

    def items(self) -> Iterator[tuple[Kind, str, Prompt | Resource]]:
        """Yield the kind of each prompt, resource and template, its name or URI, and itself."""
        for name, prompt in self.prompts.items():
            yield "prompt", name, prompt
        for uri, resource in self.resources.items():
            yield "resource", uri, resource
        for served in self.templates:
            yield "resource", served.resource.definition["uriTemplate"], served.resource

    def find_resource(self, uri: str) -> Resource | None:
        """Return the resource or template that is known to have this URI now, or `None`."""
        try:
            return self.resource(uri)[0]
        except (ResourceNotFound, Unavailable):
            return None

    def completed(self, kind: str, name: str) -> Prompt | Resource:
        """Return the prompt (`ref/prompt`), template or resource (`ref/resource`) whose arguments
        are completed.

        Raises:
            InvalidParams: there is none.
        """
        if kind == "ref/prompt":
            return self.prompt(name)
        for served in self.templates:
            if name == served.resource.definition["uriTemplate"]:
                return served.resource
        if name in self.resources:
            return self.resources[name]
        raise unknown_template(name)

    @property
    def can_complete(self) -> bool:
        """Whether any argument has completions."""
        everything: Iterable[Prompt | Resource] = (*self.prompts.values(), *self._resources())
        return any(item.complete for item in everything)


def skill_backend(uri: str) -> str:
    """Return the name of the back end in the URI of a skill or directory."""
    return uri.partition("://")[2].partition("/")[0]


def unknown_template(name: str) -> InvalidParams:
    """Return the error of a template that does not exist."""
    return InvalidParams(f"Unknown resource template: {name[:MAX_URI]}")


T = TypeVar("T", Tool, Prompt, Resource)
P = TypeVar("P", Tool, Prompt)


@dataclass(slots=True)
class _ListProblems:
    """The problems of all lists: errors, and omitted entries."""

    origins: Mapping[str, Origin]
    tolerated: Collection[str]
    problems: list[Problem] = field(default_factory=list)
    left_out: list[Problem] = field(default_factory=list)

    def problems_for(self, backend: str) -> list[Problem]:
        return self.left_out if backend in self.tolerated else self.problems


@dataclass(slots=True)
class _Entries(Generic[T]):
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
        self.list_problems.problems_for(backend).append(_problem(origin, place, message, remedy))
        return False

    def remove(self, key: str) -> None:
        del self.entries[key]

    def items(self) -> dict[str, T]:
        return {key: item for key, (item, _) in self.entries.items()}

    def pages(self, size: int) -> Pages:
        definitions = [(key, item.definition) for key, (item, _) in self.entries.items()]
        return Pages(EncodedDefinitions(definitions), size)


@dataclass(frozen=True, slots=True)
class Offers:
    """The offers of back ends, in the order of the lists."""

    backends: Sequence[NamedBackend] = ()
    offerings: Mapping[str, Offering] = field(default_factory=dict)
    """The offers by back-end name, without missing back ends."""
    missing: Mapping[str, Missing] = field(default_factory=dict)
    tolerated: frozenset[str] = frozenset()
    """Back ends with offers from a server: a faulty entry is omitted, the rest is served."""

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


async def build(
    backends: Sequence[NamedBackend],
    page_size: int,
    problems: Sequence[Problem] = (),
    missing: Mapping[str, Missing] | None = None,
    may_be_missing: Collection[str] = (),
    origins: Mapping[str, Origin] | None = None,
) -> Catalog:
    """Build a catalog from the offers of all back ends; see `ask` and `merge`."""
    all_problems = list(problems)
    offers = await ask(backends, all_problems, missing or {}, may_be_missing)
    return merge(offers, page_size, all_problems, origins or {})


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
        offers: the offers.
        page_size: entries on a page.
        problems: problems found earlier.
        origins: the places of back ends in the configuration.

    Raises:
        ConfigError: lists every problem, except the problems of back ends that may be missing.
    """
    list_problems = _ListProblems(origins, offers.tolerated)
    tools, prompts = (
        _Entries[Tool]("tool", list_problems),
        _Entries[Prompt]("prompt", list_problems),
    )
    resources = _Entries[Resource]("resource", list_problems)
    templates = _Entries[Resource]("resource template", list_problems)
    offered = [
        (backend, offers.offerings[backend.name])
        for backend in offers.backends
        if backend.name in offers.offerings
    ]
    served: dict[str, ServedTool] = {}
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
    if all_problems := [*problems, *list_problems.problems]:
        raise ConfigError(all_problems)
    skill_sources = {
        backend.name: offering.skill_source
        for backend, offering in offered
        if offering.skill_source is not None
    }
    skills = [
        (entry["uri"], entry) for source in skill_sources.values() for entry in source.entries
    ]
    return Catalog(
        tools=served,
        prompts=prompts.items(),
        resources=resources.items(),
        templates=[
            ServedTemplate(resource.pattern or UriTemplate.parse(text), resource)
            for text, resource in templates.items().items()
        ],
        tool_pages=tools.pages(page_size),
        prompt_pages=prompts.pages(page_size),
        resource_pages=resources.pages(page_size),
        template_pages=templates.pages(page_size),
        unlisted={
            start: replace(resource, backend=backend.name)
            for backend, offering in offered
            for start, resource in offering.unlisted.items()
        },
        skill_sources=skill_sources,
        skill_pages=Pages(EncodedDefinitions(skills), page_size),
        prefixes={backend.name: backend.prefix for backend, _ in offered},
        task_sources={
            backend.name: offering.task_source
            for backend, offering in offered
            if offering.task_source is not None
        },
        files=frozenset().union(*(offering.files for _, offering in offered)),
        left_out=[
            *(problem for _, offering in offered for problem in offering.left_out),
            *list_problems.left_out,
        ],
        missing=offers.missing,
        is_tolerant=bool(offers.tolerated),
        may_list=frozenset().union(*(offering.may_list for _, offering in offered)),
        has_private_lists=any(offering.is_private for _, offering in offered),
    )


def _served_tools(
    backend: NamedBackend,
    offering: Offering,
    tools: _Entries[Tool],
    list_problems: _ListProblems,
    origins: Mapping[str, Origin],
) -> dict[str, ServedTool]:
    """Add the tools of a back end to the list of tools; return those that can be served, by name."""
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


def with_reading(catalog: Catalog, origin: Origin) -> Catalog:
    """Return the catalog with the tool `read_more`, if any tool has a `max_result`.

    Raises:
        ConfigError: another tool is called `read_more`.
    """
    if all(served.tool.max_result is None for served in catalog.tools.values()):
        return catalog
    from roundgate.backends.bounded import READ_MORE, reading_tool

    if READ_MORE in catalog.tools:
        message = f"a tool is called {READ_MORE!r}, the name of the gateway's tool for reading long results"
        remedy = "give it another name: `override: {NAME: {name: …}}` of its back end, or a prefix"
        raise ConfigError([origin.problem(message, remedy)])
    tool = reading_tool()
    problems: list[Problem] = []
    served = serve(READ_MORE, tool, "", problems)
    assert served is not None, problems
    items = [*catalog.tool_pages.items, (READ_MORE, encoded(tool.definition))]
    return replace(
        catalog,
        tools={**catalog.tools, READ_MORE: served},
        tool_pages=Pages(items, catalog.tool_pages.size),
    )


def with_rules(catalog: Catalog, policy: Policy | None, view: str = "") -> Catalog:
    """Return the catalog with the rules of `policy` at the endpoint of a view."""
    if policy is None:
        return catalog
    from roundgate.backends.item_rules import ItemRules  # loaded only if there is a policy

    tools = {
        name: replace(
            served, rules=policy.for_tool(served.tool, served.whole_name, served.backend, view)
        )
        for name, served in catalog.tools.items()
    }
    item_rules = ItemRules(policy, view, tools)
    return replace(catalog, tools=tools, policy=policy, item_rules=item_rules)


def _called(item: P, prefix: str) -> P:
    """Return a tool or prompt with a prefix in front of its name."""
    name = prefix + item.definition["name"]
    return replace(item, definition=renamed(item.definition, name)) if prefix else item


def _problem(origin: Origin | None, place: str, message: str, remedy: str) -> Problem:
    """Return a problem with an offer, at `place`, in the file of `origin` if known."""
    if origin is None:
        return Problem("gateway.yaml", place, message, remedy)
    return replace(origin.problem(message, remedy), path=place)


def serve(
    name: str,
    tool: Tool,
    backend: str,
    problems: list[Problem],
    origins: Mapping[str, Origin] | None = None,
) -> ServedTool | None:
    """Return a tool ready for calls; add a problem and return `None` if its input schema is
    unusable."""
    # `roundgate compile` has validated a stored definition, which mirrors no headers
    if isinstance(tool.definition, StoredDefinition):
        return ServedTool(name, tool, (), backend)
    schema = tool.definition["inputSchema"]
    known = tool.compiled
    try:
        if schema.get("type") != "object":
            raise ValueError('the input schema must have "type": "object"')
        is_known = known is not None and known[0] is schema
        arguments = known[1] if known is not None and is_known else Schema.compile(schema)
        return ServedTool(name, tool, NEWEST.mirrored_arguments(schema), backend, arguments)
    except ValueError as error:
        place, origin = f"back end {backend!r}, tool {name!r}", (origins or {}).get(backend)
        problems.append(_problem(origin, place, str(error), "correct its input schema"))
        return None
