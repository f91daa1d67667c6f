"""moto's server in this process: services of AWS over real HTTP."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest


@cache
def session() -> Any:
    """Return the tests' session of boto3; each session reads the descriptions of services once."""
    import boto3

    return boto3.Session("test", "test", region_name="eu-central-1")


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


def machine(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """Set up the environment of a machine whose services of AWS are at this URL."""
    for name in ("AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
