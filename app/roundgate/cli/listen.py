"""`roundgate listen URL`: what changes at a server, a line each, until it is interrupted."""

from __future__ import annotations

import argparse
import sys

from roundgate.cli import output, remote
from roundgate.client import Client


def run(arguments: argparse.Namespace) -> int:
    """Listen; the exit status is one of `cli.remote`."""
    return remote.run(arguments, work(arguments))


def work(arguments: argparse.Namespace) -> remote.Work:
    """What is done with a client."""
    return _listen


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
