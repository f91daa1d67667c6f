"""What a service answered, as the result of a tool."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from roundgate import json
from roundgate.backends.http.body import decoded
from roundgate.backends.http.messages import Answer
from roundgate.errors import BackendError, ParseError, UnexpectedAnswer
from roundgate.json import at_pointer
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

_EXCERPT_CHARS: Final = 500

log = logging.getLogger("roundgate.backends")


def result_of(
    tool: str,
    answer: Answer,
    pointer: str = "",
    output: Schema | None = None,
    *,
    lenient: bool = False,
) -> ToolResult:
    """The tool's result for an answer.

    Args:
        tool: its name, for the log.
        answer: of the service.
        pointer: a JSON Pointer to the part that is the result; empty for the whole.
        output: what that part has to be; `None` for anything.
        lenient: for promises that somebody else made, in a document: an answer that breaks one is
            text, and a warning in the log, because it may well be what the caller needs.

    Raises:
        BackendError: the answer is an error, or not what was promised.
    """
    if answer.status >= 300:
        raise BackendError(
            f"The service answered {answer.status_line}{_again(answer)}{excerpt(answer)}",
            reason=f"upstream {answer.status}",
        )
    media_type = answer.media_type
    is_json = media_type == "application/json" or media_type.endswith("+json")
    if is_json and answer.body:  # HEAD and 204 may name a media type of which they send nothing
        try:
            return _from_json(answer, pointer, output)
        except UnexpectedAnswer as broken:
            if not lenient:
                raise
            _warn(tool, str(broken))
            return ToolResult(content=_blocks(tool, "text/plain", answer))
    if pointer or output is not None:
        what = f"{media_type[:100] or 'no content type'}" if answer.body else "nothing"
        if not lenient:
            raise BackendError(
                f"The service answered {what} where JSON was expected{excerpt(answer)}"
            )
        _warn(tool, f"The service answered {what} where JSON was expected")
    return ToolResult(content=_blocks(tool, media_type, answer))


def with_headers(
    result: ToolResult, answer: Answer, members: Mapping[str, str], output: Schema | None = None
) -> ToolResult:
    """A result with headers of its answer: members of an object; beside `result` where it is
    none, or has them already.

    Args:
        result: without them.
        answer: that has them.
        members: names of headers by those of members.
        output: what all of it has to be.

    Raises:
        UnexpectedAnswer: it is not.
    """
    found = {
        member: answer.headers[name.lower()]
        for member, name in members.items()
        if name.lower() in answer.headers
    }
    value = _beside(result, answer, found, frozenset(members))
    if output is not None and (problems := output.problems(value, "result")):
        raise UnexpectedAnswer(f"The service's answer is not as declared: {'; '.join(problems)}")
    shown = TextContent(json.encode(value).decode())
    kept = tuple(one for one in result.content if not isinstance(one, TextContent))
    return ToolResult(content=(*kept, shown), structured_content=value)


def _beside(
    result: ToolResult, answer: Answer, found: dict[str, str], members: frozenset[str]
) -> dict[str, Any]:
    value = result.structured_content
    if isinstance(value, dict) and not members & value.keys():
        return {**value, **found}
    if value is ABSENT:
        texts = [one.text for one in result.content if isinstance(one, TextContent)]
        return {"result": texts[0], **found} if texts and answer.body else dict(found)
    return {"result": value, **found}


def _from_json(answer: Answer, pointer: str, output: Schema | None) -> ToolResult:
    try:
        value = at_pointer(answer.value(), pointer)
    except ParseError:
        raise UnexpectedAnswer(
            f"The service answered something that is not JSON{excerpt(answer)}"
        ) from None
    except LookupError:
        raise UnexpectedAnswer(
            f"The service's answer has nothing at {pointer}{excerpt(answer)}"
        ) from None
    if output is not None and (problems := output.problems(value, "result")):
        raise UnexpectedAnswer(f"The service's answer is not as declared: {'; '.join(problems)}")
    text = value if isinstance(value, str) else json.encode(value).decode()
    return ToolResult(content=(TextContent(text),), structured_content=value)


def _warn(tool: str, why: str) -> None:
    """Without what the service said: a log is not the place for it."""
    log.warning(
        "an answer is not as its document says",
        extra={"fields": {"tool": tool, "why": why.partition(": ")[0]}},
    )


def excerpt(answer: Answer) -> str:
    """The beginning of an answer, on one line, for a person or model to read; nothing if
    it is binary or empty."""
    text = " ".join(answer.body[: 4 * _EXCERPT_CHARS].decode("utf-8", "replace").split())
    if not text or not text.isprintable():
        return ""
    return f": {text[:_EXCERPT_CHARS]}{'…' if len(text) > _EXCERPT_CHARS else ''}"


def _again(answer: Answer) -> str:
    """When to try again, if the service says that in seconds."""
    asked = (answer.retry_after or "").strip()
    if answer.status not in (429, 503) or not asked.isascii() or not asked.isdecimal():
        return ""
    return f"; try again in {asked[:9]} s"


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
