"""`read`, `prompt`, `complete`, `list`, `describe`, `ping`: what they print of what a
server says, right or wrong."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from base64 import b64encode
from typing import Any

import pytest

from roundgate.cli import main
from tests.support.scripted import Asked, error, result, scripted

BYTES = bytes(range(256))
KEPT = {"ttlMs": 0, "cacheScope": "private"}
TOOL = {
    "name": "cut",
    "title": "Cut",
    "description": "Cuts.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "what": {"type": ["string", "null"], "description": "Of paper."},
            "any": True,
        },
        "required": ["what"],
    },
}
PROMPT = {
    "name": "greet",
    "arguments": [{"name": "who", "required": True, "description": "Whom."}, {"name": "when"}],
}
RESOURCE = {"uri": "note://one", "name": "one", "title": "One", "mimeType": "text/plain"}
ANSWERS: dict[str, dict[str, Any]] = {
    "tools/list": {"tools": [TOOL], **KEPT},
    "prompts/list": {"prompts": [PROMPT], **KEPT},
    "resources/list": {"resources": [RESOURCE], **KEPT},
    "resources/read": {
        "contents": [
            {"uri": "note://one", "text": "before\n"},
            {"uri": "note://one", "blob": b64encode(BYTES).decode()},
        ],
        **KEPT,
    },
    "prompts/get": {
        "messages": [
            {"role": "user", "content": {"type": "text", "text": "Hello"}},
            {"role": "assistant", "content": {"type": "image", "data": "", "mimeType": "x/y"}},
        ]
    },
    "completion/complete": {"completion": {"values": ["python", "pascal"]}},
    "server/discover": {
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {}, "prompts": {}, "resources": {}},
        "instructions": "Be kind.",
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "small", "version": "3"}},
        **KEPT,
    },
}


class Commands:
    """Runs commands against a server that gives these answers, in a thread of this process."""

    def __init__(self, capture: pytest.CaptureFixture[bytes]) -> None:
        self.answers = dict(ANSWERS)
        self.asked: list[Asked] = []
        self._capture = capture

    def _answer(self, asked: Asked) -> bytes:
        found = self.answers.get(asked.rpc)
        return error(asked, -32601, status=404) if found is None else result(asked, found)

    async def __call__(self, command: str, *words: str) -> tuple[int, bytes, str]:
        """Exit status, standard output, standard error."""
        self._capture.readouterr()
        async with scripted(self._answer) as server:
            async with asyncio.timeout(60):
                status = await asyncio.to_thread(main, [command, server.url, *words])
            self.asked = server.asked
        told = self._capture.readouterr()
        return status, told.out, told.err.decode()

    def params(self, method: str) -> dict[str, Any]:
        """What the last request of a method said."""
        return next(one.params for one in reversed(self.asked) if one.rpc == method)


@pytest.fixture
def commands(capfdbinary: pytest.CaptureFixture[bytes]) -> Commands:
    return Commands(capfdbinary)


async def test_the_contents_of_a_resource_come_in_their_order_bytes_as_they_are() -> None:
    """To a pipe, where Python keeps text back for a while."""
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    async with scripted(lambda asked: result(asked, ANSWERS[asked.rpc])) as server:
        command = [sys.executable, "-m", "roundgate.cli", "read", server.url, "note://one"]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, env=buffered
        )
        out, _ = await asyncio.wait_for(process.communicate(), 120)
    assert (process.returncode, out) == (0, b"before\n\n" + BYTES)


async def test_bytes_that_are_no_base64_are_the_servers_fault(commands: Commands) -> None:
    commands.answers["resources/read"] = {"contents": [{"uri": "note://one", "blob": "?"}], **KEPT}
    status, out, err = await commands("read", "note://one")
    assert (status, out) == (3, b"")
    assert "is not base64" in err


async def test_a_prompt_is_printed_message_by_message(commands: Commands) -> None:
    status, out, err = await commands("prompt", "greet", "who=Ada = Byron", "when=")
    first, second = out.decode().splitlines()
    assert (status, first, err) == (0, "user: Hello", "")
    assert json.loads(second)["content"]["mimeType"] == "x/y"
    assert commands.params("prompts/get")["arguments"] == {"who": "Ada = Byron", "when": ""}


@pytest.mark.parametrize("said", ["who", "=Ada"])
async def test_an_argument_without_a_name_is_a_mistake_of_the_command(
    commands: Commands, said: str
) -> None:
    status, out, err = await commands("prompt", "greet", said)
    assert (status, out) == (2, b"")
    assert f"{said!r} is not an argument: write key=value" in err


@pytest.mark.parametrize(
    ("name", "ref"),
    [
        ("greet", {"type": "ref/prompt", "name": "greet"}),
        ("note://{id}", {"type": "ref/resource", "uri": "note://{id}"}),
    ],
)
async def test_completions_are_a_line_each_of_a_prompt_or_of_a_template(
    commands: Commands, name: str, ref: dict[str, str]
) -> None:
    assert await commands("complete", name, "who", "p") == (0, b"python\npascal\n", "")
    assert commands.params("completion/complete")["ref"] == ref


@pytest.mark.parametrize(
    ("words", "method", "inside"),
    [
        (("read", "note://one"), "resources/read", "contents"),
        (("prompt", "greet"), "prompts/get", "messages"),
        (("complete", "greet", "who"), "completion/complete", "completion"),
    ],
    ids=lambda one: one[0] if isinstance(one, tuple) else None,
)
async def test_json_has_all_that_the_server_sent(
    commands: Commands, words: tuple[str, ...], method: str, inside: str
) -> None:
    status, out, _ = await commands(*words, "--json")
    assert (status, json.loads(out)[inside]) == (0, ANSWERS[method][inside])


async def test_ping_says_how_long_it_took(commands: Commands) -> None:
    status, out, err = await commands("ping")
    assert (status, err) == (0, "")
    assert out.endswith(b" ms\n")


async def test_a_list_that_a_server_does_not_have_is_empty_unless_just_that_was_asked_for(
    commands: Commands,
) -> None:
    status, out, _ = await commands("list")
    assert (status, out.decode().splitlines()) == (
        0,
        ["tools\tcut\tCuts.", "prompts\tgreet", "resources\tnote://one\tOne"],
    )
    status, out, _ = await commands("list", "templates")
    assert (status, out) == (3, b"")


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("cut", "cut\n\nCut\n\nCuts.\n\narguments:\n  what (string or null, required): Of paper.\n  any (any)"),
        ("greet", "greet\n\narguments:\n  who (string, required): Whom.\n  when (string)"),
        ("note://one", "note://one\n\nOne\n\narguments:\n  media type text/plain"),
    ],
    ids=["tool", "prompt", "resource"],
)  # fmt: skip
async def test_each_kind_is_described_in_words(commands: Commands, name: str, lines: str) -> None:
    status, out, err = await commands("describe", name)
    assert (status, out.decode(), err) == (0, f"{lines}\n", "")


async def test_a_server_is_described_by_its_name_and_what_it_can(commands: Commands) -> None:
    status, out, _ = await commands("describe")
    assert (status, out.decode()) == (
        0,
        "small 3, revision 2026-07-28\ncapabilities: prompts, resources, tools\n\nBe kind.\n",
    )
    status, out, _ = await commands("describe", "--json")
    assert json.loads(out)["instructions"] == "Be kind."


async def test_a_client_without_its_secret_is_a_mistake_of_the_command(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROUNDGATE_CLIENT_SECRET", raising=False)
    status, out, err = await commands("ping", "--client-id", "me")
    assert (status, out) == (2, b"")
    assert "needs the client's secret in" in err
