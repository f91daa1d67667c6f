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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from roundgate.clock import Clock
from roundgate.config import GatewayConfig
from roundgate.methods.parts import CurrentMethods, Methods
from roundgate.observability import tracing
from roundgate.protocol import ResultFormat
from roundgate.runtime.startup import Core
from roundgate.settings import ServerConfig
from roundgate.tokens import KeyRing

if TYPE_CHECKING:
    from roundgate.http.older.endpoint import OlderEndpoint
    from roundgate.http.older.streams import Followers
    from roundgate.tasks.hidden import HiddenTasks

Serves: TypeAlias = Callable[[ResultFormat], Methods]
"""A function that makes the methods over the current catalog, for results in one format."""


@dataclass(eq=False)
class OlderClients:
    """The endpoint of one view for clients with sessions, and the methods of each of their
    revisions. `endpoint` makes the parts."""

    core: Core
    hidden: Callable[[], HiddenTasks]
    """Returns the hidden tasks of the view."""
    ring: KeyRing
    """The keys for the ids of sessions and streams."""
    clock: Clock
    config: GatewayConfig
    """The configuration at the start; a reload does not change the settings that this server
    uses."""
    serves: Serves
    describe: Callable[[], ServerConfig]
    """Returns the server's current description."""
    streams: bool
    """Whether the platform can hold a stream open."""
    view: str = ""
    """The name of the view; empty for the endpoint of all tools."""
    _methods: dict[str, tuple[ResultFormat, CurrentMethods]] = field(default_factory=dict)
    _followers: Followers | None = None
    _endpoint: OlderEndpoint | None = None
    _is_closing: bool = False

    def endpoint(self) -> OlderEndpoint:
        """Return the endpoint; make it at the first call."""
        if self._endpoint is None:
            self._endpoint = self._make()
        return self._endpoint

    def swap(self) -> None:
        """Serve later requests with the current catalog."""
        for results, methods in self._methods.values():
            methods.now = self.serves(results)

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

        http, sessions = self.config.http, self.config.sessions
        rows_of = self.core.rows_of(self.view)
        self._methods = {
            version: (results, CurrentMethods(self.serves(results)))
            for version, results in RESULT_FORMATS.items()
        }
        by_version = {version: methods for version, (_, methods) in self._methods.items()}
        tasks = self.hidden()
        self._followers = Followers(
            tasks.looks, max_open=http.max_streams, max_per_caller=http.max_streams_per_caller
        )
        if self._is_closing:
            self._followers.close()
        parts = OlderParts(
            methods=by_version,
            sessions=Sessions(rows_of, self.clock),
            changes=self.core.changes,
            tasks=tasks,
            followers=self._followers,
            ids=StreamIds(self.ring),
            tracing=tracing.set_up(),
            clock=self.clock,
            streams=self.streams,
            keep_alive_s=http.keep_alive_s,
            max_batch_answer_bytes=http.max_body_bytes,
            continue_tool=sessions.continue_tool,
            view=self.view,
        )
        sealer = SessionSealer(self.ring, self.clock, sessions.lifetime_s)
        return OlderEndpoint(parts, sealer, self.describe)
