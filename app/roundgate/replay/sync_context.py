"""The `Context` of a handler that is a plain function: it runs in a thread, and each method blocks.

The thread is the branch of its handler. A thread cannot create tasks; `SyncContext.map` and
`gather` start threads that are branches. The handler's thread works on items too, so it never waits
for a thread that only it could free.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from threading import Lock
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from anyio import CapacityLimiter, from_thread
from msgspec import Struct, field

from roundgate.aio import in_thread
from roundgate.replay import waiting
from roundgate.replay.asking import ExternalEvent
from roundgate.replay.branches import Branch, InStep, Scope, here, inside
from roundgate.replay.context import CallFacts, Context, run_of
from roundgate.replay.engine import item_branches
from roundgate.replay.run import Run

HELPERS: Final = 40
"""The maximum number of helper threads per event loop."""
_limiters: WeakKeyDictionary[asyncio.AbstractEventLoop, CapacityLimiter] = WeakKeyDictionary()
HOPELESS_PAUSE_S: Final = 1.0
"""The pause in seconds before each further call of the engine by a handler that has made too many
after its run's end."""

I = TypeVar("I")  # noqa: E741  # an item
P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    method: Callable[Concatenate[Context, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncContext, P], T]:
    """Return a method of `Context` as a method that blocks its thread, with the same signature."""

    @wraps(method)
    def call(self: SyncContext, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._wait(partial(method, self._context, *args, **kwargs))

    return call


def _hopping(
    method: Callable[Concatenate[Context, P], T],
) -> Callable[Concatenate[SyncContext, P], T]:
    """Return a method of `Context` that never waits as a method for threads, which runs it in the
    event loop."""

    @wraps(method)
    def call(self: SyncContext, /, *args: P.args, **kwargs: P.kwargs) -> T:
        async def on_the_loop() -> T:
            return method(self._context, *args, **kwargs)

        return self._wait(on_the_loop)

    return call


class SyncExternalEvent:
    """The external event of a handler that is a plain function; `wait` blocks."""

    __slots__ = ("_context", "_event")

    def __init__(self, context: SyncContext, event: ExternalEvent) -> None:
        self._context = context
        self._event = event

    @property
    def name(self) -> str:
        """Return the name that the handler gave the event."""
        return self._event.name

    @property
    def token(self) -> str:
        """Return the sealed token, as `ExternalEvent.token` does."""
        return self._event.token

    @property
    def url(self) -> str:
        """Return the URL for the payload, as `ExternalEvent.url` does."""
        return self._event.url

    def wait(self) -> Any:
        """Wait for the payload and return it, as `ExternalEvent.wait` does."""
        return self._context._wait(self._event.wait)


class SyncContext(CallFacts):
    """The `Context` of a handler that is a plain function; its methods block."""

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        super().__init__(run_of(context))
        self._context = context
        self._run.root.is_thread = True  # busy between two calls of the engine
        self._run.quiescence.begin()

    elicit = _blocking(Context.elicit)
    elicit_url = _blocking(Context.elicit_url)
    elicit_url_done = _blocking(Context.elicit_url_done)
    sample = _blocking(Context.sample)
    roots = _blocking(Context.roots)
    ask = _blocking(Context.ask)
    request_input = _blocking(Context.request_input)
    step = _blocking(Context.step)
    idempotency_key = _blocking(Context.idempotency_key)
    now = _hopping(Context.now)
    random = _hopping(Context.random)
    uuid = _hopping(Context.uuid)
    version = _hopping(Context.version)
    restart = _blocking(Context.restart)
    shed = _blocking(Context.shed)
    continue_as_task = _blocking(Context.continue_as_task)
    sleep = _blocking(Context.sleep)
    sleep_until = _blocking(Context.sleep_until)
    poll = _blocking(Context.poll)
    status = _blocking(Context.status)
    progress = _blocking(Context.progress)
    log = _blocking(Context.log)
    tools_changed = _blocking(Context.tools_changed)
    prompts_changed = _blocking(Context.prompts_changed)
    resources_changed = _blocking(Context.resources_changed)
    resource_updated = _blocking(Context.resource_updated)

    def event(self, name: str, *, timeout_s: float | None = None) -> SyncExternalEvent:
        """Open an external event, as `Context.event` does. The `wait()` of the event blocks."""
        return SyncExternalEvent(
            self, self._wait(partial(self._context.event, name, timeout_s=timeout_s))
        )

    def map(
        self,
        function: Callable[[I], T],
        items: Iterable[I],
        *,
        at_most: int = 8,
        name: str = "map",
        key: Callable[[I], Any] | None = None,
    ) -> list[T]:
        """Call a plain function for each item, as `Context.map` does, in this thread and in free
        helper threads.

        Raises:
            ValueError, Exception: as for `Context.map`.
        """
        if at_most < 1:
            raise ValueError(f"at_most is {at_most}; it must be at least 1")
        parent = self._wait(self._run.enter, "map", name)
        return self._run_items(Items(function, item_branches(parent, name, items, key)), at_most)

    def gather(self, *functions: Callable[[], Any]) -> list[Any]:
        """Run functions without arguments side by side, in threads as `map` does; return their
        results in order. Each function is a branch named after it and numbered.

        Raises:
            Exception: the error of a function.
        """
        parent = self._wait(self._run.enter, "gather")
        placed = [(function, parent.created(function)) for function in functions]
        return self._run_items(Items(_call, placed), len(functions))

    def _run_items(self, work: Items[I, T], at_most: int) -> list[T]:
        helpers = self._wait(self._help, work, at_most - 1)
        try:
            work.work()
        finally:
            self._wait(self._await_helpers, helpers)
        return work.results()

    async def _help(self, work: Items[Any, Any], count: int) -> list[asyncio.Future[None]]:
        return [
            future
            for _ in range(min(count, len(work) - 1))
            if (future := helper(work.work, self._run))
        ]

    async def _await_helpers(self, helpers: Sequence[asyncio.Future[None]]) -> None:
        await asyncio.gather(*helpers)

    @contextmanager
    def branch(self, name: str) -> Iterator[None]:
        """Give a part of the handler a name, as `Context.branch` does: `with ctx.branch("refund"):
        …`"""
        parent = self._wait(self._run.enter, "branch", name)
        with inside(parent.named(name)):
            yield

    @contextmanager
    def timeout(self, seconds: float, name: str = "timeout") -> Iterator[None]:
        """Limit the time of a block, as `Context.timeout` does. The engine checks the limit at each
        call, because threads cannot be interrupted."""
        branch, begun = self._wait(waiting.begin_limit, self._run, name, seconds)
        outside, limit = branch.scopes, Scope(begun.until_ms)
        branch.scopes = (*outside, limit)
        self._run.limits.add(limit)
        try:
            yield
        finally:
            branch.scopes = outside
            self._run.limits.discard(limit)

    def _wait(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Call the engine from this thread, in the thread's branch, and wait for the result. Raise
        RuntimeError in a thread that the handler started itself."""
        place = here.get()
        if place is None:
            raise RuntimeError(
                "ctx was used in a thread that the handler started itself; use ctx.map for threads"
            )
        # the handler catches every error that should end it; slow down its loop
        if self._run.is_hopeless:
            threading.Event().wait(HOPELESS_PAUSE_S)
        with inside(None):  # the task that runs the call in the event loop is not a branch
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


def _call(function: Callable[[], T]) -> T:
    return function()


class Items(Struct, Generic[I, T]):
    """Items and their results. Any number of threads may work on them."""

    function: Callable[[I], T]
    placed: list[tuple[I, Branch]]
    _next: int = 0
    _values: dict[int, T] = field(default_factory=dict)
    _errors: dict[int, BaseException] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def __len__(self) -> int:
        return len(self.placed)

    def work(self) -> None:
        """Run items one after the other until none is left, or one has raised an error."""
        while (index := self._take()) is not None:
            item, branch = self.placed[index]
            try:
                with inside(branch):
                    self._values[index] = self.function(item)
            except BaseException as error:  # `results` raises it in the thread that called `map`
                self._errors[index] = error

    def _take(self) -> int | None:
        with self._lock:
            if self._errors or self._next == len(self.placed):
                return None
            self._next += 1
            return self._next - 1

    def results(self) -> list[T]:
        """Return the results in the order of the items. Raise the first error, if any."""
        for _, error in sorted(self._errors.items()):
            raise error
        return [self._values[index] for index in range(len(self.placed))]


def helper(work: Callable[[], None], run: Run) -> asyncio.Future[None] | None:
    """Start a thread that does the work, or return `None` if no thread is free."""
    limiter = _limiters.setdefault(asyncio.get_running_loop(), CapacityLimiter(HELPERS))
    if limiter.available_tokens < 1:
        return None
    with inside(None):
        return asyncio.ensure_future(_help(work, run, limiter))


async def _help(work: Callable[[], Any], run: Run, limiter: CapacityLimiter) -> None:
    with run.quiescence.moving():
        await in_thread(work, limiter)
