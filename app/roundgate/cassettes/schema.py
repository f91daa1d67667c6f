"""The JSON Schema of cassettes: editors complete and check with it while one types."""

from __future__ import annotations

from typing import Any, Final

from roundgate.cassettes.document import ENDS
from roundgate.cassettes.model import ENVELOPE, VERSION

_TEXT: Final = {"type": "string"}
_NAMES: Final = {"type": "object", "additionalProperties": _TEXT}
_MESSAGE: Final[dict[str, Any]] = {
    "id": {
        "type": ["string", "integer", "null"],
        "description": "Only where it is not that of the request.",
    },
    "method": {**_TEXT, "description": "A request, or a notification."},
    "params": True,
    "result": True,
    "error": True,
    "message": {"description": "A message that is none as JSON-RPC has it, or a batch."},
}
_AFTER: Final = {
    "type": "integer",
    "minimum": 2,
    "description": "The number of the later interaction that had begun when this came.",
}


def _object(description: str, properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "description": description,
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _list(items: Any, description: str) -> dict[str, Any]:
    return {"type": "array", "items": items, "description": description}


_RULE: Final = _object(
    "Values that differ from run to run and stand as ${name:1}, numbered by first appearance.",
    {
        "name": {**_TEXT, "pattern": "^[A-Za-z0-9_-]+$"},
        "members": _list(_TEXT, "Members of objects whose values these are."),
        "headers": _list(_TEXT, "Headers whose values these are."),
        "pattern": {**_TEXT, "maxLength": 200, "description": "What they look like in any text."},
        "numbered": {"type": "boolean", "description": "Whether one is told from another."},
    },
    "name",
)
_REQUEST: Final = _object(
    "What the client sent.",
    {
        "http": {"enum": ["POST", "GET", "DELETE"]},
        "headers": {**_NAMES, "description": "Headers that do not follow from the rest."},
        "own_envelope": {
            "type": "boolean",
            "description": "Whether _meta is in params as it was, instead of what `client` says.",
        },
        "text": {**_TEXT, "description": "A body that is no JSON."},
        **_MESSAGE,
    },
)
_EVENT: Final = _object(
    "One event of a stream.",
    {
        "after": _AFTER,
        "event_id": _TEXT,
        "retry_ms": {"type": "integer", "minimum": 0},
        **_MESSAGE,
    },
)
_RESPONSE: Final = _object(
    "What came back: a message, a stream of events, or text.",
    {
        "status": {"type": "integer", "minimum": 200, "maximum": 599},
        "headers": _NAMES,
        "after": _AFTER,
        "text": {**_TEXT, "description": "A body that is no JSON."},
        "events": _list(_EVENT, "The events of a stream, in order."),
        "end": {"enum": list(ENDS), "description": "Who ended it."},
        **_MESSAGE,
    },
)
_PATHS: Final = _list(_TEXT, "Paths such as result.content[0].text, or the name of a member.")

SCHEMA: Final = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Roundgate cassette",
    **_object(
        "A recorded conversation with an MCP server.",
        {
            "cassette": {"const": VERSION, "description": "The version of this format."},
            "rules": _list(_RULE, "What is normalised."),
            "ignore": {**_PATHS, "description": "Paths that are not compared."},
            "redact": {**_PATHS, "description": "Paths whose values were taken out."},
            "client": {
                "type": "object",
                "description": f"What each request says of its client: {', '.join(ENVELOPE)}.",
            },
            "interactions": _list(
                _object(
                    "One request with its response.",
                    {"request": _REQUEST, "response": _RESPONSE},
                    "request",
                ),
                "The conversation, in the order in which its requests began.",
            ),
        },
        "cassette",
        "interactions",
    ),
}
