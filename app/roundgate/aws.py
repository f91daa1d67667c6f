"""Calls of an AWS service: boto3's client blocks, so each call hops to a thread here, and
"not now" becomes one error.

Where somebody has set a deadline (`bounded`) no call outlasts it. A connection that a freeze has
killed says nothing:

    freeze ─ thaw ─ call ──▶ no answer ──▶ READ_S, another attempt ──▶ …
                                              └── the deadline: Unavailable, and no attempt after it

boto3 is not imported, and botocore only when `client` makes a client: whoever builds a store hands
it a function that does so.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, partial
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from anyio import CapacityLimiter, move_on_after, to_thread

from roundgate.clock import Deadline
from roundgate.errors import ConfigError, Problem, Unavailable

MakeClient: TypeAlias = Callable[[], Any]
"""Makes boto3's client; raises ConfigError if something that it needs is not set. Called once, when
the first call needs it or by `Aws.prepare`."""

THREADS: Final = 32
"""Calls at once; the client's pool of connections has to be as large."""

CONNECT_S: Final = 1
READ_S: Final = 3
ATTEMPTS: Final = 3
PROMPT: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "max_pool_connections": THREADS,
        "connect_timeout": CONNECT_S,
        "read_timeout": READ_S,
        "retries": {"mode": "standard", "total_max_attempts": ATTEMPTS},
        "tcp_keepalive": True,
    }
)
"""For a client's `botocore.config.Config`, where a call is answered within milliseconds, or not at
all: with pauses it gives up after 15 s at most. botocore's own are five attempts of a minute
each."""

LATE: Final = "{} has not answered in the time that the request has"

_deadline: ContextVar[Deadline | None] = ContextVar("deadline of AWS calls", default=None)


@contextmanager
def bounded(deadline: Deadline) -> Iterator[None]:
    """No call begun in here, nor in an asyncio task begun in here, outlasts the deadline.

    Not for what begins tasks that live on: they would keep it.
    """
    token = _deadline.set(deadline)
    try:
        yield
    finally:
        _deadline.reset(token)


def has_time(seconds: float) -> bool:
    """Whether a call that is begun after so many seconds has any time left (`bounded`)."""
    deadline = _deadline.get()
    left_ms = None if deadline is None else deadline.remaining_ms()
    return left_ms is None or left_ms > seconds * 1000


def heed_deadline(client: Any) -> None:
    """Have a client of boto3 begin no attempt after the deadline: its thread may be one that nobody
    waits for."""
    client.meta.events.register("before-send", _before_attempt)


def _before_attempt(**_: Any) -> None:
    deadline = _deadline.get()
    if deadline is not None and deadline.is_past:
        raise Unavailable(LATE.format("AWS"))


NOT_NOW: Final = frozenset(
    {
        "InternalFailure",
        "InternalServerError",
        "KmsThrottled",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestTimeout",
        "ServiceUnavailable",
        "Throttling",
        "ThrottlingException",
    }
)
"""Codes of errors that pass: botocore has tried again by itself before we get one."""


_making_clients = threading.Lock()  # a session must not make two at once


def client(service: str, *, region: str | None = None, **config: Any) -> Any:
    """boto3's client of a service, made by botocore: boto3 itself would import what uploads
    to S3, 100 ms for nothing.

    It answers promptly or gives up (`PROMPT`), unless `config` says otherwise. Unset, the
    region is the environment's.

    Raises:
        ConfigError: boto3 is not installed, or no region is set.
    """
    try:
        # an extra, and a large one: only for what is kept at AWS
        from botocore.config import (
            Config,
        )
    except ImportError:
        missing, remedy = (
            "is a service of AWS, and boto3 is not installed",
            "pip install 'roundgate[aws]'",
        )
        raise ConfigError([Problem("environment", service, missing, remedy)]) from None
    with _making_clients:
        session = _session()
        if region is None and not session.get_config_variable("region"):
            remedy = "set it to the region of the table and the queue, such as eu-central-1"
            raise ConfigError(
                [Problem("environment", "AWS_DEFAULT_REGION", f"is needed for {service}", remedy)]
            )
        options = Config(**{**PROMPT, **config})
        made = session.create_client(service, region_name=region, config=options)
        heed_deadline(made)
        return made


@dataclass(frozen=True, slots=True)
class ToSign:
    """A request, as far as a signature is of it."""

    method: str
    url: str
    """Whole, and encoded as it is sent."""
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


def signed_headers(request: ToSign, service: str, region: str | None) -> dict[str, str]:
    """The headers that carry a signature (Signature Version 4); blocks, where credentials
    have to be fetched first.

    Args:
        request: what is signed, all of its headers.
        service: as AWS calls it in signatures, such as execute-api.
        region: `None` for that of the environment.

    Raises:
        ConfigError: there is no botocore, no region, or no credentials.
    """
    try:
        from botocore.auth import S3SigV4Auth, SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.exceptions import BotoCoreError
    except ImportError:
        raise _cannot_sign("needs boto3", "pip install 'roundgate[aws]'") from None
    with _making_clients:
        session = _session()
        where = region or session.get_config_variable("region")
        held = session.get_credentials()
    try:
        credentials = None if held is None else held.get_frozen_credentials()
    except BotoCoreError as error:
        raise _cannot_sign(
            f"cannot get credentials of AWS ({type(error).__name__})",
            "check the role of the process",
        ) from None
    if credentials is None:
        raise _cannot_sign(
            "needs credentials of AWS, and there are none",
            "give the process a role, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        )
    if not where:
        raise _cannot_sign("needs a region", "set region, or AWS_DEFAULT_REGION")
    sent = AWSRequest(request.method, request.url, dict(request.headers), request.body)
    sent.headers["X-Amz-Content-SHA256"] = hashlib.sha256(request.body).hexdigest()
    kind = S3SigV4Auth if service == "s3" else SigV4Auth
    kind(credentials, service, where).add_auth(sent)
    return {name: str(value) for name, value in sent.headers.items() if name not in request.headers}


def _cannot_sign(message: str, remedy: str) -> ConfigError:
    return ConfigError([Problem("environment", "sigv4", message, remedy)])


@cache
def _session() -> Any:
    """Where all clients have credentials, region and the descriptions of services from."""
    import botocore.session

    return botocore.session.get_session()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a call of boto3's client has no answer, for who has to know whether it
    may have had an effect."""

    code: str
    """Of the service's error, such as `TooManyRequestsException`; else the name
    of botocore's exception."""
    message: str
    status: int | None = None
    """Of HTTP; `None`: the service did not answer."""
    response: Mapping[str, Any] = field(default_factory=dict)
    """The service's error, with the members that are its own."""
    was_sent: bool = True
    """Whether the service may have got the request."""


def refusal(error: Exception) -> Refusal | None:
    """What went wrong, if the exception is one of boto3's client."""
    from botocore import exceptions

    name = type(error).__name__
    match error:
        case exceptions.ClientError():
            said = error.response.get("Error", {})
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            code, message = str(said.get("Code", name)), str(said.get("Message", ""))
            return Refusal(code, message, status, error.response)
        case exceptions.ConnectionError():
            return Refusal(name, "", was_sent=False)
        case exceptions.HTTPClientError() | exceptions.IncompleteReadError():
            return Refusal(name, "")
        case exceptions.BotoCoreError():  # credentials that are not there, parameters that are none
            return Refusal(name, str(error), was_sent=False)
    return None


class Aws:
    """One service, under one client."""

    def __init__(self, make_client: MakeClient, name: str) -> None:
        self._make_client = make_client
        self._name = name
        self._client: Any = None
        self._making = threading.Lock()
        self._limiter = CapacityLimiter(THREADS)

    async def call(self, operation: str, **arguments: Any) -> Any:
        """What an operation of the client answers.

        Raises:
            Unavailable: throttled, timed out, not reached, the service's own fault, or the
                deadline has come (see `bounded`). A write may have happened nevertheless,
                and its answer been lost.
        """
        return await self.do(lambda client: getattr(client, operation)(**arguments))

    async def do(self, work: Callable[[Any], Any], *, abandon: bool = False) -> Any:
        """What several calls in one thread return; see `call`. With `abandon` nobody waits
        once we are cancelled."""
        run, deadline = partial(self._run, work), _deadline.get()
        remaining_ms = None if deadline is None else deadline.remaining_ms()
        if remaining_ms is None:
            return await to_thread.run_sync(run, limiter=self._limiter, abandon_on_cancel=abandon)
        with move_on_after(remaining_ms / 1000, shield=not abandon):
            return await to_thread.run_sync(run, limiter=self._limiter, abandon_on_cancel=True)
        raise Unavailable(LATE.format(self._name))

    def prepare(self) -> None:
        """Make the client now, which opens no connection: for a process that nobody waits for yet.

        Raises:
            ConfigError: see `MakeClient`.
        """
        self._made()

    async def aclose(self) -> None:
        """Let go of the connections."""
        client, self._client = self._client, None
        if client is not None:
            await to_thread.run_sync(client.close)

    def _run(self, work: Callable[[Any], Any]) -> Any:
        from botocore import exceptions

        try:
            return work(self._made())
        except exceptions.ClientError as error:
            if not _passes(error.response):
                raise
            raise Unavailable(f"{self._name} cannot take the call just now") from error
        except (
            exceptions.ConnectionError,
            exceptions.CredentialRetrievalError,
            exceptions.HTTPClientError,
        ) as error:
            raise Unavailable(f"{self._name} cannot be reached just now") from error

    def _made(self) -> Any:
        with self._making:  # a client may be shared by threads, but not made by two
            if self._client is None:
                self._client = self._make_client()
            return self._client


def _passes(response: Any) -> bool:
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status >= 500 or response.get("Error", {}).get("Code") in NOT_NOW
