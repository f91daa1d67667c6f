"""The command `mcp-gateway`: one module a subcommand, arguments read with the standard library."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from app.errors import ConfigError


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; returns the exit status: 0, 1 for what the command found wrong, 2 for wrong usage."""
    arguments = _parser().parse_args(argv)
    try:
        status: int = import_module(f"app.cli.{arguments.command}").run(arguments)
    except ConfigError as error:
        print(f"{len(error.problems)} problem(s):", *error.problems, sep="\n", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mcp-gateway", description="A stateless MCP gateway (revision 2026-07-28).")
    commands = parser.add_subparsers(dest="command", required=True)

    serve = commands.add_parser("serve", help="serve a configuration over HTTP")
    serve.add_argument("config", nargs="?", type=Path, help="gateway.yaml (default: GATEWAY_CONFIG, or ./gateway.yaml)")
    serve.add_argument("--host", default="127.0.0.1", help="address to bind to (default: %(default)s)")
    serve.add_argument("--port", type=int, default=8000, help="port to bind to (default: %(default)s)")
    serve.add_argument("--workers", type=int, default=1, help="processes that share the port (default: %(default)s)")
    serve.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), help="default: GATEWAY_LOG_LEVEL, or info"
    )

    check = commands.add_parser("check", help="find every problem in a configuration, and list what it serves")
    check.add_argument("config", type=Path, help="gateway.yaml")

    commands.add_parser("schema", help="print the JSON Schema of gateway.yaml, for editors")
    return parser
