"""Schemas of every dialect as JSON Schema 2020-12."""

from pathlib import Path
from typing import Any

import pytest

from roundgate.errors import ConfigError
from roundgate.protocol.schemas import Schema
from tests.support.openapi import Compiled, compiled, document, operation


def converted(
    folder: Path, schema: Any, version: str = "3.0.3", /, **schemas: Any
) -> dict[str, Any]:
    """The schema of a query parameter, with what is in `$defs` beside it."""
    paths = operation(parameters=[{"name": "q", "in": "query", "schema": schema}])
    one = Compiled(compiled(folder, document(paths, version, components={"schemas": schemas})))
    definitions = {"$defs": one.schema["$defs"]} if "$defs" in one.schema else {}
    return {**one.schema["properties"]["q"], **definitions}


def body_of(schema: Any) -> dict[str, Any]:
    """A JSON body."""
    return {"required": True, "content": {"application/json": {"schema": schema}}}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "string", "nullable": True, "enum": ["a"]}, {"type": ["string", "null"], "enum": ["a", None]}),
        ({"anyOf": [{}], "nullable": True}, {"anyOf": [{"anyOf": [{}]}, {"type": "null"}]}),
        ({"type": "integer", "minimum": 1, "exclusiveMinimum": True}, {"type": "integer", "exclusiveMinimum": 1}),
        ({"type": "integer", "maximum": 9, "exclusiveMaximum": False}, {"type": "integer", "maximum": 9}),
        ({"type": "string", "example": "x"}, {"type": "string", "examples": ["x"]}),
        ({"type": "any", "required": True, "x-internal": 1, "xml": {}}, {}),
        ({"type": "string", "pattern": "(?!x"}, {"type": "string"}),
        ({"type": "string", "enum": ["a", "a"]}, {"type": "string", "enum": ["a"]}),
    ],
)  # fmt: skip
def test_what_3_0_has_words_of_its_own_for(tmp_path: Path, given: Any, expected: Any) -> None:
    assert converted(tmp_path, given) == expected


def test_3_1_is_2020_12_already(tmp_path: Path) -> None:
    given = {
        "type": ["object", "null"],
        "properties": {"a": {"$ref": "#/components/schemas/A", "description": "mine"}},
        "prefixItems": [{"const": 1}],
        "exclusiveMinimum": 3,
        "if": {"required": ["a"]},
        "then": {"maxProperties": 2},
        "dependentSchemas": {"a": {"minProperties": 1}},
    }
    found = converted(tmp_path, given, "3.1.0", A={"type": "string"})
    moved = {"a": {"$ref": "#/$defs/A", "description": "mine"}}
    assert found == {**given, "properties": moved, "$defs": {"A": {"type": "string"}}}


def test_a_tool_carries_the_schemas_that_it_reaches_and_no_others(tmp_path: Path) -> None:
    schemas: dict[str, Any] = {
        "Node": {
            "type": "object",
            "properties": {
                "next": {"$ref": "#/components/schemas/Node"},
                "l": {"$ref": "#/components/schemas/Leaf"},
            },
        },
        "Leaf": {"type": "integer"},
        "Other": {"type": "string"},
    }
    found = converted(tmp_path, {"$ref": "#/components/schemas/Node"}, "3.0.3", **schemas)
    assert sorted(found["$defs"]) == ["Leaf", "Node"]
    compiled_schema = Schema.compile(found)
    assert compiled_schema.is_valid({"next": {"next": {"l": 1}}})
    assert not compiled_schema.is_valid({"next": {"next": {"l": "x"}}})


def test_read_only_members_are_not_asked_for(tmp_path: Path) -> None:
    schemas: dict[str, Any] = {
        "Id": {"type": "string", "readOnly": True},
        "A": {
            "type": "object",
            "required": ["id", "uid", "name"],
            "properties": {
                "id": {"type": "string", "readOnly": True},
                "uid": {"$ref": "#/components/schemas/Id"},
                "name": {"writeOnly": True},
            },
        },
    }
    found = converted(tmp_path, {"$ref": "#/components/schemas/A"}, "3.0.3", **schemas)
    assert found["$defs"]["A"] == {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {}},
    }


READ_ONLY = {"type": "string", "readOnly": True}


@pytest.mark.parametrize(
    "member",
    [
        {"allOf": [{"$ref": "#/components/schemas/Id"}], "description": "of the service"},
        {"allOf": [{"allOf": [{"$ref": "#/components/schemas/Again"}]}, {"maxLength": 9}]},
        {"anyOf": [{"$ref": "#/components/schemas/Id"}, {"type": "null"}]},
    ],
)
def test_a_member_is_read_only_where_what_it_is_composed_of_is(
    tmp_path: Path, member: dict[str, Any]
) -> None:
    whole = {"required": ["id"], "properties": {"id": member, "name": {"type": "string"}}}
    again = {"allOf": [{"$ref": "#/components/schemas/Id"}]}
    found = converted(tmp_path, whole, "3.0.3", Id=READ_ONLY, Again=again)
    assert found == {"properties": {"name": {"type": "string"}}}


@pytest.mark.parametrize(
    "given",
    [
        {"allOf": [{"$ref": "#/components/schemas/Base"}], "required": ["id", "name"]},
        {"allOf": [{"$ref": "#/components/schemas/Base"}, {"required": ["id", "name"]}]},
    ],
)
def test_what_a_base_has_read_only_is_required_by_nobody(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    base = {"type": "object", "properties": {"id": READ_ONLY, "name": {"type": "string"}}}
    schema = Schema.compile(converted(tmp_path, given, "3.0.3", Base=base))
    assert schema.is_valid({"name": "a"})
    assert not schema.is_valid({})


def test_a_mapping_of_a_discriminator_chooses_the_alternative(tmp_path: Path) -> None:
    schemas: dict[str, Any] = {
        name: {"type": "object", "properties": {"kind": {"type": "string"}}}
        for name in ("Cat", "Dog")
    }
    given = {
        "oneOf": [{"$ref": "#/components/schemas/Cat"}, {"$ref": "#/components/schemas/Dog"}],
        "discriminator": {
            "propertyName": "kind",
            "mapping": {"cat": "#/components/schemas/Cat", "dog": "Dog"},
        },
    }
    schema = Schema.compile(converted(tmp_path, given, "3.0.3", **schemas))
    assert schema.is_valid({"kind": "cat"})
    assert schema.is_valid({"kind": "dog"})
    assert not schema.is_valid({"kind": "cow"})


def test_a_value_may_be_of_several_types_of_a_union(tmp_path: Path) -> None:
    """As a title and an image of Shotstack, whose types are texts without an enum."""
    schemas: dict[str, Any] = {
        name: {"type": "object", "properties": {"type": {"type": "string"}}, "required": ["type"]}
        for name in ("Title", "Image")
    }
    references = [{"$ref": f"#/components/schemas/{name}"} for name in schemas]
    schema = Schema.compile(converted(tmp_path, {"oneOf": references}, "3.0.3", **schemas))
    assert schema.is_valid({"type": "title"})
    assert not schema.is_valid({})


def test_members_that_exclude_each_other_still_do(tmp_path: Path) -> None:
    given = {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}
    schema = Schema.compile(converted(tmp_path, given))
    assert schema.is_valid({"a": 1})
    assert not schema.is_valid({"a": 1, "b": 1})


def test_examples_constants_and_members_called_ref_are_data(tmp_path: Path) -> None:
    given = {
        "type": "object",
        "example": {"$ref": "#/nowhere"},
        "default": {"$ref": "#/nowhere"},
        "enum": [{"$ref": "#/nowhere"}],
        "properties": {"$ref": {"type": "string"}, "example": {"type": "integer"}},
    }
    found = converted(tmp_path, given)
    assert found == {
        "type": "object",
        "default": {"$ref": "#/nowhere"},
        "enum": [{"$ref": "#/nowhere"}],
        "properties": {"$ref": {"type": "string"}, "example": {"type": "integer"}},
    }


def test_ids_and_anchors_are_found(tmp_path: Path) -> None:
    schemas: dict[str, Any] = {
        "A": {"$id": "https://example.com/a", "type": "string"},
        "B": {"$anchor": "b", "type": "integer"},
    }
    assert converted(tmp_path, {"$ref": "https://example.com/a"}, "3.1.0", **schemas)["$defs"] == {
        "A": {"type": "string"}
    }
    assert converted(tmp_path, {"$ref": "#b"}, "3.1.0", **schemas)["$defs"] == {
        "B": {"type": "integer"}
    }


def test_two_schemas_of_one_name_are_two(tmp_path: Path) -> None:
    (tmp_path / "more.json").write_text('{"A": {"type": "integer"}}')
    given = {"properties": {"a": {"$ref": "#/components/schemas/A"}, "b": {"$ref": "more.json#/A"}}}
    found = converted(tmp_path, given, A={"type": "string"})
    first, second = (found["properties"][name]["$ref"].removeprefix("#/$defs/") for name in "ab")
    assert (found["$defs"][first], found["$defs"][second]) == (
        {"type": "string"},
        {"type": "integer"},
    )


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("#/components/schemas/Gone", "has no target"),
        ("#nowhere", "no such anchor"),
        ("gone.json", "cannot be read|No such file"),
    ],
)
def test_a_reference_to_nothing_stands_for_any_value_and_is_named_with_its_operation(
    tmp_path: Path, reference: str, reason: str
) -> None:
    bad = operation(parameters=[{"name": "q", "in": "query", "schema": {"$ref": reference}}])
    index = compiled(tmp_path, document(bad | operation(path="/y", operationId="good")))
    assert Compiled(index).schema["properties"] == {"q": {}}
    [problem] = index.problems
    assert (problem.path, index.left_out) == ("/paths/~1x/get", 0)
    assert any(one in problem.message for one in reason.split("|"))
    assert problem.message.endswith("offered without it: GET /x")


GONE = {"$ref": "#/components/schemas/Gone"}


def test_an_optional_dangling_reference_is_left_out_and_a_required_one_is_any(
    tmp_path: Path,
) -> None:
    signer = {
        "type": "object",
        "required": ["id"],
        "properties": {"id": GONE, "offline": GONE, "tags": {"type": "array", "items": GONE}},
        "additionalProperties": False,
    }
    described = document(
        operation("post", requestBody=body_of({"$ref": "#/components/schemas/Signer"}))
        | operation("put", "/y", requestBody=body_of({"$ref": "#/components/schemas/Signer"})),
        "3.0.3",
        components={"schemas": {"Signer": signer}},
    )
    index = compiled(tmp_path, described)
    assert Compiled(index, index.rows[0].name).schema["properties"] == {
        "id": {},
        "tags": {"type": "array", "items": {}},
    }
    assert {problem.path for problem in index.problems} == {"/paths/~1x/post", "/paths/~1y/put"}


def test_of_many_operations_with_one_reference_to_nothing_the_first_are_named(
    tmp_path: Path,
) -> None:
    paths = {
        f"/x/{n}": {
            "get": {
                "parameters": [
                    {"name": "q", "in": "query", "schema": {"$ref": "#/components/schemas/A"}}
                ]
            }
        }
        for n in range(19)
    }
    schemas = {"A": {"properties": {"offline": GONE, "name": {"type": "string"}}}}
    index = compiled(tmp_path, document(paths, "3.0.3", components={"schemas": schemas}))
    assert len(index.rows) == 19
    [problem] = index.problems
    assert problem.path == "/components/schemas/A"
    assert "'#/components/schemas/Gone' has no target" in problem.message
    assert problem.message.endswith("GET /x/3, GET /x/4, 14 more operations")


def test_a_dangling_part_or_alternative_leaves_the_others_as_they_are(
    tmp_path: Path,
) -> None:
    known = {"type": "object", "properties": {"a": {"type": "integer"}}}
    found = converted(tmp_path, {"allOf": [known, GONE], "anyOf": [GONE]})
    assert found == {"allOf": [known, {}], "anyOf": [{}]}


def test_a_form_whose_member_refers_to_nothing_is_offered_without_it(tmp_path: Path) -> None:
    form = {"type": "object", "properties": {"file": GONE, "name": {"type": "string"}}}
    body = {"content": {"multipart/form-data": {"schema": form}}}
    one = Compiled(compiled(tmp_path, document(operation("post", requestBody=body), "3.0.3")))
    assert one.schema["properties"] == {"name": {"type": "string"}}


def test_an_answer_that_refers_to_nothing_keeps_no_operation_from_being_offered(
    tmp_path: Path,
) -> None:
    responses = {"200": {"$ref": "#/components/responses/Gone"}}
    index = compiled(tmp_path, document(operation(responses=responses)))
    assert Compiled(index).plan.headers == {"accept": "*/*"}
    assert index.problems[0].path == "/paths/~1x/get"


def test_strict_takes_no_reference_to_nothing(tmp_path: Path) -> None:
    parameters = [{"name": "q", "in": "query", "schema": GONE}]
    with pytest.raises(ConfigError, match="has no target"):
        compiled(tmp_path, document(operation(parameters=parameters)), strict=True)


def test_a_parameter_that_refers_to_itself_is_a_problem_and_not_the_end(tmp_path: Path) -> None:
    parameters = {
        "P": {"$ref": "#/components/parameters/Q"},
        "Q": {"$ref": "#/components/parameters/P"},
    }
    bad = operation(parameters=[{"$ref": "#/components/parameters/P"}])
    described = document(
        bad | operation(path="/y", operationId="good"), components={"parameters": parameters}
    )
    assert "leads to itself" in compiled(tmp_path, described).problems[0].message


def test_a_schema_deeper_than_a_validator_goes_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text('{"items":' * 5_000 + "{}" + "}" * 5_000)
    bad = operation(parameters=[{"name": "q", "in": "query", "schema": {"$ref": "deep.json"}}])
    index = compiled(tmp_path, document(bad | operation(path="/y", operationId="good")))
    assert "deep" in index.problems[0].message
