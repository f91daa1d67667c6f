"""How often schemas read the parts of values, which is known before they are validated."""

from __future__ import annotations

import re
from typing import Any

import pytest

from roundgate.protocol import Schema

REFERENCE = {"$ref": "#/$defs/filter"}
TOO_MUCH = "arguments: too much work for this schema; send fewer values, or nest them less"
UNEXPLAINED = "arguments: does not conform to the schema; send fewer values to learn where"


def has(*names: str, reference: Any = REFERENCE) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict.fromkeys(names, reference),
        "required": list(names),
    }


def recursive(schema: dict[str, Any]) -> dict[str, Any]:
    return {**REFERENCE, "$defs": {"filter": schema}}


def nested(depth: int, value: Any, **beside: Any) -> Any:
    for _ in range(depth):
        value = {"left": value, **beside}
    return value


INTEGER = {"type": "integer"}
RECURSIVE = {
    "anyOf": recursive({"anyOf": [has("left"), has("left"), INTEGER]}),
    "oneOf": recursive({"oneOf": [has("left"), has("left", "right"), INTEGER]}),
    "allOf": recursive(
        {
            "if": {"type": "object"},
            "then": {"allOf": [has("left"), has("left")]},
            "else": INTEGER,
        }
    ),
    "patternProperties": recursive(
        {
            "type": ["object", "integer"],
            "properties": {"left": REFERENCE},
            "patternProperties": {"^l": REFERENCE, "t$": REFERENCE},
        }
    ),
    "dependentSchemas": recursive(
        {
            "type": ["object", "integer"],
            "properties": {"left": REFERENCE},
            "dependentSchemas": {"left": has("left")},
        }
    ),
    "unevaluatedProperties": recursive(
        {"anyOf": [has("left"), INTEGER], "unevaluatedProperties": False}
    ),
    "$recursiveRef": {
        "$schema": "https://json-schema.org/draft/2019-09/schema",
        "$recursiveAnchor": True,
        "anyOf": [has("left", reference={"$recursiveRef": "#"})] * 2 + [INTEGER],
    },
    "$dynamicRef": {
        "$dynamicAnchor": "filter",
        "anyOf": [has("left", reference={"$dynamicRef": "#filter"})] * 2 + [INTEGER],
    },
}


def test_every_level_that_looks_for_parts_not_examined_validates_those_within_again() -> None:
    """Twenty levels took 13 s, and each further one 2.6 times as long."""
    schema: dict[str, Any] = {"properties": {"a": INTEGER}, "unevaluatedProperties": False}
    for level in range(20):
        if level == 8:
            assert Schema.compile(schema).problems({"a": 1}, "arguments") == []
        schema = {"anyOf": [schema], "unevaluatedProperties": False}
    assert Schema.compile(schema).problems({"a": 1}, "arguments") == [TOO_MUCH]


@pytest.mark.parametrize(
    "words",
    [
        {"dependentSchemas": 5},
        {"prefixItems": 5},
        {"dependentRequired": [1]},
        {"not": {"dependentSchemas": "x"}},
    ],
)
def test_a_keyword_that_the_draft_does_not_know_may_be_anything(words: dict[str, Any]) -> None:
    draft = {"$schema": "http://json-schema.org/draft-07/schema#"}
    schema = Schema.compile({**draft, **words, "anyOf": [{"items": words}, {}]})
    assert schema.is_valid({"a": [1]}) is ("not" not in words)
    assert len(schema.problems({"a": [1]}, "arguments")) == ("not" in words)


@pytest.mark.parametrize("word", RECURSIVE)
def test_a_mistake_deep_in_a_recursive_value_is_found_and_not_explained(word: str) -> None:
    schema = Schema.compile(RECURSIVE[word])
    assert schema.problems(nested(60, "wrong"), "arguments") == [UNEXPLAINED]


@pytest.mark.parametrize("word", RECURSIVE)
def test_a_mistake_near_the_surface_is_explained(word: str) -> None:
    (*_, problem) = Schema.compile(RECURSIVE[word]).problems(nested(2, "wrong"), "arguments")
    assert problem.startswith("arguments")
    assert problem not in (UNEXPLAINED, TOO_MUCH)


ORDER = {"type": "object", "required": [f"member{at}" for at in range(30)]}
DEPENDENT = {"dependentRequired": {"a": [f"member{at}" for at in range(30)]}}
ENUM = {"enum": [f"member{at}" for at in range(15_000)]}
MANY_ERRORS: dict[str, tuple[Any, Any]] = {
    "required": ({"items": ORDER}, [{}] * 300),
    "required in a union": ({"items": {"anyOf": [ORDER] * 15}}, [{}] * 20),
    "dependentRequired": ({"items": DEPENDENT}, [{"a": 1}] * 300),
    "propertyNames": ({"propertyNames": {"enum": ["a"]}}, {f"b{at}": 1 for at in range(800)}),
    "copies of a text": (ORDER, {"text": "x" * 100_000_000}),
    "values of an enum": ({"items": ENUM}, ["x"] * 2_000),
    "values of an enum of a member": ({"items": {"properties": {"a": ENUM}}}, [{"a": "x"}] * 1_000),
    "values of an enum in a union": ({"items": {"anyOf": [ENUM, INTEGER]}}, ["x"] * 1_000),
    "values of an enum for names": ({"propertyNames": ENUM}, {f"b{at}": 1 for at in range(50)}),
    "values of an enum by reference": (
        {"items": REFERENCE, "$defs": {"filter": ENUM}},
        ["x"] * 2_000,
    ),
    "a schema that is excluded": ({"items": {"not": ENUM}}, [ENUM["enum"][0]] * 1_000),
    "a long constant": ({"items": {"const": "x" * 1_000_000}}, ["y"] * 100),
    "alternatives": ({"items": {"oneOf": [{"const": word} for word in ENUM["enum"]]}}, ["x"] * 5),
    "a long name on the path": (
        {"additionalProperties": {"items": INTEGER}},
        {"n" * 1_000_000: ["x"] * 1_000},
    ),
}


@pytest.mark.parametrize("case", MANY_ERRORS)
def test_few_bytes_with_many_errors_are_not_explained(case: str) -> None:
    schema, value = MANY_ERRORS[case]
    assert Schema.compile(schema).problems(value, "arguments") == [UNEXPLAINED]


def test_wrong_values_of_an_enum_of_usual_size_are_explained() -> None:
    country = {"properties": {"country": {"enum": [f"country{at}" for at in range(250)]}}}
    rows = [{"country": "x"}] * 300
    problems = Schema.compile({"items": country}).problems(rows, "arguments")
    assert problems[0].startswith('arguments[0].country: "x" is not one of "country0", "country1"')


def test_a_hundred_orders_without_one_of_their_members_are_explained() -> None:
    order = dict.fromkeys(ORDER["required"], 1)
    del order["member7"]
    problems = Schema.compile({"items": ORDER}).problems([order] * 100, "arguments")
    assert problems[0] == 'arguments[0]: "member7" is a required property'


def test_recursive_values_of_any_depth_are_valid() -> None:
    assert Schema.compile(RECURSIVE["anyOf"]).is_valid(nested(190, 1))


@pytest.mark.parametrize("word", ["anyOf", "oneOf", "allOf"])
def test_definitions_that_multiply_and_are_not_recursive_are_not_tried(word: str) -> None:
    def definition(level: int) -> dict[str, Any]:
        reference = {"$ref": f"#/$defs/{level + 1}"}
        return {word: [has("left", reference=reference)] * 2}

    definitions = {str(level): definition(level) for level in range(60)}
    schema = Schema.compile({"$ref": "#/$defs/0", "$defs": {**definitions, "60": INTEGER}})
    for value in (1, "wrong"):
        assert not schema.is_valid(nested(60, value))
        assert schema.problems(nested(60, value), "arguments") == [TOO_MUCH]
    assert schema.problems({"right": 1}, "arguments") not in ([], [TOO_MUCH])


def test_a_pattern_that_looks_back_takes_little_of_many_texts() -> None:
    schema = Schema.compile({"items": {"pattern": r"([a-z]+)*\1x"}})
    assert schema.is_valid(["aax"])
    assert not schema.is_valid(["a" * 25 + "!"])
    assert schema.problems(["a" * 25 + "!"] * 100_000, "arguments") == [TOO_MUCH]


def test_an_ordinary_pattern_may_be_looked_for_in_many_texts() -> None:
    schema = Schema.compile({"items": {"pattern": r"^(a+)+$"}})
    assert schema.is_valid(["a" * 25] * 100_000)


@pytest.mark.parametrize("text", ["Abcdefg1", "A1" + "x" * 4_000])
def test_a_pattern_that_looks_ahead_may_be_used_for_passwords(text: str) -> None:
    pattern = r"^(?=.*[A-Z])(?=.*\d).{8,}$"
    assert re.match(pattern, text)
    assert Schema.compile({"pattern": pattern}).is_valid(text)


def test_half_a_surrogate_pair_is_told_as_what_it_is() -> None:
    problems = Schema.compile({"items": {"pattern": "a"}}).problems(["a\ud800"], "arguments")
    assert problems == ["arguments: holds half of a surrogate pair, which is not valid text"]


def test_many_values_of_a_recursive_tree_are_valid() -> None:
    tree = recursive(
        {"type": "object", "properties": {"children": {"type": "array", "items": REFERENCE}}}
    )
    assert Schema.compile(tree).is_valid({"children": [{"children": [{}]}] * 20_000})


def test_many_values_of_a_union_that_does_not_multiply_are_valid() -> None:
    lists = {"type": "array", "items": REFERENCE}
    either = [{"required": [name], "properties": {name: lists}} for name in ("and", "or")]
    schema = Schema.compile(recursive({"anyOf": [*either, {"type": "string"}]}))
    assert schema.is_valid({"and": [{"or": ["a", "b"]} for _ in range(150_000)]})


def test_a_document_of_many_kinds_of_blocks_is_valid_at_any_depth() -> None:
    blocks = {"type": "array", "items": REFERENCE}
    kinds = [
        {"properties": {"type": {"const": f"kind {n}"}, "children": blocks}, "required": ["type"]}
        for n in range(25)
    ]
    document: Any = {"type": "kind 0"}
    for depth in range(10):
        document = {"type": f"kind {depth}", "children": [document, document]}
    assert Schema.compile(recursive({"anyOf": kinds})).is_valid(document)
