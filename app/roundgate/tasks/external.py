"""External events between a task and the services that deliver them.

A service delivers by the token alone, at any replica:

    token ──▶ open: task and name ──▶ payload beside the record ──▶ message ──▶ a worker continues
                │ invalid: as an unknown task     │ lost: the sweep finds the task

A retried task has a successor (`TaskRecord.retried_as`), which waits for the events that its
predecessor opened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from msgspec import Struct

from roundgate.clock import Clock
from roundgate.errors import NotJson, ParseError
from roundgate.json import decode, digest, encode
from roundgate.replay import MAX_DEPTH, plain
from roundgate.settings import TasksConfig
from roundgate.storage import TaskRef
from roundgate.tasks import machine
from roundgate.tasks.events import Deliver, Delivered
from roundgate.tasks.stored import StoredTasks
from roundgate.tokens import EventPlace, EventTokens

EVENTS_PATH: Final = "/events/"
"""The path under the public URL, followed by a token."""
MAX_RETRIES: Final = 100
"""The maximum number of successors of a task that a delivery follows."""


def is_event_path(path: str) -> bool:
    """Return whether a path is the path of an external event: `/events/` and a token."""
    return path.startswith(EVENTS_PATH) and path.count("/") == 2


def decode_payload(body: bytes) -> Any:
    """Return the payload in the body of a delivery.

    Raises:
        ParseError: the body is not JSON, or is nested too deeply for a journal.
    """
    payload = decode(body)
    try:
        plain(payload, "the payload")
    except NotJson:
        raise ParseError(f"The payload is nested more than {MAX_DEPTH} levels deep") from None
    return payload


class EventSource(Struct, frozen=True):
    """The tokens and URLs of the external events of all tasks."""

    tokens: Callable[[], EventTokens]
    public_url: str | None
    config: TasksConfig


class EventsOfTask(Struct, frozen=True):
    """The `replay.ExternalEvents` of a task."""

    source: EventSource
    ref: TaskRef

    @property
    def base(self) -> str | None:
        """Return the base URL for tokens, as `replay.ExternalEvents.base` does."""
        url = self.source.public_url
        return None if url is None else url.rstrip("/") + EVENTS_PATH

    @property
    def max_open(self) -> int:
        """Return the maximum number of open events per task."""
        return self.source.config.max_open_events

    @property
    def default_s(self) -> float:
        """Return `tasks.ttl_s`, the seconds for which an event without a time limit is open."""
        return self.source.config.ttl_s

    def token(self, name: str) -> str:
        """Return the token of an event, as `replay.ExternalEvents.token` does."""
        return self.source.tokens().seal(EventPlace(self.ref.owner, self.ref.id, name))


class Receipt(Struct, frozen=True):
    """The result of a delivery. `ref` and `name` identify the event, if it is known."""

    delivered: Delivered
    ref: TaskRef | None = None
    name: str | None = None


@dataclass(eq=False)
class Deliveries:
    """The receiver of the payloads of external events."""

    store: StoredTasks
    clock: Clock
    config: TasksConfig

    async def by_token(self, tokens: EventTokens, token: str, payload: Any) -> Receipt:
        """Deliver the event of a token. An invalid token counts as the token of an unknown task.

        Raises:
            Unavailable: the keys or the store cannot be reached; the payload may have been stored.
        """
        place = tokens.open(token)
        if place is None:
            return Receipt(Delivered.UNKNOWN_TASK)
        ref = TaskRef(place.owner, place.task_id)
        return Receipt(await self.deliver(ref, place.name, payload), ref, place.name)

    async def deliver(self, ref: TaskRef, name: str, payload: Any) -> Delivered:
        """Deliver an event by its name in the task's record.

        Raises:
            Unavailable: the store cannot be reached; the payload may have been stored.
        """
        data, digested = encode(payload), digest(payload)
        delivered = Delivered.CLOSED
        for _ in range(MAX_RETRIES):
            now_ms = self.clock.now_ms()
            event = Deliver(name, data, digested, now_ms + int(self.config.requeue_after_s * 1000))
            decision = await self.store.apply(ref, event, now_ms)
            delivered = Delivered(str(decision.result))
            if delivered is not Delivered.CLOSED:
                break
            record = await self.store.read(ref, 0)
            if record is None or record.retried_as is None:
                break
            ref = TaskRef(ref.owner, record.retried_as)
        if delivered is Delivered.AGAIN:
            await self._send_again(ref)
        return delivered

    async def _send_again(self, ref: TaskRef) -> None:
        """Send the message of an earlier delivery again, because it may have been lost. Skip tasks
        that are not free: a queue that keeps one message per task would lose the delay of a
        sleeping task."""
        record = await self.store.head(ref)
        if record is not None and machine.is_free(record, self.clock.now_ms()):
            await self.store.send(ref)
