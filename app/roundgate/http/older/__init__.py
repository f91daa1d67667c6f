"""The server for clients of the revisions with sessions. `http.endpoint` passes their requests on.

endpoint    POST (of one message or a batch), GET and DELETE
calls       requests that run a tool, prompt or resource; once the call has a hidden task
            (`tasks.hidden`), follows the task to its result
rounds      the rounds that this process runs, and the state that it leaves in the task
sessions    the changes that sessions make, and requests about a session itself
streams     the streams of requests and of changes, and the watch for clients that hang up

The first such client makes `OlderClients` import and create this server. Many gateways have no such
client, and a cold start pays for every import.
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
    from roundgate.http.older.streams import Followers
    from roundgate.tasks.hidden import HiddenTasks

Serves: TypeAlias = Callable[[ResultFormat], tuple[Methods, Use]]
"""A function that makes the methods over the current catalog, for results in one format."""


class OlderClients:
    """The endpoint of one view for clients with sessions, and the methods of each of their
    revisions."""

    def __init__(
        self,
        core: Core,
        hidden: Callable[[], HiddenTasks],
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
            hidden: a function that returns the hidden tasks of the view.
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
        self._hidden = hidden
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
        from roundgate.http.older.endpoint import OlderEndpoint
        from roundgate.http.older.sessions import Sessions
        from roundgate.http.older.streams import Followers, OlderParts
        from roundgate.protocol.v2025.results import RESULT_FORMATS
        from roundgate.tokens.ids import SessionSealer, StreamIds

        http, sessions = self._config.http, self._config.sessions
        rows_of = self._core.rows_of(self._view)
        self._methods = {
            version: (results, CurrentMethods(*self._serves(results)))
            for version, results in RESULT_FORMATS.items()
        }
        by_version = {version: methods for version, (_, methods) in self._methods.items()}
        tasks = self._hidden()
        self._followers = Followers(
            tasks.looks, max_open=http.max_streams, max_per_caller=http.max_streams_per_caller
        )
        if self._is_closing:
            self._followers.close()
        parts = OlderParts(
            methods=by_version,
            sessions=Sessions(rows_of, self._clock),
            changes=self._core.changes,
            tasks=tasks,
            followers=self._followers,
            ids=StreamIds(self._ring),
            tracing=tracing.set_up(),
            clock=self._clock,
            streams=self._streams,
            keep_alive_s=http.keep_alive_s,
            max_batch_answer_bytes=http.max_body_bytes,
            continue_tool=sessions.continue_tool,
            view=self._view,
        )
        sealer = SessionSealer(self._ring, self._clock, sessions.lifetime_s)
        return OlderEndpoint(parts, sealer, self._describe)
