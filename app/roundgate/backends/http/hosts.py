"""The hosts of a back end: each with the places for requests to it, and a circuit
breaker, where these are set."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

from roundgate.backends.http.breaker import Breaker, Host
from roundgate.backends.http.messages import Answer
from roundgate.backends.http.remote_config import RemoteConfig
from roundgate.backends.http.slots import Slots
from roundgate.clock import Clock, Deadline
from roundgate.errors import NoAnswer, UnexpectedAnswer

AWAY: Final = frozenset({502, 503, 504})
"""Statuses of a service that is away. Not 500: that may be due to what one caller asks for."""


class Gate:
    """What each request to one host goes through."""

    def __init__(self, config: RemoteConfig, host: Host, clock: Clock) -> None:
        self._slots = None if config.limit is None else Slots(config.limit, config.name)
        self._breaker = None if config.breaker is None else Breaker(config.breaker, host, clock)

    def check(self) -> None:
        """Do nothing if a request may be sent now.

        Raises:
            BackendError: the host is left alone for a while.
        """
        if self._breaker is not None:
            self._breaker.check()

    async def through(self, send: Callable[[], Awaitable[Answer]], deadline: Deadline) -> Answer:
        """What `send` returns.

        Raises:
            BackendError: the host is left alone or busy; or as `send` does.
        """
        self.check()  # nobody waits for a place that would be of no use
        async with self._place(deadline):
            if self._breaker is None:
                return await send()
            return await _watched(self._breaker, send)

    @asynccontextmanager
    async def _place(self, deadline: Deadline) -> AsyncIterator[None]:
        if self._slots is None:
            yield
            return
        async with self._slots.one(deadline):
            yield


async def _watched(breaker: Breaker, send: Callable[[], Awaitable[Answer]]) -> Answer:
    admitted = breaker.admit()
    try:
        answer = await send()
    except NoAnswer as error:
        breaker.failed(admitted, error.reason)
        raise
    except UnexpectedAnswer:  # which is one: too long, or a redirect that is not followed
        breaker.succeeded(admitted)
        raise
    except BaseException:
        breaker.gave_up(admitted)
        raise
    if answer.status in AWAY:
        breaker.failed(admitted, f"it answered {answer.status}")
    else:
        breaker.succeeded(admitted)
    return answer


class Hosts:
    """The hosts of one back end; services at one host, with other credentials,
    share what belongs to it."""

    def __init__(self, config: RemoteConfig, clock: Clock | None = None) -> None:
        self._config = config
        self.clock = clock or Clock()
        self._gates: dict[str, Gate] = {}

    def gate(self, base_url: str) -> Gate:
        """Of the host of a base URL."""
        parts = urlsplit(base_url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
        address = f"{parts.hostname}:{port}"
        if address not in self._gates:
            self._gates[address] = Gate(self._config, Host(self._config.name, address), self.clock)
        return self._gates[address]
