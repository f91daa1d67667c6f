"""A transport that plays a cassette, without a server or a socket: `Client(url,
transport=Player(cassette))`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from pathlib import Path

from roundgate.cassettes.faults import NO_FAULTS, Faults
from roundgate.cassettes.files import read
from roundgate.cassettes.model import Cassette
from roundgate.cassettes.standin import Reply, StandIn
from roundgate.client import HttpRequest
from roundgate.errors import ConnectionLost


class Player:
    """Answers a client's requests from a cassette, or from the file that holds one.

    Raises:
        ConfigError: the file is no cassette.
    """

    def __init__(
        self,
        cassette: Cassette | Path | str,
        *,
        in_order: bool = False,
        faults: Faults = NO_FAULTS,
    ) -> None:
        self._cassette = cassette if isinstance(cassette, Cassette) else read(Path(cassette))
        self._in_order = in_order
        self._faults = faults
        self._stand_in: StandIn | None = None

    async def send(self, request: HttpRequest) -> Played:
        """The recorded response, or an error that says what was not recorded."""
        if self._stand_in is None:
            origin = f"{request.url.scheme}://{request.url.authority}"
            self._stand_in = StandIn(
                self._cassette, in_order=self._in_order, origin=origin, faults=self._faults
            )
        headers = {name.lower(): value for name, value in request.headers}
        reply = await self._stand_in.answer(request.method, headers, request.body or b"")
        if reply is None:
            raise ConnectionLost("The response was lost, as the cassette has it", was_sent=True)
        return Played(reply)

    async def close(self) -> None:
        """Nothing is open."""


class Played:
    """A response out of a cassette."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    @property
    def status(self) -> int:
        return self._reply.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._reply.headers

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        stream = self._reply.stream
        if stream is None:
            body = self._reply.body
            yield body[: len(body) // 2] if self._reply.is_cut else body
        else:
            try:
                async for data in stream:
                    yield data
            finally:
                await stream.aclose()
        if self._reply.is_cut:
            raise ConnectionLost("The response was cut off, as the cassette has it", was_sent=True)

    async def close(self) -> None:
        if self._reply.stream is not None:
            with suppress(RuntimeError):  # it is being read: whoever reads it closes it
                await self._reply.stream.aclose()
