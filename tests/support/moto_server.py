"""moto's server in this process: services of AWS over real HTTP."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def running() -> Iterator[str]:
    """Its URL. What it keeps is kept by the process: names of resources have to be new ones."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel("ERROR")
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop()
