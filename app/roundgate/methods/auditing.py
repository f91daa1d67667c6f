"""The end of each audited request in the audit log.

`Calls.begin` records the beginning of a call's round. A request that is refused before that, such as
the call of an unknown tool, has one record: `refused`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from roundgate.audit import Trail
from roundgate.audit.trail import MAX_NAME, who
from roundgate.errors import InvalidParams
from roundgate.methods.rounds import Reply, RequestContext, Response
from roundgate.tasks import refusal_reason

AUDITED: Final = frozenset(
    {"tools/call", "prompts/get", "resources/read", "tasks/update", "tasks/cancel"}
)
"""The methods with records. Lists, polls of tasks and streams have none."""


class CallRecorder:
    """Records the end of requests to one view."""

    def __init__(self, trail: Trail, view: str) -> None:
        self._trail = trail
        self._view = view

    async def serve(
        self, context: RequestContext, serve: Callable[[RequestContext], Awaitable[Response]]
    ) -> Response:
        """Serve a request; if its method is in `AUDITED`, record its end before its answer leaves.
        Raise as `serve` does."""
        if context.inbound.method not in AUDITED:
            return await serve(context)
        context.correlation.round = None
        try:
            response = await serve(context)
        except asyncio.CancelledError:
            self._end(context, "cancelled", None)
            raise
        except Exception as error:
            rule = error.rule if isinstance(error, InvalidParams) else None
            reason = type(error).__name__ if rule is None else refusal_reason(rule)
            self._end(context, "error", reason)
            if self._trail.is_durable:
                await self._trail.settled()
            raise
        if isinstance(response, Reply):
            self._end(context, response.label, response.reason)
        if self._trail.is_durable:
            await self._trail.settled()
        return response

    def _end(self, context: RequestContext, outcome: str, reason: str | None) -> None:
        ids = context.correlation
        event = "ended"
        if ids.round is not None:
            facts: dict[str, Any] = {
                "call": ids.known_call_id,
                "round": ids.round,
                "outcome": outcome,
            }
        elif self._trail.refuses:  # records of calls that have begun need the space in memory
            return
        else:
            event = "refused" if outcome == "error" else event
            facts = self._request(context) | {"outcome": outcome}
        if ids.task is not None:
            facts["task"] = ids.task
        if reason is not None:
            facts["reason"] = reason
        self._trail.record(event, facts)

    def _request(self, context: RequestContext) -> dict[str, Any]:
        """Return the members that identify a request without a call."""
        ids = context.correlation
        name = ids.tool or context.inbound.name
        through = {} if ids.through is None else {"through": ids.through}
        return {
            "who": who(context.principal),
            "method": context.inbound.method,
            "name": None if name is None else name[:MAX_NAME],
            "view": self._view,
            **through,
        }
