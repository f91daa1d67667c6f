"""What the commands that talk to a server have in common: their options, their
client, their exit statuses.

0    done
1    the tool failed (`isError`), or its task did; a case of a suite failed
2    wrong usage: an option, an argument of a tool, an answer file, a suite
3    the server answered with an error, or not as the protocol has it
4    the server asks, and nobody here can answer; the questions are on standard output as JSON
5    no connection, or no answer in time
6    no access: no credentials, or none that are taken
130  interrupted
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from roundgate import errors
from roundgate.cli.output import escaped_lines, say
from roundgate.cli.remote_options import SECRET_VARIABLE
from roundgate.client import VERSIONS, Auth, Client, Observer, Transport
from roundgate.clock import Clock
from roundgate.observability import Style, escaped
from roundgate.settings.files import open_private

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
SERVER_ERROR: Final = 3
UNANSWERED: Final = 4
NO_CONNECTION: Final = 5
NO_ACCESS: Final = 6
INTERRUPTED: Final = 130

Work = Callable[[Client, argparse.Namespace], Awaitable[int]]


def run(arguments: argparse.Namespace, work: Work) -> int:
    """Do something with a client of the server that the arguments name; returns the exit status.

    Args:
        arguments: of the command line.
        work: what to do with the client; returns the exit status.
    """
    try:
        return asyncio.run(_with_client(arguments, work))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever reads has enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except errors.GatewayError as error:
        return refused(error)


def refused(error: errors.GatewayError, *, has_lines: bool = False) -> int:
    """Say what went wrong, on standard error, and which exit status that is.

    Args:
        has_lines: whether line ends in it are ours. A server's are escaped, or
            it could pretend to be us.
    """
    if isinstance(error, errors.Unanswered):
        print(
            json.dumps(
                {
                    "questions": [one.as_json() for one in error.questions],
                    "requestState": error.request_state,
                }
            )
        )
    text = error.on_command_line if isinstance(error, errors.ClientError) else str(error)
    said = escaped_lines(text) if has_lines else escaped(text)
    print(Style(sys.stderr)(said, "red"), file=sys.stderr)
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
        transport = recorder(arguments.cassette, arguments.url)
        options = client_options(arguments, files)
        async with Client(arguments.url, transport=transport, **options) as client:
            return await work(client, arguments)


def client_options(arguments: argparse.Namespace, files: ExitStack) -> dict[str, Any]:
    """What the options of a connection make of a client.

    Args:
        files: closes the file that messages are written to.

    Raises:
        UsageError: one of them cannot be used.
    """
    return {
        "auth": _auth(arguments),
        "headers": dict(map(header, arguments.header)),
        "versions": arguments.revision or VERSIONS,
        "observer": _transcript(arguments.transcript, files),
    }


def _auth(arguments: argparse.Namespace) -> Auth | str | None:
    """Who the caller is: secrets come from the environment, where a list of
    processes does not show them."""
    if arguments.login:
        from roundgate.client.auth import BrowserLogin, SystemKeyring

        keyring = SystemKeyring()
        if not keyring.works:
            say("no keyring works here: the login is for this command alone", to=sys.stderr)
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
                "--client-id needs --issuer URL, the authorization server that knows this client: "
                "otherwise the secret would go to any that the MCP server names"
            )
        return ClientCredentials(arguments.client_id, secret, issuer=arguments.issuer)
    return os.environ.get(arguments.token_env) or None


def header(said: str) -> tuple[str, str]:
    """A header as it is said on the command line.

    Raises:
        UsageError: it is none.
    """
    name, colon, value = said.partition(":")
    if not colon or not name.strip():
        raise errors.UsageError(f"--header {said!r}: give 'Name: value'")
    return name.strip(), value.strip()


def recorder(path: Path | None, url: str) -> Transport | None:
    """Records the conversation, if that is wanted."""
    if path is None:
        return None
    from roundgate.cassettes import Recorder

    return Recorder(path, url)


def _transcript(path: Path | None, files: ExitStack) -> Observer | None:
    """Writes each message as one line: when, which way, the HTTP status of
    an answer, the message."""
    if path is None:
        return None
    try:
        file = files.enter_context(os.fdopen(open_private(path), "w", encoding="utf-8"))
    except OSError as error:
        raise errors.UsageError(f"--transcript: {path} cannot be written: {error}") from None
    clock = Clock()
    begun = clock.monotonic_ms()

    def observe(direction: str, message: Any, status: int | None) -> None:
        line: dict[str, Any] = {
            "ms": round(clock.monotonic_ms() - begun, 3),
            "direction": direction,
        }
        if status is not None:
            line["status"] = status
        file.write(json.dumps({**line, "message": message}) + "\n")
        file.flush()

    return observe
