"""Starts the library and then the gateway in front of it. Arguments are passed to `roundgate
serve`.

python serve.py [--host HOST] [--port PORT] …
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from roundgate.cli import main

HERE = Path(__file__).parent
START_S = 30


@contextmanager
def library() -> Iterator[str]:
    """Run the library and yield its URL. The library ends with the block or with this process."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, str(HERE / "library.py"), str(port)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            _wait_for(f"http://127.0.0.1:{port}/-/versions.json", process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.05)
    raise SystemExit(
        "the library (Datasette) did not start; try: python examples/quickstart/library.py 8001"
    )


if __name__ == "__main__":
    with library() as url:
        os.environ["LIBRARY_URL"] = url
        raise SystemExit(main(["serve", str(HERE / "gateway.yaml"), *sys.argv[1:]]))
