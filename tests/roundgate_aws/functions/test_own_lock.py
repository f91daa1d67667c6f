"""`scripts/tools lambda-lock`."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundgate.errors import ConfigError, Problem
from roundgate_aws import locking


def test_the_lock_is_written_anew_or_nothing_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lambda.lock"
    pin = locking.Pin("httpx", "0.28.1", frozenset({"0" * 64}))
    monkeypatch.setattr(locking, "of_roundgate", lambda source: locking.PackageLock(file, (pin,)))
    assert locking.main() == 0
    assert "httpx==0.28.1" in file.read_text()
    assert capsys.readouterr().out == f"{file}: 1 packages\n"
    written = file.read_text()

    def fail(source: Path) -> locking.PackageLock:
        assert (source / "pyproject.toml").is_file()
        raise ConfigError([Problem("pyproject.toml", "httpx", "has no wheel", "wait for one")])

    monkeypatch.setattr(locking, "of_roundgate", fail)
    assert locking.main() == 1
    assert "has no wheel" in capsys.readouterr().err
    assert file.read_text() == written
