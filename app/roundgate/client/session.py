"""The public client of one server, with a method for every request.

async with Client("https://host/mcp", auth=Bearer(token)) as client:
    result = await client.call("refund", order=7, answers={"confirm": {"go": True}})
    print(result.value)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urldefrag

from roundgate.client.auth import Auth, Bearer
from roundgate.client.connection import CallOptions, Connection, within
from roundgate.client.flows import (
    VERSIONS,
    FinishedCall,
    call,
    call_as_older_task,
    has_older_tasks,
    wants_older_task,
)
from roundgate.client.following import Subscription, Task, split_handle
from roundgate.client.link import Link
from roundgate.client.messages import Observer, of_arguments
from roundgate.client.questions import Answers, AnswersLike
from roundgate.client.skills import Skill
from roundgate.client.transport import HttpxTransport, Limits, Transport, Url
from roundgate.client.types import (
    TASKS,
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
from roundgate.errors import BadAnswer, RpcError, WrongHandle
from roundgate.version import VERSION

if TYPE_CHECKING:
    import ssl

    import httpx

CAPABILITIES: Final[Mapping[str, Any]] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {},
    "roots": {},
    "extensions": {TASKS: {}},
}
"""The default capabilities: every kind of question, and tasks."""
_HEADER_MISMATCH: Final = -32020


class Client:
    """A client of one server. Nothing is sent before the first request.

    `auth` is an `Auth` of `roundgate.client.auth`, or a bearer token as text. `answers` is used
    after the answers of a call. `versions` are the revisions that the client may speak, newest
    first. `http` is an `httpx.AsyncClient` that replaces the client's own. `observer` receives
    every message. Several asyncio tasks may share one client.
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
        own_info = dict(info or {"name": "roundgate", "version": VERSION})
        own_capabilities = dict(CAPABILITIES if capabilities is None else capabilities)
        self._link = Link(
            Url.parse(self.url),
            transport or HttpxTransport(limits, tls=tls, http=http),
            info=own_info,
            capabilities=own_capabilities,
            limits=limits,
            auth=Bearer(auth) if isinstance(auth, str) else auth,
            headers=tuple((headers or {}).items()),
            observer=observer,
        )
        self._connection = Connection(
            self._link,
            info=own_info,
            capabilities=own_capabilities,
            versions=tuple(versions),
            answers=Answers.of(answers),
            clock=self._clock,
        )

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the session at an older server and close the transport. A client passed as `http`
        stays open."""
        try:
            await self._link.end_session()
        finally:
            await self._link.transport.close()

    @property
    def server(self) -> ServerInfo | None:
        """The server's description; `None` until `connect` or the first request."""
        return self._connection.server

    @property
    def rejected(self) -> Mapping[str, str]:
        """The reason why each listed tool must not be used, by the tool's name."""
        return self._connection.tools.rejected

    # -- the server --------------------------------------------------------------------------------

    async def connect(self) -> ServerInfo:
        """Negotiate the revision, unless it is known, and return the server's description."""
        return await self._connection.connect()

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> Json:
        """Return the raw result of any request, from the cache if it is fresh."""
        return await self._connection.request(method, dict(params or {}))

    async def ping(self) -> float:
        """Return the time of a round trip in milliseconds. Revisions without `ping` are measured
        with `server/discover`."""
        server = await self.connect()
        start_ms = self._clock.monotonic_ms()
        method = "server/discover" if server.is_modern else "ping"
        await self._link.request(method, {}, may_repeat=True)
        return self._clock.monotonic_ms() - start_ms

    # -- lists -------------------------------------------------------------------------------------

    async def tools(self) -> list[Tool]:
        """Return all usable tools. Other tools are logged and listed in `rejected`."""
        return await self._connection.tools.read()

    async def tool(self, name: str) -> Tool:
        """Return one tool by its name.

        Raises:
            ClientError: there is no such tool (the error lists similar names), or it must not be
                used.
        """
        return await self._connection.tools.find(name)

    async def prompts(self) -> list[Prompt]:
        """Return all prompts."""
        return await self._connection.read_items("prompts/list", "prompts", Prompt.read)

    async def resources(self) -> list[Resource]:
        """Return all resources."""
        return await self._connection.read_items("resources/list", "resources", Resource.read)

    async def resource_templates(self) -> list[Resource]:
        """Return all resource templates."""
        read = partial(Resource.read, is_template=True)
        method = "resources/templates/list"
        return await self._connection.read_items(method, "resourceTemplates", read)

    async def skills(self) -> list[Skill]:
        """Return the entries of all skills. No file is read."""
        return await self._connection.read_items("skills/list", "skills", Skill.read)

    async def skill(self, uri: str) -> Skill:
        """Return the current entry of one skill, by the URI of its SKILL.md."""
        result = await self.request("skills/get", {"uri": uri})
        skill = Skill.read(result.get("skill"))
        if skill.uri != uri:
            raise BadAnswer("The server answered with another skill than the requested one")
        return skill

    async def read_skill(self, skill: Skill, uri: str | None = None) -> bytes:
        """Return a file of a skill, by default its SKILL.md.

        Raises:
            ClientError: the entry of the skill does not list the file; nothing was sent.
            BadAnswer: the file differs from the entry, so it must not be used.
        """
        file = uri or skill.uri
        skill.require_listed(file)
        return skill.verified(file, await self.read(file))

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
        """Call a tool and return its result, after its rounds and, if it becomes a task, after its
        task. Pass arguments as keywords or as a mapping.

        `timeout_s` limits the whole call in seconds, including the time that people need to answer.
        `request_state` (for example of `Unanswered`) and `input_responses` continue a call that
        another process began. Cancelling the call closes its stream; if it has become a task, the
        task continues.

        Raises:
            ClientError: see `roundgate.errors`. A tool that fails returns a result with `is_error`.
        """
        options = CallOptions(
            answers, max_rounds, timeout_s, on_progress, on_log, log_level, on_task
        )
        params: Json = {"name": tool, "arguments": {**(arguments or {}), **more}}
        if request_state is not None:
            params["requestState"] = request_state
        if input_responses is not None:
            params["inputResponses"] = dict(input_responses)
        finished = await self._call(params, options, detach=False)
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
        """Call a tool and return as soon as the call is a task. Earlier questions are answered from
        `answers`. If the server answers without a task, the returned task is already over.
        """
        options = CallOptions(answers, max_rounds, timeout_s, on_progress, on_log, log_level)
        params: Json = {"name": tool, "arguments": {**(arguments or {}), **more}}
        finished = await self._call(params, options, detach=True)
        if finished.task is not None:
            return Task(self._connection, self.url, finished.task, target=tool)
        result = CallResult.read(finished.result, finished.rounds)
        return Task(self._connection, self.url, result=result, target=tool)

    def resume(self, handle: str) -> Task:
        """Return a task that was started earlier, given its handle or its id.

        Raises:
            WrongHandle: the handle is malformed or belongs to another server.
        """
        task_id = handle
        if "#task=" in handle:
            url, task_id = split_handle(handle)
            theirs, ours = Url.parse(url), Url.parse(self.url)
            if str(theirs) != str(ours):
                raise WrongHandle(f"The task belongs to {theirs}, but this client is for {ours}")
        return Task(self._connection, self.url, task_id=task_id)

    async def prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, *, answers: AnswersLike = None
    ) -> PromptResult:
        """Return a prompt with its arguments filled in, after its rounds."""
        params = {"name": name, "arguments": dict(arguments or {})}
        finished = await self._through_rounds("prompts/get", params, name, answers)
        return PromptResult.read(finished.result, finished.rounds)

    async def read(self, uri: str, *, answers: AnswersLike = None) -> ReadResult:
        """Return the contents of a resource, after its rounds."""
        finished = await self._through_rounds("resources/read", {"uri": uri}, uri, answers)
        return ReadResult.read(finished.result, finished.rounds)

    async def complete(
        self,
        ref: Mapping[str, str],
        argument: str,
        value: str,
        context: Mapping[str, str] | None = None,
    ) -> Completion:
        """Return suggested values for an argument of a prompt or a resource template. `ref` is, for
        example, `{"type": "ref/prompt", "name": …}`."""
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
        """Return a subscription to changes at the server: `async with client.listen(tools=True) as
        changes`."""
        filters = {
            "toolsListChanged": tools,
            "promptsListChanged": prompts,
            "resourcesListChanged": resources,
            "resourceSubscriptions": list(uris),
            "taskIds": list(tasks),
        }
        named: Json = {name: value for name, value in filters.items() if value}
        return Subscription(self._connection, named)

    async def _call(self, params: Json, options: CallOptions, *, detach: bool) -> FinishedCall:
        server = await self.connect()
        connection, tools = self._connection, self._connection.tools
        name, arguments = params["name"], params["arguments"]
        if server.is_modern or has_older_tasks(server):
            # The listed tool decides which headers the call has, and whether it must be a task.
            await tools.read_once()
        if options.on_log is not None:
            await connection.set_log_level(options.log_level)
        for attempt in (1, 2):
            tool = tools.known(name)
            headers = [] if tool is None or not server.is_modern else of_arguments(tool, arguments)
            listener = connection.listener(options, name, headers)
            is_older_task = has_older_tasks(server) and wants_older_task(tool, detach=detach)
            if is_older_task:
                flow = call_as_older_task(params, self.limits, detach=detach)
            else:
                flow = call(
                    "tools/call",
                    params,
                    name,
                    self.limits,
                    may_repeat=tool is not None and tool.may_be_repeated,
                    max_rounds=options.max_rounds,
                    detach=detach,
                )
            work = connection.drive(flow, listener, options.answers, options.on_task)
            if is_older_task:
                work = self._link.through(work, listener, leaves_task=detach)
            try:
                return await within(work, options.timeout_s, name)
            except RpcError as error:
                # The tool's schema may have changed (streamable-http, "Client Behavior").
                if error.code != _HEADER_MISMATCH or attempt == 2:
                    raise
            await tools.read_again()
        raise AssertionError("the second attempt returns or raises")

    async def _through_rounds(
        self, method: str, params: Json, target: str, answers: AnswersLike
    ) -> FinishedCall:
        await self.connect()
        flow = call(method, params, target, self.limits, may_repeat=True)
        listener = self._connection.listener(CallOptions(answers), target)
        return await self._connection.drive(flow, listener, answers)
