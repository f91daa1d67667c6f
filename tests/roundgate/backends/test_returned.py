"""What Python handlers return, as tool results, prompt messages, resource
contents and completions."""

import datetime as dt
import enum
import inspect
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from roundgate import (
    AudioContent,
    BlobResourceContents,
    Completion,
    EmbeddedResource,
    Icon,
    ImageContent,
    PromptMessage,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolResult,
)
from roundgate.backends.signature import (
    ToolReturn,
    UnusableReturn,
    completion,
    prompt_messages,
    resource_contents,
)
from roundgate.json import encode
from tests.support.long import examples

PICTURE = ImageContent(b"\x89PNG", "image/png")
BLOCKS = [
    TextContent("words"),
    PICTURE,
    AudioContent(b"RIFF", "audio/wav"),
    ResourceLink("file:///a", "a"),
    EmbeddedResource(TextResourceContents("file:///a", "b")),
    EmbeddedResource(BlobResourceContents("file:///a", b"\x00")),
]


class Level(enum.IntEnum):
    LOW = 1


class Reading(BaseModel):
    degrees: float = Field(serialization_alias="deg")
    at: dt.datetime | None = None


@dataclass
class Point:
    x: int
    y: int = 0


class Pair(NamedTuple):
    left: int
    right: str


class Named(TypedDict):
    name: str


def wire(annotation: Any, value: Any, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    return ToolReturn.of(annotation, schema).result(value).to_wire()


@pytest.mark.parametrize(
    "annotation", [str, str | None, Any, inspect.Parameter.empty, Annotated[str, Field()]]
)
def test_a_string_is_text_and_nothing_else(annotation: Any) -> None:
    assert wire(annotation, "hi") == {"content": [{"type": "text", "text": "hi"}]}


def test_none_from_a_function_that_promises_nothing_is_no_content() -> None:
    assert ToolReturn.of(None, None).schema is None
    assert wire(None, None) == {"content": []}
    assert wire(str | None, None) == {"content": []}


@pytest.mark.parametrize(
    ("annotation", "value", "structured", "schema"),
    [
        (int, 5, 5, {"type": "integer"}),
        (bool, False, False, {"type": "boolean"}),
        (float, 3, 3.0, {"type": "number"}),
        (Optional[int], None, None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045
        (Level, Level.LOW, 1, {"enum": [1], "type": "integer", "title": "Level"}),
        (Literal["a"], "a", "a", {"const": "a", "type": "string"}),
        (dt.date, dt.date(2026, 7, 28), "2026-07-28", {"format": "date", "type": "string"}),
        (list[int], [1, 2], [1, 2], {"type": "array", "items": {"type": "integer"}}),
        (list[int], (1, 2), [1, 2], {"type": "array", "items": {"type": "integer"}}),
        (list[str], [], [], {"type": "array", "items": {"type": "string"}}),
        (Iterable[int], [1, 2], [1, 2], {"type": "array", "items": {"type": "integer"}}),
        (set[int], {7}, [7], {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}),
        (
            dict[str, float],
            {"a": 1},
            {"a": 1.0},
            {"type": "object", "additionalProperties": {"type": "number"}},
        ),
        (
            Mapping[str, int],
            {"a": 1},
            {"a": 1},
            {"type": "object", "additionalProperties": {"type": "integer"}},
        ),
        (dict, {}, {}, {"type": "object", "additionalProperties": True}),
    ],
)
def test_data_is_structured_content_with_its_schema_and_json_as_text(
    annotation: Any, value: Any, structured: Any, schema: dict[str, Any]
) -> None:
    returns = ToolReturn.of(annotation, None)
    found = returns.result(value).to_wire()
    assert returns.schema == schema
    assert found["structuredContent"] == structured
    assert type(found["structuredContent"]) is type(structured)
    assert [json.loads(block["text"]) for block in found["content"]] == [structured]


@pytest.mark.parametrize(
    ("annotation", "value", "structured"),
    [
        (Reading, Reading(degrees=1), {"deg": 1.0, "at": None}),
        (Reading, {"deg": 1.0}, {"deg": 1.0}),
        (list[Reading], [Reading(degrees=1)], [{"deg": 1.0, "at": None}]),
        (Point, Point(1), {"x": 1, "y": 0}),
        (Pair, Pair(1, "a"), [1, "a"]),
        (Named, {"name": "a"}, {"name": "a"}),
        (Decimal, Decimal("1.10"), "1.10"),
        (Reading | Point, Point(1), {"x": 1, "y": 0}),
    ],
)
def test_models_dataclasses_and_typed_dicts_are_structured(
    annotation: Any, value: Any, structured: Any
) -> None:
    assert ToolReturn.of(annotation, None).schema
    assert wire(annotation, value)["structuredContent"] == structured


@pytest.mark.parametrize(
    "value", [5, [1], {"a": {"b": [None]}}, {1, 2}, Point(1), Reading(degrees=1), Level.LOW]
)
def test_data_from_a_function_without_annotation_is_structured_too(value: Any) -> None:
    found = wire(Any, value)
    assert found["structuredContent"] == json.loads(found["content"][0]["text"])


@pytest.mark.parametrize("annotation", [Any, dict[str, Any], dict])
def test_values_inside_other_data_are_objects(annotation: Any) -> None:
    data = {"icon": Icon("https://h/a.png"), "all": [Icon("https://h/b.png", sizes=["1x1"])]}
    icon = {"mime_type": None, "sizes": None, "theme": None}
    assert wire(annotation, data)["structuredContent"] == {
        "icon": {"src": "https://h/a.png", **icon},
        "all": [{"src": "https://h/b.png", **icon, "sizes": ["1x1"]}],
    }


def test_a_function_whose_annotation_has_no_schema_still_answers() -> None:
    class Opaque: ...

    assert ToolReturn.of(Opaque, None).schema is None
    assert wire(Opaque, {"a": 1})["structuredContent"] == {"a": 1}
    assert wire(Iterator[int], iter([1, 2]))["structuredContent"] == [1, 2]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: type(block).__name__)
def test_a_block_or_a_list_of_blocks_and_strings_is_content_only(block: Any) -> None:
    assert wire(type(block), block) == {"content": [block.to_wire()]}
    text = {"type": "text", "text": "and"}
    assert (
        wire(Any, [block, "and"])
        == wire(Any, ("and", block)[::-1])
        == {"content": [block.to_wire(), text]}
    )


@pytest.mark.parametrize(
    "annotation",
    [
        ImageContent,
        ImageContent | None,
        list[ImageContent],
        list[TextContent | ImageContent],
        tuple[str, ImageContent],
        Sequence[str | ImageContent],
        list[Annotated[ImageContent, "x"]],
        ToolResult,
    ],
)
def test_an_annotation_that_promises_blocks_makes_no_output_schema(annotation: Any) -> None:
    assert ToolReturn.of(annotation, None).schema is None


def test_a_list_of_strings_is_data_because_no_block_is_in_it() -> None:
    assert wire(Any, ["a", "b"])["structuredContent"] == ["a", "b"]


def test_an_explicit_result_passes_as_it_is() -> None:
    result = ToolResult(["a", PICTURE], is_error=True, meta={"k": 1})
    assert wire(ToolResult, result) == {
        "content": [{"type": "text", "text": "a"}, PICTURE.to_wire()],
        "isError": True,
        "_meta": {"k": 1},
    }


@pytest.mark.parametrize(
    "content", ["hello", TextContent("hello"), ["hello"], (TextContent("hello"),)]
)
def test_the_content_of_an_explicit_result_may_be_one_text_or_block(content: Any) -> None:
    wire = ToolReturn.of(ToolResult, None).result(ToolResult(content)).to_wire()
    assert wire == {"content": [{"type": "text", "text": "hello"}]}


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (ToolResult(["x", 5]), "has int in its content"),  # type: ignore[list-item]
        (ToolResult([{"type": "text", "text": "x"}]), "has dict in its content"),  # type: ignore[list-item]
        (ToolResult(["x"], meta={"a": object()}), "cannot be written as JSON"),
        (ToolResult([ImageContent("aGk=", "image/png")]), "with data that is str, not bytes"),
        (AudioContent("aGk=", "audio/wav"), "with data that is str, not bytes"),
    ],
)
def test_content_that_cannot_be_sent_is_told_as_what_the_tool_returned(
    result: Any, why: str
) -> None:
    with pytest.raises(UnusableReturn, match=why):
        ToolReturn.of(ToolResult, None).result(result)


def test_an_explicit_result_with_structure_gets_its_text_unless_it_has_some() -> None:
    bare = ToolResult(structured_content={"at": dt.date(2026, 7, 28)})
    assert wire(ToolResult, bare)["content"] == [{"type": "text", "text": '{"at":"2026-07-28"}'}]
    assert wire(ToolResult, bare)["structuredContent"] == {"at": "2026-07-28"}
    assert wire(ToolResult, ToolResult(["One."], structured_content=1)) == {
        "content": [{"type": "text", "text": "One."}],
        "structuredContent": 1,
    }


NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.mark.parametrize(
    ("annotation", "schema", "value", "complaint"),
    [
        (Any, NUMBER, {"n": "x"}, 'result.n: "x" is not of type "integer"'),
        (Any, NUMBER, {}, '"n" is a required property'),
        (Any, NUMBER, "text", "not of type"),
        (Any, NUMBER, None, "null is not of type"),
        (Any, NUMBER, TextContent("words"), "required property"),
        (ToolResult, NUMBER, ToolResult(structured_content={}), "required property"),
        (
            ToolResult,
            NUMBER,
            ToolResult(["text"]),
            "has no structured content, which the output schema requires",
        ),
        (int, None, "x", 'result: "x" is not of type "integer"'),
        (float, None, float("nan"), "result is nan"),
        (Literal["a"], None, "b", "result: "),
        (Reading, None, {"deg": "warm"}, "result.deg: "),
        (list[int], None, [1, None], "result[1]: null"),
    ],
)
def test_what_breaks_the_output_schema_is_an_error_that_says_where(
    annotation: Any, schema: Any, value: Any, complaint: str
) -> None:
    with pytest.raises(UnusableReturn) as refused:
        wire(annotation, value, schema)
    assert complaint in str(refused.value)


def test_a_failure_need_not_keep_the_promise_of_the_output_schema() -> None:
    failure = ToolResult.error("No.")
    assert wire(ToolResult, failure, NUMBER) == {
        "content": [{"type": "text", "text": "No."}],
        "isError": True,
    }
    detailed = ToolResult(["No."], structured_content={"why": 1}, is_error=True)
    assert wire(ToolResult, detailed, NUMBER)["structuredContent"] == {"why": 1}


def test_a_schema_given_verbatim_wins_and_may_ask_for_any_json_value() -> None:
    assert ToolReturn.of(Reading, NUMBER).schema == NUMBER
    for schema, value in [
        ({"type": "string"}, "hi"),
        ({"type": "null"}, None),
        ({"type": "array"}, [1]),
        ({}, 1.5),
    ]:
        found = wire(Any, value, schema)
        assert found["structuredContent"] == value
        assert json.loads(found["content"][0]["text"]) == value


@pytest.mark.parametrize(
    "schema", [{"type": "nope"}, {"$ref": "#/$defs/gone"}, {"$ref": "http://127.0.0.1:9/x"}]
)
def test_an_unusable_output_schema_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a usable JSON Schema"):
        ToolReturn.of(Any, schema)


@pytest.mark.parametrize(
    "value", [object(), b"\xff", {"a": object()}, [lambda: None], {(1, 2): [object()]}]
)
def test_what_has_no_json_is_an_error_that_says_why(value: Any) -> None:
    with pytest.raises(UnusableReturn, match=r"cannot be written as JSON: \S+"):
        wire(Any, value)


def test_what_contains_itself_has_no_json() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(UnusableReturn, match="Circular"):
        wire(Any, value)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@examples(60)
@given(JSON.filter(lambda value: value is not None and not isinstance(value, str)))
def test_any_json_value_comes_out_as_it_went_in(value: Any) -> None:
    found = wire(Any, value)
    assert json.loads(encode(found))["structuredContent"] == value
    assert json.loads(found["content"][0]["text"]) == value


@pytest.mark.parametrize(
    ("value", "messages"),
    [
        ("hi", [("user", {"type": "text", "text": "hi"})]),
        (PICTURE, [("user", PICTURE.to_wire())]),
        (PromptMessage("assistant", "hi"), [("assistant", {"type": "text", "text": "hi"})]),
        (
            ["a", PromptMessage("assistant", PICTURE)],
            [("user", TextContent("a").to_wire()), ("assistant", PICTURE.to_wire())],
        ),
        ([], []),
    ],
)
def test_a_prompt_is_a_string_a_block_a_message_or_a_list_of_these(
    value: Any, messages: list[Any]
) -> None:
    assert [
        (m.to_wire()["role"], m.to_wire()["content"]) for m in prompt_messages(value)
    ] == messages


@pytest.mark.parametrize("value", [None, 5, {"role": "user"}, ["a", None]])
def test_anything_else_is_no_prompt(value: Any) -> None:
    with pytest.raises(UnusableReturn, match="not a str, a content block or a PromptMessage"):
        prompt_messages(value)


@pytest.mark.parametrize(
    ("value", "mime_type", "contents"),
    [
        ("hi", None, {"mimeType": "text/plain", "text": "hi"}),
        ("<p>", "text/html", {"mimeType": "text/html", "text": "<p>"}),
        (b"\x00\xff", None, {"mimeType": "application/octet-stream", "blob": "AP8="}),
        (bytearray(b"a"), "image/png", {"mimeType": "image/png", "blob": "YQ=="}),
        (memoryview(b"a"), "image/png", {"mimeType": "image/png", "blob": "YQ=="}),
        (
            {"a": dt.date(2026, 7, 28)},
            None,
            {"mimeType": "application/json", "text": '{"a":"2026-07-28"}'},
        ),
        ([], None, {"mimeType": "application/json", "text": "[]"}),
        (None, None, {"mimeType": "application/json", "text": "null"}),
    ],
)
def test_a_resource_is_text_bytes_or_json_at_the_uri_that_was_read(
    value: Any, mime_type: str | None, contents: dict[str, str]
) -> None:
    assert [one.to_wire() for one in resource_contents(value, "x:y", mime_type)] == [
        {"uri": "x:y", **contents}
    ]


def test_explicit_resource_contents_pass_as_they_are() -> None:
    parts = (TextResourceContents("x:a", "b", "text/css"), BlobResourceContents("x:b", b"c"))
    assert resource_contents(parts, "x:y", "text/plain") == list(parts)
    assert resource_contents(parts[0], "x:y", None) == (parts[0],)


def test_one_string_is_one_completion() -> None:
    assert completion("python").to_wire()["values"] == ["python"]


def test_completions_are_any_sequence_of_strings_and_a_hundred_at_most_are_sent() -> None:
    assert completion(("a", "b")).to_wire() == {"values": ["a", "b"]}
    assert completion(Completion(["a"], total=9, has_more=True)).to_wire() == {
        "values": ["a"],
        "total": 9,
        "hasMore": True,
    }
    many = completion([str(n) for n in range(101)]).to_wire()
    assert (len(many["values"]), many["total"], many["hasMore"]) == (100, 101, True)


class Measured(BaseModel):
    value: float
    other: Any = None
    history: list[float] = []


@pytest.mark.parametrize(
    ("value", "annotation", "place"),
    [
        (math.nan, float, "result is nan"),
        (-math.inf, float, "result is -inf"),
        (
            {"rows": [{"price": math.nan}], "none": None},
            dict[str, Any],
            r"result\.rows\[0\]\.price is nan",
        ),
        ([1.5, math.inf], list[float], r"result\[1\] is inf"),
        (Measured(value=1, history=[1, math.nan]), Measured, r"result\.history\[1\] is nan"),
        ({"a": Measured(value=math.nan)}, Any, r"result\.a\.value is nan"),
        (Measured(value=1, other={"a": math.nan}), Measured, r"result\.other\.a is nan"),
        (ToolResult([], {"a": math.nan}), ToolResult, r"result\.a is nan"),
        (ToolResult([], {}, meta={"a": math.nan}), ToolResult, r"_meta\.a is nan"),
    ],
)
def test_a_number_without_json_is_named_with_its_place(
    value: Any, annotation: Any, place: str
) -> None:
    with pytest.raises(UnusableReturn, match=place):
        ToolReturn.of(annotation, None).result(value)


def test_the_same_holds_for_the_contents_of_a_resource() -> None:
    with pytest.raises(UnusableReturn, match=r"contents\.a\[0\] is nan"):
        resource_contents({"a": [math.nan]}, "x://y", None)
    (contents,) = resource_contents({"a": None}, "x://y", None)
    assert contents.text == '{"a":null}'  # type: ignore[union-attr]
