"""The building blocks of methods: writers of results and lists, the reader of arguments, the parts of
an endpoint, and `Methods`, which serves requests. `Extension` is the base class of extensions.

Handlers return facts; `resultType`, `serverInfo` and caching hints belong to the revision
(`protocol.revision.ResultFormat`).
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, TypeVar

from msgspec import Struct

from roundgate.aio import ROOM
from roundgate.auth import Principal
from roundgate.backends import Catalog, ServedTool
from roundgate.clock import Clock, Deadline
from roundgate.config import GatewayConfig
from roundgate.errors import CallRefused, InsufficientScope, InternalError, Unavailable
from roundgate.json import encode
from roundgate.methods.access import Access
from roundgate.methods.changes import Changes
from roundgate.methods.once import Once
from roundgate.methods.rates import ConfiguredLimits, Rates
from roundgate.methods.rounds import (
    Calls,
    InputRequired,
    Reply,
    RequestContext,
    Response,
    Stream,
)
from roundgate.observability.metrics import Metrics
from roundgate.protocol import (
    CacheHint,
    CallToolParams,
    ListParams,
    Page,
    Pages,
    Params,
    ResultFormat,
    Route,
    Schema,
    ToolResult,
    jsonrpc,
)
from roundgate.replay import HiddenRounds
from roundgate.settings import ArgumentsConfig
from roundgate.settings import CacheSection as ListHint
from roundgate.storage import RowsOf
from roundgate.tasks import NamedTasks, Watch, log_failure
from roundgate.tokens import StateSealer

if TYPE_CHECKING:  # loaded only if there is an audit log
    from roundgate.audit import Trail

P = TypeVar("P", bound=Params)

log: Final = logging.getLogger("roundgate.methods")

MAX_PAGES_KEPT: Final = 64
LARGE: Final = 65_536
"""The size of a serialised result in bytes above which it counts as unread until it is written."""


class Replies:
    """Makes replies in the format of one revision.

    Raises InternalError if a handler returned a value that is not JSON.
    """

    def __init__(self, result_format: ResultFormat, clock: Clock) -> None:
        self._format = result_format
        self._clock = clock
        self.rest = result_format.rest
        self.entries = result_format.entries
        self.acknowledged = Reply(result_format.write({}))
        """The reply to a request that was accepted."""

    def write(self, result: Mapping[str, Any], cache: CacheHint | None = None) -> bytes:
        """Return a result as JSON.

        Args:
            result: the members, without those that every result has.
            cache: the caching hint for clients, for methods with such a hint.

        Raises:
            InternalError: a member has no JSON form.
        """
        try:
            written = self._format.write(result, cache)
        except (TypeError, ValueError, RecursionError) as error:
            raise self._failed(error) from error
        if len(written) > LARGE and (room := ROOM.get()) is not None:
            room.hold(len(written))
        return written

    def reply(self, result: Mapping[str, Any], cache: CacheHint | None = None) -> Reply:
        """Return the reply to a request that succeeded."""
        return Reply(self.write(result, cache))

    def tool(self, result: ToolResult, reason: str | None = None) -> Reply:
        """Return the reply for a tool's result, which may be an error with a reason for the log."""
        written = self.write(result.to_wire())
        return Reply(written, "tool_error", reason) if result.is_error else Reply(written)

    def stored_tool(self, result: Mapping[str, Any]) -> Reply:
        """Return the reply for a result that a tool returned earlier."""
        return Reply(self.write(result), "tool_error" if result.get("isError") else "ok")

    def task(self, created: Mapping[str, Any]) -> Reply:
        """Return the reply for a call that became a task: the schema's `CreateTaskResult`."""
        return Reply(self.write(created), "task")

    def input_required(self, outcome: InputRequired) -> Reply:
        """Return the reply of a round that ended with questions, or only with state. Raise
        InternalError if a question has no JSON form."""
        try:
            written = self._format.input_required(outcome.requests, outcome.request_state)
        except (TypeError, ValueError, RecursionError) as error:
            raise self._failed(error) from error
        return Reply(written, "input_required")

    def _failed(self, error: Exception) -> InternalError:
        return InternalError(log_failure("writing the result", error, self._clock))


def list_hint(hint: ListHint, catalog: Catalog, *, is_personal: bool) -> ListHint:
    """Return the caching hint of a list. A list is private (server/utilities/caching) if it depends
    on the caller's scopes, or if a server says so. While a back end is missing, the list is about
    to change and must not be cached."""
    return hint.model_copy(
        update=({"scope": "private"} if is_personal or catalog.has_private_lists else {})
        | ({"ttl_ms": 0} if catalog.missing else {})
    )


class Listing:
    """A list of the catalog. Its pages are joined from serialised entries and cached."""

    def __init__(self, member: str, cache: CacheHint, results: Replies) -> None:
        self._member, self._results = member, results
        self._head, self._rest = b'{"%b":[' % member.encode(), results.rest(cache)
        self._made: dict[Page, Reply] = {}

    def reply(self, pages: Pages, cursor: str | None) -> Reply:
        """Return the page at a cursor; `None` is the first.

        Raises:
            InvalidParams: the cursor does not belong to this list.
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


class Method(Struct, Generic[P], frozen=True):
    """A row of the table of methods."""

    serve: Callable[[RequestContext, P], Awaitable[Response]]
    params: type[P]
    requires: Mapping[str, Any] | None = None
    """The capabilities that the client must have declared."""
    counts: bool = False
    """Whether a request counts for the limits of its caller, because it asks a back end or runs a
    handler. Calls of tools count at the tool (`methods.rates`)."""


class Tools(Protocol):
    """Lists tools and calls them."""

    def list(self, context: RequestContext, params: ListParams) -> Awaitable[Reply]:
        """Serve tools/list."""

    def call(self, context: RequestContext, params: CallToolParams) -> Awaitable[Reply]:
        """Serve tools/call."""


class ToolsByName(ABC):
    """Tools of which those with some names are called by `call_named`."""

    def __init__(self, tools: Tools, names: Iterable[str]) -> None:
        self._tools = tools
        self._names = frozenset(names)

    def list(self, context: RequestContext, params: ListParams) -> Awaitable[Reply]:
        """Serve tools/list."""
        return self._tools.list(context, params)

    def call(self, context: RequestContext, params: CallToolParams) -> Awaitable[Reply]:
        """Serve tools/call."""
        tools = self.call_named if params.name in self._names else self._tools.call
        return tools(context, params)

    @abstractmethod
    def call_named(self, context: RequestContext, params: CallToolParams) -> Awaitable[Reply]:
        """Serve tools/call for one of the names."""


class Parts(Struct, frozen=True):
    """The parts of one endpoint that do not depend on its catalog."""

    changes: Changes
    """The sender of changes to streams."""
    once: Once
    tasks: NamedTasks
    watch: Watch
    """The watch for changes of tasks."""
    rates: Rates
    sealer: StateSealer
    rows_of: RowsOf
    hidden: Callable[[], HiddenRounds]
    """Returns the rounds of calls of older servers."""
    clock: Clock
    streams: bool
    """Whether the platform can hold a stream open."""
    view: str = ""
    """The name of the view; empty for the endpoint of all tools."""
    shows_errors: bool = False
    """Whether callers see the text of unexpected exceptions."""
    trail: Trail | None = None
    """The audit log, if there is one."""


class Kit(Struct, frozen=True):
    """The constructor arguments of the methods over one catalog, in the format of one revision."""

    config: GatewayConfig
    catalog: Catalog
    parts: Parts
    features: frozenset[str]
    """The features that are served."""
    results: Replies
    access: Access
    arguments: Arguments
    calls: Calls
    limits: ConfiguredLimits | None
    """The limits on the calls of each caller, if there are any."""


class Methods:
    """All methods over one catalog, in one revision's format, by name."""

    def __init__(self, table: Mapping[str, Method[Any]], kit: Kit) -> None:
        self.features = kit.features
        """The features that are served."""
        self._table = table
        self.catalog = kit.catalog
        """A request runs within `with catalog.use()`, which keeps the back ends open."""
        self._hub = kit.parts.changes.hub
        self._access = kit.access
        self._view = kit.parts.view
        self._clock = kit.parts.clock
        self._timeout_ms = kit.config.limits.call_timeout_s * 1000
        self.serve: Callable[[RequestContext], Awaitable[Response]] = self._serve
        """Serves one request. Raises GatewayError if the request fails with this JSON-RPC error,
        AuthError if the caller lacks a scope."""
        if kit.parts.trail is not None:
            from roundgate.methods.auditing import CallRecorder

            recorder = CallRecorder(kit.parts.trail, self._view)
            self.serve = partial(recorder.serve, serve=self._serve)

    def deadline(self, remaining_ms: float | None) -> Deadline:
        """Return the deadline of a request that begins now and that its environment lets run for
        `remaining_ms` milliseconds; `None` for no limit."""
        deadline = self._clock.deadline(self._timeout_ms)
        if remaining_ms is not None:
            deadline.shorten(self._clock.monotonic_ms() + remaining_ms)
        return deadline

    def _serve(self, context: RequestContext) -> Awaitable[Response]:
        inbound = context.inbound
        method = self._table[inbound.method]
        if method.requires is not None:
            inbound.meta.capabilities.require(method.requires, inbound.method)
        return method.serve(context, jsonrpc.validate(method.params, inbound.params))

    def may_subscribe(self, uri: str, principal: Principal) -> bool:
        """Return whether the caller may learn of changes at a URI."""
        return self._access.may_subscribe(uri, principal, self._view)

    def may_learn(self, uri: str, principal: Principal) -> bool:
        """Return whether the caller may still learn of changes at a URI of its stream; the resource
        or its scopes may be newer than the stream."""
        return self._access.may_subscribe(uri, principal, view="")

    def may_follow(self, tool: str, principal: Principal) -> bool:
        """Return whether the caller may still read tasks of a tool."""
        try:
            self._access.check(tool, principal)
        except (InsufficientScope, CallRefused, Unavailable):
            return False
        return True

    def knows(self, method: str, name: str) -> bool:
        """Return whether a tool or prompt that a request names is served."""
        served = self.catalog.prompts if method == "prompts/get" else self.catalog.tools
        return name in served

    def has_output_schema(self, tool: str) -> bool:
        """Return whether clients expect a structured result of a tool."""
        served = self.catalog.tools.get(tool)
        return served is not None and "outputSchema" in served.tool.definition

    def end(self, stream: Stream) -> None:
        """Forget a stream that has ended."""
        self._hub.unsubscribe(stream.subscription)


class CurrentMethods:
    """The current methods. A request is served to its end by the methods that were current at its
    start."""

    def __init__(self, methods: Methods) -> None:
        self.now = methods

    @property
    def features(self) -> frozenset[str]:
        """The features that are served."""
        return self.now.features


class Extension(ABC):
    """An extension of the protocol. A subclass overrides the members that it needs."""

    name: ClassVar[str]
    """The identifier of the extension in `capabilities.extensions`."""
    feature: ClassVar[str]
    """The name of the extension's feature, for the error of a server that does not offer it."""
    routes: ClassVar[Mapping[str, Route]] = {}
    """The routes of the extension's methods, by which a revision checks requests."""

    @abstractmethod
    def is_served(self, catalog: Catalog) -> bool:
        """Return whether a catalog has anything to serve for the extension."""

    def settings(self) -> dict[str, Any] | None:
        """Return the value of `extensions.NAME` in server/discover; `None` to omit the member."""
        return {}

    def methods(self, kit: Kit) -> Mapping[str, Method[Any]]:
        """Return the method for each of `routes`."""
        return {}

    def tools(self, tools: Tools, kit: Kit) -> Tools:
        """Return the tools with the extension's changes to listing and calling them."""
        return tools


class Arguments:
    """Reads the arguments of calls.

    Args:
        config: the settings for all tools.
        metrics: counts repairs.
    """

    def __init__(self, config: ArgumentsConfig, metrics: Metrics) -> None:
        self._mode = config.mode
        self._ignored = frozenset(config.ignored)
        self._metrics = metrics

    def of_tool(self, served: ServedTool, sent: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """Return the arguments of a call, and whether they are valid."""
        if self._ignored.isdisjoint(sent) and served.arguments.conforms(sent):
            return sent, True
        if (served.tool.argument_mode or self._mode) == "strict":
            return sent, served.arguments.is_valid(sent)
        return self._repaired(served.name, served.tool.definition, served.arguments, sent)

    def of_own_tool(
        self, tool: str, definition: Mapping[str, Any], schema: Schema, sent: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the arguments of a call of one of the gateway's own tools."""
        if self._mode == "strict":
            return sent
        return self._repaired(tool, {"inputSchema": definition}, schema, sent)[0]

    def _repaired(
        self, tool: str, definition: Mapping[str, Any], compiled: Schema, sent: dict[str, Any]
    ) -> tuple[dict[str, Any], bool]:
        from roundgate.backends.repairing import repaired, without_names

        arguments, repairs = sent, dict[str, int]()
        if not self._ignored.isdisjoint(sent):
            arguments = without_names(definition["inputSchema"], sent, self._ignored)
            if removed := len(sent) - len(arguments):
                repairs["name"] = removed
        is_valid = compiled.is_valid(arguments)
        if not is_valid:
            result = repaired(definition["inputSchema"], arguments)
            arguments, repairs = result.arguments, repairs | dict(result.repairs)
            is_valid = bool(result.repairs) and compiled.is_valid(arguments)
        if repairs:
            log.debug("arguments were repaired", extra={"fields": {"tool": tool, **repairs}})
            for kind, count in repairs.items():
                self._metrics.repaired(tool, kind, count)
        return arguments, is_valid
