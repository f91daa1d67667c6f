"""`roundgate schema`: what editors are told agrees with what the gateway takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator, meta

from roundgate import config
from roundgate.config import GatewayConfig
from roundgate.errors import ConfigError
from roundgate.settings import yaml_file
from tests.support.command import roundgate

ROOT = Path(__file__).parents[3]
CONFIGURATIONS = [
    path
    for folder in ("tests/conformance", "examples", "bench")
    for path in sorted((ROOT / folder).rglob("gateway*.yaml"))
]


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    """The schema, which the command prints and nothing else."""
    ran = roundgate("schema")
    assert (ran.status, ran.err) == (0, "")
    printed: dict[str, Any] = json.loads(ran.out)
    return printed


@pytest.fixture(scope="module")
def complaints(schema: dict[str, Any]) -> Callable[[Any], list[str]]:
    """What an editor has against a file."""
    validator = Draft202012Validator(schema)
    return lambda value: [error.message for error in validator.iter_errors(value)]


def test_the_command_prints_a_valid_schema_and_nothing_else(schema: dict[str, Any]) -> None:
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert meta.is_valid(schema)


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_configuration_in_the_repository_is_valid_to_both(
    path: Path, complaints: Callable[[Any], list[str]]
) -> None:
    config.load(path, {}, placeholder="http://127.0.0.1:1")  # for what each user has to set
    assert complaints(yaml_file.read(path).value) == []


TOOL = {
    "name": "t",
    "description": "d",
    "path": "/",
    "arguments": {"a": {"in": "query", "as": "b", "schema": {}}},
}
HTTP = {"kind": "http", "name": "a", "base_url": "http://h", "tools": [TOOL]}
GOOD = {"backends": [HTTP, {"kind": "python", "name": "b", "path": "b.py"}]}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"caching": {"read": {"ttl_ms": 5}, "tools": {"scope": "private"}}},
        {"limits": {"threads": "${THREADS:-4}", "call_timeout_s": 0.5}},
        {"http": {"allowed_hosts": ["*"], "path": "/a/b"}},
        {
            "backends": [
                HTTP | {"base_url": "${URL:-http://h}", "prefix": "", "timeout_s": "${T:-1}"}
            ]
        },
        {"backends": [HTTP | {"credential": {"header": "X-Key", "value": "${file:key}"}}]},
        {
            "backends": [
                HTTP | {"tools": [TOOL | {"method": "${METHOD:-PUT}", "read_only": "${R:-true}"}]}
            ]
        },
    ],
)
def test_what_the_gateway_takes_an_editor_takes(
    tmp_path: Path, complaints: Callable[[Any], list[str]], change: dict[str, Any]
) -> None:
    (tmp_path / "key").write_text("k")
    (tmp_path / "gateway.json").write_text(json.dumps(GOOD | change))
    config.load(tmp_path / "gateway.json", {})
    assert complaints(GOOD | change) == []


@pytest.mark.parametrize(
    "change",
    [
        {"servr": {}},
        {"limits": {"threads": 0}},
        {"limits": {"threads": "four"}},
        {"limits": {"thread": 4}},
        {"http": {"path": "mcp"}},
        {"caching": {"read": {"scope": "shared"}}},
        {"backends": []},
        {"backends": [{"kind": "grpc", "name": "a"}]},
        {"backends": [{"kind": "python", "name": "a b", "path": "a.py"}]},
        {"backends": [HTTP | {"base_url": "ftp://h"}]},
        {"backends": [HTTP | {"tools": [TOOL | {"method": "get"}]}]},
        {"backends": [HTTP | {"tools": [{"name": "t", "path": "/"}]}]},
    ],
)
def test_what_the_gateway_refuses_an_editor_refuses(
    tmp_path: Path, complaints: Callable[[Any], list[str]], change: dict[str, Any]
) -> None:
    (tmp_path / "gateway.json").write_text(json.dumps(GOOD | change))
    with pytest.raises(ConfigError):
        config.load(tmp_path / "gateway.json", {})
    assert complaints(GOOD | change)


def test_every_setting_has_a_description_for_the_editor(schema: dict[str, Any]) -> None:
    models = {GatewayConfig.__name__: schema, **schema["$defs"]}
    bare = [
        f"{model}.{name}"
        for model, definition in models.items()
        for name, described in definition["properties"].items()
        if not described.keys() & {"description", "$ref"} and name != "kind"
    ]
    assert bare == []
    assert all("description" in definition for definition in models.values())
