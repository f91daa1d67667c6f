"""Spans and trace context by OpenTelemetry's semantic conventions for MCP (semantic-conventions-genai,
`docs/gen-ai/mcp.md`), and across rounds (basic/index, "OpenTelemetry trace context").

    tools/call refund   SERVER     a request; its parent is the context in its `_meta`
    task refund         CONSUMER   a turn of a worker; links to the first round of the call
    tools/call charge   CLIENT     a request to an MCP server; its context goes into `_meta`
    GET /orders/{id}    CLIENT     a request to an HTTP back end; its context goes into headers
    Lambda.Invoke       CLIENT     an invocation of a function

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
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from roundgate.errors import TimedOut
from roundgate.json import digest
from roundgate.observability.conventions import (
    INTERNAL,
    is_servers_error,
    known_code,
    known_method,
    target_attribute,
    target_in,
)
from roundgate.observability.correlation import Correlation
from roundgate.observability.metrics import instruments

TRACE: Final[ContextVar[str | None]] = ContextVar("roundgate_trace", default=None)
"""The `traceparent` of the current request or turn, for log lines; `None` without a trace."""

KEYS: Final = ("traceparent", "tracestate", "baggage")
_HEADERS: Final = (b"traceparent", b"tracestate")
_MAX_CHARS: Final = 512
"""The maximum length of a member of a client's trace context."""
_MAX_TARGET: Final = 200
"""The maximum length of a URI and of a description in a span."""


class Operation(Protocol):
    """A request of a client: an `Inbound`, or another message."""

    @property
    def id(self) -> str | int | None:
        """The JSON-RPC id; `None` for a notification."""

    @property
    def method(self) -> str:
        """The method."""

    @property
    def name(self) -> str | None:
        """The tool, prompt, URI or task, if the method has one."""

    @property
    def version(self) -> str:
        """The revision of the protocol; empty if it is not known."""


class Transport(Protocol):
    """The facts about a request that its HTTP exchange has."""

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        """The HTTP headers by lower-case name."""

    @property
    def client(self) -> tuple[str, int] | None:
        """The address and the port of the client, if they are known."""

    @property
    def http_version(self) -> str:
        """The version of HTTP."""


@dataclass(frozen=True, slots=True)
class Message:
    """An `Operation` that is not a valid request of its revision, or needs no handler."""

    id: str | int | None
    method: str
    name: str | None = None
    version: str = ""


@dataclass(slots=True)
class Peer:
    """The server of a client's requests. A process has no address."""

    address: str | None = None
    port: int | None = None
    http_version: str | None = None
    """The version of HTTP in the server's last response, such as `HTTP/1.1`."""

    def attributes(self) -> dict[str, str | int]:
        """Return the attributes of the server and of the transport to it."""
        if self.address is None:
            return {"network.transport": "pipe"}
        attributes: dict[str, str | int] = {
            "network.transport": "tcp",
            "network.protocol.name": "http",
            "server.address": self.address,
        }
        return attributes if self.port is None else {**attributes, "server.port": self.port}


class Span(Protocol):
    """The span of one request or turn."""

    def carrier(self) -> Mapping[str, str]:
        """Return the context of this request, which is sealed for later rounds."""

    def link(self, origin: Mapping[str, str]) -> None:
        """Link this request to the request in which its call began."""

    def end(self, outcome: str, code: int | None = None, message: str | None = None) -> None:
        """Record the outcome, as in the log, and the code and text of a JSON-RPC error, if there
        was one. The first outcome counts."""


class Tracing(Protocol):
    """A factory of spans."""

    def request(
        self,
        operation: Operation,
        trace: Mapping[str, str],
        transport: Transport,
        correlation: Correlation,
        *,
        knows: Callable[[str, str], bool],
        session: str | None = None,
    ) -> AbstractContextManager[Span]:
        """Return the span of one request, and record its duration.

        Args:
            operation: the request.
            trace: the trace context in its `_meta`.
            transport: the HTTP exchange of the request.
            correlation: the ids of the call, which has the tool that really ran at the end.
            knows: a function that returns whether a method's tool or prompt is served, so that its
                name may become part of names and metrics.
            session: the id of the session; `None` without one.
        """

    def turn(
        self, origin: Mapping[str, str], correlation: Correlation, attempt: int
    ) -> AbstractContextManager[Span]:
        """Return the span of one turn of a worker at a task. The span links to `origin`, the
        request in which the call began."""


@dataclass(frozen=True, slots=True)
class PassedOn:
    """A substitute for a span, which passes on the context `trace`."""

    trace: Mapping[str, str]

    def carrier(self) -> Mapping[str, str]:
        return self.trace

    def link(self, origin: Mapping[str, str]) -> None:
        """Do nothing: there is no span."""

    def end(self, outcome: str, code: int | None = None, message: str | None = None) -> None:
        """Do nothing: there is no span."""


_NO_TRACE: Final = nullcontext(PassedOn({}))
"""The shared substitute for requests without a trace context, which most requests lack."""


class NoTracing:
    """Tracing without an SDK, which makes no spans."""

    def request(
        self,
        operation: Operation,
        trace: Mapping[str, str],
        transport: Transport,
        correlation: Correlation,
        *,
        knows: Callable[[str, str], bool],
        session: str | None = None,
    ) -> AbstractContextManager[Span]:
        return _passed_on(trace) if trace else _NO_TRACE

    def turn(
        self, origin: Mapping[str, str], correlation: Correlation, attempt: int
    ) -> AbstractContextManager[Span]:
        return _passed_on(origin) if origin else _NO_TRACE


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


_NO_TRACING: Final = NoTracing()


class OpenTelemetry:
    """Tracing with an SDK."""

    def __init__(self) -> None:
        from opentelemetry import trace

        self._tracer = trace.get_tracer("roundgate")

    @contextmanager
    def request(
        self,
        operation: Operation,
        trace: Mapping[str, str],
        transport: Transport,
        correlation: Correlation,
        *,
        knows: Callable[[str, str], bool],
        session: str | None = None,
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
            attributes[attribute] = target[:_MAX_TARGET]
            is_named = False
        elif is_named and attribute is not None and target is not None:
            shared[attribute] = attributes[attribute] = target
        if operation.id is not None:
            attributes["jsonrpc.request.id"] = str(operation.id)[:_MAX_TARGET]
        if session is not None:
            attributes["mcp.session.id"] = session
        address, port = transport.client or ("", 0)
        if address:
            attributes["client.address"] = address[:_MAX_TARGET]
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
        transport: Transport,
    ) -> Iterator[Any]:
        """Start a span whose parent is the context `trace`, with a link to the context of the HTTP
        request. Without the former, the latter is the parent."""
        from opentelemetry import context
        from opentelemetry.propagate import extract
        from opentelemetry.trace import Link, SpanKind, get_current_span

        around = context.get_current()
        if not get_current_span(around).get_span_context().is_valid:
            # no instrumentation of HTTP has read the headers
            around = extract(_in_headers(transport), around)
        parent = extract(trace, around)
        http_context = get_current_span(around).get_span_context()
        is_other = http_context != get_current_span(parent).get_span_context()
        token = context.attach(parent)  # with the baggage, which requests to servers pass on
        try:
            with self._tracer.start_as_current_span(
                name,
                kind=SpanKind.SERVER,
                attributes=attributes,
                links=[Link(http_context)] if is_other and http_context.is_valid else [],
                record_exception=False,
                set_status_on_exception=False,
            ) as span:
                yield span
        finally:
            context.detach(token)

    @contextmanager
    def turn(
        self, origin: Mapping[str, str], correlation: Correlation, attempt: int
    ) -> Iterator[Span]:
        from opentelemetry.trace import SpanKind

        attributes: dict[str, str | int] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": str(correlation.tool),
            "roundgate.attempt": attempt,
        }
        with self._tracer.start_as_current_span(
            f"task {correlation.tool}",
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            turn_span = _TurnSpan(span, correlation)
            turn_span.link(origin)
            with turn_span.timed(), _named_in_the_log(turn_span.carrier()):
                yield turn_span

    @contextmanager
    def client(
        self, message: MutableMapping[str, Any], version: str, peer: Peer, session: str | None
    ) -> Iterator[ClientSpan]:
        """Return the span of a request to an MCP server, and record its duration. Add its context
        to the message."""
        method = known_method(message["method"])
        target = target_in(method, message.get("params") or {})
        attribute = target_attribute(method)
        shared = {"mcp.method.name": method, "mcp.protocol.version": version, **peer.attributes()}
        if method == "tools/call":
            shared["gen_ai.operation.name"] = "execute_tool"
        attributes = dict(shared)
        is_named = target is not None and attribute != "mcp.resource.uri"
        if target is not None and attribute is not None:
            attributes[attribute] = target[:_MAX_TARGET]
            if is_named:
                shared[attribute] = attributes[attribute]
        if message.get("id") is not None:
            attributes["jsonrpc.request.id"] = str(message["id"])
        if session is not None:
            attributes["mcp.session.id"] = digest(session)  # some servers let it authenticate
        name = f"{method} {target}" if is_named else method
        with self._outgoing(name, attributes) as span:
            _add_context(message)
            made = ClientSpan(span, shared)
            with made.timed("mcp.client.operation.duration", peer):
                yield made

    @contextmanager
    def http(
        self, method: str, base_url: str, route: str, headers: dict[str, str]
    ) -> Iterator[ClientSpan]:
        """Return the span of a request to an HTTP back end; see `http_span`."""
        parts = urlsplit(base_url)
        template = parts.path.rstrip("/") + route if route else ""
        shared: dict[str, str | int] = {
            "http.request.method": method,
            "server.address": str(parts.hostname),
            "server.port": parts.port or {"http": 80, "https": 443}[parts.scheme],
        }
        host = parts.netloc.rpartition("@")[2]
        attributes = {**shared, "url.full": f"{parts.scheme}://{host}{template or '/REDACTED'}"}
        if template:
            attributes["url.template"] = shared["url.template"] = template
        name = f"{method} {template}" if template else method
        with self._outgoing(name, attributes) as span:
            carrier = _carrier()
            # a client's baggage is not for services that do not know the client
            headers.update({key: carrier[key] for key in KEYS[:2] if key in carrier})
            made = ClientSpan(span, shared)
            with made.timed("http.client.request.duration"):
                yield made

    @contextmanager
    def function(self, operation: str, name: str, region: str | None) -> Iterator[ClientSpan]:
        """Return the span of a call of AWS Lambda for a function."""
        attributes = {
            "rpc.system.name": "aws-api",
            "rpc.method": f"Lambda/{operation}",
            "faas.invoked_name": name,
            "faas.invoked_provider": "aws",
        }
        if region is not None:
            attributes |= {"faas.invoked_region": region, "cloud.region": region}
        with self._outgoing(f"Lambda.{operation}", attributes) as span:
            made = ClientSpan(span, {})
            with made.timed(None):
                yield made

    def _outgoing(
        self, name: str, attributes: Mapping[str, str | int]
    ) -> AbstractContextManager[Any]:
        from opentelemetry.trace import SpanKind

        made: AbstractContextManager[Any] = self._tracer.start_as_current_span(
            name,
            kind=SpanKind.CLIENT,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        )
        return made


@dataclass(slots=True)
class _ServerSpan:
    """The common part of the spans of requests and turns."""

    span: Any
    has_ended: bool = field(default=False, init=False)

    def carrier(self) -> Mapping[str, str]:
        return _carrier()

    def link(self, origin: Mapping[str, str]) -> None:
        from opentelemetry.propagate import extract
        from opentelemetry.trace import get_current_span

        context = get_current_span(extract(origin)).get_span_context()
        if context.is_valid:
            self.span.add_link(context)

    def end(self, outcome: str, code: int | None = None, message: str | None = None) -> None:
        if self.has_ended:
            return
        self.has_ended = True
        attributes = _outcome_attributes(outcome, code)
        self.record(outcome, attributes)
        self.span.set_attributes(attributes)
        if "error.type" in attributes:
            _fail(self.span, message)

    def record(self, outcome: str, attributes: Mapping[str, str]) -> None:
        """Record the outcome in metrics, and add attributes that are known now."""

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


@dataclass(slots=True)
class _RequestSpan(_ServerSpan):
    method: str
    shared: dict[str, str | int]
    """The attributes of the metric."""
    correlation: Correlation
    began: float = field(default_factory=time.perf_counter)

    def record(self, outcome: str, attributes: Mapping[str, str]) -> None:
        ids = self.correlation
        if self.method == "tools/call" and ids.tool is not None:
            if self.shared.get("gen_ai.tool.name") != ids.tool:  # called through another tool
                self.shared["gen_ai.tool.name"] = ids.tool
                self.span.update_name(f"{self.method} {ids.tool}")
                self.span.set_attribute("gen_ai.tool.name", ids.tool)
            if ids.through is not None:
                self.span.set_attribute("roundgate.through", ids.through)
        _add_ids(self.span, ids)
        self.span.set_attribute("roundgate.outcome", outcome)
        if made := instruments():
            facts = {**self.shared, **attributes}
            made.server_operations.record(time.perf_counter() - self.began, facts)
            if target_attribute(self.method) is not None:
                names = ("mcp.method.name", "gen_ai.tool.name", "gen_ai.prompt.name")
                named = {name: self.shared[name] for name in names if name in self.shared}
                made.rounds.add(1, {**named, "outcome": outcome})


@dataclass(slots=True)
class _TurnSpan(_ServerSpan):
    correlation: Correlation

    def record(self, outcome: str, attributes: Mapping[str, str]) -> None:
        _add_ids(self.span, self.correlation)
        self.span.set_attribute("roundgate.outcome", outcome)


@dataclass(slots=True)
class ClientSpan:
    """The span of one request to a back end; without an SDK it records nothing."""

    span: Any = None
    shared: dict[str, str | int] = field(default_factory=dict)
    """The attributes of the metric."""
    error: str | None = field(default=None, init=False)
    is_detached: bool = field(default=False, init=False)

    def detached(self) -> None:
        """Record that another process continues the request, which is not an error."""
        if self.span is not None:
            self.is_detached = True

    def received(self, result: Mapping[str, Any]) -> None:
        """Record the result of an MCP server, which may be a tool's error."""
        if self.span is not None and result.get("isError") is True:
            self.error = "tool_error"

    def responded(self, status: int, http_version: str) -> None:
        """Record the status of an HTTP response, and its version, such as `HTTP/1.1`."""
        if self.span is None:
            return
        version = http_version.removeprefix("HTTP/")
        facts: dict[str, str | int] = {
            "http.response.status_code": status,
            "network.protocol.version": version,
        }
        self.span.set_attributes(facts)
        self.shared |= facts
        if status >= 400:
            self.error = str(status)

    def invoked(self, request_id: str, *, has_failed: bool) -> None:
        """Record the id that AWS Lambda gave an invocation, and whether its function failed."""
        if self.span is None:
            return
        if request_id:
            self.span.set_attribute("aws.request_id", request_id)
        if has_failed:
            self.error = "FunctionError"

    @contextmanager
    def timed(self, metric: str | None, peer: Peer | None = None) -> Iterator[None]:
        """Record the duration and the error of a block, and the version of HTTP that `peer`
        speaks."""
        began = time.perf_counter()
        try:
            yield
        except CancelledError:
            self.error = "cancelled"
            raise
        except Exception as error:
            if not self.is_detached:
                self._failed(error)
            raise
        finally:
            if peer is not None and peer.http_version is not None:
                version = peer.http_version.removeprefix("HTTP/")
                self.shared["network.protocol.version"] = version
                self.span.set_attribute("network.protocol.version", version)
            if self.error is not None:
                self.shared["error.type"] = self.error
                self.span.set_attribute("error.type", self.error)
                _fail(self.span, None)
            if made := instruments():
                took_s = time.perf_counter() - began
                if metric == "mcp.client.operation.duration":
                    made.client_operations.record(took_s, self.shared)
                elif metric is not None:
                    made.http_requests.record(took_s, self.shared)

    def _failed(self, error: Exception) -> None:
        code, status = getattr(error, "code", None), getattr(error, "status", None)
        if isinstance(code, int):  # an RpcError
            self.shared["rpc.response.status_code"] = known_code(code)
            self.span.set_attribute("rpc.response.status_code", str(code))
            self.error = known_code(code)
        elif isinstance(status, int):
            self.error = str(status)
        elif isinstance(error, TimeoutError | TimedOut):
            self.error = "timeout"
        else:
            self.error = type(error).__name__


_NOT_MADE: Final = nullcontext(ClientSpan())


def _outcome_attributes(outcome: str, code: int | None) -> dict[str, str]:
    if code is not None:
        attributes = {"rpc.response.status_code": known_code(code)}
        return attributes | ({"error.type": known_code(code)} if is_servers_error(code) else {})
    is_error = outcome in ("tool_error", "cancelled")
    return {"error.type": outcome} if is_error else {}


def _fail(span: Any, message: str | None) -> None:
    from opentelemetry.trace import Status, StatusCode

    description = None if message is None else message[:_MAX_TARGET]
    span.set_status(Status(StatusCode.ERROR, description))


def _add_ids(span: Any, ids: Correlation) -> None:
    """Add the ids by which the lines of the call are found in the log."""
    if ids.known_call_id is not None:
        span.set_attribute("roundgate.call.id", ids.known_call_id)
    if ids.task is not None:
        span.set_attribute("roundgate.task.id", ids.task)


def _carrier() -> dict[str, str]:
    from opentelemetry.propagate import inject

    carrier: dict[str, str] = {}
    inject(carrier)
    return carrier


def _add_context(message: MutableMapping[str, Any]) -> None:
    """Put the current context into the `_meta` of a message, in place of an older one."""
    carrier = _carrier()
    if carrier:
        params = message.get("params") or {}
        meta = params.get("_meta") or {}
        others = {key: value for key, value in meta.items() if key not in KEYS[:2]}
        message["params"] = {**params, "_meta": {**others, **carrier}}


def _in_headers(transport: Transport) -> dict[str, str]:
    """Return the trace context in the headers of the HTTP request."""
    headers = transport.headers
    values = {name.decode(): headers.get(name, b"") for name in _HEADERS}
    return {
        name: value.decode("latin-1")
        for name, value in values.items()
        if 0 < len(value) <= _MAX_CHARS
    }


_made: tuple[Any, OpenTelemetry] | None = None


def set_up() -> NoTracing | OpenTelemetry:
    """Return tracing with spans if the process has set up an SDK; otherwise import nothing."""
    global _made
    if not _has_sdk():
        return _NO_TRACING
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    if _made is None or _made[0] is not provider:
        _made = provider, OpenTelemetry()
    return _made[1]


def _has_sdk() -> bool:
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


def client_span(
    message: MutableMapping[str, Any], version: str, peer: Peer, session: str | None = None
) -> AbstractContextManager[ClientSpan]:
    """Return the span of a request to an MCP server; without an SDK, a substitute.

    Args:
        message: the JSON-RPC message, to which the span's context is added.
        version: the revision of the request.
        peer: the server.
        session: the id of the session at the server; `None` without one.
    """
    made = set_up()
    if isinstance(made, NoTracing):
        return _NOT_MADE
    return made.client(message, version, peer, session)


def http_span(
    method: str, base_url: str, route: str, headers: dict[str, str]
) -> AbstractContextManager[ClientSpan]:
    """Return the span of a request to an HTTP back end, and record its duration. Without an SDK,
    return a substitute.

    Args:
        method: the HTTP method.
        base_url: the URL of the back end.
        route: the path with the names of its variables, whose values are arguments; empty if it is
            not known.
        headers: the headers of the request, to which the span's context is added.
    """
    made = set_up()
    if isinstance(made, NoTracing):
        return _NOT_MADE
    return made.http(method, base_url, route, headers)


def function_span(
    operation: str, name: str, region: str | None
) -> AbstractContextManager[ClientSpan]:
    """Return the span of a call of AWS Lambda; without an SDK, a substitute.

    Args:
        operation: the operation of AWS Lambda's API, such as `Invoke`.
        name: the name of the function, without account and region.
        region: the AWS region; `None` for the environment's.
    """
    made = set_up()
    if isinstance(made, NoTracing):
        return _NOT_MADE
    return made.function(operation, name, region)


def server_session_ended(took_s: float, version: str, transport: Transport) -> None:
    """Record the duration of a client's session in seconds."""
    if made := instruments():
        network = {
            "network.transport": "tcp",
            "network.protocol.name": "http",
            "network.protocol.version": transport.http_version,
        }
        made.server_sessions.record(took_s, {"mcp.protocol.version": version, **network})


def client_session_ended(took_s: float, version: str | None, peer: Peer) -> None:
    """Record the duration of a session at a server in seconds."""
    if made := instruments():
        facts = peer.attributes()
        if version is not None:
            facts["mcp.protocol.version"] = version
        made.client_sessions.record(took_s, facts)


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
    if _has_sdk() and (carrier := _carrier()):
        return carrier
    return context_of(meta)
