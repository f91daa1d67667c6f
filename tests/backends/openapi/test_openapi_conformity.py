"""What `roundgate check` remarks on documents that are not as they should be, and what
it must not do for it."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from roundgate.backends.openapi import conformity
from roundgate.backends.openapi.command import remarks
from roundgate.cli import main
from roundgate.errors import Problem
from tests.support.openapi import document, file_of, operation

WRONG = operation(parameters=[{"name": "n", "in": "query", "schema": {"type": "text"}}])


def remarks_on(folder: Path, described: Any, **backend: Any) -> list[Problem]:
    file = file_of(folder, described, **backend)
    config: Any = file.backends[0]
    return list(remarks(config, file.origin.at("backends", 0)))


@pytest.mark.parametrize("version", ["3.0.3", "3.1.0", "3.2.0"])
def test_a_remark_has_file_pointer_and_remedy(tmp_path: Path, version: str) -> None:
    found = remarks_on(tmp_path, document(WRONG, version))
    assert {one.file for one in found} == {"api.json"}
    assert any(one.path.startswith("/paths/~1x/get") for one in found)
    assert all(one.message and len(one.message) < 400 and one.remedy for one in found)


def test_what_two_operations_refer_to_is_remarked_once(tmp_path: Path) -> None:
    shared = {"$ref": "#/components/parameters/n"}
    paths = {
        **operation(parameters=[shared]),
        **operation(path="/y", operationId="two", parameters=[shared]),
    }
    wrong = {"parameters": {"n": {"name": "n", "in": "query", "schema": {"type": "text"}}}}
    found = remarks_on(tmp_path, document(paths, components=wrong))
    told = [(one.path, one.message) for one in found]
    assert told
    assert len(told) == len(set(told))


def test_swagger_2_is_compared_with_its_own_specification(tmp_path: Path) -> None:
    swagger = {"swagger": "2.0", "info": {"title": "T", "version": "1"}, "host": "api.example.com"}
    get: dict[str, Any] = {"operationId": "op", "responses": {"200": {"description": "ok"}}}
    paths = {"/x": {"get": get}}
    assert remarks_on(tmp_path, {**swagger, "paths": paths}) == []
    get["parameters"] = [{"name": "n", "in": "nowhere", "type": "string"}]
    assert remarks_on(tmp_path, {**swagger, "paths": paths})


def test_a_document_as_it_should_be_has_none_also_when_an_overlay_made_it_so(
    tmp_path: Path,
) -> None:
    assert remarks_on(tmp_path, document(operation())) == []
    action = {"target": "$.paths.*.*.parameters[*].schema", "update": {"type": "integer"}}
    (tmp_path / "o.json").write_text(json.dumps({"overlay": "1.0.0", "actions": [action]}))
    assert remarks_on(tmp_path, document(WRONG), overlay=["o.json"]) == []


def test_check_tells_remarks_and_serves_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file_of(tmp_path, document(WRONG))
    assert main(["check", str(tmp_path / "gateway.json")]) == 0
    told = capsys.readouterr().out
    assert "tools (1)" in told
    assert "remarks (" in told


def test_references_are_followed_where_the_back_end_may_read_and_nowhere_else(
    tmp_path: Path,
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "secret.json").write_text('{"type": "SESAME"}')
    (tmp_path / "in/shared.json").write_text('{"type": "string"}')

    def found(reference: str) -> str:
        paths = operation(
            parameters=[{"name": "n", "in": "query", "schema": {"$ref": reference}}]
        ) | operation(path="/y", operationId="other")
        (tmp_path / "in/api.json").write_text(json.dumps(document(paths)))
        return " ".join(map(str, remarks_on(tmp_path, None, document="in/api.json")))

    assert found("shared.json") == ""
    for outside in ("../secret.json", (tmp_path / "secret.json").as_uri(), "http://127.0.0.1:1/x"):
        told = found(outside)
        assert told
        assert "SESAME" not in told


@pytest.mark.parametrize(
    "hostile",
    [
        {"$ref": "#/components/schemas/A"},
        {"allOf": [{"$ref": "#/components/schemas/A"}, {"$ref": "#/components/schemas/B"}]},
        {"type": 7, "properties": ["a"], "required": "x"},
        json.loads('{"allOf":[' * 200 + "{}" + "]}" * 200),
    ],
)
def test_the_check_ends_whatever_stands_in_a_document(tmp_path: Path, hostile: Any) -> None:
    schemas = {"A": hostile, "B": {"$ref": "#/components/schemas/A"}}
    described = document(operation(path="/y"), components={"schemas": schemas})
    assert len(remarks_on(tmp_path, described)) <= conformity.MOST


def test_where_it_is_not_installed_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openapi_spec_validator", None)
    [remark] = remarks_on(tmp_path, document(WRONG))
    assert "roundgate[openapi]" in remark.remedy
