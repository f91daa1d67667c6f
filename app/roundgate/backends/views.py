"""Views: separate endpoints, each with a subset of the tools, prompts and resources.

    all back ends ──▶ Catalog ──▶ /mcp
                         ├─ include, exclude, override ──▶ Catalog ──▶ /support/mcp
                         └─ include, exclude, override ──▶ Catalog ──▶ /admin/mcp

A view is an ordinary catalog, so the code that serves requests does not depend on views. A view
cannot remove a back end's approvals or a tool's scopes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from glob import escape

from msgspec.structs import replace

from roundgate.backends.approvals import asking_first
from roundgate.backends.base import encoded, meta_of, renamed
from roundgate.backends.catalog import (
    MAX_NAME,
    NAME,
    Catalog,
    ServedTool,
    serve,
    with_reading,
    with_rules,
)
from roundgate.backends.config import ToolOverride, ViewConfig, ViewSelector
from roundgate.backends.search import not_pinned, with_search
from roundgate.backends.shaping import matches, overridden, unknown_names
from roundgate.errors import ConfigError, Problem
from roundgate.protocol import Pages, skills
from roundgate.protocol.apps import SCHEME, page_uris
from roundgate.settings import Origin


def with_views(
    catalog: Catalog,
    configs: Sequence[ViewConfig],
    origin: Origin,
    page_size: int,
) -> Catalog:
    """Return the catalog with its views.

    Args:
        catalog: the catalog of all back ends.
        origin: the place of the views, for problems.

    Raises:
        ConfigError: lists the problems of all views.
    """
    problems: list[Problem] = []
    views = {
        config.name: _view(catalog, config, origin.at(number), page_size, problems)
        for number, config in enumerate(configs)
    }
    if problems:
        raise ConfigError(problems)
    left_out = [problem for view in views.values() for problem in view.left_out]
    return replace(catalog, views=views, left_out=[*catalog.left_out, *left_out])


def _view(
    everything: Catalog,
    config: ViewConfig,
    origin: Origin,
    page_size: int,
    problems: list[Problem],
) -> Catalog:
    chosen = {
        name: served for name, served in everything.tools.items() if _is_selected(served, config)
    }
    # the view may name tools of missing back ends
    may_be_missing = bool(everything.missing) or everything.is_tolerant
    unused = [] if may_be_missing else _unused(everything, chosen.keys(), config, origin)
    problems += unused
    tools, items = _overridden(everything, chosen, config, origin, problems)
    left_out: list[Problem] = []
    if config.bare_names:
        # a server may add a colliding tool at any time, which must not remove other tools
        collisions = left_out if everything.is_tolerant else problems
        tools, items = _bare(everything.prefixes, tools, items, origin, collisions)
    view = replace(
        _others(everything, config, chosen),
        tools=tools,
        tool_pages=Pages(items, page_size),
        left_out=left_out,
    )
    if unused:  # names are wrong, so the view's tools are unknown
        if config.search is not None:
            names = {*everything.tools, *tools}
            place = origin.at("search")
            problems += not_pinned(names, config.search, place, may_be_missing=may_be_missing)
        return view
    try:
        view = with_reading(with_rules(view, everything.policy, config.name), origin)
        return with_search(view, config.search, origin.at("search"))
    except ConfigError as error:
        problems += error.problems
        return view


def _overridden(
    everything: Catalog,
    chosen: Mapping[str, ServedTool],
    config: ViewConfig,
    origin: Origin,
    problems: list[Problem],
) -> tuple[dict[str, ServedTool], list[tuple[str, bytes]]]:
    """Return the tools of a view, and their entries in the list; add a problem for each invalid
    override."""
    unchanged = dict(everything.tool_pages.items)
    tools: dict[str, ServedTool] = {}
    items: list[tuple[str, bytes]] = []
    for name, served in chosen.items():
        override = config.override.get(name)
        if override is None:
            tools[name] = served
            items.append((name, unchanged[name]))
            continue
        place = origin.at("override", name)
        changed = _changed(served, override, place, problems)
        if changed is None:
            continue
        if changed.name in tools or (changed.name in chosen and changed.name != name):
            remedy = "choose another name, or leave the other tool out"
            problems.append(place.problem(f"{changed.name!r} is another tool's name", remedy))
            continue
        tools[changed.name] = changed
        items.append((changed.name, encoded(changed.tool.definition)))
    return tools, items


def _bare(
    prefixes: Mapping[str, str],
    tools: Mapping[str, ServedTool],
    items: Sequence[tuple[str, bytes]],
    origin: Origin,
    problems: list[Problem],
) -> tuple[dict[str, ServedTool], list[tuple[str, bytes]]]:
    """Return the tools of a view without the prefixes of their back ends, and their entries in the
    list; leave out a tool whose name is taken, and add a problem."""
    bare: dict[str, ServedTool] = {}
    bare_items: list[tuple[str, bytes]] = []
    for whole_name, item in items:
        served = tools[whole_name]
        name = whole_name.removeprefix(prefixes.get(served.backend, "")) or whole_name
        if name in bare:
            message = (
                f"{whole_name!r} and another tool of the view are both {name!r} without prefix"
            )
            remedy = "leave one of them out, or make a view for each back end"
            problems.append(origin.at("bare_names").problem(message, remedy))
            continue
        if name != whole_name:
            definition = renamed(served.tool.definition, name)
            served = replace(
                served,
                name=name,
                tool=replace(served.tool, definition=definition),
                other_name=served.whole_name,
            )
            item = encoded(definition)
        bare[name] = served
        bare_items.append((name, item))
    return bare, bare_items


def _others(everything: Catalog, config: ViewConfig, chosen: Mapping[str, ServedTool]) -> Catalog:
    """Return a view without tools, but with the task sources and the pages of the chosen tools."""
    served_by = {served.backend for served in chosen.values()}
    pages = {
        uri for served in chosen.values() for uri in page_uris(meta_of(served.tool.definition))
    }
    ends = {uri: uri.find("/", len(SCHEME)) + 1 for uri in pages}
    starts = {uri[:end] for uri, end in ends.items() if end}  # without end: "ui://page"
    return Catalog(
        users=everything.users,
        kept_claims=everything.kept_claims,
        tools={},
        tool_pages=Pages((), everything.tool_pages.size),
        prompts={
            name: prompt
            for name, prompt in everything.prompts.items()
            if _matches_any(name, config.prompts)
        },
        resources={
            uri: resource
            for uri, resource in everything.resources.items()
            if uri in pages or _matches_any(uri, config.resources)
        },
        templates=[
            served
            for served in everything.templates
            if _matches_any(served.resource.definition["uriTemplate"], config.resources)
        ],
        prompt_pages=_part(everything.prompt_pages, config.prompts),
        resource_pages=_part(everything.resource_pages, config.resources, pages),
        template_pages=_part(everything.template_pages, config.resources),
        unlisted={
            start: resource
            for start, resource in everything.unlisted.items()
            if start in starts or _may_begin(start, config.resources)
        },
        skill_sources={
            name: source
            for name, source in everything.skill_sources.items()
            if _may_begin(f"{skills.SCHEME}{name}/", config.resources)
            or any(_matches_any(entry["uri"], config.resources) for entry in source.entries)
        },
        skill_pages=_part(everything.skill_pages, config.resources),
        unlisted_patterns=[*config.resources, *(f"{escape(start)}*" for start in starts)],
        task_sources={
            name: source for name, source in everything.task_sources.items() if name in served_by
        },
        missing={
            name: missing for name, missing in everything.missing.items() if _may_have(name, config)
        },
        may_list=everything.may_list
        & {
            name
            for name, patterns in (("prompts", config.prompts), ("resources", config.resources))
            if patterns
        },
        has_private_lists=everything.has_private_lists,
        checks_scopes=everything.checks_scopes,
    )


def _is_selected(served: ServedTool, config: ViewConfig) -> bool:
    if config.include and not any(_matches(served, selector) for selector in config.include):
        return False
    return not any(_matches(served, selector) for selector in config.exclude)


def _matches(served: ServedTool, selector: ViewSelector) -> bool:
    is_behind = selector.backend is None or fnmatchcase(served.backend, selector.backend)
    return is_behind and matches(served.tool, selector)


def _may_have(backend: str, config: ViewConfig) -> bool:
    """Return whether a missing back end's tools might be in the view."""
    backends = [selector.backend for selector in config.include]
    return not backends or any(
        selector is None or fnmatchcase(backend, selector) for selector in backends
    )


def _matches_any(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _may_begin(start: str, patterns: Sequence[str]) -> bool:
    """Return whether a URI with this beginning may match a pattern."""
    return any(fnmatchcase(start, pattern) or pattern.startswith(start) for pattern in patterns)


def _part(pages: Pages, patterns: Sequence[str], names: Collection[str] = ()) -> Pages:
    items = [item for item in pages.items if item[0] in names or _matches_any(item[0], patterns)]
    return Pages(items, pages.size)


def _changed(
    served: ServedTool, override: ToolOverride, place: Origin, problems: list[Problem]
) -> ServedTool | None:
    if override.approve == "never":
        remedy = "set it for the back end, or leave the tool out of the view"
        problems.append(place.at("approve").problem("a view cannot remove approvals", remedy))
        return None
    if override.scopes is not None and not served.tool.scopes <= set(override.scopes):
        lost = ", ".join(sorted(served.tool.scopes - set(override.scopes)))
        remedy = "add them here, or set scopes for the back end"
        problems.append(
            place.at("scopes").problem(f"a view cannot remove the scopes {lost}", remedy)
        )
        return None
    for setting in ("approval", "limits"):
        if getattr(override, setting) is not None:
            remedy = "set it in the override of the back end"
            problems.append(place.at(setting).problem("is not a setting of a view", remedy))
            return None
    try:
        tool = overridden(
            asking_first(served.tool) if override.approve == "always" else served.tool, override
        )
    except ValueError as error:
        remedy = "correct it; `roundgate check` lists the tools"
        problems.append(place.problem(str(error), remedy))
        return None
    name = tool.definition["name"]
    if not NAME.fullmatch(name):
        remedy = f"choose one of 1 to {MAX_NAME} of A-Z a-z 0-9 _ . -"
        problems.append(place.at("name").problem("cannot be a tool's name", remedy))
        return None
    changed = serve(name, tool, served.backend, problems)
    return None if changed is None else replace(changed, other_name=served.name)


def _unused(
    everything: Catalog, chosen: Collection[str], config: ViewConfig, origin: Origin
) -> list[Problem]:
    """Return a problem for each name that no tool has, for each override without effect, and for an
    empty view."""
    problems = unknown_names(config, everything.tools, chosen, origin)
    if (
        everything.tools
        and not problems
        and not chosen
        and not config.prompts
        and not config.resources
    ):
        remedy = "correct include and exclude; `roundgate check` lists all tools"
        problems.append(origin.problem(f"the view {config.name!r} is empty", remedy))
    return problems
