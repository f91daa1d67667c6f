"""`roundgate stack` before anything is packed or started; what runs is tested in tests/stack."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from roundgate import config
from roundgate.cli import deploy, main
from roundgate.deployment import runtime
from roundgate.deployment.stack import demo
from roundgate.runtime import loading

CONFIG = """
env: {REGION: eu, API_KEY: "${secret:till}"}
backends: [{kind: python, name: own, path: own.py}]
"""


def test_a_secret_of_aws_that_is_not_set_here_is_named_and_nothing_is_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gateway.yaml").write_text(CONFIG)
    (tmp_path / "own.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.delenv("API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    assert main(["stack", "--directory", str(tmp_path / "out")]) == 2
    assert "set API_KEY: what AWS keeps cannot be read on this machine" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_demonstration_stands_beside_a_document_and_an_overlay_of_the_repository(
    tmp_path: Path,
) -> None:
    (tmp_path / "shop").mkdir()
    for name, text in {
        "gateway.yaml": """
            backends:
              - {kind: openapi, name: shop, document: api/shop.yaml, overlay: [ours.yaml]}
              - {kind: python, name: own, path: own.py}
            """,
        "api/shop.yaml": """
            openapi: 3.1.0
            info: {title: Shop, version: "1"}
            servers: [{url: https://shop.example}]
            paths: {/orders: {get: {operationId: orders}}}
            """,
        "ours.yaml": """
            overlay: 1.0.0
            info: {title: Ours, version: "1"}
            actions: [{target: "$.paths['/orders'].get", update: {summary: All orders}}]
            """,
        "own.py": "from roundgate import tool\n\n@tool\ndef one() -> int:\n    return 1\n",
    }.items():
        (tmp_path / "shop" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "shop" / name).write_text(dedent(text))
    planned = deploy.planned_from(tmp_path / "shop" / "gateway.yaml", runtime.here())
    beside = demo.beside(planned, tmp_path / "shown")
    deploy.planned_from(beside, runtime.here(), is_compiled=True)
    served = loading.load(config.load(beside)).catalog
    assert {"shop__orders", "own__one", "demo__book"} <= served.tools.keys()
