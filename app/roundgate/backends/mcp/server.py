"""The connection to one MCP server, which all calls share.

Requests use the back end's slots, circuit breaker and retries, as requests of HTTP back ends do
(`roundgate.backends.http.reliability`). An answer counts as status 200, a refusal as its HTTP status.

    url        one client for the life of the back end; it reopens the session of an older server when it is lost
    command    one process; when it ends, the next request starts another, after a pause that grows with each failure
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

from msgspec import Struct

from roundgate.auth import Principal
from roundgate.backends.http.caller_headers import caller_headers
from roundgate.backends.http.messages import with_doubt
from roundgate.backends.http.reliability import Attempts
from roundgate.backends.mcp.config import McpBackendConfig
from roundgate.backends.mcp.eras import refuses_to_ask
from roundgate.backends.mcp.lists import LIST_S
from roundgate.background import cancelled
from roundgate.client import Answers, ServerInfo
from roundgate.client.connection import Connection
from roundgate.client.flows import LEGACY, WholeList
from roundgate.client.following import Subscription
from roundgate.client.link import Link
from roundgate.client.messages import Listener
from roundgate.client.sender import Headers
from roundgate.client.stdio import StdioLink
from roundgate.client.types import Json, is_object_list
from roundgate.clock import Clock, Deadline
from roundgate.errors import (
    AuthorizationFailed,
    BackendError,
    BadAnswer,
    ClientError,
    ConnectionLost,
    HttpRefused,
    NeedsCapability,
    NoAnswer,
    NoCommonVersion,
    RpcError,
    ServerRefused,
    TimedOut,
    Unavailable,
    UnexpectedAnswer,
)
from roundgate.protocol import notifications
from roundgate.protocol.apps import DECLARED

MakeLink: TypeAlias = Callable[[], Awaitable[Link | StdioLink]]

INFO: Final = {"name": "roundgate", "version": "1"}
"""The `clientInfo` that servers receive."""
CARRIED: Final[Mapping[str, Sequence[str]]] = {
    "elicitation": ("form", "url"),
    "sampling": ("tools", "context"),
    "roots": (),
}
"""The capabilities that the gateway forwards from its clients to servers, with their parts. Requests
for lists declare all of them, because some servers list less to clients without them."""
NAMES: Final = ("tools", "prompts", "resources")
"""The capabilities with lists."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
"""The bounds on the pause before a process is restarted, and between two polls of an unavailable
server, in seconds."""
STEADY_MS: Final = 60_000
"""Milliseconds after which a process counts as steady: if it then ends, it restarts without a pause."""
MAX_REQUIRED: Final = 1_000
"""The maximum size, in characters, of the capabilities in a server's error that is passed on."""
MAX_LINES: Final = 100
"""The maximum number of lines that are logged in `LINES_S` seconds; further lines are counted."""
LINES_S: Final = 10.0
MAX_CHARS: Final = 2_000
"""The maximum number of characters of a logged line."""
CHANGED: Final = (
    "The answers to the questions of {server} cannot be sent: the server or its settings have changed "
    "since it asked. The call may have taken effect; check before you repeat it"
)
MAX_PAGES: Final = 10
"""The maximum number of pages that one error may name."""
_NEEDS_PAGES: Final = -32042
_OLDER_ERRORS: Final = frozenset({-32022, -32600, -32000})
"""Errors with which an older server refuses requests without a session, or the revision."""
_MODERN_ERRORS: Final = frozenset({-32020, -32021, -32022})
"""Errors that only servers of 2026-07-28 and later send."""
_HANDSHAKE_STATUSES: Final = frozenset({400, 404, 405, 406, 415})
"""HTTP statuses with which a server may refuse requests of a revision that it does not speak."""


T = TypeVar("T")

log = logging.getLogger("roundgate.backends")


def pause_s(failures: int, clock: Clock) -> float:
    """Return the pause in seconds after a number of consecutive failures, with jitter so that
    replicas do not act at the same time."""
    usual: float = min(FIRST_PAUSE_S * 2.0 ** (failures - 1), LONGEST_PAUSE_S)
    return usual * (0.75 + clock.fraction() / 2)


class Restarts:
    """The pause before a program's next process, which grows with each process that ends early.

    Args:
        server: the server's name for error texts.
        clock: the clock of the process.
    """

    def __init__(self, server: str, clock: Clock) -> None:
        self._server = server
        self._clock = clock
        self._failures = 0
        self._reason = ""
        self._failed_ms = 0.0
        self._not_before_ms = 0.0

    def check(self) -> None:
        """Raise NoAnswer during the pause."""
        if (left_ms := self._not_before_ms - self._clock.monotonic_ms()) > 0:
            raise NoAnswer(
                f"The process of {self._server} has ended; it can restart in {left_ms / 1000:.0f} s"
                f"{self._reason}",
                "its process has ended",
                reached=False,
            )

    def count_failure(self, started_ms: float, connection: Connection) -> None:
        """Count a process that ended by itself, unless it was started before another process that
        was counted had ended. The first failure after a steady process causes no pause."""
        failure = connection.link.failure if isinstance(connection.link, StdioLink) else None
        self._reason = "" if failure is None else f" ({failure.args[0]})"
        if started_ms < self._failed_ms:
            return
        now_ms = self._failed_ms = self._clock.monotonic_ms()
        self._failures = 1 if now_ms - started_ms > STEADY_MS else self._failures + 1
        if self._failures > 1:
            self._not_before_ms = now_ms + pause_s(self._failures - 1, self._clock) * 1000


class ProcessLog:
    """Logs the standard error of a process, at a limited rate."""

    def __init__(self, name: str, clock: Clock, redact: Callable[[bytes], bytes]) -> None:
        self._name = name
        self._clock = clock
        self._redact = redact
        self._since_ms = 0.0
        self._lines = 0

    def write(self, line: str) -> None:
        """Log a line, unless the rate is exceeded."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._since_ms > LINES_S * 1000:
            if self._lines > MAX_LINES:
                fields = {"backend": self._name, "n": self._lines - MAX_LINES}
                log.warning("lines of a server are left out", extra={"fields": fields})
            self._since_ms, self._lines = now_ms, 0
        self._lines += 1
        if self._lines <= MAX_LINES and line.strip():
            text = self._redact(line.encode()).decode("utf-8", "replace")[:MAX_CHARS]
            log.info(
                "standard error of a server",
                extra={"fields": {"backend": self._name, "line": text}},
            )


class _Answer(Struct, frozen=True):
    """A result or refusal, with the status for retries and the circuit breaker."""

    result: Any
    status: int = 200
    refusal: HttpRefused | None = None
    retry_after: str | None = None


class McpServer:
    """The connection to one server, for one event loop."""

    def __init__(
        self,
        config: McpBackendConfig,
        make_link: MakeLink,
        attempts: Attempts,
        clock: Clock,
        *,
        listens: bool = True,
        capabilities: Json,
        on_other_revision: Callable[[], None],
    ) -> None:
        """Store the arguments; send nothing. `listens` opens the stream of an older server's session,
        which declares `capabilities`. `on_other_revision` is called if a request shows that the
        server may speak another revision than before."""
        self._capabilities = capabilities
        self._on_other_revision = on_other_revision
        self.name = config.name
        self._make_link = make_link
        self._references = config.callers_headers
        self._idle_setting = (
            "timeouts.read_s" if config.timeouts and config.timeouts.read_s else "timeout_s"
        )
        self._has_credentials = config.credential is not None or bool(config.fixed_headers)
        self._attempts = attempts
        self._clock = clock
        self._listens = listens
        self._connecting = asyncio.Lock()
        self._connection: Connection | None = None
        self._all_versions = self._versions = config.versions
        self._older_versions = config.older_versions
        self._started_ms = 0.0
        self._restarts = Restarts(config.name, clock)

    async def aclose(self) -> None:
        """End the session or the process, and close the connections."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await _close(connection)

    def caller_headers(self, principal: Principal) -> Headers:
        """Return the headers that tell who calls, for each request of this caller. Requests for lists
        belong to no caller.

        Raises:
            BackendError: a value is too long.
        """
        return tuple(caller_headers(self._references, principal).items())

    @property
    def keeps_events(self) -> bool:
        """Return whether another process can continue requests to this older server; see `Link`."""
        link = None if self._connection is None else self._connection.link
        return isinstance(link, Link) and link.keeps_events

    async def connection(self) -> Connection:
        """Return the connection, with its negotiated revision.

        Raises:
            ClientError: the server is unreachable, or speaks no common revision.
            BackendError: a credential is unavailable, or the process must not restart yet.
        """
        connection = self._connection
        if connection is not None and connection.server is not None and not has_ended(connection):
            return connection
        async with self._connecting:
            if self._connection is not None and has_ended(self._connection):
                await self._drop(self._connection)
            if self._connection is None:
                self._connection = await self._open()
            connection = self._connection
            try:
                await connection.connect()
            except ClientError:
                if isinstance(connection.link, StdioLink):
                    self._try_other_handshake()
                    await self._drop(connection)
                raise
            if isinstance(connection.link, StdioLink) and connection.link.version in LEGACY:
                # do not probe the next process of this program
                self._versions = self._older_versions
        return connection

    async def _open(self) -> Connection:
        self._restarts.check()
        self._started_ms = self._clock.monotonic_ms()
        return Connection(
            await self._make_link(),
            info=INFO,
            capabilities={**DECLARED, **self._capabilities},
            versions=self._versions,
            answers=Answers.of(None),
            clock=self._clock,
            listens=self._listens,
        )

    async def _drop(self, connection: Connection) -> None:
        """Close the connection to a process, and compute the earliest time of its restart."""
        self._connection = None
        self._restarts.count_failure(self._started_ms, connection)
        await _close(connection)

    def _try_other_handshake(self) -> None:
        """Use the other handshake for the next process, because some older servers exit on an unknown
        request."""
        is_older = self._versions == self._older_versions
        self._versions = self._all_versions if is_older else self._older_versions or self._versions

    # -- requests ----------------------------------------------------------------------------------

    def request(
        self,
        method: str,
        params: Json,
        listener: Listener,
        deadline: Deadline,
        *,
        is_repeatable: bool,
    ) -> Awaitable[Json]:
        """Send a request within the back end's limits; return its unchanged result.

        Raises:
            NoAnswer: no complete answer arrived; the server may have processed the request.
            BackendError: the server refused the request, violated the protocol or is busy, or the
                circuit is open.
        """
        return self.limited(
            lambda: self._exchange(method, params, listener), deadline, is_repeatable=is_repeatable
        )

    async def ask(
        self,
        method: str,
        params: Json,
        limit_s: float,
        principal: Principal | None = None,
        capabilities: Json | None = None,
    ) -> Json:
        """Send a repeatable request that is no call, for a caller if there is one; return its
        unchanged result. Retries end after `limit_s` seconds. Raise Unavailable if no answer
        arrives, and otherwise BackendError as `request` does."""
        own = () if principal is None else self.caller_headers(principal)
        listener = Listener(capabilities=capabilities or {}, caller_headers=own)
        deadline = self._clock.deadline(limit_s * 1000)
        try:
            return await self.request(method, params, listener, deadline, is_repeatable=True)
        except NoAnswer as error:
            raise Unavailable(str(error)) from None

    async def _exchange(self, method: str, params: Json, listener: Listener) -> Json:
        connection = await self.connection()
        server = connection.server
        if server is not None and not server.is_modern and answers_questions(params):
            refuse_answers(self.name)
        return await connection.exchange(method, params, listener, may_repeat=False)

    async def _negotiates_again_after(self, error: ClientError) -> bool:
        """Negotiate the revision anew before the next request if an error may mean that the server
        no longer speaks it. Return whether it may."""
        connection = self._connection
        if connection is not None and isinstance(connection.link, StdioLink):
            return False
        server = None if connection is None else connection.server
        if not _may_speak_other_revision(error, server):
            return False
        if connection is not None and server is not None:
            await connection.negotiate_again(server)
        return True

    async def limited(
        self, exchange: Callable[[], Awaitable[T]], deadline: Deadline, *, is_repeatable: bool
    ) -> T:
        """Call `exchange` within the back end's limits; return its result. Raise the same errors as
        `request` if it raises `ClientError` or `BackendError`."""
        answer = await self._attempts.send(
            lambda: self._attempt(exchange), deadline, is_repeatable=is_repeatable
        )
        if answer.refusal is not None:
            raise self.backend_error(answer.refusal)
        result: T = answer.result
        return result

    async def _attempt(self, exchange: Callable[[], Awaitable[Any]]) -> _Answer:
        began_ms, status = self._clock.monotonic_ms(), "ok"
        try:
            return _Answer(await exchange())
        except ClientError as error:
            status = type(error).__name__
            if await self._negotiates_again_after(error):
                self._on_other_revision()
            if isinstance(error, HttpRefused) and not isinstance(error, AuthorizationFailed):
                return _Answer({}, error.status, error)
            raise self.backend_error(error) from None
        except Exception as error:
            status = type(error).__name__
            raise
        finally:
            if log.isEnabledFor(logging.DEBUG):
                took_ms = round(self._clock.monotonic_ms() - began_ms, 2)
                fields = {"backend": self.name, "status": status, "ms": took_ms}
                log.debug("request to a server", extra={"fields": fields})

    def backend_error(self, error: ClientError, *, is_in_doubt: bool = False) -> BackendError:
        """Return an error of the client library as a `BackendError`, with the gateway's remedies. See
        `with_doubt` for `is_in_doubt`."""
        converted = self._backend_error(error)
        return with_doubt(converted) if is_in_doubt else converted

    def _backend_error(self, error: ClientError) -> BackendError:
        settings, name = {**_SETTINGS, "idle_s": self._idle_setting}, self.name
        fact = re.sub(
            r"\(limit (\w+)\)", lambda m: f"({settings.get(m[1], m[1])})", str(error.args[0])
        )
        match error:
            case RpcError(code=-32021, message=message, details={"requiredCapabilities": required}):
                text = f"{name} refused the request: {message}"
                if not _are_capabilities(required):
                    return BackendError(text, reason="error -32021")
                return NeedsCapability(text, required)
            case RpcError(code=code, message=message, details=details):
                pages = [f"\n{page['message']}: {page['url']}" for page in needed_pages(error)]
                text = f"{name} refused the request: {message}{''.join(pages)}"
                return ServerRefused(text, code, details)
            case ConnectionLost(was_sent=reached) | TimedOut(was_sent=reached):
                is_late = isinstance(error, TimedOut)
                reason = "no answer arrived in time" if is_late else "the connection was lost"
                return NoAnswer(f"{name} did not answer: {fact}", reason, reached=reached)
            case AuthorizationFailed(status=status):
                text = f"{name} refuses the gateway's credentials ({status})"
                if not self._has_credentials:
                    text = (
                        f"{name} requires credentials ({status}): set 'credential' of its back end"
                    )
                return BackendError(text, reason=f"status {status}")
            case HttpRefused(status=status):
                return BackendError(f"{name} failed: {fact}", reason=f"status {status}")
            case BadAnswer():
                return UnexpectedAnswer(f"{name} failed: {fact}", reason="violated the protocol")
            case NoCommonVersion():  # before the request, which was not sent
                return BackendError(f"{name} failed: {fact}", reason="no common revision")
        return BackendError(f"{name} failed: {fact}")

    # -- lists -------------------------------------------------------------------------------------

    async def tools(self) -> tuple[ServerInfo, WholeList]:
        """Return the server's information and its list of tools.

        Raises:
            ClientError, BackendError: the server is unavailable, or its list is unusable.
        """
        connection = await self.connection()
        try:
            return await self._tools(connection)
        except ClientError as error:
            if not await self._negotiates_again_after(error):
                raise
        return await self._tools(connection)

    async def _tools(self, connection: Connection) -> tuple[ServerInfo, WholeList]:
        server = await connection.connect()
        if server.capabilities and "tools" not in server.capabilities:
            return server, WholeList([], None)
        connection.cache.clear("tools/list")
        return server, await connection.listing("tools/list", "tools", LIST_S)

    async def follow(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever the server reports a changed list, or its process ends. Return when
        the stream or the process has ended."""
        connection = await self.connection()
        link, server = connection.link, await connection.connect()
        wanted = {f"{name}ListChanged": True for name in NAMES if _reports_changes(server, name)}
        listening = None
        if wanted:
            listening = asyncio.create_task(_listen(connection, wanted, changed))
        try:
            if isinstance(link, StdioLink):
                await link.ended.wait()
                changed()
            elif listening is not None:
                await listening
        finally:
            await cancelled(listening)


def answers_questions(params: Json) -> bool:
    """Return whether params answer questions of 2026-07-28. An older server would ignore the answers
    and process the request again."""
    return not {"inputResponses", "requestState"}.isdisjoint(params)


def refuse_answers(server: str) -> NoReturn:
    """Raise the error for answers to questions that a server asked in another revision."""
    raise UnexpectedAnswer(CHANGED.format(server=server))


def needed_pages(error: RpcError | ServerRefused) -> list[Json]:
    """Return the message and URL of each page that the user has to open before a request
    (-32042 of 2025-11-25, "URL Elicitation Required Error"); none for any other error."""
    data = error.details if error.code == _NEEDS_PAGES and isinstance(error.details, dict) else {}
    listed: Any = data.get("elicitations")
    pages = [
        {"message": each.get("message"), "url": each.get("url")}
        for each in (listed[:MAX_PAGES] if is_object_list(listed) else ())
    ]
    return [page for page in pages if all(isinstance(text, str) for text in page.values())]


def _are_capabilities(value: Any) -> bool:
    """Return whether a value has the shape of capabilities, and a size that an error can name."""
    if not isinstance(value, dict) or len(str(value)) > MAX_REQUIRED:
        return False
    return all(inner == {} or _are_capabilities(inner) for inner in value.values())


def _reports_changes(server: ServerInfo, name: str) -> bool:
    capability: Any = server.capabilities.get(name)
    return isinstance(capability, dict) and capability.get("listChanged") is True


async def _listen(connection: Connection, wanted: Json, changed: Callable[[], None]) -> None:
    """Report changes until the stream ends. Return immediately if the server has no stream."""
    try:
        async with Subscription(connection, wanted, on_reopened=changed) as changes:
            async for change in changes:
                if change.method in notifications.LIST_CHANGED.values():
                    changed()
    except ClientError:
        return


def has_ended(connection: Connection) -> bool:
    """Return whether a connection's process has ended."""
    link = connection.link
    return isinstance(link, StdioLink) and link.ended.is_set()


async def _close(connection: Connection) -> None:
    link = connection.link
    try:
        await link.end_session()
    finally:
        if isinstance(link, Link):
            await link.transport.close()


def _may_speak_other_revision(error: ClientError, server: ServerInfo | None) -> bool:
    """Return whether an error may mean that a server no longer speaks the negotiated revision."""
    if isinstance(error, NoCommonVersion):  # a session of an older revision was refused
        return True
    if isinstance(error, HttpRefused):
        return error.status in _HANDSHAKE_STATUSES
    codes = _OLDER_ERRORS if server is not None and server.is_modern else _MODERN_ERRORS
    return isinstance(error, RpcError) and error.code in codes and not refuses_to_ask(str(error))


_SETTINGS: Final = {
    "connect_s": "timeouts.connect_s",
    "max_items": "max_tools",
    "max_message": "max_response_bytes",
}
"""The settings of a back end, by the limit of the client library that they set."""
