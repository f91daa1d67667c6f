"""`roundgate upstreams`: the state of each MCP server behind a gateway, asked now.

A server that does not answer, or a definition that is left out, is shown and stops nothing, unlike
in `roundgate check`. /healthz shows the state as a running gateway has it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from roundgate import config
from roundgate.backends.base import ServerState
from roundgate.cli.arguments import Commands, add_config, command, configuration_file, flag
from roundgate.cli.output import say, show_json, show_table
from roundgate.runtime import loading


def declare(commands: Commands) -> None:
    """Add `roundgate upstreams`."""
    about = "ask each MCP server behind a gateway, and print its state"
    upstreams = command(
        commands, "upstreams", about, "roundgate upstreams",
        "roundgate upstreams gateway.yaml --json | jq -r .name", run=run,
    )  # fmt: skip
    add_config(upstreams)
    flag(upstreams, "--json", "print JSON objects, one a line")


def run(arguments: argparse.Namespace) -> int:
    """Print the state of each server; return 1 if one is down.

    Raises:
        ConfigError: the configuration is invalid.
    """
    file = config.load(configuration_file(arguments.config))
    names = [backend.name for backend in file.backends]
    states = loading.load(file, fetches=True, may_be_missing=names).servers()
    if arguments.json:
        for state in states:
            show_json(_members(state))
    elif states:
        show_table([_row(state) for state in states])
        for state in states:
            for line in _remarks(state):
                say(line)
    else:
        print("there is no MCP server among the back ends")
    return 0 if all(state.is_up for state in states) else 1


def _row(state: ServerState) -> tuple[str, ...]:
    status = "up" if state.is_up else "down"
    if state.revision is None:
        return state.name, status, "", "", ""
    counts = (
        f"{state.tools} tools, {state.prompts} prompts, {state.resources} resources"
        if state.is_up
        else ""
    )
    return state.name, status, state.revision, state.software or "", counts


def _remarks(state: ServerState) -> Iterator[str]:
    if state.error is not None:
        yield f"{state.name}: {state.error}"
    for name, reason in state.left_out.items():
        yield f"{state.name}: {name} is left out: {reason}"
    for name in state.differing:
        if name not in state.left_out:
            yield f"{state.name}: {name} differs from the lock file"
    if state.skipped:
        yield f"{state.name}: {state.skipped} lines or events are no messages"


def _members(state: ServerState) -> dict[str, Any]:
    return {
        "name": state.name,
        "status": "up" if state.is_up else "down",
        "revision": state.revision,
        "software": state.software,
        "tools": state.tools,
        "prompts": state.prompts,
        "resources": state.resources,
        "left_out": dict(state.left_out),
        "changed": list(state.differing),
        "skipped": state.skipped,
        "error": state.error,
    }
