"""The client: one server, its credentials, its revision, and everything that can be asked of it.

async with Client("https://host/mcp", auth=Bearer(token)) as client:
    result = await client.call("refund", order=7, answers={"confirm": {"go": True}})
    print(result.value)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urldefrag

from roundgate.client.answers import Answers, AnswersLike
from roundgate.client.auth import Auth
from roundgate.client.cache import Cache
from roundgate.client.connection import CallOptions, Connection, listener_of
from roundgate.client.flows import VERSIONS, Finished, call, every_page, follow
from roundgate.client.limits import Limits
from roundgate.client.link import NO_LISTENER, Link, Listener
from roundgate.client.listening import Subscription
from roundgate.client.older import (
    call_as_older_task,
    follow_older,
    has_older_tasks,
    wants_older_task,
)
from roundgate.client.reading import Observer
from roundgate.client.requests import of_arguments
from roundgate.client.task import Task, split_handle
from roundgate.client.tool_list import ToolList
from roundgate.client.transport import HttpxTransport, Transport, Url
from roundgate.client.types import (
    CallResult,
    Completion,
    Json,
    Log,
    Progress,
    Prompt,
    PromptResult,
    ReadResult,
    Resource,
    ServerInfo,
    TaskState,
    Tool,
)
from roundgate.clock import Clock
from roundgate.errors import RpcError, TimedOut, WrongHandle

if TYPE_CHECKING:
    import ssl

    import httpx

T = TypeVar("T")

TASKS: Final = "io.modelcontextprotocol/tasks"
CAPABILITIES: Final[Mapping[str, Any]] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {},
    "roots": {},
    "extensions": {TASKS: {}},
}
"""What a client declares unless it is told otherwise: it can pass on every kind of
question, and follow tasks."""
_HEADER_MISMATCH: Final = -32020
_READS: Final = frozenset(
    {
        "server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read",
        "prompts/get", "completion/complete", "tasks/get", "tasks/update", "tasks/cancel", "ping", "logging/setLevel",
        "resources/subscribe", "resources/unsubscribe",
    }
)  # fmt: skip


class Client:
    """A client of one server. Nothing is sent before something is asked of it.

    `auth` is one of `roundgate.client.auth`, or a bearer token as text. `answers` are asked after
    those of each call. `versions` are the revisions that it may speak, newest first. `http` is an
    `httpx.AsyncClient` to send through instead of one of its own. `observer` sees every message.
    One client may be used by many tasks at once.
    """

    def __init__(
        self,
        url: str,
        *,
        auth: Auth | str | None = None,
        answers: AnswersLike = None,
        headers: Mapping[str, str] | None = None,
        info: Mapping[str, Any] | None = None,
        capabilities: Mapping[str, Any] | None = None,
        versions: Sequence[str] = VERSIONS,
        limits: Limits = Limits(),  # noqa: B008 — frozen
        tls: ssl.SSLContext | None = None,
        http: httpx.AsyncClient | None = None,
        transport: Transport | None = None,
        observer: Observer | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.url = urldefrag(url).url
        """The server's endpoint."""
        self.limits = limits
        self._clock = clock or Clock()
        own_info = dict(info or {"name": "roundgate", "version": _version()})
        declared = dict(CAPABILITIES if capabilities is None else capabilities)
        self._link = Link(
            Url.parse(self.url),
            transport or HttpxTransport(limits, tls=tls, http=http),
            info=own_info,
            capabilities=declared,
            limits=limits,
            auth=_auth(auth),
            headers=tuple((headers or {}).items()),
            observer=observer,
        )
        self._connection = Connection(
            self._link,
            Cache(self._clock, limits.max_cached),
            info=own_info,
            capabilities=declared,
            versions=tuple(versions),
            answers=Answers.of(answers),
            clock=self._clock,
        )
        self._tools = ToolList(self._connection)
        self._log_level: tuple[ServerInfo, str] | None = None

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection; an older server is told that the session is over."""
        try:
            await self._link.end_session()
        finally:
            await self._link.transport.close()

    @property
    def server(self) -> ServerInfo | None:
        """What the server said of itself, once it was asked; `connect` asks."""
        return self._connection.server

    @property
    def rejected(self) -> Mapping[str, str]:
        """Tools that the server lists and that must not be used, with the reason."""
        return self._tools.rejected

    # -- the server --------------------------------------------------------------------------------

    async def connect(self) -> ServerInfo:
        """Find out which revision to speak, if that is not known yet, and what the
        server says of itself."""
        return await self._connection.connect()

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> Json:
        """Send any request and return its result as it came."""
        may_repeat = method in _READS
        return await self._connection.send(method, dict(params or {}), may_repeat, NO_LISTENER)

    async def ping(self) -> float:
        """How long a round trip takes, in milliseconds. Where a revision has no `ping`, the
        server describes itself."""
        server = await self.connect()
        begun = self._clock.monotonic_ms()
        method = "server/discover" if server.is_modern else "ping"
        await self._link.request(method, {}, may_repeat=True)
        return self._clock.monotonic_ms() - begun

    # -- lists -------------------------------------------------------------------------------------

    async def tools(self) -> list[Tool]:
        """The tools that may be called, page after page. What breaks the rules is in
        `rejected`, and logged."""
        return await self._tools.read()

    async def tool(self, name: str) -> Tool:
        """One tool by its name.

        Raises:
            ClientError: there is none, with the names that come close.
        """
        return await self._tools.find(name)

    async def prompts(self) -> list[Prompt]:
        """The prompts, page after page."""
        return [Prompt.read(raw) for raw in await self._list("prompts/list", "prompts")]

    async def resources(self) -> list[Resource]:
        """The resources, page after page."""
        return [Resource.read(raw) for raw in await self._list("resources/list", "resources")]

    async def resource_templates(self) -> list[Resource]:
        """The templates of resources, page after page."""
        listed = await self._list("resources/templates/list", "resourceTemplates")
        return [Resource.read(raw, is_template=True) for raw in listed]

    async def _list(self, method: str, name: str) -> list[Json]:
        await self.connect()
        return await self._connection.drive(every_page(method, name, self.limits))

    # -- calls -------------------------------------------------------------------------------------

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        answers: AnswersLike = None,
        max_rounds: int | None = None,
        timeout_s: float | None = None,
        on_progress: Callable[[Progress], Any] | None = None,
        on_log: Callable[[Log], Any] | None = None,
        log_level: str = "info",
        on_task: Callable[[TaskState], Any] | None = None,
        request_state: str | None = None,
        input_responses: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> CallResult:
        """Call a tool, through its rounds, and through its task if it becomes one; arguments
        as keywords or a mapping.

        `timeout_s` bounds the whole call, the time in which people think included. With
        `request_state` (of `Unanswered`, say) and `input_responses` a call goes on that another
        process began. Cancelling the call closes its stream; a task that it has become goes on.

        Raises:
            ClientError: see `roundgate.errors`. A tool that fails is a result with `is_error`.
        """
        options = CallOptions(
            answers, max_rounds, timeout_s, on_progress, on_log, log_level, on_task
        )
        continued = _continued(request_state, input_responses)
        finished = await self._call(
            tool, {**(arguments or {}), **more}, options, continued, detach=False
        )
        return CallResult.read(finished.result, finished.rounds)

    async def start(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        answers: AnswersLike = None,
        max_rounds: int | None = None,
        timeout_s: float | None = None,
        on_progress: Callable[[Progress], Any] | None = None,
        on_log: Callable[[Log], Any] | None = None,
        log_level: str = "info",
        **more: Any,
    ) -> Task:
        """Call a tool and return as soon as it is a task; its questions before that
        are answered from `answers`.

        If the server answers without a task, the one that is returned is over already.
        """
        options = CallOptions(answers, max_rounds, timeout_s, on_progress, on_log, log_level, None)
        finished = await self._call(tool, {**(arguments or {}), **more}, options, {}, detach=True)
        if finished.task is not None:
            return Task(self, finished.task, target=tool)
        return Task(
            self, None, result=CallResult.read(finished.result, finished.rounds), target=tool
        )

    def resume(self, handle: str) -> Task:
        """A task that was started before, by its handle or its id.

        Raises:
            WrongHandle: it belongs to another server.
        """
        if "#task=" not in handle:
            return Task(self, None, task_id=handle)
        url, task_id = split_handle(handle)
        if str(Url.parse(url)) != str(Url.parse(self.url)):
            raise WrongHandle(
                f"The task belongs to {Url.parse(url)}, and this client talks to "
                f"{Url.parse(self.url)}"
            )
        return Task(self, None, task_id=task_id)

    async def prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, *, answers: AnswersLike = None
    ) -> PromptResult:
        """Fill in a prompt, through its rounds."""
        finished = await self._round_trips(
            "prompts/get", {"name": name, "arguments": dict(arguments or {})}, name, answers
        )
        return PromptResult.read(finished.result, finished.rounds)

    async def read(self, uri: str, *, answers: AnswersLike = None) -> ReadResult:
        """Read a resource, through its rounds."""
        finished = await self._round_trips("resources/read", {"uri": uri}, uri, answers)
        return ReadResult.read(finished.result, finished.rounds)

    async def complete(
        self,
        ref: Mapping[str, str],
        argument: str,
        value: str,
        context: Mapping[str, str] | None = None,
    ) -> Completion:
        """What an argument of a prompt or template may be; `ref` is `{"type": "ref/prompt",
        "name": …}` or the like."""
        params: Json = {"ref": dict(ref), "argument": {"name": argument, "value": value}}
        if context:
            params["context"] = {"arguments": dict(context)}
        return Completion.read(await self.request("completion/complete", params))

    def listen(
        self,
        *,
        tools: bool = False,
        prompts: bool = False,
        resources: bool = False,
        uris: Sequence[str] = (),
        tasks: Sequence[str] = (),
    ) -> Subscription:
        """What changes at the server, as it changes: `async with
        client.listen(tools=True) as changes`."""
        wanted: Json = {}
        wanted |= {"toolsListChanged": True} if tools else {}
        wanted |= {"promptsListChanged": True} if prompts else {}
        wanted |= {"resourcesListChanged": True} if resources else {}
        wanted |= {"resourceSubscriptions": list(uris)} if uris else {}
        wanted |= {"taskIds": list(tasks)} if tasks else {}
        return Subscription(self, self._link, self._connection.cache, wanted)

    # -- how it is done ----------------------------------------------------------------------------

    async def _call(
        self,
        name: str,
        arguments: Json,
        options: CallOptions,
        continued: Json,
        *,
        detach: bool,
    ) -> Finished:
        server = await self.connect()
        if server.is_modern or has_older_tasks(server):
            # The headers of a call follow from the schema of its tool, and whether it has to be a
            # task.
            await self._tools.read_once()
        if options.on_log is not None and not server.is_modern:
            await self._set_log_level(server, options.log_level)
        params: Json = {"name": name, "arguments": arguments, **continued}
        for attempt in (1, 2):
            tool = self._tools.known(name)
            headers = [] if tool is None or not server.is_modern else of_arguments(tool, arguments)
            as_older_task = has_older_tasks(server) and wants_older_task(tool, detach=detach)
            if as_older_task:
                flow = call_as_older_task(params, self.limits, detach=detach)
            else:
                flow = call(
                    "tools/call", params, name, self.limits,
                    may_repeat=tool is not None and tool.may_be_repeated, max_rounds=options.max_rounds, detach=detach,
                )  # fmt: skip
            try:
                listener = self._listener(options, name, headers)
                work = self._connection.drive(flow, listener, options.answers, options.on_task)
                work = self._link.through(work, listener) if as_older_task else work
                return await self._in_time(work, options.timeout_s, name)
            except RpcError as error:
                # Its schema may have changed since it was listed (streamable-http, "Client
                # Behavior").
                if error.code != _HEADER_MISMATCH or attempt == 2:
                    raise
            await self._tools.read_again()
        raise AssertionError("the second attempt returns or raises")

    async def _set_log_level(self, server: ServerInfo, level: str) -> None:
        """An older server is told once, for the whole session, from which level on it may log."""
        if "logging" in server.capabilities and self._log_level != (server, level):
            await self._connection.send("logging/setLevel", {"level": level}, True, NO_LISTENER)
            self._log_level = server, level

    async def _round_trips(
        self, method: str, params: Json, target: str, answers: AnswersLike
    ) -> Finished:
        await self.connect()
        flow = call(method, params, target, self.limits, may_repeat=True)
        listener = self._listener(CallOptions(answers), target)
        return await self._connection.drive(flow, listener, answers)

    def _listener(
        self, options: CallOptions, target: str, headers: Sequence[tuple[str, str]] = ()
    ) -> Listener:
        return listener_of(self._connection, options, target, clock=self._clock, headers=headers)

    async def _follow(
        self,
        task: Task,
        answers: AnswersLike,
        timeout_s: float | None,
        on_task: Callable[[TaskState], Any] | None,
    ) -> CallResult:
        server = await self.connect()

        def seen(state: TaskState) -> Any:
            task.state = state
            return on_task(state) if on_task is not None else None

        # Questions that were seen may have been answered since, here or elsewhere.
        known = None if task.state is None or task.state.status == "input_required" else task.state
        if has_older_tasks(server):
            flow = follow_older(task.id, self.limits, known)
        else:
            flow = follow(task.id, self.limits, known, task._target)
        listener = self._listener(CallOptions(answers), task._target)
        work = self._connection.drive(flow, listener, answers, seen)
        work = self._link.through(work, listener) if has_older_tasks(server) else work
        result = await self._in_time(work, timeout_s, "the task")
        return CallResult.read(result, 1)

    async def _in_time(self, work: Coroutine[Any, Any, T], timeout_s: float | None, what: str) -> T:
        if timeout_s is None:
            return await work
        try:
            async with asyncio.timeout(timeout_s):
                return await work
        except TimeoutError:
            raise TimedOut(f"No result of {what} within {timeout_s:g} s (timeout_s)") from None


def _continued(request_state: str | None, input_responses: Mapping[str, Any] | None) -> Json:
    state = {} if request_state is None else {"requestState": request_state}
    return state if input_responses is None else {**state, "inputResponses": dict(input_responses)}


def _auth(given: Auth | str | None) -> Auth | None:
    if not isinstance(given, str):
        return given
    from roundgate.client.auth import Bearer

    return Bearer(given)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("roundgate")
    except PackageNotFoundError:
        return "0"
