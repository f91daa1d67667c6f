"""`roundgate stack` before anything is packed or started; what runs is tested in tests/roundgate_aws/stack."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundgate.cli import main

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
    assert "set API_KEY: the local stack does not read secrets at AWS" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
