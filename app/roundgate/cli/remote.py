"""The client of commands that talk to a server: connection options, answers to questions, and exit
statuses.

0    done
1    the tool (`isError`), its task, or a case of a suite failed
2    wrong usage: an option, an argument of a tool, an answer, a suite
3    the server answered with an error, or violated the protocol
4    a question of the server has no answer; the questions are on standard output as JSON
5    no connection, or no answer in time
6    credentials are missing or refused
130  interrupted
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from roundgate import errors
from roundgate.cli.arguments import Options, flag, repeated
from roundgate.cli.output import escaped_lines, say
from roundgate.client import (
    VERSIONS,
    Answerer,
    Answers,
    Auth,
    Client,
    Observer,
    Question,
)
from roundgate.clock import Clock
from roundgate.extensions import load_extension
from roundgate.observability import Style, escaped
from roundgate.settings import yaml_file
from roundgate.settings.files import open_private

TOKEN_VARIABLE: Final = "ROUNDGATE_TOKEN"  # noqa: S105 — a name
"""The default environment variable for a bearer token."""
SECRET_VARIABLE: Final = "ROUNDGATE_CLIENT_SECRET"  # noqa: S105 — a name
DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
SERVER_ERROR: Final = 3
UNANSWERED: Final = 4
NO_CONNECTION: Final = 5
NO_ACCESS: Final = 6
INTERRUPTED: Final = 130

Work = Callable[[Client, argparse.Namespace], Awaitable[int]]
"""A command's work with a client of the server; returns the exit status."""


def run(arguments: argparse.Namespace, work: Work) -> int:
    """Run `work` with a client of the server in the arguments; return the exit status."""
    try:
        return asyncio.run(_with_client(arguments, work))
    except KeyboardInterrupt:
        return INTERRUPTED
    except errors.GatewayError as error:
        return refused(error)


def refused(error: errors.GatewayError, *, has_lines: bool = False) -> int:
    """Print an error on standard error and return its exit status. For `Unanswered`, print the
    questions on standard output as JSON.

    Args:
        has_lines: whether to print line ends unescaped. In a server's text, they could imitate
            messages of this program.
    """
    if isinstance(error, errors.Unanswered):
        questions = [question.as_json() for question in error.questions]
        print(json.dumps({"questions": questions, "requestState": error.request_state}))
    text = error.on_command_line if isinstance(error, errors.ClientError) else str(error)
    text = escaped_lines(text) if has_lines else escaped(text)
    print(Style(sys.stderr)(text, "red"), file=sys.stderr)
    return next(status for kind, status in _STATUSES if isinstance(error, kind))


_STATUSES: Final = (
    (errors.UsageError, USAGE),
    (errors.AnswerInvalid, USAGE),
    (errors.WrongHandle, USAGE),
    (errors.Unanswered, UNANSWERED),
    (errors.TaskEnded, FAILED),
    (errors.AuthorizationFailed, NO_ACCESS),
    (errors.ConnectionLost, NO_CONNECTION),
    (errors.TimedOut, NO_CONNECTION),
    (errors.GatewayError, SERVER_ERROR),
)


async def _with_client(arguments: argparse.Namespace, work: Work) -> int:
    with ExitStack() as files:
        options = client_options(arguments, files)
        if arguments.cassette is not None:
            recorder = load_extension("cassette-recorder")
            options["transport"] = recorder(arguments.cassette, arguments.url)
        async with Client(arguments.url, **options) as client:
            return await work(client, arguments)


def client_options(arguments: argparse.Namespace, files: ExitStack) -> dict[str, Any]:
    """Return the arguments of `Client` from the connection options. `files` closes the file of
    `--transcript`.

    Raises:
        UsageError: an option is invalid, or a secret is missing.
    """
    return {
        "auth": _auth(arguments),
        "headers": headers(arguments.header),
        "versions": arguments.revision or VERSIONS,
        "observer": _transcript(arguments.transcript, files),
    }


def _auth(arguments: argparse.Namespace) -> Auth | str | None:
    """Return the caller's credentials, or `None`. Secrets come from the environment, because
    process lists show command-line arguments. Raise UsageError if a secret or the issuer is
    missing."""
    if arguments.login:
        from roundgate.client.auth import BrowserLogin, SystemKeyring

        keyring = SystemKeyring()
        if not keyring.works:
            say("this machine has no keyring: the login is for this command only", to=sys.stderr)
        return BrowserLogin(
            client_id=arguments.client_id,
            issuer=arguments.issuer,
            storage=keyring if keyring.works else None,
        )
    if arguments.client_id:
        from roundgate.client.auth import ClientCredentials

        secret = os.environ.get(SECRET_VARIABLE)
        if not secret:
            raise errors.UsageError(
                f"--client-id needs the client's secret in {SECRET_VARIABLE}, or --login"
            )
        if not arguments.issuer:
            raise errors.UsageError(
                "--client-id needs --issuer URL, the authorization server that registered this client; "
                "otherwise the secret could go to any server that the MCP server names"
            )
        return ClientCredentials(arguments.client_id, secret, issuer=arguments.issuer)
    return os.environ.get(arguments.token_env) or None


def headers(options: Sequence[str]) -> dict[str, str]:
    """Return the headers of `--header` options.

    Raises:
        UsageError: an option is not `Name: value`.
    """
    pairs: dict[str, str] = {}
    for option in options:
        name, colon, value = option.partition(":")
        if not colon or not name.strip():
            raise errors.UsageError(f"--header {option!r}: write 'Name: value'")
        pairs[name.strip()] = value.strip()
    return pairs


def _transcript(path: Path | None, files: ExitStack) -> Observer | None:
    """Return an observer that writes each message as a line of JSON, or `None` without a path.
    Raise UsageError if the file cannot be written."""
    if path is None:
        return None
    try:
        file = files.enter_context(os.fdopen(open_private(path), "w", encoding="utf-8"))
    except OSError as error:
        raise errors.UsageError(f"--transcript: {path} cannot be written: {error}") from None
    clock = Clock()
    begun_ms = clock.monotonic_ms()

    def observe(direction: str, message: Any, status: int | None) -> None:
        ms = round(clock.monotonic_ms() - begun_ms, 3)
        line: dict[str, Any] = {"ms": ms, "direction": direction}
        if status is not None:
            line["status"] = status
        file.write(json.dumps({**line, "message": message}) + "\n")
        file.flush()

    return observe


def answers(arguments: argparse.Namespace, before_asking: Callable[[], None]) -> Answers:
    """Return the sources of answers to a server's questions: the file of `--answers`, then the
    person at the terminal.

    Args:
        before_asking: called before the person is asked, to clear the status line.

    Raises:
        UsageError: the file cannot be read, or is not a mapping.
    """
    sources: list[Any] = []
    if arguments.answers is not None:
        sources.append(_by_key(arguments.answers))
    if not arguments.no_input and sys.stdin.isatty() and sys.stderr.isatty():
        sources.append(_AtTheTerminal(before_asking))
    return Answers(*sources)


def report_unused(answers: Answers) -> None:
    """Print the keys of answers that matched no question, because a key may be misspelt."""
    if answers.unused:
        say(f"these answers matched no question: {', '.join(answers.unused)}", to=sys.stderr)


def _by_key(path: Path) -> Mapping[str, Any]:
    try:
        content = yaml_file.read(path).value
    except errors.ConfigError as error:
        message = error.problems[0].message
        raise errors.UsageError(f"--answers: {path} cannot be read: {message}") from None
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise errors.UsageError(
            f"--answers: {path} must be a mapping from keys of questions to answers"
        )
    return content


class _AtTheTerminal:
    """An answerer that asks the person at the terminal. Imports prompt_toolkit, an optional
    dependency, for the first question."""

    def __init__(self, before_asking: Callable[[], None]) -> None:
        self._before_asking = before_asking
        self._person: Answerer | None = None

    async def __call__(self, question: Question) -> Any:
        if self._person is None:
            try:
                from roundgate.cli.dialogue import Person
            except ImportError:
                raise errors.UsageError(
                    "Questions on a terminal need prompt_toolkit: pip install 'roundgate[cli]', or pass --answers "
                    "FILE"
                ) from None
            self._person = Person()
        self._before_asking()
        return await self._person(question)


def add_url(parser: argparse.ArgumentParser) -> None:
    add_cassette_option(parser)
    parser.add_argument("url", help="the server's endpoint, such as http://127.0.0.1:8000/mcp")


def add_pairs(parser: argparse.ArgumentParser, about: str) -> None:
    parser.add_argument("pairs", nargs="*", metavar="KEY=VALUE", help=about)


def add_timeout(parser: argparse.ArgumentParser) -> None:
    about = "time limit of the whole command in seconds (default: none)"
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help=about)


def add_answers(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("questions of the server")
    about = "file with answers by question or by field (YAML, JSON)"
    group.add_argument("--answers", type=Path, metavar="FILE", help=about)
    flag(group, "--no-input", "ask no questions, even on a terminal")


def add_connection(parser: argparse.ArgumentParser) -> None:
    flag(parser, "--json", "print whole results as JSON")
    group = parser.add_argument_group("connection")
    add_token(group)
    flag(group, "--login", "log in with the browser, and store tokens in the keyring")
    about = f"id of an OAuth client; set its secret in {SECRET_VARIABLE}, unless --login"
    group.add_argument("--client-id", help=about)
    about = "accept only this authorization server"
    group.add_argument("--issuer", metavar="URL", help=about)
    about = "speak only this revision of the protocol; may be repeated"
    group.add_argument("--revision", action="append", metavar="DATE", help=about)
    about = "write each message to a file, one per line"
    group.add_argument("--transcript", type=Path, metavar="FILE", help=about)


def add_token(parser: Options) -> None:
    about = "environment variable with a bearer token (default: %(default)s)"
    parser.add_argument("--token-env", default=TOKEN_VARIABLE, metavar="NAME", help=about)
    repeated(parser, "--header", "NAME:VALUE", "header to send with each request; may be repeated")


def add_cassette_option(parser: argparse.ArgumentParser) -> None:
    about = "file to record the conversation in, as a cassette"
    parser.add_argument("--cassette", type=Path, metavar="FILE", help=about)
