"""`scripts/stack`: run it, or show it."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from pathlib import Path

from infra.stack.stack import (
    EXECUTIONS,
    ROOT,
    Stack,
    build_with_functions,
    build_zips,
    running,
)

DEMO = ROOT / "infra/stack/demo/gateway.yaml"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/stack", description="The deployed stack on this machine."
    )
    parser.add_argument(
        "config", nargs="?", type=Path, default=ROOT / "examples/quickstart/gateway.yaml"
    )
    parser.add_argument(
        "--demo", action="store_true", help="show a call with rounds and a task, replica by replica"
    )
    parser.add_argument(
        "--gateways", type=int, default=3, help="gateway functions at once (default: %(default)s)"
    )
    parser.add_argument(
        "--workers", type=int, default=2, help="worker functions at once (default: %(default)s)"
    )
    parser.add_argument(
        "--executions",
        type=int,
        default=EXECUTIONS,
        help="functions at once in all (default: %(default)s, a new account's)",
    )
    parser.add_argument("--port", type=int, help="of the API (default: any free one)")
    parser.add_argument(
        "--directory", type=Path, help="for the functions and their logs (default: a temporary one)"
    )
    parser.add_argument(
        "--functions",
        type=Path,
        help="functions that back ends of the kind lambda invoke, such as functions.yaml",
    )
    arguments = parser.parse_args()
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # as Ctrl-C, so that nothing stays behind
    try:
        return asyncio.run(run(arguments))
    except KeyboardInterrupt:
        return 130


async def run(arguments: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as temporary:
        directory = (arguments.directory or Path(temporary)).resolve()
        config = DEMO if arguments.demo else arguments.config
        if arguments.functions is None:
            zips = build_zips(config, directory / "zips")
        else:
            zips = await build_with_functions(config, arguments.functions, directory)
        counts = {
            "gateways": arguments.gateways,
            "workers": arguments.workers,
            "executions": arguments.executions,
        }
        async with running(
            directory, zips, **counts, port=arguments.port, functions=arguments.functions
        ) as stack:
            if arguments.demo:
                from infra.stack.demo import show

                return await show(stack)
            await serve(stack)
    return 0


async def serve(stack: Stack) -> None:
    print(
        f"{stack.url}\nlogs of the functions: {stack.deployment.directory}\nCtrl-C ends it",
        flush=True,
    )
    await asyncio.Event().wait()


if __name__ == "__main__":
    sys.exit(main())
