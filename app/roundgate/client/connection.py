"""What a client and a server have agreed on, and the flows of `flows` driven over it.

The revision is negotiated before the first request, and again when an older server
has forgotten the session.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from roundgate.client.answers import Answers, AnswersLike, answer_all
from roundgate.client.cache import Cache
from roundgate.client.flows import Ask, Flow, Pause, Send, Show, Tell, negotiate
from roundgate.client.link import NO_LISTENER, Link, Listener
from roundgate.client.questions import Kind, Question, is_declared
from roundgate.client.types import Json, Log, Progress, ServerInfo, TaskState
from roundgate.clock import Clock
from roundgate.errors import BadAnswer, ClientError, SessionOver, Unanswered

T = TypeVar("T")

_LOG_LEVEL: Final = "io.modelcontextprotocol/logLevel"


class Connection:
    """One client at one server."""

    def __init__(
        self,
        link: Link,
        cache: Cache,
        *,
        info: Json,
        capabilities: Json,
        versions: Sequence[str],
        answers: Answers,
        clock: Clock,
    ) -> None:
        """Nothing is sent yet.

        Args:
            link: how the server is reached.
            cache: results that the server allows to keep.
            info: what `initialize` says of the client.
            capabilities: what the client declares; an older server is not told of `extensions`.
            versions: the revisions that it may speak, newest first.
            answers: are asked after those of a call.
            clock: whose time passes between two looks at a task.
        """
        self.link = link
        self.cache = cache
        self.server: ServerInfo | None = None
        """What the server said of itself, `None` until it is known which revision to speak."""
        self._info = info
        self._older_capabilities = {
            name: value for name, value in capabilities.items() if name != "extensions"
        }
        self._capabilities = capabilities
        self._versions = versions
        self._answers = answers
        self._clock = clock
        self._connecting = asyncio.Lock()

    async def connect(self) -> ServerInfo:
        """Find out which revision to speak, if that is not known yet, and what the
        server says of itself."""
        if self.server is None:
            async with self._connecting:
                if self.server is None:
                    flow = negotiate(self._info, self._older_capabilities, self._versions)
                    found = await self.drive(flow)
                    self.link.version = found.protocol_version
                    if not found.is_modern:
                        await self.link.session_stream.open()
                    self.server = found
        return self.server

    async def drive(
        self,
        flow: Flow[T],
        listener: Listener = NO_LISTENER,
        answers: AnswersLike = None,
        on_task: Callable[[TaskState], Any] | None = None,
    ) -> T:
        """Do what a flow wants, until it returns.

        Args:
            flow: one of `flows`.
            listener: what its requests want to hear.
            answers: asked first, before those of the client.
            on_task: is told each state of the task that the flow follows.

        Returns:
            What the flow returns.

        Raises:
            ClientError: the flow did not expect what happened.
        """
        sent: Any = None
        error: Exception | None = None
        try:
            while True:
                effect = flow.send(sent) if error is None else flow.throw(error)
                sent = error = None
                try:
                    match effect:
                        case Send(method, params, may_repeat, version):
                            sent = await self.send(method, params, may_repeat, listener, version)
                        case Ask(questions, request_state):
                            sent = await self.answer(questions, answers, request_state)
                        case Pause(ms):
                            await self._clock.sleep(ms / 1_000)
                        case Show(task):
                            if on_task is not None and inspect.isawaitable(done := on_task(task)):
                                await done
                        case Tell(method, version):
                            await self.link.notify(method, version)
                except ClientError as raised:
                    error = raised
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    async def answer(
        self, questions: Sequence[Question], answers: AnswersLike, request_state: str | None = None
    ) -> dict[str, Json]:
        """Responses from the answers of a call, and behind them from those of the client.

        Raises:
            BadAnswer: the server asks in a way that the client did not declare.
            Unanswered, AnswerInvalid: as their names say.
        """
        for question in questions:
            self.refuse_undeclared(question)
        sources = self._answers if answers is None else Answers(answers, self._answers)
        return await answer_all(questions, sources, request_state)

    def refuse_undeclared(self, question: Question) -> None:
        """A server asks only what the client said that it can be asked.

        Raises:
            BadAnswer: it asks something else.
        """
        if not is_declared(question.kind, self._capabilities):
            raise BadAnswer(
                f"The server asks {question.key[:80]!r}, which is of the kind {question.kind}"
                " that this client did not declare"
            )

    async def send(
        self,
        method: str,
        params: Json,
        may_repeat: bool,
        listener: Listener,
        version: str | None = None,
    ) -> Json:
        """Send a request, unless the answer to it is kept.

        Args:
            method: of MCP.
            params: without what belongs to the client, which is added.
            may_repeat: whether sending it twice does no harm.
            listener: what it wants to hear while it runs.
            version: of the negotiation itself: the revision to speak.
        """
        if version is None:
            await self.connect()
            if (kept := self.cache.get(method, params)) is not None:
                return kept
        try:
            result = await self.link.request(
                method, params, may_repeat=may_repeat, version=version, listener=listener
            )
        except SessionOver:
            result = await self._in_a_new_session(method, params, listener)
        self.cache.put(method, params, result)
        return result

    async def _in_a_new_session(self, method: str, params: Json, listener: Listener) -> Json:
        """An older server forgot the session: it did not act on the request,
        which is sent in a new one."""
        self.link.session_id = None
        await self.link.end_session()
        self.server = self.link.version = None
        await self.connect()
        try:
            return await self.link.request(method, params, may_repeat=False, listener=listener)
        except SessionOver:
            raise BadAnswer("The server forgets each session as soon as it has begun") from None


@dataclass(frozen=True, slots=True)
class CallOptions:
    """What a caller wants of one call."""

    answers: AnswersLike = None
    max_rounds: int | None = None
    timeout_s: float | None = None
    on_progress: Callable[[Progress], Any] | None = None
    on_log: Callable[[Log], Any] | None = None
    log_level: str = "info"
    on_task: Callable[[TaskState], Any] | None = None


def listener_of(
    connection: Connection,
    options: CallOptions,
    target: str,
    *,
    clock: Clock,
    headers: Sequence[tuple[str, str]] = (),
) -> Listener:
    """What the requests of a call listen to.

    Args:
        connection: whose answers and cache are used.
        options: what the caller wants.
        target: what is called, for the questions about it.
        clock: makes the token that progress of this call is told under.
        headers: that mirror its arguments.
    """
    on_progress, on_log = options.on_progress, options.on_log
    meta: Json = {}
    token = clock.new_id() if on_progress is not None else None
    if token is not None:
        meta["progressToken"] = token
    if on_log is not None:
        meta[_LOG_LEVEL] = options.log_level

    def heard(method: str, params: Json) -> Any:
        if (
            method == "notifications/progress"
            and on_progress is not None
            and params.get("progressToken") == token
        ):
            return on_progress(_progress(params))
        if method == "notifications/message" and on_log is not None:
            return on_log(Log(str(params.get("level")), params.get("logger"), params.get("data")))
        connection.cache.heard(method, params)
        return None

    async def asked(request_id: Any, method: str, params: Json) -> Json:
        if method == "ping":
            return {"result": {}}
        try:
            question = Question.read(str(request_id), {"method": method, "params": params}, target)
            connection.refuse_undeclared(question)
        except BadAnswer as error:
            return {"error": {"code": -32601, "message": str(error)}}
        try:
            responses = await connection.answer([question], options.answers)
        except Unanswered:
            if question.kind is not Kind.ROOTS:
                raise
            # Some servers ask everybody, whatever is called: a client that was given none has none.
            return {"result": {"roots": []}}
        return {"result": responses[question.key]}

    return Listener(heard, asked, meta or None, headers)


def _progress(params: Json) -> Progress:
    numbers = [params.get(name) for name in ("progress", "total")]
    done, total = [
        one if isinstance(one, (int, float)) and not isinstance(one, bool) else None
        for one in numbers
    ]
    message = params.get("message")
    return Progress(done or 0, total, message if isinstance(message, str) else None)
