"""`roundgate read`, `prompt`, `complete`, `ping` and `listen`: a function each."""

from __future__ import annotations

import argparse
import base64
import sys
from collections.abc import Mapping
from typing import Final

from roundgate.cli import answering, output, remote
from roundgate.cli.output import Status
from roundgate.client import Client
from roundgate.errors import BadAnswer, UsageError


def run(arguments: argparse.Namespace) -> int:
    """Do what the command says; the exit status is one of `cli.remote`."""
    return remote.run(arguments, _COMMANDS[arguments.command])


async def _read(client: Client, arguments: argparse.Namespace) -> int:
    with Status(sys.stderr) as status:
        found = await client.read(arguments.uri, answers=answering.sources(arguments, status.hide))
    if arguments.json:
        output.show_json(found.raw)
        return remote.DONE
    for one in found.contents:
        if "blob" in one:
            _write_bytes(one["blob"])
        else:
            output.show_text(str(one.get("text", "")))
    return remote.DONE


def _write_bytes(blob: object) -> None:
    if sys.stdout.isatty():
        raise UsageError("The resource is binary: send it to a file, or use --json")
    try:
        data = base64.b64decode(str(blob), validate=True)
    except ValueError:
        raise BadAnswer("The server sent a resource whose 'blob' is no base64") from None
    sys.stdout.flush()  # the text before it, which waits in a buffer of its own
    sys.stdout.buffer.write(data)


async def _prompt(client: Client, arguments: argparse.Namespace) -> int:
    given = dict(_pair(one) for one in arguments.given)
    with Status(sys.stderr) as status:
        found = await client.prompt(
            arguments.name, given, answers=answering.sources(arguments, status.hide)
        )
    if arguments.json:
        output.show_json(found.raw)
        return remote.DONE
    for message in found.messages:
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
    context = dict(_pair(one) for one in arguments.given)
    found = await client.complete(ref, arguments.argument, arguments.value, context)
    if arguments.json:
        output.show_json(found.raw)
        return remote.DONE
    for value in found.values:
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


def _pair(said: str) -> tuple[str, str]:
    key, found, value = said.partition("=")
    if not found or not key:
        raise UsageError(f"{said!r} is no argument: give key=value")
    return key, value


_COMMANDS: Final[Mapping[str, remote.Work]] = {
    "read": _read,
    "prompt": _prompt,
    "complete": _complete,
    "ping": _ping,
    "listen": _listen,
}
