"""The client of one HTTP service, which sends requests within the back end's limits.

Failures are `BackendError`s. The client follows redirects on the service's own origin only, never
forwards the caller's token, and redacts the gateway's credentials from answers.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from roundgate.backends.http.config import RemoteConfig, TimeoutsConfig
from roundgate.backends.http.credentials import ServiceAccess, authenticated
from roundgate.backends.http.messages import (
    ACCEPTED,
    Outgoing,
    ServiceAnswer,
    doubted,
)
from roundgate.backends.http.reliability import Hosts, Retries
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
from roundgate.net.addresses import canonical_origin
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

log = logging.getLogger("roundgate.backends")


class Service:
    """The pooled client of one service."""

    def __init__(
        self,
        config: RemoteConfig,
        base_url: str,
        access: ServiceAccess,
        redacted: AnswerRedactor,
        certificates: Certificates | None = None,
        hosts: Hosts | None = None,
    ) -> None:
        """Store the settings; open no connection yet.

        Args:
            config: the back end's settings.
            base_url: the URL to which paths are appended. No other origin receives requests.
            access: the credentials for every request.
            redacted: the function that redacts secrets from answers.
            certificates: TLS settings; `None` trusts the public authorities.
            hosts: the gates that the back end's services share; `None` makes new gates.
        """
        self.name = config.name
        self._config = config
        self._base_url = base_url
        self._access = access
        self._phases = config.timeouts or TimeoutsConfig.model_construct()
        self._transport: PooledTransport | None = None
        self._redacted = redacted
        self._certificates = certificates
        hosts = hosts or Hosts(config)
        self._clock = hosts.clock
        self._gate = hosts.gate(base_url)
        self._retries = Retries(config.retry, config.name, hosts.clock)

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
        until = deadline or self._clock.deadline(None)

        async def once() -> ServiceAnswer:
            self._gate.check()
            if (
                self._access.tokens is not None
            ):  # before the timeout of the service's request begins
                await self._access.tokens.token()
            return await self._gate.through(lambda: self._once(outgoing, timeout_s))

        with doubted(not outgoing.is_safe_to_repeat):
            return await self._retries.send(outgoing, once, until)

    async def _once(self, outgoing: Outgoing, timeout_s: float) -> ServiceAnswer:
        import httpx

        request_line = f"{outgoing.method} {outgoing.path} of {self.name}"
        headers, progress = dict(outgoing.headers), _Progress()
        try:
            with http_span(
                *(outgoing.method, self._base_url, outgoing.route, headers),
                sent=(outgoing.path_and_query, outgoing.body),
            ) as span:
                async with asyncio.timeout(timeout_s):
                    return await self._exchange(
                        outgoing, headers, request_line, timeout_s, span, progress
                    )
        except (httpx.InvalidURL, httpx.LocalProtocolError, httpx.UnsupportedProtocol) as error:
            raise BackendError(
                f"{request_line} failed: the request cannot be sent ({type(error).__name__})"
            ) from None
        except TimeoutError:
            cause = progress.timeout()
            raise no_answer(cause, request_line, timeout_s, self._config.timeouts) from None
        except httpx.HTTPError as error:
            raise no_answer(error, request_line, timeout_s, self._config.timeouts) from None

    async def _exchange(
        self,
        outgoing: Outgoing,
        headers: dict[str, str],
        what: str,
        timeout_s: float,
        span: OutgoingRequest,
        progress: _Progress,
    ) -> ServiceAnswer:
        import httpx

        from roundgate.net.http import make_request, redirected

        transport = self._ready_transport()
        timeout = {
            "connect": self._phases.connect_s or timeout_s,
            "read": self._phases.read_s or timeout_s,
            "write": self._phases.write_s or timeout_s,
            "pool": timeout_s,
        }
        names = set(map(str.lower, headers))
        usual = [pair for pair in _HEADERS.items() if pair[0] not in names]
        request = make_request(
            outgoing.method,
            self._base_url.rstrip("/") + outgoing.path_and_query,
            [*usual, *headers.items()],
            outgoing.body,
            {"timeout": timeout, "trace": progress.note},
        )
        for _ in range(_MAX_REDIRECTS + 1):
            response = await _send(transport, request, self._access)
            status = response.status_code
            span.responded(status, response.http_version)
            try:
                answer_headers = response.headers
                if status not in _REDIRECTS or "location" not in answer_headers:
                    return await self._read(response, answer_headers, what, outgoing)
                try:
                    request = await redirected(request, status, answer_headers["location"])
                except (httpx.InvalidURL, httpx.RemoteProtocolError, UnicodeError):
                    raise UnexpectedAnswer(f"{what} redirects to an invalid URL") from None
                if not _same_origin(str(request.url), self._base_url):
                    raise UnexpectedAnswer(
                        f"{what} redirects to another host, which the gateway does not follow"
                    )
            finally:
                await response.aclose()
        raise UnexpectedAnswer(f"{what} redirects more than {_MAX_REDIRECTS} times")

    async def _read(
        self, response: HttpAnswer, headers: Mapping[str, str], what: str, outgoing: Outgoing
    ) -> ServiceAnswer:
        limit = outgoing.max_bytes or self._config.max_response_bytes
        encoding = headers.get("content-encoding", "")
        try:
            unpacker = Unpacker(encoding, limit)
            async for piece in response:
                unpacker.feed(piece)
            body = unpacker.body()
            wanted = {name: headers[name] for name in outgoing.wants if name in headers}
            if wanted and sum(map(len, wanted.values())) > limit - len(body):
                raise AnswerTooLarge
        except AnswerTooLarge:
            raise UnexpectedAnswer(
                f"{what} answered more than {limit} bytes (max_response_bytes); ask for less at once"
            ) from None
        except UnknownEncoding:
            raise UnexpectedAnswer(
                f"{what} answered in an encoding that was not requested: {encoding[:50]!r}"
            ) from None
        answer = ServiceAnswer(
            response.status_code,
            response.reason.decode("ascii", "ignore"),
            headers.get("content-type", ""),
            body,
            wanted,
            headers.get("retry-after"),
        )
        return self._redacted(answer.in_utf8())

    def _ready_transport(self) -> PooledTransport:
        if self._transport is None:
            from roundgate.net.http import PooledTransport

            self._transport = PooledTransport(
                tls=None if self._certificates is None else self._certificates.context,
                max_connections=self._config.max_connections,
                keep_alive_s=self._config.keep_alive_s,
                retries=1,
            )
        return self._transport


async def _send(
    transport: PooledTransport, request: httpx.Request, access: ServiceAccess
) -> HttpAnswer:
    """Send a request with its credentials. Log the method, the URL without query and credentials,
    the status and the duration."""
    begun = time.perf_counter()
    status: int | str = "none"
    try:
        response = await authenticated(transport.send, request, access)
        status = response.status_code
        return response
    except Exception as error:
        status = type(error).__name__
        raise
    finally:
        if log.isEnabledFor(logging.DEBUG):
            url = request.url.copy_with(query=None, fragment=None, userinfo=b"")
            took_ms = round((time.perf_counter() - begun) * 1000, 2)
            fields = {"method": request.method, "url": str(url), "status": status, "ms": took_ms}
            log.debug("request to a service", extra={"fields": fields})


class _Progress:
    """The progress of a request, as httpcore reports it: at the limit on the whole request, only
    that shows whether the service may have received it."""

    def __init__(self) -> None:
        self._connects = self._sends = False

    async def note(self, event: str, _: Mapping[str, object]) -> None:
        """Note an event of httpcore (https://www.encode.io/httpcore/extensions/#trace)."""
        if event.endswith(".send_request_headers.started"):
            self._sends = True
        elif event.startswith("connection.connect_"):
            self._connects = True

    def timeout(self) -> TimeoutError | httpx.TimeoutException:
        """Return the exception for a limit that has passed now."""
        import httpx

        if self._sends:
            return TimeoutError()
        return httpx.ConnectTimeout("") if self._connects else httpx.PoolTimeout("")


def _same_origin(url: str, base_url: str) -> bool:
    try:
        return canonical_origin(url) == canonical_origin(base_url)
    except ValueError:  # an invalid port
        return False


def no_answer(
    error: TimeoutError | httpx.HTTPError,
    what: str,
    timeout_s: float,
    phases: TimeoutsConfig | None,
) -> NoAnswer:
    """Return the error for a request without an answer. Its message contains no addresses, headers
    or bodies.

    Args:
        error: the exception from asyncio or httpx.
        what: a description of the request.
        timeout_s: seconds for the whole request.
        phases: seconds for its parts.
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
