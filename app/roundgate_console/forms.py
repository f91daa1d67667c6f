"""Forms of pages, for the arguments of tools and for the answers to questions.

In a page, a question has the number of its place, because its key may be any text. The value of a
choice is its JSON text.
"""

from __future__ import annotations

import json as standard_json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from roundgate import json
from roundgate.client.questions import Kind, Question
from roundgate.errors import BadAnswer, ParseError
from roundgate.protocol.forms import Field, fields_of

Posted = Mapping[str, Sequence[str]]
"""The fields of a posted form, each with its values."""

_ANSWER: Final = "answer/"
_ACTION: Final = "action/"
_ACTIONS: Final = frozenset({"accept", "decline", "cancel"})
_INPUTS: Final = {"date": "date", "email": "email", "uri": "url", "time": "time"}
"""The types of inputs for formats of strings; others are texts."""


@dataclass(frozen=True, slots=True)
class Input:
    """A field of a page."""

    name: str
    field: Field
    values: Sequence[str] = ()
    """The current values: a text, or the chosen options."""
    problem: str = ""

    @property
    def value(self) -> str:
        """The current value of a field with one value."""
        return self.values[0] if self.values else ""

    @property
    def type(self) -> str:
        """The type of the input of a text."""
        if self.field.is_secret:
            return "password"
        return _INPUTS.get(self.field.format, "text") if self.field.type == "string" else "text"

    @property
    def options(self) -> list[tuple[str, str]]:
        """The choices: each value as JSON, and its label."""
        return [(_text(value), label) for value, label in self.field.options]


@dataclass(frozen=True, slots=True)
class PageForm:
    """A form for the members of an object."""

    fields: Sequence[Input]
    is_whole: bool
    """Whether the fields cover the schema; otherwise the value can be written as JSON only."""


@dataclass(frozen=True, slots=True)
class PostedForm:
    """A posted form as a JSON object."""

    value: dict[str, Any]
    problems: Mapping[str, str] = field(default_factory=dict)
    """The problem of each input that is not a JSON value of its type, by the input's name."""


def make_form(
    schema: Mapping[str, Any],
    prefix: str = "",
    posted: Posted | None = None,
    problems: Mapping[str, str] | None = None,
) -> PageForm:
    """Return the form of an object's schema.

    Args:
        schema: the JSON Schema of the object.
        prefix: the text before the names of inputs.
        posted: the values that were entered; the schema's defaults if the form is new.
        problems: the problem of each input.
    """
    fields = [
        Input(
            name := f"{prefix}{each.name}",
            each,
            _values(each, None if posted is None else posted.get(name, ())),
            (problems or {}).get(name, ""),
        )
        for each in fields_of(schema)
    ]
    keys = ("anyOf", "oneOf", "allOf", "$ref", "if", "not", "patternProperties")
    is_open = schema.get("additionalProperties") not in (None, False) or (
        not fields and schema.get("additionalProperties") is not False
    )
    return PageForm(fields, not is_open and not any(key in schema for key in keys))


def read_form(schema: Mapping[str, Any], posted: Posted, prefix: str = "") -> PostedForm:
    """Return the JSON object in a posted form. Empty fields that are not required are omitted."""
    value: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for each in fields_of(schema):
        entered = posted.get(f"{prefix}{each.name}", ())
        try:
            if each.kind == "choices":
                if entered or each.is_required:
                    value[each.name] = [_value(each, text) for text in entered]
            elif (text := entered[0] if entered else "") or (
                each.is_required and each.kind == "text" and each.type == "string"
            ):
                value[each.name] = _value(each, text)
        except ValueError as error:
            problems[f"{prefix}{each.name}"] = str(error)
    return PostedForm(value, problems)


def read_json(text: str) -> dict[str, Any]:
    """Return the JSON object in a text; an empty text is an empty object.

    Raises:
        ValueError: the text is not a JSON object; the message is for the person who wrote it.
    """
    try:
        value = json.decode(text.encode("utf-8", "replace")) if text.strip() else {}
    except ParseError as error:
        raise ValueError(str(error)) from None
    if not isinstance(value, dict):
        raise ValueError("must be a JSON object: {…}")
    return value


def _values(each: Field, posted: Sequence[str] | None) -> Sequence[str]:
    """Return the values that were entered, or the default in a new form. A page never shows a secret
    again."""
    if each.is_secret:
        return ()
    if posted is not None:
        return posted
    if each.default is None:
        return ()
    if each.kind == "choices":
        return [_text(value) for value in each.default] if isinstance(each.default, list) else ()
    return [str(each.default) if each.kind == "text" else _text(each.default)]


def _value(each: Field, text: str) -> Any:
    """Return the value of a text. Raise ValueError if the field has no such value."""
    if not each.options:
        return each.value(text)
    if all(text != _text(option) for option, _ in each.options):
        raise ValueError("must be one of the choices")
    return json.decode(text.encode())


def _text(value: Any) -> str:
    """Return a JSON value as text."""
    return standard_json.dumps(value, ensure_ascii=True)


@dataclass(frozen=True, slots=True)
class AskedForm:
    """A question with its form."""

    question: Question
    form: PageForm
    action_name: str
    """The name of the input that accepts, declines or cancels."""
    action: str
    """The chosen action."""

    @property
    def is_page(self) -> bool:
        """Return whether the question is answered on a page of a service."""
        return self.question.kind is Kind.URL


def questions_of(requests: Mapping[str, Any]) -> list[Question]:
    """Return the questions in `inputRequests`.

    Raises:
        BadAnswer: a request is not a question that people can answer in a page.
    """
    questions = [Question.read(key, request) for key, request in requests.items()]
    if any(question.kind not in (Kind.FORM, Kind.URL) for question in questions):
        raise BadAnswer("The console answers forms and pages only")
    return questions


def asked(
    questions: Sequence[Question],
    posted: Posted | None = None,
    problems: Mapping[str, str] | None = None,
) -> list[AskedForm]:
    """Return questions with their forms, as they were filled in."""
    return [
        AskedForm(
            question,
            make_form(question.schema, f"{_ANSWER}{number}/", posted, problems),
            f"{_ACTION}{number}",
            (posted or {}).get(f"{_ACTION}{number}", ["accept"])[0],
        )
        for number, question in enumerate(questions)
    ]


def read_answers(questions: Sequence[Question], posted: Posted) -> PostedForm:
    """Return the answers in a posted form as `inputResponses`."""
    responses, problems = dict[str, Any](), dict[str, str]()
    for number, question in enumerate(questions):
        action = posted.get(f"{_ACTION}{number}", [""])[0]
        response: dict[str, Any] = {"action": action if action in _ACTIONS else "cancel"}
        if action == "accept" and question.kind is Kind.FORM:
            read = read_form(question.schema, posted, f"{_ANSWER}{number}/")
            response["content"] = read.value
            problems |= read.problems
        responses[question.key] = response
    return PostedForm(responses, problems)
