"""What the methods that run a handler have in common: a request → its round and its `Call`;
an outcome → its value."""

from __future__ import annotations

from typing import Any, TypeVar

from roundgate.backends import ServedTool
from roundgate.clock import Clock
from roundgate.errors import CallTimeout, InternalError, InvalidParams, ProtocolError, ToolError
from roundgate.methods.request import RequestContext
from roundgate.methods.rounds import Round, Rounds, Target
from roundgate.protocol import InputParams, tasks
from roundgate.replay import Call, Completed, Failed, Publish, Read, Texts
from roundgate.tasks import log_failure, said_by

T = TypeVar("T")


class Calls:
    """Begins calls and reads their outcomes.

    Args:
        rounds: opens, runs and seals.
        publish: tells streams of what a handler changed.
        clock: of the process.
        timeout_ms: milliseconds that a call may take.
        texts: keeps what is too long for a result.
        read: reads the resources that are served beside the tools.
    """

    def __init__(
        self,
        rounds: Rounds,
        publish: Publish,
        clock: Clock,
        timeout_ms: float,
        texts: Texts | None = None,
        read: Read | None = None,
        *,
        shows_errors: bool = False,
    ) -> None:
        self._read = read
        self._texts = texts
        self._shows_errors = shows_errors
        self._rounds = rounds
        self._publish = publish
        self._clock = clock
        self._timeout_ms = timeout_ms

    def begin(
        self, target: Target, asked: InputParams, context: RequestContext, *, key: Any = None
    ) -> Round:
        """The round that this request is; a later one is linked to where the call began.

        Args:
            target: what is called, and with which arguments.
            asked: the params, with answers and state.
            context: of the request.
            key: the client's key for the call, as it came; `None` for none.

        Raises:
            StateRefused, InvalidParams: see `Rounds.begin`.
        """
        round_ = self._rounds.begin(
            target,
            asked,
            context.principal,
            context.span.carrier(),
            context.correlation,
            key=key,
        )
        if round_.opened is not None:
            context.span.link(round_.origin)
        return round_

    def call(
        self, context: RequestContext, round_: Round | None = None, served: ServedTool | None = None
    ) -> Call:
        """The carrier of a request's call.

        Args:
            context: of the request.
            round_: which round of its call it is; `None` where there are no rounds.
            served: the tool, if it is a call of one.
        """
        mode = "forbidden" if served is None else served.tool.task
        limit_ms = self._timeout_ms if context.remaining_ms is None else context.remaining_ms
        return Call(
            principal=context.principal,
            meta=context.inbound.meta,
            deadline=self._clock.deadline(min(limit_ms, self._timeout_ms)),
            notify=context.notify,
            page_done=context.page_done,
            publish=self._publish,
            may_become_task=mode != "forbidden"
            and context.inbound.meta.capabilities.has(tasks.REQUIRED),
            needs_row=mode == "required",
            takes_unasked=served is not None and served.tool.unasked_answers,
            round=round_,
            texts=self._texts,
            read=self._read,
        )

    def value(self, outcome: Completed[T] | Failed, what: str) -> T:
        """What a handler returned, where there is no tool error to answer with.

        Args:
            outcome: of the handler.
            what: what the handler is, for the log: `prompt greet`.

        Raises:
            ProtocolError: the handler's own, or -32602 with the text of its `ToolError`.
            InternalError: any other failure; its cause is in the log.
        """
        match outcome:
            case Completed(value):
                return value
            case Failed(ProtocolError() as error):
                raise error
            case Failed(ToolError() as error) if not isinstance(error, CallTimeout):
                raise InvalidParams(str(error))
            case Failed(error):
                shown = said_by(error) if self._shows_errors else None
                raise InternalError(log_failure(what, error, self._clock), shown)
