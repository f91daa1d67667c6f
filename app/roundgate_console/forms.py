"""Forms made from JSON Schemas, for the arguments of tools and for the answers to questions.

In a page, a question has the number of its place, because its key may be any text. A property with
a simple type becomes one field; any other property is written as JSON. The gateway validates the
values against the schema; a form only converts texts to JSON values.

    {"type": "string"}                       a text              {"enum": […]}, {"oneOf": [{"const": …}]}  a choice
    {"type": "integer"}, {"type": "number"}  a number            {"type": "array", "items": {"enum": […]}}  check boxes
    {"type": "boolean"}                      a choice            anything else                              JSON
"""

from __future__ import annotations

import json as standard_json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from roundgate import json
from roundgate.client.questions import Kind, Question
from roundgate.errors import BadAnswer, ParseError

Posted = Mapping[str, Sequence[str]]
"""The fields of a posted form, each with its values."""

_ANSWER: Final = "answer/"
_ACTION: Final = "action/"
_ACTIONS: Final = frozenset({"accept", "decline", "cancel"})
MAX_REFERENCES: Final = 8
"""The limit on references that are followed from one property; a schema can refer to itself."""
_INPUTS: Final = {
    "date": "date",
    "date-time": "text",
    "email": "email",
    "password": "password",
    "uri": "url",
    "time": "time",
}
"""The types of inputs for formats of strings."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a form."""

    name: str
    """The name of the input."""
    member: str
    """The name of the member of the JSON object."""
    label: str
    description: str
    kind: str
    """`text`, `choice`, `checks` or `json`."""
    type: str
    """The type of the property: `string`, `number`, `integer`, or another."""
    is_required: bool
    input: str = "text"
    """The type of the input, for `text`."""
    options: Sequence[tuple[str, str]] = ()
    """The choices: each value as JSON, and its label."""
    values: Sequence[str] = ()
    """The current values: a text, or the chosen options."""
    problem: str = ""

    @property
    def value(self) -> str:
        """The current value of a field with one value."""
        return self.values[0] if self.values else ""


@dataclass(frozen=True, slots=True)
class Form:
    """A form for the members of an object."""

    fields: Sequence[Field]
    is_whole: bool
    """Whether the fields cover the schema; otherwise the value can be written as JSON only."""


@dataclass(frozen=True, slots=True)
class Read:
    """A posted form as a JSON object."""

    value: dict[str, Any]
    problems: Mapping[str, str] = field(default_factory=dict)
    """The problem of each input that is not a JSON value of its type, by the input's name."""


def make_form(
    schema: Mapping[str, Any],
    prefix: str = "",
    posted: Posted | None = None,
    problems: Mapping[str, str] | None = None,
) -> Form:
    """Return the form of an object's schema.

    Args:
        schema: the JSON Schema of the object.
        prefix: the text before the names of inputs.
        posted: the values that were entered; the schema's defaults if the form is new.
        problems: the problem of each input.
    """
    fields = [
        _with_value(each, rules, posted, problems or {}) for each, rules in _fields(schema, prefix)
    ]
    keys = ("anyOf", "oneOf", "allOf", "$ref", "if", "not", "patternProperties")
    is_open = schema.get("additionalProperties") not in (None, False) or (
        not fields and schema.get("additionalProperties") is not False
    )
    return Form(fields, not is_open and not any(key in schema for key in keys))


def read_form(schema: Mapping[str, Any], posted: Posted, prefix: str = "") -> Read:
    """Return the JSON object in a posted form. Empty fields that are not required are omitted."""
    value: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for each, _ in _fields(schema, prefix):
        entered = posted.get(each.name, ())
        try:
            if each.kind == "checks":
                if entered or each.is_required:
                    value[each.member] = [_chosen(each, text) for text in entered]
            elif (text := entered[0] if entered else "") or (
                each.is_required and each.kind == "text" and each.type == "string"
            ):
                value[each.member] = _value(each, text)
        except (ParseError, ValueError) as error:
            problems[each.name] = str(error)
    return Read(value, problems)


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


def _fields(schema: Mapping[str, Any], prefix: str) -> Iterator[tuple[Field, Mapping[str, Any]]]:
    """Yield the field of each property, with the property's schema."""
    properties, required = schema.get("properties"), schema.get("required")
    names = required if isinstance(required, list) else []
    for name, rules in properties.items() if isinstance(properties, dict) else ():
        rules = _resolved(rules, schema)
        yield _field(str(name), rules, f"{prefix}{name}", name in names), rules


def _resolved(rules: Any, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a property's schema, with a reference followed and an alternative `null` removed."""
    for _ in range(MAX_REFERENCES):
        if not isinstance(rules, dict):
            return {}
        kept = {key: rules[key] for key in ("title", "description", "default") if key in rules}
        alternatives = rules.get("anyOf") or rules.get("oneOf")
        others = (
            [each for each in alternatives if each != {"type": "null"}]
            if isinstance(alternatives, list)
            else []
        )
        if isinstance(rules.get("$ref"), str):
            try:
                rules = json.at_reference(schema, rules["$ref"])
            except (LookupError, TypeError):
                return kept
            # pydantic's title of an enum or a model is the name of its class
            rules = {**rules, "title": None, **kept} if isinstance(rules, dict) else kept
        elif len(others) == 1 and isinstance(others[0], dict):
            rules = {**others[0], **kept}
        else:
            return rules
    return {}


def _field(name: str, rules: Mapping[str, Any], input_name: str, is_required: bool) -> Field:
    kind = rules.get("type")
    label, description = _words(name, rules)
    if isinstance(kind, list):
        others = [each for each in kind if each != "null"]
        kind = others[0] if len(others) == 1 else None
    make = partial(
        Field,
        name=input_name,
        member=name,
        label=label,
        description=description,
        type=str(kind),
        is_required=is_required,
    )
    if kind == "boolean":
        return make(kind="choice", options=(("true", "Yes"), ("false", "No")))
    if options := _options(rules):
        return make(kind="choice", options=options)
    items = rules.get("items")
    if kind == "array" and isinstance(items, dict) and (options := _options(items)):
        return make(kind="checks", options=options)
    if kind in ("integer", "number"):
        return make(kind="text")
    if kind == "string":
        format_ = "password" if rules.get("writeOnly") is True else str(rules.get("format"))
        return make(kind="text", input=_INPUTS.get(format_, "text"))
    return make(kind="json")


def _words(name: str, rules: Mapping[str, Any]) -> tuple[str, str]:
    """Return the label of a field, and the text below it. A choice without a title has its
    description as the label."""
    title, description = (
        text if isinstance(text := rules.get(key), str) else "" for key in ("title", "description")
    )
    if not title and description and _options(rules):
        return description, ""
    return title or name, description


def _options(rules: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Return the choices of an enumeration, each with its label."""
    titled = rules.get("oneOf") or rules.get("anyOf")
    if isinstance(titled, list) and all(
        isinstance(each, dict) and "const" in each for each in titled
    ):
        return [(_text(each["const"]), str(each.get("title", each["const"]))) for each in titled]
    values, names = rules.get("enum"), rules.get("enumNames")
    if not isinstance(values, list):
        return ()
    labels = names if isinstance(names, list) and len(names) == len(values) else values
    return [
        (_text(value), label if isinstance(label, str) else _text(label))
        for value, label in zip(values, labels, strict=True)
    ]


def _with_value(
    each: Field, rules: Mapping[str, Any], posted: Posted | None, problems: Mapping[str, str]
) -> Field:
    """Return a field with the entered values, or with the default of its schema."""
    values: Sequence[str]
    if each.input == "password":
        values = ()  # a page never shows a secret again
    elif posted is not None:
        values = posted.get(each.name, ())
    elif "default" not in rules or rules["default"] is None:
        values = ()
    elif each.kind == "checks":
        default = rules["default"]
        values = [_text(value) for value in default] if isinstance(default, list) else ()
    elif each.kind == "text":
        values = [str(rules["default"])]
    else:
        values = [_text(rules["default"])]
    return replace(each, values=values, problem=problems.get(each.name, ""))


def _value(each: Field, text: str) -> Any:
    """Return the JSON value of a text.

    Raises:
        ParseError, ValueError: the text has no value of the field's type.
    """
    if each.kind == "choice":
        return _chosen(each, text)
    if each.kind == "json":
        return json.decode(text.encode("utf-8", "replace"))
    if each.type not in ("integer", "number"):
        return text
    try:
        number = json.decode(text.strip().encode("utf-8", "replace"))
    except ParseError:
        number = None
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ValueError("must be a number")
    return number


def _chosen(each: Field, text: str) -> Any:
    if all(text != option for option, _ in each.options):
        raise ValueError("must be one of the choices")
    return json.decode(text.encode())


def _text(value: Any) -> str:
    """Return a JSON value as text."""
    return standard_json.dumps(value, ensure_ascii=True)


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with its form."""

    question: Question
    form: Form
    action_name: str
    """The name of the input that accepts, declines or cancels."""
    action: str
    """The chosen action."""

    @property
    def is_page(self) -> bool:
        """Whether the question is answered on a page of a service."""
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
) -> list[Asked]:
    """Return questions with their forms, as they were filled in."""
    return [
        Asked(
            question,
            make_form(question.schema, f"{_ANSWER}{number}/", posted, problems),
            f"{_ACTION}{number}",
            (posted or {}).get(f"{_ACTION}{number}", ["accept"])[0],
        )
        for number, question in enumerate(questions)
    ]


def read_answers(questions: Sequence[Question], posted: Posted) -> Read:
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
    return Read(responses, problems)
