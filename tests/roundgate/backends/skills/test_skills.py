"""A folder of skills (SEP-2640): what a host lists, reads and verifies, and what a folder may not have."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundgate.backends.skills import folder as skills_folder
from roundgate.backends.skills.folder import parse_frontmatter, read_skills
from roundgate.client import Client as LibraryClient
from roundgate.errors import ClientError, ConfigError, RpcError
from roundgate.protocol.skills import MAX_BYTES, MAX_FILES
from tests.support.asgi import built, client, config_of
from tests.support.skills import answer, code

EXTENSION = "io.modelcontextprotocol/skills"
URL = "http://127.0.0.1/mcp"


def text_of(name: str, more: str = "") -> str:
    return f"---\nname: {name}\ndescription: What {name} does.\n{more}---\n\n# {name}\n"


def add(root: Path, path: str, content: str | bytes | None = None) -> None:
    """Write a file; a SKILL.md with the name of its folder by default."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    content = text_of(file.parent.name) if content is None else content
    file.write_bytes(content.encode() if isinstance(content, str) else content)


def app_of(base: Path, **sections: Any) -> Any:
    backend = {"kind": "skills", "name": "team", "path": "skills"}
    return built(config_of({"backends": [backend], **sections}, base))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder `skills` with two skills."""
    root = tmp_path / "skills"
    add(root, "git-workflow/SKILL.md")
    add(root, "billing/refunds/SKILL.md", text_of("refunds", "license: MIT\n"))
    add(root, "billing/refunds/examples/email.md", "Dear,\r\n")
    add(root, "billing/refunds/logo.png", b"\x89PNG\0")
    return root


async def test_a_host_lists_skills_with_digests_of_what_it_reads(root: Path) -> None:
    async with client(app_of(root.parent)) as mcp:
        listed = await answer(mcp, "skills/list")
        assert (listed["resultType"], listed["cacheScope"]) == ("complete", "public")
        assert [one["uri"] for one in listed["skills"]] == [
            "skill://team/billing/refunds/SKILL.md",
            "skill://team/git-workflow/SKILL.md",
        ]
        refunds = listed["skills"][0]
        assert refunds["frontmatter"] == {
            "name": "refunds",
            "description": "What refunds does.",
            "license": "MIT",
        }
        assert len(refunds["resources"]) == 3
        for file in refunds["resources"]:
            (part,) = (await answer(mcp, "resources/read", uri=file["uri"]))["contents"]
            content = part["text"].encode() if "text" in part else base64.b64decode(part["blob"])
            digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
            assert (digest, len(content)) == (file["digest"], file["size"])
        got = await answer(mcp, "skills/get", uri=refunds["uri"])
        assert got["skill"] == refunds
        capabilities = (await answer(mcp, "server/discover"))["capabilities"]
        assert capabilities["extensions"] == {EXTENSION: {"directoryRead": True}}
        assert "resources" in capabilities


async def test_only_the_instructions_are_in_the_list_of_resources(root: Path) -> None:
    async with client(app_of(root.parent)) as mcp:
        refunds, _ = (await answer(mcp, "resources/list"))["resources"]
        assert refunds == {
            "uri": "skill://team/billing/refunds/SKILL.md",
            "name": "refunds",
            "description": "What refunds does.",
            "mimeType": "text/markdown",
            "size": len((root / "billing/refunds/SKILL.md").read_bytes()),
        }


async def test_directories_are_read_one_level_at_a_time(root: Path) -> None:
    async with client(app_of(root.parent)) as mcp:

        async def children(uri: str) -> list[tuple[str, str]]:
            listed = (await answer(mcp, "resources/directory/read", uri=uri))["resources"]
            return [(one["uri"].removeprefix(uri), one["mimeType"]) for one in listed]

        folder = "inode/directory"
        assert await children("skill://team") == [("/billing", folder), ("/git-workflow", folder)]
        assert await children("skill://team/billing/refunds") == [
            ("/SKILL.md", "text/markdown"),
            ("/examples", folder),
            ("/logo.png", "image/png"),
        ]


NO_DIRECTORIES = (
    "skill://team/billing/refunds/",
    "skill://team/billing/refunds/SKILL.md",
    "skill://team/billing/../billing/refunds",
    "skill://team/../../etc",
    "skill://other",
    "skill://",
    "team",
    "",
    "skill:///billing",
    "file:///etc",
)
NO_FILES = (
    "billing/refunds",
    "billing/refunds/../refunds/SKILL.md",
    "billing/refunds/%2e%2e/refunds/SKILL.md",
    "../skills/billing/refunds/SKILL.md",
    "billing//refunds/SKILL.md",
    "BILLING/refunds/SKILL.md",
    "/etc/passwd",
    "billing/refunds/SKILL.md\0",
)


async def test_no_uri_leads_anywhere_else(root: Path) -> None:
    async with client(app_of(root.parent)) as mcp:
        for uri in NO_DIRECTORIES:
            assert await code(mcp, "resources/directory/read", uri=uri) == -32602, uri
        for path in NO_FILES:
            for method in ("skills/get", "resources/read"):
                assert await code(mcp, method, uri=f"skill://team/{path}") == -32602, path


async def test_a_cursor_of_nothing_is_invalid(root: Path) -> None:
    async with client(app_of(root.parent)) as mcp:
        assert await code(mcp, "skills/list", cursor="x") == -32602
        directory = {"uri": "skill://team", "cursor": "x"}
        assert await code(mcp, "resources/directory/read", **directory) == -32602


async def test_a_list_of_skills_has_pages_of_whole_entries(tmp_path: Path) -> None:
    for number in range(5):
        add(tmp_path, f"skills/s{number}/SKILL.md")
    async with client(app_of(tmp_path, limits={"page_size": 2})) as mcp:
        first = await answer(mcp, "skills/list")
        second = await answer(mcp, "skills/list", cursor=first["nextCursor"])
        third = await answer(mcp, "skills/list", cursor=second["nextCursor"])
        pages = [first["skills"], second["skills"], third["skills"]]
        assert [len(page) for page in pages] == [2, 2, 1]
        assert "nextCursor" not in third


async def test_a_nested_skill_belongs_to_both(tmp_path: Path) -> None:
    add(tmp_path, "skills/outer/SKILL.md")
    add(tmp_path, "skills/outer/inner/SKILL.md")
    async with client(app_of(tmp_path)) as mcp:
        outer, inner = (await answer(mcp, "skills/list"))["skills"]
        assert {"skill://team/outer/inner/SKILL.md"} == {one["uri"] for one in inner["resources"]}
        assert len(outer["resources"]) == 2


async def test_what_is_hidden_or_outside_of_skills_is_not_served(root: Path) -> None:
    add(root, "README.md", "Skills of the team.")
    add(root, "git-workflow/.env", "SECRET=1")
    add(root, "git-workflow/.git/config", "x")
    add(root, "git-workflow/__pycache__/a.pyc", b"\0")
    async with client(app_of(root.parent)) as mcp:
        skill = await answer(mcp, "skills/get", uri="skill://team/git-workflow/SKILL.md")
        assert len(skill["skill"]["resources"]) == 1
        for path in ("README.md", "git-workflow/.env"):
            assert await code(mcp, "resources/read", uri=f"skill://team/{path}") == -32602


async def test_odd_names_of_files_are_encoded_in_uris(root: Path) -> None:
    names = ["a b.txt", "ä#?%.txt", "x\\y.txt", "new\nline.txt", "%2e%2e.txt", "'\"<>.txt"]
    for name in names:
        add(root, f"git-workflow/{name}", name)
    async with client(app_of(root.parent)) as mcp:
        skill = (await answer(mcp, "skills/get", uri="skill://team/git-workflow/SKILL.md"))["skill"]
        found = set()
        for file in skill["resources"]:
            assert file["uri"].isascii()
            (part,) = (await answer(mcp, "resources/read", uri=file["uri"]))["contents"]
            found.add(part["text"])
        assert found == {*names, text_of("git-workflow")}


async def test_a_file_that_changes_later_is_served_as_it_was_listed(root: Path) -> None:
    uri = "skill://team/git-workflow/SKILL.md"
    async with client(app_of(root.parent)) as mcp:
        (before,) = (await answer(mcp, "resources/read", uri=uri))["contents"]
        add(root, "git-workflow/SKILL.md", text_of("git-workflow", "license: X\n"))
        (after,) = (await answer(mcp, "resources/read", uri=uri))["contents"]
        assert after == before


async def test_a_view_has_the_skills_of_its_resources(root: Path) -> None:
    views = [
        {"name": "some", "resources": ["skill://team/billing/*"]},
        {"name": "none", "prompts": ["*"]},
    ]
    async with client(app_of(root.parent, views=views)) as mcp:
        mcp.path = "/some/mcp"
        (listed,) = (await answer(mcp, "skills/list"))["skills"]
        assert listed["uri"] == "skill://team/billing/refunds/SKILL.md"
        email = "skill://team/billing/refunds/examples/email.md"
        assert await answer(mcp, "resources/read", uri=email)
        other = "skill://team/git-workflow/SKILL.md"
        assert await code(mcp, "skills/get", uri=other) == -32602
        assert await code(mcp, "resources/read", uri=other) == -32602
        mcp.path = "/none/mcp"
        assert await code(mcp, "skills/list") == -32601


async def test_two_folders_may_have_skills_of_one_name(tmp_path: Path) -> None:
    backends = []
    for name in ("one", "two"):
        add(tmp_path, f"{name}/same/SKILL.md")
        backends.append({"kind": "skills", "name": name, "path": name})
    async with client(built(config_of({"backends": backends}, tmp_path))) as mcp:
        uris = [one["uri"] for one in (await answer(mcp, "skills/list"))["skills"]]
        assert uris == ["skill://one/same/SKILL.md", "skill://two/same/SKILL.md"]


async def test_an_older_session_has_the_files_as_resources_alone(root: Path) -> None:
    async with (
        client(app_of(root.parent)) as mcp,
        LibraryClient(URL, http=mcp.http, versions=["2025-11-25"]) as older,
    ):
        assert "extensions" not in (await older.connect()).capabilities
        listed = [resource.uri for resource in await older.resources()]
        assert listed == [
            "skill://team/billing/refunds/SKILL.md",
            "skill://team/git-workflow/SKILL.md",
        ]
        assert "# refunds" in (await older.read(listed[0])).text
        with pytest.raises(RpcError) as refused:
            await older.skills()
        assert refused.value.code == -32601


async def test_the_client_library_verifies_what_it_reads(root: Path) -> None:
    async with client(app_of(root.parent)) as mcp:
        library = LibraryClient(URL, http=mcp.http)
        refunds, git_workflow = await library.skills()
        assert await library.skill(git_workflow.uri) == git_workflow
        assert b"# refunds" in await library.read_skill(refunds)
        logo = "skill://team/billing/refunds/logo.png"
        assert await library.read_skill(refunds, logo) == b"\x89PNG\0"
        with pytest.raises(ClientError, match="has no file"):
            await library.read_skill(refunds, git_workflow.uri)


# -- folders that cannot be served ---------------------------------------------------------------


def outside_link(root: Path) -> None:
    add(root.parent, "secret.txt", "secret")
    (root / "git-workflow/link.txt").symlink_to(root.parent / "secret.txt")


def folder_link(root: Path) -> None:
    (root / "git-workflow/loop").symlink_to(root)


def pipe(root: Path) -> None:
    os.mkfifo(root / "git-workflow/pipe")


def other_name(root: Path) -> None:
    add(root, "wrong/SKILL.md", text_of("right"))


def not_text(root: Path) -> None:
    add(root, "latin/SKILL.md", text_of("latin").encode() + b"\xff")


def name_that_is_not_text(root: Path) -> None:
    (root / "git-workflow" / os.fsdecode(b"\xff.txt")).write_text("x")


def large_file(root: Path) -> None:
    add(root, "git-workflow/large.bin", b"x" * (MAX_BYTES + 1))


def large_skill(root: Path) -> None:
    for part in range(2):
        add(root, f"git-workflow/{part}.bin", b"x" * (MAX_BYTES // 2))


def many_files(root: Path) -> None:
    for number in range(MAX_FILES):
        add(root, f"git-workflow/{number}.txt", "x")


def deep(root: Path) -> None:
    add(root, "git-workflow/" + "d/" * 40 + "x.txt", "x")


def bytes_mark(root: Path) -> None:
    add(root, "mark/SKILL.md", b"\xef\xbb\xbf" + text_of("mark").encode())


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (outside_link, "link.txt is a symbolic link"),
        (folder_link, "loop is a symbolic link"),
        (pipe, "pipe is not a regular file"),
        (other_name, "has the name 'right', but its folder has the name 'wrong'"),
        (not_text, "is not UTF-8"),
        (name_that_is_not_text, "whose name is not UTF-8"),
        (large_file, "has more than 16,777,216 bytes"),
        (large_skill, "is a skill with 3 files and 16,777,"),
        (many_files, "is a skill with 513 files"),
        (deep, "is nested more than 32 folders deep"),
        (bytes_mark, "byte order mark"),
    ],
)
def test_a_folder_with_a_fault_is_refused_with_the_path(
    root: Path, spoil: Callable[[Path], None], reason: str
) -> None:
    spoil(root)
    with pytest.raises(ConfigError) as caught:
        app_of(root.parent)
    (problem,) = caught.value.problems
    assert reason in problem.message
    assert problem.path == "backends[0].path"
    assert problem.remedy


def test_all_faults_are_told_at_once(root: Path) -> None:
    outside_link(root)
    other_name(root)
    with pytest.raises(ConfigError) as caught:
        app_of(root.parent)
    assert len(caught.value.problems) == 2


def nothing(folder: Path) -> None: ...


def empty(folder: Path) -> None:
    folder.mkdir()


def small_letters(folder: Path) -> None:
    add(folder, "a/skill.md", text_of("a"))


def no_folder(folder: Path) -> None:
    folder.write_text("x")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (nothing, "No such file"),
        (no_folder, "Not a directory"),
        (empty, "has no folder with a SKILL.md"),
        (small_letters, "has no folder with a SKILL.md"),
    ],
)
def test_a_folder_without_skills_is_refused(
    tmp_path: Path, make: Callable[[Path], None], reason: str
) -> None:
    make(tmp_path / "skills")
    with pytest.raises(ConfigError, match=reason):
        app_of(tmp_path)


def test_a_folder_that_is_far_too_large_is_not_read_to_its_end(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skills_folder, "MAX_ENTRIES", 3)
    _, problems = read_skills(root, "team")
    assert "has more than 3 files and folders" in str(problems[-1])
    monkeypatch.undo()
    monkeypatch.setattr(skills_folder, "MAX_TOTAL", 100)
    _, problems = read_skills(root, "team")
    assert "a total of more than 100 bytes" in str(problems[-1])


# -- frontmatter ---------------------------------------------------------------------------------


def test_frontmatter_is_read_as_hosts_read_it() -> None:
    more = (
        "a: yes\nb: 2026-01-31\nc: [1, 0o17, 0x1F, 007, 1.5, .5, 1e3, null, ~, true]\n"
        'd: "1"\ne:\nf: |\n  x\n  y\ng: 12:30:45\nh: 1_000\ni: {j: k}\n"<<": x\n'
    )
    assert parse_frontmatter(text_of("s", more)) == {
        "name": "s",
        "description": "What s does.",
        "a": "yes",
        "b": "2026-01-31",
        "c": [1, 15, 31, 7, 1.5, 0.5, 1000.0, None, None, True],
        "d": "1",
        "e": None,
        "f": "x\ny\n",
        "g": "12:30:45",
        "h": "1_000",
        "i": {"j": "k"},
        "<<": "x",
    }


def test_frontmatter_with_windows_line_ends() -> None:
    assert parse_frontmatter(text_of("s").replace("\n", "\r\n"))["name"] == "s"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "does not begin with frontmatter"),
        ("# Title\n", "does not begin with frontmatter"),
        ("---\nname: s\ndescription: d\n", "does not begin with frontmatter"),
        ("\n" + text_of("s"), "does not begin with frontmatter"),
        ("---\n- a\n---\n", "is not a mapping"),
        ("---\n\n---\n", "is not a mapping"),
        ("---\nname: s\n---\n", "has no description"),
        ("---\nname: s\ndescription: ' '\n---\n", "has no description"),
        ("---\nname: s\ndescription: " + "x" * 1025 + "\n---\n", "has no description"),
        ("---\nname: s\ndescription: [a]\n---\n", "has no description"),
        ("---\nname: 5\ndescription: d\n---\n", "has the name '5'"),
        *((text_of(name), "has the name") for name in ("S", "a--b", "-a", "a-", "a_b", "x" * 65)),
        (text_of("s", "a: &x [b]\nc: *x\n"), "alias"),
        (text_of("s", "a: !!python/object:os.system x\n"), "the tag"),
        (text_of("s", "a: !!binary aGk=\n"), "the tag"),
        (text_of("s", "a: .nan\n"), "has no JSON form"),
        (text_of("s", "a: -.inf\n"), "has no JSON form"),
        (text_of("s", "a: 1e999\n"), "too large"),
        (text_of("s", "1: x\n"), "put it in quotes"),
        (text_of("s", "[a]: x\n"), "put it in quotes"),
        (text_of("s", "name: t\n"), "twice"),
        (text_of("s", "a: " + "[" * 300 + "]" * 300 + "\n"), "nested too deeply"),
        (text_of("s", "a: " + "9" * 5000 + "\n"), "frontmatter that"),
        (text_of("s", "a: [" + "x," * 3000 + "]\n"), "more than 2,000 values"),
        (text_of("s", "a: [\n"), "is not YAML"),
        (text_of("s", "a: " + "x" * 70_000 + "\n"), "does not begin with frontmatter"),
    ],
)
def test_frontmatter_that_hosts_could_not_use_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_frontmatter(text)


@given(st.text())
def test_any_text_is_frontmatter_or_a_value_error(text: str) -> None:
    for whole in (text, text_of("s", text + "\n")):
        try:
            assert isinstance(parse_frontmatter(whole), dict)
        except ValueError:
            continue
