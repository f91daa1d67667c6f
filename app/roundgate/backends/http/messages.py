"""A request to an HTTP service and its answer, as values."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from roundgate.replay import Context

KEY: Final = "idempotency-key"


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One HTTP request, complete but for what every request to the service has."""

    method: str
    path: str
    query: list[tuple[str, str]]
    headers: dict[str, str]
    body: bytes | None
    raw_query: str = ""
    """More of the query, encoded already."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the service said."""

    status: int
    reason: str
    content_type: str
    body: bytes

    @property
    def status_line(self) -> str:
        """`404 Not Found`, cut where a service puts more into it than a reason."""
        return f"{self.status} {self.reason[:100]}".rstrip()

    @property
    def media_type(self) -> str:
        """Without parameters, in small letters."""
        return self.content_type.partition(";")[0].strip().lower()

    def kept(self) -> dict[str, Any]:
        """As JSON."""
        body = base64.b64encode(self.body).decode()
        return {
            "status": self.status,
            "reason": self.reason,
            "content_type": self.content_type,
            "body": body,
        }

    @classmethod
    def revived(cls, kept: Mapping[str, Any]) -> Answer:
        """From what `kept` returned."""
        return cls(
            kept["status"], kept["reason"], kept["content_type"], base64.b64decode(kept["body"])
        )


Send: TypeAlias = Callable[[Outgoing], Awaitable[Answer]]


def with_key(outgoing: Outgoing, context: Context, exchange: int = 1) -> Outgoing:
    """The request with an Idempotency-Key, unless the tool sets one itself.

    A worker may die after it has sent a request and before it has noted so; the next one sends the same key.

    Args:
        outgoing: the request.
        context: of the call, from which the key follows.
        exchange: which request of a dialogue it is, from 1; each has a key of its own.
    """
    task_id = context.task_id
    if (
        task_id is None
        or outgoing.method not in ("POST", "PATCH")
        or KEY in map(str.lower, outgoing.headers)
    ):
        return outgoing
    key = task_id if exchange == 1 else f"{task_id}-{exchange}"
    return replace(outgoing, headers={KEY: key, **outgoing.headers})
