"""Asynchronous calls of AWS services. boto3's client blocks, so each call runs in a thread.
Temporary errors become `Unavailable`.

Within `bounded` no call outlasts the deadline. A connection that died during a freeze never
answers:

    freeze ─ thaw ─ call ──▶ no answer ──▶ READ_S, another attempt ──▶ …
                                              └── the deadline: Unavailable, and no attempt after it

boto3 is never imported, and botocore only when `client` makes a client.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from anyio import CapacityLimiter, move_on_after, to_thread
from msgspec import Struct, field

from roundgate.clock import Deadline
from roundgate.errors import ConfigError, Problem, Unavailable

MakeClient: TypeAlias = Callable[[], Any]
"""Makes boto3's client; raises ConfigError if a setting is missing. The first call or `Aws.prepare`
calls it, once."""

THREADS: Final = 32
"""The limit on concurrent calls, and the size of the client's connection pool."""

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
"""Options of `botocore.config.Config` for services that answer within milliseconds: a call, with
its pauses, fails after at most 15 s. botocore's defaults are five attempts of a minute each."""

LATE: Final = "{} has not answered in the time that the request has"

_deadline: ContextVar[Deadline | None] = ContextVar("deadline of AWS calls", default=None)


@contextmanager
def bounded(deadline: Deadline) -> Iterator[None]:
    """Apply a deadline to the calls in this block, and in asyncio tasks that the block starts. Do
    not start tasks that outlive the block: the deadline would still apply to them."""
    token = _deadline.set(deadline)
    try:
        yield
    finally:
        _deadline.reset(token)


def has_time(seconds: float) -> bool:
    """Return whether a call that begins after `seconds` begins before the deadline (`bounded`)."""
    deadline = _deadline.get()
    left_ms = None if deadline is None else deadline.remaining_ms()
    return left_ms is None or left_ms > seconds * 1000


def heed_deadline(client: Any) -> None:
    """Prevent boto3's client from starting an attempt after the deadline of `bounded`."""
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
"""Codes of temporary errors, which botocore has already retried."""


_making_clients = threading.Lock()  # a botocore session is not thread-safe while it makes a client


def client(service: str, *, region: str | None = None, **config: Any) -> Any:
    """Return boto3's client of a service, made by botocore because importing boto3 takes 100 ms
    more.

    The options are `PROMPT`, overridden by `config`. The default region is the environment's.

    Raises:
        ConfigError: boto3 is not installed, or no region is set.
    """
    try:
        from botocore.config import Config  # a large extra
    except ImportError:
        message = "is an AWS service, and boto3 is not installed"
        remedy = "pip install 'roundgate[aws]'"
        raise ConfigError([Problem("environment", service, message, remedy)]) from None
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


class ToSign(Struct, frozen=True):
    """The parts of a request that the signature covers."""

    method: str
    url: str
    """The absolute URL, encoded as in the request."""
    headers: Mapping[str, str]
    body: bytes

    def __repr__(self) -> str:
        return f"ToSign({self.method!r}, {self.url!r})"


def signed_headers(request: ToSign, service: str, region: str | None) -> dict[str, str]:
    """Return the headers of a signature (Signature Version 4). Blocks if credentials have to be
    fetched.

    Args:
        request: the request with all its headers.
        service: AWS's name of the service in signatures, such as execute-api.
        region: the region, or `None` for the environment's.

    Raises:
        ConfigError: botocore, the region or credentials are missing.
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
            f"cannot get AWS credentials ({type(error).__name__})",
            "check the role of the process",
        ) from None
    if credentials is None:
        raise _cannot_sign(
            "needs AWS credentials, and none were found",
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
    """Return the session that all clients share."""
    import botocore.session

    return botocore.session.get_session()


class Refusal(Struct, frozen=True):
    """The failure of a call of boto3's client."""

    code: str
    """The code of the service's error, such as `TooManyRequestsException`, or the name of
    botocore's exception."""
    message: str
    status: int | None = None
    """The HTTP status, or `None` if the service did not answer."""
    response: Mapping[str, Any] = field(default_factory=dict)
    """The service's error with its own members."""
    was_sent: bool = True
    """Whether the service may have received the request."""


def refusal(error: Exception) -> Refusal | None:
    """Return the failure that an exception of boto3's client represents, or `None` for other
    exceptions."""
    from botocore import exceptions

    name = type(error).__name__
    match error:
        case exceptions.ClientError():
            details = error.response.get("Error", {})
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            code, message = str(details.get("Code", name)), str(details.get("Message", ""))
            return Refusal(code, message, status, error.response)
        case exceptions.ConnectionError():
            return Refusal(name, "", was_sent=False)
        case exceptions.HTTPClientError() | exceptions.IncompleteReadError():
            return Refusal(name, "")
        case exceptions.BotoCoreError():
            return Refusal(name, str(error), was_sent=False)
    return None


class Aws:
    """An AWS service, called through one boto3 client that is made on first use."""

    def __init__(
        self,
        make_client: MakeClient,
        name: str,
        note: Callable[[str | None], None] = lambda failure: None,
    ) -> None:
        """`note` gets the end of each call, in its thread: the reason why the service did not
        answer, or `None` if it did."""
        self._make_client = make_client
        self._name = name
        self._note = note
        self._client: Any = None
        self._making = threading.Lock()
        self._limiter = CapacityLimiter(THREADS)

    async def call(self, operation: str, **arguments: Any) -> Any:
        """Return the result of an operation of the client.

        Raises:
            Unavailable: the service throttles, fails or cannot be reached, or the deadline is over
                (see `bounded`). A write may have taken effect although its answer was lost.
        """
        return await self.do(lambda client: getattr(client, operation)(**arguments))

    async def do(self, work: Callable[[Any], Any], *, abandon: bool = False) -> Any:
        """Run `work` with the client in one thread; raise Unavailable as `call` does. With `abandon`,
        a cancellation does not wait for the thread."""
        run, deadline = partial(self._run, work), _deadline.get()
        remaining_ms = None if deadline is None else deadline.remaining_ms()
        if remaining_ms is None:
            return await to_thread.run_sync(run, limiter=self._limiter, abandon_on_cancel=abandon)
        with move_on_after(remaining_ms / 1000, shield=not abandon):
            return await to_thread.run_sync(run, limiter=self._limiter, abandon_on_cancel=True)
        raise Unavailable(LATE.format(self._name))

    def prepare(self) -> None:
        """Make the client now, before the first call, without opening a connection.

        Raises:
            ConfigError: see `MakeClient`.
        """
        self._made()

    async def aclose(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await to_thread.run_sync(client.close)

    def _run(self, work: Callable[[Any], Any]) -> Any:
        from botocore import exceptions

        try:
            result = work(self._made())
        except exceptions.ClientError as error:
            self._note(str(error) if _status(error.response) >= 500 else None)
            if not _passes(error.response):
                raise
            raise Unavailable(f"{self._name} cannot take the call just now") from error
        except (
            exceptions.ConnectionError,
            exceptions.CredentialRetrievalError,
            exceptions.HTTPClientError,
        ) as error:
            self._note(str(error))
            raise Unavailable(f"{self._name} cannot be reached just now") from error
        self._note(None)
        return result

    def _made(self) -> Any:
        with self._making:  # threads may share a client, but must not make two
            if self._client is None:
                self._client = self._make_client()
            return self._client


def _passes(response: Any) -> bool:
    return _status(response) >= 500 or response.get("Error", {}).get("Code") in NOT_NOW


def _status(response: Any) -> int:
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
