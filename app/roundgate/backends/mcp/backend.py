"""The `mcp` back end: a server's tools, kept up to date while the gateway runs.

    offer ──▶ a connection of its own, within START_S ──▶ the list, or "missing now"
    follow ─▶ the shared connection ──▶ look ──▶ wait for: the time the server gave, a change, the end of its process
                                          └─ failed: look again after a growing pause; the last list stays

`offer` may run in another event loop than the calls, so it opens a connection of its own. An empty
list after a full one is believed only if the server repeats it: servers often list nothing while
they start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from roundgate.aio import Threads
from roundgate.backends.base import Offering, Resource, ServerState, Shared, Tool
from roundgate.backends.http.credentials import Accesses, authenticated
from roundgate.backends.http.reliability import Gate, Hosts
from roundgate.backends.http.secrets import SECRET_NAME, Redactor
from roundgate.backends.http.tls import Certificates
from roundgate.backends.mcp.apps import has_pages
from roundgate.backends.mcp.calls import ToolCalls
from roundgate.backends.mcp.config import McpBackendConfig
from roundgate.backends.mcp.held import HeldCalls
from roundgate.backends.mcp.jobs import JobCalls, job_problems
from roundgate.backends.mcp.listening import Listening
from roundgate.backends.mcp.lists import Lists, read_lists
from roundgate.backends.mcp.lock import KINDS as PINNED
from roundgate.backends.mcp.lock import Lock
from roundgate.backends.mcp.prompts import prompts_of
from roundgate.backends.mcp.requests import Requests
from roundgate.backends.mcp.resources import resources_of, unlisted_resource
from roundgate.backends.mcp.server import CARRIED, INFO, Server, pause_s
from roundgate.backends.mcp.skills import ServerSkills, SkillList, read_skill_list
from roundgate.backends.mcp.tasks import ServerTasks
from roundgate.backends.mcp.tools import LeftOut, UsableTool, usable_tools
from roundgate.backends.mcp.uris import Uris
from roundgate.backends.python.modules import Modules
from roundgate.client import Answers, HttpxTransport, Limits, ServerInfo, Url
from roundgate.client.connection import Connection
from roundgate.client.flows import LEGACY
from roundgate.client.link import Link
from roundgate.client.stdio import Program, StdioLink
from roundgate.client.types import Json
from roundgate.clock import Clock
from roundgate.errors import BackendError, ClientError, ConfigError, GatewayError, Problem
from roundgate.protocol import without_none
from roundgate.protocol.apps import DECLARED, SCHEME
from roundgate.settings import Origin

START_S: Final = 1.0
"""Seconds that a start waits for a server. One that takes longer is served once it has answered."""
COLD_S: Final = 5.0
"""Seconds that a function of AWS Lambda waits while it starts: it does not ask again."""
CHECK_S: Final = 20.0
"""Seconds that a command, such as `roundgate check`, waits for a server."""
LOOK_S: Final = 60.0
"""Seconds within which a running gateway must have read a server's lists."""
STUCK_LOOKS: Final = 3
"""Looks in a row without an answer, after which a process is ended and started anew. A process that
works on one long call may miss one or two."""
LEAST_PAUSE_S: Final = 1.0
"""Seconds between two looks, however often the server reports a change."""
EMPTY_LOOKS_S: Final = (1.0, 5.0, 15.0)
"""Seconds after which an empty list is read again, before it replaces one with tools."""
LEAST_TTL_S: Final = 5.0
LONGEST_TTL_S: Final = 3_600.0
"""The bounds of the time for which a list is believed, whatever the server says."""
COMPARED_S: Final = 10.0
"""Seconds for which a comparison with the lock file holds for calls: a list costs the server more than
most calls do."""
MAX_NAMED: Final = 20
"""The most names in one line of the log."""
MAX_PAGES: Final = 200
MAX_LINES: Final = 100
"""Lines of a process's standard error that are logged in `LINES_S` seconds; more are counted."""
LINES_S: Final = 10.0
_STDERR_CHARS: Final = 2_000
_MENDED: Final = "have the server mend it"
_ACCEPTED: Final = "look at it; `roundgate compile` accepts what the server offers now"
_CAPABILITIES: Final[Json] = {
    **{name: {part: {} for part in parts} for name, parts in CARRIED.items()},
    **DECLARED,
}

log = logging.getLogger("roundgate.backends")


@dataclass(frozen=True, slots=True)
class _Tools:
    """The tools of one look at a server."""

    definitions: Sequence[Json]
    """The list as the server sent it."""
    info: ServerInfo
    usable: Sequence[UsableTool]
    left_out: Sequence[LeftOut]
    ttl_ms: int | None
    """For how long the server says that the list holds."""
    lists: Lists
    """Its other lists."""
    skills: SkillList
    """The skills that it lists."""

    @property
    def has_tasks(self) -> bool:
        """Whether calls may become tasks of the server."""
        return self.info.is_modern and self.info.has_tasks

    @property
    def by_name(self) -> dict[str, UsableTool]:
        """The tools that can be served."""
        return {tool.name: tool for tool in self.usable}

    @property
    def pinned(self) -> Mapping[str, Sequence[Json]]:
        """The definitions that a lock file pins, by kind."""
        return {
            "tools": self.definitions,
            "prompts": self.lists.of("prompts/list"),
            "templates": self.lists.of("resources/templates/list"),
        }

    def offers_as(self, other: _Tools | None) -> bool:
        """Return whether the same is offered as in another look."""
        return (
            other is not None
            and self.definitions == other.definitions
            and self.has_tasks == other.has_tasks
            and self.info.is_modern == other.info.is_modern
            and self.lists.offers_as(other.lists)
            and self.skills == other.skills
        )

    def lacks_a_list_of(self, other: _Tools) -> bool:
        """Return whether a list is empty that had entries in another look."""
        is_emptied = bool(other.definitions) and not self.definitions
        return is_emptied or self.lists.lacks_a_list_of(other.lists)


@dataclass(slots=True)
class _Condition:
    """The outcome of the last request to the server, with the reason if it failed."""

    info: ServerInfo | None = None
    failures: int = 0
    error: str | None = None


@dataclass(slots=True)
class _Seen:
    """The state of `follow`."""

    empty_looks: int = 0
    attending: asyncio.Task[None] | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)


class McpBackend:
    """A back end of the kind mcp: one server and its tools."""

    def __init__(self, config: McpBackendConfig, origin: Origin, shared: Shared) -> None:
        self.name = config.name
        self._config = config
        self._origin = origin
        self._shared = shared
        self._clock = Clock()
        if config.command and (shared.is_cold or not shared.asks_servers):
            raise ConfigError([_no_process_on_lambda(origin)])
        self._limits = _limits_of(config)
        self._accesses = Accesses(config, origin, shared)
        self._access = self._accesses.general()
        self._certificates = Certificates(config.tls, origin.at("tls"))
        self._gate: Gate = Hosts(config, self._clock).gate(config.url or "http://process")
        of_process = Redactor(self._secrets_of_process)
        self._redact = (of_process if config.command else self._accesses.redactor).of_bytes
        self._lines = _Lines(config.name, self._clock, self._redact)
        # each session has a stream of its own and one for its call, and sends answers
        connections = max(self._limits.max_connections, 3 * config.max_held_calls)
        self._held_transport = self._transport(replace(self._limits, max_connections=connections))
        may_ask = config.questions if config.questions is not None else config.url is not None
        # AWS Lambda freezes a process between two calls, so nothing could hold a stream
        self._held = self._make_held() if may_ask and not shared.is_cold else None
        # some servers list less to clients that cannot be asked, so the session of the list declares
        # everything; calls of clients that cannot be asked have a session that declares nothing
        self._server = self._make_server(_CAPABILITIES if self._held else {})
        self._quiet = self._make_server({}) if self._held else self._server
        self._uris = Uris(config.name, is_named=config.uris == "named")
        self._requests = Requests(self._server, self._limits, self._wake)
        self._older_requests = Requests(self._quiet, self._limits, self._wake)
        self._listening = Listening(self._server, self._uris, self._clock)
        self._lock: Lock | None = None
        self._compared: _Tools | None = None
        """The last look with which a call was compared."""
        self._compared_ms = 0.0
        self._comparing = asyncio.Lock()
        self._differing: Sequence[str] = ()
        """The names of definitions that differ from the lock file."""
        self._others = 0, 0
        """The numbers of prompts and of resources."""
        self._other_left_out: dict[str, str] = {}
        """The reasons why prompts, resources and lists are not served, by name."""
        self._tools: _Tools | None = None
        self._offered: _Tools | None = None
        self._condition = _Condition()
        self._seen = _Seen()
        self._following: asyncio.Task[None] | None = None
        self._changed: Callable[[], None] = _nothing

    @property
    def files(self) -> frozenset[Path]:
        """The TLS files and the lock file, which are read once."""
        lock = () if self._config.changes == "take" else (self._lock_path,)
        return self._certificates.files | self._accesses.files | frozenset(lock)

    # -- the offer ---------------------------------------------------------------------------------

    async def offer(self) -> Offering:
        """Return the server's tools as they are known, or as the server lists them now.

        A server that cannot be asked is missing now; `follow` asks again.

        Raises:
            ConfigError: a certificate, a secret or the lock file is unavailable.
        """
        if problems := await self._accesses.problems(self._certificates):
            raise ConfigError(problems)
        if self._tools is None and self._following is None and self._shared.asks_servers:
            await self._ask_once()
        self._offered = self._tools
        files = self.files
        lock = self._lock = self._read_lock()
        if self._tools is None:
            missing = [self._missing()] if self._shared.asks_servers else []
            return Offering(files=files, missing=missing)
        has_tasks, lists = self._tools.has_tasks, self._tools.lists
        differing, held = self._differences(lock, self._tools)
        usable, without_job = self._tools.by_name, self._without_job()
        tools = [
            self._job(tool, usable) if name in self._config.jobs else self._tool(tool, has_tasks)
            for name, tool in usable.items()
            if name not in held["tools"] and name not in without_job
        ]
        requests = self._requests if self._tools.info.is_modern else self._older_requests
        prompts, other_prompts = prompts_of(
            lists, requests, self._config.prompts, self._uris, self._clock
        )
        resources, other_resources = resources_of(
            lists,
            requests,
            self._config.resources,
            self._uris,
            self._listening,
            self._clock,
        )
        prompts = [one for one in prompts if one.definition["name"] not in held["prompts"]]
        templates = {self._uris.ours(template) for template in held["templates"]}
        resources = [one for one in resources if one.definition.get("uriTemplate") not in templates]
        skills, other_skills = ServerSkills.of(
            self._tools.skills, self._server, self._clock, self._config.resources
        )
        others = (*other_prompts, *other_resources, *other_skills)
        self._others = len(prompts), len(resources)
        self._differing = differing
        refused = {
            **lists.faults,
            **without_none(**{"skills/list": self._tools.skills.fault}),
            **{entry.name: entry.reason for entry in others},
        }
        unaccepted = {name: reason for some in held.values() for name, reason in some.items()}
        self._other_left_out = refused | unaccepted
        groups = (
            ({f"tool {tool.name!r}": tool.reason for tool in self._tools.left_out}, _MENDED),
            ({f"job {name!r}": reason for name, reason in without_job.items()}, _MENDED),
            ({repr(name): reason for name, reason in refused.items()}, _MENDED),
            ({repr(name): reason for name, reason in unaccepted.items()}, _ACCEPTED),
        )
        left_out = [
            self._origin.problem(f"{name}: {reason}", remedy)
            for reasons, remedy in groups
            for name, reason in reasons.items()
        ]
        return Offering(
            tools,
            prompts,
            resources,
            unlisted=self._unlisted(self._tools, skills),
            skill_source=skills if self._tools.skills.is_declared else None,
            task_source=ServerTasks(self._server, self._clock, self._uris) if has_tasks else None,
            files=files,
            left_out=left_out,
            may_list=lists.declared & {"prompts", "resources"},
        )

    def _unlisted(self, tools: _Tools, skills: ServerSkills) -> dict[str, Resource]:
        """Return readers of pages and of files of skills, which the server need not list."""
        uris = Uris(self.name, is_named=True)
        starts = {uris.start(SCHEME)} if has_pages(tools.info, tools.usable) else set()
        if tools.skills.is_declared:
            starts |= skills.starts
        part = self._config.resources
        return {start: unlisted_resource(start, self._requests, part, uris) for start in starts}

    # -- the lock file -----------------------------------------------------------------------------

    @property
    def _lock_path(self) -> Path:
        return self._origin.base_dir / self._config.lock_file

    def _read_lock(self) -> Lock | None:
        """Return the lock file; `None` if changes are taken.

        Raises:
            ConfigError: it cannot be read.
        """
        if self._config.changes == "take" or not self._shared.asks_servers:
            return None
        try:
            return Lock.read(self._lock_path)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            remedy = "run `roundgate compile`, look at what it pins, and keep the file"
            place = self._origin.at("lock" if self._config.lock else "changes")
            raise ConfigError(
                [place.problem(f"the lock file {self._lock_path}: {reason}", remedy)]
            ) from None

    def _differences(
        self, lock: Lock | None, look: _Tools
    ) -> tuple[Sequence[str], Mapping[str, Mapping[str, str]]]:
        """Return the names of definitions that differ from the lock file, and by kind the reasons
        why some are not served; log new differences."""
        differences: dict[str, dict[str, str]] = {kind: {} for kind in PINNED}
        if lock is not None:
            for kind, definitions in look.pinned.items():
                differences[kind] = lock.differences(kind, definitions)
        names = sorted({name for some in differences.values() for name in some})
        is_held = self._config.changes == "quarantine"
        if names and names != self._differing:
            fields = {"backend": self.name, "n": len(names), "names": names[:MAX_NAMED]}
            fields["are_served"] = not is_held
            log.warning("definitions of a server are not those accepted", extra={"fields": fields})
        return names, differences if is_held else {kind: {} for kind in PINNED}

    async def _require_accepted(self, name: str) -> None:
        """Compare the definition that the server has now of a tool with the lock file, before a
        call: a server could list one tool and run another.

        Raises:
            BackendError: the definition is quarantined, or the server does not list the tool.
        """
        if self._lock is None or self._config.changes != "quarantine":
            return
        async with self._comparing:
            now_ms = self._clock.monotonic_ms()
            if self._compared is None or now_ms - self._compared_ms > COMPARED_S * 1000:
                try:
                    self._compared = await self._look(self._server)
                except ClientError as error:
                    raise self._server.backend_error(error) from None
                self._compared_ms = now_ms
                if not self._compared.offers_as(self._tools):
                    self._wake()
            look = self._compared
        listed = [raw for raw in look.definitions if raw.get("name") == name]
        if not listed or self._lock.differences("tools", listed):
            raise BackendError(
                f"{self.name} has changed the definition of {name}; it is not called until an "
                "operator accepts the change with `roundgate compile`",
                reason="quarantined",
            )

    async def pin(self) -> str:
        """Write the lock file with the definitions that the server has now; return a summary.

        Raises:
            ConfigError: the server cannot be asked, or the file cannot be written.
        """
        if problems := await self._accesses.problems(self._certificates):
            raise ConfigError(problems)
        await self._ask_once()
        if self._tools is None:
            raise ConfigError([self._missing()])
        if self._tools.lists.faults:
            method, reason = next(iter(self._tools.lists.faults.items()))
            remedy = "have the server mend it: definitions that are not pinned would be quarantined"
            raise ConfigError([self._origin.problem(f"{method}: {reason}", remedy)])
        lock, path = Lock.of(self._tools.pinned), self._lock_path
        before: Lock | None = None
        with suppress(OSError, ValueError):
            before = Lock.read(path)
        try:
            lock.write(path)
        except OSError as error:
            place = self._origin.at("lock" if self._config.lock else "changes")
            remedy = "choose a file in a directory that can be written"
            problem = place.problem(f"{path} cannot be written: {error.strerror}", remedy)
            raise ConfigError([problem]) from None
        counts = ", ".join(f"{len(names)} {kind}" for kind, names in lock.digests.items())
        lines = [] if before is None else before.changes_to(lock)
        return "\n".join([*lines, f"{self.name}: {counts} pinned: {path}"])

    async def _ask_once(self) -> None:
        """Read the list through a connection of its own, which is closed afterwards."""
        server = self._make_server(_CAPABILITIES if self._held else {}, is_for_one_look=True)
        limit_s = CHECK_S if self._shared.fetches else START_S
        if self._shared.is_cold:
            limit_s = COLD_S
        try:
            async with asyncio.timeout(limit_s):
                self._tools = await self._look(server)
            self._condition = _Condition(self._tools.info)
        except TimeoutError:
            self._condition = _Condition(None, 1, f"it did not answer within {limit_s:g} s")
        except GatewayError as error:
            self._condition = _Condition(None, 1, self._reason(error))
        finally:
            await server.aclose()

    async def _look(self, server: Server) -> _Tools:
        """Read the list of a server's tools.

        Raises:
            ClientError, BackendError: the server cannot be asked, or its list is unusable.
        """
        info, listing = await server.tools()
        known = self._tools
        lists = await read_lists(
            await server.connection(), info, None if known is None else known.lists
        )
        skills = await read_skill_list(
            await server.connection(), info, SkillList() if known is None else known.skills
        )
        ttl_ms = min((ms for ms in (listing.ttl_ms, lists.ttl_ms) if ms is not None), default=None)
        if known is not None and known.definitions == listing.items:
            return _Tools(
                known.definitions, info, known.usable, known.left_out, ttl_ms, lists, skills
            )
        usable, left_out = await asyncio.to_thread(
            usable_tools, listing.items, check_arguments=self._config.check_arguments
        )
        return _Tools(listing.items, info, usable, left_out, ttl_ms, lists, skills)

    def _tool(self, tool: UsableTool, has_tasks: bool) -> Tool:
        is_older = self._is_older
        call = ToolCalls(
            self._config,
            self._calling,
            tool,
            self._limits,
            has_tasks,
            self._wake,
            self._uris,
            self._require_accepted,
            self._held if is_older else None,
        )
        schema = tool.definition["inputSchema"]
        return Tool(
            self._uris.in_meta(tool.definition),
            call,
            is_described_remotely=True,
            compiled=(schema, tool.arguments),
        )

    @property
    def _is_older(self) -> bool:
        return self._tools is not None and not self._tools.info.is_modern

    @property
    def _calling(self) -> Server:
        """The connection for calls that cannot be asked in an older server's session."""
        return self._quiet if self._is_older else self._server

    def _without_job(self) -> dict[str, str]:
        """Return the tools whose job cannot be followed, with the reason."""
        tools = {} if self._tools is None else self._tools.by_name
        return job_problems(self._config.jobs, tools) if tools else {}

    def _job(self, tool: UsableTool, tools: Mapping[str, UsableTool]) -> Tool:
        job = self._config.jobs[tool.name]
        return replace(
            self._tool(tool, has_tasks=False),
            call=JobCalls(
                *(self._config, job, self._calling, tool, tools),
                *(self._uris, self._require_accepted),
            ),
            task=job.task,
            cleans_up=job.cancel is not None,
        )

    def _missing(self) -> Problem:
        where = "command" if self._config.command else "url"
        reason = self._condition.error or "it was not asked"
        remedy = f"start it, or correct its {where}; a running gateway asks again by itself"
        return self._origin.at(where).problem(f"the server cannot be asked: {reason}", remedy)

    def _reason(self, error: GatewayError) -> str:
        if isinstance(error, ClientError):
            error = self._server.backend_error(error)
        return str(error)

    # -- while the gateway runs --------------------------------------------------------------------

    def follow(self, changed: Callable[[], None]) -> None:
        """Keep the list up to date in this event loop, until `aclose`; call `changed` whenever
        `offer` would return other tools than it did."""
        self._changed = changed
        if self._following is None:
            self._following = asyncio.create_task(self._follow())
        elif self._tools is not self._offered:
            changed()
        if self._condition.failures:
            self._wake()

    def state(self) -> ServerState:
        """Return whether the last request to the server succeeded, and the tools that it offers."""
        condition, tools = self._condition, self._tools
        info = condition.info
        return ServerState(
            self.name,
            condition.failures == 0 and tools is not None,
            None if info is None else info.protocol_version,
            None if info is None else f"{info.name} {info.version}",
            0 if tools is None else len(tools.usable),
            *self._others,
            self._other_left_out
            | ({} if tools is None else {tool.name: tool.reason for tool in tools.left_out})
            | self._without_job(),
            condition.error,
            self._differing,
        )

    async def aclose(self) -> None:
        """Stop to follow the server; end the session or the process."""
        tasks = [task for task in (self._following, self._seen.attending) if task is not None]
        self._following = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._held is not None:
            await self._held.aclose()
        await self._held_transport.close()
        await self._quiet.aclose()
        await self._listening.aclose()
        await self._server.aclose()
        await self._accesses.aclose()

    def _wake(self) -> None:
        """Look at the server soon."""
        self._seen.wake.set()

    async def _follow(self) -> None:
        while True:
            self._seen.wake.clear()
            wait_s = await self._look_again()
            await asyncio.sleep(min(wait_s, LEAST_PAUSE_S))
            try:
                async with asyncio.timeout(max(0.0, wait_s - LEAST_PAUSE_S)):
                    await self._seen.wake.wait()
            except TimeoutError:
                continue

    async def _look_again(self) -> float:
        """Look at the server; return the seconds until the next look."""
        try:
            async with asyncio.timeout(LOOK_S):
                look = await self._look(self._server)
        except TimeoutError:
            if self._config.command and self._condition.failures >= STUCK_LOOKS - 1:
                await self._server.aclose()  # the next look starts the process anew
            return self._failed(f"it did not answer within {LOOK_S:g} s")
        except GatewayError as error:
            return self._failed(self._reason(error))
        except Exception as error:
            fields = {"backend": self.name}
            log.error(
                "the tools of a server could not be read", exc_info=error, extra={"fields": fields}
            )
            return self._failed(type(error).__name__)
        self._attend()
        return self._taken(look)

    def _failed(self, reason: str) -> float:
        condition = self._condition
        condition.failures, condition.error = condition.failures + 1, reason
        if condition.failures == 1:
            fields = {"backend": self.name, "error": reason}
            log.warning("a server cannot be asked", extra={"fields": fields})
        return pause_s(condition.failures, self._clock)

    def _taken(self, look: _Tools) -> float:
        """Take the tools of a look, unless an empty list may be a mistake."""
        if self._condition.failures:
            log.info("a server answers again", extra={"fields": {"backend": self.name}})
        self._condition = _Condition(look.info)
        looks = self._seen.empty_looks
        self._seen.empty_looks = 0
        may_be_early = looks < len(EMPTY_LOOKS_S)
        if may_be_early and self._tools is not None and look.lacks_a_list_of(self._tools):
            self._seen.empty_looks = looks + 1
            return EMPTY_LOOKS_S[looks]
        if may_be_early and not look.definitions:
            self._seen.empty_looks = looks + 1
        if not look.offers_as(self._tools):
            self._tools = look
            self._tell_left_out(look)
            self._changed()
        if may_be_early and not look.definitions:
            return EMPTY_LOOKS_S[looks]
        ttl_s = (look.ttl_ms or 0) / 1000
        return min(max(ttl_s, LEAST_TTL_S), LONGEST_TTL_S) if ttl_s else self._config.refresh_s

    def _tell_left_out(self, look: _Tools) -> None:
        if look.left_out:
            shown = {tool.name: tool.reason for tool in look.left_out[:20]}
            fields = {"backend": self.name, "n": len(look.left_out), "tools": shown}
            log.warning("tools of a server are left out", extra={"fields": fields})

    def _attend(self) -> None:
        """Listen to the server's changes, if nothing does."""
        attending = self._seen.attending
        if attending is None or attending.done():
            self._seen.attending = asyncio.create_task(self._attended())

    async def _attended(self) -> None:
        try:
            await self._server.follow(self._wake)
        except GatewayError as error:
            log.debug("a server's changes are not reported", exc_info=error)

    # -- the parts of a connection -----------------------------------------------------------------

    def _make_server(self, capabilities: Json, *, is_for_one_look: bool = False) -> Server:
        """Return a connection; the session of an older server declares `capabilities`."""
        make_link = self._process if self._config.command else self._http
        return Server(
            self._config,
            partial(make_link, is_for_one_look),
            self._gate,
            self._clock,
            listens=not is_for_one_look,
            capabilities=capabilities,
        )

    def _make_held(self) -> HeldCalls:
        config = self._config
        return HeldCalls(
            config.name,
            self._asking_connection,
            lambda error: self._server.backend_error(error),
            self._clock,
            most=config.max_held_calls,
            held_s=config.held_s,
        )

    async def _asking_connection(self, capabilities: Json) -> Connection:
        """Return a session, or a process, of its own that declares these capabilities."""
        if self._config.command:
            link: Link | StdioLink = await self._process(is_for_one_look=False)
        else:
            link = self._link(self._held_transport)
        return Connection(
            link,
            info=INFO,
            capabilities={**DECLARED, **capabilities},
            versions=LEGACY,
            answers=Answers.of(None),
            clock=self._clock,
        )

    def _transport(self, limits: Limits) -> HttpxTransport:
        send = partial(authenticated, access=self._access)
        return HttpxTransport(limits, tls=self._certificates.context, send=send)

    async def _http(self, is_for_one_look: bool) -> Link:
        return self._link(self._transport(self._limits))

    def _link(self, transport: HttpxTransport) -> Link:
        return Link(
            Url.parse(str(self._config.url)),
            transport,
            info=INFO,
            capabilities=_CAPABILITIES,
            limits=self._limits,
            redact=self._redact,
        )

    async def _process(self, is_for_one_look: bool) -> StdioLink:
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
            on_line=self._lines.take,
            is_patient=not is_for_one_look,
        )

    def _secrets_of_process(self) -> frozenset[str]:
        secret = [
            value
            for name, value in self._config.env.items()
            if value.references or SECRET_NAME.search(name)
        ]
        return self._shared.secrets.known(secret)


class _Lines:
    """Logs the standard error of a process, within a rate."""

    def __init__(self, name: str, clock: Clock, redact: Callable[[bytes], bytes]) -> None:
        self._name = name
        self._clock = clock
        self._redact = redact
        self._since_ms = 0.0
        self._lines = 0

    def take(self, line: str) -> None:
        """Log a line, unless there are too many."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._since_ms > LINES_S * 1000:
            if self._lines > MAX_LINES:
                left_out = {"backend": self._name, "n": self._lines - MAX_LINES}
                log.warning("lines of a server are left out", extra={"fields": left_out})
            self._since_ms, self._lines = now_ms, 0
        self._lines += 1
        if self._lines <= MAX_LINES and line.strip():
            text = self._redact(line.encode()).decode("utf-8", "replace")[:_STDERR_CHARS]
            log.info("a server says", extra={"fields": {"backend": self._name, "line": text}})


def _limits_of(config: McpBackendConfig) -> Limits:
    timeouts = config.timeouts
    connect_s = None if timeouts is None else timeouts.connect_s
    read_s = None if timeouts is None else timeouts.read_s
    return Limits(
        connect_s=connect_s or min(config.timeout_s, 10.0),
        idle_s=read_s or config.timeout_s,
        keep_alive_s=config.keep_alive_s,
        request_s=86_400.0,  # the call's own time limit ends it earlier
        max_message=config.max_response_bytes,
        max_pages=MAX_PAGES,
        max_items=config.max_tools,
        max_connections=config.max_connections,
    )


def _no_process_on_lambda(origin: Origin) -> Problem:
    return origin.at("command").problem(
        "is a process, and AWS Lambda freezes and ends processes between two calls",
        "run the server elsewhere and give its url; mcp-proxy serves such a program over HTTP",
    )


def _nothing() -> None:
    """Do nothing."""


def pin_to_file(config: McpBackendConfig, origin: Origin) -> str:
    """Write the lock file of a server for `roundgate compile`; return a report for the user.

    Raises:
        ConfigError: the server cannot be asked, or the file cannot be written.
    """
    if config.changes == "take":
        return f"{config.name}: changes of its definitions are taken, there is nothing to pin"

    async def pin() -> str:
        backend = McpBackend(config, origin, Shared(Threads(1), Modules(), fetches=True))
        try:
            return await backend.pin()
        finally:
            await backend.aclose()

    return asyncio.run(pin())
