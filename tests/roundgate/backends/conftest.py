"""What tests of back ends share: a real service that no one here wrote, and a
session of AWS of their own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import cache

import pytest

from roundgate import aws


@pytest.fixture
def own_aws_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session of botocore for this test alone: it keeps the credentials that it has read of the environment."""
    monkeypatch.setattr(aws, "_session", cache(aws._session.__wrapped__))


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
