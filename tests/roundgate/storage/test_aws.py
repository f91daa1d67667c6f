"""Calls of AWS that are not answered: given up at the request's deadline, tried no more after
it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from roundgate import aws
from roundgate.clock import Clock
from roundgate.errors import Unavailable
from roundgate.storage import sqs
from roundgate.storage.sqs import SqsQueue
from roundgate.storage.tasks import TaskRef
from tests.support.scripted import serving

pytest.importorskip("boto3")

REF = TaskRef("owner", "id")
MOST_OF_A_REQUEST_S = 29 - 5
"""What the template's function has, less what the rest of a request takes."""


@dataclass
class Silent:
    """A service that takes requests and never answers, as a connection does that a freeze has
    killed."""

    url: str
    requests: int = 0
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.requests += 1
        self.heard.set()
        await reader.read()


@asynccontextmanager
async def silent() -> AsyncIterator[Silent]:
    service = Silent("")
    async with serving(service.take) as url:
        service.url = url.rstrip("/")
        yield service


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a function, with no proxy in the way."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    known = {
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }
    for name, value in known.items():
        monkeypatch.setenv(name, value)


def queue_at(service: Silent) -> SqsQueue:
    client = aws.client("sqs", **sqs.CONFIG)
    client.meta.events.register(
        "before-sign", lambda request, **_: setattr(request, "url", service.url)
    )
    return SqsQueue(f"{service.url}/1/tasks", lambda: client)  # made before any time is taken


async def test_a_call_is_given_up_at_the_deadline_of_its_request_and_not_tried_after_it(
    environment: None,
) -> None:
    async with silent() as service:
        queue = queue_at(service)
        with (
            pytest.raises(Unavailable, match="in the time that the request has"),
            aws.bounded(Clock().deadline(1500)),
        ):
            await queue.send(REF)
        assert service.heard.is_set()
        await asyncio.sleep(
            aws.READ_S + 3
        )  # the first attempt is over, and the pause before a second
        assert service.requests == 1
        await queue.aclose()


async def test_a_deadline_is_that_of_its_request_alone(environment: None) -> None:
    async with silent() as service:
        queue = queue_at(service)
        with aws.bounded(Clock().deadline(0)), pytest.raises(Unavailable):
            await queue.send(REF)
        sending = asyncio.ensure_future(queue.send(REF))
        await asyncio.wait_for(service.heard.wait(), 60)
        sending.cancel()
        await asyncio.wait([sending])
        await queue.aclose()


def test_the_longest_call_of_aws_without_a_deadline_fits_into_a_request(
    environment: None,
) -> None:
    pauses_s = sum(2**attempt for attempt in range(aws.ATTEMPTS - 1))
    assert aws.ATTEMPTS * (aws.CONNECT_S + aws.READ_S) + pauses_s < MOST_OF_A_REQUEST_S
    for service, more in (("sqs", sqs.CONFIG), ("secretsmanager", {}), ("kms", {})):
        config = aws.client(service, **more).meta.config
        assert (config.connect_timeout, config.read_timeout) == (aws.CONNECT_S, aws.READ_S)
        assert config.retries["total_max_attempts"] == aws.ATTEMPTS


def test_who_receives_waits_longer_than_a_long_poll_takes() -> None:
    assert sqs.RECEIVING["read_timeout"] > sqs.MOST_WAIT_S > sqs.CONFIG["read_timeout"]
