"""Configurations that people write for back ends, which are not what they mean: each is
named with what to write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from roundgate import config
from roundgate.errors import ConfigError, Problem
from roundgate.runtime import loading
from tests.support.openapi import document

KEY = {"type": "apiKey", "in": "header", "name": "X-Key"}
USERS = {
    "/users": {"get": {"operationId": "users_list", "tags": ["Users"]}},
    "/users/{id}": {"delete": {"operationId": "users_delete", "tags": ["Users"]}},
}


def problems_of(folder: Path, backend: dict[str, Any]) -> list[Problem]:
    """What is wrong with a configuration with this back end."""
    described = document(USERS, components={"securitySchemes": {"Key": KEY}})
    (folder / "api.json").write_text(json.dumps(described))
    (folder / "gateway.json").write_text(json.dumps({"backends": [{"name": "api", **backend}]}))
    try:
        loading.load(config.load(folder / "gateway.json", {}))
    except ConfigError as error:
        return list(error.problems)
    return []


WRITTEN: list[tuple[dict[str, Any], str, str, str]] = [
    (
        {"include": [{"name": "user_list"}]},
        "include[0].name",
        "no tool is called 'user_list'",
        "without prefix",
    ),
    (
        {"exclude": [{"tag": "x"}, {"name": "user_delete"}]},
        "exclude[1].name",
        "no tool is called",
        "without prefix",
    ),
    (
        {"exclude": [{"name": "api__users_d*"}]},
        "exclude[0].name",
        "no tool is called 'api__",
        "without prefix",
    ),
    ({"include": [{"tag": "users"}]}, "include", "leaves no tool", "`roundgate check` lists"),
    ({"exclude": [{"tag": "Users"}]}, "exclude", "leaves no tool", "`roundgate check` lists"),
    (
        {"credential": {"bearer": "$TOKEN"}},
        "credential.bearer",
        "would be sent unchanged; write ${TOKEN}",
        "",
    ),
    ({"credential": {"basic": "$USER"}}, "credential.basic", "would be sent unchanged", ""),
    (
        {"headers": {"X-Key": "$KEY"}},
        "headers.X-Key",
        "would be sent unchanged; write ${KEY}",
        "",
    ),
    ({"credential": {"bearer": "Bearer abc"}}, "credential.bearer", "must be the token alone", ""),
    (
        {"credentials": {"Api": {"bearer": "k"}}},
        "credentials.Api",
        "is not a security scheme",
        "there are Key",
    ),
]


@pytest.mark.parametrize(("settings", "place", "message", "remedy"), WRITTEN)
def test_of_a_document(
    tmp_path: Path, settings: dict[str, Any], place: str, message: str, remedy: str
) -> None:
    backend = {"kind": "openapi", "document": "api.json", **settings}
    [problem] = problems_of(tmp_path, backend)
    assert problem.path == f"backends[0].{place}"
    assert message in problem.message
    assert remedy in problem.remedy


@pytest.mark.parametrize(
    "settings",
    [
        {"exclude": [{"name": "*_purge"}, {"method": "patch"}, {"name": "users_delete"}]},
        {"include": [{"name": "users_*"}, {"name": "teams_*"}]},
        {"credential": {"bearer": "a$TOKEN"}},
        {"credential": {"header": "Authorization", "value": "Token abc"}},
        {"credentials": {"Key": {"header": "X-Key", "value": "k"}}},
    ],
)  # fmt: skip
def test_what_may_be_meant_is_taken(tmp_path: Path, settings: dict[str, Any]) -> None:
    assert problems_of(tmp_path, {"kind": "openapi", "document": "api.json", **settings}) == []


@pytest.mark.parametrize(
    ("tool", "message"),
    [
        ({"path": "/orders/:id", "arguments": {"id": {"required": True}}}, "':id' is not a variable; write {id}"),
        ({"path": "/o", "arguments": {"id": {}}, "query": {"q": "{id}"}}, "and {id} would be sent unchanged"),
        ({"path": "/orders/{id}", "headers": {"X-Id": "{id}"}}, "header 'X-Id' is fixed, and {id} would be sent"),
    ],
)  # fmt: skip
def test_of_a_declared_tool(tmp_path: Path, tool: dict[str, Any], message: str) -> None:
    declared = {"name": "get_order", "description": "Gets one.", **tool}
    backend = {"kind": "http", "base_url": "https://shop.example.com", "tools": [declared]}
    [problem] = problems_of(tmp_path, backend)
    assert message in problem.message


def test_verbs_after_a_colon_and_braces_of_a_query_language_are_sent(tmp_path: Path) -> None:
    declared = {"name": "run", "description": "Runs.", "path": "/jobs/{id}:run/:all"}
    backend = {"kind": "http", "base_url": "https://shop.example.com", "tools": [declared]}
    backend["tools"] = [{**declared, "query": {"query": "{viewer}"}}]
    assert problems_of(tmp_path, backend) == []
