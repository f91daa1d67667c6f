"""What a caller's scopes let it do: tools, and the tasks of their calls.

Scopes are looked at when a thing is used, not only when it is made: what a caller may do is what
its token of now grants. Without authentication nothing needs any.
"""

from __future__ import annotations

from roundgate.auth import Principal
from roundgate.backends import Catalog
from roundgate.errors import InsufficientScope, Unavailable
from roundgate.protocol import Pages


class Scopes:
    """The scopes that the tools of a catalog need.

    Args:
        catalog: whose tools.
        are_checked: whether callers are authenticated; otherwise everything is allowed.
    """

    def __init__(self, catalog: Catalog, *, are_checked: bool) -> None:
        self._catalog = catalog
        scoped = (
            [served.tool for served in catalog.tools.values() if served.tool.scopes]
            if are_checked
            else []
        )
        self._are_checked = are_checked
        self.any_tool = bool(scoped)
        """Whether callers may see different tools."""
        self.any_task = any(
            tool.task != "forbidden" or catalog.task_sources for tool in scoped
        ) or bool(are_checked and catalog.missing)
        """Whether any task is, or may be, of a tool that needs scopes."""

    def check(self, tool: str, principal: Principal) -> None:
        """Do nothing if the caller may use a tool and see its tasks.

        A tool that is not served here was taken away, or is yet to be deployed: its tasks
        remain their owners'. But while a back end is missing it may be one of its tools, and
        nobody knows what that needs.

        Raises:
            InsufficientScope
            Unavailable: nobody knows.
        """
        served = self._catalog.tools.get(tool)
        if not self._are_checked:
            return
        if served is None and self._catalog.missing:
            names = ", ".join(sorted(self._catalog.missing))
            raise Unavailable(
                f"Which scopes {tool} needs is not known while {names} is not served; try later"
            )
        if served is not None and not served.tool.scopes <= principal.scopes:
            raise InsufficientScope(f"tool {tool}", sorted(served.tool.scopes))

    def allow(self, tool: str, principal: Principal) -> bool:
        """Whether the caller may use a tool and see its tasks."""
        try:
            self.check(tool, principal)
        except InsufficientScope:
            return False
        return True

    def tool_pages(self, principal: Principal) -> Pages:
        """The list of the tools that the caller may use."""
        return (
            self._catalog.tool_pages_for(principal.scopes)
            if self._are_checked
            else self._catalog.tool_pages
        )
