"""`roundgate wait HANDLE`: go on with a task that `roundgate call --detach` printed,
or that was interrupted."""

from __future__ import annotations

import argparse
import sys

from roundgate.cli import answering, remote
from roundgate.cli.call import finished, show
from roundgate.cli.status import Status
from roundgate.client import Client, split_handle
from roundgate.errors import WrongHandle


def run(arguments: argparse.Namespace) -> int:
    """Wait for a task, look at it once, or cancel it; the exit status is one of `cli.remote`."""
    try:
        arguments.url, _ = split_handle(arguments.handle)
    except WrongHandle as error:
        return remote.refused(error)
    return remote.run(arguments, work(arguments))


def work(arguments: argparse.Namespace) -> remote.Work:
    """What is done with a client."""
    return _cancel if arguments.cancel else _wait


async def _wait(client: Client, arguments: argparse.Namespace) -> int:
    task = client.resume(arguments.handle)
    with Status(sys.stderr) as status:
        answers = answering.sources(arguments, status.hide)
        result = await finished(task, answers, status, arguments.timeout)
    answering.report_unused(answers)
    return show(result, arguments)


async def _cancel(client: Client, arguments: argparse.Namespace) -> int:
    task = client.resume(arguments.handle)
    await task.cancel()
    print((await task.get()).status)
    return remote.DONE
