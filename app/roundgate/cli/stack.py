"""`roundgate stack`: the deployed stack on this machine, until Ctrl-C, or
shown by a demonstration."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from roundgate import config
from roundgate.cli import package
from roundgate.cli.arguments import configuration_file
from roundgate.deployment import packaging, runtime, tools
from roundgate.errors import UsageError
from roundgate.settings import kept_at_aws

if TYPE_CHECKING:
    from roundgate.deployment.stack.stack import Stack


def run(arguments: argparse.Namespace) -> int:
    """Package, and run it.

    Raises:
        ConfigError: something is wrong with the configuration, or with what would be packed.
        UsageError: what it needs cannot be had on this machine.
    """
    variables = _variables(configuration_file(arguments.config))
    tools.emulator()
    tools.dynamodb()
    tools.provide_moto()
    # as Ctrl-C, so that nothing stays behind
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as temporary:
        directory: Path = (arguments.directory or Path(temporary)).resolve()
        prefix = _package(arguments, directory, Path(temporary, "shown"))
        return asyncio.run(_run(arguments, directory, prefix, variables))


def _variables(path: Path) -> dict[str, str]:
    """The variables of `env` that are set here; the stack on this machine
    has no secrets of anybody.

    Raises:
        ConfigError: something is wrong with the configuration.
        UsageError: one that is kept at AWS is not set.
    """
    if not path.is_file():
        return {}  # the demonstration's has none
    env = config.load(path, placeholder=packaging.PLACEHOLDER).config.env
    kept = [name for name, text in env.items() if list(kept_at_aws(text))]
    unset = [name for name in kept if name not in os.environ]
    if unset:
        raise UsageError(f"set {', '.join(unset)}: what AWS keeps cannot be read on this machine")
    return {name: os.environ[name] for name in env if name in os.environ}


def _package(arguments: argparse.Namespace, directory: Path, folder: Path) -> str:
    """Make the zips; returns what stands before the names of the demonstration's tools in them."""
    from roundgate.deployment.stack import demo
    from roundgate.deployment.stack.stack import build_with_functions

    path = configuration_file(arguments.config)
    if arguments.functions is not None:
        asyncio.run(build_with_functions(path, arguments.functions, directory))
        return ""
    has_own = path.is_file() or not arguments.demo
    planned, prefix = package.planned_from(path if has_own else demo.CONFIG, runtime.here()), ""
    print(*planned.lines(), sep="\n")
    if arguments.demo and has_own:
        beside = demo.beside(planned, folder)  # has the indexes but not their documents
        planned = package.planned_from(beside, runtime.here(), is_compiled=True)
        prefix = demo.PREFIX + "__"
    packaging.package(planned, directory / "zips")
    return prefix


async def _run(
    arguments: argparse.Namespace, directory: Path, prefix: str, more: dict[str, str]
) -> int:
    from roundgate.deployment.stack import demo
    from roundgate.deployment.stack.stack import running

    counts = {name: getattr(arguments, name) for name in ("gateways", "workers", "executions")}
    others = {"port": arguments.port, "functions": arguments.functions, "more": more}
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
