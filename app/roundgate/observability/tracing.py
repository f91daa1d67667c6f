"""Trace context across rounds (basic/index, "OpenTelemetry trace context").

A request continues the trace that its `_meta` names (`traceparent`, `tracestate`, `baggage`: W3C
Trace Context). The context of the first round is sealed into the call's state, so the span of every
later round links to the first span, whatever trace the client sends.

Spans are made if the process has set up an OpenTelemetry SDK (extra `otel`,
`opentelemetry-instrument`). Otherwise nothing is imported, and only the context is passed on.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Protocol

TRACE: Final[ContextVar[str | None]] = ContextVar("roundgate_trace", default=None)
"""The `traceparent` of the current request or turn, for log lines; `None` without a trace."""

KEYS: Final = ("traceparent", "tracestate", "baggage")


class Span(Protocol):
    """The span of one request or turn."""

    def carrier(self) -> Mapping[str, str]:
        """Return the context of this request, which is sealed for later rounds."""

    def link(self, origin: Mapping[str, str]) -> None:
        """Link this request to the request in which its call began."""

    def end(self, outcome: str, code: int | None) -> None:
        """Record the outcome, as in the log, and the code of a JSON-RPC error if there was one."""


class Tracing(Protocol):
    """A factory of spans."""

    def request(
        self, method: str, target: str | None, trace: Mapping[str, str], version: str
    ) -> AbstractContextManager[Span]:
        """Return the span of one request, which continues the context `trace`."""

    def turn(self, tool: str, origin: Mapping[str, str]) -> AbstractContextManager[Span]:
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

    def end(self, outcome: str, code: int | None) -> None:
        """Do nothing: there is no span."""


_NO_TRACE: Final = nullcontext(PassedOn({}))
"""The shared substitute for requests without a trace context, which most requests lack."""


class NoTracing:
    """Tracing without an SDK, which makes no spans."""

    def request(
        self, method: str, target: str | None, trace: Mapping[str, str], version: str
    ) -> AbstractContextManager[Span]:
        return _passed_on(trace) if trace else _NO_TRACE

    def turn(self, tool: str, origin: Mapping[str, str]) -> AbstractContextManager[Span]:
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


class OpenTelemetry:
    """Tracing with names and attributes from OpenTelemetry's semantic conventions for MCP."""

    def __init__(self) -> None:
        from opentelemetry import trace

        self._tracer = trace.get_tracer("roundgate")

    @contextmanager
    def request(
        self, method: str, target: str | None, trace: Mapping[str, str], version: str
    ) -> Iterator[Span]:
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind

        attributes = {"mcp.method.name": method, "mcp.protocol.version": version}
        if method == "tools/call" and target is not None:
            attributes |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": target}
        with self._tracer.start_as_current_span(
            f"{method} {target}" if target else method,
            context=extract(trace),
            kind=SpanKind.SERVER,
            attributes=attributes,
        ) as span:
            request_span = _OpenTelemetrySpan(span)
            with _named_in_the_log(request_span.carrier()):
                yield request_span

    @contextmanager
    def turn(self, tool: str, origin: Mapping[str, str]) -> Iterator[Span]:
        from opentelemetry.trace import SpanKind

        attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": tool}
        name = f"task {tool}"
        with self._tracer.start_as_current_span(
            name, kind=SpanKind.CONSUMER, attributes=attributes
        ) as span:
            turn_span = _OpenTelemetrySpan(span)
            turn_span.link(origin)
            with _named_in_the_log(turn_span.carrier()):
                yield turn_span


@dataclass(frozen=True, slots=True)
class _OpenTelemetrySpan:
    span: Any

    def carrier(self) -> Mapping[str, str]:
        from opentelemetry.propagate import inject

        carrier: dict[str, str] = {}
        inject(carrier)
        return carrier

    def link(self, origin: Mapping[str, str]) -> None:
        from opentelemetry.propagate import extract
        from opentelemetry.trace import get_current_span

        self.span.add_link(get_current_span(extract(origin)).get_span_context())

    def end(self, outcome: str, code: int | None) -> None:
        from opentelemetry.trace import StatusCode

        if code is not None:
            self.span.set_attributes(
                {"error.type": str(code), "rpc.response.status_code": str(code)}
            )
        elif outcome == "tool_error":
            self.span.set_attribute("error.type", "tool_error")
        if code is not None or outcome == "tool_error":
            self.span.set_status(StatusCode.ERROR)


def set_up() -> Tracing:
    """Return tracing with spans if the process has set up an SDK; otherwise import nothing."""
    if "opentelemetry.sdk.trace" not in sys.modules:
        return NoTracing()
    from opentelemetry import trace

    return (
        NoTracing()
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
        else OpenTelemetry()
    )


def context_of(meta: Mapping[str, Any]) -> dict[str, str]:
    """Return the trace context in the `_meta` of a request. Omit values that are not text, or are
    longer than 512 characters."""
    if "traceparent" not in meta and "baggage" not in meta:
        return {}
    context = {key: meta.get(key) for key in KEYS}
    return {
        key: value for key, value in context.items() if isinstance(value, str) and len(value) <= 512
    }


def outgoing(meta: Mapping[str, Any]) -> dict[str, str]:
    """Return the trace context for calls to back ends: the current span's context, or without a
    span, the context in `meta`."""
    carrier: dict[str, str] = {}
    if "opentelemetry.sdk.trace" in sys.modules:
        from opentelemetry.propagate import inject

        inject(carrier)
    return carrier or context_of(meta)
