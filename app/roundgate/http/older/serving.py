"""The entry to the server for clients with sessions. The first such client makes it import and
create that server. Many gateways have no such client, and a cold start pays for every import.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from roundgate.clock import Clock
from roundgate.config import GatewayConfig
from roundgate.methods.parts import CurrentMethods, Methods, Use
from roundgate.observability import tracing
from roundgate.protocol import ResultFormat
from roundgate.runtime.startup import Core
from roundgate.settings import ServerConfig
from roundgate.tokens import KeyRing

if TYPE_CHECKING:
    from roundgate.http.older.endpoint import OlderEndpoint
    from roundgate.http.older.following import Followers

Serves: TypeAlias = Callable[[ResultFormat], tuple[Methods, Use]]
"""A function that makes the methods over the current catalog, for results in one format."""


class OlderClients:
    """The endpoint of one view for clients with sessions, and the methods of each of their
    revisions."""

    def __init__(
        self,
        core: Core,
        ring: KeyRing,
        clock: Clock,
        config: GatewayConfig,
        serves: Serves,
        describe: Callable[[], ServerConfig],
        *,
        streams: bool,
        view: str = "",
    ) -> None:
        """Store the parts; `endpoint` makes the rest later.

        Args:
            core: the stores and the source of changes.
            ring: the keys for the ids of sessions and streams.
            clock: the clock of the process.
            config: the configuration at the start; a reload does not change the settings that this
                server uses.
            serves: a function that makes the methods of a revision.
            describe: a function that returns the server's current description.
            streams: whether the platform can hold a stream open.
            view: the name of the view; empty for the endpoint of all tools.
        """
        self._core = core
        self._ring = ring
        self._clock = clock
        self._config = config
        self._serves = serves
        self._describe = describe
        self._streams = streams
        self._view = view
        self._methods: dict[str, tuple[ResultFormat, CurrentMethods]] = {}
        self._followers: Followers | None = None
        self._endpoint: OlderEndpoint | None = None
        self._is_closing = False

    def endpoint(self) -> OlderEndpoint:
        """Return the endpoint; make it at the first call."""
        if self._endpoint is None:
            self._endpoint = self._make()
        return self._endpoint

    def swap(self) -> None:
        """Serve later requests with the current catalog."""
        for results, methods in self._methods.values():
            methods.swap(*self._serves(results))

    def close(self) -> None:
        """Make every call stop waiting for answers."""
        self._is_closing = True
        if self._followers is not None:
            self._followers.close()

    def _make(self) -> OlderEndpoint:
        from roundgate.http.older.calls import SessionCalls
        from roundgate.http.older.endpoint import OlderEndpoint
        from roundgate.http.older.following import Followers
        from roundgate.http.older.patient import RowPatience
        from roundgate.http.older.sessions import Sessions
        from roundgate.protocol.v2025.results import RESULT_FORMATS
        from roundgate.tasks.hidden import HiddenTasks
        from roundgate.tokens.ids import SessionSealer, StreamIds

        http, sessions, stores = self._config.http, self._config.sessions, self._core.stores
        rows_of = self._core.rows_of(self._view)
        self._methods = {
            version: (results, CurrentMethods(*self._serves(results)))
            for version, results in RESULT_FORMATS.items()
        }
        by_version = {version: methods for version, (_, methods) in self._methods.items()}
        self._followers = Followers(
            max_open=http.max_streams, max_per_caller=http.max_streams_per_caller
        )
        if self._is_closing:
            self._followers.close()
        # an answer is useless after the state has expired
        wait_s = min(sessions.answer_timeout_s, self._config.state.lifetime_s)
        tasks = HiddenTasks(
            stores.tasks,
            self._clock,
            self._config.tasks,
            RowPatience(self._clock),
            wait_ms=int(wait_s * 1000),
            view=self._view,
        )
        states = Sessions(rows_of, self._clock)
        calls = SessionCalls(
            by_version,
            states,
            tasks,
            self._followers,
            StreamIds(self._ring),
            rows_of,
            tracing.set_up(),
            self._clock,
            keep_alive_s=http.keep_alive_s,
            continue_tool=sessions.continue_tool,
        )
        return OlderEndpoint(
            by_version,
            calls,
            SessionSealer(self._ring, self._clock, sessions.lifetime_s),
            states,
            self._core.changes,
            self._describe,
            self._clock,
            streams=self._streams,
            keep_alive_s=http.keep_alive_s,
            max_batch_answer_bytes=http.max_body_bytes,
            view=self._view,
        )
