"""What a handler sees of the call it serves: what it can ask, what it can have remembered, what it can tell.

    async def deploy(ctx: Context, env: str) -> str:
        plan = await ctx.step("plan", make_plan, env)                  # runs once, whatever happens afterwards
        ok = await ctx.elicit("confirm", f"Apply {plan}?", Confirm)    # ends this round; the next one comes back here
        return await ctx.step("apply", apply, plan) if ok.go else "nothing done"

The handler is run from the top in every round, so what it does between these calls must depend on its arguments, on
answers and on steps alone. An async handler awaits them; one that is a plain function runs in a thread and gets a
`SyncContext`, whose methods of the same names block.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeAlias, TypeVar, overload

from pydantic import BaseModel

from app.auth.principal import Principal
from app.clock import Deadline
from app.errors import MissingCapability
from app.protocol.content import PromptMessage, without_none
from app.protocol.inbound import LOG_LEVELS, Meta
from app.replay.engine import Run
from app.replay.journal import Answered
from app.replay.questions import Answer, Form, Question, Raw, Root, Roots, Sample, Sampled, Url

M = TypeVar("M", bound=BaseModel)

MAX_STATUS_CHARS: Final = 1_000

log = logging.getLogger("app.handler")

Notify: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[None]]
"""Sends one notification (method, params) on the stream of this request."""

TOOLS_CHANGED: Final = "notifications/tools/list_changed"
PROMPTS_CHANGED: Final = "notifications/prompts/list_changed"
RESOURCES_CHANGED: Final = "notifications/resources/list_changed"
RESOURCE_UPDATED: Final = "notifications/resources/updated"

Publish: TypeAlias = Callable[[str, str | None], None]
"""Tells every open `subscriptions/listen` stream that wants it of a change (method, uri)."""


@dataclass(frozen=True, slots=True)
class Call:
    """The facts of one call, gathered by the dispatcher. `notify` is `None` where the client cannot be told things."""

    principal: Principal
    meta: Meta
    deadline: Deadline
    notify: Notify | None
    publish: Publish


class Context:
    """One call, as its handler sees it."""

    __slots__ = ("_call", "_last_progress", "_run")

    def __init__(self, call: Call, run: Run) -> None:
        self._call = call
        self._run = run
        self._last_progress: float | None = None

    # who and what

    @property
    def principal(self) -> Principal:
        """Who is calling."""
        return self._call.principal

    @property
    def deadline(self) -> Deadline:
        """When this round has to be over."""
        return self._call.deadline

    @property
    def task_id(self) -> str | None:
        """The id of the task that this call has become, if it has: part of a good key for idempotent requests."""
        return self._run.task_id

    @property
    def cancelled(self) -> bool:
        """Whether the task was cancelled, so that nobody wants the outcome; for a long step to look at."""
        return self._run.cancelled

    @property
    def client_capabilities(self) -> Mapping[str, Any]:
        """The capabilities this request declares, shaped as the schema's `ClientCapabilities`."""
        return self._call.meta.capabilities.declared

    @property
    def client_info(self) -> Mapping[str, Any] | None:
        """The client's name and version as it gives them: for display and logs, never for decisions."""
        return self._call.meta.client_info

    def supports(self, *required: Question | Mapping[str, Any]) -> bool:
        """Whether the client can be asked these questions, or has these capabilities (`{"sampling": {}}`)."""
        try:
            for one in required:
                self._call.meta.capabilities.require(one if isinstance(one, Mapping) else one.requires, "this")
        except MissingCapability:
            return False
        return True

    # asking

    @overload
    async def elicit(self, name: str, message: str, fields: type[M]) -> M: ...
    @overload
    async def elicit(self, name: str, message: str, fields: Mapping[str, Any]) -> dict[str, Any]: ...
    async def elicit(self, name: str, message: str, fields: type[BaseModel] | Mapping[str, Any]) -> Any:
        """Ask the user to fill in a form; returns the model, or a dict for a JSON Schema.

        Raises:
            Refused: the user declined or dismissed it. Not catching it ends the call politely.
            MissingCapability: the client cannot show forms; not catching it tells it so (-32021).
        """
        return (await self.ask({name: Form(message, fields)}))[name].get()

    async def elicit_url(self, name: str, message: str, url: str) -> None:
        """Send the user to a page, for anything the client must not see; returns when they have agreed to go there.

        Raises:
            Refused, MissingCapability: as `elicit`.
        """
        (await self.ask({name: Url(message, url)}))[name].get()

    async def sample(
        self,
        name: str,
        messages: str | Sequence[PromptMessage | Mapping[str, Any]],
        *,
        max_tokens: int,
        system_prompt: str | None = None,
        temperature: float | None = None,
        stop_sequences: Sequence[str] | None = None,
        model_preferences: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: Mapping[str, Any] | None = None,
    ) -> Sampled:
        """Ask the client's model; with `tools`, it may answer with tool_use blocks.

        Raises:
            MissingCapability: the client offers no sampling, or none with tools.
        """
        question = Sample(
            messages, max_tokens, system_prompt, temperature, stop_sequences, model_preferences, tools, tool_choice
        )
        sampled: Sampled = (await self.ask({name: question}))[name].get()
        return sampled

    async def roots(self, name: str = "roots") -> list[Root]:
        """Ask which roots the client has.

        Raises:
            MissingCapability: it offers none.
        """
        roots: list[Root] = (await self.ask({name: Roots()}))[name].get()
        return roots

    async def ask(self, questions: Mapping[str, Question]) -> dict[str, Answer]:
        """Ask several things at once; each `Answer` says whether it was accepted, declined or cancelled.

        Raises:
            MissingCapability: names all that the client would have to declare in addition.
        """
        return await self._run.ask(questions)

    def input_response(self, key: str) -> Any:
        """The low-level form: the client's last response under a key as it came, or `None`."""
        entry = self._run.journal.questions.get(key)
        return entry.response if isinstance(entry, Answered) and isinstance(entry.response, dict) else None

    async def request_input(self, requests: Mapping[str, Mapping[str, Any]]) -> NoReturn:
        """The low-level form: end this round with these `InputRequest` objects; `state` is there in the next."""
        await self._run.ask_anew({key: Raw(request) for key, request in requests.items()})

    # remembering

    async def step(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a function once and remember what it returned, for the rest of this call, in whatever process it goes on.

        The value is what JSON makes of it. A plain function runs in a thread.

        Raises:
            StepFailed: it raised; so it does, remembered, in every later round. A `ToolError` stays one.
            NotJson: what it returned cannot be remembered.
        """
        return await self._run.step(name, function, *args, **kwargs)

    @property
    def state(self) -> dict[str, Any]:
        """Continuation data of the handler's own: JSON that is there again in the next round."""
        return self._run.journal.state

    async def shed(self, name: str = "shed") -> None:
        """End this round once without asking anything; the client's retry goes on from here."""
        await self._run.shed(name)

    # going on later

    async def continue_as_task(self) -> None:
        """From here on a worker carries the call, and the client has a task; nothing happens if that cannot be.

        It can be if the tool says `task="optional"` or `"required"` and the client declares the tasks extension.
        """
        await self._run.continue_as_task()

    async def sleep(self, seconds: float, name: str = "sleep") -> None:
        """Wait. A task holds no worker meanwhile, and wakes on time whatever dies in between."""
        await self._run.sleep(name, seconds)

    async def poll(self, name: str, function: Callable[..., Any], *args: Any, every_s: float) -> Any:
        """Call a function again and again until it returns something but `None`; that is remembered, as a step is.

        A task holds no worker between two times. The function must be safe to call again.

        Raises:
            StepFailed, NotJson: as `step`.
        """
        return await self._run.poll(name, function, args, every_s)

    # telling

    async def status(self, message: str) -> None:
        """What the call is doing, in words: the `statusMessage` of its task, now or if it becomes one."""
        self._run.message = message[:MAX_STATUS_CHARS]

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Tell the client how far the call is; nothing happens if it did not ask with a `progressToken`.

        The value must increase with each notification (basic/patterns/progress); one that does not is not sent.
        Inside a task there are no notifications: it becomes the task's `statusMessage`.
        """
        if self._run.task_id is not None:
            done = f"{progress:.12g}" if total is None else f"{progress:.12g} of {total:.12g}"
            await self.status(done if message is None else f"{done}: {message}")
            return
        token = self._call.meta.progress_token
        if token is None or self._call.notify is None:
            return
        if self._last_progress is not None and progress <= self._last_progress:
            return
        self._last_progress = progress
        params = without_none(progressToken=token, progress=progress, total=total, message=message)
        await self._call.notify("notifications/progress", params)

    async def log(self, level: str, data: Any, logger: str | None = None) -> None:
        """Send a log message to the client, if it asked for messages of this level or below with `logLevel`.

        `level` is one of RFC 5424's names, "debug" to "emergency"; `data` is any JSON value. Inside a task it goes to
        the server's log.

        Raises:
            ValueError: there is no such level.
        """
        if level not in LOG_LEVELS:
            raise ValueError(f"{level!r} is not a log level; use one of {', '.join(LOG_LEVELS)}")
        if self._run.task_id is not None:
            fields = {"task": self._run.task_id, "level": level, "logger": logger, "data": data}
            log.info("a task says", extra={"fields": fields})
            return
        wanted = self._call.meta.log_level
        if wanted is None or self._call.notify is None or LOG_LEVELS.index(level) < LOG_LEVELS.index(wanted):
            return
        params = {"level": level, "data": data} | without_none(logger=logger)
        await self._call.notify("notifications/message", params)

    async def tools_changed(self) -> None:
        """Tell listening clients that the list of tools has changed."""
        self._call.publish(TOOLS_CHANGED, None)

    async def prompts_changed(self) -> None:
        """Tell listening clients that the list of prompts has changed."""
        self._call.publish(PROMPTS_CHANGED, None)

    async def resources_changed(self) -> None:
        """Tell listening clients that the list of resources has changed."""
        self._call.publish(RESOURCES_CHANGED, None)

    async def resource_updated(self, uri: str) -> None:
        """Tell clients that subscribed to this URI that what it holds has changed."""
        self._call.publish(RESOURCE_UPDATED, uri)
