"""The skills of servers (SEP-2640) through the gateway, beside those of folders."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from roundgate.auth import Principal
from roundgate.cli import main
from roundgate.methods.access import Access
from roundgate.observability.metrics import Metrics
from roundgate.runtime import loading
from roundgate.settings import Settings
from tests.support.asgi import STATE_KEY, Client, built, client, config_of, stoppable
from tests.support.issuer import PUBLIC_URL, bearer, guarded, jwks, token
from tests.support.scripted import Asked, error, result, scripted
from tests.support.services import answer as reply
from tests.support.services import service
from tests.support.skills import answer, code
from tests.support.upstreams import Upstream, entry, fronted, gateway_of, health, until

EXTENSION = "io.modelcontextprotocol/skills"
DIGEST = "sha256:" + "a1" * 32
TEXT = "---\nname: refunds\ndescription: Refund.\n---\n"


def skill(path: str, scheme: str = "skill", **members: Any) -> dict[str, Any]:
    """An entry of skills/list, as a server sends it."""
    uri = f"{scheme}://{path}/SKILL.md"
    files = [{"uri": uri, "digest": DIGEST, "size": len(TEXT)}]
    files += [{"uri": f"{scheme}://{path}/a/b.md", "digest": DIGEST, "size": 7, "x": 1}]
    described = {"name": path.rpartition("/")[2], "description": "Refund.", "license": "MIT"}
    return {"uri": uri, "frontmatter": described, "resources": files, **members}


class Server(Upstream):
    """A server with skills, all of which it lists but one."""

    def __init__(self, *skills: Any, more: Any = (), **members: Any) -> None:
        super().__init__(**members)
        self.settings = {"directoryRead": True}
        self.skills, self.more = list(skills), list(more)
        self.unlisted = skill("hidden/one")

    def __call__(self, asked: Asked) -> Any:
        uri = asked.params.get("uri") if asked.body else None
        known = {
            one["uri"]: one for one in (*self.skills, *self.more, self.unlisted) if "uri" in one
        }
        match asked.rpc:
            case "server/discover":
                about = {"tools": {}, "resources": {}, "extensions": {EXTENSION: self.settings}}
                versions = {"supportedVersions": ["2026-07-28"], "capabilities": about}
                return result(asked, versions)
            case "resources/list" | "resources/templates/list":
                member = "resources" if asked.rpc == "resources/list" else "resourceTemplates"
                return result(asked, {member: []})
            case "skills/list" if asked.params.get("cursor") == "2":
                return result(asked, {"skills": self.more})
            case "skills/list":
                cursor = {"nextCursor": "2"} if self.more else {}
                return result(asked, {"skills": self.skills, "ttlMs": 50, **cursor})
            case "skills/get" if uri in known:
                return result(asked, {"skill": known[uri]})
            case "resources/read" if str(uri).endswith(".md"):
                return result(asked, {"contents": [{"uri": uri, "text": TEXT}]})
            case "resources/directory/read" if str(uri).endswith("refunds"):
                children = [{"uri": f"{uri}/SKILL.md", "name": "refunds", "x": 1}]
                cursor = {} if "cursor" in asked.params else {"nextCursor": "c"}
                return result(asked, {"resources": children, **cursor})
            case "skills/get" | "resources/read" | "resources/directory/read":
                return error(asked, -32602, f"nothing at {uri}")
        return super().__call__(asked)


async def uris(mcp: Client) -> list[str]:
    return [one["uri"] for one in (await answer(mcp, "skills/list"))["skills"]]


async def test_an_entry_passes_with_the_name_of_the_back_end_in_its_uris() -> None:
    extra: dict[str, Any] = {
        "com.example": 1,
        "_meta": {"com.example/a": 1, "io.modelcontextprotocol/b": 2},
    }
    async with fronted(Server(skill("acme/refunds", **extra))) as (_, mcp):
        (listed,) = (await answer(mcp, "skills/list"))["skills"]
        start = "skill://up/acme/refunds"
        assert listed == {
            "uri": f"{start}/SKILL.md",
            "frontmatter": {"name": "refunds", "description": "Refund.", "license": "MIT"},
            "resources": [
                {"uri": f"{start}/SKILL.md", "digest": DIGEST, "size": len(TEXT)},
                {"uri": f"{start}/a/b.md", "digest": DIGEST, "size": 7, "x": 1},
            ],
            "com.example": 1,
            "_meta": {"com.example/a": 1},
        }
        assert (await answer(mcp, "skills/get", uri=listed["uri"]))["skill"] == listed
        for file in listed["resources"]:
            (part,) = (await answer(mcp, "resources/read", uri=file["uri"]))["contents"]
            assert part == {"uri": file["uri"], "text": TEXT}
        capabilities = (await answer(mcp, "server/discover"))["capabilities"]
        assert capabilities["extensions"] == {EXTENSION: {"directoryRead": True}}


async def test_skills_of_servers_and_folders_are_one_list(tmp_path: Path) -> None:
    file = tmp_path / "skills/own/SKILL.md"
    file.parent.mkdir(parents=True)
    file.write_text(TEXT.replace("refunds", "own"))
    folder = {"kind": "skills", "name": "team", "path": str(tmp_path / "skills")}
    one, two = Server(skill("refunds")), Server(skill("refunds"), more=[skill("x")])
    async with (
        scripted(one) as server,
        scripted(two) as other,
        gateway_of(
            folder, entry(server), entry(other, name="other"), limits={"page_size": 3}
        ) as mcp,
    ):
        page = await answer(mcp, "skills/list")
        assert [each["uri"] for each in page["skills"]] == [
            "skill://team/own/SKILL.md",
            "skill://up/refunds/SKILL.md",
            "skill://other/refunds/SKILL.md",
        ]
        rest = await answer(mcp, "skills/list", cursor=page["nextCursor"])
        assert [each["uri"] for each in rest["skills"]] == ["skill://other/x/SKILL.md"]


async def test_a_skill_that_is_in_no_list_can_be_got_and_read() -> None:
    async with fronted(Server()) as (_, mcp):
        assert await uris(mcp) == []
        uri = "skill://up/hidden/one/SKILL.md"
        assert (await answer(mcp, "skills/get", uri=uri))["skill"]["uri"] == uri
        assert (await answer(mcp, "resources/read", uri=uri))["contents"]


async def test_what_no_server_has_is_invalid() -> None:
    async with fronted(Server(skill("refunds"))) as (_, mcp):
        for uri in ("skill://up/x/SKILL.md", "skill://down/x", "skill://up", "up", ""):
            for method in ("skills/get", "resources/directory/read"):
                assert await code(mcp, method, uri=uri) == -32602, uri


async def test_a_directory_is_asked_for_at_the_server() -> None:
    async with fronted(Server(skill("refunds"))) as (server, mcp):
        uri = "skill://up/refunds"
        first = await answer(mcp, "resources/directory/read", uri=uri)
        assert first["resources"] == [{"uri": f"{uri}/SKILL.md", "name": "refunds", "x": 1}]
        second = await answer(mcp, "resources/directory/read", uri=uri, cursor=first["nextCursor"])
        assert "nextCursor" not in second
        asked = [one.params for one in server.asked if one.rpc == "resources/directory/read"]
        assert [one["uri"] for one in asked] == ["skill://refunds"] * 2


async def test_a_server_without_directories_has_those_of_its_manifests() -> None:
    upstream = Server(skill("refunds"), skill("daily", resources="dynamic"))
    upstream.settings = {}
    async with fronted(upstream) as (server, mcp):

        async def children(uri: str) -> list[tuple[str, str]]:
            listed = (await answer(mcp, "resources/directory/read", uri=uri))["resources"]
            return [(one["name"], one["mimeType"]) for one in listed]

        folder = "inode/directory"
        assert await children("skill://up") == [("refunds", folder), ("daily", folder)]
        expected = [("SKILL.md", "text/markdown"), ("a", folder)]
        assert await children("skill://up/refunds") == expected
        assert (
            await code(mcp, "resources/directory/read", uri="skill://up/refunds/a/b.md") == -32602
        )
        assert "resources/directory/read" not in server.methods()


async def test_a_directory_of_deep_paths_takes_little_memory() -> None:
    deep = [f"skill://deep/{number}/{'a/' * 2_000}x" for number in range(20)]
    files = [{"uri": uri, "digest": DIGEST, "size": 1} for uri in deep]
    upstream = Server(skill("deep", resources=files))
    upstream.settings = {}
    async with fronted(upstream) as (_, mcp):
        tracemalloc.start()
        try:
            listed = await answer(mcp, "resources/directory/read", uri="skill://up/deep")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert [one["name"] for one in listed["resources"]] == [str(n) for n in range(20)]
        assert peak < 10_000_000


async def test_a_scheme_of_the_server_is_kept() -> None:
    uri = "github://up/acme/refunds/SKILL.md"
    upstream = Server(skill("acme/refunds", scheme="github"))
    async with fronted(upstream) as (_, mcp):
        assert await uris(mcp) == [uri]
        assert (await answer(mcp, "skills/get", uri=uri))["skill"]["uri"] == uri
        assert (await answer(mcp, "resources/read", uri=uri))["contents"][0]["uri"] == uri


NO_SKILLS: list[tuple[dict[str, Any], str]] = [
    ({"uri": 5}, "its uri is not text"),
    ({"uri": "skill://x/README.md"}, "is not the URI of a SKILL.md"),
    ({"uri": "SKILL.md"}, "is not the URI of a SKILL.md"),
    ({"uri": "1://team/x/SKILL.md"}, "is not the URI of a SKILL.md"),
    ({"uri": "a:skill://team/x/SKILL.md"}, "is not the URI of a SKILL.md"),
    ({"frontmatter": None}, "no name and description"),
    ({"frontmatter": {"name": "x"}}, "no name and description"),
    ({"resources": "all"}, "neither a list"),
    ({"resources": None}, "neither a list"),
    ({"resources": [5]}, "neither a list"),
    ({"resources": [{"uri": "skill://x/SKILL.md"}]}, "lacks a digest or size"),
    ({"resources": [{"uri": "u", "digest": DIGEST, "size": "7"}]}, "lacks a digest or size"),
    ({"resources": [{"digest": DIGEST, "size": 7}]}, "its uri is not text"),
    ({"resources": [{"uri": "u", "digest": DIGEST, "size": 7}]}, "uri without scheme"),
]


async def test_entries_that_hosts_would_refuse_are_left_out_with_the_reason() -> None:
    skills = [{**skill(f"x{number}"), **change} for number, (change, _) in enumerate(NO_SKILLS)]
    async with fronted(Server(*skills, skill("refunds"), skill("refunds"))) as (_, mcp):
        assert await uris(mcp) == ["skill://up/refunds/SKILL.md"]
        assert (await mcp.result("tools/list"))["tools"]
        left_out = (await health(mcp))["left_out"]
        for one, (_, reason) in zip(skills, NO_SKILLS, strict=True):
            assert reason in left_out.pop(str(one["uri"]))
        assert "another skill" in left_out.pop("skill://refunds/SKILL.md")
        assert not left_out


@pytest.mark.parametrize(
    ("skills", "name"), [(None, "skills/list"), (5, "skills/list"), ([5], "None")]
)
async def test_a_list_that_is_none_takes_no_tools_away(skills: Any, name: str) -> None:
    class Broken(Server):
        def __call__(self, asked: Asked) -> Any:
            if asked.rpc == "skills/list":
                return result(asked, {"skills": skills})
            return super().__call__(asked)

    async with fronted(Broken()) as (_, mcp):
        assert await uris(mcp) == []
        assert (await mcp.result("tools/list"))["tools"]
        assert name in (await health(mcp))["left_out"]


async def test_an_answer_that_is_no_such_skill_is_an_error() -> None:
    class Broken(Server):
        answered: Any = None

        def __call__(self, asked: Asked) -> Any:
            if asked.rpc == "skills/get":
                return result(asked, {"skill": self.answered})
            if asked.rpc == "resources/directory/read":
                return result(asked, {"resources": [{"name": "x"}]})
            return super().__call__(asked)

    upstream = Broken(skill("x"))
    async with fronted(upstream) as (_, mcp):
        for upstream.answered in (None, {}, skill("other"), {**skill("x"), "resources": 1}):
            assert await code(mcp, "skills/get", uri="skill://up/x/SKILL.md") == -32602
        assert await code(mcp, "resources/directory/read", uri="skill://up/x") == -32602


async def test_a_server_without_the_extension_has_no_skills() -> None:
    async with fronted(Upstream()) as (server, mcp):
        assert await code(mcp, "skills/list") == -32601
        assert "skills/list" not in server.methods()


async def test_excluded_skills_are_neither_listed_nor_got_nor_read() -> None:
    settings = {"resources": {"exclude": ["skill://refunds*"]}}
    async with fronted(Server(skill("refunds"), skill("x")), **settings) as (server, mcp):
        assert await uris(mcp) == ["skill://up/x/SKILL.md"]
        for method in ("skills/get", "resources/read"):
            assert await code(mcp, method, uri="skill://up/refunds/SKILL.md") == -32602
        assert await code(mcp, "resources/directory/read", uri="skill://up/refunds") == -32602
        for path in ("x/../refunds", "%72efunds", "x%2f..%2Frefunds"):
            for method in ("skills/get", "resources/read"):
                assert await code(mcp, method, uri=f"skill://up/{path}/SKILL.md") == -32602
    assert not {"skills/get", "resources/read"} & {*server.methods()}


async def test_a_directory_does_not_show_what_is_excluded() -> None:
    settings = {"resources": {"exclude": ["skill://refunds/*"]}}
    async with fronted(Server(), **settings) as (_, mcp):
        page = await answer(mcp, "resources/directory/read", uri="skill://up/refunds")
        assert page["resources"] == []


async def test_dot_segments_do_not_lead_out_of_a_view() -> None:
    views = [{"name": "some", "resources": ["skill://up/billing/*"]}]
    listed = Server(skill("billing/x"), skill("refunds"))
    async with fronted(listed, sections={"views": views}) as (server, mcp):
        mcp.path = "/some/mcp"
        paths = ["../refunds", "%2e%2E/refunds", "x%2F..%2F../refunds", ".\t./refunds", "%252e./x"]
        for path in paths:
            for method in ("skills/get", "resources/read"):
                uri = f"skill://up/billing/{path}/SKILL.md"
                assert await code(mcp, method, uri=uri) == -32602
        assert await code(mcp, "resources/directory/read", uri="skill://up/billing/../refunds")
        assert await answer(mcp, "resources/read", uri="skill://up/billing/x/SKILL.md")
    assert server.methods().count("resources/read") == 1


async def test_skills_need_the_scopes_of_the_resources_of_their_server() -> None:
    upstream = Server(skill("refunds"))
    async with scripted(upstream) as server, service(reply(jwks("ec"))) as keys:
        backends = [entry(server, resources={"scopes": ["read"]})]
        file = guarded(f"{keys.url}/jwks", auth={"scopes": []}, backends=backends)
        using = Settings(public_url=PUBLIC_URL, state_keys=STATE_KEY)
        app = await asyncio.to_thread(built, file, using)
        async with stoppable(app), client(app) as mcp:
            uri = "skill://up/refunds/SKILL.md"
            for scope, count, status in (("other", 0, 403), ("read", 1, 200)):
                who: Any = {"headers": bearer(token(scope=scope))}
                listed = (await mcp.post("skills/list", **who)).json()["result"]
                assert (len(listed["skills"]), listed["cacheScope"]) == (count, "private")
                for method in ("skills/get", "resources/read"):
                    assert (await mcp.post(method, {"uri": uri}, **who)).status_code == status
                directory = {"uri": "skill://up/refunds"}
                read = await mcp.post("resources/directory/read", directory, **who)
                assert read.status_code == status
        snapshot = await asyncio.to_thread(loading.load, file)
        access = Access(snapshot.catalog, Metrics())
        for granted in (frozenset[str](), frozenset({"read"})):
            caller = Principal("issuer", "subject", scopes=granted)
            assert access.may_subscribe(uri, caller, "") is bool(granted)


@pytest.mark.usefixtures("brisk")
async def test_a_change_at_the_server_is_listed() -> None:
    upstream = Server(skill("refunds"), ttl_ms=50)
    async with fronted(upstream) as (_, mcp):
        assert len(await uris(mcp)) == 1
        upstream.skills.append(skill("x"))
        await until(["skill://up/refunds/SKILL.md", "skill://up/x/SKILL.md"], lambda: uris(mcp))


@pytest.mark.usefixtures("brisk")
async def test_skills_that_differ_from_the_lock_file_are_quarantined(tmp_path: Path) -> None:
    server = Server(skill("acme/refunds"), skill("acme/live", resources="dynamic"), ttl_ms=50)
    listed = skill("acme/refunds")["uri"]
    async with scripted(server) as at:
        backends = {"backends": [entry(at, changes="quarantine")]}
        config, path = config_of(backends, tmp_path), tmp_path / "gateway.yaml"
        path.write_text(json.dumps(backends))
        assert await asyncio.to_thread(main, ["compile", str(path)]) == 0
        lock = tmp_path / "up.lock"
        assert json.loads(lock.read_text())["skills"].keys() == {
            "skill://acme/refunds/SKILL.md",
            "skill://acme/live/SKILL.md",
        }
        app = await asyncio.to_thread(built, config)
        async with stoppable(app), client(app) as mcp:
            refunds, live = "skill://up/acme/refunds", "skill://up/acme/live"
            assert await uris(mcp) == [f"{refunds}/SKILL.md", f"{live}/SKILL.md"]

            async def is_readable(uri: str) -> bool:
                return "result" in (await mcp.post("resources/read", {"uri": uri})).json()

            for uri in ("SKILL.md", "a/b.md"):
                assert await is_readable(f"{refunds}/{uri}")
            assert await is_readable(f"{live}/any.md")
            for uri in (
                f"{refunds}/other.md",  # the accepted entry does not name it
                f"{live}/../refunds/other.md",
                f"{live}/%2e%2e/refunds/other.md",
                "skill://up/hidden/one/SKILL.md",  # not listed, so not accepted
            ):
                assert not await is_readable(uri)
            assert (await code(mcp, "skills/get", uri="skill://up/hidden/one/SKILL.md")) == -32602
            server.skills[0] = {
                **server.skills[0],
                "resources": [{"uri": listed, "digest": DIGEST.replace("a1", "b2"), "size": 9}],
            }
            server.skills.append(skill("acme/new"))
            assert (await code(mcp, "skills/get", uri=f"{refunds}/SKILL.md")) == -32602
            await until([f"{live}/SKILL.md"], lambda: uris(mcp))
            assert not await is_readable(f"{refunds}/SKILL.md")
            assert (await health(mcp))["changed"] == ["skill://acme/new/SKILL.md", listed]
            assert await asyncio.to_thread(main, ["compile", str(path)]) == 0
        app = await asyncio.to_thread(built, config)
        async with stoppable(app), client(app) as mcp:
            assert len(await uris(mcp)) == 3


async def test_a_lock_file_without_skills_quarantines_all(tmp_path: Path) -> None:
    (tmp_path / "up.lock").write_text('{"version": 1, "tools": {}, "prompts": {}, "templates": {}}')
    async with scripted(Server(skill("acme/refunds"))) as at:
        config = config_of({"backends": [entry(at, changes="quarantine")]}, tmp_path)
        app = await asyncio.to_thread(built, config)
        async with stoppable(app), client(app) as mcp:
            assert await uris(mcp) == []
