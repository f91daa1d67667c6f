"""JSON Schema: what is accepted as one, what it says about a value, and that it asks nobody."""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundgate.protocol.schemas import MAX_DEPTH, MAX_NODES, Schema
from tests.support.long import examples

DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def problems(schema: dict[str, Any], value: Any) -> list[str]:
    return Schema.compile(schema).problems(value, "arguments")


@pytest.mark.parametrize(
    ("schema", "value", "said"),
    [
        ({"type": "string"}, 5, ['arguments: 5 is not of type "string"']),
        (
            {"properties": {"n": {"maximum": 9}}},
            {"n": 10},
            ["arguments.n: 10 is greater than the maximum of 9"],
        ),
        (
            {"items": {"required": ["a"]}},
            [{"a": 1}, {}],
            ['arguments[1]: "a" is a required property'],
        ),
        (
            {"required": ["a", "b"]},
            {},
            ['arguments: "a" is a required property', 'arguments: "b" is a required property'],
        ),
        (
            {"properties": {"a": {}}, "additionalProperties": False},
            {"b": 1},
            ["arguments: Additional properties are not allowed ('b' was unexpected)"],
        ),
        (
            {"properties": {"a": {"enum": ["x", "y"]}}},
            {"a": "z"},
            ['arguments.a: "z" is not one of "x" or "y"'],
        ),
    ],
)
def test_each_mistake_is_a_sentence_with_its_place(
    schema: dict[str, Any], value: Any, said: list[str]
) -> None:
    assert problems(schema, value) == said
    assert not Schema.compile(schema).is_valid(value)


def test_a_long_list_of_long_mistakes_is_cut() -> None:
    said = problems({"items": {"type": "integer"}}, ["x" * 1000] * 1000)
    assert len(said) == 8
    assert all(len(one) <= 240 for one in said)


UNEXPLAINED = ["arguments: does not conform to the schema; send fewer values to learn where"]


@pytest.mark.parametrize(
    "items", [{"type": "string"}, {"anyOf": [{"type": "string"}, {"type": "boolean"}]}]
)
def test_a_million_mistakes_are_found_fast_and_not_explained(items: dict[str, Any]) -> None:
    schema = {"properties": {"a": {"items": items}}}
    started = time.process_time()
    assert problems(schema, {"a": [1] * 1_000_000}) == UNEXPLAINED
    assert problems(schema, {"a": ["x"] * 1_000_000}) == []
    assert problems(schema, {"a": ["x"] * 3000 + [1]})[0].startswith("arguments.a[3000]: 1 ")
    assert time.process_time() - started < 4


def test_a_mistake_deep_in_a_recursive_union_is_found_fast_and_not_explained() -> None:
    one = {"type": "object", "properties": {"of": {"$ref": "#/$defs/any"}}, "required": ["of"]}
    union = {"$defs": {"any": {"anyOf": [one, one, {"type": "integer"}]}}, "$ref": "#/$defs/any"}
    value: Any = "wrong"
    assert problems(union, value) == [
        'arguments: "wrong" must be of type object or of type integer'
    ]
    for _ in range(150):
        value = {"of": value}
    assert problems(union, value) == UNEXPLAINED


def test_the_default_is_draft_2020_12_and_an_earlier_draft_may_be_named() -> None:
    tuples = {"type": "array", "items": [{"type": "string"}]}
    assert problems({"$schema": DRAFT_7, **tuples}, [1]) == [
        'arguments[0]: 1 is not of type "string"'
    ]
    with pytest.raises(ValueError, match="not a usable JSON Schema"):
        Schema.compile(tuples)
    assert problems({"prefixItems": [{"type": "string"}]}, [1]) == [
        'arguments[0]: 1 is not of type "string"'
    ]


@pytest.mark.parametrize("value", [10**30, -(10**30), 1.0, 1e300])
def test_integers_are_integers_however_long_and_however_written(value: Any) -> None:
    assert Schema.compile({"type": "integer"}).is_valid(value)


def test_a_boolean_is_no_integer() -> None:
    assert not Schema.compile({"type": "integer"}).is_valid(True)


def test_references_inside_the_schema_work_also_in_circles() -> None:
    tree = {
        "$defs": {"t": {"properties": {"sub": {"$ref": "#/$defs/t"}, "n": {"type": "integer"}}}},
        "$ref": "#/$defs/t",
    }
    assert problems(tree, {"sub": {"sub": {"n": "x"}}}) == [
        'arguments.sub.sub.n: "x" is not of type "integer"'
    ]
    embedded = {
        "$id": "http://h/r",
        "$defs": {"b": {"$id": "b", "type": "string"}},
        "properties": {"a": {"$ref": "b"}},
    }
    assert problems(embedded, {"a": 1}) == ['arguments.a: 1 is not of type "string"']


@pytest.mark.parametrize(
    "schema", [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}, {"not": {"$ref": "#"}}]
)
def test_a_schema_that_is_itself_and_nothing_else_ends(schema: dict[str, Any]) -> None:
    assert isinstance(Schema.compile(schema).is_valid({"a": 1}), bool)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A port at which nobody should knock."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "URL"},
        {"properties": {"a": {"items": {"$ref": "URL#/$defs/x"}}}},
        {"$dynamicRef": "URL"},
        {"$schema": "URL"},
        {"$id": "URL", "properties": {"a": {"$ref": "other.json"}}},
        {"$id": "URL", "$ref": "other.json#/a"},
        {"$schema": DRAFT_7, "$ref": "URL"},
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "id": "URL",
            "properties": {"a": {"$ref": "b"}},
        },
        {"$defs": {"unused": {"$ref": "URL"}}},
    ],
    ids=str,
)
def test_a_reference_to_the_network_is_refused_and_never_fetched(
    listener: socket.socket, schema: dict[str, Any]
) -> None:
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/schema.json"
    with pytest.raises(ValueError, match="not a usable JSON Schema"):
        Schema.compile(json.loads(json.dumps(schema).replace("URL", url)))
    with pytest.raises(BlockingIOError):
        listener.accept()


def test_a_reference_to_a_file_is_refused_and_never_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"type": "string"}')
    with pytest.raises(ValueError, match="not a usable JSON Schema"):
        Schema.compile({"$ref": (tmp_path / "a.json").as_uri()})


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def test_depth_is_bounded() -> None:
    assert Schema.compile(nested(MAX_DEPTH - 1)).is_valid([])
    with pytest.raises(ValueError, match=f"nested more than {MAX_DEPTH} levels deep"):
        Schema.compile(nested(MAX_DEPTH))
    with pytest.raises(ValueError, match="levels deep"):
        Schema.compile(nested(50_000))
    circle: dict[str, Any] = {}
    circle["items"] = circle
    with pytest.raises(ValueError, match="levels deep"):
        Schema.compile(circle)


@pytest.mark.parametrize("word", ["unevaluatedProperties", "unevaluatedItems"])
@pytest.mark.parametrize(("definitions", "nested"), [(3_000, 0), (1_000, 1), (100, 20)])
def test_references_that_would_end_the_process_are_refused(
    word: str, definitions: int, nested: int
) -> None:
    """Compiling such a schema overflows the stack of the validator."""

    def within(schema: Any) -> Any:
        for _ in range(nested):
            schema = {"anyOf": [schema]}
        return schema

    chain = {f"d{at}": within({"$ref": f"#/$defs/d{at + 1}"}) for at in range(definitions)}
    schema = {word: False, "$ref": "#/$defs/d0", "$defs": {**chain, f"d{definitions}": {}}}
    with pytest.raises(ValueError, match="which follow them all"):
        Schema.compile(schema)
    Schema.compile({"$ref": "#/$defs/d0", "$defs": schema["$defs"]})


def test_size_is_bounded() -> None:
    assert Schema.compile({"enum": list(range(MAX_NODES - 2))}).is_valid(1)
    with pytest.raises(ValueError, match=f"more than {MAX_NODES} values"):
        Schema.compile({"enum": list(range(MAX_NODES - 1))})


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("^(a+)+$", "a" * 5000 + "!"),
        (r"^(?=(a+)+$)b", "a" * 5000 + "!"),
        (r"^(a|aa)+\1$", "a" * 5000 + "!"),
    ],
)
def test_a_pattern_that_would_take_for_ever_gives_up(pattern: str, text: str) -> None:
    started = time.process_time()
    assert problems({"pattern": pattern}, text)
    assert time.process_time() - started < 2


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [float("-inf")]}])
def test_a_number_that_json_has_not_is_a_problem_and_no_exception(value: Any) -> None:
    assert problems({"type": "object", "properties": {"a": {"items": {"type": "number"}}}}, value)


@pytest.mark.parametrize(
    "schema", [{"type": 5}, {"pattern": "("}, {"minimum": "x"}, {"enum": {1, 2}}, {"$ref": "#/a"}]
)
def test_what_is_no_schema_is_refused_in_one_line(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\Anot a usable JSON Schema: \S.*\Z"):
        Schema.compile(schema)


ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.sampled_from(["string", "#", "object", "a", "", "^a", "a.json"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "$ref",
                    "items",
                    "properties",
                    "allOf",
                    "not",
                    "if",
                    "$id",
                    "$anchor",
                    "a",
                    "const",
                ]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@examples(150)
@given(
    st.dictionaries(
        st.sampled_from(["type", "properties", "items", "$ref", "anyOf", "$defs"]), ANY_JSON
    ),
    ANY_JSON,
)
def test_any_object_is_a_schema_or_a_value_error_and_validity_is_having_no_problems(
    schema: dict[str, Any], value: Any
) -> None:
    try:
        compiled = Schema.compile(schema)
    except ValueError:
        return
    assert compiled.is_valid(value) == (compiled.problems(value, "x") == [])
