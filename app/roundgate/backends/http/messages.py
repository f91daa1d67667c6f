"""A request to an HTTP service and its answer, as values."""

from __future__ import annotations

import base64
from codecs import BOM_UTF8
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from roundgate import json


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
    is_repeatable: bool = False
    """Whether to send it twice changes no more than to send it once."""
    has_key: bool = False
    """Whether it has a key by which the service knows it again."""
    wants: tuple[str, ...] = ()
    """Headers of the answer that are of use, in small letters."""
    max_bytes: int | None = None
    """Of the answer; `None`: what holds for the back end."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the service said."""

    status: int
    reason: str
    content_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    """Those that the request wants, by name in small letters."""
    retry_after: str | None = None
    """The header of that name, which is not kept."""

    @property
    def status_line(self) -> str:
        """`404 Not Found`, cut where a service puts more into it than a reason."""
        return f"{self.status} {self.reason[:100]}".rstrip()

    @property
    def media_type(self) -> str:
        """Without parameters, in small letters."""
        return self.content_type.partition(";")[0].strip().lower()

    def value(self) -> Any:
        """The JSON that its body is. A byte order mark before it is ignored (RFC 8259 section 8.1):
        some services on Windows send one.

        Raises:
            ParseError: it is none.
        """
        return json.decode(self.body.removeprefix(BOM_UTF8))

    def kept(self) -> dict[str, Any]:
        """As JSON."""
        body = base64.b64encode(self.body).decode()
        return {
            "status": self.status,
            "reason": self.reason,
            "content_type": self.content_type,
            "body": body,
            **({"headers": dict(self.headers)} if self.headers else {}),
        }

    @classmethod
    def revived(cls, kept: Mapping[str, Any]) -> Answer:
        """From what `kept` returned."""
        body = base64.b64decode(kept["body"])
        headers = kept.get("headers", {})
        return cls(kept["status"], kept["reason"], kept["content_type"], body, headers)


Send: TypeAlias = Callable[[Outgoing], Awaitable[Answer]]
