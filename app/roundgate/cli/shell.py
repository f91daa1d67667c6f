"""`roundgate shell URL`: the commands of this program at a prompt, on one connection.

Without a terminal the lines of standard input are done one after the other, and the
exit status is that of the last. Ctrl-C ends what a command is doing, not the shell;
Ctrl-D or `exit` ends the shell.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from roundgate.cli import output, remote, remote_options
from roundgate.cli.parsing import CommandParser
from roundgate.cli.suggesting import Server, Suggesting
from roundgate.cli.terminal import say
from roundgate.client import Client, Observer, handle_of
from roundgate.errors import GatewayError, UsageError

if TYPE_CHECKING:
    from roundgate.cli.arguments import Commands

_OWN: Final[Mapping[str, str]] = {
    "tasks": "the tasks that calls of this shell have become",
    "help": "the commands, or one of them",
    "exit": "end the shell (Ctrl-D)",
}
_MAX_TASKS: Final = 1_000


def run(arguments: argparse.Namespace) -> int:
    """Read lines and do them; the exit status is 0, or without a terminal
    that of the last command."""
    try:
        return asyncio.run(_with_client(arguments))
    except KeyboardInterrupt:
        return remote.INTERRUPTED
    except GatewayError as error:
        return remote.refused(error)


async def _with_client(arguments: argparse.Namespace) -> int:
    with ExitStack() as files:
        options = remote.client_options(arguments, files)
        noted = _Noted(options["observer"])
        options |= {
            "observer": noted,
            "transport": remote.recorder(arguments.cassette, arguments.url),
        }
        async with Client(arguments.url, **options) as client:
            shell = Shell(client)
            noted.tasks = shell.server.tasks
            if sys.stdin.isatty() and sys.stderr.isatty():
                await _at_the_terminal(shell, client)
                return remote.DONE
            return await _piped(shell)


async def _at_the_terminal(shell: Shell, client: Client) -> None:
    try:
        from roundgate.cli.dialogue.lines import Lines
    except ImportError:
        raise UsageError(
            "A prompt needs: pip install 'roundgate[cli]'; commands can be piped in without"
        ) from None
    server = await client.connect()
    say(
        f"{server.name} {server.version}, revision {server.protocol_version}. "
        "Tab completes, help lists the commands, Ctrl-D ends.",
        to=sys.stderr,
    )
    lines = Lines(server.name, shell.suggesting)
    while True:
        try:
            line = await lines.next()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if await shell.do(line) is None:
            return


async def _piped(shell: Shell) -> int:
    status = remote.DONE
    async for line in _lines_of_input():
        done = await shell.do(line)
        sys.stdout.flush()
        if done is None:
            break
        status = done
    return status


async def _lines_of_input() -> AsyncGenerator[str, None]:
    while line := await asyncio.to_thread(sys.stdin.readline):
        if line.strip() and not line.lstrip().startswith("#"):
            yield line.rstrip("\n")


class Shell:
    """What lines do, with one client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._parser = _Parser(prog="", add_help=False)
        commands: Commands = self._parser.add_subparsers(
            dest="command", required=True, prog="", parser_class=_Parser
        )
        remote_options.add_requests(commands, in_shell=True)
        self._commands: dict[str, argparse.ArgumentParser] = dict(commands.choices)
        about = {one.dest: one.help or "" for one in commands._choices_actions}
        self.server = Server(client)
        self.suggesting = Suggesting(
            {
                **{name: (parser, about[name]) for name, parser in self._commands.items()},
                **{name: (None, said) for name, said in _OWN.items()},
            },
            self.server,
        )

    async def do(self, line: str) -> int | None:
        """Do one line; its status, `None` if the shell is to end. Nothing
        that goes wrong leaves it."""
        try:
            words = shlex.split(line)
            if not words:
                return remote.DONE
            if words[0] in ("exit", "quit"):
                return None
            with _interrupts():
                return await self._words(words)
        except ValueError as error:  # a quote that is not closed
            return remote.refused(UsageError(f"{error}: quote with '…' or \"…\""))
        except SystemExit:  # the parser has printed the help that was asked for
            return remote.DONE
        except GatewayError as error:
            return remote.refused(error)
        except (asyncio.CancelledError, KeyboardInterrupt):
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                task.uncancel()
            say("interrupted", to=sys.stderr)
            return remote.INTERRUPTED

    async def _words(self, words: list[str]) -> int:
        match words:
            case ["tasks"]:
                return await self._tasks()
            case ["help"]:
                self._help()
                return remote.DONE
            case ["help", name]:
                words = [name, "--help"]
        if words[0] not in self._commands:
            raise UsageError(f"there is no command {words[0]!r}: help lists them")
        arguments = self._parser.parse_args(words)
        arguments.url = self._client.url
        name = remote_options.MODULES.get(arguments.command, arguments.command)
        work: Callable[[argparse.Namespace], remote.Work] = import_module(
            f"roundgate.cli.{name}"
        ).work
        return await work(arguments)(self._client, arguments)

    async def _tasks(self) -> int:
        for task, target in list(self.server.tasks.items()):
            try:
                state = await self._client.resume(task).get()
                said = f"{state.status}: {state.message}" if state.message else state.status
            except GatewayError as error:
                said = str(error)
            output.show_text(f"{handle_of(self._client.url, task)}\t{target}\t{said}")
        return remote.DONE

    def _help(self) -> None:
        for name, (_, about) in self.suggesting.commands.items():
            output.show_text(f"{name:<10}{about}")


class _Noted:
    """Looks at messages for calls that have become tasks, and passes them on."""

    def __init__(self, observer: Observer | None) -> None:
        self._observer = observer
        self._called: dict[Any, str] = {}
        self.tasks: dict[str, str] = {}

    def __call__(self, direction: str, message: Any, status: int | None) -> None:
        if self._observer is not None:
            self._observer(direction, message, status)
        if not isinstance(message, dict):
            return
        if direction == "sent" and message.get("method") == "tools/call":
            self._called = {message.get("id"): str(message["params"].get("name"))}
        result = message.get("result")
        if (
            direction == "received"
            and isinstance(result, dict)
            and result.get("resultType") == "task"
            and isinstance(result.get("taskId"), str)
            and len(self.tasks) < _MAX_TASKS
        ):
            self.tasks[result["taskId"]] = self._called.get(message.get("id"), "")


class _Parser(CommandParser):
    """Raises where the standard one would end the process because of a mistake."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


@contextmanager
def _interrupts() -> Generator[None, None, None]:
    """While a command is under way Ctrl-C cancels it.

    The handler of the process, not of the loop: prompt_toolkit puts back the former when a question
    has been answered, and forgets the latter.
    """
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    if task is None:
        raise RuntimeError("a command of the shell is done in a task")

    def cancel(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(task.cancel)

    try:
        before = signal.signal(signal.SIGINT, cancel)
    except ValueError:  # not the main thread: somebody else hears of signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
