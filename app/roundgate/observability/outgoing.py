"""Requests to back ends: their spans, and their records in the audit log.

    tools/call charge   CLIENT     a request to an MCP server; its context goes into `_meta`
    GET /orders/{id}    CLIENT     a request to an HTTP back end; its context goes into headers
    Lambda.Invoke       CLIENT     an invocation of a function

A span is made if there is an OpenTelemetry SDK (`observability.tracing`). A record is written if the
request belongs to a call of the audit log: `Correlation.record_request` is set.
"""

from __future__ import annotations

import hashlib
import time
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct

from roundgate.errors import TimedOut
from roundgate.json import digest
from roundgate.observability.conventions import (
    known_code,
    known_method,
    target_attribute,
    target_in,
)
from roundgate.observability.correlation import CORRELATION, RecordRequest
from roundgate.observability.metrics import instruments
from roundgate.observability.tracing import (
    KEYS,
    MAX_TARGET,
    OpenTelemetry,
    current_carrier,
    fail,
    set_up,
)

RECORDED: Final = frozenset(
    {"tools/call", "prompts/get", "resources/read", "tasks/update", "tasks/cancel"}
)
"""The methods whose requests to MCP servers have records. Lists, polls of tasks and the opening of
sessions have none."""
_NAMES: Final = ("name", "uri", "taskId")
"""The members of params that name the target of a method in `RECORDED`."""


class Peer(Struct):
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

    @property
    def name(self) -> str:
        """The name of the server in records: `HOST:PORT`, or `process`."""
        if self.address is None:
            return "process"
        return self.address if self.port is None else f"{self.address}:{self.port}"


@dataclass(slots=True)
class OutgoingRequest:
    """One request to a back end: its span, if there is an SDK, and its outcome."""

    span: Any = None
    shared: dict[str, str | int] = field(default_factory=dict)
    """The attributes of the metric."""
    outcome: str = field(default="ok", init=False)
    """The outcome in the audit log, unless there is an error."""
    error: str | None = field(default=None, init=False)
    is_detached: bool = field(default=False, init=False)

    def detached(self) -> None:
        """Record that another process continues the request, which is not an error."""
        if self is not _IGNORED:
            self.is_detached, self.outcome = True, "detached"

    def received(self, result: Mapping[str, Any]) -> None:
        """Record the result of an MCP server, which may be a tool's error."""
        if self is _IGNORED:
            return
        if result.get("isError") is True:
            self.error = "tool_error"
        elif result.get("resultType") in ("input_required", "task"):
            self.outcome = result["resultType"]

    def responded(self, status: int, http_version: str) -> None:
        """Record the status of an HTTP response, and its version, such as `HTTP/1.1`."""
        if self is _IGNORED:
            return
        self.outcome = str(status)
        self.error = str(status) if status >= 400 else None
        if self.span is not None:
            facts: dict[str, str | int] = {
                "http.response.status_code": status,
                "network.protocol.version": http_version.removeprefix("HTTP/"),
            }
            self.span.set_attributes(facts)
            self.shared |= facts

    def invoked(self, request_id: str, *, has_failed: bool) -> None:
        """Record the id that AWS Lambda gave an invocation, and whether its function failed."""
        if self is _IGNORED:
            return
        if self.span is not None and request_id:
            self.span.set_attribute("aws.request_id", request_id)
        if has_failed:
            self.error = "FunctionError"

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note the error that ends a block."""
        try:
            yield
        except CancelledError:
            self.error = "cancelled"
            raise
        except Exception as error:
            if self.error is None and not self.is_detached:
                self._failed(error)
            raise

    @contextmanager
    def timed(self, metric: str | None, peer: Peer | None = None) -> Iterator[None]:
        """Record the duration and the error of a block, and the version of HTTP that `peer`
        speaks, in span and metric."""
        began = time.perf_counter()
        try:
            with self.watched():
                yield
        finally:
            if peer is not None and peer.http_version is not None:
                version = peer.http_version.removeprefix("HTTP/")
                self.shared["network.protocol.version"] = version
                self.span.set_attribute("network.protocol.version", version)
            if self.error is not None:
                self.shared["error.type"] = self.error
                self.span.set_attribute("error.type", self.error)
                fail(self.span, None)
            if made := instruments():
                took_s = time.perf_counter() - began
                if metric == "mcp.client.operation.duration":
                    made.client_operations.record(took_s, self.shared)
                elif metric is not None:
                    made.http_requests.record(took_s, self.shared)

    def _failed(self, error: Exception) -> None:
        code, status = getattr(error, "code", None), getattr(error, "status", None)
        if isinstance(code, int):  # an RpcError
            self.error = known_code(code)
            self.shared["rpc.response.status_code"] = self.error
            if self.span is not None:
                self.span.set_attribute("rpc.response.status_code", str(code))
        elif isinstance(status, int):
            self.error = str(status)
        elif isinstance(error, TimeoutError | TimedOut):
            self.error = "timeout"
        else:
            self.error = type(error).__name__


_IGNORED: Final = OutgoingRequest()
"""The shared request without span and record, which notes nothing."""
_NOT_NOTED: Final = nullcontext(_IGNORED)


def client_span(
    message: MutableMapping[str, Any], version: str, peer: Peer, session: str | None = None
) -> AbstractContextManager[OutgoingRequest]:
    """Return the span of a request to an MCP server, and record its duration. Without an SDK, return
    a substitute.

    Args:
        message: the JSON-RPC message, to which the span's context is added.
        version: the revision of the request.
        peer: the server.
        session: the id of the session at the server; `None` without one.
    """
    spans, method = _spans(), message["method"]
    record = _recorder() if method in RECORDED else None
    span = None if spans is None else _client(spans, message, version, peer, session)
    if record is None:
        return span or _NOT_NOTED
    params = message.get("params") or {}
    name = next((params[member] for member in _NAMES if member in params), "")
    sent = {member: value for member, value in params.items() if member != "_meta"}
    request = f"{method} {name}"[:MAX_TARGET]
    return _recorded(span, record, {"request": request, "service": peer.name}, lambda: sent)


@contextmanager
def _client(
    spans: OpenTelemetry,
    message: MutableMapping[str, Any],
    version: str,
    peer: Peer,
    session: str | None,
) -> Iterator[OutgoingRequest]:
    method = known_method(message["method"])
    target = target_in(method, message.get("params") or {})
    attribute = target_attribute(method)
    shared = {"mcp.method.name": method, "mcp.protocol.version": version, **peer.attributes()}
    if method == "tools/call":
        shared["gen_ai.operation.name"] = "execute_tool"
    attributes = dict(shared)
    is_named = target is not None and attribute != "mcp.resource.uri"
    if target is not None and attribute is not None:
        attributes[attribute] = target[:MAX_TARGET]
        if is_named:
            shared[attribute] = attributes[attribute]
    if message.get("id") is not None:
        attributes["jsonrpc.request.id"] = str(message["id"])
    if session is not None:
        attributes["mcp.session.id"] = digest(session)  # some servers let it authenticate
    name = f"{method} {target}" if is_named else method
    with spans.span("CLIENT", name, attributes) as span:
        _add_context(message)
        request = OutgoingRequest(span, shared)
        with request.timed("mcp.client.operation.duration", peer):
            yield request


def http_span(
    method: str,
    base_url: str,
    route: str,
    headers: dict[str, str],
    sent: tuple[str, bytes | None],
) -> AbstractContextManager[OutgoingRequest]:
    """Return the span of a request to an HTTP back end, and record its duration. Without an SDK,
    return a substitute.

    Args:
        method: the HTTP method.
        base_url: the URL of the back end.
        route: the path with the names of its variables, whose values are arguments; empty if it is
            not known.
        headers: the headers of the request, to which the span's context is added.
        sent: the path with its query, and the body, for the digest in the audit log.
    """
    spans, record = _spans(), _recorder()
    if spans is None and record is None:
        return _NOT_NOTED
    parts = urlsplit(base_url)
    template = parts.path.rstrip("/") + route if route else ""
    span = None if spans is None else _http(spans, method, parts, template, headers)
    if record is None:
        return span or _NOT_NOTED

    def digested() -> Any:
        path, body = sent
        return {"path": path, "body": None if body is None else hashlib.sha256(body).hexdigest()}

    host = parts.netloc.rpartition("@")[2]
    facts = {"request": f"{method} {template}".rstrip(), "service": host}
    return _recorded(span, record, facts, digested)


@contextmanager
def _http(
    spans: OpenTelemetry, method: str, parts: SplitResult, template: str, headers: dict[str, str]
) -> Iterator[OutgoingRequest]:
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
    with spans.span("CLIENT", name, attributes) as span:
        carrier = current_carrier()
        # a client's baggage is not for services that do not know the client
        headers.update({key: carrier[key] for key in KEYS[:2] if key in carrier})
        request = OutgoingRequest(span, shared)
        with request.timed("http.client.request.duration"):
            yield request


def function_span(
    operation: str, name: str, region: str | None, payload: Any
) -> AbstractContextManager[OutgoingRequest]:
    """Return the span of a call of AWS Lambda; without an SDK, a substitute.

    Args:
        operation: the operation of AWS Lambda's API, such as `Invoke`.
        name: the name of the function, without account and region.
        region: the AWS region; `None` for the environment's.
        payload: the payload as JSON, for the digest in the audit log.
    """
    spans, record = _spans(), _recorder()
    span = None if spans is None else _function(spans, operation, name, region)
    if record is None:
        return span or _NOT_NOTED
    facts = {"request": f"Lambda.{operation} {name}", "service": region or ""}
    return _recorded(span, record, facts, lambda: payload)


@contextmanager
def _function(
    spans: OpenTelemetry, operation: str, name: str, region: str | None
) -> Iterator[OutgoingRequest]:
    attributes = {
        "rpc.system.name": "aws-api",
        "rpc.method": f"Lambda/{operation}",
        "faas.invoked_name": name,
        "faas.invoked_provider": "aws",
    }
    if region is not None:
        attributes |= {"faas.invoked_region": region, "cloud.region": region}
    with spans.span("CLIENT", f"Lambda.{operation}", attributes) as span:
        request = OutgoingRequest(span, {})
        with request.timed(None):
            yield request


def continued_request(peer: Peer, answers: Any) -> AbstractContextManager[OutgoingRequest]:
    """Return a request that another process has begun, and this one continues with answers. It has
    no span, because it has one in the other process.

    Args:
        peer: the server.
        answers: the answers to the server's questions, for the digest in the audit log.
    """
    record = _recorder()
    if record is None:
        return _NOT_NOTED
    facts = {"request": "answers", "service": peer.name}
    return _recorded(None, record, facts, lambda: answers)


def client_session_ended(took_s: float, version: str | None, peer: Peer) -> None:
    """Record the duration of a session at a server in seconds."""
    if made := instruments():
        facts = peer.attributes()
        del facts["network.transport"]  # not an attribute of sessions
        if version is not None:
            facts["mcp.protocol.version"] = version
        made.client_sessions.record(took_s, facts)


def _spans() -> OpenTelemetry | None:
    made = set_up()
    return made if isinstance(made, OpenTelemetry) else None


def _recorder() -> RecordRequest | None:
    """Return the function that records the requests of the call being processed; `None` if it is in
    no audit log."""
    ids = CORRELATION.get()
    return None if ids is None else ids.record_request


@contextmanager
def _recorded(
    span: AbstractContextManager[OutgoingRequest] | None,
    record: RecordRequest,
    facts: Mapping[str, str],
    sent: Callable[[], Any],
) -> Iterator[OutgoingRequest]:
    """Record the end of a request with its outcome."""
    with span or nullcontext(OutgoingRequest()) as request:
        try:
            with request.watched():
                yield request
        finally:
            record({**facts, "outcome": request.error or request.outcome}, sent())


def _add_context(message: MutableMapping[str, Any]) -> None:
    """Put the current context into the `_meta` of a message, in place of an older one."""
    carrier = current_carrier()
    if carrier:
        params = message.get("params") or {}
        meta = params.get("_meta") or {}
        others = {key: value for key, value in meta.items() if key not in KEYS[:2]}
        message["params"] = {**params, "_meta": {**others, **carrier}}
