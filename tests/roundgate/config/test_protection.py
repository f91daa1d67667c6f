"""What keeps calls within bounds, and what another configuration changes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from roundgate.backends.catalog import Missing
from roundgate.config import load
from roundgate.runtime import loading
from roundgate.runtime.protection import Protection, changes, protection

TOOLS = '''
from roundgate import prompt, resource, tool

@tool(destructive=False, open_world=False, scopes=["shop"])
async def drop(account: int = 0) -> str:
    """Destroys something."""

@tool(read_only=True)
async def look() -> str:
    """Looks."""

@prompt
async def greet() -> str: ...

@resource("docs://{+path}")
async def document(path: str) -> str: ...
'''
AUTH = {"issuer": "https://a.example", "jwks_url": "https://a.example/keys", "scopes": ["use"]}


def protected(directory: Path, backend: dict[str, Any], **sections: Any) -> Protection:
    """Return the protection of a configuration with one back end."""
    (directory / "tools.py").write_text(TOOLS)
    file = directory / "gateway.yaml"
    shop = {"kind": "python", "name": "shop", "prefix": "", "path": "tools.py", **backend}
    file.write_text(yaml.safe_dump({"backends": [shop], **sections}))
    loaded = load(file)
    return protection(loaded, loading.load(loaded).catalog)


def changed(before: Protection, after: Protection) -> list[str]:
    return list(changes(before, after))


def drop(**override: Any) -> dict[str, Any]:
    return {"override": {"drop": override}}


DROP = "tool drop of shop"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (
            drop(approve="always"),
            drop(once=True),
            ["backends.shop: override.drop has changed", f"{DROP}: approval is false; it was true"],
        ),
        (
            drop(scopes=["a", "b"]),
            drop(scopes=["b"]),
            ["backends.shop: override.drop has changed", f"{DROP}: scopes has changed"],
        ),
        (
            drop(arguments={"account": {"fixed": 77}}),
            drop(arguments={"account": {"fixed": 7}}),
            ["backends.shop: override.drop has changed"],
        ),
        (drop(timeout_s=5), {}, ["backends.shop: override.drop has changed"]),
        ({}, drop(destructive=True), [f"{DROP}: destructive is true; it was false"]),
        (
            {"exclude": [{"name": "drop"}]},
            {},
            [
                "backends.shop: exclude has changed",
                f"{DROP} is served; it is new, or was left out",
            ],
        ),
        (
            {"approve": "destructive"},
            {"prefix": "x"},
            [
                "backends.shop: prefix has changed",
                "backends.shop: approve has changed",
            ],
        ),
        ({"limits": {"concurrent": 3}}, {}, ["backends.shop: limits has changed"]),
        (drop(name="purge"), drop(name="purge", description="Other."), []),
        (
            {"approve": "always"},
            {"name": "sho"},
            ["backends.shop is removed"],
        ),
    ],
)
def test_each_change_of_a_back_end_and_its_tools_is_named(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any], expected: list[str]
) -> None:
    old, new = protected(tmp_path, before), protected(tmp_path, after)
    assert changed(old, new) == expected
    assert changed(new, new) == []


def test_settings_of_a_view_are_protection(tmp_path: Path) -> None:
    strict = {"name": "admin", "include": [{"name": "drop"}]}
    old = protected(tmp_path, {}, views=[{**strict, "override": {"drop": {"approve": "always"}}}])
    new = protected(tmp_path, {}, views=[{"name": "admin", "include": [{"backend": "shop"}]}])
    assert changed(old, new) == [
        "views.admin: include has changed",
        "views.admin: override.drop has changed",
    ]
    assert changed(old, protected(tmp_path, {})) == ["views.admin is removed"]


def test_so_are_limits_auth_and_rate(tmp_path: Path) -> None:
    limits = {"call_timeout_s": 5, "page_size": 10}
    old = protected(tmp_path, {}, auth=AUTH, limits=limits, rate={"calls_per_minute": 60})
    other = {**AUTH, "scopes": []}
    assert changed(old, protected(tmp_path, {}, auth=other)) == [
        "auth: scopes has changed",
        "limits: call_timeout_s is 60; it was 5",
        "limits: page_size is not set; it was 10",
        "rate: calls_per_minute is not set; it was 60",
    ]


def test_any_change_of_the_rules_counts(tmp_path: Path) -> None:
    deny: dict[str, Any] = {"deny": {"tool": "drop"}}
    allow: dict[str, Any] = {"allow": {}}
    old = protected(tmp_path, {}, policy=[deny, allow])
    assert changed(old, protected(tmp_path, {}, policy=[allow, deny])) == [
        "policy: policy has changed"
    ]
    assert changed(old, protected(tmp_path, {})) == ["policy: policy has changed"]


def test_other_settings_are_no_protection(tmp_path: Path) -> None:
    old = protected(tmp_path, {}, server={"name": "a"})
    assert changed(old, protected(tmp_path, {}, server={"name": "b"})) == []


@pytest.mark.parametrize("selection", [{}, {"include": [{"name": "drop"}]}])
def test_the_tools_of_a_back_end_that_is_served_again_are_no_change(
    tmp_path: Path, selection: dict[str, Any]
) -> None:
    served = protected(tmp_path, selection)
    loaded = load(tmp_path / "gateway.yaml")
    catalog = loading.load(loaded).catalog
    gone = replace(catalog, tools={}, missing={"shop": Missing("", [])})
    assert changed(protection(loaded, gone), served) == []
    assert changed(served, protection(loaded, gone)) == []


@pytest.mark.parametrize(
    "view", [{"exclude": [{"name": "look"}]}, {"include": [{"backend": "shop"}]}]
)
def test_a_new_tool_counts_also_if_only_a_view_selects(
    tmp_path: Path, view: dict[str, Any]
) -> None:
    after = protected(tmp_path, {}, views=[{"name": "open", **view}])
    loaded = load(tmp_path / "gateway.yaml")
    catalog = loading.load(loaded).catalog
    tools = {name: served for name, served in catalog.tools.items() if name != "drop"}
    before = protection(loaded, replace(catalog, tools=tools))
    assert changed(before, after) == [f"{DROP} is served; it is new, or was left out"]
    assert changed(protected(tmp_path, {}), after) == []


WEB = {
    "kind": "http",
    "name": "web",
    "base_url": "https://shop.example.com/v1",
    "tools": [{"name": "look", "path": "/look", "description": "Looks."}],
}
PROXY = {"kind": "mcp", "name": "web", "command": ["true", "--read-only"]}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (WEB, {**WEB, "base_url": "https://shop.example.co"}, ["base_url has changed"]),
        ({**WEB, "headers": {"X-Tenant": "7"}}, WEB, ["headers has changed"]),
        ({**WEB, "tls": {"ca": "ca.pem"}}, WEB, ["tls has changed"]),
        (PROXY, {**PROXY, "command": ["true"]}, ["command has changed"]),
        ({**PROXY, "changes": "quarantine"}, PROXY, ["changes has changed"]),
        (WEB, {**WEB, "credential": {"bearer": "t"}, "retry": {"attempts": 2}}, []),
    ],
    ids=["destination", "header", "certificates", "command", "pins", "no protection"],
)
def test_a_setting_of_a_back_end_is_protection_unless_it_is_listed(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any], expected: list[str]
) -> None:
    protected(tmp_path, {})
    catalog = loading.load(load(tmp_path / "gateway.yaml")).catalog

    def served(backend: dict[str, Any]) -> Protection:
        file = tmp_path / "gateway.yaml"
        file.write_text(yaml.safe_dump({"backends": [backend]}))
        return protection(load(file), catalog)

    found = changed(served(before), served(after))
    assert found == [f"backends.web: {one}" for one in expected]
