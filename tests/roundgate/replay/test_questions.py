"""How questions look on the wire, judged by the revision's own schema, and what
they take for an answer."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import uuid
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema_rs
import pydantic
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from mcp_types import _v2026_07_28 as official
from pydantic import BaseModel, Field

from roundgate.errors import Declined
from roundgate.json import decode, encode
from roundgate.protocol.content import ImageContent, PromptMessage
from roundgate.replay.questions import (
    Form,
    Question,
    Raw,
    Root,
    Roots,
    Sample,
    UnfitAnswer,
    Url,
    question_digest,
)
from tests.support import json_values
from tests.support.replay import Name
from tests.support.rounds import accept, sampled

DEFINITIONS: dict[str, Any] = json.loads(
    Path(__file__).with_name("input_requests.schema.json").read_text("utf-8")
)
FIELDS = (
    *(
        "String",
        "Number",
        "Boolean",
        "UntitledSingleSelectEnum",
        "TitledSingleSelectEnum",
        "LegacyTitledEnum",
    ),
    *("UntitledMultiSelectEnum", "TitledMultiSelectEnum"),
)


def validator(name: str) -> jsonschema_rs.Validator:
    """A definition of the revision; those of a form's fields closed, so that a keyword they do not have shows."""
    closed = {
        f"{field}Schema": {**DEFINITIONS["$defs"][f"{field}Schema"], "additionalProperties": False}
        for field in FIELDS
    }
    return jsonschema_rs.validator_for(
        {"$defs": {**DEFINITIONS["$defs"], **closed}, "$ref": f"#/$defs/{name}"}
    )


INPUT_REQUEST, INPUT_RESPONSE = validator("InputRequest"), validator("InputResponse")


def on_the_wire(question: Question) -> dict[str, Any]:
    """The request as a client parses it: valid by the schema and by the official model."""
    wire = decode(encode(question.to_wire()))
    assert [error.message for error in INPUT_REQUEST.iter_errors(wire)] == []
    official.InputRequiredResult.model_validate(
        {"resultType": "input_required", "inputRequests": {"q": wire}}
    )
    return wire  # type: ignore[no-any-return]


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1


class Inner(BaseModel):
    x: int


def model(kind: Any, **more: Any) -> type[BaseModel]:
    return pydantic.create_model("Asked", v=(kind, Field(**more)))


def field_of(kind: Any, **more: Any) -> dict[str, Any]:
    schema: dict[str, Any] = on_the_wire(Form("?", model(kind, **more)))["params"][
        "requestedSchema"
    ]
    field: dict[str, Any] = schema["properties"]["v"]
    field.pop("title", None)
    return field | {"required": "v" in schema.get("required", ())}


COLORS = {"type": "string", "enum": ["red", "blue"]}
SEVERAL = {"type": "array", "items": COLORS}
TITLED = [{"const": "r", "title": "Red"}, {"const": "b", "title": "Blue"}]
PERMITTED: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "str": (str, {}, {"type": "string"}),
    "int": (int, {}, {"type": "integer"}),
    "float": (float, {}, {"type": "number"}),
    "bool": (bool, {}, {"type": "boolean"}),
    "described": (
        str,
        {"description": "Full name"},
        {"type": "string", "description": "Full name"},
    ),
    "bounded str": (
        str,
        {"min_length": 1, "max_length": 9},
        {"type": "string", "minLength": 1, "maxLength": 9},
    ),
    "bounded int": (int, {"ge": 1, "le": 9}, {"type": "integer", "minimum": 1, "maximum": 9}),
    "bounded float": (float, {"ge": 0.5}, {"type": "number", "minimum": 0.5}),
    "what clients cannot show": (str, {"pattern": "^a+$"}, {"type": "string"}),
    "exclusive bound": (int, {"gt": 0}, {"type": "integer"}),
    "Annotated": (Annotated[int, Field(ge=3)], {}, {"type": "integer", "minimum": 3}),
    "optional str": (str | None, {"default": None}, {"type": "string"}),
    "optional bounded": (
        Annotated[int, Field(le=3)] | None,
        {"default": None},
        {"type": "integer", "maximum": 3},
    ),
    "optional enum": (Color | None, {"default": None}, COLORS),
    "optional list": (list[Color] | None, {"default": None}, SEVERAL),
    "str default": (str, {"default": "x"}, {"type": "string", "default": "x"}),
    "int default": (int, {"default": 3}, {"type": "integer", "default": 3}),
    "bool default": (bool, {"default": False}, {"type": "boolean", "default": False}),
    "enum default": (Color, {"default": Color.RED}, {**COLORS, "default": "red"}),
    "list default": (list[Color], {"default": [Color.RED]}, {**SEVERAL, "default": ["red"]}),
    "enum": (Color, {}, COLORS),
    "Literal": (Literal["red", "blue"], {}, COLORS),
    "Literal of one": (Literal["red"], {}, {"type": "string", "enum": ["red"]}),
    "Literal of ints": (Literal[1, 2], {}, {"type": "integer"}),
    "IntEnum": (Size, {}, {"type": "integer"}),
    "list of Literal": (list[Literal["red", "blue"]], {}, SEVERAL),
    "list of one": (
        list[Literal["red"]],
        {},
        {"type": "array", "items": {"type": "string", "enum": ["red"]}},
    ),
    "set of enum": (
        set[Color],
        {"min_length": 1, "max_length": 2},
        {**SEVERAL, "minItems": 1, "maxItems": 2},
    ),
    "titled": (str, {"json_schema_extra": {"oneOf": TITLED}}, {"type": "string", "oneOf": TITLED}),
    "date": (datetime.date, {}, {"type": "string", "format": "date"}),
    "datetime": (datetime.datetime, {}, {"type": "string", "format": "date-time"}),
    "url": (pydantic.AnyUrl, {}, {"type": "string", "format": "uri", "minLength": 1}),
    "email": (
        str,
        {"json_schema_extra": {"format": "email"}},
        {"type": "string", "format": "email"},
    ),
}


@pytest.mark.parametrize("name", PERMITTED)
def test_a_permitted_field_has_exactly_what_clients_can_show_of_it(name: str) -> None:
    kind, more, expected = PERMITTED[name]
    assert field_of(kind, **more) == expected | {"required": "default" not in more}


REFUSED: dict[str, tuple[Any, str]] = {
    "a model": (Inner, "ask several questions"),
    "an optional model": (Inner | None, "ask several questions"),
    "a list of models": (list[Inner], "fixed strings"),
    "a list of anything": (list[str], "fixed strings"),
    "a list of ints": (list[Literal[1, 2]], "fixed strings"),
    "a tuple": (tuple[str, ...], "fixed strings"),
    "a dict": (dict[str, str], "ask several questions"),
    "a union": (int | str, "ask several questions"),
    "a mixed Literal": (Literal["a", 1], "ask several questions"),
    "anything": (Any, "ask several questions"),
    "a Decimal": (decimal.Decimal, "ask several questions"),
    "a secret": (pydantic.SecretStr, "ctx.elicit_url"),
    "an optional secret": (pydantic.SecretStr | None, "ctx.elicit_url"),
    "a UUID": (uuid.UUID, "email, uri, date, date-time, not 'uuid'"),
    "a time": (datetime.time, "not 'time'"),
    "bytes": (bytes, "not 'binary'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_field_that_no_form_has_is_refused_by_name_with_what_to_do(name: str) -> None:
    kind, remedy = REFUSED[name]
    with pytest.raises(ValueError, match=r"^field 'v': ") as caught:
        Form("?", model(kind))
    assert remedy in str(caught.value)


class Tree(BaseModel):
    children: list[Tree]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"type": "array"}, "flat object"),
        ({"type": "object", "properties": []}, "flat object"),
        (pydantic.RootModel[list[str]], "flat object"),
        (Tree, "flat object"),
        ({"type": "object", "properties": {"v": True}}, "field 'v'"),
        ({"type": "object", "properties": {"v": {"type": ["string", "integer"]}}}, "field 'v'"),
        ({"type": "object", "properties": {"v": {"type": "array", "items": True}}}, "field 'v'"),
        ({"type": "object", "properties": {"v": {"type": "object"}}}, "field 'v'"),
        ({"type": "object", "properties": {"v": {"type": "null"}}}, "field 'v'"),
        ({"type": "object", "properties": {"v": {"$ref": "#/$defs/nowhere"}}}, "field 'v'"),
        (
            {"type": "object", "properties": {"v": {"type": "string", "writeOnly": True}}},
            "ctx.elicit_url",
        ),
        (
            {"type": "object", "properties": {"v": {"type": "string", "format": "password"}}},
            "ctx.elicit_url",
        ),
        ({"type": "object", "properties": {}, "required": ["v"]}, "requires v"),
        (
            {"type": "object", "properties": {"v": {"type": "string", "minLength": "three"}}},
            "not a usable JSON Schema",
        ),
    ],
    ids=[
        *(
            "array",
            "properties is a list",
            "root model",
            "recursive model",
            "true",
            "two types",
            "items true",
        ),
        *(
            "object",
            "null",
            "dangling $ref",
            "writeOnly",
            "password",
            "requires what it has not",
            "no schema",
        ),
    ],
)
def test_so_is_a_schema_that_is_no_form(fields: Any, said: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        Form("?", fields)
    assert said in str(caught.value)


SCHEMA_FIELDS = {
    "a nullable": ({"type": ["string", "null"]}, {"type": "string"}),
    "untyped choices": ({"type": "array", "items": {"enum": COLORS["enum"]}}, SEVERAL),
    "titled choices": (
        {"type": "array", "items": {"anyOf": TITLED}},
        {"type": "array", "items": {"anyOf": TITLED}},
    ),
    "a tool's annotations": ({"type": "string", "x-mcp-header": "Region"}, {"type": "string"}),
}


@pytest.mark.parametrize("name", SCHEMA_FIELDS)
def test_a_field_of_a_json_schema_is_shown_as_far_as_clients_can(name: str) -> None:
    given_, shown = SCHEMA_FIELDS[name]
    form = Form(
        "?",
        {"type": "object", "properties": {"v": given_}, "additionalProperties": False, "$defs": {}},
    )
    assert on_the_wire(form)["params"]["requestedSchema"] == {
        "type": "object",
        "properties": {"v": shown},
    }


def test_a_form_without_fields_only_asks_for_a_yes() -> None:
    form = Form("Go on?", {"type": "object"})
    assert on_the_wire(form)["params"]["requestedSchema"] == {"type": "object", "properties": {}}
    assert form.read("go", {"action": "accept"}).get() == {}


class Order(BaseModel):
    color: Color
    day: datetime.date
    several: list[Literal["a", "b"]] = []
    note: str | None = None


def test_an_accepted_form_is_the_model() -> None:
    response = accept(color="red", day="2026-07-28", several=["b"])
    assert INPUT_RESPONSE.is_valid(response)
    order = Form("?", Order).read("q", response).get()
    assert order == Order(color=Color.RED, day=datetime.date(2026, 7, 28), several=["b"])


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ({"color": "green", "day": "2026-07-28"}, "answer.color"),
        ({"color": "red", "day": "tomorrow"}, "day"),
        ({"color": "red", "day": "2026-07-28", "several": ["c"]}, "answer.several[0]"),
        ({"color": "red", "day": "2026-07-28", "note": 3}, "answer.note"),
        ({"color": "red"}, '"day" is a required property'),
    ],
    ids=["choice", "format", "choices", "optional", "missing"],
)
def test_a_form_that_is_filled_in_wrongly_names_the_place(content: Any, place: str) -> None:
    with pytest.raises(UnfitAnswer) as caught:
        Form("?", Order).read("q", accept(**content))
    assert place in str(caught.value)


WORDS = st.sampled_from(["accept", "decline", "cancel", "text", "user"])
INNER_KEYS = st.sampled_from(["type", "text", "uri", "name", "v"])
RESPONSES = st.dictionaries(
    st.sampled_from(["action", "content", "role", "roots", "model"]),
    WORDS | json_values.values(json_values.SCALARS | WORDS, INNER_KEYS),
)
QUESTIONS = [
    Form("?", Name),
    Url("?", "https://x.example/"),
    Sample("?", 1),
    Roots(),
    Raw({"method": "roots/list"}),
]


@given(st.sampled_from(QUESTIONS), RESPONSES | json_values.values())
def test_any_response_is_an_answer_or_a_bad_answer_and_nothing_else(
    question: Question, response: Any
) -> None:
    try:
        assert question.read("q", response).action in ("accept", "decline", "cancel")
    except UnfitAnswer as error:
        event(str(error)[:20])


def test_a_page_to_go_to_is_shown_with_its_message() -> None:
    wire = on_the_wire(Url("Sign in", "https://example.com/sign-in?x=1"))
    assert wire["params"] == {
        "mode": "url",
        "message": "Sign in",
        "url": "https://example.com/sign-in?x=1",
    }


NO_PAGES = {
    "example.com": "https",
    "/path": "https",
    "": "https",
    "mailto:a@b.c": "https",
    "javascript://example.com/%0aalert(1)": "https",
    "file://localhost/etc/passwd": "https",
    "vscode://example.com/x": "https",
    "ftp://example.com/x": "https",
    "data://text/html,x": "https",
    "http://example.com/": "https",
    "http://127.0.0.1.example.com/": "https",
    "http://[::2]/": "https",
    "https://": "host",
    "https:///path": "host",
    "http://[bad": "URL",
    "https://example.com:port/": "URL",
    "https://bank.example@evil.example/": "user name",
    "https://ex\u0430mple.com/": "percent-encode",
    "https://example.com/\u202egpj.exe": "percent-encode",
    "https://example.com/ x": "percent-encode",
    'https://example.com/"x': "percent-encode",
    "https://example.com/\\evil.example": "percent-encode",
}
"""What is no page that a user may be sent to, and what the error names."""


@pytest.mark.parametrize("url", NO_PAGES)
def test_a_user_is_sent_to_https_or_to_http_on_their_own_machine_and_nowhere_else(url: str) -> None:
    with pytest.raises(ValueError, match=NO_PAGES[url]) as refused:
        Url("Look", url)
    assert ascii(url)[1:-1] in str(refused.value)
    with pytest.raises(ValueError, match=NO_PAGES[url]):
        Raw(
            {
                "method": "elicitation/create",
                "params": {"mode": "url", "message": "Look", "url": url},
            }
        )


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com",
        "https://example.com:8443/a?b=c#d",
        "HTTPS://xn--bcher-kva.example/%C3%A9",
        "http://localhost:8000/x",
        "http://127.0.0.1/",
        "http://127.8.8.8:1/",
        "http://[::1]:3000/back",
    ],
)
def test_pages_of_https_and_of_ones_own_machine_are_shown(url: str) -> None:
    assert on_the_wire(Url("Look", url))["params"]["url"] == url
    assert Raw(Url("Look", url).to_wire()).to_wire()["params"]["url"] == url


def test_a_raw_request_whose_page_is_no_text_is_refused() -> None:
    with pytest.raises(ValueError, match="url"):
        Raw({"method": "elicitation/create", "params": {"mode": "url", "message": "Look"}})


TOOL = {
    "name": "search",
    "inputSchema": {"type": "object", "properties": {"q": {"type": "string"}}},
}


def test_sampling_with_everything_is_as_the_schema_has_it() -> None:
    question = Sample(
        [
            PromptMessage("user", "What is on it?"),
            PromptMessage("user", ImageContent(b"png", "image/png")),
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "1", "name": "search", "input": {"q": "x"}}],
            },
            {
                "role": "user",
                "content": {
                    "type": "tool_result",
                    "toolUseId": "1",
                    "content": [{"type": "text", "text": "y"}],
                },
            },
        ],
        max_tokens=100,
        system_prompt="Be brief",
        temperature=0.5,
        stop_sequences=("END",),
        model_preferences={"hints": [{"name": "small"}], "speedPriority": 0.9},
        tools=[TOOL],
        tool_choice={"mode": "required"},
    )
    params = on_the_wire(question)["params"]
    assert len(params) == 8
    assert question.requires == {"sampling": {"tools": {}}}


def test_sampling_with_little_says_no_more_than_that() -> None:
    question = Sample("Hi", 5)
    params = {
        "messages": [{"role": "user", "content": {"type": "text", "text": "Hi"}}],
        "maxTokens": 5,
    }
    assert on_the_wire(question) == {"method": "sampling/createMessage", "params": params}
    assert question.requires == {"sampling": {}}


USE = {"type": "tool_use", "id": "1", "name": "search", "input": {}}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"type": "text", "text": "hi"}, "hi"),
        ([{"type": "text", "text": "a"}, USE, {"type": "text", "text": "b"}], "ab"),
        (USE, ""),
        ([], ""),
    ],
    ids=["one block", "several", "a tool call", "none"],
)
def test_what_a_model_said_has_its_blocks_and_its_text(content: Any, text: str) -> None:
    response = {"role": "assistant", "content": content, "model": "parrot", "stopReason": "endTurn"}
    assert INPUT_RESPONSE.is_valid(response)
    said = Sample("?", 1).read("q", response).get()
    assert (said.text, said.role, said.model, said.stop_reason) == (
        text,
        "assistant",
        "parrot",
        "endTurn",
    )
    assert said.content == (content if isinstance(content, list) else [content])


@pytest.mark.parametrize(
    "change",
    [
        {"role": 1},
        {"model": None},
        {"content": "text"},
        {"content": [1]},
        {"content": {"type": "text"}},
        {"content": {}},
    ],
    ids=json.dumps,
)
def test_a_sampling_response_that_is_none_is_a_bad_answer(change: dict[str, Any]) -> None:
    with pytest.raises(UnfitAnswer):
        Sample("?", 1).read("q", sampled("hi") | change)


def test_roots_are_asked_for_and_read() -> None:
    assert on_the_wire(Roots()) == {"method": "roots/list"}
    response = {"roots": [{"uri": "file:///a", "name": "A"}, {"uri": "file:///b"}]}
    assert INPUT_RESPONSE.is_valid(response)
    assert Roots().read("q", response).get() == [Root("file:///a", "A"), Root("file:///b")]


@pytest.mark.parametrize(
    "response", [{}, {"roots": {}}, {"roots": [{}]}, {"roots": ["file:///a"]}], ids=json.dumps
)
def test_roots_without_uris_are_a_bad_answer(response: Any) -> None:
    with pytest.raises(UnfitAnswer):
        Roots().read("q", response)


@pytest.mark.parametrize(
    "question",
    [
        Form("Go?", Name),
        Url("Go?", "https://x.example/"),
        Sample("Go?", 5, tools=[TOOL]),
        Sample("Go?", 5),
        Roots(),
    ],
    ids=["form", "url", "sampling with tools", "sampling", "roots"],
)
def test_a_raw_request_needs_what_the_question_of_its_shape_needs(question: Question) -> None:
    raw = Raw(question.to_wire())
    assert raw.requires == question.requires
    assert raw.to_wire() == question.to_wire()
    assert question_digest("q", raw) == question_digest("q", question)


@pytest.mark.parametrize("action", ["decline", "cancel"])
@pytest.mark.parametrize(
    "question", [Form("?", Order), Url("?", "https://x.example/")], ids=["form", "url"]
)
def test_a_refusal_is_an_answer_without_a_value(question: Question, action: str) -> None:
    answer = question.read("who", {"action": action})
    assert (answer.accepted, answer.action, answer.value) == (False, action, None)
    with pytest.raises(Declined, match="'who'"):
        answer.get()
