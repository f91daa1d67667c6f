"""`roundgate list`, `describe`, `read`, `prompt`, `complete`, `ping` and `listen`."""

from __future__ import annotations

import argparse
import base64
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from roundgate.cli import output, remote
from roundgate.cli.arguments import Commands, command, repeated
from roundgate.cli.output import OutputStatus, columns, cut, say
from roundgate.client import Client, Prompt, Resource, Tool
from roundgate.errors import BadAnswer, ClientError, RpcError, UsageError
from roundgate.observability import Style, escaped
from roundgate.protocol.forms import resolved

_METHOD_NOT_FOUND: Final = -32601
_MAX_DESCRIPTION: Final = 80
_MAX_CHOICES: Final = 8
_MAX_DEPTH: Final = 3


KINDS: Final = ("tools", "prompts", "resources", "templates")


def declare(commands: Commands) -> None:
    """Add the commands of this module."""
    listed = command(
        commands, "list", "list tools, prompts and resources of a server",
        "roundgate list https://host/mcp", "roundgate list https://host/mcp tools --json",
        run=run,
    )  # fmt: skip
    remote.add_url(listed)
    listed.add_argument("kind", nargs="?", choices=KINDS, help="list only this kind")
    remote.add_connection(listed)

    about = "describe a server, or one of its tools, prompts or resources"
    describe = command(
        commands, "describe", about, "roundgate describe https://host/mcp",
        "roundgate describe https://host/mcp search", run=run,
    )  # fmt: skip
    remote.add_url(describe)
    describe.add_argument("name", nargs="?", help="a name or a URI (default: the server itself)")
    remote.add_connection(describe)

    example = "roundgate read https://host/mcp file:///logo.png > logo.png"
    read = command(commands, "read", "read a resource", example, run=run)
    remote.add_url(read)
    read.add_argument("uri", help="URI of the resource")
    remote.add_answers(read)
    remote.add_connection(read)

    example = "roundgate prompt https://host/mcp review language=python"
    prompt = command(commands, "prompt", "fill in a prompt", example, run=run)
    remote.add_url(prompt)
    prompt.add_argument("name", help="name of the prompt")
    remote.add_pairs(prompt, "arguments of the prompt, as text")
    remote.add_answers(prompt)
    remote.add_connection(prompt)

    about = "list possible values of an argument of a prompt or a resource template"
    example = "roundgate complete https://host/mcp review language py"
    complete = command(commands, "complete", about, example, run=run)
    remote.add_url(complete)
    complete.add_argument("name", help="name of the prompt, or the URI template")
    complete.add_argument("argument", help="the argument to complete")
    about = "the beginning of the argument's value"
    complete.add_argument("value", nargs="?", default="", help=about)
    remote.add_pairs(complete, "values of other arguments")
    remote.add_connection(complete)

    listen = command(
        commands, "listen", "print changes of a server, one line of JSON each",
        "roundgate listen https://host/mcp tools",
        "roundgate listen https://host/mcp --uri file:///config.yaml", run=run,
    )  # fmt: skip
    remote.add_url(listen)
    choices, about = [*KINDS[:3], []], "kind of changes: tools, prompts, resources (default: all)"
    listen.add_argument("kinds", nargs="*", choices=choices, metavar="KIND", help=about)
    repeated(listen, "--uri", "URI", "a resource to listen to; may be repeated")
    remote.add_connection(listen)

    about, example = "measure the time of a round trip", "roundgate ping https://host/mcp"
    ping = command(commands, "ping", about, example, run=run)
    remote.add_url(ping)
    remote.add_connection(ping)


def run(arguments: argparse.Namespace) -> int:
    """Run a command; return an exit status of `cli.remote`."""
    return remote.run(arguments, _COMMANDS[arguments.command])


async def _list(client: Client, arguments: argparse.Namespace) -> int:
    kinds = [arguments.kind] if arguments.kind else list(_LISTS)
    listed = {
        kind: await _entries(client, kind, is_required=bool(arguments.kind)) for kind in kinds
    }
    if arguments.json:
        output.show_json({kind: [item.raw for item in entries] for kind, entries in listed.items()})
        return remote.DONE
    rows = [
        (kind, _key(entry), " ".join((entry.description or entry.title or "").split()))
        for kind, entries in listed.items()
        for entry in entries
    ]
    if sys.stdout.isatty():
        show_list(rows, has_kinds=not arguments.kind)
        return remote.DONE
    for kind, name, description in rows:
        line = f"{name}\t{description[:_MAX_DESCRIPTION]}".rstrip()
        output.show_text(line if arguments.kind else f"{kind}\t{line}")
    return remote.DONE


def show_list(rows: Sequence[tuple[str, str, str]], *, has_kinds: bool) -> None:
    """Print rows of kind, name and description: names in a column, descriptions cut to the width of
    the terminal, and a heading for each kind if `has_kinds`."""
    style, last = Style(sys.stdout), ""
    width = max(shutil.get_terminal_size().columns - 1, 20)
    names = min(max((columns(escaped(name)) for _, name, _ in rows), default=0), width // 2)
    for kind, name, description in rows:
        if has_kinds and kind != last:
            print(("\n" if last else "") + style(kind, "bold"))
            last = kind
        shown = escaped(name)  # never cut, because users type names
        space = " " * max(names - columns(shown), 0)
        room = width - max(columns(shown), names) - 4
        about = cut(escaped(description), room) if room > 10 else ""
        print(f"  {style(shown, 'cyan')}{space}  {style(about, 'dim')}".rstrip())
    if not rows:
        say("nothing", to=sys.stderr)


async def _entries(client: Client, kind: str, *, is_required: bool) -> list[Any]:
    """Return the server's entries of a kind. If the server lacks the capability or the method, return
    an empty list; if they are required, ask nevertheless and raise its RpcError."""
    server = await client.connect()
    if not is_required and _CAPABILITIES.get(kind, kind) not in server.capabilities:
        return []
    try:
        entries: list[Any] = await _LISTS[kind](client)
    except RpcError as error:
        if error.code != _METHOD_NOT_FOUND or is_required:
            raise
        return []
    return entries


_LISTS: Final[Mapping[str, Any]] = {
    "tools": Client.tools,
    "prompts": Client.prompts,
    "resources": Client.resources,
    "templates": Client.resource_templates,
}


_CAPABILITIES: Final = {"templates": "resources"}
"""The capability of a kind, unless it has the name of the kind."""


def _key(entry: Tool | Prompt | Resource) -> str:
    return entry.uri if isinstance(entry, Resource) else entry.name


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
        for entry in await _entries(client, kind, is_required=False):
            if arguments.name in (entry.name, _key(entry)):
                _show_entry(entry, as_json=arguments.json)
                return remote.DONE
    raise ClientError(
        f"The server has no tool, prompt or resource {arguments.name!r}: run `roundgate list` to list "
        "them"
    )


def _show_entry(entry: Tool | Prompt | Resource, *, as_json: bool) -> None:
    if as_json:
        output.show_json(entry.raw)
        return
    output.show_text(_key(entry))
    for text in (entry.title, entry.description):
        if text:
            output.show_text(f"\n{text}")
    if lines := list(_argument_lines(entry)):
        output.show_text("\narguments:")
    for line in lines:
        output.show_text(f"  {line}")


def _argument_lines(entry: Tool | Prompt | Resource) -> Iterator[str]:
    if isinstance(entry, Tool):
        yield from _member_lines(entry.input_schema, entry.input_schema, 0)
    elif isinstance(entry, Prompt):
        for argument in entry.arguments:
            yield _argument(argument.get("name"), "string", argument.get("required"), argument)
    elif entry.mime_type:
        yield f"media type {entry.mime_type}"


def _member_lines(schema: Mapping[str, Any], whole: Mapping[str, Any], depth: int) -> Iterator[str]:
    """Yield a line for each member of an object, with the members of objects and of the items of
    arrays below, to `_MAX_DEPTH`."""
    required, properties = schema.get("required") or (), schema.get("properties")
    for name, member in properties.items() if isinstance(properties, dict) else ():
        about = resolved(member, whole)
        yield "  " * depth + _argument(name, argument_type(about, whole), name in required, about)
        items = resolved(about.get("items"), whole)
        if depth < _MAX_DEPTH:
            yield from _member_lines(items or about, whole, depth + 1)


def argument_type(schema: Mapping[str, Any], whole: Mapping[str, Any]) -> object:
    """Return the type or the choices of an argument of the schema `whole` as text, with its format
    and its default."""
    choices = schema.get("enum")
    kind: object = schema.get("type", "any")
    if isinstance(kind, list):
        kind = " or ".join(map(str, kind))
    if kind == "array" and (items := resolved(schema.get("items"), whole)):
        kind = f"array of {argument_type(items, whole)}"
    if isinstance(shape := schema.get("format") or schema.get("contentEncoding"), str):
        kind = f"{kind}, {shape}"
    if isinstance(choices, list) and choices:
        more = ", …" if len(choices) > _MAX_CHOICES else ""
        kind = f"one of {', '.join(map(str, choices[:_MAX_CHOICES]))}{more}"
    if schema.get("default") is not None:
        return f"{kind}, default {json.dumps(schema['default'], ensure_ascii=False)}"
    return kind


def _argument(name: object, kind: object, is_required: object, about: Mapping[str, Any]) -> str:
    description = f": {about['description']}" if about.get("description") else ""
    return f"{name} ({kind}{', required' if is_required else ''}){description}"


async def _read(client: Client, arguments: argparse.Namespace) -> int:
    with OutputStatus(sys.stderr) as status:
        answers = remote.answers(arguments, status.hide)
        resource = await client.read(arguments.uri, answers=answers)
    if arguments.json:
        output.show_json(resource.raw)
        return remote.DONE
    for content in resource.contents:
        if "blob" in content:
            _write_bytes(content["blob"])
        else:
            output.show_text(str(content.get("text", "")))
    return remote.DONE


def _write_bytes(blob: object) -> None:
    if sys.stdout.isatty():
        raise UsageError("The resource is binary: redirect the output to a file, or use --json")
    try:
        data = base64.b64decode(str(blob), validate=True)
    except ValueError:
        raise BadAnswer("The server sent a resource whose 'blob' is not base64") from None
    sys.stdout.flush()  # text written earlier is in another buffer
    sys.stdout.buffer.write(data)


async def _prompt(client: Client, arguments: argparse.Namespace) -> int:
    with OutputStatus(sys.stderr) as status:
        answers = remote.answers(arguments, status.hide)
        prompt = await client.prompt(arguments.name, _pairs(arguments.pairs), answers=answers)
    if arguments.json:
        output.show_json(prompt.raw)
        return remote.DONE
    for message in prompt.messages:
        content = message.get("content")
        text = content.get("text") if isinstance(content, dict) else None
        if isinstance(text, str):
            output.show_text(f"{message.get('role')}: {text}")
        else:
            output.show_json(message)
    return remote.DONE


async def _complete(client: Client, arguments: argparse.Namespace) -> int:
    ref = (
        {"type": "ref/resource", "uri": arguments.name}
        if "://" in arguments.name
        else {"type": "ref/prompt", "name": arguments.name}
    )
    context = _pairs(arguments.pairs)
    completed = await client.complete(ref, arguments.argument, arguments.value, context)
    if arguments.json:
        output.show_json(completed.raw)
        return remote.DONE
    for value in completed.values:
        output.show_text(value)
    return remote.DONE


async def _ping(client: Client, arguments: argparse.Namespace) -> int:
    output.show_text(f"{await client.ping():.1f} ms")
    return remote.DONE


async def _listen(client: Client, arguments: argparse.Namespace) -> int:
    lists = arguments.kinds or ([] if arguments.uri else ["tools", "prompts", "resources"])
    async with client.listen(
        tools="tools" in lists,
        prompts="prompts" in lists,
        resources="resources" in lists,
        uris=arguments.uri,
    ) as changes:
        async for change in changes:
            output.show_json({"method": change.method, "params": change.params})
            sys.stdout.flush()
    return remote.DONE


def _pairs(words: Iterable[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UsageError(f"{word!r} is not an argument: write key=value")
        pairs[key] = value
    return pairs


_COMMANDS: Final[Mapping[str, remote.Work]] = {
    "list": _list,
    "describe": _describe,
    "read": _read,
    "prompt": _prompt,
    "complete": _complete,
    "ping": _ping,
    "listen": _listen,
}
