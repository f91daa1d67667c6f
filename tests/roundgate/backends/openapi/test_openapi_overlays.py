"""Overlays: what they change of a document, in which order, and what is said
of those that are wrong."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from roundgate.backends.openapi import compiling, overlays
from roundgate.backends.openapi.index import read, write
from roundgate.errors import ConfigError, Problem
from tests.support.openapi import Compiled, compiled, document, file_of, operation


def overlay(folder: Path, *actions: dict[str, Any], name: str = "ours.yaml", **more: Any) -> str:
    whole = {"overlay": "1.0.0", "info": {"title": "Ours", "version": "1"}, "actions": actions}
    (folder / name).write_text(yaml.safe_dump(json.loads(json.dumps({**whole, **more}))))
    return name


PETS = operation(path="/pets", summary="Pets", tags=["a"]) | {
    "/admin/keys": {"delete": {"operationId": "drop", "responses": {}, "x-internal": True}},
    "/admin/users": {"get": {"operationId": "users", "responses": {}}},
}


def problems_of(folder: Path, **backend: Any) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        compiled(folder, document(PETS), **backend)
    return list(caught.value.problems)


def test_actions_update_and_remove_in_order(tmp_path: Path) -> None:
    first = overlay(
        tmp_path,
        {"target": "$.paths[?@.delete['x-internal'] == true]", "remove": True},
        {"target": "$.paths['/pets'].get", "update": {"summary": "All our pets", "tags": ["b"]}},
        {
            "target": "$.paths['/pets'].get",
            "update": {"parameters": [{"name": "n", "in": "query", "schema": {"type": "integer"}}]},
        },
    )
    second = overlay(
        tmp_path,
        {"target": "$.paths.*.get.parameters", "update": {"name": "m", "in": "query"}},
        {"target": "$.paths['/pets'].get", "update": {"operationId": "pets"}},
        name="more.yaml",
    )
    index = compiled(tmp_path, document(PETS), overlay=[first, second])
    assert [row.name for row in index.rows] == ["pets", "users"]
    one = Compiled(index, "pets")
    assert one.row.tags == ("a", "b")
    assert one.definition["title"] == "All our pets"
    assert list(one.schema["properties"]) == ["n", "m"]
    assert index.problems == []


def test_the_document_of_somebody_else_stays_as_it_is() -> None:
    given = document(PETS)
    before = json.dumps(given)
    actions = overlays.read_actions(
        "o", {"overlay": "1.0.0", "actions": [{"target": "$.paths.*", "remove": True}]}
    )
    assert overlays.overlaid(given, actions)[0]["paths"] == {}
    assert json.dumps(given) == before


def test_several_items_of_one_list_and_what_is_within_them_are_removed() -> None:
    def left(target: str) -> Any:
        actions = [{"target": target, "remove": True}]
        made = overlays.read_actions("o", {"overlay": "1.0.0", "actions": actions})
        return overlays.overlaid({"a": [0, {"a": [1]}, 2, 3]}, made)[0]

    assert left("$.a[0, 2]") == {"a": [{"a": [1]}, 3]}
    assert left("$.a[0, 0, -1]") == {"a": [{"a": [1]}, 2]}
    assert left("$..a") == {}
    assert left("$..[0]") == {"a": [{"a": []}, 2, 3]}


def test_an_action_whose_target_is_nowhere_is_named_and_with_strict_an_error(
    tmp_path: Path,
) -> None:
    name = overlay(tmp_path, {"target": "$.paths['/pet']", "remove": True})
    index = compiled(tmp_path, document(PETS), overlay=[name])
    [problem] = index.problems
    assert (problem.file, problem.path) == ("ours.yaml", "/actions/0")
    assert "$.paths['/pet']" in problem.message
    assert (len(index.rows), index.left_out) == (3, 0)
    assert problems_of(tmp_path, overlay=[name], strict=True) == [problem]


def test_of_a_folder_of_documents_one_has_to_have_the_target(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for name, paths in (("a", PETS), ("b", operation(path="/other"))):
        (tmp_path / f"docs/{name}.json").write_text(json.dumps(document(paths)))
    name = overlay(tmp_path, {"target": "$.paths['/pets']", "remove": True})
    index = compiled(tmp_path, None, document="docs", overlay=[name])
    assert (len(index.rows), index.problems) == (3, [])


@pytest.mark.parametrize(
    ("action", "pointer", "message"),
    [
        ({"remove": True}, "/actions/0", "is not an action"),
        ({"target": "$.paths"}, "/actions/0", "changes nothing"),
        ({"target": "$.paths", "remove": "yes"}, "/actions/0", "changes nothing"),
        ({"target": "paths.x", "remove": True}, "/actions/0/target", "is not JSONPath"),
        ({"target": "$[?(@", "remove": True}, "/actions/0/target", "is not JSONPath"),
        ({"target": "$.info", "copy": "$.x"}, "/actions/0/copy", "is not a member of an action"),
        ({"target": "$", "remove": True}, "/actions/0", "removes the whole document"),
        ({"target": "$.info.title", "update": "x"}, "/actions/0", "at /info/title"),
        ({"target": "$.info", "update": "x"}, "/actions/0", "the update of an object"),
    ],
)
def test_what_is_wrong_with_an_action_is_said_with_its_place(
    tmp_path: Path, action: dict[str, Any], pointer: str, message: str
) -> None:
    [problem] = problems_of(tmp_path, overlay=[overlay(tmp_path, action)])
    assert (problem.file, problem.path) == ("ours.yaml", pointer)
    assert message in problem.message
    assert problem.remedy


def test_what_is_no_overlay_is_said_to_be_none(tmp_path: Path) -> None:
    for text in ("[]", "openapi: 3.1.0", "overlay: 2.0.0", "overlay: 1.0.0", "overlay: {", ""):
        (tmp_path / "ours.yaml").write_text(text)
        [problem] = problems_of(tmp_path, overlay=["ours.yaml"])
        assert "ours.yaml" in str(problem)
    [problem] = problems_of(tmp_path, overlay=["missing.yaml"])
    assert problem.path == "backends[0].overlay[0]"


def test_an_overlay_cannot_make_a_document_gigantic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlays, "MAX_ADDED", 10_000)
    twice = {"target": "$..*", "update": {"a": {}, "b": {}}}
    doubles = {"target": "$..bomb", "update": {"bomb": []}}
    bomb = [{"target": "$.info", "update": {"bomb": []}}, *[doubles] * 40]
    [problem] = problems_of(tmp_path, overlay=[overlay(tmp_path, *bomb)])
    assert "add more than" in problem.message
    [problem] = problems_of(tmp_path, overlay=[overlay(tmp_path, twice)])
    assert "only objects and lists" in problem.message


def test_an_index_is_out_of_date_when_an_overlay_changes(tmp_path: Path) -> None:
    name = overlay(tmp_path, {"target": "$.paths['/pets']", "remove": True})
    file = file_of(tmp_path, document(PETS), overlay=[name])
    origin = file.origin.at("backends", 0)
    index = compiled(tmp_path, document(PETS), overlay=[name])
    assert [where for where, _, _ in index.sources] == ["ours.yaml", "api.json"]
    compiling.compile_to_file(file.backends[0], origin)  # type: ignore[arg-type]
    assert write(read(tmp_path / "api.index")) == write(index)


def test_without_the_package_what_to_install_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jsonpath_rfc9535", None)
    name = overlay(tmp_path, {"target": "$.paths", "remove": True})
    [problem] = problems_of(tmp_path, overlay=[name])
    assert "roundgate[openapi]" in problem.remedy


def test_the_overlay_of_the_example_makes_an_upload_of_a_list(tmp_path: Path) -> None:
    schema = {"type": "array", "items": {}}
    content = {kind: {"schema": schema} for kind in ("application/json", "multipart/form-data")}
    path = "/api/projects/{id}/import"
    paths = operation("post", path, requestBody={"required": True, "content": content})
    example = Path(__file__).parents[4] / "examples/labels/overlay.yaml"
    one = Compiled(compiled(tmp_path, document(paths), overlay=[str(example)]))
    assert set(one.schema["properties"]) == {"id", "file"}
    assert one.plan.body is not None
    assert one.plan.body.encoding["file"].is_file
