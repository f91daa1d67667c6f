"""What the shell suggests, without a terminal: lines in, suggestions out."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pytest

from roundgate.cli import remote_options
from roundgate.cli.suggesting import Server, Suggesting, split
from roundgate.client import Client, Prompt, Resource, Tool

TOOLS = [
    {
        "name": "book",
        "description": "Books a seat",
        "inputSchema": {
            "properties": {
                "city": {"type": "string", "enum": ["Paris", "São Paulo", "New York"]},
                "fast": {"type": "boolean"},
                "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
                "seats": {"type": "integer", "default": 2},
                "pin": {"type": "string", "format": "password"},
                "code": {"anyOf": [{"type": "string", "writeOnly": True}, {"type": "null"}]},
                "card": {"$ref": "#/$defs/Card"},
            }
        },
    },
    {"name": "bark", "inputSchema": {}},
    {"name": "two words", "inputSchema": {}},
]
PROMPT = {"name": "greet", "arguments": [{"name": "who"}, {"name": "how"}]}


class Known(Server):
    """A server whose lists are these."""

    def __init__(self) -> None:
        super().__init__(Client("http://127.0.0.1:9/mcp"))
        self.tasks = {"task-1": "book"}

    async def tools(self) -> Sequence[Tool]:
        return [Tool.read(one) for one in TOOLS]

    async def prompts(self) -> Sequence[Prompt]:
        return [Prompt.read(PROMPT)]

    async def resources(self) -> Sequence[Resource]:
        return [Resource.read({"uri": "note://one", "name": "one"})]

    async def templates(self) -> Sequence[Resource]:
        return [
            Resource.read({"uriTemplate": "note://{id}/{part}", "name": "part"}, is_template=True)
        ]

    async def values(self, name: str, argument: str, typed: str) -> Sequence[str]:
        return [one for one in (f"{argument} of {name}", "Ada") if one.startswith(typed)]


@pytest.fixture
def suggesting() -> Suggesting:
    commands = argparse.ArgumentParser().add_subparsers()
    remote_options.add_requests(commands, in_shell=True)
    return Suggesting({name: (one, "") for name, one in commands.choices.items()}, Known())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ca", ["call"]),
        ("call b", ["book", "bark"]),
        ("call tw", ["'two words'"]),
        ("call 'two w", ["'two words'"]),
        ("call book ", ["city=", "fast=", "tags=", "seats=", "pin=", "code=", "card="]),
        ("call book city=Paris ta", ["tags="]),
        ("call book city=Paris ci", []),
        ("call book tags=a ta", ["tags="]),
        ("call book city=", ["city=Paris", "'city=São Paulo'", "'city=New York'"]),
        ("call book 'city=N", ["'city=New York'"]),
        ("call book fast=", ["fast=true", "fast=false"]),
        ("call book fast:=t", ["fast:=true"]),
        ("call book tags=", ["tags=a", "tags=b"]),
        ("call book seats=", ["seats=2"]),
        ("call book --tim", ["--timeout"]),
        ("call book --log-level d", ["debug"]),
        ("call --timeout 3 bo", ["book"]),
        ("call nothing ", []),
        ("list t", ["tools", "templates"]),
        ("listen tools ", ["prompts", "resources"]),
        ("wait ", ["task-1"]),
        ("describe b", ["book", "bark"]),
        ("describe note://o", ["note://one"]),
        ("read note", ["note://one", "note://{id}/{part}"]),
        ("prompt g", ["greet"]),
        ("prompt greet who=a ", ["how="]),
        ("prompt greet who=A", ["who=Ada"]),
        ("prompt greet how=h", ["'how=how of greet'"]),
        ("complete greet w", ["who"]),
        ("complete note://{id}/{part} ", ["id", "part"]),
        ("complete greet who A", ["Ada"]),
        ("nothing ", []),
    ],
)
async def test_what_may_come_next(suggesting: Suggesting, line: str, expected: list[str]) -> None:
    found = await suggesting.of(line)
    assert [one.text for one in found] == expected
    assert all(line.endswith(line[len(line) - one.replaces :]) for one in found)


async def test_a_suggestion_replaces_just_what_was_typed_of_it(suggesting: Suggesting) -> None:
    for line, expected in (
        ("call book ci", "call book city="),
        ("call book 'city=N", "call book 'city=New York'"),
        ("call tw", "call 'two words'"),
    ):
        (one,) = await suggesting.of(line)
        assert line[: len(line) - one.replaces] + one.text == expected


async def test_files_come_after_an_at(
    suggesting: Suggesting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letter.txt").touch()
    (tmp_path / ".hidden").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inner.json").touch()

    async def texts(line: str) -> list[str]:
        return [one.text for one in await suggesting.of(line)]

    assert await texts("call book city=@") == ["city=@folder/", "city=@letter.txt"]
    assert await texts("call book city:=@folder/") == ["city:=@folder/inner.json"]
    assert await texts("call book city=@.h") == ["city=@.hidden"]
    assert await texts("call book --answers l") == ["letter.txt"]
    assert await texts(f"call book --answers {tmp_path}/fol") == [f"{tmp_path}/folder/"]
    assert await texts("call book city=@nowhere/") == []


async def test_what_a_server_says_is_kept_short(suggesting: Suggesting) -> None:
    (one,) = [one for one in await suggesting.of("call bo") if one.text == "book"]
    assert one.about == "Books a seat"


@pytest.mark.parametrize(
    ("line", "is_secret"),
    [
        ("call book pin=1234", True),
        ("call book pin:='\"1\"'", True),
        ("call book code=1234", True),
        ("call book card:='{}'", True),
        ('call book tags:=\'[{"password": "x"}]\'', True),
        ("call bark api_key=x", True),
        ("prompt greet password=x", True),
        ("call nobody-knows-it a=1", True),
        ("call book city=Paris", False),
        ("call bark", False),
        ("list tools", False),
    ],
)
async def test_lines_with_secrets_are_known(
    suggesting: Suggesting, line: str, is_secret: bool
) -> None:
    assert await suggesting.is_secret(line) is is_secret


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", ([], "")),
        ("a ", (["a"], "")),
        ("a b", (["a"], "b")),
        ("a 'b c", (["a"], "'b c")),
        ("a 'b c' ", (["a", "b c"], "")),
        ("a b\\ c", (["a"], "b c")),
        ("a '' ", (["a", ""], "")),
    ],
)
def test_lines_are_split_as_a_shell_does(line: str, words: tuple[list[str], str]) -> None:
    assert split(line) == words


async def test_a_server_that_does_not_answer_has_nothing() -> None:
    async with Client("http://127.0.0.1:9/mcp") as client:
        server = Server(client)
        assert await server.tools() == ()
        assert await server.values("greet", "who", "") == ()
