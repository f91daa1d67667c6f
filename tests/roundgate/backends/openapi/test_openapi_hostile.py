"""Documents that would take a gateway's time or memory: each ends soon, and
what is lost is named."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from roundgate.backends.openapi import documents
from roundgate.backends.openapi.index import Index, write
from roundgate.errors import ConfigError
from tests.support.openapi import Compiled, compiled, document, operation

GOOD = operation(path="/good", operationId="good")
WITHIN_S = 20
"""Of processor time, for what takes well below one second: something quadratic takes minutes."""
MANY = 50_001
"""One more than a schema may have values."""


def index_of(folder: Path, described: dict[str, Any]) -> Index:
    began = time.process_time()
    index = compiled(folder, described)
    assert time.process_time() - began < WITHIN_S
    return index


def with_body(schema: Any, **schemas: Any) -> dict[str, Any]:
    content = {"application/json": {"schema": schema}}
    paths = GOOD | operation("post", requestBody={"required": True, "content": content})
    return document(paths, components={"schemas": schemas})


def ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def test_a_schema_that_doubles_with_each_reference_stays_small(tmp_path: Path) -> None:
    def twice(to: str) -> dict[str, Any]:
        return {"properties": {"x": ref(to), "y": ref(to)}, "allOf": [ref(to), ref(to)]}

    bomb = {f"a{n}": twice(f"a{n + 1}") for n in range(100)}
    index = index_of(tmp_path, with_body(ref("a0"), **bomb, a100={"type": "string"}))
    assert len(index.rows) == 2
    assert len(write(index)) < 50_000


@pytest.mark.parametrize("kind", ["enum", "properties", "required"])
def test_more_values_than_a_schema_may_have_are_left_out_in_time(tmp_path: Path, kind: str) -> None:
    names = [f"v{n}" for n in range(MANY)]
    value = {name: {"type": "string"} for name in names} if kind == "properties" else names
    index = index_of(tmp_path, with_body({"type": "object", "properties": {"a": {}}, kind: value}))
    assert [row.name for row in index.rows] == ["good"]
    assert "more than 50000 values" in index.problems[0].message


def test_equal_values_of_an_enum_are_one_and_true_is_not_1(tmp_path: Path) -> None:
    given = ["a", 1, True, "a", None, {"x": 1, "y": 2}, {"y": 2, "x": 1}, 0, False]
    parameters = [{"name": "n", "in": "query", "schema": {"enum": given}}]
    one = Compiled(compiled(tmp_path, document(operation(parameters=parameters))))
    found = one.schema["properties"]["n"]["enum"]
    assert json.dumps(found) == json.dumps(["a", 1, True, None, {"y": 2, "x": 1}, 0, False])


def test_more_parameters_than_a_tool_can_have_leave_the_operation_out(tmp_path: Path) -> None:
    names = [f"n[{'!' * (n % 7)}{n}]" for n in range(20_000)]
    parameters = [{"name": name, "in": "query", "schema": {}} for name in names]
    index = index_of(tmp_path, document(GOOD | operation(parameters=parameters)))
    assert [row.name for row in index.rows] == ["good"]
    assert "more than 1,000 parameters" in index.problems[0].message


def test_names_that_collide_by_the_thousand_stay_apart(tmp_path: Path) -> None:
    def get(name: str) -> dict[str, Any]:
        return {"get": {"operationId": name, "responses": {}}}

    paths = {f"/same/{n}": get("same") for n in range(1_000)}
    paths |= {f"/cut/{n}": get("a" * 80 + str(n)) for n in range(1_000)}
    index = index_of(tmp_path, document(paths))
    assert len({row.name for row in index.rows}) == 2_000
    assert all(len(row.name) <= 64 for row in index.rows)


@pytest.mark.parametrize(
    "reference",
    [
        "missing.json#/a",
        "http://169.254.169.254/latest",
        "https://example.com/404.json",
        "file:///etc/passwd",
        "../../../../etc/passwd",
        "#/nowhere",
    ],
)
def test_nothing_is_read_for_a_reference_that_leads_nowhere_and_the_body_is_any(
    tmp_path: Path, reference: str
) -> None:
    index = index_of(tmp_path, with_body({"$ref": reference}))
    assert Compiled(index).schema["properties"] == {"body": {}}
    [problem] = index.problems
    assert (problem.path, bool(problem.remedy)) == ("/paths/~1x/post", True)
    assert index.left_out == 0


def test_a_reference_to_itself_takes_its_operation_alone(tmp_path: Path) -> None:
    index = index_of(tmp_path, with_body(ref("self"), self=ref("self")))
    assert [row.name for row in index.rows] == ["good"]
    assert (index.problems[0].path, index.left_out) == ("/paths/~1x/post", 1)


@pytest.mark.parametrize("depth", [200, 100_000])
def test_a_schema_of_any_depth_is_left_out_or_the_document_is(tmp_path: Path, depth: int) -> None:
    deep = '{"allOf":[' * depth + "{}" + "]}" * depth
    (tmp_path / "deep.json").write_text(json.dumps(with_body("HERE")).replace('"HERE"', deep))
    if depth == 200:
        index = compiled(tmp_path, None, document="deep.json")
        assert [row.name for row in index.rows] == ["good"]
    else:
        with pytest.raises(ConfigError, match="nested too deeply"):
            compiled(tmp_path, None, document="deep.json")


def yaml_of(text: str) -> str:
    return f"openapi: 3.1.0\ninfo: {{title: t, version: '1'}}\nservers: [{{url: 'https://a.example'}}]\n{text}"


def laughs(first: str, pattern: str) -> str:
    lines = [f"  a0: &a0 {first}"]
    lines += [
        f"  a{n}: &a{n} " + pattern.format(a=",".join([f"*a{n - 1}"] * 9)) for n in range(1, 15)
    ]
    return yaml_of("paths: {}\nx:\n" + "\n".join(lines))


@pytest.mark.parametrize(
    "text",
    [
        laughs("[l]", "[{a}]"),
        laughs("{l: 1}", "{{<<: [{a}]}}"),
        yaml_of("paths: {}\nx: &x {a: *x}"),
        yaml_of("paths: {? [a, b] : {get: {}}}"),
        yaml_of("paths: {}\nx: " + "9" * 5_000),
        yaml_of("paths: !!python/object/apply:os.system [id]"),
    ],
)
def test_yaml_that_would_not_end_or_is_no_json_is_one_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(documents, "MAX_NODES", 200_000)
    (tmp_path / "api.yaml").write_text(text)
    began = time.process_time()
    with pytest.raises(ConfigError) as caught:
        compiled(tmp_path, None, document="api.yaml")
    assert time.process_time() - began < WITHIN_S
    assert len(caught.value.problems) == 1


def test_keys_that_are_no_text_are_read_as_text(tmp_path: Path) -> None:
    get = "{operationId: op, responses: {200: {description: d}}}"
    paths = f"paths: {{/x: {{get: {get}}}, 3: {{get: {{}}}}, null: {{}}, true: {{}}}}"
    (tmp_path / "api.yaml").write_text(yaml_of(paths))
    index = compiled(tmp_path, None, document="api.yaml")
    assert [row.name for row in index.rows] == ["op"]
