"""What a request is answered with: a result in the format of its revision, or a
stream that ends with one.

A handler here says what there is to tell; `resultType`, `serverInfo` and caching hints are the
revision's business (`protocol.revision.ResultFormat`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from roundgate.clock import Clock
from roundgate.errors import InternalError
from roundgate.json import encode
from roundgate.methods.hub import Subscription
from roundgate.methods.rounds import InputRequired
from roundgate.protocol import CacheHint, Page, Pages, ResultFormat, ToolResult
from roundgate.tasks import log_failure


@dataclass(frozen=True, slots=True)
class Reply:
    """A result, serialised, and its label in the log: ok, tool_error, input_required or task.

    `reason` says in the log why a tool failed, in a word or two.
    """

    result: bytes
    label: str = "ok"
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Stream:
    """subscriptions/listen: the open subscription and the result that closes it."""

    subscription: Subscription
    closing_result: bytes


Response: TypeAlias = Reply | Stream
"""What a request is answered with, unless that is an error."""


class Results:
    """Makes replies in one format."""

    def __init__(self, result_format: ResultFormat, clock: Clock) -> None:
        self._format = result_format
        self._clock = clock
        self.rest = result_format.rest
        self.entries = result_format.entries
        self.acknowledged = Reply(result_format.write({}))
        """What says no more than that a request was taken."""

    def write(self, result: Mapping[str, Any], cache: CacheHint | None = None) -> bytes:
        """A result as JSON.

        Args:
            result: its members, without those that every result has.
            cache: the hint for how long it may be kept, if results of this method have one.

        Raises:
            InternalError: a handler put something into it that is not JSON.
        """
        try:
            return self._format.write(result, cache)
        except (TypeError, ValueError, RecursionError) as error:
            raise self._failed(error) from error

    def reply(self, result: Mapping[str, Any], cache: CacheHint | None = None) -> Reply:
        """The reply of a request that went well. Raises InternalError as `write` does."""
        return Reply(self.write(result, cache))

    def tool(self, result: ToolResult, reason: str | None = None) -> Reply:
        """What a tool returned, or its error and why. Raises InternalError as `write` does."""
        written = self.write(result.to_wire())
        return Reply(written, "tool_error", reason) if result.is_error else Reply(written)

    def tool_of(self, result: Mapping[str, Any]) -> Reply:
        """What a tool returned before, as it was kept. Raises InternalError as `write` does."""
        return Reply(self.write(result), "tool_error" if result.get("isError") else "ok")

    def task(self, created: Mapping[str, Any]) -> Reply:
        """The call goes on as a task: `created` is the schema's `CreateTaskResult`."""
        return Reply(self.write(created), "task")

    def input_required(self, asked: InputRequired) -> Reply:
        """The round ended with questions, or only with state."""
        try:
            written = self._format.input_required(asked.requests, asked.request_state)
        except (TypeError, ValueError, RecursionError) as error:
            raise self._failed(error) from error
        return Reply(written, "input_required")

    def _failed(self, error: Exception) -> InternalError:
        return InternalError(log_failure("writing the result", error, self._clock))


MAX_PAGES_KEPT: Final = 64


class Listing:
    """One list. Nothing is serialised per request: a page and what stands around
    it are joined, and kept."""

    def __init__(self, member: str, cache: CacheHint, results: Results) -> None:
        self._member, self._results = member, results
        self._head, self._rest = b'{"%b":[' % member.encode(), results.rest(cache)
        self._made: dict[Page, Reply] = {}

    def reply(self, pages: Pages, cursor: str | None) -> Reply:
        """The page that a cursor stands for.

        Raises:
            InvalidParams: the cursor is none of this list's.
        """
        page = pages.page(cursor)
        reply = self._made.get(page)
        if reply is None:
            more = (
                b"" if page.next_cursor is None else b',"nextCursor":%b' % encode(page.next_cursor)
            )
            entries = self._results.entries(self._member, page.entries)
            reply = Reply(b"%b%b]%b%b" % (self._head, entries, more, self._rest))
            if len(self._made) < MAX_PAGES_KEPT:
                self._made[page] = reply
        return reply
