"""A real service that no one here wrote, for the HTTP back end to be in front of."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def httpbin_url() -> Iterator[str]:
    """The base URL of a real httpbin."""
    from httpbin import app  # takes its time, and talks while it does
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log(self, *_: object) -> None:
            return

    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.port}"
    server.shutdown()
    thread.join()
    server.server_close()
