"""The questions of a task as forms of a page, and the response in a form that was posted.

A form of a question has flat fields (`replay.questions.form_schema`). A question of another kind
takes its response as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from roundgate import json
from roundgate.backends.policy import is_approval
from roundgate.errors import ParseError
from roundgate.protocol import Schema

FIELD: Final = "field."
"""The prefix of the names of a question's fields in a form."""
ACTIONS: Final = ("accept", "decline", "cancel")


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a question."""

    name: str
    label: str
    hint: str
    kind: str
    """`text`, `number`, `boolean`, `choice` or `choices`."""
    is_required: bool
    value: Any = None
    choices: Sequence[tuple[str, str]] = ()
    """The values with their labels."""


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """An outstanding question of a task."""

    key: str
    method: str
    message: str
    fields: Sequence[Field]
    url: str | None
    schema: Mapping[str, Any] | None
    """The schema of a form's content; `None` for another kind of question."""
    is_approval: bool
    request: Mapping[str, Any]
    """The question on the wire."""

    @property
    def is_elicitation(self) -> bool:
        """Return whether a response accepts, declines or cancels."""
        return self.method == "elicitation/create"


def question_from_request(key: str, data: bytes) -> OpenQuestion:
    """Return a question as the store keeps it."""
    request = json.decode(data)
    params = request.get("params") or {}
    schema = params.get("requestedSchema")
    return OpenQuestion(
        key=key,
        method=str(request.get("method")),
        message=str(params.get("message", "")),
        fields=_fields(schema) if isinstance(schema, Mapping) else (),
        url=str(params["url"]) if "url" in params else None,
        schema=schema if isinstance(schema, Mapping) else None,
        is_approval=is_approval(request),
        request=request,
    )


def _fields(schema: Mapping[str, Any]) -> list[Field]:
    required = schema.get("required") or ()
    return [
        _field(name, field, is_required=name in required)
        for name, field in (schema.get("properties") or {}).items()
        if isinstance(field, Mapping)
    ]


def _field(name: str, schema: Mapping[str, Any], *, is_required: bool) -> Field:
    kind, choices = "text", _choices(schema)
    if schema.get("type") == "array":
        kind, choices = "choices", _choices(schema.get("items") or {})
    elif choices:
        kind = "choice"
    elif schema.get("type") in ("number", "integer"):
        kind = "number"
    elif schema.get("type") == "boolean":
        kind = "boolean"
    return Field(
        name,
        str(schema.get("title") or name),
        str(schema.get("description") or ""),
        kind,
        is_required,
        schema.get("default"),
        choices,
    )


def _choices(schema: Mapping[str, Any]) -> list[tuple[str, str]]:
    if values := schema.get("enum"):
        names = schema.get("enumNames") or values
        return [(str(value), str(name)) for value, name in zip(values, names, strict=False)]
    options = schema.get("oneOf") or schema.get("anyOf") or ()
    return [(str(option["const"]), str(option.get("title", option["const"]))) for option in options]


def response_from_form(question: OpenQuestion, form: Mapping[str, Sequence[str]]) -> Any:
    """Return the `InputResponse` in a form that was posted.

    Raises:
        ValueError: the form does not fit the question; the message is for the operator.
    """
    if not question.is_elicitation:
        try:
            return json.decode((form.get("response") or [""])[0].encode())
        except (ParseError, UnicodeEncodeError):
            raise ValueError("The response must be JSON") from None
    action = (form.get("action") or [""])[0]
    if action not in ACTIONS:
        raise ValueError("Choose whether to accept, decline or cancel")
    if action != "accept" or question.schema is None:
        return {"action": action}
    content = {
        field.name: value
        for field in question.fields
        if (value := _value(field, form.get(FIELD + field.name, ()))) is not None
    }
    if problems := Schema.compile(question.schema).problems(content, "answer"):
        raise ValueError("The answer does not fit the question: " + "; ".join(problems))
    return {"action": action, "content": content}


def _value(field: Field, texts: Sequence[str]) -> Any:
    """Return the value of a field; `None` for an empty field."""
    if field.kind == "boolean":
        return bool(texts)
    if field.kind == "choices":
        return list(texts) or ([] if field.is_required else None)
    text = texts[0] if texts else ""
    if text == "":
        return None
    if field.kind != "number":
        return text
    try:
        return float(text) if any(mark in text for mark in ".eE") else int(text)
    except ValueError:
        raise ValueError(f"{field.label} must be a number") from None
