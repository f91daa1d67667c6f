"""The search extension: three tools stand for a long list, and a call through `call_tool` is a
call of the tool that it names. `roundgate.backends.search` has the three.

What a call goes through after this, it goes through under the tool's own name: scopes, approvals,
questions, tasks, once, and what there is for clients that can do less. A state or a task that
comes of it is the tool's.
"""

from __future__ import annotations

from dataclasses import replace

from roundgate.backends import Catalog
from roundgate.errors import InvalidParams
from roundgate.methods.parts import Extension, Kit, Tools
from roundgate.methods.results import Reply, Results
from roundgate.methods.rounds import RequestContext
from roundgate.methods.tools import invalid_arguments
from roundgate.protocol import CallToolParams, ListParams, ToolResult


class SearchExtension(Extension):
    """Search in place of a long list. It has no methods: every client can call its tools."""

    name = "roundgate/search"
    feature = "search"

    def is_served(self, catalog: Catalog) -> bool:
        """Return whether search stands for the list of tools."""
        return catalog.call_tool is not None

    def settings(self) -> None:
        """Return None: clients need not know."""
        return

    def tools(self, tools: Tools, kit: Kit) -> Tools:
        """Return the tools with calls through `call_tool`."""
        call_tool = kit.catalog.call_tool
        if call_tool is None:
            return tools
        return ThroughSearch(tools, kit.catalog, call_tool, kit.results)


class ThroughSearch:
    """Tools behind a search; `call_tool` is the name of the one that others are called through."""

    def __init__(self, tools: Tools, catalog: Catalog, call_tool: str, results: Results) -> None:
        self._tools = tools
        self._catalog = catalog
        self._call_tool = call_tool
        self._results = results

    async def list(self, context: RequestContext, asked: ListParams) -> Reply:
        """tools/list"""
        return await self._tools.list(context, asked)

    async def call(self, context: RequestContext, asked: CallToolParams) -> Reply:
        """tools/call"""
        if asked.name != self._call_tool:
            return await self._tools.call(context, asked)
        context.correlation.through = self._call_tool
        served = self._catalog.tool(asked.name)
        if not served.arguments.is_valid(asked.arguments):
            return self._results.tool(invalid_arguments(served, asked.arguments))
        name = asked.arguments["name"]
        try:
            is_known = self._catalog.tool(name).name != self._call_tool
        except InvalidParams:
            is_known = False
        if not is_known:
            text = f"There is no tool {name[:64]!r}; search_tools finds the names"
            return self._results.tool(ToolResult.error(text))
        given = asked.arguments.get("arguments", {})
        named = asked.model_copy(update={"name": name, "arguments": given})
        # a client mirrors arguments as the schema says that it has seen, which is not the tool's
        inbound = replace(context.inbound, headers=None, name=name)
        return await self._tools.call(replace(context, inbound=inbound), named)
