"""A whole gateway in the process of a test: calls go over the protocol, through
a client, to it and back.

    async with Gateway("gateway.yaml") as gateway:
        result = await gateway.call("refund", order=7, answers={"confirm": {"go": True}})
        assert result.value == "refunded"

What a deployment does to a handler happens here too: every request reaches an instance that knows
nothing of the one before, every turn of a task is another worker's. Only what they share is in
memory, and time passes when nothing else is left to do: a `ctx.sleep` of a day takes none.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final

from roundgate import config
from roundgate.auth import LOCAL, Principal
from roundgate.client import Answers, AnswersLike, CallResult, Client, Task
from roundgate.clock import Clock
from roundgate.config import ConfigFile, GatewayConfig
from roundgate.errors import ClientError, NondeterminismError, NothingGoesOn, Unauthenticated
from roundgate.main import build_app
from roundgate.replay import WATCH, Call, Run, StepWatch
from roundgate.runtime.startup import Core, build_core
from roundgate.settings import Origin, Settings, yaml_file
from roundgate.storage import Message
from roundgate.tasks.events import NotClaimed
from roundgate.tasks.stored import Claimed
from roundgate.testing.clock import VirtualClock
from roundgate.testing.crashes import Crash, Truth, Watched, noting, survive
from roundgate.testing.elsewhere import Source, findings_elsewhere, recorded
from roundgate.testing.endings import Ending
from roundgate.testing.memory import Life, Memory
from roundgate.testing.transport import AsgiTransport, ResendingTransport
from roundgate.testing.unreplayed import ending_without_replay
from roundgate.tokens import keys

ORIGIN: Final = "http://127.0.0.1"
_IDLE_TURNS: Final = 3
"""Looks at a task, in a row, at which nothing had happened and nothing was to come."""
_numbers = count()


class Gateway:
    """A gateway, and its callers. Enter it (`async with`) in the event loop in which it is used."""

    def __init__(
        self,
        *sources: Source,
        environ: Mapping[str, str] | None = None,
        scopes: Sequence[str] | None = None,
        fresh: bool = True,
        clock: VirtualClock | None = None,
        **sections: Any,
    ) -> None:
        """Nothing is loaded before it is entered.

        Args:
            sources: a gateway.yaml, or else Python files, modules and functions that are served
                under their own names; the gateway.yaml of this directory if there are none.
            environ: variables for references in gateway.yaml, beside those of the process.
            scopes: those of the caller; unless given, all that any tool needs.
            fresh: whether each request and each turn of a task is another instance's.
            clock: its time.
            sections: sections of gateway.yaml, for sources that are none: `limits={"threads": 4}`.
        """
        self._sources = sources or ("gateway.yaml",)
        self._environ = environ
        self._sections = sections
        self._scopes = scopes
        self._fresh = fresh
        self.clock = clock or VirtualClock()
        """Its time: `gateway.clock.skip(3600)` lets an hour pass."""
        self._using = Settings(worker="off", state_keys=keys.new_key(), public_url=ORIGIN)
        self._callers = _Callers()
        self._memory = Memory(self.clock)
        self._clients: list[Client] = []
        self._dead: list[tuple[Life, asyncio.Future[Any]]] = []
        self._left: list[Core] = []
        self._kept: tuple[Life, Any] | None = None
        self._working = asyncio.Lock()
        self._idle_turns = 0
        self._watch: Watched | None = None
        self._at_work = 0
        self.clock.at_work = lambda: self._at_work

    async def __aenter__(self) -> Gateway:
        self._file = configuration(self._sources, self._environ, self._sections)
        self._callers.default = self._usual_caller()
        self._client = self.client()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for client in self._clients:
            await client.close()
        for life, work in self._dead:
            life.bury()
            work.cancel()
        await asyncio.gather(*(work for _, work in self._dead), return_exceptions=True)
        for core in self._left:
            await core.serving.aclose()
        if self._kept is not None:
            await self._kept[1].state.core.serving.aclose()
        self._memory.close()

    # callers

    def client(
        self,
        subject: str | None = None,
        *,
        scopes: Sequence[str] = (),
        client_id: str = "",
        **options: Any,
    ) -> Client:
        """A client of the gateway.

        Args:
            subject: who calls; the usual caller unless given.
            scopes: what this caller may do.
            client_id: the client through which it calls.
            options: those of `roundgate.client.Client`: `answers`,
                `capabilities`, `versions` and others, without `auth` (who calls is
                `subject`), `clock` and `transport`, which are the gateway's.
        """
        auth = None if subject is None else self._callers.add(subject, scopes, client_id)
        transport = (
            AsgiTransport(self._serve)
            if self._watch is None
            else ResendingTransport(self._serve, self._watch)
        )
        made = Client(
            f"{ORIGIN}{self._file.config.http.path}",
            auth=auth,
            clock=_Paced(self),
            transport=transport,
            **options,
        )
        self._clients.append(made)
        return made

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        answers: AnswersLike = None,
        crash: Crash | None = None,
        upgrade: Source | Sequence[Source] = (),
        observe: Callable[[], Any] | None = None,
        reset: Callable[[], Any] | None = None,
        **more: Any,
    ) -> CallResult:
        """Call a tool, through its rounds and its task, if it becomes one.

        Args:
            tool: the tool's name.
            arguments: the arguments, as a mapping or as keywords.
            answers: answers to questions, as for `roundgate.client`.
            crash: `"everywhere"` runs the call again for each moment at which its process can die,
                and once with each answer lost; `("charge", "begins" | "has run" | "is remembered")`
                for the moments of one step. Every such run has to end as the call does without.
                "everywhere" also compares with a run that is never replayed, and with replays in
                other processes.
            upgrade: sources that are served instead once a process has died; also to be
                found out: at each moment.
            observe: returns what the tool has done so far, as something with a length, or as a
                number. What is done outside of a step is found by it.
            reset: called before each run, so that the world is as it was.
            more: further arguments of the tool.

        Raises:
            NondeterminismError: the handler took another path in a later run.
            Diverged: a run ended differently, or did something outside of a step.
            ClientError: the call failed; a tool that fails is a result with `is_error`.
        """
        given = {**(arguments or {}), **more}
        if crash is None and not upgrade:
            return await self._called(tool, given, answers)
        new = (
            (upgrade,)
            if callable(upgrade) or isinstance(upgrade, str | Path | ModuleType)
            else tuple(upgrade)
        )
        return await survive(
            tool, given, answers, _Others(self), crash or "everywhere", new, observe, reset
        )

    async def _called(
        self, tool: str, arguments: Mapping[str, Any], answers: AnswersLike
    ) -> CallResult:
        errors: list[NondeterminismError] = []
        token = _errors.set(errors)
        try:
            result = await self._client.call(tool, arguments, answers=answers)
        except (ClientError, NothingGoesOn):
            if errors and self._watch is None:
                raise errors[0] from None
            raise
        finally:
            _errors.reset(token)
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
        """Call a tool and return as soon as it is a task."""
        return await self._client.start(tool, {**(arguments or {}), **more}, answers=answers)

    # what goes on behind the requests

    async def work(self) -> int:
        """Let workers take a turn at every task that has something to do now;
        how many turns that were."""
        async with self._working:
            turns = 0
            stores = self._memory.stores(Life())
            while messages := await stores.queue.receive(10, 0):
                for message in messages:
                    await self._turn(message)
                    turns += 1
            return turns

    async def advance(self, seconds: float) -> None:
        """Let tasks go on: with what they have to do now, or else at the
        next moment at which one has.

        Args:
            seconds: how long somebody is ready to wait for that; as long passes where
                there is nothing to wait for.

        Raises:
            NothingGoesOn: nothing will happen however long anybody waits.
        """
        if await self.work():
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
        else:  # it is late already, and whoever sees to it has yet to come
            self.clock.skip(seconds)
        if not await self.work():
            core = build_core(self._file, self._using, self.clock, self._memory.stores(Life()))
            await core.sweep(self._file.config, self.clock).sweep()
            await core.serving.aclose()
            await self.work()

    def _stuck(self) -> str:
        rows = self._memory.connection.execute(
            "select tool, status, status_message, due_ms, created_ms, expires_ms from tasks"
            " where status not in ('completed', 'failed', 'cancelled')"
        ).fetchall()
        left = "; ".join(
            f"{tool} is {status}: {said or 'it says nothing'}{_too_late(*times)}"
            for tool, status, said, *times in rows
        )
        return f"Nothing goes on by itself any more. {left or 'There is no open task'}"

    async def _turn(self, message: Message) -> None:
        life = Life()
        core = build_core(self._file_now(), self._using, self.clock, self._memory.stores(life))
        try:
            await self._living(life, _take(core, message, self._file.config, self.clock))
        finally:
            await self._leave(life, core)

    async def _leave(self, life: Life, core: Core) -> None:
        """Let go of what an instance held. A dead one is still being used by what it left
        behind."""
        if life.died.is_set():
            self._left.append(core)
        else:
            await core.serving.aclose()

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        async with self._instance() as (life, app):
            await self._living(life, app(scope, receive, send))

    async def _living(self, life: Life, work: Any) -> None:
        """Do what an instance does, until it dies. What a dead one leaves behind
        neither goes on nor ends."""
        watch: StepWatch = _Noting() if self._watch is None else self._watch.of(life)
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

    @asynccontextmanager
    async def _instance(self) -> AsyncIterator[tuple[Life, Any]]:
        if self._kept is None or self._fresh:
            life = Life()
            app = build_app(
                self._file_now(),
                self._using,
                clock=self.clock,
                stores=self._memory.stores(life),
                verifier=self._callers,
            )
            if not self._fresh:
                self._kept = life, app
        else:
            life, app = self._kept
        try:
            yield life, app
        finally:
            if self._fresh:
                await self._leave(life, app.state.core)

    def _file_now(self) -> ConfigFile:
        return self._file if self._watch is None else self._watch.file or self._file

    async def _unreplayed(
        self, tool: str, arguments: Mapping[str, Any], call: Call, answers: Answers
    ) -> Ending:
        """Return the ending of a call whose handler runs once."""
        core = build_core(self._file, self._using, self.clock, self._memory.stores(Life()))
        try:
            with core.serving.use() as catalog:
                served = catalog.tool(tool)
                texts = core.texts(self._file.config, self.clock, "")
                here = replace(call, texts=texts, read=catalog.read_resource)
                return await ending_without_replay(served, arguments, here, answers, self.clock)
        finally:
            await core.serving.aclose()

    def _usual_caller(self) -> Principal:
        auth = self._file.config.auth
        if auth == "none":
            return LOCAL
        if self._scopes is not None:
            return Principal(_ISSUER, "user", "client", frozenset(self._scopes))
        core = build_core(self._file, self._using, self.clock, self._memory.stores(Life()))
        needed = {scope for one in core.serving.catalog.tools.values() for scope in one.tool.scopes}
        return Principal(_ISSUER, "user", "client", frozenset({*needed, *auth.scopes}))


_ISSUER: Final = "https://issuer.test"
_errors: Final[ContextVar[list[NondeterminismError] | None]] = ContextVar("errors", default=None)
"""Receives the divergences of the current call's handler."""


class _Noting:
    """A `StepWatch` that records divergences of the current call's handler."""

    async def begins(self, key: str, what: str | None) -> None:
        """Do nothing: every step may begin."""

    async def has_run(self, key: str) -> None:
        """Do nothing."""

    async def is_remembered(self, key: str) -> None:
        """Do nothing."""

    def run_ended(self, run: Run) -> None:
        noted = _errors.get()
        if noted is not None and isinstance(run.error, NondeterminismError):
            noted.append(run.error)


class _Others:
    """The calls that a gateway's calls are compared with (an `Another`)."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def gateway(self, watch: Watched, upgrade: Sequence[Source]) -> Gateway:
        """See `Another`."""
        of = self._gateway
        made = Gateway(
            *of._sources,
            environ=of._environ,
            scopes=of._scopes,
            clock=VirtualClock(of.clock.now_ms()),
            **of._sections,
        )
        made._watch = watch
        watch.upgrade = configuration(upgrade, of._environ, of._sections) if upgrade else None
        return made

    async def truth(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        answers: AnswersLike,
        watched: Watched,
        reset: Callable[[], Any] | None,
    ) -> Truth | None:
        """See `Another`."""
        if watched.last_run is None:  # a tool without a handler
            return None
        if reset is not None and inspect.isawaitable(done := reset()):
            await done
        seen, asked = Watched(None), dict[str, list[str]]()
        token = WATCH.set(seen.of(Life()))
        try:
            async with self.gateway(seen, ()) as other:
                given = Answers.of(noting(answers, asked))
                ending = await other._unreplayed(tool, arguments, watched.last_run.call, given)
        finally:
            WATCH.reset(token)
        return None if ending.how in ("raised", "went on") else Truth(ending, seen, {*asked})

    async def elsewhere(
        self, tool: str, arguments: Mapping[str, Any], watched: Watched, expected: Ending
    ) -> list[str]:
        """See `Another`."""
        run, of = watched.last_run, self._gateway
        if run is None or run.decides_by_state or run.journal.generation > 1:
            return []
        facts = recorded(of._sources, of._environ, of._sections, tool, arguments, run)
        return [] if facts is None else await findings_elsewhere(facts, expected)


class _Callers:
    """Finds out who is calling, by the name in the place of a token."""

    def __init__(self) -> None:
        self.default = LOCAL
        self._known: dict[str, Principal] = {}

    def add(self, subject: str, scopes: Sequence[str], client_id: str) -> str:
        """Know a caller; returns its token."""
        token = f"{subject}-{len(self._known)}"
        self._known[token] = replace(
            self.default, subject=subject, client_id=client_id, scopes=frozenset(scopes)
        )
        return token

    async def principal(
        self, authorization: bytes | None, claims: Mapping[str, Any] | None = None
    ) -> Principal:
        """See `Verifier`."""
        if authorization is None:
            return self.default
        found = self._known.get(authorization.decode("latin-1").removeprefix("Bearer "))
        if found is None:
            raise Unauthenticated("invalid_token", "The gateway of this test has no such caller")
        return found


class _Paced(Clock):
    """The gateway's time, as its clients see it: while one of them waits, tasks go on."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def now_ms(self) -> int:
        return self._gateway.clock.now_ms()

    def monotonic_ms(self) -> float:
        return self._gateway.clock.monotonic_ms()

    async def sleep(self, seconds: float) -> None:
        await self._gateway.advance(seconds)


def _too_late(due_ms: int | None, created_ms: int, expires_ms: int) -> str:
    """What is wrong with a task that would go on when it is no more; nothing if it would not."""
    if due_ms is None or due_ms < expires_ms:
        return ""
    due_s, ttl_s = (due_ms - created_ms) // 1000, (expires_ms - created_ms) // 1000
    return (
        f"; it sleeps until {due_s} s after its creation, and is forgotten after {ttl_s} s:"
        " raise tasks.ttl_s in gateway.yaml, and tasks.task_timeout_s, or sleep for less"
    )


async def _take(core: Core, message: Message, file: GatewayConfig, clock: Clock) -> None:
    """What a worker does with a message."""
    worker = core.worker(file, clock)
    claimed = await worker.claim(message.ref)
    await core.stores.queue.delete([message])
    if claimed is NotClaimed.SUSPECT:
        await worker.work(message.ref, alone=True)
    elif isinstance(claimed, Claimed):
        await worker.run(claimed)


def configuration(
    sources: Sequence[Source], environ: Mapping[str, str] | None, sections: Mapping[str, Any]
) -> ConfigFile:
    """What a test names, as a configuration.

    Raises:
        ConfigError: something is wrong with a gateway.yaml.
        TypeError: sources do not go together.
    """
    first = sources[0]
    if isinstance(first, str | Path) and Path(first).suffix != ".py":
        if len(sources) > 1 or sections:
            raise TypeError("a gateway.yaml stands alone: put tools and sections into it")
        return config.load(Path(first), {**os.environ, **(environ or {})})
    functions: list[Callable[..., Any]] = []
    backends: list[dict[str, Any]] = []
    for source in sources:
        if isinstance(source, ModuleType):
            backends.append({"module": source.__name__})
        elif isinstance(source, str | Path):
            backends.append({"path": str(Path(source).resolve())})
        else:
            functions.append(source)
    if functions:
        backends.append({"module": _module_of(functions)})
    named = [
        {"kind": "python", "name": f"python{number or ''}", "prefix": "", **one}
        for number, one in enumerate(backends)
    ]
    made = GatewayConfig.model_validate({"backends": named, **sections})
    return ConfigFile(made, Origin(yaml_file.Located(Path("gateway.yaml"), {}, {})))


def _module_of(functions: Sequence[Callable[..., Any]]) -> str:
    module = ModuleType(f"roundgate_functions_of_a_test_{next(_numbers)}")
    for function in functions:
        setattr(module, getattr(function, "__name__", f"function_{next(_numbers)}"), function)
    sys.modules[module.__name__] = module
    return module.__name__
