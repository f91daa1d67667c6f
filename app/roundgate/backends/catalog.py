"""The catalog of all tools, prompts and resources of the back ends, with look-ups by name or URI
and serialized lists.

A catalog is immutable; a reload makes another one from new offers (`roundgate.backends.serving`).
Each entry of a list is serialized once; a page joins serialized entries.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from roundgate.backends.approvals import asking_first
from roundgate.backends.base import (
    DirectCall,
    Prompt,
    Resource,
    Returned,
    StoredDefinition,
    Tool,
    UriPattern,
    encoded,
    meta_of,
)
from roundgate.backends.service_tasks import TaskSource
from roundgate.errors import (
    MAX_URI,
    ConfigError,
    InvalidParams,
    Problem,
    PromptNotFound,
    ResourceNotFound,
    ServerAway,
    Unavailable,
)
from roundgate.protocol import (
    NEWEST,
    REQUIRED,
    ForwardedRead,
    MirroredArgument,
    Pages,
    PromptReference,
    ResourceContents,
    ResourceReference,
    Schema,
    merged,
)
from roundgate.protocol.apps import page_uris
from roundgate.replay import Context, call_of
from roundgate.settings import Origin

if TYPE_CHECKING:  # loaded only if there is a policy
    from roundgate.auth import Principal
    from roundgate.backends.skills.source import SkillSource
    from roundgate.policy.config import Kind
    from roundgate.policy.items import ItemRules
    from roundgate.policy.rules import Policy, PolicyRule, ToolRules

MAX_NAME: Final = 64
ListName: TypeAlias = Literal["prompts", "resources", "templates", "skills"]
"""The lists of a catalog besides the list of tools."""
NAME: Final = re.compile(rf"[A-Za-z0-9_.-]{{1,{MAX_NAME}}}")


class ServedTool(Struct):
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
    direct: DirectCall | None = None
    """The tool's call without the engine; `None` if a call may need the engine."""
    requires: Mapping[str, Any] = field(default_factory=dict)
    """The capabilities that a client must have declared."""

    def __post_init__(self) -> None:
        tool, call = self.tool, self.tool.call
        is_plain = tool.task == "forbidden" and not tool.once and tool.max_result is None
        self.direct = call if is_plain and isinstance(call, DirectCall) else None
        self.requires = (
            merged([tool.requires, REQUIRED]) if tool.task == "required" else tool.requires
        )

    @property
    def whole_name(self) -> str:
        """The tool's name in the catalog of all tools."""
        return self.name if self.other_name is None else self.other_name

    @property
    def protection(self) -> Literal["approval", "once", ""]:
        """The reason why a round of this tool runs once; empty if it may run again."""
        return "approval" if self.tool.asks_first else "once" if self.tool.once else ""

    def protected(self, protection: str) -> ServedTool:
        """Return the tool with the protection that it had in an earlier round of the call, because
        a reload takes none from a call that has begun."""
        tool = self.tool
        if protection == "approval" and tool.approvable is not None:
            tool = asking_first(tool)
        elif protection and not tool.once:
            tool = replace(tool, once=True)
        return self if tool is self.tool else replace(self, tool=tool)

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

        call_of(context).shapes_result = True
        returned = await self.tool.call(context, arguments)
        return await bounded(returned, limit, self.tool.scopes, context)

    @property
    def arguments(self) -> Schema:
        """The compiled schema of the tool's arguments; for a stored definition, compiled at first
        use."""
        if self._arguments is None:
            self._arguments = Schema.compile(self.tool.definition["inputSchema"])
        return self._arguments


class ServedTemplate(Struct, frozen=True):
    """A resource template with its parsed URI."""

    pattern: UriPattern
    resource: Resource


class Missing(Struct, frozen=True):
    """A back end that is currently unavailable."""

    prefix: str
    """The prefix of its tools and prompts."""
    problems: Sequence[Problem]
    heals_itself: bool = False
    """Whether the back end reports its own recovery (`LiveBackend`)."""


class Users:
    """The number of calls that use a catalog, or a catalog made from it."""

    def __init__(self) -> None:
        self.count = 0
        self.unused: asyncio.Event | None = None
        """Set after the last call, while somebody waits."""

    async def until_unused(self) -> None:
        """Wait until no call uses the catalog."""
        while self.count:
            self.unused = asyncio.Event()
            await self.unused.wait()


class Catalog(Struct, frozen=True, dict=True):
    """The tools, prompts and resources of one endpoint. The back ends stay open within the block
    `with catalog.use()`."""

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
    """Whether callers are authenticated; otherwise no scope is needed."""
    kept_claims: frozenset[str] = frozenset()
    """The claims that rules of `policy` and headers of back ends name. The rows of tasks keep them."""
    policy: Policy | None = None
    """The rules, if there are any."""
    item_rules: ItemRules | None = None
    """The rules for prompts and resources, if there are any rules."""
    users: Users = field(default_factory=Users)
    """The calls that use the catalog or one of its views."""

    @cached_property
    def _by_ascii_uri(self) -> Mapping[str, str]:
        """The URIs of `resources` by the form in which they are looked up."""
        from roundgate.protocol.uri_template import ascii_uri

        return {ascii_uri(each): each for each in self.resources}

    def use(self) -> AbstractContextManager[Catalog]:
        """Return this catalog, for a block that uses it. A catalog is a `CatalogSource` that is never
        swapped."""
        return self

    def __enter__(self) -> Self:
        self.users.count += 1
        return self

    def __exit__(self, *exception: object) -> None:
        users = self.users
        users.count -= 1
        if users.unused is not None and not users.count:
            users.unused.set()

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

    def _rules_about(self, kind: Kind) -> Sequence[PolicyRule] | None:
        """Return the rules about prompts or resources; `None` if these need no rule."""
        return None if self.policy is None else self.policy.rules_about(kind)

    def _resources(self) -> list[Resource]:
        """Return all resources, templates, and readers of unlisted resources."""
        listed = [*self.resources.values(), *(served.resource for served in self.templates)]
        return [*listed, *self.unlisted.values()]

    def all_scopes(self) -> frozenset[str]:
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
                if missing.heals_itself:
                    raise ServerAway(
                        f"{backend} did not answer: it has not been up since the gateway started; "
                        "try again later"
                    )
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
        from roundgate.protocol.uri_template import ascii_uri

        normal = ascii_uri(uri)
        if normal in self._by_ascii_uri:
            return self.resources[self._by_ascii_uri[normal]], {}
        if (unlisted := self._unlisted(uri)) is not None:
            return unlisted, {}
        for served in self.templates:
            values = served.pattern.match(normal)
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
        from roundgate.protocol.uri_template import has_dot_segments

        return not has_dot_segments(uri) and any(
            fnmatchcase(uri, pattern) for pattern in self.unlisted_patterns
        )

    def skill_source(self, uri: str) -> SkillSource | None:
        """Return the source of the skill or directory with this URI, if there is one."""
        return self.skill_sources.get(skill_backend(uri)) if self._is_part(uri) else None

    async def read_resource(self, context: Context, uri: str) -> Sequence[ResourceContents]:
        """Return the contents at a URI; raise ResourceNotFound if the caller may read no resource
        there."""
        resource, values = self.resource(uri)
        principal, rules = context.principal, self.item_rules
        if self.checks_scopes and not resource.scopes <= principal.scopes:
            raise ResourceNotFound(uri)
        if rules is not None:
            caller = rules.caller(principal)
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

    def completed(self, ref: PromptReference | ResourceReference) -> Prompt | Resource:
        """Return the prompt, template or resource whose arguments are completed.

        Raises:
            InvalidParams: there is none.
        """
        if isinstance(ref, PromptReference):
            return self.prompt(ref.name)
        for served in self.templates:
            if ref.uri == served.resource.definition["uriTemplate"]:
                return served.resource
        if ref.uri in self.resources:
            return self.resources[ref.uri]
        raise unknown_template(ref.uri)

    @property
    def can_complete(self) -> bool:
        everything: Iterable[Prompt | Resource] = (*self.prompts.values(), *self._resources())
        return any(item.complete for item in everything)


def skill_backend(uri: str) -> str:
    """Return the name of the back end in the URI of a skill or directory."""
    return uri.partition("://")[2].partition("/")[0]


def unknown_template(name: str) -> InvalidParams:
    return InvalidParams(f"Unknown resource template: {name[:MAX_URI]}")


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
    from roundgate.policy.items import ItemRules  # loaded only if there is a policy

    tools = {
        name: replace(
            served,
            rules=policy.for_tool(served.tool.definition, served.whole_name, served.backend, view),
        )
        for name, served in catalog.tools.items()
    }
    pages = [
        (uri, served.rules)
        for served in tools.values()
        for uri in page_uris(meta_of(served.tool.definition))
    ]
    item_rules = ItemRules(policy, view, pages)
    return replace(catalog, tools=tools, policy=policy, item_rules=item_rules)


def offer_problem(origin: Origin | None, place: str, message: str, remedy: str) -> Problem:
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
        problems.append(offer_problem(origin, place, str(error), "correct its input schema"))
        return None
