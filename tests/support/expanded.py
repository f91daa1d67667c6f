"""The stack's template as CloudFormation gets it, expanded by SAM's translator in the tools' own
environment."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from roundgate_aws import parts
from roundgate_aws.template import StackTemplate
from tests.support.dynamodb import ROOT

PYTHON = ROOT / ".cache/template/bin/python"


def need_tools() -> None:
    """Skip the test where the tools are not installed."""
    if not (ROOT / ".cache/template/.stamp").exists():
        pytest.skip("what expands the template is not installed: scripts/template --install")


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a module of `infra.template`."""
    need_tools()
    command = [str(PYTHON), "-m", f"infra.template.{module}", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@cache
def expanded(api: str = parts.HTTP) -> dict[str, Any]:
    """The whole template for a kind of API."""
    return expansion(parts.assembled(api))


def expansion(source: dict[str, Any], *options: str) -> dict[str, Any]:
    """A template, expanded."""
    need_tools()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "template.yaml")
        path.write_text(parts.dump(source), "utf-8")
        return _json("expand", *options, str(path))


def resources(
    source: dict[str, Any], parameters: Mapping[str, str], known: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The resources of an expanded template that there are with these parameters, evaluated."""
    stack = StackTemplate(parameters, {"Queue": "https://queue", **(known or {})}, source)
    return {
        name: stack.value({key: value for key, value in one.items() if key != "Condition"})
        for name, one in source["Resources"].items()
        if "Condition" not in one or stack.holds({"Condition": one["Condition"]})
    }


@cache
def schemas() -> dict[str, Any]:
    """The schemas of the template's resource types, as AWS publishes them."""
    return {
        kind: schema
        for api in (parts.HTTP, parts.REST)
        for kind, schema in expansion(parts.assembled(api), "--schemas").items()
    }


def _json(module: str, *arguments: str) -> dict[str, Any]:
    ran = run(module, *arguments)
    assert ran.returncode == 0, ran.stderr
    source: dict[str, Any] = json.loads(ran.stdout)
    return source
