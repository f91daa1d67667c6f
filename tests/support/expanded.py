"""`template.yaml` as CloudFormation gets it, expanded by SAM's translator in the tools' own
environment."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from typing import Any

import pytest

from tests.support.dynamodb import ROOT

PYTHON = ROOT / ".cache/template/bin/python"


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A module of `infra.template`; tests are skipped where its tools are not installed."""
    if not (ROOT / ".cache/template/.stamp").exists():
        pytest.skip("what expands the template is not installed: scripts/template --install")
    command = [str(PYTHON), "-m", f"infra.template.{module}", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@cache
def expanded(*parameters: str, path: str = "template.yaml") -> dict[str, Any]:
    """With parameters, as `NAME=VALUE`."""
    return _json("expand", path, *parameters)


@cache
def schemas() -> dict[str, Any]:
    """The schemas of the template's resource types, as AWS publishes them."""
    return _json("expand", "--schemas", "template.yaml")


def _json(module: str, *arguments: str) -> dict[str, Any]:
    ran = run(module, *arguments)
    assert ran.returncode == 0, ran.stderr
    source: dict[str, Any] = json.loads(ran.stdout)
    return source
