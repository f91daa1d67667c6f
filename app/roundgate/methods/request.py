"""What the handler of a method is given of a request, beside its params."""

from __future__ import annotations

from dataclasses import dataclass

from roundgate.auth.principal import Principal
from roundgate.protocol.inbound import Inbound
from roundgate.replay.call import Notify
from roundgate.tracing import Span


@dataclass(slots=True, eq=False)
class RequestContext:
    """One request and what belongs to it. `notify` sends on its stream, where the client wants and can have that.

    Nobody changes one, as with `Inbound`.
    """

    inbound: Inbound
    principal: Principal
    notify: Notify | None
    span: Span
    remaining_ms: float | None = None
    """For how long the environment lets the request run, in milliseconds, if it says so."""
