"""`roundgate new`, and what else makes a repository of one's own pleasant: the
nearest gateway.yaml, `--version`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from roundgate import config
from roundgate.cli import main, repository
from roundgate.errors import UsageError
from roundgate.runtime import loading
from roundgate_aws import options

PLACEHOLDER = re.compile(r"\{\{\w+\}\}")
PLAIN = ("-q", "-p", "no:asyncio", "-p", "no:xdist")
OPENAPI = {
    "openapi": "3.1.0",
    "info": {"title": "Shop", "version": "1"},
    "servers": [{"url": "https://shop.test"}],
    "paths": {
        "/orders": {"get": {"operationId": "orders", "responses": {"200": {"description": "all"}}}}
    },
}


def run(directory: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=directory, capture_output=True, text=True, timeout=240
    )


@pytest.mark.long
def test_what_is_written_passes_its_own_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "corner-shop"]) == 0
    shop = tmp_path / "corner-shop"
    written = {str(path.relative_to(shop)) for path in shop.rglob("*") if path.is_file()}
    assert set(capsys.readouterr().out.split()) >= written
    assert written >= {"gateway.yaml", "tools.py", "tests/test_tools.py", ".gitignore"}
    assert not [file for file in written if PLACEHOLDER.search((shop / file).read_text())]
    json.loads((shop / "gateway.schema.json").read_text())
    checked = run(shop / "tests", "roundgate.cli", "check")
    assert "refund" in checked.stdout, checked.stderr
    assert "gateway.yaml: no problems" in checked.stdout
    bare = [str(Path(sys.executable).with_name("pytest")), *PLAIN]  # cwd is not on its path
    tested = subprocess.run(bare, cwd=shop, capture_output=True, text=True, timeout=240)
    assert "4 passed" in tested.stdout, tested.stdout + tested.stderr


def test_the_operations_of_a_document_are_served_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "shop.json"
    document.write_text(json.dumps(OPENAPI))
    assert main(["new", str(tmp_path / "shop"), "--from", str(document)]) == 0
    assert main(["check", str(tmp_path / "shop" / "gateway.yaml")]) == 0
    assert "shop_api__orders" in capsys.readouterr().out  # `shop` is the back end of tools.py


def test_a_large_document_is_compiled_searched_approved_and_has_its_credential(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schemes = {
        "apiKey": {"type": "apiKey", "in": "header", "name": "X-Key"},
        "OAuth2": {"type": "oauth2", "flows": {}},
    }
    paths = {
        f"/items/{number}": {
            "delete": {
                "operationId": f"items.delete{number}",
                "tags": ["items" if number else "first"],
                "security": [{"apiKey": []} if number else {"OAuth2": []}],
                "responses": {"204": {"description": "gone"}},
            }
        }
        for number in range(45)
    }
    document = tmp_path / "Acme Openapi.json"
    described = {**OPENAPI, "paths": paths, "components": {"securitySchemes": schemes}}
    document.write_text(json.dumps(described))
    shop = tmp_path / "shop"
    assert main(["new", str(shop), "--from", str(document)]) == 0
    assert (shop / "acme.index").exists()
    text = (shop / "gateway.yaml").read_text()
    entry = yaml.safe_load(text)["backends"][1]
    assert (entry["name"], entry["approve"]) == ("acme", "destructive")
    assert entry["credentials"] == {
        "apiKey": {"header": "X-Key", "value": "${ACME_API_KEY:-unset}"},
        "OAuth2": {"bearer": "${ACME_OAUTH2:-unset}"},
    }
    assert '# include: [{tag: "items"}, {tag: "first"}]' in text
    assert "# ACME_API_KEY=\n" in (shop / ".env.example").read_text()
    capsys.readouterr()
    assert main(["check", "--file-only", str(shop / "gateway.yaml")]) == 0
    served = loading.load(config.load(shop / "gateway.yaml", {})).catalog
    listed = [name for name, _ in served.tool_pages.items]
    assert listed == ["search_tools", "describe_tool", "call_tool"]
    assert served.tools["acme__items_delete7"].tool.asks_first


@pytest.mark.long
def test_for_aws_there_are_parameters_and_a_workflow_whose_steps_pass(tmp_path: Path) -> None:
    document = tmp_path / "shop.json"
    document.write_text(json.dumps(OPENAPI))
    shop = tmp_path / "corner-shop"
    assert main(["new", str(shop), "--aws", "--from", str(document)]) == 0
    texts = [path.read_text() for path in shop.rglob("*") if path.is_file()]
    assert not [text for text in texts if PLACEHOLDER.search(text)]
    asked = options.completed(options.read_options("", []), shop / "gateway.yaml")
    assert (asked.stack, dict(asked.overrides)) == ("corner-shop", {})
    workflow = yaml.safe_load((shop / ".github/workflows/deploy.yml").read_text())
    assert workflow["permissions"]["id-token"] == "write"
    steps = [one["run"] for one in workflow["jobs"]["deploy"]["steps"] if "run" in one]
    (install, *tested), deploy = steps[:-1], steps[-1]
    extras = tomllib.loads((shop / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert install == f"pip install -e '.[{','.join(extras)}]'"
    assert (deploy, len(tested)) == ("roundgate deploy", 3)
    for step in tested:
        name, *rest = step.split()
        name = {"roundgate": "roundgate.cli"}.get(name, name)
        done = run(shop, name, *rest, *(PLAIN if name == "pytest" else ()))
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("change", "line"),
    [({"servers": [{"url": "/api"}]}, True), ({"servers": []}, True), ({}, False)],
    ids=["relative", "none", "absolute"],
)
def test_a_document_that_does_not_say_where_its_service_is_gets_a_place_to_correct(
    tmp_path: Path, change: dict[str, object], line: bool
) -> None:
    document = tmp_path / "the shop: all.json"
    document.write_text(json.dumps(OPENAPI | change))
    assert main(["new", str(tmp_path / "shop"), "--from", str(document)]) == 0
    text = (tmp_path / "shop" / "gateway.yaml").read_text()
    assert ('base_url: "http://127.0.0.1:8080"' in text) == line
    assert main(["check", str(tmp_path / "shop" / "gateway.yaml")]) == 0


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9911", "http://localhost:9911/v1", "https://orders.internal"]
)
def test_a_service_that_is_not_on_the_internet_is_where_its_document_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    document = tmp_path / "openapi.json"
    document.write_text(json.dumps(OPENAPI | {"servers": [{"url": url}]}))
    assert main(["new", str(tmp_path / "shop"), "--from", str(document)]) == 0
    text = (tmp_path / "shop" / "gateway.yaml").read_text()
    assert f'base_url: "{url}"' in text
    assert "does not say it" not in text
    assert main(["check", str(tmp_path / "shop" / "gateway.yaml")]) == 0
    assert "no problems" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("gateway.yaml", json.dumps(OPENAPI), "has its own gateway.yaml: rename"),
        ("tools.py", json.dumps(OPENAPI), "has its own tools.py: rename"),
        ("notes.md", "# Notes", "is not an OpenAPI document"),
        ("list.json", "[]", "is not an OpenAPI document"),
        ("half.json", '{"openapi": ', "is not JSON"),
    ],
)
def test_what_is_no_document_makes_no_repository(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, says: str
) -> None:
    document = tmp_path / name
    document.write_text(text)
    assert main(["new", str(tmp_path / "shop"), "--from", str(document)]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "shop").exists()


def test_a_document_by_url_is_asked_to_be_downloaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", str(tmp_path / "shop"), "--from", "https://shop.test/openapi.json"]) == 2
    assert "download the document, and pass the file" in capsys.readouterr().err


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "mine").write_text("mine")
    assert main(["new", str(tmp_path / "shop")]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "shop").iterdir()] == ["mine"]
    with pytest.raises(UsageError, match="lower-case letters"):
        repository.write_repository(tmp_path / "My Shop", None)
    with pytest.raises(UsageError, match="cannot be read"):
        repository.write_repository(tmp_path / "other", tmp_path / "none.json")
    assert not (tmp_path / "other").exists()


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"roundgate {version('roundgate')}\n")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a b", "use lower-case letters, digits and hyphens"),
        ("Shop", "use lower-case letters, digits and hyphens"),
        ("1shop", "use lower-case letters, digits and hyphens"),
        ("roundgate", "a package that the project requires"),
    ],
)
def test_a_name_that_no_project_can_have_is_refused_and_nothing_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, says: str
) -> None:
    assert main(["new", str(tmp_path / name)]) != 0
    assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_without_a_gateway_yaml_the_error_says_how_to_name_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GATEWAY_CONFIG", raising=False)
    assert main(["check"]) == 1
    assert "give the path of a gateway.yaml" in capsys.readouterr().err
