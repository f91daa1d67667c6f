"""`x-mcp-header`: where a schema may carry it, and how the header and the argument are compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared import inbound as official

from roundgate.errors import HeaderMismatch
from roundgate.protocol import v2026_07_28
from roundgate.protocol.jsonrpc import Headers
from roundgate.protocol.v2026_07_28 import ParamHeader, encode_value
from tests.support import json_values

REGION = {"type": "string", "x-mcp-header": "Region"}


def declared(**properties: Any) -> tuple[ParamHeader, ...]:
    return v2026_07_28.mirrored_arguments({"type": "object", "properties": properties})


# --- declarations ---


def test_a_schema_without_annotations_declares_nothing() -> None:
    assert declared(region={"type": "string"}) == ()
    assert v2026_07_28.mirrored_arguments({}) == ()


@pytest.mark.parametrize("kind", ["string", "integer", "boolean"])
def test_a_primitive_property_may_be_mirrored(kind: str) -> None:
    assert declared(region={"type": kind, "x-mcp-header": "Region"}) == (
        ParamHeader("Mcp-Param-Region", "region", ("region",), kind),
    )


def test_a_property_may_lie_under_any_number_of_properties() -> None:
    (header,) = declared(a={"type": "object", "properties": {"b.c": {"properties": {"": REGION}}}})
    assert header.path == ("a", "b.c", "")


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param(REGION, id="the root"),
        {"items": REGION},
        {"prefixItems": [True, REGION]},
        {"contains": REGION},
        {"unevaluatedItems": REGION},
        {"additionalProperties": REGION},
        {"patternProperties": {"^a": REGION}},
        {"propertyNames": REGION},
        {"unevaluatedProperties": REGION},
        {"dependentSchemas": {"a": REGION}},
        {"allOf": [REGION]},
        {"anyOf": [{}, REGION]},
        {"oneOf": [REGION]},
        {"not": REGION},
        {"if": REGION},
        {"then": REGION},
        {"else": REGION},
        {"contentSchema": REGION},
        {"$defs": {"region": REGION}, "properties": {"a": {"$ref": "#/$defs/region"}}},
        # drafts before 2020-12
        {"definitions": {"region": REGION}},
        {"items": [REGION]},
        {"additionalItems": REGION},
        {"dependencies": {"a": REGION, "b": ["c"]}},
    ],
    ids=lambda schema: next(iter(schema)),
)
def test_anywhere_else_an_annotation_makes_the_schema_invalid(schema: dict[str, Any]) -> None:
    for whole in (schema, {"properties": {"a": schema}} if schema is not REGION else schema):
        with pytest.raises(ValueError, match="reached through `properties` alone"):
            v2026_07_28.mirrored_arguments(whole)


@pytest.mark.parametrize("keyword", ["items", "not", "allOf", "$defs"])
def test_properties_do_not_lead_back_once_the_chain_is_broken(keyword: str) -> None:
    inner = {"properties": {"region": REGION}}
    value = {"items": inner, "not": inner, "allOf": [inner], "$defs": {"a": inner}}[keyword]
    with pytest.raises(ValueError, match="`properties` alone"):
        declared(a={keyword: value})


def test_what_looks_like_an_annotation_in_data_is_none() -> None:
    data = {
        "type": "string",
        "default": REGION,
        "const": REGION,
        "enum": [REGION],
        "examples": [REGION],
    }
    assert declared(a=data) == ()


def test_a_property_may_be_called_x_mcp_header() -> None:
    properties = {"x-mcp-header": {"type": "string", "x-mcp-header": "X"}}
    assert [header.path for header in declared(**properties)] == [("x-mcp-header",)]


@pytest.mark.parametrize(
    "name", ["", " ", "a b", "a:b", "a\r\n", "\n", "é", "a/b", "(a)", '"a"', None, 5, True, ["A"]]
)
def test_the_name_is_an_http_token(name: Any) -> None:
    with pytest.raises(ValueError, match="of 'region' must be an HTTP token"):
        declared(region={"type": "string", "x-mcp-header": name})


def test_every_character_of_a_token_may_be_in_a_name() -> None:
    name = "!#$%&'*+-.^_`|~09azAZ"
    (header,) = declared(region={"type": "string", "x-mcp-header": name})
    assert (header.header, header.key) == ("Mcp-Param-" + name, name.lower())


@pytest.mark.parametrize(
    "kind", ["number", "object", "array", "null", None, ["string"], ["string", "null"], "String"]
)
def test_other_types_are_not_mirrored(kind: Any) -> None:
    with pytest.raises(ValueError, match="needs type string, integer or boolean"):
        declared(region={"type": kind, "x-mcp-header": "Region"})


def test_a_type_that_is_only_behind_a_ref_does_not_count() -> None:
    with pytest.raises(ValueError, match="needs type"):
        declared(region={"$ref": "#/$defs/text", "x-mcp-header": "Region"})


@pytest.mark.parametrize("second", ["Region", "REGION", "rEGION"])
def test_names_differ_in_more_than_case_across_the_whole_schema(second: str) -> None:
    inner = {"type": "object", "properties": {"b": {"type": "string", "x-mcp-header": second}}}
    with pytest.raises(ValueError, match="used twice"):
        declared(a=inner, c=REGION)


KEYWORDS = st.sampled_from(
    [
        *(
            "type",
            "properties",
            "items",
            "prefixItems",
            "allOf",
            "not",
            "$defs",
            "dependencies",
            "additionalItems",
        ),
        *("x-mcp-header", "default", "patternProperties", "a", "b"),
    ]
)
SCHEMA_SCALARS = st.sampled_from(
    ["string", "integer", "number", "Region", "REGION", "a b", "", None, True, 5]
)
SCHEMAS = st.dictionaries(KEYWORDS, json_values.values(SCHEMA_SCALARS, KEYWORDS), max_size=4)


@given(SCHEMAS)
def test_any_object_declares_headers_or_is_told_why_not(schema: dict[str, Any]) -> None:
    try:
        found = v2026_07_28.mirrored_arguments(schema)
    except ValueError:
        return
    assert len({header.key for header in found}) == len(found)


POSITIONS = st.recursive(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["string", "integer", "boolean", "number", "object"])},
        optional={"x-mcp-header": st.sampled_from(["A", "a", "B", "C", "D", "bad name", ""])},
    ),
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(
            lambda them: {"properties": them}
        ),
        st.sampled_from(["items", "not", "contains"]).flatmap(
            lambda key: inner.map(lambda one: {key: one})
        ),
        st.sampled_from(["allOf", "prefixItems"]).flatmap(
            lambda key: st.lists(inner).map(lambda many: {key: many})
        ),
    ),
    max_leaves=5,
)


@given(POSITIONS)
def test_the_official_client_keeps_exactly_the_tools_that_we_serve(schema: dict[str, Any]) -> None:
    complaint = official.find_invalid_x_mcp_header(schema)
    try:
        found = v2026_07_28.mirrored_arguments(schema)
    except ValueError:
        assert complaint is not None
    else:
        assert complaint is None
        assert {h.path: h.header for h in found} == {
            path: "Mcp-Param-" + token for path, token in official.x_mcp_header_map(schema).items()
        }


# --- comparison ---


def sent(values: Mapping[str, str]) -> Headers:
    """A request's headers, with these values of `Mcp-Param-*`."""
    return Headers.of(
        [
            (f"mcp-param-{key}".encode(), value.encode("utf-8", "replace"))
            for key, value in values.items()
        ]
    )


def agrees(kind: str, arguments: dict[str, Any], received: dict[str, str], *path: str) -> bool:
    """Whether an argument `v` of this type and the header `Mcp-Param-V` agree."""
    try:
        ParamHeader("Mcp-Param-V", "v", path or ("v",), kind).check(arguments, sent(received))
    except HeaderMismatch:
        return False
    return True


@pytest.mark.parametrize(
    ("kind", "value", "header"),
    [
        ("string", "us-west1", "us-west1"),
        ("string", "", ""),
        ("string", "Hello", "=?base64?SGVsbG8=?="),
        ("string", "SGVsbG8=", "SGVsbG8="),
        ("string", "=?base64?SGVsbG8=", "=?base64?SGVsbG8="),
        ("string", "Grüße", "=?base64?R3LDvMOfZQ==?="),
        ("boolean", True, "true"),
        ("boolean", False, "false"),
        ("integer", 42, "42"),
        ("integer", -7, "-7"),
        ("integer", 0, "0"),
        ("integer", 0, "-0"),
        ("integer", 42, "42.0"),
        ("integer", 42, "42.000"),
        ("integer", 42.0, "42"),
        ("integer", 42, "042"),
        ("integer", 42, "=?base64?NDI=?="),
        ("integer", 2**53 - 1, "9007199254740991"),
        ("integer", 2**53 + 1, "9007199254740993"),
    ],
)
def test_header_and_argument_agree(kind: str, value: Any, header: str) -> None:
    assert agrees(kind, {"v": value}, {"v": header})


@pytest.mark.parametrize(
    ("kind", "value", "header"),
    [
        ("string", "us-west1", "US-WEST1"),
        ("string", "Hello", "SGVsbG8="),
        ("string", "Hello", "=?base64?SGVsbG8?="),
        ("string", "Hello", "=?base64?SGVs!!!bG8=?="),
        ("string", "é", "é"),
        ("string", "42", "42.0"),
        ("string", "a", ""),
        ("boolean", True, "True"),
        ("boolean", True, "1"),
        ("boolean", False, "0"),
        ("boolean", False, ""),
        ("integer", 42, "43"),
        ("integer", 42, "42.5"),
        ("integer", 42, "42.00000000000000000001"),
        ("integer", 42, "42abc"),
        ("integer", 42, "4_2"),
        ("integer", 42, "0x2a"),
        ("integer", 42, "=?base64?2aTZog==?="),  # Arabic-Indic digits
        ("integer", 1, "true"),
        ("integer", True, "1"),
        ("integer", 2**53 + 1, "9007199254740992"),
        ("integer", 2**53 + 1, "9007199254740993.5"),
        ("integer", 1, "1" * 100_000),
        ("integer", 1.5, "1"),
        ("integer", "forty-two", "42"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_header_and_argument_differ(kind: str, value: Any, header: str) -> None:
    assert not agrees(kind, {"v": value}, {"v": header})


@pytest.mark.parametrize("arguments", [{}, {"v": None}, {"w": 1}])
def test_an_absent_argument_and_null_want_no_header(arguments: dict[str, Any]) -> None:
    assert agrees("string", arguments, {})
    assert not agrees("string", arguments, {"v": ""})
    assert not agrees("string", arguments, {"v": "null"})


@pytest.mark.parametrize("value", ["", "a", 0, False])
def test_an_argument_without_its_header_is_a_mismatch(value: Any) -> None:
    with pytest.raises(HeaderMismatch, match="Mcp-Param-V is missing; it must mirror argument 'v'"):
        ParamHeader("Mcp-Param-V", "v", ("v",), "string").check({"v": value}, sent({"w": "a"}))


@pytest.mark.parametrize("value", [[], {}, ["a"], {"v": "a"}])
def test_what_cannot_be_mirrored_wants_no_header(value: Any) -> None:
    assert agrees("string", {"v": value}, {})
    assert not agrees("string", {"v": value}, {"v": "a"})


def test_a_nested_argument_is_found_along_its_path() -> None:
    assert agrees("string", {"o": {"a.b": "x"}, "v": "y"}, {"v": "x"}, "o", "a.b")
    assert not agrees("string", {"o": {"a.b": "x"}}, {"v": "y"}, "o", "a.b")
    with pytest.raises(HeaderMismatch, match=r"argument 'o\.v'"):
        ParamHeader("Mcp-Param-V", "v", ("o", "v"), "string").check({"o": {"v": "x"}}, sent({}))


@pytest.mark.parametrize("outer", [None, "v", 5, [], [{"v": "x"}], {}, {"v": None}])
def test_a_path_that_leads_nowhere_wants_no_header(outer: Any) -> None:
    assert agrees("string", {"o": outer}, {}, "o", "v")
    assert not agrees("string", {"o": outer}, {"v": "x"}, "o", "v")


ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "text": st.none() | json_values.TEXT,
        "number": st.none() | st.integers(-(2**53) + 1, 2**53 - 1),
        "nested": st.fixed_dictionaries({}, optional={"flag": st.none() | st.booleans()}),
    },
)
SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "x-mcp-header": "Text"},
        "number": {"type": "integer", "x-mcp-header": "Number"},
        "nested": {
            "type": "object",
            "properties": {"flag": {"type": "boolean", "x-mcp-header": "Flag"}},
        },
    },
}


@given(ARGUMENTS)
def test_what_the_official_client_sends_is_accepted_and_nothing_less(
    arguments: dict[str, Any],
) -> None:
    mirrored = official.mcp_param_headers(official.x_mcp_header_map(SCHEMA), arguments)
    received = {name.removeprefix("Mcp-Param-").lower(): value for name, value in mirrored.items()}
    for header in v2026_07_28.mirrored_arguments(SCHEMA):
        header.check(arguments, sent(received))
        if header.key in received:
            with pytest.raises(HeaderMismatch):
                header.check(arguments, sent({}))


@given(st.sampled_from(["string", "integer", "boolean"]), json_values.values(), st.data())
def test_any_argument_and_any_header_agree_or_are_a_mismatch(
    kind: str, value: Any, data: st.DataObject
) -> None:
    header = data.draw(
        st.sampled_from([str(value), encode_value(str(value))])
        | st.text("0189.-e=?aé ", max_size=6)
    )
    if agrees(kind, {"v": value}, {"v": header}):
        assert isinstance(value, (str, int, float))
