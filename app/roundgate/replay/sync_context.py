"""`Context` for a handler that is a plain function: it runs in a thread, and each
method blocks until it is done.

The thread is the branch of its handler. It cannot create tasks; `SyncContext.map` gives it
threads that are branches.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, Final, NoReturn, TypeVar, overload

from anyio import from_thread
from pydantic import BaseModel

from roundgate.auth import Principal
from roundgate.clock import Deadline
from roundgate.protocol import PromptMessage
from roundgate.replay import fan_out, stepping, waiting
from roundgate.replay.branches import Branch, InStep, here, inside
from roundgate.replay.context import Context, run_of
from roundgate.replay.questions import Answer, Question, Root, Sampled
from roundgate.replay.run import Run
from roundgate.replay.steps import Options
from roundgate.replay.thread_map import Items, ThreadLimit, helper

HOPELESS_PAUSE_S: Final = 1.0

I = TypeVar("I")  # noqa: E741  # an item
M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


class SyncContext:
    """The same call, the same names; see `Context` for what each does."""

    __slots__ = ("_context", "_run")

    def __init__(self, context: Context) -> None:
        self._context = context
        self._run: Run = run_of(context)
        self._run.begin_thread()

    @property
    def principal(self) -> Principal:
        """Who is calling."""
        return self._context.principal

    @property
    def deadline(self) -> Deadline:
        """When this round has to be over."""
        return self._context.deadline

    @property
    def task_id(self) -> str | None:
        """The id of the task that this call has become, if it has."""
        return self._context.task_id

    @property
    def cancelled(self) -> bool:
        """Whether the task was cancelled."""
        return self._context.cancelled

    @property
    def client_capabilities(self) -> Mapping[str, Any]:
        """The capabilities this request declares."""
        return self._context.client_capabilities

    @property
    def client_info(self) -> Mapping[str, Any] | None:
        """The client's name and version as it gives them."""
        return self._context.client_info

    @property
    def state(self) -> dict[str, Any]:
        """Continuation data of the handler's own."""
        return self._context.state

    def supports(self, *required: Question | Mapping[str, Any]) -> bool:
        """Whether the client can be asked these questions, or has these capabilities."""
        return self._context.supports(*required)

    def input_response(self, key: str) -> Any:
        """The client's last response under a key as it came, or `None`."""
        return self._context.input_response(key)

    @overload
    def elicit(
        self,
        name: str,
        message: str,
        fields: type[M],
        *,
        timeout_s: float | None = None,
        default: M | None = None,
    ) -> M: ...
    @overload
    def elicit(
        self,
        name: str,
        message: str,
        fields: Mapping[str, Any],
        *,
        timeout_s: float | None = None,
        default: dict[str, Any] | None = None,
    ) -> dict[str, Any]: ...
    def elicit(
        self,
        name: str,
        message: str,
        fields: Any,
        *,
        timeout_s: float | None = None,
        default: Any = None,
    ) -> Any:
        """`Context.elicit`, blocking."""
        ask = partial(
            self._context.elicit, name, message, fields, timeout_s=timeout_s, default=default
        )
        return self._wait(ask)

    def elicit_url(self, name: str, message: str, url: str) -> None:
        """`Context.elicit_url`, blocking."""
        self._wait(self._context.elicit_url, name, message, url)

    def elicit_url_done(self, name: str) -> None:
        """Call `Context.elicit_url_done`, blocking."""
        self._wait(self._context.elicit_url_done, name)

    def sample(
        self,
        name: str,
        messages: str | Sequence[PromptMessage | Mapping[str, Any]],
        *,
        max_tokens: int,
        **more: Any,
    ) -> Sampled:
        """`Context.sample`, blocking."""
        return self._wait(
            partial(self._context.sample, name, messages, max_tokens=max_tokens, **more)
        )

    def roots(self, name: str = "roots") -> list[Root]:
        """`Context.roots`, blocking."""
        return self._wait(self._context.roots, name)

    def ask(
        self,
        questions: Mapping[str, Question],
        *,
        timeout_s: float | None = None,
        default: Any = None,
    ) -> dict[str, Answer]:
        """`Context.ask`, blocking."""
        return self._wait(
            partial(self._context.ask, questions, timeout_s=timeout_s, default=default)
        )

    def request_input(self, requests: Mapping[str, Mapping[str, Any]]) -> NoReturn:
        """`Context.request_input`, blocking."""
        self._wait(self._context.request_input, requests)
        raise AssertionError("request_input always ends the round")

    def step(
        self,
        name: str,
        function: Callable[..., Any],
        *args: Any,
        timeout_s: float | None = None,
        retries: int = 0,
        backoff: float = 1.0,
        at_most_once: bool = False,
        **kwargs: Any,
    ) -> Any:
        """`Context.step`, blocking."""
        options = Options(timeout_s, retries, backoff, at_most_once)
        return self._wait(stepping.step, self._run, name, function, args, kwargs, options)

    def idempotency_key(self, name: str) -> str:
        """`Context.idempotency_key`, blocking."""
        return self._wait(self._context.idempotency_key, name)

    def map(
        self,
        function: Callable[[I], T],
        items: Iterable[I],
        *,
        at_most: int = 8,
        name: str = "map",
        key: Callable[[I], Any] | None = None,
    ) -> list[T]:
        """`Context.map` for plain functions: this thread runs items, and others beside it
        while there are any free."""
        if at_most < 1:
            raise ValueError(f"at_most is {at_most}; at least one item has to run")
        parent = self._wait(self._run.enter, "map", name)
        work = Items(function, fan_out.branches(parent, name, items, key))
        helpers = self._wait(self._help, work, at_most - 1)
        try:
            work.work()
        finally:
            self._wait(self._await_helpers, helpers)
        return work.results()

    async def _help(self, work: Items[Any, Any], count: int) -> list[asyncio.Future[None]]:
        return [
            one for _ in range(min(count, len(work) - 1)) if (one := helper(work.work, self._run))
        ]

    async def _await_helpers(self, helpers: Sequence[asyncio.Future[None]]) -> None:
        await asyncio.gather(*helpers)

    @contextmanager
    def branch(self, name: str) -> Iterator[None]:
        """`Context.branch`: `with ctx.branch("refund"): …`"""
        parent = self._wait(self._run.enter, "branch", name)
        with inside(parent.named(name)):
            yield

    @contextmanager
    def timeout(self, seconds: float, name: str = "timeout") -> Iterator[None]:
        """`Context.timeout`: looked at whenever the handler asks something, because no
        thread can be interrupted."""
        branch, begun = self._wait(waiting.begin_limit, self._run, name, seconds)
        outside, limit = branch.scopes, ThreadLimit(begun.until_ms)
        branch.scopes = (*outside, limit)
        self._run.limits.add(limit)
        try:
            yield
        finally:
            branch.scopes = outside
            self._run.limits.discard(limit)

    def restart(self, **arguments: Any) -> NoReturn:
        """`Context.restart`, blocking."""
        self._wait(partial(self._context.restart, **arguments))
        raise AssertionError("restart always ends the run")

    def shed(self, name: str = "shed") -> None:
        """`Context.shed`, blocking."""
        self._wait(self._context.shed, name)

    def continue_as_task(self) -> None:
        """`Context.continue_as_task`, blocking."""
        self._wait(self._context.continue_as_task)

    def sleep(self, seconds: float, name: str = "sleep") -> None:
        """`Context.sleep`, blocking."""
        self._wait(self._context.sleep, seconds, name)

    def sleep_until(self, moment: datetime, name: str = "sleep") -> None:
        """`Context.sleep_until`, blocking."""
        self._wait(self._context.sleep_until, moment, name)

    def poll(self, name: str, function: Callable[..., Any], *args: Any, every_s: float) -> Any:
        """`Context.poll`, blocking."""
        return self._wait(partial(self._context.poll, name, function, *args, every_s=every_s))

    def status(self, message: str) -> None:
        """`Context.status`, blocking."""
        self._wait(self._context.status, message)

    def progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        """`Context.progress`, blocking."""
        self._wait(self._context.progress, progress, total, message)

    def log(self, level: str, data: Any, logger: str | None = None) -> None:
        """`Context.log`, blocking."""
        self._wait(self._context.log, level, data, logger)

    def tools_changed(self) -> None:
        """`Context.tools_changed`, blocking."""
        self._wait(self._context.tools_changed)

    def prompts_changed(self) -> None:
        """`Context.prompts_changed`, blocking."""
        self._wait(self._context.prompts_changed)

    def resources_changed(self) -> None:
        """`Context.resources_changed`, blocking."""
        self._wait(self._context.resources_changed)

    def resource_updated(self, uri: str) -> None:
        """`Context.resource_updated`, blocking."""
        self._wait(self._context.resource_updated, uri)

    def _wait(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """What the engine answers, asked from this thread as the branch that it is."""
        place = here.get()
        if place is None:
            raise RuntimeError(
                "ctx was used in a thread that its handler started by itself; use ctx.map for "
                "threads"
            )
        # it swallows whatever ends it: at least it shall not keep a processor busy
        if self._run.is_hopeless:
            threading.Event().wait(HOPELESS_PAUSE_S)
        with inside(None):  # what carries the question over to the event loop is no branch
            return from_thread.run(self._asked_from, place, partial(function, *args))

    async def _asked_from(
        self, place: Branch | InStep, ask: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        here.set(place)
        if isinstance(place, InStep):
            return await ask()
        self._run.quiescence.end()  # the thread waits
        try:
            return await ask()
        finally:
            self._run.quiescence.begin()
