"""What a loaded configuration protects, and what another one no longer does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from roundgate.backends.catalog import Missing
from roundgate.config import load
from roundgate.runtime import loading
from roundgate.runtime.effective_policy import EffectivePolicy, effective_policy, losses

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

@prompt
async def abroad() -> str: ...

@resource("docs://{+path}")
async def document(path: str) -> str: ...
'''
AUTH = {"issuer": "https://a.example", "jwks_url": "https://a.example/keys", "scopes": ["use"]}


def policy(directory: Path, backend: dict[str, Any], **sections: Any) -> EffectivePolicy:
    """The policy of a configuration with one back end."""
    (directory / "tools.py").write_text(TOOLS)
    file = directory / "gateway.yaml"
    shop = {"kind": "python", "name": "shop", "prefix": "", "path": "tools.py", **backend}
    file.write_text(yaml.safe_dump({"backends": [shop], **sections}))
    loaded = load(file)
    return effective_policy(loaded, loading.load(loaded).catalog)


def drop(**changes: Any) -> dict[str, Any]:
    return {"override": {"drop": changes}}


VIEW = {"name": "admin", "include": [{"name": "drop"}]}


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [
        (
            drop(approve="always"),
            drop(once=True),
            ["tool drop no longer asks for an approval"],
        ),
        (drop(scopes=["a", "b"]), drop(scopes=["b"]), ["tool drop no longer needs the scope a"]),
        (
            drop(once=True),
            {},
            ["tool drop may run again when a client repeats a round (once)"],
        ),
        (drop(read_only=False), drop(read_only=True), ["tool drop is now marked as read-only"]),
        (drop(destructive=True), {}, ["tool drop is no longer marked as destructive"]),
        (
            drop(idempotent=False),
            drop(idempotent=True),
            ["tool drop is now marked as idempotent"],
        ),
        (
            drop(open_world=True),
            {},
            ["tool drop is no longer marked as reaching the outside world (open_world)"],
        ),
        (
            drop(arguments={"account": {"fixed": 7}}),
            {},
            ["tool drop no longer withholds the argument account from the model"],
        ),
        (
            drop(arguments={"account": {"fixed": 77}}),
            drop(arguments={"account": {"fixed": 7}}),
            ["tool drop has another fixed value of the argument account"],
        ),
        (
            drop(arguments={"account": {"hidden": True, "default": 77}}),
            drop(arguments={"account": {"hidden": True, "default": 7}}),
            ["tool drop has another fixed value of the argument account"],
        ),
        (drop(fields=["id"]), {}, ["tool drop now returns whole results (fields, result)"]),
        (
            drop(timeout_s=5),
            {},
            ["tool drop has a weaker limit: timeout_s is not set; it was 5"],
        ),
        (
            drop(max_result=500),
            drop(max_result=900),
            ["tool drop has a weaker limit: max_result is 900; it was 500"],
        ),
        (
            {"exclude": [{"name": "drop"}]},
            {},
            ["tool drop is served; include or exclude left it out before, or it is new"],
        ),
        (
            {"approve": "destructive"},
            {},
            ["back end shop: approve is never; it was destructive"],
        ),
        (drop(approve="always") | {"prefix": "x"}, drop(name="purge", once=True), [
            "tool purge no longer asks for an approval",
        ]),
    ],
)  # fmt: skip
def test_each_protection_of_a_tool_that_is_gone_is_named(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any], lost: list[str]
) -> None:
    old, new = policy(tmp_path, before), policy(tmp_path, after)
    assert losses(old, new) == lost
    assert losses(new, new) == []


def test_a_view_is_named_with_its_tool(tmp_path: Path) -> None:
    strict = {**VIEW, "override": {"drop": {"name": "purge", "approve": "always"}}}
    old = policy(tmp_path, {}, views=[strict])
    new = policy(tmp_path, {}, views=[{**VIEW, "include": [{"backend": "shop"}]}])
    assert losses(old, new) == [
        "tool drop of view admin no longer asks for an approval",
        "tool drop of view admin may run again when a client repeats a round (once)",
        "tool look of view admin is served; include or exclude left it out before, or it is new",
    ]


def test_a_default_of_a_back_end_is_fixed_by_a_view_that_hides_the_argument(
    tmp_path: Path,
) -> None:
    hides = {**VIEW, "override": {"drop": {"arguments": {"owner": {"hidden": True}}}}}
    old, new = (
        policy(
            tmp_path,
            drop(arguments={"account": {"name": "owner", "default": account}}),
            views=[hides],
        )
        for account in (77, 7)
    )
    assert losses(old, new) == [
        "tool drop of view admin has another fixed value of the argument owner"
    ]


def test_so_are_limits_and_auth(tmp_path: Path) -> None:
    old = policy(tmp_path, {}, auth=AUTH, limits={"call_timeout_s": 5, "page_size": 10})
    assert losses(old, policy(tmp_path, {})) == [
        "auth: callers no longer need a token",
        "limits: call_timeout_s is 60; it was 5",
        "limits: page_size is not set; it was 10",
    ]
    other = {**AUTH, "scopes": [], "issuer": "https://b.example"}
    assert losses(old, policy(tmp_path, {}, auth=other, limits={"call_timeout_s": 5})) == [
        "auth: calls no longer need the scope use",
        "auth: issuer has changed",
        "limits: page_size is not set; it was 10",
    ]


def test_so_are_limits_on_calls(tmp_path: Path) -> None:
    old = policy(
        tmp_path,
        {},
        auth=AUTH,
        rate={
            "calls_per_minute": 60,
            "concurrent": 5,
            "shared": True,
            "tools": {"drop": {"calls_per_minute": 6}},
            "scopes": {"gold": {"calls_per_minute": 600}},
        },
    )
    assert losses(old, policy(tmp_path, {}, auth=AUTH)) == [
        "rate: calls_per_minute is not set; it was 60",
        "rate: burst is not set; it was 60",
        "rate: concurrent is not set; it was 5",
        "rate of scope gold: calls_per_minute is not set; it was 600",
        "rate of scope gold: burst is not set; it was 600",
        "rate of tools drop: calls_per_minute is not set; it was 6",
        "rate of tools drop: burst is not set; it was 6",
        "rate: each process counts calls by itself (shared)",
    ]
    more = {"calls_per_minute": 60, "scopes": {"silver": {"calls_per_minute": 90, "burst": 9}}}
    assert losses(
        policy(tmp_path, {}, auth=AUTH, rate={"calls_per_minute": 60}),
        policy(tmp_path, {}, auth=AUTH, rate=more),
    ) == [
        "rate of scope silver: calls_per_minute is 90; it was 60",
    ]


DENY: dict[str, Any] = {"deny": {"tool": "drop"}}
OTHER: dict[str, Any] = {"deny": {"hint": "destructive", "arguments": {"required": ["account"]}}}
LOOK: dict[str, Any] = {"allow": {"tool": "look"}}
ALL: dict[str, Any] = {"allow": {}}


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [
        ([DENY, ALL], None, ["policy: calls no longer need a rule"]),
        (None, [DENY, ALL], []),
        ([DENY, ALL], [ALL], ["policy: rule policy[0] no longer denies calls"]),
        ([DENY, ALL], [{"name": "same", **DENY}, ALL], []),
        ([DENY, ALL], [DENY, OTHER, ALL], []),
        ([DENY, LOOK, ALL], [DENY, ALL], []),
        ([DENY, LOOK, ALL], [OTHER, DENY, LOOK], []),
        ([LOOK], [LOOK, ALL], ["policy: rule policy[1] allows calls; it is new or has changed"]),
        ([DENY, ALL], [ALL, DENY], ["policy: the rules have another order"]),
        (
            [DENY, {"name": "all", **ALL}],
            [{"deny": {"tool": "drop", "arguments": {}}}, {"name": "all", "allow": {"tool": "*"}}],
            [
                "policy: rule policy[0] no longer denies calls",
                "policy: rule all allows calls; it is new or has changed",
            ],
        ),
    ],
)
def test_rules_that_may_allow_more_are_named(
    tmp_path: Path, before: Any, after: Any, lost: list[str]
) -> None:
    was, now = (
        policy(tmp_path, {}, **({} if rules is None else {"policy": rules}))
        for rules in (before, after)
    )
    assert losses(was, now) == lost


PLANS: dict[str, Any] = {"deny": {"resource": "docs://plans/*"}}
READ: dict[str, Any] = {"allow": {"resource": "docs://*"}}
GREET: dict[str, Any] = {"allow": {"prompt": "greet"}}


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [
        ([DENY, ALL], [PLANS, DENY, ALL], []),
        ([LOOK], [LOOK, READ, GREET], []),
        ([PLANS, ALL], [ALL], [
            "policy: resources no longer need a rule, because none names a resource",
        ]),
        ([PLANS, ALL, READ], [ALL, READ], ["policy: rule policy[0] no longer denies calls"]),
        ([PLANS, LOOK, READ], [LOOK], [
            "policy: resources no longer need a rule, because none names a resource",
        ]),
        ([LOOK, GREET], [LOOK, READ], [
            "policy: prompts no longer need a rule, because none names a prompt",
        ]),
        ([PLANS, READ], [READ, PLANS], ["policy: the rules have another order"]),
        ([PLANS, READ, LOOK], [LOOK, PLANS, READ], []),
        ([DENY, PLANS, GREET], [DENY, PLANS, GREET, READ, LOOK], [
            "policy: rule policy[4] allows calls; it is new or has changed",
            "policy: rule policy[3] allows calls; it is new or has changed",
        ]),
    ],
)  # fmt: skip
def test_rules_are_compared_for_the_targets_that_they_concern(
    tmp_path: Path, before: Any, after: Any, lost: list[str]
) -> None:
    was, now = (policy(tmp_path, {}, policy=rules) for rules in (before, after))
    assert losses(was, now) == lost


def test_another_prefix_that_leads_out_of_a_rule_is_a_loss(tmp_path: Path) -> None:
    rules = [{"deny": {"prompt": "ab*"}}, {"allow": {"prompt": "*"}}]
    named = [policy(tmp_path, {"prefix": prefix}, policy=rules) for prefix in ("ab", "")]
    assert losses(*named) == ["prompt greet is no longer denied by rule policy[0]"]
    assert losses(*reversed(named)) == []


def test_a_name_that_leads_out_of_a_rule_or_into_one_is_a_loss(tmp_path: Path) -> None:
    rules = [
        {"deny": {"tool": "*o*"}},
        {"name": "looking", "allow": {"tool": "*k"}},
        {"allow": {"hint": "read_only"}},
    ]
    named = [policy(tmp_path, drop(name=name), policy=rules) for name in ("drop", "back")]
    assert losses(*named) == [
        "tool back is no longer denied by rule policy[0]",
        "tool back is now allowed by rule looking",
    ]
    assert losses(*reversed(named)) == []


def test_policies_of_the_same_protection_are_equal_and_more_of_it_is_no_loss(
    tmp_path: Path,
) -> None:
    loose = policy(tmp_path, {})
    strict = policy(tmp_path, {"approve": "always"}, auth=AUTH, limits={"call_timeout_s": 5})
    assert loose == policy(tmp_path, {}, server={"name": "other"})
    assert loose != strict
    assert losses(loose, strict) == []


def test_the_tools_of_a_back_end_that_is_served_again_are_no_loss(tmp_path: Path) -> None:
    chosen = {"exclude": [{"name": "look"}]}
    served = policy(tmp_path, chosen, views=[VIEW])
    loaded = load(tmp_path / "gateway.yaml")
    away = loading.load(loaded).catalog
    gone = replace(
        away,
        tools={},
        views={"admin": replace(away.views["admin"], tools={})},
        missing={"shop": Missing("", [])},
    )
    assert losses(effective_policy(loaded, gone), served) == []


@pytest.mark.parametrize("name", ["sho", "store"], ids=["a name that is cut", "a new name"])
def test_a_back_end_under_another_name_is_the_same(tmp_path: Path, name: str) -> None:
    old = policy(tmp_path, {"approve": "always", "include": [{"name": "look"}]})
    assert losses(old, policy(tmp_path, {"name": name})) == [
        f"back end {name}: approve is never; it was always",
        "tool drop is served; include or exclude left it out before, or it is new",
        "tool look no longer asks for an approval",
        "tool look may run again when a client repeats a round (once)",
    ]
    assert losses(policy(tmp_path, {}), policy(tmp_path, {"name": name})) == []


def test_a_tool_that_takes_the_name_of_another_is_held_to_its_protection(tmp_path: Path) -> None:
    (tmp_path / "new.py").write_text(TOOLS.replace("def look", "def glance"))
    old = policy(tmp_path, {"approve": "always"})
    other = policy(tmp_path, {"name": "other", "path": "new.py", "prefix": ""})
    lost = losses(old, other)
    assert "tool drop no longer asks for an approval" in lost
    assert not [one for one in lost if "glance" in one]


def test_credentials_that_may_go_elsewhere_are_named(tmp_path: Path) -> None:
    def served(base_url: str, **more: Any) -> EffectivePolicy:
        tools = [{"name": "look", "path": "/look", "description": "Looks."}]
        remote = {"kind": "http", "name": "web", "base_url": base_url, "tools": tools, **more}
        file = tmp_path / "gateway.yaml"
        file.write_text(yaml.safe_dump({"backends": [remote]}))
        loaded = load(file)
        return effective_policy(loaded, loading.load(loaded).catalog)

    whole, cut = "https://shop.example.com/v1", "https://shop.example.co"
    for secret in ({"credential": {"bearer": "hunter2"}}, {"headers": {"X-Api-Key": "hunter2"}}):
        assert losses(served(whole, **secret), served(cut, **secret)) == [
            "back end web: its credentials may go to https://shop.example.co"
        ]
    assert losses(served(whole), served(cut)) == []


@pytest.mark.parametrize(
    ("shop", "is_protected"),
    [
        ({"approve": "always"}, True),
        ({"exclude": [{"name": "drop"}]}, True),
        (drop(arguments={"account": {"fixed": 7}}) | {"exclude": []}, True),
        ({"include": [{"name": "look"}], "approve": "never"}, True),
        ({"path": "plain.py"}, False),
    ],
)
def test_a_protected_back_end_that_is_gone_counts(
    tmp_path: Path, shop: dict[str, Any], is_protected: bool
) -> None:
    (tmp_path / "plain.py").write_text(TOOLS.replace(', scopes=["shop"]', ""))
    (tmp_path / "other.py").write_text(
        "from roundgate import tool\n\n@tool\ndef other() -> int: ...\n"
    )
    other = {"name": "other", "path": "other.py"}
    lost = losses(policy(tmp_path, shop), policy(tmp_path, other))
    assert (lost == ["back end shop is removed, with its protection"]) is is_protected
    assert is_protected or not lost
