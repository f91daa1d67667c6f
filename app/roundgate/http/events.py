"""`POST /events/{token}`: a service delivers an external event to the task that waits for it.

The token alone authenticates a delivery, and is valid for one payload. The rate and the size of
requests are bounded before a token is opened, and a token is opened before anything is read from
the store. A service that repeats a request, because the answer was lost, gets 200 in place of 202:

    202  accepted                     400  the body is not JSON          415  another media type
    200  the same was accepted before 404  no such event, or a forgery   429  too many requests
    409  another was accepted before  410  closed: too late, task over   503  try again

Neither tokens nor payloads reach the log.
"""

import logging
from collections.abc import Callable
from typing import Any, Final, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from roundgate.clock import Clock
from roundgate.errors import GatewayError, ParseError, TransportError, Unavailable
from roundgate.http.bodies import SMALL, BodyBudget, read_body
from roundgate.tasks.events import Delivered
from roundgate.tasks.external import EVENTS_PATH, Deliveries, Receipt, decode_payload
from roundgate.tokens import EventTokens

RETRY_AFTER_S: Final = 5
"""Seconds after which a service may repeat a temporarily refused request."""

log = logging.getLogger("roundgate.events")


class Accepted(BaseModel):
    """The answer to a delivery that was accepted, now or before."""

    status: Literal["accepted", "repeated"] = Field(
        description="`repeated`: the same payload was accepted before."
    )


class NotAccepted(BaseModel):
    """The answer to a delivery that was not accepted."""

    error: str = Field(description="The reason, and the remedy.")


_ANSWERS: Final = {
    Delivered.KEPT: (202, None),
    Delivered.WAKES: (202, None),
    Delivered.AGAIN: (200, None),
    Delivered.OTHER: (409, "Another payload was accepted for this event before"),
    Delivered.CLOSED: (410, "This event no longer accepts a payload"),
    Delivered.UNKNOWN_TASK: (404, "There is no such event"),
}


class Rate:
    """A rate limit: `per_s` requests a second, in bursts of at most that number."""

    def __init__(self, per_s: int, clock: Clock) -> None:
        self._per_s = per_s
        self._clock = clock
        self._left = float(per_s)
        self._at_ms = clock.monotonic_ms()

    def take(self) -> bool:
        """Count a request; return whether the gateway may serve it."""
        now_ms = self._clock.monotonic_ms()
        gained = (now_ms - self._at_ms) * self._per_s / 1000
        self._left, self._at_ms = min(float(self._per_s), self._left + gained), now_ms
        if self._left < 1:
            return False
        self._left -= 1
        return True


def make_events_router(
    deliveries: Deliveries,
    tokens: Callable[[], EventTokens],
    rate: Rate,
    budget: BodyBudget,
    max_bytes: int,
) -> APIRouter:
    """Return the route to which services post external events.

    Args:
        deliveries: the recipient of the payloads.
        tokens: a function that returns the sealer of the tokens.
        rate: the limit on the rate of requests.
        budget: the limit on all bodies that are read at once.
        max_bytes: the limit on a payload, in bytes (`tasks.max_event_bytes`).
    """
    router = APIRouter(tags=["events"])
    refusals: dict[int | str, dict[str, Any]] = {
        status: {"model": NotAccepted} for status in (400, 404, 409, 410, 413, 415, 429, 503)
    }

    @router.post(
        EVENTS_PATH + "{token}",
        status_code=202,
        summary="Deliver an external event",
        responses={200: {"model": Accepted}, **refusals},
        openapi_extra={"requestBody": {"content": {"application/json": {"schema": {}}}}},
    )
    async def deliver(token: str, request: Request, response: Response) -> Accepted | NotAccepted:
        """Accept one JSON value of at most `tasks.max_event_bytes` bytes for the task that waits
        for the event of this token. An empty body is `null`."""
        receipt, size = None, 0
        try:
            if not rate.take():
                raise TransportError(429, "Too many events are being delivered; try again soon")
            payload, size = await _payload(request, budget, max_bytes)
            receipt = await deliveries.by_token(tokens(), token, payload)
            status, error = _ANSWERS[receipt.delivered]
        except (TransportError, ParseError, Unavailable) as refusal:
            status, error = _status_from_error(refusal), str(refusal)
        if status in (429, 503):
            response.headers["retry-after"] = str(RETRY_AFTER_S)
        response.status_code = status
        _log(receipt, status, size)
        if error is not None:
            return NotAccepted(error=error)
        return Accepted(status="accepted" if status == 202 else "repeated")

    return router


def _status_from_error(refusal: GatewayError) -> int:
    match refusal:
        case TransportError(status=status):
            return status
        case ParseError():
            return 400
    return 503


def _log(receipt: Receipt | None, status: int, size: int) -> None:
    facts = {
        "task": None if receipt is None or receipt.ref is None else str(receipt.ref),
        "event": None if receipt is None else receipt.name,
        "outcome": None if receipt is None else receipt.delivered.value,
        "status": status,
        "bytes": size,
    }
    fields = {name: value for name, value in facts.items() if value is not None}
    log.info("an external event", extra={"fields": fields})


async def _payload(request: Request, budget: BodyBudget, max_bytes: int) -> tuple[Any, int]:
    """Return the payload of a request and its size in bytes.

    Raises:
        TransportError: the body is too large, has too many values, or another media type.
        ParseError: the body is not JSON, or is nested too deeply.
        Unavailable: other requests use too much memory.
    """
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json" and not media.endswith("+json"):
        raise TransportError(415, "The Content-Type of an event must be application/json")
    held: list[int] = []
    try:
        body = await _read(request, budget, max_bytes, held)
        if not body:
            return None, 0
        held.append(budget.take_nodes(body))
        return decode_payload(body), len(body)
    finally:
        budget.give_back(sum(held))


async def _read(request: Request, budget: BodyBudget, max_bytes: int, held: list[int]) -> bytes:
    declared = request.headers.get("content-length", "")
    too_large = TransportError(
        413, f"The payload is larger than {max_bytes} bytes (tasks.max_event_bytes)"
    )
    if declared.isdigit() and int(declared[:20]) > max_bytes:
        raise too_large

    def hold(size: int) -> None:
        if size > SMALL:
            held.append(budget.take(size - sum(held)))

    body = await read_body(request.receive, max_bytes, hold)
    if body is None:
        raise too_large
    return body
