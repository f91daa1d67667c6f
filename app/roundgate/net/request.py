"""An HTTP request, and the limit on the waits for its answer. Imports no HTTP library."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Protocol, TypeAlias

from msgspec import Struct

from roundgate.clock import SOON_S, TickedWatch, Ticker, ticker

Origin: TypeAlias = tuple[str, str, int]
"""The scheme, host and port of a URL."""
DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class IdleLimit(TickedWatch):
    """The limit on each wait for data of one answer. It can be suspended."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._suspensions = 0
        self._expire: Callable[[], None] | None = None
        self._ends_s = 0.0
        self._ticker: Ticker | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, expire: Callable[[], None]) -> None:
        """Begin a wait; call `expire` at the limit, unless the wait ends first."""
        self._expire = expire
        if not self._suspensions:
            self._watch()

    def end(self) -> None:
        """End the wait."""
        self._expire = None
        self._stop()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspend the limit until the block ends, then restart it."""
        self._suspensions += 1
        self._stop()
        try:
            yield
        finally:
            self._suspensions -= 1
            if self._expire is not None and not self._suspensions:
                self._watch()

    def _watch(self) -> None:
        self._ends_s = asyncio.get_running_loop().time() + self._limit_s
        if self._limit_s < SOON_S:
            self.start()
        else:
            self._ticker = ticker()
            self._ticker.add(self)

    def _stop(self) -> None:
        if self._ticker is not None:
            self._ticker.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def start(self) -> None:
        if self._expire is not None:
            self._timer = asyncio.get_running_loop().call_at(self._ends_s, self._expire)


class WireRequest(Struct):
    """A request to write to a connection. Limits are in seconds; `None` is no limit."""

    method: str
    origin: Origin
    target: str
    """The path and query, percent-encoded."""
    headers: Sequence[tuple[str, str]]
    """The headers. `Host` and `Content-Length` are added."""
    body: bytes = b""
    idle: IdleLimit | None = None
    """The limit on the wait for the head of the answer, and on each wait for more of its body."""
    connect_s: float | None = None
    write_s: float | None = None
    pool_s: float | None = None
    """The limit on the wait for a connection that another request uses."""
    is_connecting: bool = False
    """Whether a connection was opened for the request."""
    is_sent: bool = False
    """Whether the service may have received the request."""

    @property
    def authority(self) -> str:
        """The host, and the port unless it is the default, as in the header `Host`."""
        scheme, host, port = self.origin
        shown = f"[{host}]" if ":" in host else host
        return shown if port == DEFAULT_PORTS.get(scheme) else f"{shown}:{port}"

    @property
    def url(self) -> str:
        return f"{self.origin[0]}://{self.authority}{self.target}"

    def header(self, name: str) -> str | None:
        """Return the value of a header, or `None`. `name` is in lower case."""
        return next((value for key, value in self.headers if key.lower() == name), None)

    def set_header(self, name: str, value: str) -> None:
        """Set a header, in place of others of the same name."""
        lower = name.lower()
        others = [pair for pair in self.headers if pair[0].lower() != lower]
        self.headers = [*others, (name, value)]


class Unread(Protocol):
    """An answer whose body has not been read."""

    status: int
    http_version: str

    @property
    def headers(self) -> Mapping[str, str]: ...
    def __aiter__(self) -> AsyncIterator[bytes]: ...
    async def aclose(self) -> None: ...
    async def leave(self) -> None:
        """Close the answer; its connection can be reused if the rest of the body arrives soon."""
