"""What the handler of a method is given of a request, beside its params."""

from __future__ import annotations

from dataclasses import dataclass

from roundgate.auth import Principal
from roundgate.observability.correlation import Correlation
from roundgate.observability.tracing import Span
from roundgate.protocol import Inbound
from roundgate.replay import Notify, PageDone


@dataclass(frozen=True, slots=True)
class RequestContext:
    """One request and what belongs to it. `notify` sends on its stream, where the client
    wants and can have that."""

    inbound: Inbound
    principal: Principal
    notify: Notify | None
    span: Span
    correlation: Correlation
    """The ids of the call, for the log; the code that serves the request completes them."""
    remaining_ms: float | None = None
    """For how long the environment lets the request run, in milliseconds, if it says so."""
    page_done: PageDone | None = None
    """Tells the client that its user has finished with a page; `None` for clients that cannot be
    told."""
