"""`scripts/stack`: run it, or show it."""

from __future__ import annotations

import argparse
import asyncio
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from infra.stack.stack import ROOT, Stack, running

DEMO = ROOT / "infra/stack/demo/gateway.yaml"


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/stack", description="The deployed stack on this machine.")
    parser.add_argument("config", nargs="?", type=Path, default=ROOT / "examples/quickstart/gateway.yaml")
    parser.add_argument("--demo", action="store_true", help="show a call with rounds and a task, replica by replica")
    parser.add_argument("--gateways", type=int, default=3, help="gateway functions at once (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="worker functions at once (default: %(default)s)")
    parser.add_argument("--port", type=int, help="of the API (default: any free one)")
    arguments = parser.parse_args()
    package(DEMO if arguments.demo else arguments.config)
    try:
        return asyncio.run(run(arguments))
    except KeyboardInterrupt:
        return 130


def package(config: Path) -> None:
    """The zips for this machine."""
    arch = "arm64" if platform.machine() in ("aarch64", "arm64") else "x86_64"
    subprocess.run([sys.executable, "-m", "infra.package", "--arch", arch, str(config)], cwd=ROOT, check=True)


async def run(arguments: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as directory:
        counts = {"gateways": arguments.gateways, "workers": arguments.workers}
        async with running(Path(directory), **counts, port=arguments.port) as stack:
            if arguments.demo:
                from infra.stack.demo import show

                return await show(stack)
            await serve(stack, directory)
    return 0


async def serve(stack: Stack, directory: str) -> None:
    print(f"{stack.url}\nlogs of the functions: {directory}\nCtrl-C ends it")
    await asyncio.Event().wait()


if __name__ == "__main__":
    sys.exit(main())
