"""`roundgate list URL` and `roundgate describe URL NAME`: what a server has."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from roundgate.cli import output, remote
from roundgate.cli.output import columns, cut, say
from roundgate.client import Client, Prompt, Resource, Tool
from roundgate.errors import ClientError, RpcError
from roundgate.observability import Style, escaped

_METHOD_NOT_FOUND: Final = -32601
_DESCRIBED_CHARS: Final = 80


def run(arguments: argparse.Namespace) -> int:
    """List, or describe one; the exit status is one of `cli.remote`."""
    return remote.run(arguments, _describe if arguments.command == "describe" else _list)


async def _list(client: Client, arguments: argparse.Namespace) -> int:
    kinds = [arguments.kind] if arguments.kind else list(_LISTS)
    found = {
        kind: await _of_kind(client, kind, is_asked_for=bool(arguments.kind)) for kind in kinds
    }
    if arguments.json:
        output.show_json({kind: [one.raw for one in listed] for kind, listed in found.items()})
        return remote.DONE
    rows = [
        (
            kind,
            one.uri if isinstance(one, Resource) else one.name,
            " ".join((one.description or one.title or "").split()),
        )
        for kind, listed in found.items()
        for one in listed
    ]
    if sys.stdout.isatty():
        _show_table(rows, has_kinds=not arguments.kind)
        return remote.DONE
    for kind, name, described in rows:
        line = f"{name}\t{described[:_DESCRIBED_CHARS]}".rstrip()
        output.show_text(line if arguments.kind else f"{kind}\t{line}")
    return remote.DONE


def _show_table(rows: Sequence[tuple[str, str, str]], *, has_kinds: bool) -> None:
    """For people: a head for each kind, names in a column, and of each description
    what fits into the line."""
    style, last = Style(sys.stdout), ""
    width = max(shutil.get_terminal_size().columns - 1, 20)
    names = min(max((columns(escaped(name)) for _, name, _ in rows), default=0), width // 2)
    for kind, name, described in rows:
        if has_kinds and kind != last:
            print(("\n" if last else "") + style(kind, "bold"))
            last = kind
        shown = escaped(name)  # whole, because it is what one types
        space = " " * max(names - columns(shown), 0)
        room = width - max(columns(shown), names) - 4
        about = cut(escaped(described), room) if room > 10 else ""
        print(f"  {style(shown, 'cyan')}{space}  {style(about, 'dim')}".rstrip())
    if not rows:
        say("nothing", to=sys.stderr)


async def _of_kind(client: Client, kind: str, *, is_asked_for: bool) -> list[Any]:
    """What is listed; a server without such a list has none of it, unless
    just that was asked for."""
    try:
        listed: list[Any] = await _LISTS[kind](client)
    except RpcError as error:
        if error.code != _METHOD_NOT_FOUND or is_asked_for:
            raise
        return []
    return listed


_LISTS: Final[Mapping[str, Any]] = {
    "tools": Client.tools,
    "prompts": Client.prompts,
    "resources": Client.resources,
    "templates": Client.resource_templates,
}


async def _describe(client: Client, arguments: argparse.Namespace) -> int:
    if arguments.name is None:
        server = await client.connect()
        if arguments.json:
            output.show_json(server.raw)
            return remote.DONE
        output.show_text(f"{server.name} {server.version}, revision {server.protocol_version}")
        output.show_text(f"capabilities: {', '.join(sorted(server.capabilities)) or 'none'}")
        if server.instructions:
            output.show_text(f"\n{server.instructions}")
        return remote.DONE
    for kind in _LISTS:
        for one in await _of_kind(client, kind, is_asked_for=False):
            if arguments.name in (one.name, getattr(one, "uri", None)):
                _show(one, arguments.json)
                return remote.DONE
    raise ClientError(
        f"The server has no tool, prompt or resource {arguments.name!r}: `roundgate list` shows "
        "them"
    )


def _show(one: Tool | Prompt | Resource, as_json: bool) -> None:
    if as_json:
        output.show_json(one.raw)
        return
    output.show_text(one.uri if isinstance(one, Resource) else one.name)
    for text in (one.title, one.description):
        if text:
            output.show_text(f"\n{text}")
    if lines := list(_arguments(one)):
        output.show_text("\narguments:")
    for line in lines or ():
        output.show_text(f"  {line}")


def _arguments(one: Tool | Prompt | Resource) -> Iterable[str]:
    """A line for each argument: its name, its type, whether it is needed, what it is."""
    if isinstance(one, Tool):
        needed = one.input_schema.get("required") or ()
        properties = one.input_schema.get("properties") or {}
        for name, schema in properties.items():
            shape = schema if isinstance(schema, dict) else {}
            yield _line(name, _kind(shape), name in needed, shape.get("description"))
    elif isinstance(one, Prompt):
        for argument in one.arguments:
            yield _line(
                argument.get("name"),
                "string",
                bool(argument.get("required")),
                argument.get("description"),
            )
    elif one.mime_type:
        yield f"media type {one.mime_type}"


_MAX_CHOICES: Final = 8


def _kind(schema: Mapping[str, Any]) -> object:
    """The type of an argument, or what it may be; with its default."""
    choices = schema.get("enum")
    kind: object = schema.get("type", "any")
    if isinstance(kind, list):
        kind = " or ".join(map(str, kind))
    if isinstance(choices, list) and choices:
        more = ", …" if len(choices) > _MAX_CHOICES else ""
        kind = f"one of {', '.join(map(str, choices[:_MAX_CHOICES]))}{more}"
    if "default" in schema and schema["default"] is not None:
        return f"{kind}, default {json.dumps(schema['default'], ensure_ascii=False)}"
    return kind


def _line(name: object, kind: object, is_needed: bool, described: object) -> str:
    about = f": {described}" if described else ""
    return f"{name} ({kind}{', required' if is_needed else ''}){about}"
