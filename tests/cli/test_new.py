"""`roundgate new`, and what else makes a repository of one's own pleasant: the nearest gateway.yaml, `--version`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from roundgate.cli import main, new
from roundgate.errors import UsageError

PLACEHOLDER = re.compile(r"\{\{\w+\}\}")
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
    tested = run(shop, "pytest", "-q", "-p", "no:asyncio", "-p", "no:xdist")
    assert "3 passed" in tested.stdout, tested.stdout + tested.stderr


def test_the_operations_of_a_document_are_served_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "shop.json"
    document.write_text(json.dumps(OPENAPI))
    assert main(["new", str(tmp_path / "shop"), "--from", str(document)]) == 0
    assert main(["check", str(tmp_path / "shop" / "gateway.yaml")]) == 0
    assert "service__orders" in capsys.readouterr().out


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "mine").write_text("mine")
    assert main(["new", str(tmp_path / "shop")]) == 2
    assert "is there and not empty" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "shop").iterdir()] == ["mine"]
    with pytest.raises(UsageError, match="lower-case letters"):
        new.write(tmp_path / "My Shop", None)
    with pytest.raises(UsageError, match="cannot be read"):
        new.write(tmp_path / "other", tmp_path / "none.json")
    assert not (tmp_path / "other").exists()


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"roundgate {version('roundgate')}\n")


def test_without_a_gateway_yaml_the_error_says_how_to_name_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GATEWAY_CONFIG", raising=False)
    assert main(["check"]) == 1
    assert "give the path of a gateway.yaml" in capsys.readouterr().err
