"""Search in place of a long list: three tools stand for the catalog, beside those that are pinned.

    search_tools    words → names and what they are for, the best first
    describe_tool   a name → its description and the schema of its arguments
    call_tool       a name and arguments → what the tool itself returns

A caller finds only what its scopes allow. A call through `call_tool` is a call of the tool it
names (`roundgate.methods.extensions`): its questions, approvals, tasks, retries and
progress are the tool's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, Final

from roundgate.backends.base import Returned, Tool
from roundgate.backends.catalog import Catalog, ServedTool, serve
from roundgate.backends.config import SearchConfig
from roundgate.backends.definitions import encoded
from roundgate.backends.ranking import Ranking
from roundgate.backends.shaping import is_known
from roundgate.errors import ConfigError, Problem, ToolError
from roundgate.protocol import Pages, TextContent, ToolResult
from roundgate.replay import Context
from roundgate.settings import Origin

SEARCH: Final = "search_tools"
DESCRIBE: Final = "describe_tool"
CALL: Final = "call_tool"
MAX_RESULTS: Final = 20
MAX_QUERY: Final = 500
_LINE: Final = 160
"""Characters of a description that a result of a search has."""
_READ: Final = 500
"""Characters of a description that count."""
_NAME: Final = {"type": "string", "description": f"A name that {SEARCH} has returned."}


def with_search(
    catalog: Catalog, config: SearchConfig | None, origin: Origin, *, checks_scopes: bool
) -> Catalog:
    """The catalog with search in place of its list, if it has more tools than
    the settings let it list.

    Raises:
        ConfigError: one of its tools has the name of a tool of the search, or none that of a
            pinned one.
    """
    if config is None:
        return catalog
    if unknown := not_pinned(catalog.tools, catalog.missing, config, origin):
        raise ConfigError(unknown)
    if len(catalog.tools) <= config.above:
        return catalog
    taken = [name for name in (SEARCH, DESCRIBE, CALL) if name in catalog.tools]
    if taken:
        remedy = "give it another name: `override: {NAME: {name: …}}` of its back end, or a prefix"
        raise ConfigError(
            [
                origin.problem(f"a back end has a tool {name!r}, as search has", remedy)
                for name in taken
            ]
        )
    own = _Search(catalog, config, checks_scopes=checks_scopes).tools()
    problems: list[Problem] = []
    served = {
        tool.definition["name"]: made
        for tool in own
        if (made := serve(tool.definition["name"], tool, "", problems)) is not None
    }
    assert not problems, problems
    pinned = [
        item
        for item in catalog.tool_pages.items
        if not catalog.tools[item[0]].backend
        or any(fnmatchcase(item[0], pattern) for pattern in config.pinned)
    ]
    items = [(tool.definition["name"], encoded(tool.definition)) for tool in own]
    return replace(
        catalog,
        tools={**catalog.tools, **served},
        tool_pages=Pages([*items, *pinned], catalog.tool_pages.size),
        call_tool=CALL,
    )


def not_pinned(
    tools: Collection[str], missing: Collection[str], config: SearchConfig, origin: Origin
) -> list[Problem]:
    """Return a problem for each pinned name without a tool; none while back ends are missing,
    because their tools are unknown."""
    if missing:
        return []
    remedy = "correct the name; `roundgate check` lists them, with their prefixes"
    return [
        origin.at("pinned", number).problem(f"no tool is called {name!r}", remedy)
        for number, name in enumerate(config.pinned)
        if not is_known(name, tools)
    ]


class _Search:
    """What the three tools do."""

    def __init__(self, catalog: Catalog, config: SearchConfig, *, checks_scopes: bool) -> None:
        self._served = [served for served in catalog.tools.values() if served.backend]
        self._by_name = catalog.tools
        self._results = config.results
        self._checks_scopes = checks_scopes
        self._ranking: Ranking | None = None

    def tools(self) -> list[Tool]:
        """The three."""
        count = len(self._served)
        query = {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_QUERY,
            "description": "What is to be done, in a few words.",
        }
        limit = {"type": "integer", "minimum": 1, "maximum": MAX_RESULTS, "default": self._results}
        arguments = {"type": "object", "description": "Its arguments.", "default": {}}
        return [
            Tool(
                _definition(
                    SEARCH,
                    f"Find tools by what they do: there are {count:,}, and most are not listed. "
                    "Returns their names, arguments and first lines, the best first. Then read "
                    f"{DESCRIBE}, and use {CALL}.",
                    {"query": query, "limit": limit},
                    ["query"],
                    read_only=True,
                ),
                self._search,
            ),
            Tool(
                _definition(
                    DESCRIBE,
                    "What a tool does, and the JSON Schema of its arguments.",
                    {"name": _NAME},
                    ["name"],
                    read_only=True,
                ),
                self._describe,
            ),
            Tool(
                _definition(
                    CALL,
                    f"Call a tool. {DESCRIBE} tells its arguments.",
                    {"name": _NAME, "arguments": arguments},
                    ["name"],
                    read_only=False,
                ),
                _never_called,
            ),
        ]

    async def _search(self, context: Context, arguments: dict[str, Any]) -> Returned:
        if self._ranking is None:  # reads every description: some 100 ms for a thousand tools
            self._ranking = await asyncio.to_thread(
                lambda: Ranking(_WEIGHTS, map(_fields, self._served))
            )
        found = self._ranking.best(
            arguments["query"],
            arguments.get("limit", self._results),
            lambda number: self._is_for(context, self._served[number].tool),
        )
        if not found:
            return _text("No tool fits these words; try others.")
        return _text("\n".join(_line(self._served[number]) for number in found))

    async def _describe(self, context: Context, arguments: dict[str, Any]) -> Returned:
        served = self._by_name.get(arguments["name"])
        if served is None or not self._is_for(context, served.tool):
            name = arguments["name"][:64]
            raise ToolError(f"There is no tool {name!r}; search_tools finds the names")
        return _text(encoded(served.tool.definition).decode())

    def _is_for(self, context: Context, tool: Tool) -> bool:
        return not self._checks_scopes or tool.scopes <= context.principal.scopes


async def _never_called(context: Context, arguments: dict[str, Any]) -> Returned:
    raise AssertionError("a call through it is a call of the tool that it names")


def _definition(
    name: str,
    description: str,
    properties: Mapping[str, Any],
    required: list[str],
    *,
    read_only: bool,
) -> dict[str, Any]:
    hints = (
        {"readOnlyHint": True, "openWorldHint": False}
        if read_only
        else {"readOnlyHint": False, "destructiveHint": True}
    )
    return {
        "name": name,
        "description": description,
        "inputSchema": {
            "type": "object",
            "properties": dict(properties),
            "required": required,
            "additionalProperties": False,
        },
        "annotations": hints,
    }


_WEIGHTS: Final = (3.0, 3.0, 1.5, 0.5, 0.5, 1.0)


def _fields(served: ServedTool) -> tuple[str, ...]:
    """What a tool is found by, as heavy as `_WEIGHTS` says."""
    definition, about = served.tool.definition, served.tool.about
    properties = definition["inputSchema"].get("properties", {})
    first, _, rest = (definition.get("description") or "").strip().partition("\n")
    return (
        definition.get("title") or first[:_LINE],
        served.name,
        first[:_READ],
        rest[:_READ],
        " ".join(properties),
        " ".join([*about.tags, about.path or ""]),
    )


def _line(served: ServedTool) -> str:
    """A tool in one line: its name, its arguments (those that are needed first), what it is for."""
    definition = served.tool.definition
    schema = definition["inputSchema"]
    needed = [name for name in schema.get("required", ()) if name in schema.get("properties", {})]
    more = [name for name in schema.get("properties", {}) if name not in needed]
    listed = ", ".join([*needed, *(f"[{name}]" for name in more[:6]), *(["…"] if more[6:] else [])])
    text = (definition.get("description") or definition.get("title") or "").strip()
    first = text.partition("\n")[0]
    shown = first if len(first) <= _LINE else first[: _LINE - 1] + "…"
    return f"{served.name}({listed}): {shown}" if shown else f"{served.name}({listed})"


def _text(text: str) -> ToolResult:
    return ToolResult((TextContent(text),))
