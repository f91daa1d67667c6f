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
from urllib.parse import urlsplit

from msgspec import Struct

from roundgate.errors import TimedOut
from roundgate.json import digest
from roundgate.observability.metrics import (
    instruments,
    known_code,
    known_method,
    target_attribute,
    target_in,
)
from roundgate.observability.tracing import (
    CORRELATION,
    KEYS,
    MAX_TARGET,
    RecordRequest,
    Tracing,
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

    shared: dict[str, str | int] = field(default_factory=dict)
    """The attributes of the metric."""
    span: Any = None
    outcome: str = field(default="ok", init=False)
    """The outcome in the audit log, unless there is an error."""
    error: str | None = field(default=None, init=False)
    is_detached: bool = field(default=False, init=False)

    def detached(self) -> None:
        """Record that another process continues the request, which is not an error."""
        self.is_detached, self.outcome = True, "detached"

    def received(self, result: Mapping[str, Any]) -> None:
        """Record the result of an MCP server, which may be a tool's error."""
        if result.get("isError") is True:
            self.error = "tool_error"
        elif result.get("resultType") in ("input_required", "task"):
            self.outcome = result["resultType"]

    def responded(self, status: int, http_version: str) -> None:
        """Record the status of an HTTP response, and its version, such as `HTTP/1.1`."""
        self.outcome = str(status)
        self.error = str(status) if status >= 400 else None
        if self.span is not None:
            self._add("http.response.status_code", status)
            self._add("network.protocol.version", http_version.removeprefix("HTTP/"))

    def invoked(self, request_id: str, *, has_failed: bool) -> None:
        """Record the id that AWS Lambda gave an invocation, and whether its function failed."""
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

    def end_span(self, metric: str | None, took_s: float, peer: Peer | None) -> None:
        """Record the duration, the error and the version of HTTP that `peer` speaks, in span and
        metric. `metric` is the name of one of the `Instruments`."""
        if peer is not None and peer.http_version is not None:
            self._add("network.protocol.version", peer.http_version.removeprefix("HTTP/"))
        if self.error is not None:
            self._add("error.type", self.error)
            fail(self.span, None)
        if metric is not None and (made := instruments()):
            getattr(made, metric).record(took_s, self.shared)

    def _add(self, name: str, value: str | int) -> None:
        self.shared[name] = value
        self.span.set_attribute(name, value)

    def _failed(self, error: Exception) -> None:
        code, status = getattr(error, "code", None), getattr(error, "status", None)
        if isinstance(code, int):  # an RpcError
            self.error = self.shared["rpc.response.status_code"] = known_code(code)
            if self.span is not None:
                self.span.set_attribute("rpc.response.status_code", str(code))
        elif isinstance(status, int):
            self.error = str(status)
        elif isinstance(error, TimeoutError | TimedOut):
            self.error = "timeout"
        else:
            self.error = type(error).__name__


_NOT_NOTED: Final = nullcontext(OutgoingRequest())
"""The request without span and record. All such requests share one, whose notes nobody reads."""


class _Kind(Struct):
    """The description of a request for its span, its metric and its record."""

    name: str
    shared: dict[str, str | int]
    facts: Mapping[str, str]
    sent: Callable[[], Any]
    """Returns the content for the digest in the audit log."""
    attributes: Mapping[str, str | int] = {}
    """Attributes of the span alone."""
    metric: str | None = None
    carry: Callable[[], None] = lambda: None
    """Adds the context of the current span to the request."""
    peer: Peer | None = None


@contextmanager
def _noted(
    kind: _Kind, spans: Tracing | None, record: RecordRequest | None
) -> Iterator[OutgoingRequest]:
    """Make the span of a request, if there is an SDK, and record its end with its outcome."""
    began, attributes = time.perf_counter(), {**kind.shared, **kind.attributes}
    span = nullcontext() if spans is None else spans.span("CLIENT", kind.name, attributes)
    with span as opened:
        request = OutgoingRequest(kind.shared, opened)
        if opened is not None:
            kind.carry()
        try:
            with request.watched():
                yield request
        finally:
            if opened is not None:
                request.end_span(kind.metric, time.perf_counter() - began, kind.peer)
            if record is not None:
                record({**kind.facts, "outcome": request.error or request.outcome}, kind.sent())


def client_span(
    message: MutableMapping[str, Any], version: str, peer: Peer, session: str | None = None
) -> AbstractContextManager[OutgoingRequest]:
    """Return the span of a request to an MCP server, and record its duration. Without an SDK, return
    a substitute.

    Args:
        message: the JSON-RPC message, to which the span's context is added.
        version: the revision of the request.
        session: the id of the session at the server; `None` without one.
    """
    spans, record = _spans(), _recorder() if message["method"] in RECORDED else None
    if spans is None and record is None:
        return _NOT_NOTED
    params = message.get("params") or {}
    method = known_method(message["method"])
    target, attribute = target_in(method, params), target_attribute(method)
    shared = {"mcp.method.name": method, "mcp.protocol.version": version, **peer.attributes()}
    if method == "tools/call":
        shared["gen_ai.operation.name"] = "execute_tool"
    attributes: dict[str, str | int] = {}
    is_named = target is not None and attribute != "mcp.resource.uri"
    if target is not None and attribute is not None:
        (shared if is_named else attributes)[attribute] = target[:MAX_TARGET]
    if message.get("id") is not None:
        attributes["jsonrpc.request.id"] = str(message["id"])
    if session is not None:
        attributes["mcp.session.id"] = digest(session)  # some servers let it authenticate
    recorded = next((params[member] for member in _NAMES if member in params), "")
    kind = _Kind(
        f"{method} {target}" if is_named else method,
        shared,
        {"request": f"{message['method']} {recorded}"[:MAX_TARGET], "service": peer.name},
        lambda: {member: value for member, value in params.items() if member != "_meta"},
        attributes,
        "client_operations",
        lambda: _add_context(message),
        peer,
    )
    return _noted(kind, spans, record)


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
        route: the path with the names of its variables, whose values are arguments; empty if it is
            not known.
        headers: the headers of the request, to which the span's context is added.
        sent: the path with its query, and the body, for the digest in the audit log.
    """
    spans, record = _spans(), _recorder()
    if spans is None and record is None:
        return _NOT_NOTED
    parts = urlsplit(base_url)
    host = parts.netloc.rpartition("@")[2]
    template = parts.path.rstrip("/") + route if route else ""
    shared: dict[str, str | int] = {
        "http.request.method": method,
        "server.address": str(parts.hostname),
        "server.port": parts.port or {"http": 80, "https": 443}[parts.scheme],
    }
    if template:
        shared["url.template"] = template

    def digested() -> Any:
        path, body = sent
        return {"path": path, "body": None if body is None else hashlib.sha256(body).hexdigest()}

    def carry() -> None:
        carrier = current_carrier()
        # a client's baggage is not for services that do not know the client
        headers.update({key: carrier[key] for key in KEYS[:2] if key in carrier})

    name = f"{method} {template}".rstrip()
    url = f"{parts.scheme}://{host}{template or '/REDACTED'}"
    facts = {"request": name, "service": host}
    kind = _Kind(name, shared, facts, digested, {"url.full": url}, "http_requests", carry)
    return _noted(kind, spans, record)


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
    if spans is None and record is None:
        return _NOT_NOTED
    attributes: dict[str, str | int] = {
        "rpc.system.name": "aws-api",
        "rpc.method": f"Lambda/{operation}",
        "faas.invoked_name": name,
        "faas.invoked_provider": "aws",
    }
    if region is not None:
        attributes |= {"faas.invoked_region": region, "cloud.region": region}
    facts = {"request": f"Lambda.{operation} {name}", "service": region or ""}
    kind = _Kind(f"Lambda.{operation}", {}, facts, lambda: payload, attributes)
    return _noted(kind, spans, record)


def continued_request(peer: Peer, answers: Any) -> AbstractContextManager[OutgoingRequest]:
    """Return a request that another process has begun, and this one continues with answers. It has
    no span, because it has one in the other process.

    Args:
        answers: the answers to the server's questions, for the digest in the audit log.
    """
    record = _recorder()
    if record is None:
        return _NOT_NOTED
    facts = {"request": "answers", "service": peer.name}
    return _noted(_Kind("", {}, facts, lambda: answers), None, record)


def client_session_ended(took_s: float, version: str | None, peer: Peer) -> None:
    """Record the duration of a session at a server in seconds."""
    if made := instruments():
        facts = peer.attributes()
        del facts["network.transport"]  # not an attribute of sessions
        if version is not None:
            facts["mcp.protocol.version"] = version
        made.client_sessions.record(took_s, facts)


def _spans() -> Tracing | None:
    made = set_up()
    return None if made.tracer is None else made


def _recorder() -> RecordRequest | None:
    """Return the function that records the requests of the call being processed; `None` if it is in
    no audit log."""
    ids = CORRELATION.get()
    return None if ids is None else ids.record_request


def _add_context(message: MutableMapping[str, Any]) -> None:
    """Put the current context into the `_meta` of a message, in place of an older one."""
    carrier = current_carrier()
    if carrier:
        params = message.get("params") or {}
        meta = params.get("_meta") or {}
        others = {key: value for key, value in meta.items() if key not in KEYS[:2]}
        message["params"] = {**params, "_meta": {**others, **carrier}}
