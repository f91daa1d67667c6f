"""The connection of a client to one server: negotiated revision, cached results, listed tools. Runs
the generators of `flows`.

The revision is negotiated before the first request, and again if an older server has forgotten the
session.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from msgspec import Struct

from roundgate.client import flows
from roundgate.client.link import Link
from roundgate.client.messages import NO_LISTENER, Listener, SessionOver
from roundgate.client.questions import Answers, AnswersLike, Kind, Question, answer_all
from roundgate.client.sender import Headers
from roundgate.client.stdio import StdioLink
from roundgate.client.types import TASKS, Json, Log, Progress, ServerInfo, TaskState, Tool
from roundgate.clock import Clock
from roundgate.errors import BadAnswer, ClientError, RpcError, TimedOut, Unanswered
from roundgate.json import bounded_integer, bounded_number, encode

log = logging.getLogger("roundgate.client")

T = TypeVar("T")

_LOG_LEVEL: Final = "io.modelcontextprotocol/logLevel"
_LISTS: Final = frozenset(
    {"tools/list", "prompts/list", "resources/list", "resources/templates/list"}
)
_CACHEABLE: Final = _LISTS | {"server/discover", "resources/read"}
_REPEATABLE: Final = _CACHEABLE | {
    *("prompts/get", "completion/complete", "tasks/get", "tasks/update", "tasks/cancel", "ping"),
    *("logging/setLevel", "resources/subscribe", "resources/unsubscribe"),
}
_LONGEST_TTL_MS: Final = 24 * 3_600_000
_MAX_LOGGED: Final = 20
_MAX_NAMED: Final = 10
"""The number of tools that an error about another one names."""


class CallOptions(Struct, frozen=True):
    """The options of one call; see `Client.call`."""

    answers: AnswersLike = None
    max_rounds: int | None = None
    timeout_s: float | None = None
    on_progress: Callable[[Progress], Any] | None = None
    on_log: Callable[[Log], Any] | None = None
    log_level: str = "info"
    on_task: Callable[[TaskState], Any] | None = None


def _without_tasks(capabilities: Json) -> Json:
    """Return capabilities without the extension for tasks, which older revisions do not know."""
    declared = capabilities.get("extensions", {})
    extensions = {name: value for name, value in declared.items() if name != TASKS}
    others = {name: value for name, value in capabilities.items() if name != "extensions"}
    return {**others, "extensions": extensions} if extensions else others


@asynccontextmanager
async def _until(limit_s: float | None, method: str) -> AsyncGenerator[None, None]:
    """Raise `BadAnswer` at a time of the event loop's clock; `None` is no limit."""
    try:
        async with asyncio.timeout_at(limit_s):
            yield
    except TimeoutError:
        raise BadAnswer(f"The rest of {method} did not arrive in time") from None


class Connection:
    """The connection of one client to one server."""

    def __init__(
        self,
        link: Link | StdioLink,
        *,
        info: Json,
        capabilities: Json,
        versions: Sequence[str],
        answers: Answers,
        clock: Clock,
        listens: bool = True,
    ) -> None:
        """Prepare the connection without sending anything. `info` and `capabilities` describe the
        client. `versions` are the revisions that it may speak, newest first. `answers` is used
        after the answers of a call. `listens` opens the stream of an older server's session."""
        self.link = link
        self.limits = link.limits
        self.server: ServerInfo | None = None
        """The server's description of itself; `None` until the revision is known."""
        self.cache = Cache(clock, link.limits.max_cached)
        self.tools = ToolList(self)
        self._info = info
        self._older_capabilities = _without_tasks(capabilities)
        self._capabilities = capabilities
        self._versions = versions
        self._listens = listens
        self._answers = answers
        self._clock = clock
        self._connecting = asyncio.Lock()
        self._log_level: str | None = None
        """The log level of the session of an older server."""

    async def connect(self) -> ServerInfo:
        """Negotiate the revision, unless it is known, and return the server's description."""
        if self.server is None:
            async with self._connecting:
                if self.server is None:
                    flow = flows.negotiate(
                        self._info,
                        self._older_capabilities,
                        self._versions,
                        silent_is_older=isinstance(self.link, StdioLink),
                    )
                    server = await self.drive(flow)
                    self.link.version = server.protocol_version
                    await self._keep_log_level(server)
                    if not server.is_modern and self._listens:
                        await self.link.session_stream.open()
                    self.server = server
        return self.server

    async def drive(
        self,
        flow: flows.Flow[T],
        listener: Listener = NO_LISTENER,
        answers: AnswersLike = None,
        on_task: Callable[[TaskState], Any] | None = None,
        until_s: float | None = None,
    ) -> T:
        """Run a flow and return its value. `listener` handles notifications and questions during
        requests, `answers` is used before the client's answers, and `on_task` receives each state
        of the task that the flow follows. Requests after the first fail at `until_s`, a time of the
        event loop's clock. Raise a `ClientError` that the flow does not catch."""
        outcome: Any = None
        limit_s: float | None = None
        error: Exception | None = None
        try:
            while True:
                effect = flow.send(outcome) if error is None else flow.throw(error)
                outcome = error = None
                try:
                    match effect:
                        case flows.Send(method, params, may_repeat, version):
                            async with _until(limit_s, method):
                                outcome = await self._send(
                                    method, params, may_repeat, listener, version
                                )
                            limit_s = until_s
                        case flows.Ask(questions, request_state):
                            outcome = await self._answer(questions, answers, request_state)
                        case flows.Pause(ms):
                            await self._clock.sleep(ms / 1_000)
                        case flows.Show(task):
                            if on_task is not None and inspect.isawaitable(done := on_task(task)):
                                await done
                        case flows.Tell(method, version):
                            await self.link.notify(method, version)
                except ClientError as raised:
                    error = raised
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    async def items(self, method: str, name: str) -> list[Json]:
        """Return the items of all pages of a list. Raise a `ClientError` if a page cannot be
        read."""
        listing = await self.listing(method, name)
        if listing.error is not None:
            raise listing.error
        return listing.items

    async def read_items(self, method: str, name: str, read: Callable[[Json], T]) -> list[T]:
        """Return the items of a list that `read` accepts; log the others."""
        values: list[T] = []
        for item in await self.items(method, name):
            try:
                values.append(read(item))
            except BadAnswer as error:
                log.warning("an entry of %s is not used: %s", method, error)
        return values

    async def listing(
        self, method: str, name: str, within_s: float | None = None
    ) -> flows.WholeList:
        """Return the pages of a list that can be read, those after the first within `within_s`
        seconds, and the time for which they are fresh."""
        await self.connect()
        until_s = None if within_s is None else asyncio.get_running_loop().time() + within_s
        return await self.drive(flows.whole_list(method, name, self.limits), until_s=until_s)

    async def request(self, method: str, params: Json) -> Json:
        """Return the result of any request, from the cache if it is fresh."""
        return await self._send(method, params, method in _REPEATABLE, NO_LISTENER)

    async def set_log_level(self, level: str) -> None:
        """Set the lowest level of log messages in the session of an older server, unless it is
        already set."""
        server = await self.connect()
        if _has_log_level(server) and self._log_level != level:
            await self.request("logging/setLevel", {"level": level})
            self._log_level = level

    async def _keep_log_level(self, server: ServerInfo) -> None:
        """Set the level of the previous session in a new one. If the server refuses, `set_log_level`
        will try again."""
        if self._log_level is None or not _has_log_level(server):
            return
        params = {"level": self._log_level}
        try:
            await self.link.request("logging/setLevel", params, may_repeat=True)
        except (RpcError, SessionOver):
            self._log_level = None

    async def _send(
        self,
        method: str,
        params: Json,
        may_repeat: bool,
        listener: Listener,
        version: str | None = None,
    ) -> Json:
        """Return the result of a request, from the cache if it is fresh. Only requests of the
        negotiation itself have a `version`."""
        if version is not None:
            return await self.link.request(
                method, params, may_repeat=may_repeat, version=version, listener=listener
            )
        await self.connect()
        if (cached := self.cache.get(method, params)) is not None:
            return cached
        result = await self.exchange(method, params, listener, may_repeat=may_repeat)
        self.cache.put(method, params, result)
        return result

    async def exchange(
        self, method: str, params: Json, listener: Listener, *, may_repeat: bool
    ) -> Json:
        """Send one request and return its result as the server sent it. The result may ask for
        input or be a task.

        If the server has forgotten the session, send the request again in a new session. This is
        safe, because a server that answers 404 to a session has not processed the request.

        Raises:
            BadAnswer: the server also forgets the new session, or violated the protocol.
            ClientError: see `Link.request`.
        """
        if self.server is None:
            await self.connect()
        session_id = self.link.session_id
        try:
            return await self.link.request(method, params, may_repeat=may_repeat, listener=listener)
        except SessionOver:
            await self._renew(session_id)
        try:
            return await self.link.request(method, params, may_repeat=False, listener=listener)
        except SessionOver:
            raise BadAnswer("The server forgets each new session immediately") from None

    async def _renew(self, session_id: str | None) -> None:
        """Open a new session in place of `session_id`, unless another request has done so."""
        async with self._connecting:
            if self.link.session_id == session_id:
                await self._forget()
        await self.connect()

    async def _forget(self) -> None:
        self.server = None
        self.link.session_id = None
        await self.link.end_session()
        self.link.version = None

    async def negotiate_again(self, server: ServerInfo) -> None:
        """Negotiate the revision anew before the next request, unless it was negotiated since
        `server` was read."""
        async with self._connecting:
            if self.server is server:
                await self._forget()

    # -- questions and notifications ---------------------------------------------------------------

    async def _answer(
        self, questions: Sequence[Question], answers: AnswersLike, request_state: str | None = None
    ) -> dict[str, Json]:
        """Return responses by key, from the answers of a call, then of the client. Raise
        `BadAnswer` if the client did not declare a question's kind."""
        for question in questions:
            self._refuse_undeclared(question)
        sources = self._answers if answers is None else Answers(answers, self._answers)
        return await answer_all(questions, sources, request_state)

    def _refuse_undeclared(self, question: Question) -> None:
        if not question.is_declared_in(self._capabilities):
            raise BadAnswer(
                f"The server asks {question.key[:80]!r}, a question of the kind {question.kind},"
                " which this client did not declare"
            )

    def listener(self, options: CallOptions, target: str, headers: Headers = ()) -> Listener:
        """Return the listener of a call's requests. `target` is the tool, prompt or resource that
        its questions name; `headers` repeat arguments."""
        on_progress, on_log = options.on_progress, options.on_log
        meta: Json = {}
        token = self._clock.new_id() if on_progress is not None else None
        if token is not None:
            meta["progressToken"] = token
        if on_log is not None:
            meta[_LOG_LEVEL] = options.log_level

        def on_notification(method: str, params: Json) -> Any:
            is_own_progress = (
                method == "notifications/progress" and params.get("progressToken") == token
            )
            if is_own_progress and on_progress is not None:
                return on_progress(_progress(params))
            if method == "notifications/message" and on_log is not None:
                level, logger = str(params.get("level")), params.get("logger")
                return on_log(Log(level, logger, params.get("data")))
            self.cache.take(method, params)
            return None

        async def on_request(request_id: Any, method: str, params: Json) -> Json:
            if method == "ping":
                return {"result": {}}
            try:
                request = {"method": method, "params": params}
                question = Question.read(str(request_id), request, target)
                self._refuse_undeclared(question)
            except BadAnswer as error:
                return {"error": {"code": -32601, "message": str(error)}}
            try:
                responses = await self._answer([question], options.answers)
            except Unanswered:
                if question.kind is not Kind.ROOTS:
                    raise
                # Some servers ask for roots in every call. A client without an answer has none.
                return {"result": {"roots": []}}
            return {"result": responses[question.key]}

        return Listener(on_notification, on_request, meta or None, headers)


def _has_log_level(server: ServerInfo) -> bool:
    return not server.is_modern and "logging" in server.capabilities


def _progress(params: Json) -> Progress:
    progress, total = map(bounded_number, (params.get("progress"), params.get("total")))
    message = params.get("message")
    return Progress(progress or 0, total, message if isinstance(message, str) else None)


async def within(work: Coroutine[Any, Any, T], timeout_s: float | None, what: str) -> T:
    """Return the result of `work`. Raise `TimedOut`, with `what` as its subject, after `timeout_s`
    seconds; `None` sets no limit."""
    if timeout_s is None:
        return await work
    try:
        async with asyncio.timeout(timeout_s):
            return await work
    except TimeoutError:
        raise TimedOut(f"No result of {what} within {timeout_s:g} s (timeout_s)") from None


class Cache:
    """A cache of results by method and params (server/utilities/caching). The least recently used
    result is dropped first.

    A client has a single set of credentials, so `cacheScope` makes no difference.
    """

    def __init__(self, clock: Clock, size: int) -> None:
        self._clock = clock
        self._size = size
        self._results: OrderedDict[tuple[str, bytes], tuple[float, Json]] = OrderedDict()

    def get(self, method: str, params: Json) -> Json | None:
        """Return a cached result, or `None` if there is none or it has expired."""
        if method not in _CACHEABLE:
            return None
        key = method, encode(params)
        expires_ms, result = self._results.get(key, (0.0, None))
        if result is None:
            return None
        if expires_ms <= self._clock.monotonic_ms():
            del self._results[key]
            return None
        self._results.move_to_end(key)
        return result

    def put(self, method: str, params: Json, result: Json) -> None:
        """Cache a result for its `ttlMs`, at most 24 h. Never cache the result of a request with
        answers or a state."""
        ttl_ms = bounded_integer(result.get("ttlMs")) or 0
        if (
            method not in _CACHEABLE
            or result.get("resultType", "complete") != "complete"
            or not params.keys().isdisjoint({"inputResponses", "requestState"})
            or ttl_ms <= 0
        ):
            return
        expires_ms = self._clock.monotonic_ms() + min(ttl_ms, _LONGEST_TTL_MS)
        self._results[method, encode(params)] = expires_ms, result
        if len(self._results) > self._size:
            self._results.popitem(last=False)

    def take(self, method: str, params: Json) -> None:
        """Remove the results that a notification invalidates."""
        if method == "notifications/resources/updated":
            self._results.pop(("resources/read", encode({"uri": params.get("uri")})), None)
        elif method.endswith("/list_changed"):
            subject = method.removeprefix("notifications/").removesuffix("list_changed")
            self.clear(*(name for name in _LISTS if name.startswith(subject)))

    def clear(self, *methods: str) -> None:
        """Remove the results of these methods."""
        for key in [key for key in self._results if key[0] in methods]:
            del self._results[key]


class ToolList:
    """The latest list of a server's tools, without the tools that must not be used."""

    def __init__(self, connection: Connection) -> None:
        self.rejected: dict[str, str] = {}
        """The reason why each listed tool must not be used, by the tool's name."""
        self._connection = connection
        self._tools: dict[str, Tool] | None = None

    async def read(self) -> list[Tool]:
        """Read the whole list and return the usable tools; log the newly rejected ones."""
        items = await self._connection.items("tools/list", "tools")
        tools: dict[str, Tool] = {}
        rejected: dict[str, str] = {}
        for item in items:
            try:
                tool = Tool.read(item)
                tools[tool.name] = tool
            except (BadAnswer, ValueError) as error:
                rejected[str(item.get("name"))[:128]] = str(error)
        for name in [name for name in rejected if name not in self.rejected][:_MAX_LOGGED]:
            log.warning("tool %r is not used: %s", name, rejected[name])
        self._tools, self.rejected = tools, rejected
        return list(tools.values())

    async def read_once(self) -> None:
        """Read the list, unless it was read before. A server that refuses the request has no
        tools."""
        if self._tools is None:
            try:
                await self.read()
            except RpcError:
                self._tools = {}

    async def read_again(self) -> None:
        """Read the list from the server even if it is cached."""
        self._connection.cache.clear("tools/list")
        await self.read()

    def known(self, name: str) -> Tool | None:
        """Return a tool from the latest list, or `None` if it is not listed. Raise `ClientError` if
        the tool must not be used."""
        tool = (self._tools or {}).get(name)
        if tool is None and name in self.rejected:
            raise ClientError(f"The tool {name!r} must not be used: {self.rejected[name]}")
        return tool

    async def find(self, name: str) -> Tool:
        """Return a tool by its name; read the list if the tool is not known.

        Raises:
            ClientError: there is no such tool (the error lists similar names), or it must not be
                used.
        """
        if self._tools is None or name not in self._tools:
            await self.read()
        if (tool := self.known(name)) is not None:
            return tool
        from difflib import get_close_matches

        names = list(self._tools or ())
        near = get_close_matches(name, names, 3) or names[:_MAX_NAMED]
        more = f" and {len(names) - len(near)} more" if len(names) > len(near) else ""
        raise ClientError(
            f"The server has no tool {name!r} for this caller; it has {', '.join(near) or 'none'}{more}"
        )
