"""What a client and a server have agreed on, and the flows of `flows` driven over it.

The revision is negotiated before the first request, and again when an older server
has forgotten the session.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from roundgate.client.answers import Answers, AnswersLike, answer_all
from roundgate.client.cache import Cache
from roundgate.client.flows import Ask, Flow, Pause, Send, Show, Tell, negotiate
from roundgate.client.link import NO_LISTENER, Link, Listener
from roundgate.client.questions import Question, is_declared
from roundgate.client.types import Json, ServerInfo, TaskState
from roundgate.clock import Clock
from roundgate.errors import BadAnswer, ClientError, SessionOver

T = TypeVar("T")


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
