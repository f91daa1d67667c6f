"""What tests of back ends share: a real service that no one here wrote, and a
session of AWS of their own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from roundgate import aws


@pytest.fixture(scope="session")
def aws_models() -> Any:
    """What botocore knows of the services, which takes a tenth of a second to read."""
    from botocore.loaders import create_loader

    return create_loader()


@pytest.fixture
def own_aws_session(monkeypatch: pytest.MonkeyPatch, aws_models: Any) -> None:
    """A session of botocore for this test alone: it keeps the credentials that it has read of the environment."""

    @cache
    def session() -> Any:
        made = make()
        made.register_component("data_loader", aws_models)
        return made

    make = aws._session.__wrapped__
    monkeypatch.setattr(aws, "_session", session)


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
