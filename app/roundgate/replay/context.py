"""The view that a handler has of the call it serves.

    async def deploy(ctx: Context, env: str) -> str:
        plan = await ctx.step("plan", make_plan, env)                # runs once, in all rounds
        ok = await ctx.elicit("confirm", f"Apply {plan}?", Confirm)  # the next round returns here
        return await ctx.step("apply", apply, plan) if ok.go else "nothing done"

The handler runs from the top in every round, so its actions between these calls must depend on its
arguments, on answers and on steps alone. A plain function runs as a handler in a thread and gets a
`SyncContext`, whose methods of the same names block.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, nullcontext
from datetime import datetime
from random import Random
from typing import Any, Final, NoReturn, TypeAlias, TypeVar, overload
from uuid import UUID

from pydantic import BaseModel

from roundgate.auth import Principal
from roundgate.clock import Deadline
from roundgate.json import fresh
from roundgate.protocol import PromptMessage, notifications
from roundgate.replay import asking, remembered, steps, waiting
from roundgate.replay.asking import ExternalEvent, open_event
from roundgate.replay.branches import Branch, here, inside
from roundgate.replay.engine import item_branches, side_by_side
from roundgate.replay.questions import (
    Answer,
    Form,
    Question,
    Raw,
    Root,
    Roots,
    Sample,
    Sampled,
    Url,
)
from roundgate.replay.run import Call, Run
from roundgate.replay.steps import MAX_INTERVAL_S, RetryIf, StepOptions
from roundgate.replay.waiting import TimeLimit

I = TypeVar("I")  # noqa: E741  # an item
M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")

MAX_STATUS_CHARS: Final = 1_000


class CallFacts:
    """The members of a context that return at once, the same for `Context` and `SyncContext`."""

    __slots__ = ("_call", "_run")

    def __init__(self, run: Run) -> None:
        self._call: Call = run.call
        self._run = run

    @property
    def principal(self) -> Principal:
        """Return the caller."""
        return self._call.principal

    @property
    def deadline(self) -> Deadline:
        """Return the deadline of this round."""
        return self._call.deadline

    @property
    def task_id(self) -> str | None:
        """Return the id of the task that this call has become, or `None`."""
        return self._call.task_id

    @property
    def cancelled(self) -> bool:
        """Return whether the task was cancelled or now belongs to another worker. Long steps can
        check this flag to stop early."""
        return self._run.is_cancelled

    @property
    def client_capabilities(self) -> Mapping[str, Any]:
        """Return the capabilities that this request declares, as the schema's
        `ClientCapabilities`."""
        return self._call.meta.capabilities.declared

    @property
    def client_info(self) -> Mapping[str, Any] | None:
        """Return the client's own name and version, or `None`. Use them for display and logs only:
        the client chooses them freely."""
        return self._call.meta.client_info

    def supports(self, *required: Question | Mapping[str, Any]) -> bool:
        """Return whether the client can answer all of these questions, or has all of these
        capabilities. Capabilities have the shape of `ClientCapabilities`, such as `{"sampling":
        {}}`."""
        return all(
            self._call.capabilities.has(each if isinstance(each, Mapping) else each.requires)
            for each in required
        )

    @property
    def state(self) -> dict[str, Any]:
        """Return the handler's own data for its next round: a mutable dict that contains only JSON.
        The gateway saves the dict at the end of each round and, in a task, with each step."""
        self._run.decide_by_state()
        return self._run.journal.state

    def input_response(self, key: str) -> Any:
        """Return the client's last response under a key, unchanged, or `None`, for a handler that
        asks with `request_input`.

        A response to a question that was not asked is returned only if the tool has
        `unasked_answers`.
        """
        self._run.decide_by_state()
        response = self._run.journal.response(key)
        if response is None and self._call.takes_unasked:
            response = self._run.journal.unasked.get(key)
        return fresh(response) if isinstance(response, dict) else None


class Context(CallFacts):
    """A handler's view of its call."""

    __slots__ = ()

    # questions

    @overload
    async def elicit(
        self,
        name: str,
        message: str,
        fields: type[M],
        *,
        timeout_s: float | None = None,
        default: M | None = None,
    ) -> M: ...
    @overload
    async def elicit(
        self,
        name: str,
        message: str,
        fields: Mapping[str, Any],
        *,
        timeout_s: float | None = None,
        default: dict[str, Any] | None = None,
    ) -> dict[str, Any]: ...
    async def elicit(
        self,
        name: str,
        message: str,
        fields: type[BaseModel] | Mapping[str, Any],
        *,
        timeout_s: float | None = None,
        default: Any = None,
    ) -> Any:
        """Ask the user to fill in a form; return the model, or a dict for a JSON Schema.

        Args:
            name: the key of the question, of A-Z a-z 0-9 _ . - and at most 64 characters. Clients
                see it.
            message: the text for the user.
            fields: a pydantic model or a JSON Schema of type object, whose properties are strings,
                numbers, booleans or choices.
            timeout_s: seconds from the first asking, after which `default` becomes the answer.
            default: the answer after `timeout_s`; if `None`, `TimeoutError` is raised.

        Raises:
            Declined: the user declined or dismissed the form. If the handler does not catch the
                error, the call ends with a result that reports the refusal.
            TimeoutError: no answer came in time, and there is no default.
            MissingCapability: the client cannot show forms. If the handler does not catch the
                error, the client gets the error -32021.
        """
        answers = await self.ask(
            {name: Form(message, fields)}, timeout_s=timeout_s, default=default
        )
        return answers[name].get()

    async def elicit_url(self, name: str, message: str, url: str) -> None:
        """Ask the user to open a page, for data that the client must not see. Return once the user
        agrees.

        Args:
            name: the key of the question, as for `elicit`.
            message: the reason, shown to the user.
            url: an https URL, or an http URL on a loopback address, without a user name.

        Raises:
            ValueError: the URL is not allowed.
            Declined, MissingCapability: as for `elicit`.
        """
        (await self.ask({name: Url(message, url)}))[name].get()

    async def elicit_url_done(self, name: str) -> None:
        """Notify the client that its user has finished with the last page asked for under a name.

        A client of revision 2025-11-25 receives `notifications/elicitation/complete` on the stream
        of its call. The method does nothing for clients of other revisions, and in a task, which
        has no stream.

        Raises:
            ValueError: the handler asked for no page under the name, or the user has not agreed to
                it.
        """
        key = asking.answered_key(self._run, name)
        if key is None:
            raise ValueError(
                f"the user has not agreed to a page {name!r}: call ctx.elicit_url({name!r}, …)"
            )
        if self._call.page_done is not None:
            await self._call.page_done(key)

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
        """Ask the client's model. With `tools`, the model may answer with tool_use blocks.

        Args:
            name: the key of the question, as for `elicit`.
            messages: the text of one user message, or messages as in the schema's
                `SamplingMessage`.
            max_tokens: the maximum length of the answer, in tokens.
            system_prompt: the system prompt, which the client may change or omit.
            temperature: the randomness, from 0 to the model's maximum.
            stop_sequences: texts at which the model stops.
            model_preferences: the schema's `ModelPreferences`, which the client may weigh.
            tools: the schema's `Tool` objects that the model may ask for.
            tool_choice: the schema's `ToolChoice`.

        Raises:
            MissingCapability: the client does not support sampling, or sampling with tools.
        """
        question = Sample(
            messages,
            max_tokens,
            system_prompt,
            temperature,
            stop_sequences,
            model_preferences,
            tools,
            tool_choice,
        )
        sampled: Sampled = (await self.ask({name: question}))[name].get()
        return sampled

    async def roots(self, name: str = "roots") -> list[Root]:
        """Ask for the client's roots. `name` is the key of the question, as for `elicit`.

        Raises:
            MissingCapability: the client does not support roots.
        """
        roots: list[Root] = (await self.ask({name: Roots()}))[name].get()
        return roots

    async def ask(
        self,
        questions: Mapping[str, Question],
        *,
        timeout_s: float | None = None,
        default: Any = None,
    ) -> dict[str, Answer]:
        """Ask several questions at once; each `Answer` says whether it was accepted, declined or
        cancelled.

        Args:
            questions: `Form`, `Url`, `Sample` or `Roots` objects by name; names as for `elicit`.
            timeout_s: seconds from the first asking, after which a missing answer has the action
                "timeout".
            default: the value of missing answers.

        Raises:
            MissingCapability: the client lacks a capability; the error names all missing ones.
        """
        return await asking.ask(self._run, questions, timeout_s, default)

    async def request_input(self, requests: Mapping[str, Mapping[str, Any]]) -> NoReturn:
        """End this round with the schema's `InputRequest` objects by key: the low-level form of
        `ask`. `state` is kept for the next round.

        Raises:
            MissingCapability: the client did not declare a capability that a request needs.
            ValueError: a request has a method that the protocol does not define.
        """
        self._run.decide_by_state()
        await asking.ask_anew(self._run, {key: Raw(request) for key, request in requests.items()})

    # steps

    async def step(
        self,
        /,
        name: str,
        function: Callable[..., Any],
        *args: Any,
        timeout_s: float | None = None,
        retries: int = 0,
        backoff: float = 1.0,
        max_interval_s: float = MAX_INTERVAL_S,
        retry_if: RetryIf | None = None,
        at_most_once: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Run a function once and record its result for the rest of this call, across processes.

        The result is converted to JSON and back, or to the type of the function's return
        annotation: a pydantic model, a dataclass, a date, a decimal, bytes and the like (`roundgate
        docs handlers`). It is the same in every run. A plain function runs in a thread. An
        exception is recorded, too.

        The function runs at least once: it runs again if the process dies before the result is
        recorded. With `at_most_once` the start of the step is recorded first; if the process dies
        after that, the next run raises `OutcomeUnknown`. An ordinary call that may become a task
        becomes one before such a step. Otherwise only the client has the journal, and a client that
        repeats a lost request repeats the step, unless the tool is `once`.

        Args:
            name: the step's place in the handler; a second use in the same branch is another step.
            function: called with `args` and `kwargs`, which must be the same in every run.
            timeout_s: seconds after which the step fails; a thread keeps running, and its result is
                ignored.
            retries: the number of retries after an exception or a timeout, except a `ToolError`,
                which is an answer.
            backoff: seconds before the first retry, doubling with each further one. Each pause is
                shortened at random by up to a half. A task releases its worker meanwhile.
            max_interval_s: the longest pause between two attempts, in seconds.
            retry_if: the errors to retry: a type, a tuple of types, or a function that returns
                whether to retry after an error. A timeout is a `TimeoutError`.
            at_most_once: run the function at most once, as described above; excludes `retries`.

        Raises:
            StepFailed: the function raised an error; the failure is recorded and raised in every
                later round. A `ToolError` is raised unchanged.
            StepTimeout: the function took longer than `timeout_s`.
            NotJson: the result has no JSON form; raised before the call if the annotation already
                shows this.
            OutcomeUnknown: the process died during an `at_most_once` step.
        """
        options = StepOptions(timeout_s, retries, backoff, max_interval_s, retry_if, at_most_once)
        return await steps.step(self._run, name, function, args, kwargs, options)

    async def idempotency_key(self, name: str) -> str:
        """Return an idempotency key for a service that deduplicates requests. The key is the same
        in every run of this call, and different for other calls, names and branches. Pass the key
        to a step."""
        return await remembered.key_for(self._run, name)

    # values that are the same in every run

    def now(self, name: str = "now") -> datetime:
        """Return the time of the first run in UTC, to the millisecond, in every run.

        Args:
            name: the place in the handler, as for `step`. Calls of the same name in a branch are
                numbered, so give a new name to a call that you insert before existing ones.
        """
        return remembered.now(self._run, name)

    def random(self, name: str = "random") -> Random:
        """Return a random number generator with the same seed in every run:
        `ctx.random().choice(hosts)`. Each call returns a new generator; `name` is the place in the
        handler, as for `now`.

        Do not make secrets with a `random.Random`.
        """
        return remembered.random(self._run, name)

    def uuid(self, name: str = "uuid") -> UUID:
        """Return a random UUID (version 4), the same in every run. `name` is the place in the
        handler, as for `now`.

        For a service that deduplicates requests, use `idempotency_key`, which also stays the same
        if a client repeats a lost request.
        """
        return remembered.uuid(self._run, name)

    def version(self, name: str, newest: int, *, oldest: int = 1) -> int:
        """Return the version of a part of the handler that this call has to run.

        A call that passed this place before the change of the handler has version 1; any other call
        has `newest`. The version is the same for the rest of the call, in all branches. If this
        process does not support the version of a task yet, another worker runs the task.

        Args:
            name: the name of the change, as for `step`.
            newest: the version of the current code, 2 for the first change.
            oldest: the oldest version that the code still supports.

        Raises:
            ValueError: `oldest` is less than 1 or greater than `newest`.
        """
        return remembered.version(self._run, name, newest, oldest)

    # side by side

    @overload
    async def gather(
        self, first: Coroutine[Any, Any, T], second: Coroutine[Any, Any, U], /
    ) -> tuple[T, U]: ...
    @overload
    async def gather(
        self,
        first: Coroutine[Any, Any, T],
        second: Coroutine[Any, Any, U],
        third: Coroutine[Any, Any, V],
        /,
    ) -> tuple[T, U, V]: ...
    @overload
    async def gather(self, *coroutines: Coroutine[Any, Any, T]) -> list[T]: ...
    async def gather(self, *coroutines: Coroutine[Any, Any, Any]) -> Any:
        """Run coroutines side by side; return their results in their order.

        Each coroutine is a branch of the handler, named after its function and numbered. To add
        items later, use `map`, whose branches are named after the items.

        Raises:
            Exception: the error of a coroutine; the other coroutines were cancelled.
        """
        try:
            parent = await self._run.enter("gather")
        except BaseException:
            for coroutine in coroutines:
                coroutine.close()
            raise
        return await side_by_side(
            [(parent.created(coroutine), coroutine) for coroutine in coroutines]
        )

    async def map(
        self,
        function: Callable[[I], Awaitable[T]],
        items: Iterable[I],
        *,
        at_most: int | None = None,
        name: str = "map",
        key: Callable[[I], Any] | None = None,
    ) -> list[T]:
        """Call a function for each item side by side; return the results in the order of the items.

        Each item is a branch named after it, so it keeps its records when other items are added or
        removed.

        Args:
            function: an async function of one item, which uses this context.
            items: the arguments of the calls.
            at_most: the maximum number of concurrent calls; by default all run.
            name: the name of this map in the handler; two maps need two names.
            key: returns the name of an item, by default the item itself: `key=lambda order:
                order.id`.

        Raises:
            ValueError: `at_most` is less than 1.
            Exception: the error of the function for an item; the other calls were cancelled.
        """
        if at_most is not None and at_most < 1:
            raise ValueError(f"at_most is {at_most}; it must be at least 1")
        parent = await self._run.enter("map", name)
        slots = nullcontext() if at_most is None else asyncio.Semaphore(at_most)

        async def call_item(item: I) -> T:
            async with slots:
                return await function(item)

        placed = item_branches(parent, name, items, key)
        return await side_by_side([(branch, call_item(item)) for item, branch in placed])

    @asynccontextmanager
    async def branch(self, name: str) -> AsyncIterator[None]:
        """Give a part of the handler a name: `async with ctx.branch("refund"): …`. Places inside
        the block do not depend on the code around the block."""
        parent = await self._run.enter("branch", name)
        part = parent.named(name)
        part.within = parent
        with inside(part):
            yield

    def timeout(self, seconds: float, name: str = "timeout") -> TimeLimit:
        """Return a time limit that survives the process: `async with ctx.timeout(3600): …` raises
        `TimeoutError` when the time is over, also during a question or a sleep. A waiting task
        releases its worker.

        Args:
            seconds: the limit, counted from the first entry of the block; the same in every run.
            name: the place in the handler, as for `step`.
        """
        return TimeLimit(self._run, name, seconds)

    async def shed(self, name: str = "shed") -> None:
        """End this round without a question, the first time. The client's retry continues after
        this call."""
        await waiting.shed(self._run, name)

    # continuing later

    async def continue_as_task(self) -> None:
        """Continue the call as a task on a worker.

        The method does nothing unless the tool has `task="optional"` or `"required"` and the client
        declares the tasks extension.
        """
        await waiting.continue_as_task(self._run)

    async def restart(self, /, **arguments: Any) -> NoReturn:
        """Restart the handler with other arguments and an empty journal, for a task that would
        otherwise run forever.

        Running steps end first. Questions after the restart have new keys.

        Raises:
            NotJson: the arguments have no JSON form.
        """
        await waiting.restart(self._run, arguments)

    async def sleep(self, seconds: float, name: str = "sleep") -> None:
        """Wait for a number of seconds, the same in every run. A task releases its worker
        meanwhile, and continues on time even if processes die. `name` is the place in the handler,
        as for `step`.

        Raises:
            ToolError: a task cannot wait so long (`tasks.max_ttl_s`).
        """
        await waiting.sleep(self._run, name, seconds)

    async def sleep_until(self, moment: datetime, name: str = "sleep") -> None:
        """Wait until a moment, the same in every run, as `sleep` does. Return at once if the moment
        has passed.

        Raises:
            ValueError: the moment has no time zone.
            ToolError: as for `sleep`.
        """
        if moment.tzinfo is None:
            raise ValueError(
                "the moment to sleep until has no time zone; use datetime.now(UTC) instead of "
                "datetime.now()"
            )
        await waiting.sleep(self._run, name, until_ms=round(moment.timestamp() * 1000))

    async def event(self, name: str, *, timeout_s: float | None = None) -> ExternalEvent:
        """Open an external event, such as a webhook. Its `url` takes one payload by POST; its
        `wait()` returns the payload.

        Only a task can wait for an event. An ordinary call that may become a task becomes a task.

        Args:
            name: the place in the handler, as for `step`.
            timeout_s: seconds from now, after which the gateway refuses payloads and `wait()`
                raises `TimeoutError`; by default `tasks.ttl_s`.

        Raises:
            NeedsTask: the call is not a task and cannot become one.
            ToolError: the task has as many open events as it may (`tasks.max_open_events`), or
                cannot wait so long (`tasks.max_ttl_s`).
        """
        return ExternalEvent(self._run, name, await open_event(self._run, name, timeout_s))

    async def poll(
        self, name: str, function: Callable[..., Any], *args: Any, every_s: float
    ) -> Any:
        """Call a function every `every_s` seconds until the result is not `None`; record that
        result as a step does.

        A task releases its worker between two calls. The function must be safe to call again.

        Raises:
            StepFailed, NotJson: as for `step`.
        """
        return await steps.step(self._run, name, function, args, every_s=every_s)

    # notifications

    async def status(self, message: str) -> None:
        """Set the `statusMessage` of the task that the call is or becomes, cut off after 1,000
        characters. A question to the client clears the status if a step has ended since."""
        self._run.is_message_over = False
        self._run.message = message.encode(errors="replace").decode()[:MAX_STATUS_CHARS]

    async def progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Report progress to a client that asked for it with a `progressToken`.

        In a task, progress becomes the `statusMessage` instead.

        Args:
            progress: the work done. The value must increase with each call
                (basic/patterns/progress); other values are not sent.
            total: the whole work, in the same unit, if known.
            message: the current action.
        """
        if self._call.task_id is not None:
            done = f"{progress:.12g}" if total is None else f"{progress:.12g} of {total:.12g}"
            await self.status(done if message is None else f"{done}: {message}")
            return
        await self._call.progress(progress, total, message)

    async def log(self, level: str, data: Any, logger: str | None = None) -> None:
        """Send a log message to the client, if the client asked for this level or a lower one with
        `logLevel`.

        In a task the message goes to the server's log. A replay does not repeat the messages of
        earlier runs.

        Args:
            level: one of RFC 5424's names, "debug" to "emergency".
            data: any JSON value.
            logger: the name of the part of the handler that sends the message.

        Raises:
            ValueError: the level does not exist.
        """
        place = here.get()
        if isinstance(place, Branch) and self._run.is_repeating(place):
            return
        await self._call.log(level, data, logger)

    async def tools_changed(self) -> None:
        """Notify listening clients, at all replicas, that the list of tools has changed."""
        await self._call.publish(notifications.TOOLS_CHANGED, None)

    async def prompts_changed(self) -> None:
        """Notify listening clients, at all replicas, that the list of prompts has changed."""
        await self._call.publish(notifications.PROMPTS_CHANGED, None)

    async def resources_changed(self) -> None:
        """Notify listening clients, at all replicas, that the list of resources has changed."""
        await self._call.publish(notifications.RESOURCES_CHANGED, None)

    async def resource_updated(self, uri: str) -> None:
        """Notify clients that subscribed to this URI, at all replicas, that its content has
        changed."""
        await self._call.publish(notifications.RESOURCE_UPDATED, uri)


def run_of(context: Context) -> Run:
    """Return the run of a context: for the gateway, not for handlers."""
    return context._run


AnyContext: TypeAlias = Context | Call
"""The context of a tool that may run without the engine."""


def call_of(context: AnyContext) -> Call:
    """Return the facts of the call of a context."""
    return context if isinstance(context, Call) else context._call
