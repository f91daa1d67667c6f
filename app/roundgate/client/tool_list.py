"""The tools that a server lists, as far as they may be used."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from roundgate.client.connection import Connection
from roundgate.client.flows import every_page
from roundgate.client.types import Json, Tool
from roundgate.errors import BadAnswer, ClientError, RpcError

log = logging.getLogger("roundgate.client")

_MOST_LOGGED: Final = 20


class ToolList:
    """The tools of one server, as they were last listed."""

    def __init__(self, connection: Connection) -> None:
        self.rejected: dict[str, str] = {}
        """Tools that the server lists and that must not be used, with the reason."""
        self._connection = connection
        self._tools: dict[str, Tool] | None = None

    async def read(self) -> list[Tool]:
        """Ask the server for them, page after page."""
        limits = self._connection.link.limits
        await self._connection.connect()
        listed = await self._connection.drive(every_page("tools/list", "tools", limits))
        rejected: dict[str, str] = {}
        self._tools = dict(_usable(listed, rejected))
        for name in [name for name in rejected if name not in self.rejected][:_MOST_LOGGED]:
            log.warning("tool %r is not used: %s", name, rejected[name])
        self.rejected = rejected
        return list(self._tools.values())

    async def read_once(self) -> None:
        """Ask for them if that was never done. A server without a list of tools
        has none that are known."""
        if self._tools is None:
            try:
                await self.read()
            except RpcError:
                self._tools = {}

    async def read_again(self) -> None:
        """Ask for them although the answer may be kept."""
        self._connection.cache.clear("tools/list")
        await self.read()

    def known(self, name: str) -> Tool | None:
        """A tool that was listed, `None` if there was none.

        Raises:
            ClientError: it was, and must not be used.
        """
        tool = (self._tools or {}).get(name)
        if tool is None and name in self.rejected:
            raise ClientError(f"The tool {name!r} must not be used: {self.rejected[name]}")
        return tool

    async def find(self, name: str) -> Tool:
        """A tool by its name; they are listed if it is not known.

        Raises:
            ClientError: there is none, with the names that come close.
        """
        if self._tools is None or name not in self._tools:
            await self.read()
        if (tool := self.known(name)) is not None:
            return tool
        from difflib import get_close_matches

        names = list(self._tools or ())
        near = get_close_matches(name, names, 3) or names[:10]
        raise ClientError(f"The server has no tool {name!r}; it has {', '.join(near) or 'none'}")


def _usable(listed: list[Json], rejected: dict[str, str]) -> Iterator[tuple[str, Tool]]:
    """The tools that may be used, by name; why the others may not goes into `rejected`."""
    for raw in listed:
        try:
            tool = Tool.read(raw)
        except (BadAnswer, ValueError) as error:
            rejected[str(raw.get("name"))[:128]] = str(error)
        else:
            yield tool.name, tool
