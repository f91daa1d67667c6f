"""`roundgate stack`: the deployed stack on this machine, until Ctrl-C, or shown by a demonstration."""

from __future__ import annotations

import argparse
import asyncio
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from roundgate.cli import package
from roundgate.cli.arguments import configuration_file
from roundgate.deployment import packaging, runtime, tools

if TYPE_CHECKING:
    from roundgate.deployment.stack.stack import Stack


def run(arguments: argparse.Namespace) -> int:
    """Package, and run it.

    Raises:
        ConfigError: something is wrong with the configuration, or with what would be packed.
        UsageError: what it needs cannot be had on this machine.
    """
    tools.emulator()
    tools.dynamodb()
    tools.provide_moto()
    # as Ctrl-C, so that nothing stays behind
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as temporary:
        directory: Path = (arguments.directory or Path(temporary)).resolve()
        planned, prefix = _planned(arguments, Path(temporary, "shown"))
        packaging.package(planned, directory / "zips")
        return asyncio.run(_run(arguments, directory, prefix))


def _planned(arguments: argparse.Namespace, folder: Path) -> tuple[packaging.Plan, str]:
    """What is packed, and what stands before the names of the demonstration's tools in it."""
    from roundgate.deployment.stack import demo

    path = configuration_file(arguments.config)
    has_own = path.is_file() or not arguments.demo
    planned = package.planned_from(path if has_own else demo.CONFIG, runtime.here())
    print(*planned.lines(), sep="\n")
    if not (arguments.demo and has_own):
        return planned, ""
    return package.planned_from(demo.beside(planned, folder), runtime.here()), demo.PREFIX + "__"


async def _run(arguments: argparse.Namespace, directory: Path, prefix: str) -> int:
    from roundgate.deployment.stack import demo
    from roundgate.deployment.stack.stack import running

    counts = {name: getattr(arguments, name) for name in ("gateways", "workers", "executions")}
    others = {"port": arguments.port, "functions": arguments.functions}
    async with running(directory, directory / "zips", **counts, **others) as stack:
        if arguments.demo:
            return await demo.show(stack, prefix)
        await _serve(stack)
    return 0


async def _serve(stack: Stack) -> None:
    print(
        f"{stack.url}\nlogs of the functions: {stack.deployment.directory}\nCtrl-C ends it",
        flush=True,
    )
    await asyncio.Event().wait()
