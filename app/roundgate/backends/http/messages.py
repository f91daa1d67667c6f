"""HTTP requests and answers as plain values, and the conversion of answers to tool results.

httpx decompresses each piece completely: 2.5 KB of `gzip, gzip` become 3 GB before their size can
be checked. `Unpacker` decompresses within a limit.
"""

from __future__ import annotations

import base64
import logging
import re
import zlib
from codecs import BOM_UTF8
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from roundgate import json
from roundgate.errors import BackendError, Inside, ParseError, UnexpectedAnswer
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
_CHARSET: Final = re.compile(r"charset=\"?([A-Za-z0-9._:-]{1,40})", re.IGNORECASE)
_CHARSETS: Final = frozenset(
    {
        "utf8", "utf16", "utf16le", "utf16be", "utf32", "ascii", "usascii", "latin1", "gb2312", "gbk", "gb18030",
        "big5", "shiftjis", "sjis", "eucjp", "iso2022jp", "euckr", "koi8r", "koi8u", "tis620",
        *(f"iso8859{part}" for part in range(1, 17)), *(f"windows{page}" for page in range(1250, 1259)),
        *(f"cp{page}" for page in range(1250, 1259)),
    }
)  # fmt: skip
"""Charsets of web pages. Some of Python's other codecs (punycode, idna) take minutes for 1 MB."""

log = logging.getLogger("roundgate.backends")


class AnswerTooLarge(Inside):
    """A service's answer exceeds its limit of bytes."""


class UnknownEncoding(Inside):
    """A service's answer has an unrequested content encoding, or is invalid in its encoding."""


@dataclass(frozen=True, slots=True)
class Outgoing:
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


@dataclass(frozen=True, slots=True)
class Answer:
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

    def value(self) -> Any:
        """Return the JSON of the body. A byte order mark is ignored (RFC 8259 section 8.1), because
        some services on Windows send one.

        Raises:
            ParseError: the body is not JSON.
        """
        return json.decode(self.body.removeprefix(BOM_UTF8))

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
    def revived(cls, kept: Mapping[str, Any]) -> Answer:
        """Restore an answer from the result of `kept`."""
        body = base64.b64decode(kept["body"])
        headers = kept.get("headers", {})
        return cls(kept["status"], kept["reason"], kept["content_type"], body, headers)


Send: TypeAlias = Callable[[Outgoing], Awaitable[Answer]]


class Unpacker:
    """A decompressor for an answer while it arrives. The body never exceeds `limit` bytes by more
    than one piece."""

    def __init__(self, content_encoding: str, limit: int) -> None:
        """Prepare to decompress.

        Raises:
            UnknownEncoding: the encoding is not gzip, deflate or identity.
        """
        encoding = content_encoding.strip().lower()
        if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise UnknownEncoding
        self._limit = limit
        self._raw_bytes = 0
        self._body = bytearray()
        self._inflate: Any = None
        if encoding in ("gzip", "x-gzip"):
            self._inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)
        elif encoding == "deflate":
            self._inflate = zlib.decompressobj()
        self._may_be_raw = encoding == "deflate"

    def feed(self, piece: bytes) -> None:
        """Decompress a piece and append it to the body.

        Raises:
            AnswerTooLarge: the limit is exceeded.
            UnknownEncoding: the bytes are invalid in the encoding.
        """
        self._raw_bytes += len(piece)
        if self._raw_bytes > self._limit + 1024:  # compression can add a few bytes
            raise AnswerTooLarge
        self._body += piece if self._inflate is None else self._inflated(piece)
        if len(self._body) > self._limit:
            raise AnswerTooLarge

    def body(self) -> bytes:
        """Return the whole body; raise UnknownEncoding if its compression is incomplete."""
        if self._inflate is not None and self._raw_bytes and not self._inflate.eof:
            raise UnknownEncoding
        return bytes(self._body)

    def _inflated(self, piece: bytes) -> bytes:
        space = self._limit - len(self._body) + 1
        try:
            return bytes(self._inflate.decompress(piece, space))
        except zlib.error:
            if not self._may_be_raw or self._body:
                raise UnknownEncoding from None
        # some servers send raw deflate, contrary to RFC 9110
        self._may_be_raw, self._inflate = False, zlib.decompressobj(-zlib.MAX_WBITS)
        return self._inflated(piece)


def decoded(body: bytes, content_type: str) -> str | None:
    """Return the text of a body, or `None` if its charset is unknown or wrong."""
    charset = _CHARSET.search(content_type)
    name = charset[1].lower() if charset else "utf-8"
    if re.sub(r"[^a-z0-9]", "", name) not in _CHARSETS:
        return None
    try:
        return body.decode(name)
    except (UnicodeDecodeError, LookupError):
        return None


def result_from_answer(
    tool: str,
    answer: Answer,
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
    media_type = answer.media_type
    is_json = media_type == "application/json" or media_type.endswith("+json")
    if is_json and answer.body:  # HEAD and 204 answers may name a media type without a body
        try:
            return _from_json(answer, pointer, output)
        except UnexpectedAnswer as broken:
            if not lenient:
                raise
            _warn(tool, str(broken))
            return ToolResult(content=_blocks(tool, "text/plain", answer))
    if pointer or output is not None:
        kind = f"{media_type[:100] or 'no content type'}" if answer.body else "nothing"
        if not lenient:
            raise BackendError(
                f"The service answered {kind} where JSON was expected{excerpt(answer)}"
            )
        _warn(tool, f"The service answered {kind} where JSON was expected")
    return ToolResult(content=_blocks(tool, media_type, answer))


def with_headers(
    result: ToolResult, answer: Answer, members: Mapping[str, str], output: Schema | None = None
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


def _from_json(answer: Answer, pointer: str, output: Schema | None) -> ToolResult:
    try:
        value = json.at_pointer(answer.value(), pointer)
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


def excerpt(answer: Answer) -> str:
    """Return the beginning of an answer on one line, after a colon. Return an empty string if the
    answer is binary or empty."""
    text = " ".join(answer.body[: 4 * _EXCERPT_CHARS].decode("utf-8", "replace").split())
    if not text or not text.isprintable():
        return ""
    return f": {text[:_EXCERPT_CHARS]}{'…' if len(text) > _EXCERPT_CHARS else ''}"


def _again(answer: Answer) -> str:
    retry_after = (answer.retry_after or "").strip()
    if answer.status not in (429, 503) or not retry_after.isascii() or not retry_after.isdecimal():
        return ""
    return f"; try again in {retry_after[:9]} s"


def _blocks(tool: str, media_type: str, answer: Answer) -> tuple[ContentBlock, ...]:
    if not answer.body:
        return (TextContent(answer.status_line),)
    kind = media_type.partition("/")[0]
    if kind == "image":
        return (ImageContent(answer.body, media_type),)
    if kind == "audio":
        return (AudioContent(answer.body, media_type),)
    text = decoded(answer.body, answer.content_type)
    if text is not None:
        return (TextContent(text),)
    blob = BlobResourceContents(
        f"result:{tool}", answer.body, media_type or "application/octet-stream"
    )
    return (EmbeddedResource(blob),)
