"""The ids and spans that connect the log lines and traces of one call across processes.

    tools/call   line "request"   call=V1Xq…                     (round 1: asks the user)
    tools/call   line "request"   call=V1Xq…  task=OWNER.ID      (round 2: continues as a task)
    worker       line "a step failed, trying again"   call=V1Xq…  task=OWNER.ID  tool=pay

The id of a call travels sealed in `requestState` and is stored in the row of its task. While a call
is being processed, `CORRELATION` holds its ids, and each line that is logged includes them.

Spans and trace context are made by OpenTelemetry's semantic conventions for MCP (semantic-conventions-genai,
`docs/gen-ai/mcp.md`), and across rounds (basic/index, "OpenTelemetry trace context").

    tools/call refund   SERVER     a request; its parent is the context in its `_meta`
    task refund         CONSUMER   a turn of a worker; links to the first round of the call

Spans of requests to back ends are made in `observability.outgoing`.

A request continues the trace that its `_meta` names (`traceparent`, `tracestate`, `baggage`: W3C
Trace Context), and links to the context of the HTTP request. The context of the first round is
sealed into the call's state, so the span of every later round links to the first span, whatever
trace the client sends.

Spans are made, and durations recorded, if the process has set up an OpenTelemetry SDK (extra
`otel`, `opentelemetry-instrument`). Otherwise nothing is imported, and only the context is passed
on. Spans have no arguments, results, answers or texts of servers; a URL has the names of its path
variables in place of their values.
"""

from __future__ import annotations

import sys
import time
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol, TypeAlias

from msgspec import Struct

from roundgate.observability.metrics import (
    INTERNAL,
    instruments,
    is_servers_error,
    known_code,
    known_method,
    target_attribute,
)

RecordRequest: TypeAlias = Callable[[Mapping[str, str], Any], None]
"""Records a request to a back end in the audit log: its facts, and the content to digest."""


class Correlation(Struct):
    """The ids of one call. They reveal nothing of its arguments, answers or results."""

    tool: str | None = None
    """The name of the tool that runs."""
    through: str | None = None
    """The gateway's own tool through which the client called `tool`."""
    task: str | None = None
    """The call's task in the form of the command line: `OWNER.ID`."""
    make_call_id: Callable[[], str] | None = None
    """A function that makes `call_id` on first use, if it is not known yet."""
    known_call_id: str | None = None
    """The id of the call; `None` until it is made or received."""
    round: int | None = None
    """The number of the round that the audit log has begun; `None` before and without the log."""
    record_request: RecordRequest | None = None
    """A function that records requests to back ends; `None` unless the call is in the audit log."""

    @property
    def call_id(self) -> str | None:
        """The id of the call, the same in all its rounds and in its task; `None` outside of
        calls."""
        if self.known_call_id is None and self.make_call_id is not None:
            self.known_call_id = self.make_call_id()
        return self.known_call_id

    def members(self) -> dict[str, str]:
        """Return the ids as members of a log line."""
        members = {"call": self.call_id, "task": self.task, "tool": self.tool}
        return {name: value for name, value in members.items() if value is not None}


CORRELATION: Final[ContextVar[Correlation | None]] = ContextVar(
    "roundgate_correlation", default=None
)
"""The ids of the call being processed; `None` outside of calls."""


ENVIRONMENT: Final[ContextVar[Mapping[str, str]]] = ContextVar(
    "roundgate_environment", default=MappingProxyType({})
)
"""The ids that the environment gave the invocation being processed, such as AWS Lambda's
`lambda_request`; empty in a process that serves by itself."""


@contextmanager
def environment(ids: Mapping[str, str]) -> Iterator[None]:
    """Add the environment's ids to every line that is logged within the block."""
    token = ENVIRONMENT.set(ids)
    try:
        yield
    finally:
        ENVIRONMENT.reset(token)


@contextmanager
def correlated(correlation: Correlation) -> Iterator[None]:
    """Add these ids to every line that is logged within the block."""
    token = CORRELATION.set(correlation)
    try:
        yield
    finally:
        CORRELATION.reset(token)


def members_here() -> dict[str, str]:
    """Return the ids of the invocation and the call being processed, as members of a log line."""
    correlation = CORRELATION.get()
    ids = ENVIRONMENT.get()
    return {**ids} if correlation is None else {**ids, **correlation.members()}


TRACE: Final[ContextVar[str | None]] = ContextVar("roundgate_trace", default=None)
"""The `traceparent` of the current request or turn, for log lines; `None` without a trace."""

KEYS: Final = ("traceparent", "tracestate", "baggage")
_HEADERS: Final = (b"traceparent", b"tracestate")
_MAX_CHARS: Final = 512
"""The maximum length of a member of a client's trace context."""
MAX_TARGET: Final = 200
"""The maximum length of a URI and of a description in a span."""


class TracedOperation(Protocol):
    """A request of a client: an `Inbound`, or another message."""

    @property
    def id(self) -> str | int | None:
        """The JSON-RPC id; `None` for a notification."""

    @property
    def method(self) -> str: ...

    @property
    def name(self) -> str | None:
        """The tool, prompt, URI or task, if the method has one."""

    @property
    def version(self) -> str:
        """The revision of the protocol; empty if it is not known."""


class TracedTransport(Protocol):
    """The facts about a request that its HTTP exchange has."""

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        """The HTTP headers by lower-case name."""

    @property
    def client(self) -> tuple[str, int] | None:
        """The address and the port of the client, if they are known."""

    @property
    def http_version(self) -> str: ...


class TracedMessage(Struct, frozen=True):
    """A `TracedOperation` that is not a valid request of its revision, or needs no handler."""

    id: str | int | None
    method: str
    name: str | None = None
    version: str = ""


class PassedOn(Struct, frozen=True):
    """A substitute for a span, which passes on the context `trace`."""

    trace: Mapping[str, str]

    def carrier(self) -> Mapping[str, str]:
        """Return the context of this request, which is sealed for later rounds."""
        return self.trace

    def link(self, origin: Mapping[str, str]) -> None: ...

    def end(
        self,
        outcome: str,
        code: int | None = None,
        message: str | None = None,
        status: int | None = None,
    ) -> None: ...


_NO_TRACE: Final = nullcontext(PassedOn({}))
"""The shared substitute for requests without a trace context, which most requests lack."""


class Tracing:
    """A factory of spans; of substitutes without a tracer of OpenTelemetry."""

    def __init__(self, tracer: Any = None) -> None:
        self.tracer = tracer

    def request(
        self,
        operation: TracedOperation,
        trace: Mapping[str, str],
        transport: TracedTransport,
        correlation: Correlation,
        *,
        knows: Callable[[str, str], bool],
        session: str | None = None,
    ) -> AbstractContextManager[Span]:
        """Return the span of one request, and record its duration.

        Args:
            trace: the trace context in its `_meta`.
            transport: the HTTP exchange of the request.
            correlation: the ids of the call, which has the tool that really ran at the end.
            knows: a function that returns whether a method's tool or prompt is served, so that its
                name may become part of names and metrics.
            session: the id of the session; `None` without one.
        """
        if self.tracer is None:
            return _passed_on(trace) if trace else _NO_TRACE
        return self._request(operation, trace, transport, correlation, knows, session)

    def turn(
        self, origin: Mapping[str, str], correlation: Correlation, number: int
    ) -> AbstractContextManager[Span]:
        """Return the span of a task's turn with this number. The span links to `origin`, the request
        in which the call began."""
        if self.tracer is None:
            return _passed_on(origin) if origin else _NO_TRACE
        return self._turn(origin, correlation, number)

    def span(
        self,
        kind: Literal["CLIENT", "CONSUMER", "SERVER"],
        name: str,
        attributes: Mapping[str, str | int],
        **more: Any,
    ) -> AbstractContextManager[Any]:
        from opentelemetry.trace import SpanKind

        span: AbstractContextManager[Any] = self.tracer.start_as_current_span(
            name,
            kind=SpanKind[kind],
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
            **more,
        )
        return span

    @contextmanager
    def _request(
        self,
        operation: TracedOperation,
        trace: Mapping[str, str],
        transport: TracedTransport,
        correlation: Correlation,
        knows: Callable[[str, str], bool],
        session: str | None,
    ) -> Iterator[Span]:
        method, target = known_method(operation.method), operation.name
        attribute = target_attribute(method)
        is_named = target is not None and attribute is not None and knows(method, target)
        shared: dict[str, str | int] = {
            "mcp.method.name": method,
            "network.transport": "tcp",
            "network.protocol.name": "http",
            "network.protocol.version": transport.http_version,
        }
        if operation.version:
            shared["mcp.protocol.version"] = operation.version
        if method == "tools/call":
            shared["gen_ai.operation.name"] = "execute_tool"
        attributes = dict(shared)
        if attribute == "mcp.resource.uri" and target is not None:
            attributes[attribute] = target[:MAX_TARGET]
            is_named = False
        elif is_named and attribute is not None and target is not None:
            shared[attribute] = attributes[attribute] = target
        if operation.id is not None:
            attributes["jsonrpc.request.id"] = str(operation.id)[:MAX_TARGET]
        if session is not None:
            attributes["mcp.session.id"] = session
        address, port = transport.client or ("", 0)
        if address:
            attributes["client.address"] = address[:MAX_TARGET]
            if port:
                attributes["client.port"] = port
        name = f"{method} {target}" if is_named else method
        with self._server_span(name, attributes, trace, transport) as span:
            made = _RequestSpan(span, method, shared, correlation)
            with made.timed(), _named_in_the_log(made.carrier()):
                yield made

    @contextmanager
    def _server_span(
        self,
        name: str,
        attributes: Mapping[str, str | int],
        trace: Mapping[str, str],
        transport: TracedTransport,
    ) -> Iterator[Any]:
        """Start a span whose parent is the context `trace`, with a link to the context of the HTTP
        request. Without the former, the latter is the parent."""
        from opentelemetry import context
        from opentelemetry.propagate import extract
        from opentelemetry.trace import Link, get_current_span

        around = context.get_current()
        if not get_current_span(around).get_span_context().is_valid:
            # no instrumentation of HTTP has read the headers
            around = extract(_in_headers(transport), around)
        parent = extract(trace, around)
        http_context = get_current_span(around).get_span_context()
        is_other = http_context != get_current_span(parent).get_span_context()
        token = context.attach(parent)  # with the baggage, which requests to servers pass on
        try:
            links = [Link(http_context)] if is_other and http_context.is_valid else []
            with self.span("SERVER", name, attributes, links=links) as span:
                yield span
        finally:
            context.detach(token)

    @contextmanager
    def _turn(
        self, origin: Mapping[str, str], correlation: Correlation, number: int
    ) -> Iterator[Span]:
        attributes: dict[str, str | int] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": str(correlation.tool),
            "roundgate.turn": number,
        }
        with self.span("CONSUMER", f"task {correlation.tool}", attributes) as span:
            turn_span = _ServerSpan(span, correlation)
            turn_span.link(origin)
            with turn_span.timed(), _named_in_the_log(turn_span.carrier()):
                yield turn_span


@contextmanager
def _passed_on(trace: Mapping[str, str]) -> Iterator[Span]:
    with _named_in_the_log(trace):
        yield PassedOn(trace)


@contextmanager
def _named_in_the_log(carrier: Mapping[str, str]) -> Iterator[None]:
    """Add the trace to every line that is logged within the block."""
    token = TRACE.set(carrier.get("traceparent"))
    try:
        yield
    finally:
        TRACE.reset(token)


class _ServerSpan:
    """The span of a turn, and the common part of all spans."""

    def __init__(self, span: Any, correlation: Correlation) -> None:
        self.span = span
        self.correlation = correlation
        self.has_ended = False

    def carrier(self) -> Mapping[str, str]:
        return current_carrier()

    def link(self, origin: Mapping[str, str]) -> None:
        """Link this request to the request in which its call began."""
        from opentelemetry.propagate import extract
        from opentelemetry.trace import get_current_span

        context = get_current_span(extract(origin)).get_span_context()
        if context.is_valid:
            self.span.add_link(context)

    def end(
        self,
        outcome: str,
        code: int | None = None,
        message: str | None = None,
        status: int | None = None,
    ) -> None:
        """Record the outcome, as in the log, and the code, text and HTTP status of a JSON-RPC error,
        if there was one. The first outcome counts."""
        if self.has_ended:
            return
        self.has_ended = True
        attributes = _outcome_attributes(outcome, code, status)
        self.record(outcome, attributes)
        self.span.set_attributes(attributes)
        if "error.type" in attributes:
            fail(self.span, message)

    def record(self, outcome: str, attributes: Mapping[str, str]) -> None:
        """Add attributes that are known now; for a request, also record the outcome in metrics."""
        _add_ids(self.span, self.correlation)
        self.span.set_attribute("roundgate.outcome", outcome)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Record the outcome of a block that an exception ends."""
        try:
            yield
        except CancelledError:
            self.end("cancelled")
            raise
        except Exception:
            self.end("error", INTERNAL)
            raise
        else:
            self.end("ok")


class _RequestSpan(_ServerSpan):
    def __init__(
        self, span: Any, method: str, shared: dict[str, str | int], correlation: Correlation
    ) -> None:
        super().__init__(span, correlation)
        self.method = method
        self.shared = shared
        """The attributes of the metric."""
        self.began = time.perf_counter()

    def record(self, outcome: str, attributes: Mapping[str, str]) -> None:
        ids = self.correlation
        if self.method == "tools/call" and ids.tool is not None:
            if self.shared.get("gen_ai.tool.name") != ids.tool:  # called through another tool
                self.shared["gen_ai.tool.name"] = ids.tool
                self.span.update_name(f"{self.method} {ids.tool}")
                self.span.set_attribute("gen_ai.tool.name", ids.tool)
            if ids.through is not None:
                self.span.set_attribute("roundgate.through", ids.through)
        super().record(outcome, attributes)
        if made := instruments():
            facts = {**self.shared, **attributes}
            made.server_operations.record(time.perf_counter() - self.began, facts)
            if target_attribute(self.method) is not None:
                names = ("mcp.method.name", "gen_ai.tool.name", "gen_ai.prompt.name")
                named = {name: self.shared[name] for name in names if name in self.shared}
                made.rounds.add(1, {**named, "outcome": outcome})


Span: TypeAlias = PassedOn | _ServerSpan
"""The span of one request or turn."""


def _outcome_attributes(outcome: str, code: int | None, status: int | None) -> dict[str, str]:
    if code is not None:
        attributes = {"rpc.response.status_code": known_code(code)}
        if is_servers_error(code):
            attributes["error.type"] = known_code(code)
        elif status is not None and status >= 500:  # an outage has the code of a refused request
            attributes["error.type"] = str(status)
        return attributes
    is_error = outcome in ("tool_error", "cancelled")
    return {"error.type": outcome} if is_error else {}


def fail(span: Any, message: str | None) -> None:
    from opentelemetry.trace import Status, StatusCode

    description = None if message is None else message[:MAX_TARGET]
    span.set_status(Status(StatusCode.ERROR, description))


def _add_ids(span: Any, ids: Correlation) -> None:
    if ids.known_call_id is not None:
        span.set_attribute("roundgate.call.id", ids.known_call_id)
    if ids.task is not None:
        span.set_attribute("roundgate.task.id", ids.task)


def current_carrier() -> dict[str, str]:
    """Return the current context as members of `_meta` or as headers."""
    from opentelemetry.propagate import inject

    carrier: dict[str, str] = {}
    inject(carrier)
    return carrier


def _in_headers(transport: TracedTransport) -> dict[str, str]:
    headers = transport.headers
    values = {name.decode(): headers.get(name, b"") for name in _HEADERS}
    return {
        name: value.decode("latin-1")
        for name, value in values.items()
        if 0 < len(value) <= _MAX_CHARS
    }


_NO_TRACING: Final = Tracing()
_made: tuple[Any, Tracing] | None = None


def set_up() -> Tracing:
    """Return tracing with spans if the process has set up an SDK; otherwise import nothing."""
    global _made
    if not has_sdk():
        return _NO_TRACING
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    if _made is None or _made[0] is not provider:
        _made = provider, Tracing(trace.get_tracer("roundgate"))
    return _made[1]


def has_sdk() -> bool:
    """Return whether the process has set up a provider of spans or of metrics."""
    if "opentelemetry.sdk.trace" in sys.modules:
        from opentelemetry import trace

        if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            return True
    if "opentelemetry.sdk.metrics" in sys.modules:
        from opentelemetry import metrics
        from opentelemetry.sdk.metrics import MeterProvider

        return isinstance(metrics.get_meter_provider(), MeterProvider)
    return False


def server_session_ended(took_s: float, version: str) -> None:
    """Record the duration of a client's session in seconds."""
    if made := instruments():
        facts = {"mcp.protocol.version": version, "network.protocol.name": "http"}
        made.server_sessions.record(took_s, facts)


def context_of(meta: Mapping[str, Any]) -> dict[str, str]:
    """Return the trace context in the `_meta` of a request. Omit values that are not text, or are
    longer than 512 characters."""
    if "traceparent" not in meta and "baggage" not in meta:
        return {}
    context = {key: meta.get(key) for key in KEYS}
    return {
        key: value
        for key, value in context.items()
        if isinstance(value, str) and len(value) <= _MAX_CHARS
    }


def outgoing(meta: Mapping[str, Any]) -> dict[str, str]:
    """Return the trace context for calls to back ends: the current span's context, or without a
    span, the context in `meta`."""
    if has_sdk() and (carrier := current_carrier()):
        return carrier
    return context_of(meta)
