"""The commands that talk to a server: what each takes. Nothing of the client is imported
to read a command line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from roundgate.cli.arguments import add_examples

if TYPE_CHECKING:
    from roundgate.cli.arguments import Commands

TOKEN_VARIABLE: Final = "ROUNDGATE_TOKEN"  # noqa: S105 — a name
"""The variable that a bearer token is read from, unless another is named."""
SECRET_VARIABLE: Final = "ROUNDGATE_CLIENT_SECRET"  # noqa: S105 — a name

MODULES: Final = {
    "list": "listing",
    "describe": "listing",
    "read": "reading",
    "prompt": "reading",
    "complete": "reading",
    "ping": "reading",
    "listen": "reading",
    "wait": "call",
    "test": "suite",
}
"""The modules of commands that are not named like theirs."""

EXAMPLES: Final = {
    "call": (
        "roundgate call http://127.0.0.1:8000/mcp calculate expression='2 * 21'",
        "roundgate call https://host/mcp search filter:='{\"year\": 2026}' tag=a tag=b | jq .items",
        "roundgate call https://host/mcp deploy env=prod --answers answers.yaml --detach",
    ),
    "wait": (
        "roundgate wait 'https://host/mcp#task=786512e2'",
        "roundgate wait 'https://host/mcp#task=786512e2' --cancel",
    ),
    "list": ("roundgate list https://host/mcp", "roundgate list https://host/mcp tools --json"),
    "describe": (
        "roundgate describe https://host/mcp",
        "roundgate describe https://host/mcp search",
    ),
    "read": ("roundgate read https://host/mcp file:///logo.png > logo.png",),
    "prompt": ("roundgate prompt https://host/mcp review language=python",),
    "complete": ("roundgate complete https://host/mcp review language py",),
    "listen": (
        "roundgate listen https://host/mcp tools",
        "roundgate listen https://host/mcp --uri file:///config.yaml",
    ),
    "ping": ("roundgate ping https://host/mcp",),
    "test": (
        "roundgate test suite.yaml --jobs 4 --junit results.xml",
        "roundgate test suite.yaml --serve gateway.yaml --filter refund",
        "roundgate test suite.yaml --url https://staging.example/mcp --update",
    ),
}
"""What is shown under the help of a command."""

KINDS: Final = ("tools", "prompts", "resources", "templates")


def add_commands(commands: Commands) -> None:
    """Add each command, in the order in which `--help` shows them."""
    _add_call(commands)
    _add_wait(commands)
    _add_list(commands)
    _add_describe(commands)
    _add_read(commands)
    _add_prompt(commands)
    _add_complete(commands)
    _add_listen(commands)
    _add_ping(commands)
    _add_test(commands)
    add_examples(commands, EXAMPLES)


def _add_call(commands: Commands) -> None:
    call = commands.add_parser("call", help="call a tool of a server")
    _add_url(call)
    call.add_argument("tool", help="its name, as `list` prints it")
    call.add_argument(
        "given", nargs="*", metavar="KEY=VALUE", help="arguments; KEY:=JSON, KEY=@FILE"
    )
    call.add_argument(
        "--detach", action="store_true", help="print a handle as soon as the call is a task"
    )
    call.add_argument(
        "--max-rounds", type=int, metavar="N", help="how many requests it may take (default: 10)"
    )
    call.add_argument(
        "--log-level",
        choices=("debug", "info", "notice", "warning", "error"),
        help="show log messages",
    )
    _add_timeout(call)
    _add_answers(call)
    _add_connection(call)


def _add_wait(commands: Commands) -> None:
    wait = commands.add_parser("wait", help="go on with a task")
    _add_cassette(wait)
    wait.add_argument("handle", help="as `call --detach` printed it")
    wait.add_argument("--cancel", action="store_true", help="ask the server to end it instead")
    _add_timeout(wait)
    _add_answers(wait)
    _add_connection(wait)


def _add_list(commands: Commands) -> None:
    listed = commands.add_parser("list", help="what a server has")
    _add_url(listed)
    listed.add_argument("kind", nargs="?", choices=KINDS, help="only these")
    _add_connection(listed)


def _add_describe(commands: Commands) -> None:
    describe = commands.add_parser(
        "describe", help="a server, or one of its tools, prompts or resources"
    )
    _add_url(describe)
    describe.add_argument("name", nargs="?", help="a name or a URI (default: the server itself)")
    _add_connection(describe)


def _add_read(commands: Commands) -> None:
    read = commands.add_parser("read", help="read a resource")
    _add_url(read)
    read.add_argument("uri", help="of the resource")
    _add_answers(read)
    _add_connection(read)


def _add_prompt(commands: Commands) -> None:
    prompt = commands.add_parser("prompt", help="fill in a prompt")
    _add_url(prompt)
    prompt.add_argument("name", help="of the prompt")
    prompt.add_argument("given", nargs="*", metavar="KEY=VALUE", help="its arguments, as text")
    _add_answers(prompt)
    _add_connection(prompt)


def _add_complete(commands: Commands) -> None:
    complete = commands.add_parser(
        "complete", help="what an argument of a prompt or a resource template may be"
    )
    _add_url(complete)
    complete.add_argument("name", help="of the prompt, or the URI template")
    complete.add_argument("argument", help="which argument")
    complete.add_argument("value", nargs="?", default="", help="what has been typed of it")
    complete.add_argument(
        "given", nargs="*", metavar="KEY=VALUE", help="arguments that have a value already"
    )
    _add_connection(complete)


def _add_listen(commands: Commands) -> None:
    listen = commands.add_parser("listen", help="what changes at a server, a line of JSON each")
    _add_url(listen)
    listen.add_argument(
        "kinds",
        nargs="*",
        choices=[*KINDS[:3], []],
        metavar="KIND",
        help="tools, prompts, resources (default: all)",
    )
    listen.add_argument("--uri", action="append", default=[], help="a resource to hear of")
    _add_connection(listen)


def _add_ping(commands: Commands) -> None:
    ping = commands.add_parser("ping", help="how long a round trip takes")
    _add_url(ping)
    _add_connection(ping)


def _add_test(commands: Commands) -> None:
    test = commands.add_parser("test", help="run suites of cases against a server")
    test.add_argument("suites", nargs="+", type=Path, metavar="SUITE", help="suite.yaml")
    against = test.add_mutually_exclusive_group()
    against.add_argument("--url", help="test this server, whatever the suites say")
    against.add_argument(
        "--serve", type=Path, metavar="CONFIG", help="serve this gateway.yaml, and test that"
    )
    test.add_argument(
        "--filter",
        action="append",
        default=[],
        metavar="TEXT",
        help="only cases with this in their names or tags; may be repeated",
    )
    test.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="cases at a time (default: %(default)s)"
    )
    test.add_argument("--fail-fast", action="store_true", help="stop after the first failure")
    test.add_argument("--update", action="store_true", help="store snapshots instead of comparing")
    test.add_argument("--list", action="store_true", help="print the cases, and run none")
    test.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML to a file")
    _add_connection(test)


def _add_url(parser: argparse.ArgumentParser) -> None:
    _add_cassette(parser)
    parser.add_argument("url", help="the server's endpoint, such as http://127.0.0.1:8000/mcp")


def _add_timeout(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="for the whole of it (default: none)"
    )


def _add_answers(parser: argparse.ArgumentParser) -> None:
    asked = parser.add_argument_group("questions of the server")
    asked.add_argument(
        "--answers",
        type=Path,
        metavar="FILE",
        help="answers by key or by names of fields (YAML, JSON)",
    )
    asked.add_argument(
        "--sample-command",
        metavar="COMMAND",
        help="writes samples: request on stdin, text on stdout",
    )
    asked.add_argument("--no-input", action="store_true", help="ask nobody, even on a terminal")


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, with everything in it")


def _add_connection(parser: argparse.ArgumentParser) -> None:
    _add_json(parser)
    connection = parser.add_argument_group("connection")
    connection.add_argument(
        "--token-env",
        default=TOKEN_VARIABLE,
        metavar="NAME",
        help="variable with a bearer token (default: %(default)s)",
    )
    connection.add_argument(
        "--login", action="store_true", help="log in with the browser; tokens go to the keyring"
    )
    connection.add_argument(
        "--client-id", help=f"OAuth client; its secret is in {SECRET_VARIABLE}, unless --login"
    )
    connection.add_argument(
        "--issuer", metavar="URL", help="the authorization server, if it has to be this one"
    )
    connection.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="NAME:VALUE",
        help="a header of each request; may be repeated",
    )
    connection.add_argument(
        "--revision",
        action="append",
        metavar="DATE",
        help="speak only this revision of the protocol; may be repeated",
    )
    connection.add_argument(
        "--transcript", type=Path, metavar="FILE", help="write each message to a file, a line each"
    )


def _add_cassette(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cassette", type=Path, metavar="FILE", help="record the conversation, to be replayed"
    )
