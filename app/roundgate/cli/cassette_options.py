"""`roundgate cassette`: what its actions take. Nothing of the cassettes is imported
to read a command line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from roundgate.cli.remote_options import TOKEN_VARIABLE

if TYPE_CHECKING:
    from roundgate.cli.arguments import Commands


def add_commands(commands: Commands) -> None:
    """Add the command, with its actions."""
    _add_actions(
        commands.add_parser("cassette", help="record conversations, and replay them as either side")
    )


def _add_actions(cassette: argparse.ArgumentParser) -> None:
    """Add each action."""
    actions = cassette.add_subparsers(dest="action", required=True)

    record = actions.add_parser(
        "record", help="a proxy that records what a client and a server say"
    )
    _add_file(record)
    record.add_argument("url", help="the server's endpoint")
    _add_listen(record)
    _add_rules(record)

    verify = actions.add_parser("verify", help="send everything again: does the server answer so?")
    _add_file(verify)
    verify.add_argument(
        "urls", nargs="+", metavar="URL", help="the server, or its replicas, which take turns"
    )
    verify.add_argument(
        "--only", type=int, action="append", metavar="N", help="tell only of this interaction"
    )
    verify.add_argument(
        "--update", action="store_true", help="record again what differs (with --only: that alone)"
    )
    verify.add_argument(
        "--ignore", action="append", default=[], metavar="PATH", help="do not compare this, either"
    )
    verify.add_argument(
        "--revision",
        metavar="DATE",
        help="make the calls in this revision of the protocol instead, and compare their results",
    )
    verify.add_argument(
        "--timeout", type=float, default=30.0, metavar="SECONDS", help="for each answer"
    )
    verify.add_argument(
        "--token-env",
        default=TOKEN_VARIABLE,
        metavar="NAME",
        help="variable with a bearer token (default: %(default)s)",
    )
    verify.add_argument(
        "--header", action="append", default=[], metavar="NAME:VALUE", help="of each request"
    )
    _add_faults(verify)

    serve = actions.add_parser("serve", help="a stand-in that answers as the server did")
    _add_file(serve)
    _add_listen(serve)
    serve.add_argument(
        "--in-order", action="store_true", help="take requests only in the recorded order"
    )
    _add_faults(serve)

    show = actions.add_parser("show", help="what a cassette holds, a line an interaction")
    _add_file(show)

    actions.add_parser("schema", help="print the JSON Schema of cassettes, for editors")


def _add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="the cassette: YAML, or JSON if it ends in .json")


def _add_listen(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--listen",
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        help="where clients reach it (default: %(default)s, any free port)",
    )


def _add_faults(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="KIND:N",
        help="lost:2, twice:2, cut:2, delay:2:0.5; may be repeated",
    )


def _add_rules(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--redact",
        action="append",
        default=[],
        metavar="PATH",
        help="members whose values are secrets: arguments.pin, or pin",
    )
    parser.add_argument(
        "--redact-env",
        action="append",
        default=[],
        metavar="NAME",
        help="a variable whose value is a secret, wherever it comes up",
    )
    parser.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="PATH",
        help="what verify shall not compare",
    )
    parser.add_argument(
        "--rule",
        action="append",
        default=[],
        metavar="NAME=PATTERN",
        help="values that differ from run to run, by their looks",
    )
