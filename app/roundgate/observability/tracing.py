"""Trace context across rounds (basic/index, "OpenTelemetry trace context").

A request continues the trace that its `_meta` names (`traceparent`, `tracestate`, `baggage`: W3C
Trace Context). Where it came from is sealed into the state of its round, so the span of every later
round links to that of the first, whatever the client does in between.

Spans are made when an OpenTelemetry SDK is set up in the process (extra `otel`,
`opentelemetry-instrument`); otherwise nothing is imported and nothing is measured, and the
context alone is passed on.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Protocol

TRACE: Final[ContextVar[str | None]] = ContextVar("roundgate_trace", default=None)
"""The `traceparent` of what is being done, for the lines of the log; `None` where nobody traces."""

KEYS: Final = ("traceparent", "tracestate", "baggage")


class Span(Protocol):
    """One request in its trace."""

    def carrier(self) -> Mapping[str, str]:
        """Return the context of this request, which is sealed for later rounds."""

    def link(self, origin: Mapping[str, str]) -> None:
        """Link this request to the request in which its call began."""

    def end(self, outcome: str, code: int | None) -> None:
        """Record the outcome, as in the log, and the code of a JSON-RPC error."""


class Tracing(Protocol):
    """Makes spans."""

    def request(
        self, method: str, target: str | None, trace: Mapping[str, str], version: str
    ) -> AbstractContextManager[Span]:
        """Return a span for one request."""

    def turn(self, tool: str, origin: Mapping[str, str]) -> AbstractContextManager[Span]:
        """Return a span for one turn of a worker at a task, linked to the request in which its
        call began."""


@dataclass(frozen=True, slots=True)
class PassedOn:
    """No span: the context is what the client sent."""

    trace: Mapping[str, str]

    def carrier(self) -> Mapping[str, str]:
        return self.trace

    def link(self, origin: Mapping[str, str]) -> None:
        """Do nothing: there is no span."""

    def end(self, outcome: str, code: int | None) -> None:
        """Do nothing: there is no span."""


_NO_TRACE: Final = nullcontext(PassedOn({}))
"""Most clients trace nothing."""


class NoTracing:
    """Where no SDK is set up."""

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
    """Spans named and attributed as OpenTelemetry's semantic conventions for MCP say."""

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
            made = _OpenTelemetrySpan(span)
            with _named_in_the_log(made.carrier()):
                yield made

    @contextmanager
    def turn(self, tool: str, origin: Mapping[str, str]) -> Iterator[Span]:
        from opentelemetry.trace import SpanKind

        attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": tool}
        name = f"task {tool}"
        with self._tracer.start_as_current_span(
            name, kind=SpanKind.CONSUMER, attributes=attributes
        ) as span:
            made = _OpenTelemetrySpan(span)
            made.link(origin)
            with _named_in_the_log(made.carrier()):
                yield made


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
    """Return a tracing that makes spans if this process has set up an SDK; nothing is imported
    otherwise."""
    if "opentelemetry.sdk.trace" not in sys.modules:
        return NoTracing()
    from opentelemetry import trace

    return (
        NoTracing()
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
        else OpenTelemetry()
    )


def context_of(meta: Mapping[str, Any]) -> dict[str, str]:
    """Return the trace context in the `_meta` of a request, without values that are not text or
    too long."""
    if "traceparent" not in meta and "baggage" not in meta:
        return {}
    found = {key: meta.get(key) for key in KEYS}
    return {
        key: value for key, value in found.items() if isinstance(value, str) and len(value) <= 512
    }


def outgoing(meta: Mapping[str, Any]) -> dict[str, str]:
    """Return the trace context for calls that a request causes: that of the current span, or the
    request's own."""
    carrier: dict[str, str] = {}
    if "opentelemetry.sdk.trace" in sys.modules:
        from opentelemetry.propagate import inject

        inject(carrier)
    return carrier or context_of(meta)
