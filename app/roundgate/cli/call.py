"""`roundgate call URL TOOL key=value …`: a call through its rounds, and through its task.

`--detach` prints a handle as soon as the call is a task; `roundgate wait HANDLE` continues on any
machine, also with a task whose call was interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys

from roundgate.cli import answering, given, output, remote
from roundgate.cli.output import Status, say
from roundgate.client import Answers, CallResult, Client, Task, split_handle
from roundgate.errors import TimedOut, WrongHandle


def run(arguments: argparse.Namespace) -> int:
    """Call a tool, or wait for a task; return an exit status of `cli.remote`."""
    if arguments.command == "call":
        return remote.run(arguments, _call)
    try:
        arguments.url, _ = split_handle(arguments.handle)
    except WrongHandle as error:
        return remote.refused(error)
    return remote.run(arguments, _cancel if arguments.cancel else _wait)


async def _call(client: Client, arguments: argparse.Namespace) -> int:
    try:
        async with asyncio.timeout(arguments.timeout) as limit:
            return await _called(client, arguments)
    except TimeoutError:
        if not limit.expired():
            raise
        raise TimedOut(
            f"No result of {arguments.tool} within {arguments.timeout:g} s (--timeout)"
        ) from None


async def _called(client: Client, arguments: argparse.Namespace) -> int:
    tool = await client.tool(arguments.tool)
    values = given.arguments(arguments.given, tool.input_schema)
    with Status(sys.stderr) as status:
        answers = answering.sources(arguments, status.hide)
        task = await client.start(
            tool.name,
            values,
            answers=answers,
            max_rounds=arguments.max_rounds,
            on_progress=status.progressed,
            on_log=status.logged if arguments.log_level else None,
            log_level=arguments.log_level or "info",
        )
        if arguments.detach and task.handle is not None:
            print(task.handle)
            return remote.DONE
        result = await _finished(task, answers, status, None)
    answering.report_unused(answers)
    return _show(result, arguments)


async def _finished(
    task: Task, answers: Answers, status: Status, timeout_s: float | None
) -> CallResult:
    """The result of a task; a user who interrupts is told how to go on with it.

    Args:
        task: which may be over already.
        answers: for what it asks.
        status: shows how it is.
        timeout_s: seconds; `None` for as long as it takes.
    """
    try:
        return await task.wait(answers=answers, timeout_s=timeout_s, on_task=status.task)
    except (asyncio.CancelledError, KeyboardInterrupt):
        status.hide()
        if task.handle is not None:
            say(
                "The task goes on without you. To come back: roundgate wait "
                f"{shlex.quote(task.handle)}",
                to=sys.stderr,
            )
        raise


def _show(result: CallResult, arguments: argparse.Namespace) -> int:
    """Print a result; returns the exit status that it stands for."""
    if arguments.json:
        output.show_json(result.raw)
    else:
        output.show_result(result)
    return remote.FAILED if result.is_error else remote.DONE


async def _wait(client: Client, arguments: argparse.Namespace) -> int:
    task = client.resume(arguments.handle)
    with Status(sys.stderr) as status:
        answers = answering.sources(arguments, status.hide)
        result = await _finished(task, answers, status, arguments.timeout)
    answering.report_unused(answers)
    return _show(result, arguments)


async def _cancel(client: Client, arguments: argparse.Namespace) -> int:
    task = client.resume(arguments.handle)
    await task.cancel()
    print((await task.get()).status)
    return remote.DONE
