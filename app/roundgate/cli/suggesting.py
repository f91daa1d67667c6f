"""What may come next in a line of the shell: commands, names, arguments, values, files.

Knows the parsers of the commands and what the server has; nothing of how suggestions are shown.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shlex
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from roundgate.client import Client, Prompt, Resource, Tool
from roundgate.clock import Clock
from roundgate.errors import ClientError

_FRESH_MS: Final = 30_000
"""For how long lists are used again, whatever their caching hints say."""
_PATIENCE_S: Final = 10.0
"""How long a suggestion may wait for the server."""
MAX_SUGGESTED: Final = 200
_SECRET: Final = "password"  # noqa: S105 — the name of a format
_SECRET_NAME: Final = re.compile(
    r"passw|passphrase|secret|token|api_?key|credential", re.IGNORECASE
)
_TEMPLATE: Final = re.compile(r"\{[+#./;?&]?([\w.,*]+)\}")
_SAFE: Final = re.compile(r"[\w@%+=:,./{}#~-]*")

T = TypeVar("T")


def _may_be_secret(schema: Any) -> bool:
    """Whether a part of a value is a secret, as its schema says; so it is where that is
    said elsewhere (`$ref`)."""
    if isinstance(schema, list):
        return any(map(_may_be_secret, schema))
    if not isinstance(schema, dict):
        return False
    if schema.get("format") == _SECRET or schema.get("writeOnly") is True or "$ref" in schema:
        return True
    return any(map(_may_be_secret, schema.values()))


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A word that could stand in place of the last `replaces` characters;
    `about` is said beside it."""

    text: str
    replaces: int
    about: str = ""


class Server:
    """What a server has, as it was when last asked; empty where it does not answer."""

    def __init__(self, client: Client, clock: Clock | None = None) -> None:
        self._client = client
        self._clock = clock or Clock()
        self._kept: dict[str, tuple[float, Sequence[Any]]] = {}
        self.tasks: dict[str, str] = {}
        """The tasks that calls of this shell have become: id → tool."""

    async def tools(self) -> Sequence[Tool]:
        return await self._list("tools", self._client.tools)

    async def prompts(self) -> Sequence[Prompt]:
        return await self._list("prompts", self._client.prompts)

    async def resources(self) -> Sequence[Resource]:
        return await self._list("resources", self._client.resources)

    async def templates(self) -> Sequence[Resource]:
        return await self._list("templates", self._client.resource_templates)

    async def values(self, name: str, argument: str, typed: str) -> Sequence[str]:
        """What the server suggests for an argument of a prompt or a template."""
        kind, word = ("resource", "uri") if "://" in name else ("prompt", "name")
        ref = {"type": f"ref/{kind}", word: name}
        found: Sequence[str] = ()
        with suppress(ClientError, TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                found = (await self._client.complete(ref, argument, typed)).values
        return found

    async def _list(self, kind: str, ask: Callable[[], Awaitable[Sequence[T]]]) -> Sequence[T]:
        now = self._clock.monotonic_ms()
        at, kept = self._kept.get(kind, (float("-inf"), ()))
        if now - at >= _FRESH_MS:
            with suppress(ClientError, TimeoutError):
                async with asyncio.timeout(_PATIENCE_S):
                    kept = await ask()
                self._kept[kind] = now, kept
        return kept


class Suggesting:
    """Suggestions for one shell: its commands with their parsers, and its server."""

    def __init__(
        self, commands: Mapping[str, tuple[argparse.ArgumentParser | None, str]], server: Server
    ) -> None:
        self.commands = commands
        self._server = server

    async def of(self, line: str) -> list[Suggestion]:
        """What may come at the end of a line, in order, up to `MAX_SUGGESTED`."""
        words, last = split(line)
        found = [one async for one in self._after(words, last)]
        typed = last.lstrip("'\"")
        fitting = [
            Suggestion(_quoted(text), len(last), about)
            for text, about in found
            if text.startswith(typed)
        ]
        return list(dict.fromkeys(fitting))[:MAX_SUGGESTED]

    async def is_secret(self, line: str) -> bool:
        """Whether a line gives an argument that is a secret, or could be one.

        By its name, by its schema (`format: password`, `writeOnly`), or because
        nothing is known of the tool.
        """
        words, last = split(line)
        words = [*words, last] if last else words
        given = {re.split(r":?=", word, maxsplit=1)[0] for word in words if "=" in word}
        in_json = [word for word in words if ":=" in word]  # whose members have names, too
        if any(map(_SECRET_NAME.search, (*given, *in_json))):
            return True
        if not given or words[0] != "call" or len(words) < 2:
            return False
        if words[1] not in {tool.name for tool in await self._server.tools()}:
            return True
        schemas = await self._properties(words[1])
        members = {name.partition(".")[0] for name in given}
        return any(_may_be_secret(schemas[name]) for name in members & schemas.keys())

    async def _after(self, words: Sequence[str], last: str) -> Any:
        if not words:
            for name, (_, about) in self.commands.items():
                yield name, about
            return
        command, *said = words
        parser = self.commands.get(command, (None, ""))[0]
        if last.startswith("-") and parser is not None:
            for one in parser._actions:
                for option in one.option_strings:
                    if option.startswith("--"):
                        yield option, one.help or ""
            return
        if parser is not None and said and (action := _option(parser, said[-1])) is not None:
            for value in _values_of(action, last):
                yield value
            return
        given = list(_positional(parser, said))
        async for found in self._argument(command, given, last):
            yield found

    async def _argument(self, command: str, given: list[str], last: str) -> Any:
        server = self._server
        match command, len(given):
            case "help", 0:
                for name, (_, about) in self.commands.items():
                    yield name, about
            case "call", 0:
                for tool in await server.tools():
                    yield tool.name, _about(tool)
            case "call", _:
                for one in self._of_tool(await self._properties(given[0]), given[1:], last):
                    yield one
            case ("list", 0) | ("listen", _):
                kinds = ("tools", "prompts", "resources", "templates")
                for kind in kinds if command == "list" else kinds[:3]:
                    if kind not in given:
                        yield kind, ""
            case "wait", 0:
                for task, target in server.tasks.items():
                    yield task, target
            case (("describe" | "read" | "prompt" | "complete"), 0):
                for name, about in await self._names(command):
                    yield name, about
            case "complete", 1:
                for name in await self._arguments_of(given[0]):
                    yield name, ""
            case "complete", 2:
                for value in await server.values(given[0], given[1], last):
                    yield value, ""
            case "prompt", _:
                name, is_given, typed = last.partition("=")
                if is_given:
                    for value in await server.values(given[0], name, typed):
                        yield f"{name}={value}", ""
                else:
                    there = {one.partition("=")[0] for one in given[1:]}
                    for name in await self._arguments_of(given[0]):
                        if name not in there:
                            yield f"{name}=", ""

    async def _names(self, command: str) -> list[tuple[str, str]]:
        server = self._server
        found: list[tuple[str, str]] = []
        if command == "describe":
            found += [(one.name, _about(one)) for one in await server.tools()]
        if command != "read":
            found += [(one.name, _about(one)) for one in await server.prompts()]
        if command in ("describe", "read"):
            found += [(one.uri, _about(one)) for one in await server.resources()]
        return found + [(one.uri, _about(one)) for one in await server.templates()]

    async def _arguments_of(self, name: str) -> list[str]:
        """The arguments of a prompt, or the variables of a template."""
        if "://" in name:
            return [
                variable.rstrip("*")
                for inside in _TEMPLATE.findall(name)
                for variable in inside.split(",")
            ]
        prompts = [one for one in await self._server.prompts() if one.name == name]
        return [str(one.get("name")) for prompt in prompts for one in prompt.arguments]

    async def _properties(self, tool: str) -> dict[str, dict[str, Any]]:
        for one in await self._server.tools():
            if one.name == tool:
                found = one.input_schema.get("properties")
                members = found if isinstance(found, dict) else {}
                return {name: one for name, one in members.items() if isinstance(one, dict)}
        return {}

    def _of_tool(
        self, schemas: Mapping[str, Mapping[str, Any]], given: Sequence[str], last: str
    ) -> Iterator[tuple[str, str]]:
        found = re.match(
            r"(?P<name>[^=@]*?)(?P<mark>:?=)(?P<value>.*)", last.lstrip("'\""), re.DOTALL
        )
        if found is None:
            there = {re.split(r":?=", one, maxsplit=1)[0] for one in given}
            for name, schema in schemas.items():
                if name not in there or schema.get("type") == "array":
                    yield f"{name}=", _about_field(schema)
            return
        before = found["name"] + found["mark"]
        if found["value"].startswith("@"):
            for path, about in files(found["value"][1:]):
                yield f"{before}@{path}", about
            return
        schema = schemas.get(found["name"], {})
        schema = schema.get("items", {}) if schema.get("type") == "array" else schema
        for value in _choices(schema):
            yield f"{before}{value}", ""


def split(line: str) -> tuple[list[str], str]:
    """The whole words of a line, and the one that is being typed, with the
    quote that it began with."""
    words: list[str] = []
    word, quote, is_begun = "", "", False
    characters = iter(line)
    for one in characters:
        if quote:
            quote, word = ("", word) if one == quote else (quote, word + one)
        elif one in "'\"":
            quote, is_begun = one, True
        elif one == "\\":
            word, is_begun = word + next(characters, ""), True
        elif one.isspace():
            if is_begun:
                words.append(word)
            word, is_begun = "", False
        else:
            word, is_begun = word + one, True
    return words, quote + word if quote and not word.startswith(quote) else word


def files(typed: str) -> Iterator[tuple[str, str]]:
    """Files and folders that a path could go on to."""
    folder, _, begun = typed.rpartition("/")
    root = "/" if typed.startswith("/") and not folder else folder or "."
    try:
        entries = sorted(Path(root).expanduser().iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(begun) and (begun or not entry.name.startswith(".")):
            path = f"{typed[: len(typed) - len(begun)]}{entry.name}"
            with suppress(OSError):
                yield (f"{path}/", "folder") if entry.is_dir() else (path, "")


def _quoted(text: str) -> str:
    """A word as it has to be typed. Where more is to be typed behind it, it is left open."""
    return text if _SAFE.fullmatch(text) else shlex.quote(text)


def _about(one: Tool | Prompt | Resource) -> str:
    return " ".join((one.title or one.description or "").split())[:60]


def _about_field(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type", "")
    return f"{kind} {' '.join(str(schema.get('description', '')).split())}".strip()[:60]


def _choices(schema: Mapping[str, Any]) -> Iterable[str]:
    if isinstance(values := schema.get("enum"), list):
        return [value if isinstance(value, str) else str(value) for value in values]
    if schema.get("type") == "boolean":
        return ["true", "false"]
    if "const" in schema:
        return [str(schema["const"])]
    default = schema.get("default")
    return [str(default)] if isinstance(default, str | int | float) else []


def _option(parser: argparse.ArgumentParser, word: str) -> argparse.Action | None:
    """The option whose value comes next."""
    action = parser._option_string_actions.get(word)
    return action if action is not None and action.nargs != 0 else None


def _values_of(action: argparse.Action, typed: str) -> Iterator[tuple[str, str]]:
    if action.choices is not None:
        yield from ((str(one), "") for one in action.choices)
    elif action.type is Path:
        yield from files(typed)


def _positional(parser: argparse.ArgumentParser | None, words: Sequence[str]) -> Iterator[str]:
    """Words that are neither options nor their values."""
    is_value = False
    for word in words:
        if is_value:
            is_value = False
        elif word.startswith("--"):
            is_value = parser is not None and _option(parser, word) is not None
        else:
            yield word
