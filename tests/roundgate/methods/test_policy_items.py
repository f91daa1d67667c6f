"""Rules about prompts, resources and skills: what a caller finds, and every way around that a caller
may try."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from roundgate import prompt, resource, tool
from roundgate.auth import Principal
from roundgate.backends import Catalog
from roundgate.errors import ConfigError, ResourceNotFound
from roundgate.runtime import loading
from roundgate.settings import Settings
from roundgate_testing import fake_context
from tests.support import wire
from tests.support.asgi import Client, Exchange, client, config_file, gateway
from tests.support.audit import KEY, records
from tests.support.issuer import PUBLIC_URL, bearer, gateway_for, guarded, token
from tests.support.log_lines import log_lines
from tests.support.scripted import Asked, result, scripted
from tests.support.sessions import opened
from tests.support.skills import answer, code
from tests.support.upstreams import gateway_of

SECRET = "docs://secret/plan"
OPEN = "docs://open/plan"


@prompt(complete={"name": ["Ann", "Bo"]})
def greet(name: str = "you") -> str:
    """Greet a person."""
    return f"Hello {name}"


@prompt
def audit() -> str:
    """Audit the books."""
    return "Audit!"


@resource(SECRET)
def secret() -> str:
    """A secret plan."""
    return "secret"


@resource(OPEN)
def public() -> str:
    """An open plan."""
    return "open"


@resource("docs://{folder}/{file}", complete={"folder": ["open", "secret"], "file": ["a", "b"]})
def document(folder: str, file: str) -> str:
    """A document."""
    return f"{folder} {file}"


@tool
def look() -> str:
    """Look."""
    return "looked"


ALL = (greet, audit, secret, public, document, look)
STAFF: dict[str, Any] = {"claims": {"groups": "staff"}}
RULES: list[dict[str, Any]] = [
    {"deny": {"claims": {"groups": "suspended"}}},
    {"allow": {"prompt": "audit", "resource": "docs://secret/*", **STAFF}},
    {"name": "secret", "deny": {"prompt": "audit", "resource": "docs://secret/*"}},
    {"allow": {}},
]


@asynccontextmanager
async def library(rules: list[dict[str, Any]] = RULES, **more: Any) -> AsyncIterator[Client]:
    async with gateway_for(*ALL, policy=rules, **more) as (mcp, _):
        yield mcp


def of(*groups: str) -> dict[str, str | None]:
    return bearer(token(groups=list(groups) or None))


async def ask(mcp: Client, headers: Any, method: str, **params: Any) -> dict[str, Any]:
    body: dict[str, Any] = (await mcp.post(method, params, headers=headers)).json()
    return body


AUTH = {"issuer": "https://a.example", "jwks_url": "https://a.example/keys"}
LISTS = {
    "tools/list": ("tools", "name"),
    "prompts/list": ("prompts", "name"),
    "resources/list": ("resources", "uri"),
    "resources/templates/list": ("resourceTemplates", "uriTemplate"),
}


async def listed(mcp: Client, headers: Any) -> list[list[str]]:
    lists = []
    for method, (member, key) in LISTS.items():
        entries = (await ask(mcp, headers, method))["result"][member]
        lists.append([entry[key] for entry in entries])
    return lists


async def test_a_caller_sees_the_prompts_and_resources_that_it_may_use() -> None:
    template = ["docs://{folder}/{file}"]
    async with library() as mcp:
        assert await listed(mcp, of()) == [["look"], ["greet"], [OPEN], template]
        everything = [["look"], ["greet", "audit"], [SECRET, OPEN], template]
        assert await listed(mcp, of("staff")) == everything
        assert await listed(mcp, of("staff", "suspended")) == [[], [], [], []]
        for method in LISTS:
            found = (await ask(mcp, of(), method))["result"]
            assert found["cacheScope"] == "private"


@pytest.mark.parametrize(
    ("rules", "scope"),
    [(RULES, "private"), ([{"allow": {"resource": "*"}}], "public"), ([{"allow": {}}], "public")],
)
async def test_contents_that_depend_on_the_caller_are_private(rules: Any, scope: str) -> None:
    async with library(rules, caching={"read": {"scope": "public", "ttl_ms": 9}}) as mcp:
        read = (await ask(mcp, of("staff"), "resources/read", uri=OPEN))["result"]
        assert (read["cacheScope"], read["ttlMs"]) == (scope, 9)


def test_other_rules_are_another_list() -> None:
    def catalog(*rules: dict[str, Any]) -> Catalog:
        return loading.load(
            config_file(*ALL, policy=[*rules, {"name": "all", "allow": {}}])
        ).catalog

    deny = {"name": "secret", "deny": {"resource": SECRET}}
    assert catalog(deny).lists_that_differ(catalog(deny)) == frozenset()
    assert catalog().lists_that_differ(catalog(deny)) == {"resources"}
    by_tool = {"deny": {"tool": "look"}}
    assert catalog(deny).lists_that_differ(catalog(deny, by_tool)) == {"tools"}


REQUESTS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("prompts/get", {"name": "audit"}, {"name": "XXXXX"}),
    ("resources/read", {"uri": SECRET}, {"uri": "docs://absent"}),
    (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "audit"}, "argument": {"name": "a", "value": ""}},
        {"ref": {"type": "ref/prompt", "name": "XXXXX"}, "argument": {"name": "a", "value": ""}},
    ),
    (
        "completion/complete",
        {"ref": {"type": "ref/resource", "uri": SECRET}, "argument": {"name": "a", "value": ""}},
        {
            "ref": {"type": "ref/resource", "uri": "docs://x"},
            "argument": {"name": "a", "value": ""},
        },
    ),
]


@pytest.mark.parametrize(("method", "refused", "unknown"), REQUESTS)
async def test_a_refused_prompt_or_resource_looks_as_an_unknown_one(
    method: str, refused: dict[str, Any], unknown: dict[str, Any]
) -> None:
    def without_names(body: Any) -> str:
        return re.sub(r"audit|XXXXX|docs://[a-z/]+", "NAME", str(body))

    async with library() as mcp:
        one, other = [await ask(mcp, of(), method, **params) for params in (refused, unknown)]
        assert one["error"]["code"] == -32602
        assert without_names(one) == without_names(other)
        assert "result" in await ask(mcp, of("staff"), method, **refused)


async def test_a_session_is_checked_as_a_request_is(tmp_path: Path) -> None:
    rules: list[dict[str, Any]] = [{"deny": {"resource": SECRET, "prompt": "audit"}}, {"allow": {}}]
    app = gateway(*ALL, policy=rules)
    session = await opened(app)
    found = await session.result(app, "resources/list", {})
    assert [entry["uri"] for entry in found["resources"]] == [OPEN]
    assert (await session.error(app, "resources/read", {"uri": SECRET}))["code"] == -32002
    assert (await session.error(app, "prompts/get", {"name": "audit"}))["code"] == -32602
    refused = await session.error(app, "resources/subscribe", {"uri": SECRET})
    assert refused["code"] == -32002
    assert await session.result(app, "resources/subscribe", {"uri": OPEN}) == {}


async def test_a_stream_leaves_out_refused_resources() -> None:
    rules: list[dict[str, Any]] = [{"deny": {"resource": "docs://secret/*"}}, {"allow": {}}]
    wanted = {"resourceSubscriptions": [SECRET, OPEN, "docs://secret/later", "docs://%73ecret/x"]}
    asked = wire.message("subscriptions/listen", {"notifications": wanted})
    async with Exchange(gateway(*ALL, policy=rules), asked) as stream:
        first = await stream.event()
    assert first is not None
    assert first["params"]["notifications"] == {"resourceSubscriptions": [OPEN]}


async def test_completions_lead_to_no_refused_resource() -> None:
    async def values(headers: Any, argument: str, **known: str) -> list[str]:
        asked = {
            "ref": {"type": "ref/resource", "uri": "docs://{folder}/{file}"},
            "argument": {"name": argument, "value": ""},
            "context": {"arguments": known},
        }
        completion = (await ask(mcp, headers, "completion/complete", **asked))["result"]
        return list(completion["completion"]["values"])

    async with library() as mcp:
        assert await values(of(), "folder") == ["open"]
        assert await values(of("staff"), "folder") == ["open", "secret"]
        assert await values(of(), "file", folder="secret") == []
        assert await values(of(), "file", folder="open") == ["a", "b"]


@pytest.mark.parametrize(
    "rules",
    [
        [{"deny": {}}],
        [{"deny": {"claims": {"groups": "*"}}}, {"allow": {"tool": "look"}}],
        [{"deny": {"backend": "python"}}],
        [{"allow": {"hint": "read_only"}}],
    ],
)
async def test_prompts_and_resources_need_no_rule_if_none_names_them(rules: Any) -> None:
    async with library(rules) as mcp:
        _, prompts, resources, _ = await listed(mcp, of("staff"))
        assert (prompts, resources) == (["greet", "audit"], [SECRET, OPEN])
        assert "result" in await ask(mcp, of("staff"), "prompts/get", name="audit")
        assert "result" in await ask(mcp, of("staff"), "resources/read", uri=SECRET)


def test_a_start_names_the_kinds_without_rules() -> None:
    with log_lines() as lines:
        gateway(*ALL, policy=[{"deny": {}}])
        gateway(*ALL, policy=[{"allow": {"prompt": "*"}}])
        gateway(*ALL, policy=RULES, auth=AUTH, using=Settings(public_url=PUBLIC_URL))
        gateway(*ALL)
        gateway(look, policy=[{"deny": {}}])
    told = lines.of("the policy has no rule for prompts or resources")
    assert [line["kinds"] for line in told] == [["prompt", "resource"], ["resource"]]


async def test_only_the_named_kind_needs_a_rule() -> None:
    async with library([{"allow": {"tool": "look"}}, {"allow": {"prompt": "greet"}}]) as mcp:
        assert await listed(mcp, of()) == [
            *(["look"], ["greet"], [SECRET, OPEN]),
            ["docs://{folder}/{file}"],
        ]


async def test_rules_are_of_a_view_and_a_back_end() -> None:
    rules: list[dict[str, Any]] = [
        {"deny": {"resource": "*", "view": "desk"}},
        {"deny": {"prompt": "*", "backend": "python", "view": ""}},
        {"allow": {"prompt": "*", "resource": "*"}},
    ]
    views = [{"name": "desk", "prompts": ["*"], "resources": ["*"]}]
    async with client(gateway(*ALL, policy=rules, views=views)) as mcp:
        assert (await listed(mcp, {}))[1:3] == [[], [SECRET, OPEN]]
        desk = Client(mcp.http, "/desk/mcp")
        assert (await listed(desk, {}))[1:] == [["greet", "audit"], [], []]
        assert (await ask(desk, {}, "resources/read", uri=OPEN))["error"]["code"] == -32602


async def test_a_refusal_is_counted_and_logged_with_its_rule(tmp_path: Path) -> None:
    audit_log = {"directory": str(tmp_path), "key": KEY}
    with log_lines() as lines:
        async with library(audit=audit_log) as mcp:
            await ask(mcp, of(), "resources/read", uri=SECRET)
            await ask(mcp, of(), "prompts/get", name="audit")
    told = lines.of("the policy refuses a call")
    assert [(line["rule"], line["subject"]) for line in told] == [("secret", "ann")] * 2
    refused = [each for each in records(tmp_path) if each["event"] == "refused"]
    assert [each["reason"] for each in refused] == ["refused by secret"] * 2


SPELLINGS = [
    "file:///secret/plan",
    "file:///secret",
    "file:///secret/",
    "file:///%73ecret/plan",
    "file:///%2573ecret/plan",
    "file:////secret/plan",
    "file:///./secret/plan",
    "file:///open/../secret/plan",
    "file:///open/%2e%2e/secret/plan",
    "file:///open/%252e%252e/secret/plan",
    "file:///open/..%2fsecret/plan",
    "file:///secret%2Fplan",
    "file:///secret%5Cplan",
    "file:///se\tcret/plan",
    "file:///secret/plan?x",
    "file:///secret/plan#x",
    "FILE:///secret/plan",
    "file:/secret/plan",
    "file://localhost/secret/plan",
    "file://other/secret/plan",
    "file:/%2Fsecret/plan",
    "file:///%2Fsecret/plan",
    "file:\\\\\\secret\\plan",
    " file:///secret/plan",
    "%20file:///secret/plan",
    "file%3A///secret/plan",
    "f\tile:///secret/plan",
    "file:///secret/plan\n",
]


def files(asked: Asked) -> Any:
    match asked.rpc:
        case "server/discover":
            about: dict[str, Any] = {"tools": {}, "resources": {}}
            return result(asked, {"supportedVersions": ["2026-07-28"], "capabilities": about})
        case "tools/list":
            return result(asked, {"tools": []})
        case "resources/list":
            entry = {"uri": "file:///open/plan", "name": "plan"}
            return result(asked, {"resources": [entry]})
        case "resources/templates/list":
            templates = [{"uriTemplate": "{+uri}", "name": "any"}]
            return result(asked, {"resourceTemplates": templates})
        case "resources/read":
            text = {"uri": asked.params["uri"], "text": "read"}
            return result(asked, {"contents": [text]})
    raise AssertionError(asked.rpc)


@pytest.mark.parametrize("pattern", ["file:///secret/*", "FILE:///secret/**", "file:///%73ecret/*"])
async def test_no_spelling_of_a_uri_leads_past_a_rule(pattern: str) -> None:
    deny: list[dict[str, Any]] = [{"deny": {"resource": pattern}}, {"allow": {}}]
    only_open: list[dict[str, Any]] = [{"allow": {"resource": "file:///open/*"}}]
    for rules in (deny, only_open):
        async with scripted(files) as server:
            up = {"kind": "mcp", "name": "up", "url": server.url}
            async with gateway_of(up, policy=rules) as mcp:
                for uri in SPELLINGS:
                    assert await code(mcp, "resources/read", uri=uri) == -32602, uri
                assert "resources/read" not in server.methods()
                assert await answer(mcp, "resources/read", uri="file:///open/plan")
                assert await answer(mcp, "resources/read", uri="file:///open/secret%20plan")


async def test_uris_with_the_name_of_a_back_end_are_compared_as_listed() -> None:
    def named(asked: Asked) -> Any:
        if asked.rpc == "resources/templates/list":
            templates = [{"uriTemplate": "file:///{+path}", "name": "any"}]
            return result(asked, {"resourceTemplates": templates})
        return files(asked)

    rules: list[dict[str, Any]] = [{"deny": {"resource": "file://up//secret/*"}}, {"allow": {}}]
    async with scripted(named) as server:
        up = {"kind": "mcp", "name": "up", "url": server.url, "uris": "named"}
        async with gateway_of(up, policy=rules) as mcp:
            for path in (
                "/secret/plan",
                "//secret//plan",
                "/%73ecret/plan",
                "/open/../secret/plan",
            ):
                assert await code(mcp, "resources/read", uri=f"file://up/{path}") == -32602, path
                assert await code(mcp, "resources/read", uri=f"FILE://up/{path}") == -32602, path
            assert "resources/read" not in server.methods()
            assert await answer(mcp, "resources/read", uri="file://up//open/plan")


async def test_the_page_of_a_tool_is_refused_with_the_tool(tmp_path: Path) -> None:
    for name in ("chart", "map"):
        (tmp_path / f"{name}.html").write_text("<!doctype html><title>x</title>")
    (tmp_path / "tools.py").write_text("""
from roundgate import tool

@tool(ui="chart.html")
def chart() -> str: ...

@tool(ui="map.html")
def map() -> str: ...
""")
    own = {"kind": "python", "name": "own", "path": str(tmp_path / "tools.py")}
    deny_map = [{"deny": {"tool": "own__map"}}, {"allow": {"tool": "*"}}]
    by_uri = [{"deny": {"resource": "ui://own/map.html"}}, {"allow": {"tool": "*"}}]
    opened_by_uri = [{"deny": {"tool": "own__map"}}, {"allow": {}}, {"allow": {"resource": "*"}}]
    for rules in (deny_map, by_uri, opened_by_uri):
        async with gateway_of(own, policy=rules) as mcp:
            uris = [each["uri"] for each in (await answer(mcp, "resources/list"))["resources"]]
            assert uris == ["ui://own/chart.html"]
            for uri in ("ui://own/map.html", "ui://own/m%61p.html", "UI://own/map.html"):
                assert await code(mcp, "resources/read", uri=uri) == -32602
            assert await answer(mcp, "resources/read", uri="ui://own/chart.html")


async def test_skills_are_resources(tmp_path: Path) -> None:
    for name in ("refunds", "audits"):
        (tmp_path / name / "more").mkdir(parents=True)
        (tmp_path / name / "SKILL.md").write_text(
            f"---\nname: {name}\ndescription: About {name}.\n---\nDo it.\n"
        )
        (tmp_path / name / "more/a.md").write_text("More.")
    folder = {"kind": "skills", "name": "how", "path": str(tmp_path)}
    for rules in (
        [{"deny": {"resource": "skill://how/audits/*"}}, {"allow": {"resource": "*"}}],
        [{"allow": {"resource": ["skill://how/refunds/*", "skill://how"]}}],
    ):
        async with gateway_of(folder, policy=rules) as mcp:
            skills = [each["uri"] for each in (await answer(mcp, "skills/list"))["skills"]]
            assert skills == ["skill://how/refunds/SKILL.md"]
            assert await answer(mcp, "skills/get", uri=skills[0])
            root = await answer(mcp, "resources/directory/read", uri="skill://how")
            assert [each["uri"] for each in root["resources"]] == ["skill://how/refunds"]
            folder_of_skill = {"uri": "skill://how/refunds"}
            assert await answer(mcp, "resources/directory/read", **folder_of_skill)
            assert await answer(mcp, "resources/read", uri="skill://how/refunds/more/a.md")
            audits = "skill://how/audits"
            assert await code(mcp, "resources/directory/read", uri=audits) == -32602
            assert await code(mcp, "skills/get", uri=f"{audits}/SKILL.md") == -32602
            for file in ("SKILL.md", "more/a.md", "more%2Fa.md"):
                assert await code(mcp, "resources/read", uri=f"{audits}/{file}") == -32602


async def test_a_handler_reads_only_what_its_caller_may_read_also_in_a_task() -> None:
    """A task keeps the claims that rules named when it began; others are unknown."""
    rules = [{"deny": {"resource": SECRET, **STAFF}}, {"allow": {}}]
    file = guarded("https://issuer.example/jwks", *ALL, policy=rules)
    catalog = loading.load(file).catalog

    async def read(uri: str, **claims: Any) -> Any:
        with fake_context(principal=Principal("i", "ann", **claims)) as context:
            return await catalog.read_resource(context, uri)

    with pytest.raises(ResourceNotFound):
        await read(SECRET, claims={"groups": ["staff"]})
    assert await read(OPEN, claims={"groups": ["staff"]})
    assert await read(SECRET)
    for kept in ({"groups": ["staff"]}, {}):
        with pytest.raises(ResourceNotFound):
            await read(SECRET, kept_claims=kept)
    assert await read(SECRET, kept_claims={"groups": ["other"]})


@pytest.mark.parametrize(
    ("match", "problem"),
    [
        ({"resource": "/secret/*"}, "'/secret/\\*' has no scheme: write a URI"),
        ({"resource": "docs://a/../b"}, "has a segment . or .., and no such URI is served"),
        ({"resource": "dosc://secret/*"}, "no resource can have the URI 'dosc://secret/\\*'"),
        ({"prompt": "audits"}, "no prompt is called 'audits'"),
        ({"prompt": None}, "prompt: is empty"),
        ({"resource": "*", "hint": "read_only"}, "hint is of tools"),
        ({"prompt": "*", "arguments": {"required": ["a"]}}, "arguments is of tools"),
        ({"resource": "docs://{folder}/a"}, "has a variable of a template: write \\* in its place"),
        ({"resource": "docs://secret/"}, "write docs://secret/\\* for all that is in it"),
        ({"skill": "refunds"}, "write resource: skill://BACKEND/NAME/\\*"),
        ({"group": "support"}, "write claims: {groups: …}"),
        ("*", "{} matches all calls"),
    ],
)
def test_a_rule_that_could_never_apply_is_a_problem(match: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        loading.load(config_file(*ALL, policy=[{"deny": match}, {"allow": {}}]))
