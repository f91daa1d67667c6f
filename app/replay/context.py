"""What a handler sees of the call it serves.

    async def reindex(ctx: Context, folder: str) -> int:
        await ctx.progress(1, total=3, message="reading")
        await ctx.log("info", {"folder": folder})

An async handler awaits these methods. A handler that is a plain function runs in a thread and gets a `SyncContext`,
whose methods of the same names block instead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from anyio import from_thread

from app.auth.principal import Principal
from app.clock import Deadline
from app.protocol.content import without_none
from app.protocol.inbound import LOG_LEVELS, Meta

Notify: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[None]]
"""Sends one notification (method, params) on the stream of this request."""

TOOLS_CHANGED: Final = "notifications/tools/list_changed"
PROMPTS_CHANGED: Final = "notifications/prompts/list_changed"
RESOURCES_CHANGED: Final = "notifications/resources/list_changed"
RESOURCE_UPDATED: Final = "notifications/resources/updated"

Publish: TypeAlias = Callable[[str, str | None], None]
"""Tells every open `subscriptions/listen` stream that wants it of a change (method, uri)."""


@dataclass(frozen=True, slots=True)
class Call:
    """The facts of one call, gathered by the dispatcher. `notify` is `None` where the client cannot be told things."""

    principal: Principal
    meta: Meta
    deadline: Deadline
    notify: Notify | None
    publish: Publish


class Context:
    """One call, as its handler sees it."""

    __slots__ = ("_call", "_last_progress")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._last_progress: float | None = None

    @property
    def principal(self) -> Principal:
        """Who is calling."""
        return self._call.principal

    @property
    def deadline(self) -> Deadline:
        """When the answer has to be there; the call is ended with a tool error after it."""
        return self._call.deadline

    @property
    def client_capabilities(self) -> Mapping[str, Any]:
        """The capabilities this request declares, shaped as the schema's `ClientCapabilities`."""
        return self._call.meta.capabilities.declared

    @property
    def client_info(self) -> Mapping[str, Any] | None:
        """The client's name and version as it gives them: for display and logs, never for decisions."""
        return self._call.meta.client_info

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Tell the client how far the call is; nothing happens if it did not ask with a `progressToken`.

        The value must increase with each notification (basic/patterns/progress); one that does not is not sent.
        """
        token = self._call.meta.progress_token
        if token is None or self._call.notify is None:
            return
        if self._last_progress is not None and progress <= self._last_progress:
            return
        self._last_progress = progress
        params = without_none(progressToken=token, progress=progress, total=total, message=message)
        await self._call.notify("notifications/progress", params)

    async def log(self, level: str, data: Any, logger: str | None = None) -> None:
        """Send a log message to the client, if it asked for messages of this level or below with `logLevel`.

        `level` is one of RFC 5424's names, "debug" to "emergency"; `data` is any JSON value.

        Raises:
            ValueError: there is no such level.
        """
        if level not in LOG_LEVELS:
            raise ValueError(f"{level!r} is not a log level; use one of {', '.join(LOG_LEVELS)}")
        wanted = self._call.meta.log_level
        if wanted is None or self._call.notify is None or LOG_LEVELS.index(level) < LOG_LEVELS.index(wanted):
            return
        params = {"level": level, "data": data} | without_none(logger=logger)
        await self._call.notify("notifications/message", params)

    async def tools_changed(self) -> None:
        """Tell listening clients that the list of tools has changed."""
        self._call.publish(TOOLS_CHANGED, None)

    async def prompts_changed(self) -> None:
        """Tell listening clients that the list of prompts has changed."""
        self._call.publish(PROMPTS_CHANGED, None)

    async def resources_changed(self) -> None:
        """Tell listening clients that the list of resources has changed."""
        self._call.publish(RESOURCES_CHANGED, None)

    async def resource_updated(self, uri: str) -> None:
        """Tell clients that subscribed to this URI that what it holds has changed."""
        self._call.publish(RESOURCE_UPDATED, uri)


class SyncContext:
    """The same, for a handler that is a plain function: it runs in a thread, and each method blocks until done."""

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context

    @property
    def principal(self) -> Principal:
        """Who is calling."""
        return self._context.principal

    @property
    def deadline(self) -> Deadline:
        """When the answer has to be there."""
        return self._context.deadline

    @property
    def client_capabilities(self) -> Mapping[str, Any]:
        """The capabilities this request declares."""
        return self._context.client_capabilities

    @property
    def client_info(self) -> Mapping[str, Any] | None:
        """The client's name and version as it gives them."""
        return self._context.client_info

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """`Context.progress`, blocking."""
        from_thread.run(self._context.progress, progress, total, message)

    def log(self, level: str, data: Any, logger: str | None = None) -> None:
        """`Context.log`, blocking."""
        from_thread.run(self._context.log, level, data, logger)

    def tools_changed(self) -> None:
        """`Context.tools_changed`, blocking."""
        from_thread.run(self._context.tools_changed)

    def prompts_changed(self) -> None:
        """`Context.prompts_changed`, blocking."""
        from_thread.run(self._context.prompts_changed)

    def resources_changed(self) -> None:
        """`Context.resources_changed`, blocking."""
        from_thread.run(self._context.resources_changed)

    def resource_updated(self, uri: str) -> None:
        """`Context.resource_updated`, blocking."""
        from_thread.run(self._context.resource_updated, uri)
