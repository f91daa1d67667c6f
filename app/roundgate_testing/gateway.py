"""A whole gateway in the test's process, called by a client over the protocol.

    async with Gateway("gateway.yaml") as gateway:
        result = await gateway.call("refund", order=7, answers={"confirm": {"go": True}})
        assert result.value == "refunded"

As in a deployment, each request reaches a new instance, and each turn of a task runs on another
worker. Instances share only a database in memory. The clock advances when all code waits, so a
`ctx.sleep` of a day takes no time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from msgspec.structs import replace

from roundgate.auth import LOCAL, Principal
from roundgate.client import AnswersLike, CallResult, Client, HttpRequest, Task
from roundgate.client.transport import Url
from roundgate.clock import Clock
from roundgate.config import ConfigFile, GatewayConfig
from roundgate.errors import (
    ClientError,
    HistoriesDiverged,
    NondeterminismError,
    NothingGoesOn,
    Unauthenticated,
)
from roundgate.json import encode
from roundgate.replay import WATCH, Run, StepWatch
from roundgate.runtime.startup import Core, build_core
from roundgate.storage import Message, TaskRef
from roundgate.tasks.events import NotClaimed
from roundgate.tasks.external import EVENTS_PATH
from roundgate.tasks.stored import Claimed
from roundgate.tokens import EventPlace
from roundgate_testing.contexts import find_payload
from roundgate_testing.crashes import Crash, CrashTest, Steps, Watched
from roundgate_testing.histories import Given, Replayed, read_histories, replay
from roundgate_testing.instances import (
    ORIGIN,
    InstanceLife,
    Loads,
    Memory,
    Setup,
    Source,
    VirtualClock,
)
from roundgate_testing.replays import serving
from roundgate_testing.transport import AsgiTransport

_IDLE_TURNS: Final = 3
"""The maximum number of consecutive calls of `advance` that find no work and no future event."""
_ISSUER: Final = "https://issuer.test"
_errors: Final[ContextVar[list[NondeterminismError] | None]] = ContextVar("errors", default=None)
"""The list that receives the nondeterminism errors of the current call's handler."""


class Gateway:
    """A gateway and its callers. Enter it (`async with`) in the event loop that uses it."""

    def __init__(
        self,
        *sources: Source,
        environ: Mapping[str, str] | None = None,
        scopes: Sequence[str] | None = None,
        claims: Mapping[str, Any] = MappingProxyType({}),
        fresh: bool = True,
        clock: VirtualClock | None = None,
        **sections: Any,
    ) -> None:
        """Prepare a gateway; entering it loads the sources.

        Args:
            sources: a gateway.yaml, or Python files, modules and functions to serve under their own
                names; by default the gateway.yaml of the working directory.
            environ: variables for references in gateway.yaml, in addition to the process's
                variables.
            scopes: the default caller's scopes; by default all scopes that the tools and `auth`
                need.
            claims: the claims of the default caller's token.
            fresh: whether each request runs on a new instance. Each turn of a task always runs on
                one.
            clock: the clock; by default a new `VirtualClock`.
            sections: sections of gateway.yaml, such as `limits={"threads": 4}`; only without a
                gateway.yaml among the sources.
        """
        self._setup = Setup(sources or ("gateway.yaml",), environ or {}, sections)
        self._scopes = scopes
        self._claims = claims
        self._fresh = fresh
        self.clock = clock or VirtualClock()
        """The clock of all instances and clients: `gateway.clock.skip(3600)` lets an hour pass."""
        self._callers = _Callers()
        self._memory = Memory(self.clock)
        self._clients: list[Client] = []
        self._dead: list[tuple[InstanceLife, asyncio.Future[Any]]] = []
        self._loads = Loads()
        self._is_again = False
        """Whether this gateway repeats a call of another one, which owns `_file` and `_loads`."""
        self._kept: tuple[InstanceLife, Any, ConfigFile] | None = None
        self._events: dict[str, Any] = {}
        """The payloads for events of the current calls, by event name."""
        self._working = asyncio.Lock()
        self._idle_turns = 0
        self._watch: Watched | None = None
        self._at_work = 0
        self.clock.at_work = lambda: self._at_work

    async def __aenter__(self) -> Gateway:
        if not self._is_again:
            self._file = self._setup.load()
        self._callers.default = self._usual_caller()
        self._client = self.client()
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients:
            await client.close()
        for life, work in self._dead:
            life.bury()
            work.cancel()
        await asyncio.gather(*(work for _, work in self._dead), return_exceptions=True)
        if not self._is_again:
            await self._loads.aclose()
        self._memory.close()

    # callers

    def client(
        self,
        subject: str | None = None,
        *,
        scopes: Sequence[str] = (),
        client_id: str = "",
        claims: Mapping[str, Any] = MappingProxyType({}),
        **options: Any,
    ) -> Client:
        """Return a client of the gateway.

        Args:
            subject: the caller's subject; `None` for the default caller, for which `scopes`,
                `client_id` and `claims` are ignored.
            scopes: the caller's scopes.
            client_id: the caller's client id.
            claims: the claims of the caller's token.
            options: options of `roundgate.client.Client`, except `auth`, `clock` and `transport`.
        """
        auth = None if subject is None else self._callers.add(subject, scopes, client_id, claims)
        client = Client(
            f"{ORIGIN}{self._file.config.http.path}",
            auth=auth,
            clock=_Paced(self),
            transport=AsgiTransport(self._serve, self._watch),
            **options,
        )
        self._clients.append(client)
        return client

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        answers: AnswersLike = None,
        events: Mapping[str, Any] = MappingProxyType({}),
        crash: Crash | None = None,
        upgrade: Source | Sequence[Source] = (),
        observe: Callable[[], Any] | None = None,
        reset: Callable[[], Any] | None = None,
        **more: Any,
    ) -> CallResult:
        """Call a tool and return its result, after all rounds and the task if the call becomes one.

        Args:
            tool: the tool's name.
            arguments: the arguments, as a mapping or as keywords.
            answers: answers to questions, as for `roundgate.client`.
            events: the payloads of external events by name. Each payload is posted to its URL once
                the task awaits the event; other events are not delivered.
            crash: `"everywhere"` repeats the call once per crash point and lost answer, and
                compares each run with a run without replay and with replays in other processes.
                `("charge", "begins" | "has run" | "is remembered")` is one crash point of a step.
            upgrade: the sources to serve after the process has died, at each crash point.
            observe: returns the tool's effects so far, as a collection or a number; used to find
                effects outside of steps.
            reset: undoes the tool's effects; called before each run.
            more: further arguments of the tool.

        Raises:
            NondeterminismError: the handler took another path in a later run.
            Diverged: a run ended differently, or had effects outside of steps.
            ClientError: the call failed. The failure of a tool is a result with `is_error` instead.
            NothingGoesOn: no event will ever continue the call's task.
        """
        all_arguments = {**(arguments or {}), **more}
        if crash is None and not upgrade:
            return await self._called(tool, all_arguments, answers, events)
        newer = (
            [upgrade] if isinstance(upgrade, str) or not isinstance(upgrade, Sequence) else upgrade
        )

        async def play(watched: Watched, answers: AnswersLike) -> CallResult:
            setup = self._setup
            other = Gateway(
                *setup.sources,
                environ=setup.environ,
                scopes=self._scopes,
                claims=self._claims,
                fresh=not watched.may_die,  # an instance that does not die serves on
                clock=VirtualClock(self.clock.now_ms()),
                **setup.sections,
            )
            other._watch = watched
            other._file, other._loads, other._is_again = self._file, self._loads, True
            async with other:
                try:
                    return await other.call(tool, all_arguments, answers=answers, events=events)
                finally:
                    watched.look("its end")

        test = CrashTest(
            self._setup,
            self._file,
            self._loads,
            self.clock.now_ms(),
            tool,
            all_arguments,
            answers,
            events,
            play,
            crash or "everywhere",
            replace(self._setup, sources=newer).load() if newer else None,
            observe,
            reset,
        )
        return await test.survive()

    async def _called(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        answers: AnswersLike,
        events: Mapping[str, Any],
    ) -> CallResult:
        errors: list[NondeterminismError] = []
        token = _errors.set(errors)
        self._events |= events
        try:
            result = await self._client.call(tool, arguments, answers=answers)
        except (ClientError, NothingGoesOn):
            # A crash test collects these errors itself.
            if errors and self._watch is None:
                raise errors[0] from None
            raise
        finally:
            _errors.reset(token)
            self._events = {
                name: payload for name, payload in self._events.items() if name not in events
            }
        if errors and self._watch is None:
            raise errors[0]
        return result

    async def start(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        answers: AnswersLike = None,
        **more: Any,
    ) -> Task:
        """Call a tool and return as soon as the call is a task."""
        return await self._client.start(tool, {**(arguments or {}), **more}, answers=answers)

    async def deliver(self, event: str, payload: Any = None, *, task: str | None = None) -> int:
        """Post a payload to the URL of an external event; return the HTTP status of the response.

        Args:
            event: the name of the event, with or without its branch.
            payload: a JSON value.
            task: the id of the task; optional if only one task has the event.

        Raises:
            LookupError: no task or more than one task has the event.
        """
        open_events = [
            (ref, mark)
            for ref, marks in self._memory.marks().items()
            for mark in marks
            if task in (None, ref.id) and find_payload({event: payload}, mark.name) is not None
        ]
        if len(open_events) != 1:
            raise LookupError(
                f"{len(open_events)} tasks have an event {event!r}: choose one with task="
            )
        ((ref, mark),) = open_events
        return await self._post(ref, mark.name, payload)

    async def _post(self, ref: TaskRef, name: str, payload: Any) -> int:
        core = self._core(self._file, InstanceLife())
        token = core.event_tokens().seal(EventPlace(ref.owner, ref.id, name))
        headers = [("Content-Type", "application/json")]
        url = Url.parse(f"{ORIGIN}{EVENTS_PATH}{token}")
        request = HttpRequest("POST", url, headers, encode(payload))
        response = await AsgiTransport(self._serve, None).send(request)
        if self._watch is not None and self._watch.reaches(f"event {name}", "is answered"):
            response = await AsgiTransport(self._serve, None).send(request)
        return response.status

    async def _deliver_awaited(self) -> bool:
        """Deliver the awaited events for which calls have payloads; return whether there were
        any."""
        awaited = [
            (ref, mark.name, payload[0])
            for ref, marks in self._memory.marks().items()
            for mark in marks
            if mark.is_awaited and (payload := find_payload(self._events, mark.name)) is not None
        ]
        for ref, name, payload in awaited:
            await self._post(ref, name, payload)
        return bool(awaited)

    async def replay(
        self,
        file: str | Path,
        *,
        arguments: Mapping[str, Any] | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> list[Replayed]:
        """Replay the recorded histories of a file (`roundgate tasks export`) without running steps.
        Return the result for each history.

        Args:
            file: the histories, one per line.
            arguments: the arguments for histories without values.
            values: for histories without values, results of steps and contents of answers, by place
                or name. Also results for new steps, by place.

        Raises:
            HistoriesDiverged: a handler departs from a history; the message shows the place.
            ValueError: a line of the file is not a history.
        """
        supplied = Given(self._callers.default, arguments or {}, values or {})
        async with serving(self._file, self.clock, self._loads) as core:
            with core.serving.use() as catalog:
                replayed = [
                    await replay(history, catalog, supplied) for history in read_histories(file)
                ]
        if findings := [
            history_result.departure
            for history_result in replayed
            if history_result.departure is not None
        ]:
            raise HistoriesDiverged(findings, len(replayed))
        return replayed

    # tasks and instances

    async def work(self) -> int:
        """Run the task of each message in the queue, and return the number of turns."""
        async with self._working:
            turns = 0
            stores = self._memory.stores(InstanceLife())
            while messages := await stores.queue.receive(10, 0):
                for message in messages:
                    await self._turn(message)
                    turns += 1
            return turns

    async def advance(self, seconds: float) -> None:
        """Run the tasks that are due. If no task is due, advance the clock to the next event and
        run the tasks of that time.

        Args:
            seconds: the step of the clock if the next event is unknown or overdue.

        Raises:
            NothingGoesOn: several calls in a row found no event.
        """
        if await self.work() or await self._deliver_awaited():
            self._idle_turns = 0
            return
        next_ms = self._memory.next_ms()
        if next_ms is None:
            self._idle_turns += 1
            if self._idle_turns > _IDLE_TURNS:
                raise NothingGoesOn(self._stuck())
            self.clock.skip(seconds)
            await asyncio.sleep(0)
            return
        self._idle_turns = 0
        if next_ms > self.clock.now_ms():
            self.clock.move_to(next_ms)
        else:  # overdue, and not in the queue yet: let time pass until the sweep finds it
            self.clock.skip(seconds)
        if not await self.work():
            core = self._core(self._file, InstanceLife())
            await core.sweep(self._file.config, self.clock).sweep()
            await self.work()

    def _stuck(self) -> str:
        rows = self._memory.connection.execute(
            "select tool, status, status_message from tasks"
            " where status not in ('completed', 'failed', 'cancelled')"
        ).fetchall()
        open_tasks = "; ".join(
            f"{tool} is {status}: {message or 'no status message'}"
            for tool, status, message in rows
        )
        return f"No event will continue the tasks. {open_tasks or 'There is no open task'}"

    async def _turn(self, message: Message) -> None:
        life = InstanceLife()
        core = self._core(self._file_now(), life)
        await self._living(life, _take(core, message, self._file.config, self.clock))

    def _core(self, file: ConfigFile, life: InstanceLife) -> Core:
        stores, loaded = self._memory.stores(life), self._loads.of(file)
        return build_core(file, self._loads.using, self.clock, stores, loaded=loaded)

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        life, app = self._instance()
        await self._living(life, app(scope, receive, send))

    async def _living(self, life: InstanceLife, work: Any) -> None:
        """Run the work of an instance until it ends or the instance dies. The work of a dead
        instance stays pending until the end of the test."""
        watch: StepWatch = _Noting() if self._watch is None else Steps(self._watch, life)
        token = WATCH.set(watch)
        try:
            working = asyncio.ensure_future(work)
        finally:
            WATCH.reset(token)
        dying = asyncio.ensure_future(life.died.wait())
        self._at_work += 1
        try:
            await asyncio.wait([working, dying], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            working.cancel()
            await asyncio.wait([working])
            raise
        finally:
            self._at_work -= 1
            dying.cancel()
        if life.died.is_set():
            self._dead.append((life, working))
        else:
            await working

    def _instance(self) -> tuple[InstanceLife, Any]:
        file = self._file_now()
        if self._kept is not None and not self._fresh:
            life, app, served = self._kept
            if served is file and not life.died.is_set():
                return life, app
        life = InstanceLife()
        from roundgate.main import build_app  # a replay in another process loads no FastAPI

        app = build_app(
            file,
            self._loads.using,
            clock=self.clock,
            stores=self._memory.stores(life),
            verifier=self._callers,
            loaded=self._loads.of(file),
        )
        self._kept = life, app, file
        return life, app

    def _file_now(self) -> ConfigFile:
        return self._file if self._watch is None else self._watch.file or self._file

    def _usual_caller(self) -> Principal:
        auth = self._file.config.auth
        if auth == "none":
            return LOCAL
        scopes = self._scopes
        if scopes is None:
            tools = self._core(self._file, InstanceLife()).serving.catalog.tools.values()
            scopes = [*auth.scopes, *(scope for served in tools for scope in served.tool.scopes)]
        return Principal(_ISSUER, "user", "client", frozenset(scopes), claims=self._claims)


class _Noting(StepWatch):
    """A watch that records the nondeterminism errors of the current call's handler."""

    def run_ended(self, run: Run) -> None:
        errors = _errors.get()
        if errors is not None and isinstance(run.error, NondeterminismError):
            errors.append(run.error)


class _Callers:
    """A verifier that accepts the tokens of known callers. A request without a token comes from the
    default caller."""

    def __init__(self) -> None:
        self.default = LOCAL
        self._known: dict[str, Principal] = {}

    def add(
        self, subject: str, scopes: Sequence[str], client_id: str, claims: Mapping[str, Any]
    ) -> str:
        """Add a caller and return its token."""
        token = f"{subject}-{len(self._known)}"
        issuer = self.default.issuer
        self._known[token] = Principal(issuer, subject, client_id, frozenset(scopes), claims=claims)
        return token

    async def principal(
        self, authorization: bytes | None, claims: Mapping[str, Any] | None = None
    ) -> Principal:
        if authorization is None:
            return self.default
        caller = self._known.get(authorization.decode("latin-1").removeprefix("Bearer "))
        if caller is None:
            raise Unauthenticated(
                "invalid_token", "This token belongs to no caller of the test's gateway"
            )
        return caller


class _Paced(Clock):
    """The gateway's clock for its clients. While a client sleeps, tasks run."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def now_ms(self) -> int:
        return self._gateway.clock.now_ms()

    def monotonic_ms(self) -> float:
        return self._gateway.clock.monotonic_ms()

    async def sleep(self, seconds: float) -> None:
        await self._gateway.advance(seconds)


async def _take(core: Core, message: Message, file: GatewayConfig, clock: Clock) -> None:
    """Claim and run the task of a message, as a worker does."""
    worker = core.worker(file, clock)
    claimed = await worker.claim(message.ref)
    await core.stores.queue.delete([message])
    if claimed is NotClaimed.SUSPECT:
        await worker.work(message.ref, alone=True)
    elif isinstance(claimed, Claimed):
        await worker.run(claimed)
