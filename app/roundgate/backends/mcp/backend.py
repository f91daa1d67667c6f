"""The `mcp` back end: a server's lists, which the gateway keeps up to date while it runs.

    offer ──▶ a separate connection, within START_S ──▶ the list, or "missing now"
    follow ─▶ the shared connection ──▶ poll ──▶ wait for: the list's expiry, a change, the end of the process
                                          └─ failed: poll again after a growing pause; the last list stays

`offer` may run in another event loop than the calls, so it opens its own connection. An empty list
replaces a list with entries only if the server repeats it: servers often list nothing while they
start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from roundgate.aio import Threads
from roundgate.backends.base import DirectCall, Offering, Resource, ServerState, Shared, Tool
from roundgate.backends.http.credentials import Accesses, authenticated
from roundgate.backends.http.reliability import Attempts, host_attempts
from roundgate.backends.http.secrets import SECRET_NAME, AnswerRedactor
from roundgate.backends.http.tls import Certificates
from roundgate.backends.mcp.apps import has_pages
from roundgate.backends.mcp.calls import ToolCalls
from roundgate.backends.mcp.config import McpBackendConfig
from roundgate.backends.mcp.held import HeldCalls
from roundgate.backends.mcp.jobs import JobCalls, job_problems
from roundgate.backends.mcp.listening import Listening
from roundgate.backends.mcp.pins import Pins
from roundgate.backends.mcp.prompts import make_prompts
from roundgate.backends.mcp.requests import ServerRequests
from roundgate.backends.mcp.resources import make_resources, unlisted_resource
from roundgate.backends.mcp.server import CARRIED, INFO, McpServer, ProcessLog, pause_s
from roundgate.backends.mcp.skills import ServerSkills
from roundgate.backends.mcp.snapshot import ServerSnapshot, read_snapshot
from roundgate.backends.mcp.tasks import ServerTasks
from roundgate.backends.mcp.tools import MAX_NAME, UsableTool
from roundgate.backends.mcp.uris import Uris
from roundgate.backends.modules import Modules
from roundgate.background import cancelled, detached
from roundgate.client import Answers, HttpxTransport, Limits, ServerInfo, Url
from roundgate.client.connection import Connection
from roundgate.client.link import Link
from roundgate.client.messages import Received
from roundgate.client.stdio import Program, StdioLink
from roundgate.client.types import Json
from roundgate.clock import Clock
from roundgate.errors import ClientError, ConfigError, GatewayError, Problem
from roundgate.protocol.apps import DECLARED, SCHEME
from roundgate.settings import Origin
from roundgate.settings.files import content_digest

START_S: Final = 1.0
"""Seconds that a start waits for a server. A slower server is served once it has answered."""
COLD_S: Final = 5.0
"""Seconds that an AWS Lambda function waits for a server in its init phase; it does not try again."""
CHECK_S: Final = 20.0
"""Seconds that a command, such as `roundgate check`, waits for a server."""
POLL_S: Final = 60.0
"""The timeout of a poll of a running gateway, in seconds."""
STUCK_POLLS: Final = 3
"""Consecutive polls without an answer after which a process is restarted. A process that is busy with
one long call may miss one or two."""
LEAST_PAUSE_S: Final = 1.0
"""The shortest pause between two polls in seconds, however often the server reports changes."""
EMPTY_POLL_PAUSES_S: Final = (1.0, 5.0, 15.0)
"""Seconds before each repeated poll of an empty list, until it replaces a list with entries."""
LEAST_TTL_S: Final = 5.0
LONGEST_TTL_S: Final = 3_600.0
"""The bounds on the time to live of a list, in seconds, whatever the server says."""
MAX_LOGGED_NAMES: Final = 20
"""The maximum number of names in one log record."""
MAX_PAGES: Final = 200
_SERVER_FIX: Final = "correct it at the server"
_ACCEPT: Final = "review the change, and run `roundgate compile` to accept it"
_CAPABILITIES: Final[Json] = {
    **{name: {part: {} for part in parts} for name, parts in CARRIED.items()},
    **DECLARED,
}

log = logging.getLogger("roundgate.backends")


class _Condition(Struct):
    """The outcome of the last poll, with the reason if it failed."""

    info: ServerInfo | None = None
    failures: int = 0
    error: str | None = None
    is_logged: bool = False


class _FollowState(Struct):
    empty_polls: int = 0
    listening: asyncio.Task[None] | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)


class McpBackend:
    """A back end of the kind `mcp`: one server."""

    def __init__(self, config: McpBackendConfig, origin: Origin, shared: Shared) -> None:
        self.name = config.name
        self._config = config
        self._origin = origin
        self._shared = shared
        self._clock = Clock()
        if config.command and (shared.is_cold or not shared.asks_servers):
            raise ConfigError([_no_process_on_lambda(origin)])
        self._limits = _limits_from_config(config)
        self._accesses = Accesses(config, origin, shared)
        self._access = self._accesses.general()
        self._certificates = Certificates(config.tls, origin.at("tls"))
        self._tls_digests = self._digest_tls_files()
        url = config.url or "http://process"
        self.senders: dict[str, Attempts] = {}
        self._attempts = host_attempts(config, url, self.senders, self._clock)
        secret = [
            value
            for name, value in config.env.items()
            if value.references or SECRET_NAME.search(name)
        ]
        process_redactor = AnswerRedactor(partial(shared.secrets.known, secret))
        self._redact = (process_redactor if config.command else self._accesses.redactor).of_bytes
        self._process_log = ProcessLog(config.name, self._clock, self._redact)
        self._received = Received(config.name)
        # each held session needs three: its stream, its call, and an answer
        connections = max(self._limits.max_connections, 3 * config.max_held_calls)
        self._held_transport = self._transport(replace(self._limits, max_connections=connections))
        may_ask = config.questions if config.questions is not None else config.url is not None
        self._held = self._make_held() if may_ask and config.older_versions else None
        # some servers list less to clients without these capabilities, so the session that lists
        # declares all of them; it makes no calls of tools, so no caller can change the lists of
        # others. Jobs, which may not ask, use a session that declares none
        self._server = self._make_server(_CAPABILITIES if self._held else {})
        self._quiet = self._make_server({}) if self._held else self._server
        self._uris = Uris(config.name, is_named=config.uris == "named")
        self._pins = Pins(config, origin, self._clock, self._poll_to_compare)
        accept = self._pins.require_accepted_page
        self._requests = ServerRequests(self._server, self._limits, self._wake, accept, self._held)
        self._older_requests = replace(self._requests, server=self._quiet, is_older=True)
        self._listening = Listening(self._server, self._uris, self._clock)
        self._other_counts = 0, 0
        """The numbers of served prompts and resources."""
        self._other_left_out: dict[str, str] = {}
        """The reasons why prompts, resources and lists are not served, by name."""
        self._snapshot: ServerSnapshot | None = None
        self._offered: ServerSnapshot | None = None
        self._condition = _Condition()
        self._state = _FollowState()
        self._logged: list[Any] = [[], {}]
        """The last logged tools and lists that are not served."""
        self._following: asyncio.Task[None] | None = None
        self._changed: Callable[[], None] = lambda: None

    def has_current_files(self) -> bool:
        """Return whether the TLS files have the content that this back end reads. The lock file is
        read again by each `offer`."""
        return self._tls_digests == self._digest_tls_files()

    def _digest_tls_files(self) -> dict[Path, bytes | None]:
        files = self._certificates.files | self._accesses.files
        return {file: content_digest(file) for file in files}

    @property
    def _files(self) -> frozenset[Path]:
        return frozenset(self._tls_digests) | self._pins.files

    # -- the offer ---------------------------------------------------------------------------------

    async def offer(self) -> Offering:
        """Return the server's offer, from the last poll or from a first poll.

        A server that does not answer is reported as missing; `follow` polls it again.

        Raises:
            ConfigError: a certificate, a secret or the lock file is unavailable.
        """
        if problems := await self._accesses.problems(self._certificates):
            raise ConfigError(problems)
        if self._snapshot is None and self._following is None and self._shared.asks_servers:
            await self._poll_once()
        self._offered = self._snapshot
        if self._shared.asks_servers:
            self._pins.read()
        if self._snapshot is None:
            missing = [self._missing_problem()] if self._shared.asks_servers else []
            return Offering(files=self._files, missing=missing)
        return self._offering(self._snapshot)

    def _offering(self, snapshot: ServerSnapshot) -> Offering:
        """Return the parts of a snapshot that can be served, and problems for the others."""
        quarantined, invalid_jobs = self._pins.quarantined(snapshot), self._job_problems()
        has_tasks, lists, usable = snapshot.has_tasks, snapshot.lists, snapshot.by_name
        tools = [
            self._job(tool, usable) if name in self._config.jobs else self._tool(tool, has_tasks)
            for name, tool in usable.items()
            if name not in quarantined["tools"] and name not in invalid_jobs
        ]
        requests = self._requests if snapshot.info.is_modern else self._older_requests
        prompts, other_prompts = make_prompts(lists, requests, self._config.prompts, self._uris)
        resources, other_resources = make_resources(
            lists, requests, self._config.resources, self._uris, self._listening
        )
        skills, other_skills = ServerSkills.from_list(
            snapshot.skills,
            self._server,
            self._config.resources,
            self._pins.accepts_skill if self._pins.quarantines else None,
        )
        prompts = [
            prompt for prompt in prompts if prompt.definition["name"] not in quarantined["prompts"]
        ]
        unaccepted_uris = {
            self._uris.ours(uri) for kind in ("templates", "resources") for uri in quarantined[kind]
        }
        resources = [
            resource
            for resource in resources
            if resource.definition.get("uriTemplate") not in unaccepted_uris
            and resource.definition.get("uri") not in unaccepted_uris
            and self._may_read(resource.definition.get("uri", ""), skills)
        ]
        refused = {
            **snapshot.faults,
            **{
                entry.name: entry.reason
                for entry in (*other_prompts, *other_resources, *other_skills)
            },
        }
        unaccepted = {
            name[:MAX_NAME]: reason
            for reasons in quarantined.values()
            for name, reason in reasons.items()
        }
        self._other_counts = len(prompts), len(resources)
        self._other_left_out = refused | unaccepted
        return Offering(
            tools,
            prompts,
            resources,
            unlisted=self._unlisted(snapshot, skills),
            skill_source=skills if snapshot.skills.is_declared else None,
            task_source=ServerTasks(self._server, self._uris) if has_tasks else None,
            files=self._files,
            left_out=self._problems(snapshot, invalid_jobs, refused, unaccepted),
            may_list=lists.declared & {"prompts", "resources"},
            is_private=snapshot.is_private,
        )

    def _problems(
        self,
        snapshot: ServerSnapshot,
        invalid_jobs: Mapping[str, str],
        refused: Mapping[str, str],
        unaccepted: Mapping[str, str],
    ) -> list[Problem]:
        """Return a problem for each part that is not served, with the reason and the remedy."""
        groups = (
            ({f"tool {tool.name!r}": tool.reason for tool in snapshot.left_out}, _SERVER_FIX),
            ({f"job {name!r}": reason for name, reason in invalid_jobs.items()}, _SERVER_FIX),
            ({repr(name): reason for name, reason in refused.items()}, _SERVER_FIX),
            ({repr(name): reason for name, reason in unaccepted.items()}, _ACCEPT),
        )
        return [
            self._origin.problem(f"{name}: {reason}", remedy)
            for reasons, remedy in groups
            for name, reason in reasons.items()
        ]

    def _unlisted(self, snapshot: ServerSnapshot, skills: ServerSkills) -> dict[str, Resource]:
        """Return resources that read pages and the files of skills, which the server need not
        list, by the beginning of their URIs."""
        uris = Uris(self.name, is_named=True)
        starts = {uris.start(SCHEME)} if has_pages(snapshot.info, snapshot.usable) else set()
        if snapshot.skills.is_declared:
            starts |= skills.starts
        part, requests = self._config.resources, self._requests
        may_read = partial(self._may_read, skills=skills)
        return {start: unlisted_resource(start, requests, part, uris, may_read) for start in starts}

    @staticmethod
    def _may_read(uri: str, skills: ServerSkills) -> bool:
        """Return whether a resource is not a file of a quarantined skill."""
        return not uri.startswith(tuple(skills.starts)) or skills.may_read(uri)

    # -- the lock file -----------------------------------------------------------------------------

    async def pin(self) -> str:
        """Write the server's current definitions to the lock file; return a summary.

        Raises:
            ConfigError: the server, a list or a page is unavailable, or the file cannot be
                written.
        """
        if problems := await self._accesses.problems(self._certificates):
            raise ConfigError(problems)
        await self._poll_once()
        if self._snapshot is None:
            raise ConfigError([self._missing_problem()])
        return await self._pins.write(self._snapshot, self._server)

    async def _poll_to_compare(self) -> ServerSnapshot:
        """Poll the server before a call. If its offer has changed, wake `follow`, which applies the
        change. Raise BackendError if the server is unavailable."""
        try:
            snapshot = await self._poll(self._listing)
        except ClientError as error:
            raise self._server.backend_error(error) from None
        if not snapshot.offers_the_same_as(self._snapshot):
            self._wake()
        return snapshot

    # -- the parts of the offer --------------------------------------------------------------------

    async def _poll(self, server: McpServer) -> ServerSnapshot:
        check_arguments = self._config.check_arguments
        return await read_snapshot(server, self._snapshot, check_arguments=check_arguments)

    async def _poll_once(self) -> None:
        """Poll the server through a temporary connection. A back end that replaces another one polls
        through its own instead, so that its process is up when the calls come."""
        keeps = self._shared.replaces_server
        server = self._listing if keeps else self._make_polled(_CAPABILITIES)
        limit_s = CHECK_S if keeps or self._shared.fetches else START_S
        if self._shared.is_cold:
            limit_s = COLD_S
        try:
            async with asyncio.timeout(limit_s):
                self._snapshot = await self._poll(server)
                if self._held is not None and not self._can_ask(server, self._snapshot):
                    self._held.may_ask = False
                    await server.aclose()
                    server = self._make_polled({})
                    self._snapshot = await self._poll(server)
            self._condition = _Condition(self._snapshot.info)
        except TimeoutError:
            self._condition = _Condition(None, 1, _slow(limit_s))
        except GatewayError as error:
            self._condition = _Condition(None, 1, self._reason(error))
        finally:
            if not keeps:
                await server.aclose()

    def _make_polled(self, capabilities: Json) -> McpServer:
        return self._make_server(capabilities if self._may_ask else {}, is_for_one_poll=True)

    def _can_ask(self, server: McpServer, snapshot: ServerSnapshot) -> bool:
        """Return whether calls can carry questions. AWS Lambda freezes a process between two calls,
        so it cannot hold the stream of an older server that does not keep its events."""
        return snapshot.info.is_modern or not self._shared.is_cold or server.keeps_events

    def _tool(self, tool: UsableTool, has_tasks: bool) -> Tool:
        call = ToolCalls(
            self._config,
            self._calling,
            tool,
            self._limits,
            has_tasks,
            self._wake,
            self._uris,
            self._pins.require_accepted,
            self._held,
            self._is_older,
        )
        schema = tool.definition["inputSchema"]
        return Tool(
            self._uris.in_meta(tool.definition),
            DirectCall(call),
            is_described_remotely=True,
            compiled=(schema, tool.arguments),
        )

    @property
    def _is_older(self) -> bool:
        return self._snapshot is not None and not self._snapshot.info.is_modern

    @property
    def _may_ask(self) -> bool:
        return self._held is not None and self._held.may_ask

    @property
    def _listing(self) -> McpServer:
        """The connection for lists; see `_quiet` in `__init__`."""
        return self._server if self._may_ask else self._quiet

    @property
    def _calling(self) -> McpServer:
        """The connection for calls that are not in a session of their caller."""
        return self._quiet if self._is_older else self._server

    def _job_problems(self) -> dict[str, str]:
        """Return the reasons why jobs cannot be followed, by the name of the tool that starts them."""
        tools = {} if self._snapshot is None else self._snapshot.by_name
        return job_problems(self._config.jobs, tools) if tools else {}

    def _job(self, tool: UsableTool, tools: Mapping[str, UsableTool]) -> Tool:
        job = self._config.jobs[tool.name]
        return replace(
            self._tool(tool, has_tasks=False),
            call=JobCalls(
                *(self._config, job, self._calling, tool, tools),
                *(self._uris, self._pins.require_accepted),
            ),
            task=job.task,
            cleans_up=job.cancel is not None,
        )

    def _missing_problem(self) -> Problem:
        where = "command" if self._config.command else "url"
        reason = self._condition.error or "it was not contacted"
        remedy = f"start it, or correct its {where}; a running gateway tries again automatically"
        return self._origin.at(where).problem(f"the server is unavailable: {reason}", remedy)

    def _reason(self, error: GatewayError) -> str:
        if isinstance(error, ClientError):
            error = self._server.backend_error(error)
        return str(error)

    # -- while the gateway runs --------------------------------------------------------------------

    def follow(self, changed: Callable[[], None]) -> None:
        """Keep the lists up to date in this event loop until `aclose`. Call `changed` whenever
        `offer` would return a different result."""
        self._changed = changed
        if self._following is None:
            self._following = detached(asyncio.create_task, self._follow())
        elif self._snapshot is not self._offered:
            changed()
        if self._condition.failures:
            self._wake()

    def state(self) -> ServerState:
        """Return the state of the server: the outcome of the last poll, and its offer."""
        condition, tools = self._condition, self._snapshot
        info = condition.info
        return ServerState(
            self.name,
            condition.failures == 0 and tools is not None,
            None if info is None else info.protocol_version,
            None if info is None else f"{info.name} {info.version}",
            0 if tools is None else len(tools.usable),
            *self._other_counts,
            self._other_left_out
            | ({} if tools is None else {tool.name: tool.reason for tool in tools.left_out})
            | self._job_problems(),
            condition.error,
            self._pins.differing,
            self._received.skipped,
        )

    async def until_unused(self) -> None:
        """Wait until no call is held for the answers to its questions."""
        if self._held is not None:
            await self._held.until_unused()

    async def aclose(self) -> None:
        """Stop following the server; end its sessions and processes."""
        following, self._following = self._following, None
        await cancelled(following, self._state.listening)
        if self._held is not None:
            await self._held.aclose()
        await self._held_transport.close()
        await self._quiet.aclose()
        await self._listening.aclose()
        await self._server.aclose()
        await self._accesses.aclose()

    def _wake(self) -> None:
        """Poll the server soon."""
        self._state.wake.set()

    async def _follow(self) -> None:
        while True:
            self._state.wake.clear()
            wait_s = await self._poll_and_apply()
            await asyncio.sleep(min(wait_s, LEAST_PAUSE_S))
            try:
                async with asyncio.timeout(max(0.0, wait_s - LEAST_PAUSE_S)):
                    await self._state.wake.wait()
            except TimeoutError:
                continue

    async def _poll_and_apply(self) -> float:
        """Poll the server, and apply the result; return the seconds until the next poll."""
        try:
            async with asyncio.timeout(POLL_S):
                snapshot = await self._poll(self._listing)
        except TimeoutError:
            if self._config.command and self._condition.failures >= STUCK_POLLS - 1:
                await self._server.aclose()  # the next poll restarts the process
            return self._record_failure(_slow(POLL_S))
        except GatewayError as error:
            return self._record_failure(self._reason(error))
        except Exception as error:
            fields = {"backend": self.name}
            log.error(
                "the lists of a server cannot be read", exc_info=error, extra={"fields": fields}
            )
            return self._record_failure(type(error).__name__)
        self._ensure_listening()
        return self._apply(snapshot)

    def _record_failure(self, reason: str) -> float:
        condition = self._condition
        condition.failures, condition.error = condition.failures + 1, reason
        if not condition.is_logged:
            condition.is_logged = True
            fields = {"backend": self.name, "error": reason}
            log.warning("a server is unavailable", extra={"fields": fields})
        return pause_s(condition.failures, self._clock)

    def _apply(self, snapshot: ServerSnapshot) -> float:
        """Replace the snapshot, unless an empty list may be temporary. Return the seconds until the
        next poll."""
        if self._condition.is_logged:
            log.info("a server is available again", extra={"fields": {"backend": self.name}})
        self._condition = _Condition(snapshot.info)
        polls = self._state.empty_polls
        self._state.empty_polls = 0
        may_be_early = polls < len(EMPTY_POLL_PAUSES_S)
        if (
            may_be_early
            and self._snapshot is not None
            and snapshot.has_emptied_list_of(self._snapshot)
        ):
            self._state.empty_polls = polls + 1
            return EMPTY_POLL_PAUSES_S[polls]
        if may_be_early and not snapshot.definitions:
            self._state.empty_polls = polls + 1
        if not snapshot.offers_the_same_as(self._snapshot):
            self._snapshot = snapshot
            self._changed()
        self._log_left_out(snapshot)
        if may_be_early and not snapshot.definitions:
            return EMPTY_POLL_PAUSES_S[polls]
        ttl_s = (snapshot.ttl_ms or 0) / 1000
        return min(max(ttl_s, LEAST_TTL_S), LONGEST_TTL_S) if ttl_s else self._config.refresh_s

    def _log_left_out(self, snapshot: ServerSnapshot) -> None:
        """Log the tools that cannot be served, and the lists that cannot be read, once each."""
        found = [snapshot.left_out, snapshot.lists.faults]
        if found == self._logged:
            return
        self._logged = found
        if snapshot.lists.faults:
            faults = {"backend": self.name, "lists": dict(snapshot.lists.faults)}
            log.warning("lists of a server cannot be read", extra={"fields": faults})
        if snapshot.left_out:
            reasons = {tool.name: tool.reason for tool in snapshot.left_out[:MAX_LOGGED_NAMES]}
            fields = {"backend": self.name, "n": len(snapshot.left_out), "tools": reasons}
            log.warning("tools of a server are left out", extra={"fields": fields})

    def _ensure_listening(self) -> None:
        listening = self._state.listening
        if listening is None or listening.done():
            self._state.listening = detached(asyncio.create_task, self._listen())

    async def _listen(self) -> None:
        try:
            await self._server.follow(self._wake)
        except GatewayError as error:
            log.debug("a server's changes are not reported", exc_info=error)

    # -- the parts of a connection -----------------------------------------------------------------

    def _make_server(self, capabilities: Json, *, is_for_one_poll: bool = False) -> McpServer:
        """Return a connection. The session of an older server declares `capabilities`."""
        make_link = self._process if self._config.command else self._http
        return McpServer(
            self._config,
            partial(make_link, is_for_one_poll),
            self._attempts,
            self._clock,
            listens=not is_for_one_poll,
            capabilities=capabilities,
            on_other_revision=self._wake,
        )

    def _make_held(self) -> HeldCalls:
        config = self._config
        return HeldCalls(
            config.name,
            self._asking_connection,
            lambda error: self._server.backend_error(error, is_in_doubt=True),
            lambda principal: self._server.caller_headers(principal),
            self._clock,
            max_calls=config.max_held_calls,
            held_s=config.held_s,
            can_hold=not self._shared.is_cold,
        )

    async def _asking_connection(self, capabilities: Json) -> Connection:
        """Return a connection with its own session or process, which declares `capabilities`."""
        if self._config.command:
            link: Link | StdioLink = await self._process(is_for_one_poll=False)
        else:
            link = self._link(self._held_transport)
            # servers on the Python SDK keep the events of all sessions' streams together
            link.session_stream.resumes = False
        return Connection(
            link,
            info=INFO,
            capabilities={**DECLARED, **capabilities},
            versions=self._config.older_versions,
            answers=Answers.of(None),
            clock=self._clock,
        )

    def _transport(self, limits: Limits) -> HttpxTransport:
        send = partial(authenticated, access=self._access)
        return HttpxTransport(limits, tls=self._certificates.context, send=send)

    async def _http(self, is_for_one_poll: bool) -> Link:
        return self._link(self._transport(self._limits))

    def _link(self, transport: HttpxTransport) -> Link:
        return Link(
            Url.parse(str(self._config.url)),
            transport,
            info=INFO,
            capabilities=_CAPABILITIES,
            limits=self._limits,
            redact=self._redact,
            received=self._received,
            first_id=_random_id(self._clock),
        )

    async def _process(self, is_for_one_poll: bool) -> StdioLink:
        config, secrets = self._config, self._shared.secrets
        env = {name: await secrets.text(value) for name, value in config.env.items()}
        cwd = self._origin.base_dir / (config.cwd or "")
        program = Program(config.command, env, cwd)
        return StdioLink(
            program,
            info=INFO,
            capabilities=_CAPABILITIES,
            limits=self._limits,
            redact=self._redact,
            on_line=self._process_log.write,
            received=self._received,
            is_patient=not is_for_one_poll,
        )


def _slow(limit_s: float) -> str:
    return f"it was slow: it did not answer within {limit_s:g} s"


def _random_id(clock: Clock) -> int:
    """Return an id of 48 random bits; it and the ids after it are exact as JSON numbers."""
    return int(clock.fraction() * 2**24) * 2**24 + int(clock.fraction() * 2**24)


def _limits_from_config(config: McpBackendConfig) -> Limits:
    timeouts = config.timeouts
    connect_s = None if timeouts is None else timeouts.connect_s
    read_s = None if timeouts is None else timeouts.read_s
    return Limits(
        connect_s=connect_s or min(config.timeout_s, 10.0),
        idle_s=read_s or config.timeout_s,
        keep_alive_s=config.keep_alive_s,
        request_s=inf,  # the call's own time limit ends it
        max_message=config.max_response_bytes,
        max_pages=MAX_PAGES,
        max_items=config.max_tools,
        max_connections=config.max_connections,
    )


def _no_process_on_lambda(origin: Origin) -> Problem:
    return origin.at("command").problem(
        "is a process, and AWS Lambda freezes and ends processes between two calls",
        "run the server on a machine and set its url; mcp-proxy serves such a program over HTTP",
    )


def pin_to_file(config: McpBackendConfig, origin: Origin) -> str:
    """Write the lock file of a server for `roundgate compile`; return a report for the user.

    Raises:
        ConfigError: the server is unavailable, or the file cannot be written.
    """
    if config.changes == "take":
        return f"{config.name}: nothing to pin, because every change is accepted (changes: take)"

    async def pin() -> str:
        backend = McpBackend(config, origin, Shared(Threads(1), Modules(), fetches=True))
        try:
            return await backend.pin()
        finally:
            await backend.aclose()

    return asyncio.run(pin())
