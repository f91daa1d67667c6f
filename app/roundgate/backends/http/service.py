"""The client of one HTTP service, which sends requests within the back end's limits.

Failures are `BackendError`s. The client follows redirects on the service's own origin only, never
forwards the caller's token, and redacts the gateway's credentials from answers.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final

from roundgate.backends.http.config import RemoteConfig, TimeoutsConfig
from roundgate.backends.http.credentials import ServiceAccess, authenticated
from roundgate.backends.http.messages import ACCEPTED, Outgoing, ServiceAnswer
from roundgate.backends.http.reliability import Attempts, host_attempts
from roundgate.backends.http.secrets import AnswerRedactor
from roundgate.backends.http.tls import Certificates
from roundgate.clock import Deadline
from roundgate.errors import (
    AnswerTooLarge,
    BackendError,
    NoAnswer,
    UnexpectedAnswer,
    UnknownEncoding,
)
from roundgate.lenient import Unpacker
from roundgate.net.request import IdleLimit, Origin, WireRequest
from roundgate.observability.outgoing import OutgoingRequest, http_span

if TYPE_CHECKING:
    import httpx  # takes 100 ms to import, for which a first call of a Python tool need not wait

    from roundgate.net.connection import HttpAnswer
    from roundgate.net.http import PooledTransport

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_MAX_REDIRECTS: Final = 5
_HEADERS: Final = {
    "user-agent": "roundgate",
    "accept": "*/*",
    "accept-encoding": ACCEPTED,
    "connection": "keep-alive",
}
_PLAIN_TARGET: Final = re.compile(r"/(?:[A-Za-z0-9._~!$&()*+,;=:@/?-]|%[0-9A-Fa-f]{2}){0,60000}")
"""httpx refuses URLs that are longer than 65,536 characters."""

log = logging.getLogger("roundgate.backends")


class Service:
    """The pooled client of one service."""

    def __init__(
        self,
        config: RemoteConfig,
        base_url: str,
        access: ServiceAccess,
        redacted: AnswerRedactor,
        certificates: Certificates | None,
        hosts: dict[str, Attempts],
    ) -> None:
        """Store the settings; open no connection yet.

        Args:
            config: the back end's settings.
            base_url: the URL to which paths are appended, without its last slash. No other origin
                receives requests.
            access: the credentials for every request.
            redacted: the function that redacts secrets from answers.
            certificates: TLS settings; `None` trusts the public authorities.
            hosts: the senders, by host, that the back end's services share.
        """
        self.name = config.name
        self.callers_headers = config.callers_headers
        self._config = config
        self._base_url = base_url.rstrip("/")
        self._base_path = ""
        self._origin: Origin
        self._access = access
        self._phases = config.timeouts or TimeoutsConfig.model_construct()
        self._transport: PooledTransport | None = None
        self._redacted = redacted
        self._certificates = certificates
        self._attempts = host_attempts(config, base_url, hosts)

    async def aclose(self) -> None:
        """Close the pooled connections."""
        if self._transport is not None:
            await self._transport.aclose()
            self._transport = None

    async def send(
        self, outgoing: Outgoing, timeout_s: float, deadline: Deadline | None = None
    ) -> ServiceAnswer:
        """Send a request, with retries, and return its whole answer.

        Args:
            outgoing: the request.
            timeout_s: seconds for each attempt, including the whole answer.
            deadline: the call's deadline.

        Raises:
            UnexpectedAnswer: the answer is too long, has an encoding that was not requested, or
                redirects to another origin or too often.
            BackendError: the service is unreachable, slow or busy, its breaker is open, or a
                credential is unavailable.
        """
        tokens = self._access.tokens
        return await self._attempts.send(
            lambda: self._once(outgoing, timeout_s),
            deadline,
            is_repeatable=outgoing.is_repeatable,
            has_key=outgoing.has_key,
            # before the timeout of the service's request begins
            prepare=None if tokens is None else tokens.token,
        )

    async def _once(self, outgoing: Outgoing, timeout_s: float) -> ServiceAnswer:
        what = f"{outgoing.method} {outgoing.path} of {self.name}"
        headers, sent = dict(outgoing.headers), (outgoing.path_and_query, outgoing.body)
        request: WireRequest | None = None
        try:
            with http_span(outgoing.method, self._base_url, outgoing.route, headers, sent) as span:
                request = self._request(outgoing, headers)
                async with asyncio.timeout(timeout_s):
                    return await self._exchange(request, outgoing, what, span)
        except (BackendError, asyncio.CancelledError):
            raise
        except Exception as error:
            raise failure(error, request, what, timeout_s, self._phases) from None

    def _request(self, outgoing: Outgoing, headers: Mapping[str, str]) -> WireRequest:
        path, phases = outgoing.path_and_query, self._phases
        if self._transport is None:
            self._open()
        target = f"{self._base_path}{path}"
        if not is_plain_target(path):
            from roundgate.net.http import read_url

            target = read_url(self._base_url + path)[1]
        names = set(map(str.lower, headers))
        usual = [pair for pair in _HEADERS.items() if pair[0] not in names]
        return WireRequest(
            outgoing.method,
            self._origin,
            target,
            [*usual, *headers.items()],
            outgoing.body or b"",
            None if phases.read_s is None else IdleLimit(phases.read_s),
            phases.connect_s,
            phases.write_s,
        )

    def _open(self) -> None:
        from roundgate.net.http import PooledTransport, read_url

        self._origin, base_path = read_url(self._base_url)
        self._base_path = base_path.rstrip("/")
        self._transport = PooledTransport(
            tls=None if self._certificates is None else self._certificates.context,
            max_connections=self._config.max_connections,
            keep_alive_s=self._config.keep_alive_s,
            retries=1,
        )

    async def _exchange(
        self, request: WireRequest, outgoing: Outgoing, what: str, span: OutgoingRequest
    ) -> ServiceAnswer:
        transport = self._transport  # `aclose` forgets it, also during the call
        assert transport is not None, "opened by `_request`"
        send = _logged if log.isEnabledFor(logging.DEBUG) else authenticated
        for _ in range(_MAX_REDIRECTS + 1):
            response = await send(transport.send, request, self._access)
            span.responded(response.status, response.http_version)
            try:
                location = response.headers.get("location")
                if response.status not in _REDIRECTS or location is None:
                    return await self._read(response, what, outgoing)
                self._redirect(request, response.status, location, what)
            finally:
                await response.aclose()
        raise UnexpectedAnswer(f"{what} redirects more than {_MAX_REDIRECTS} times")

    def _redirect(self, request: WireRequest, status: int, location: str, what: str) -> None:
        """Change a request into the one that follows a redirect.

        Raises:
            UnexpectedAnswer: the URL is invalid, or has another origin.
        """
        import httpx

        from roundgate.net.http import redirect

        try:
            redirect(request, status, location)
        except (httpx.InvalidURL, ValueError):
            raise UnexpectedAnswer(f"{what} redirects to an invalid URL") from None
        if request.origin != self._origin:
            raise UnexpectedAnswer(
                f"{what} redirects to another host, which the gateway does not follow"
            )

    async def _read(self, response: HttpAnswer, what: str, outgoing: Outgoing) -> ServiceAnswer:
        limit, headers = outgoing.max_bytes or self._config.max_response_bytes, response.headers
        encoding = headers.get("content-encoding", "")
        body, wanted = b"", dict[str, str]()
        try:
            unpacker = Unpacker(encoding, limit)
            async for piece in response:
                unpacker.feed(piece)
            body = unpacker.body()
            wanted = {name: headers[name] for name in outgoing.wants if name in headers}
            if wanted and sum(map(len, wanted.values())) > limit - len(body):
                raise AnswerTooLarge
        except AnswerTooLarge:
            if response.status < 300:  # the status of an error counts without its body
                raise UnexpectedAnswer(
                    f"{what} answered more than {limit} bytes (max_response_bytes); ask for less at once"
                ) from None
        except UnknownEncoding:
            if response.status < 300:
                raise UnexpectedAnswer(
                    f"{what} answered in an encoding that was not requested: {encoding[:50]!r}"
                ) from None
        answer = ServiceAnswer(
            response.status,
            response.reason.decode("ascii", "ignore"),
            headers.get("content-type", ""),
            body,
            wanted,
            headers.get("retry-after"),
        )
        return self._redacted(answer.in_utf8())


def is_plain_target(target: str) -> bool:
    """Return whether a path with its query is sent as it is: nothing has to be encoded, and no
    segment consists of dots."""
    return _PLAIN_TARGET.fullmatch(target) is not None and "/." not in target


async def _logged(
    send: Callable[[WireRequest], Awaitable[HttpAnswer]],
    request: WireRequest,
    access: ServiceAccess,
) -> HttpAnswer:
    """Send a request with its credentials. Log the method, the URL without query and credentials,
    the status and the duration."""
    begun, url = time.perf_counter(), request.url.partition("?")[0]
    status: int | str = "none"
    try:
        response = await authenticated(send, request, access)
        status = response.status
        return response
    except Exception as error:
        status = type(error).__name__
        raise
    finally:
        took_ms = round((time.perf_counter() - begun) * 1000, 2)
        fields = {"method": request.method, "url": url, "status": status, "ms": took_ms}
        log.debug("request to a service", extra={"fields": fields})


def failure(
    error: Exception,
    request: WireRequest | None,
    what: str,
    timeout_s: float,
    phases: TimeoutsConfig | None,
) -> Exception:
    """Return the error for a request that failed with an exception from asyncio or httpx; any other
    exception itself. `request` is `None` if its URL is invalid. See `no_answer` for the others."""
    import httpx

    if isinstance(error, (httpx.InvalidURL, httpx.LocalProtocolError, httpx.UnsupportedProtocol)):
        return BackendError(f"{what} failed: the request cannot be sent ({type(error).__name__})")
    if isinstance(error, TimeoutError) and request is not None and not request.is_sent:
        is_connecting = request.is_connecting
        error = httpx.ConnectTimeout("") if is_connecting else httpx.PoolTimeout("")
    if isinstance(error, (TimeoutError, httpx.HTTPError)):
        return no_answer(error, what, timeout_s, phases)
    return error


def no_answer(
    error: TimeoutError | httpx.HTTPError,
    what: str,
    timeout_s: float,
    phases: TimeoutsConfig | None,
) -> NoAnswer:
    """Return the error for a request without an answer. Its message contains no addresses, headers
    or bodies.

    `timeout_s` limits the whole request, `phases` its parts.
    """
    import httpx

    reached = not isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout))
    if isinstance(error, httpx.PoolTimeout):
        return NoAnswer(
            f"{what} was not sent: no connection became free within {timeout_s:g} s "
            "(timeout_s); try again later",
            "no connection became free",
            reached=False,
        )
    if isinstance(error, (TimeoutError, httpx.TimeoutException)):
        setting, limit_s = _limit(error, phases, timeout_s)
        limit = f"{limit_s:g} s ({setting})"
        if isinstance(error, httpx.ConnectTimeout):
            message = f"{what} could not be sent: there was no connection within {limit}"
        elif limit_s < timeout_s:
            message = f"{what} failed: the service was silent for {limit}; try again later"
        else:
            message = f"{what} did not answer within {limit}; try again later or ask for less"
        return NoAnswer(message, f"there was no answer within {limit_s:g} s", reached=reached)
    cause = _cause(error)
    if isinstance(error, (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError)):
        message = (
            f"{what} failed: the connection ended before there was an answer to read ({cause})"
        )
    else:
        message = f"{what} failed: the service could not be reached ({cause})"
    return NoAnswer(message, cause, reached=reached)


def _limit(error: Exception, phases: TimeoutsConfig | None, timeout_s: float) -> tuple[str, float]:
    """Return the setting that a request exceeded, and its seconds."""
    import httpx

    names: dict[type[Exception], str] = {
        httpx.ConnectTimeout: "connect_s",
        httpx.ReadTimeout: "read_s",
        httpx.WriteTimeout: "write_s",
    }
    name = names.get(type(error), "")
    limit_s: float | None = getattr(phases, name, None)
    return ("timeout_s", timeout_s) if limit_s is None else (f"timeouts.{name}", limit_s)


def _cause(error: BaseException) -> str:
    """Return the reason why a certificate is not trusted; for any other error, its name."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            reason = cause.verify_message.partition(",")[0]  # the service's name follows
            return f"its certificate is not trusted: {reason}"
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__
