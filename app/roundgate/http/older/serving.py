"""The entry to the server for clients with sessions: it imports and makes that server when the
first of them arrives.

Many gateways never meet such a client, and a cold start pays for every import.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from roundgate.auth import Principal
from roundgate.clock import Clock
from roundgate.config import GatewayConfig
from roundgate.methods.parts import CurrentMethods, Methods, Use
from roundgate.observability import tracing
from roundgate.protocol import ResultFormat
from roundgate.runtime.startup import Core
from roundgate.settings import ServerConfig
from roundgate.storage import SessionStore
from roundgate.tokens import KeyRing

if TYPE_CHECKING:
    from roundgate.http.older.endpoint import OlderEndpoint
    from roundgate.http.older.questions import Questions

Serves: TypeAlias = Callable[[ResultFormat], tuple[Methods, Use]]
"""Makes the methods over the current catalog, for results in one format."""


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
        """Keep the parts; `endpoint` makes the rest.

        Args:
            core: the stores and the source of changes.
            ring: the keys for the ids of sessions and streams.
            clock: the clock of the process.
            config: the configuration at the start; a reload does not change the settings that are
                used here.
            serves: makes the methods of a revision.
            describe: returns the server's current description.
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
        self._questions: Questions | None = None
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
        if self._questions is not None:
            self._questions.close()

    def _make(self) -> OlderEndpoint:
        from roundgate.http.older.calls import SessionCalls
        from roundgate.http.older.endpoint import OlderEndpoint
        from roundgate.http.older.patient import PatientRows
        from roundgate.http.older.questions import Questions
        from roundgate.http.older.sessions import Sessions
        from roundgate.protocol.revisions_with_sessions import WITH_SESSIONS
        from roundgate.tokens.ids import SessionSealer, StreamIds

        http, sessions = self._config.http, self._config.sessions
        rows_of = self._core.rows_of(self._view)

        def patient(principal: Principal) -> SessionStore:
            return PatientRows(rows_of(principal), self._clock)

        self._methods = {
            version: (results, CurrentMethods(*self._serves(results)))
            for version, results in WITH_SESSIONS.items()
        }
        by_version = {version: methods for version, (_, methods) in self._methods.items()}
        self._questions = Questions(
            patient,
            StreamIds(self._ring),
            self._clock,
            max_open=http.max_streams,
            max_per_caller=http.max_streams_per_caller,
        )
        if self._is_closing:
            self._questions.close()
        states = Sessions(patient, self._clock)
        calls = SessionCalls(
            by_version,
            states,
            self._questions,
            patient,
            tracing.set_up(),
            self._clock,
            answer_timeout_s=sessions.answer_timeout_s,
            lifetime_s=self._config.state.lifetime_s,
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
            answer_timeout_s=sessions.answer_timeout_s,
            max_batch_answer_bytes=http.max_body_bytes,
            view=self._view,
        )
