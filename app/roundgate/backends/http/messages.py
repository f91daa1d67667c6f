"""HTTP requests and answers as plain values, and the conversion of answers to tool results."""

from __future__ import annotations

import base64
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from roundgate import json, lenient
from roundgate.errors import DOUBT, BackendError, NoAnswer, ParseError, UnexpectedAnswer
from roundgate.protocol import (
    ABSENT,
    AudioContent,
    BlobResourceContents,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    Schema,
    TextContent,
    ToolResult,
)

ACCEPTED: Final = "gzip, deflate"
"""The value of `Accept-Encoding`."""
LARGE_BYTES: Final = 262_144
"""The size in bytes above which an answer is parsed in a thread, so as not to block the event
loop."""
_EXCERPT_CHARS: Final = 500

log = logging.getLogger("roundgate.backends")


class Outgoing(Struct, frozen=True):
    """An HTTP request, without the base URL, credentials and fixed headers of the service."""

    method: str
    path: str
    query: str
    """The percent-encoded query, without the question mark."""
    headers: dict[str, str]
    body: bytes | None
    is_repeatable: bool = False
    """Whether sending the request twice changes no more than sending it once."""
    has_key: bool = False
    """Whether the request has a key by which the service recognizes a repetition."""
    wants: tuple[str, ...] = ()
    """The lower-case names of the answer's headers that become part of the result."""
    max_bytes: int | None = None
    """The limit for the answer in bytes; `None` means the back end's limit."""
    route: str = ""
    """The path with the names of its variables, for spans; empty if it is not known."""

    @property
    def path_and_query(self) -> str:
        """The path with its query, if there is one."""
        return f"{self.path}?{self.query}" if self.query else self.path


class ServiceAnswer(Struct, frozen=True):
    """A service's answer."""

    status: int
    reason: str
    content_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    """The headers named by `Outgoing.wants`, by lower-case name."""
    retry_after: str | None = None
    """The header `Retry-After`. `kept` omits it."""

    @property
    def status_line(self) -> str:
        """The status line, such as `404 Not Found`, with at most 100 characters of the reason."""
        return f"{self.status} {self.reason[:100]}".rstrip()

    @property
    def media_type(self) -> str:
        """The lower-case media type without parameters."""
        return self.content_type.partition(";")[0].strip().lower()

    @property
    def is_json(self) -> bool:
        """Return whether the body is declared as JSON."""
        media_type = self.media_type
        return media_type in ("application/json", "text/json") or media_type.endswith("+json")

    def in_utf8(self) -> ServiceAnswer:
        """Return the answer with JSON in UTF-8, whatever its charset."""
        body = lenient.in_utf8(self.body, self.content_type) if self.is_json else self.body
        return self if body is self.body else replace(self, body=body)

    def value(self, of: str = "a service") -> Any:
        """Return the JSON of the body. Repairs are logged once for the tool `of`.

        Raises:
            ParseError: the body is not JSON.
        """
        return lenient.value(self.body, of)

    def kept(self) -> dict[str, Any]:
        """Return the answer as a JSON object, from which `revived` restores it."""
        body = base64.b64encode(self.body).decode()
        return {
            "status": self.status,
            "reason": self.reason,
            "content_type": self.content_type,
            "body": body,
            **({"headers": dict(self.headers)} if self.headers else {}),
        }

    @classmethod
    def revived(cls, kept: Mapping[str, Any]) -> ServiceAnswer:
        """Restore an answer from the result of `kept`."""
        body = base64.b64decode(kept["body"])
        headers = kept.get("headers", {})
        return cls(kept["status"], kept["reason"], kept["content_type"], body, headers)


def with_doubt(error: BackendError, *, is_unclear: bool = False) -> BackendError:
    """Add `DOUBT` to an error about an answer that did not arrive or cannot be used, or to any error
    if `is_unclear`."""
    is_lost = isinstance(error, NoAnswer) and error.reached
    if is_unclear or is_lost or isinstance(error, UnexpectedAnswer):
        error.args = (f"{error}{DOUBT}",)
    return error


Send: TypeAlias = Callable[[Outgoing], Awaitable[ServiceAnswer]]


def result_from_answer(
    tool: str,
    answer: ServiceAnswer,
    pointer: str = "",
    output: Schema | None = None,
    *,
    lenient: bool = False,
) -> ToolResult:
    """Return the tool's result for an answer.

    Args:
        tool: the tool's name, for the log.
        answer: the service's answer.
        pointer: a JSON Pointer to the part that is the result; empty for the whole.
        output: the schema of that part; `None` allows any value.
        lenient: whether to log an answer that breaks its schema and return it as text, instead of
            raising; used for schemas of third parties.

    Raises:
        BackendError: the answer is an error; or it breaks its schema and `lenient` is False.
    """
    if answer.status >= 300:
        raise BackendError(
            f"The service answered {answer.status_line}{_again(answer)}{excerpt(answer)}",
            reason=f"upstream {answer.status}",
        )
    if answer.is_json and answer.body:  # HEAD and 204 answers may name a media type without a body
        try:
            return _from_json(tool, answer, pointer, output)
        except UnexpectedAnswer as broken:
            if not lenient:
                raise
            _warn(tool, str(broken))
            return ToolResult(content=_blocks(tool, "text/plain", answer))
    media_type = answer.media_type
    if pointer or output is not None:
        kind = f"{media_type[:100] or 'no content type'}" if answer.body else "nothing"
        if not lenient:
            raise UnexpectedAnswer(
                f"The service answered {kind} where JSON was expected{excerpt(answer)}"
            )
        _warn(tool, f"The service answered {kind} where JSON was expected")
    return ToolResult(content=_blocks(tool, media_type, answer))


def with_headers(
    result: ToolResult,
    answer: ServiceAnswer,
    members: Mapping[str, str],
    output: Schema | None = None,
) -> ToolResult:
    """Return a result with headers of the answer added as members. A value that is not an object,
    or already has one of the members, moves to the member `result`.

    Args:
        result: the result without headers.
        answer: the service's answer.
        members: the header name for each member.
        output: the schema of the whole result.

    Raises:
        UnexpectedAnswer: the whole result does not match `output`.
    """
    headers = {
        member: answer.headers[name.lower()]
        for member, name in members.items()
        if name.lower() in answer.headers
    }
    value = result.structured_content
    if value is ABSENT:
        texts = [part.text for part in result.content if isinstance(part, TextContent)]
        value = {"result": texts[0], **headers} if texts and answer.body else headers
    elif isinstance(value, dict) and not members.keys() & value.keys():
        value = {**value, **headers}
    else:
        value = {"result": value, **headers}
    _check_output(value, output)
    shown = TextContent(json.encode(value).decode())
    others = tuple(part for part in result.content if not isinstance(part, TextContent))
    return ToolResult(content=(*others, shown), structured_content=value)


def _check_output(value: Any, output: Schema | None) -> None:
    if output is not None and (problems := output.problems(value, "result")):
        raise UnexpectedAnswer(f"The service's answer is not as declared: {'; '.join(problems)}")


def _from_json(tool: str, answer: ServiceAnswer, pointer: str, output: Schema | None) -> ToolResult:
    try:
        value = json.at_pointer(answer.value(tool), pointer)
    except ParseError:
        raise UnexpectedAnswer(f"The service's answer is not JSON{excerpt(answer)}") from None
    except LookupError:
        raise UnexpectedAnswer(
            f"The service's answer has nothing at {pointer}{excerpt(answer)}"
        ) from None
    _check_output(value, output)
    text = value if isinstance(value, str) else json.encode(value).decode()
    return ToolResult(content=(TextContent(text),), structured_content=value)


def _warn(tool: str, why: str) -> None:
    """Log the reason why an answer is unexpected, without the answer's text."""
    log.warning(
        "a response does not match its OpenAPI document",
        extra={"fields": {"tool": tool, "why": why.partition(": ")[0]}},
    )


def excerpt(answer: ServiceAnswer) -> str:
    """Return the beginning of an answer on one line, after a colon. Return an empty string if the
    answer is binary or empty."""
    text = " ".join(answer.body[: 4 * _EXCERPT_CHARS].decode("utf-8", "replace").split())
    if not text or not text.isprintable():
        return ""
    return f": {text[:_EXCERPT_CHARS]}{'…' if len(text) > _EXCERPT_CHARS else ''}"


def _again(answer: ServiceAnswer) -> str:
    retry_after = (answer.retry_after or "").strip()
    if answer.status not in (429, 503) or not retry_after.isascii() or not retry_after.isdecimal():
        return ""
    return f"; try again in {retry_after[:9]} s"


def _blocks(tool: str, media_type: str, answer: ServiceAnswer) -> tuple[ContentBlock, ...]:
    if not answer.body:
        return (TextContent(answer.status_line),)
    kind = media_type.partition("/")[0]
    if kind == "image":
        return (ImageContent(answer.body, media_type),)
    if kind == "audio":
        return (AudioContent(answer.body, media_type),)
    text = lenient.text(answer.body, answer.content_type)
    if text is not None:
        return (TextContent(text),)
    blob = BlobResourceContents(
        f"result:{tool}", answer.body, media_type or "application/octet-stream"
    )
    return (EmbeddedResource(blob),)
