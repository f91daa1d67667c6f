"""Branches: where in a handler something is remembered, however its parts are interleaved.

A handler may run parts of itself side by side. Each asyncio task that it creates is a branch,
known by the name of its coroutine function and by the order in which its parent created it, which
is the same in every run:

    await gather(order(ctx, 7), order(ctx, 9))      order@0/charge   order@0/ship
                                                    order@1/charge   order@1/ship
    async with ctx.branch("refund"):                refund/charge

The key of a step or question is the path of its branch, its name, and which use of that name in
the branch it is if not the first. So it does not matter which branch gets anywhere first. Tasks
that a library creates inside the handler have other names, so they change no number; those created
inside a step have no branch.

`TaskFactory` numbers tasks where they are created. It is set on the loop with the first run and
asks one context variable of any task that belongs to no run.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import logging
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextvars import ContextVar, copy_context
from types import FrameType, MappingProxyType
from typing import Any, Final, NoReturn, Protocol, TypeAlias, TypeVar

from roundgate.errors import HandlerExited, Suspend
from roundgate.values import dataclass

T = TypeVar("T")


_PREFIXES: Final = MappingProxyType(
    {kind: f"{kind}:" for kind in ("sleep", "shed", "task", "timeout", "key")}
)


class Branch:
    """One of the concurrent parts of a handler.

    `owner` identifies its run without referring to it: a reference cycle would wait for the garbage
    collector. `path` is empty, or segments that each end in a slash.
    """

    __slots__ = (
        "_awaited",
        "children",
        "has_branched",
        "is_thread",
        "owner",
        "path",
        "scopes",
        "timeouts",
        "uses",
    )

    def __init__(self, owner: object, path: str = "") -> None:
        self.owner = owner
        self.path = path
        self.scopes: tuple[Any, ...] = ()
        """The durable time limits around whatever it does now, outermost first."""
        self.is_thread = False
        """Whether its code runs in a thread: between two calls of the engine it is
        busy, and nobody sees that."""
        self.uses: dict[tuple[str, str], int] = {}
        self.children: dict[str, int] = {}
        self.has_branched = False
        """Whether another branch was ever made of this one."""
        self.timeouts: Timeouts | None = None
        """Those of `asyncio.timeout` that its run has entered, in case one has to be waited for."""
        self._awaited: dict[int, Branch] = {}

    def key(self, kind: str, name: str) -> str:
        """The place of a use of a name: `order@1/charge`, the second time `order@1/charge#2`.

        What is neither a step nor a question has its kind before its name: `order@1/sleep:sleep`.
        """
        count = self.uses[kind, name] = self.uses.get((kind, name), 0) + 1
        place = f"{self.path}{_PREFIXES.get(kind, '')}{name}"
        return place if count == 1 else f"{place}#{count}"

    def named(self, name: str) -> Branch:
        """The branch that its author has given a name: it keeps its place whatever
        else there is beside it."""
        return self._child(self.key("branch", name).removeprefix(self.path))

    def created(self, coroutine: object) -> Branch:
        """The branch of a task that is being created."""
        function = _name_of(coroutine)
        number = self.children[function] = self.children.get(function, -1) + 1
        return self._child(f"{function}@{number}")

    def notice(self, timer: Timer) -> None:
        """Keep a timer that its code has set."""
        if self.timeouts is None:
            self.timeouts = Timeouts()
        self.timeouts.add(timer, self.path)

    def _child(self, segment: str) -> Branch:
        self.has_branched = True
        if self.timeouts is None:
            self.timeouts = Timeouts()
        child = Branch(self.owner, f"{self.path}{segment}/")
        child.scopes, child.is_thread, child.timeouts = self.scopes, self.is_thread, self.timeouts
        return child


_OF_ANYIO: Final = frozenset({"_run_coro", "_run_wrapped_task"})
"""Coroutines in which anyio's task groups wrap every function; it holds the coroutine."""


def _name_of(coroutine: object) -> str:
    function = _last_name(coroutine)
    if function not in _OF_ANYIO:
        return function
    given = getattr(getattr(coroutine, "cr_frame", None), "f_locals", {})
    return _last_name(given.get("coro") or getattr(given.get("self"), "_coro", coroutine))


def _last_name(coroutine: object) -> str:
    qualified: str = getattr(coroutine, "__qualname__", type(coroutine).__qualname__)
    return qualified.rpartition(".")[2]


class Timer(Protocol):
    """What ends a wait of a handler at a moment of its event loop: an `asyncio.Timeout`,
    or that of `wait_for`."""

    def when(self) -> float | None:
        """On the loop's clock."""


JUST_FIRED_S: Final = 1.0
"""For how long after its moment a timer that has fired may be about to end a wait. Its
block may take longer."""


class Timeouts:
    """The timers that one run has set. They are gone through when it comes to rest; those
    that are over are dropped."""

    __slots__ = ("_timers", "_watermark")

    def __init__(self) -> None:
        self._timers: list[tuple[Timer, str]] = []
        self._watermark = 16

    def add(self, timer: Timer, path: str) -> None:
        """One more, and the path of its branch."""
        self._timers.append((timer, path))
        if len(self._timers) > self._watermark:
            self._timers = [
                (timer, path)
                for timer, path in self._timers
                if _state(timer) in ("active", "expiring")
            ]
            self._watermark = 16 + 2 * len(self._timers)

    def whens(self, now_s: float) -> list[float]:
        """When they end what they are around, on the loop's clock: those that have
        not fired, or only just."""
        whens = [(_state(timer), timer.when()) for timer, _ in self._timers]
        return [
            when
            for state, when in whens
            if when is not None
            and (state == "active" or (state == "expiring" and when > now_s - JUST_FIRED_S))
        ]

    def is_ending(self, path: str) -> bool:
        """Whether one of them has fired, and what it ends contains this branch."""
        return any(
            path.startswith(of) and _state(timer) == "expiring" for timer, of in self._timers
        )


def _state(timer: Timer) -> str:
    """`active`, `expiring` once it has fired, and something else when it has been left."""
    return repr(timer).partition("[")[2].partition("]")[0]


class _WaitFor:
    """The timer of `asyncio.wait_for` in Python 3.11, which has no `asyncio.Timeout`."""

    def __init__(self, handle: asyncio.TimerHandle) -> None:
        self._handle = handle

    def when(self) -> float | None:
        return self._handle.when()

    def __repr__(self) -> str:
        if self._handle.cancelled():
            return "[finished]"
        return (
            "[active]" if self._handle.when() > asyncio.get_running_loop().time() else "[expiring]"
        )


@dataclass(frozen=True, slots=True)
class InStep:
    """The place of a step's function, which must not call the engine."""

    owner: object
    key: str


Here: TypeAlias = Branch | InStep | None

here: Final[ContextVar[Here]] = ContextVar("here", default=None)
"""The branch, or the step, in which code runs; `None` outside of every run."""


class inside:  # noqa: N801  # reads as what it does: `with inside(branch): …`
    """Run a block as that place; with `None`, as code that belongs to no handler."""

    __slots__ = ("_place", "_token")

    def __init__(self, place: Here) -> None:
        self._place = place

    def __enter__(self) -> None:
        self._token = here.set(self._place)

    def __exit__(self, *error: object) -> None:
        here.reset(self._token)


# Driving


class _End:
    """Awaited by an engine call of a handler that goes on although its run has ended:
    whoever drives it stops."""

    def __await__(self) -> Generator[Any, None, None]:
        while True:
            yield self


END: Final = _End()


_given_up: Final[deque[Any]] = deque(maxlen=64)
"""Handlers that are not resumed any more. To let go of one has Python close it, which it does
not let happen either."""


@atexit.register
def _never_close_them() -> None:
    """Keep them beyond the end of the process, if there are any.

    The last thing that Python does is to empty the modules and to close the coroutines
    that are left. What such a handler calls then fails at once, it catches that as well,
    and the process would never end.
    """
    if _given_up:
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_given_up))


log = logging.getLogger("roundgate.replay")


class Driven(Coroutine[Any, Any, T]):
    """A coroutine of a handler, driven so that it cannot end the process.

    `while True: try: await ctx.elicit(…) except BaseException: pass` catches whatever ends it: once
    it awaits `END`, it is not resumed any more. `sys.exit()` in a task would leave the event loop;
    it becomes an error of the handler.
    """

    __slots__ = ("_coroutine",)

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine

    def send(self, value: Any = None) -> Any:
        try:
            awaited = self._coroutine.send(value)
        except (Suspend, SystemExit, KeyboardInterrupt) as error:
            _end(error)
        return awaited if awaited is not END else self._give_up()

    def throw(self, *error: Any) -> Any:
        try:
            awaited = self._coroutine.throw(*error)
        except (Suspend, SystemExit, KeyboardInterrupt) as ending:
            _end(ending)
        return awaited if awaited is not END else self._give_up()

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self

    def __iter__(self) -> Driven[T]:
        return self

    __next__ = send  # one call less: most handlers are over at the first

    def __getattr__(self, name: str) -> Any:
        # its names and cr_frame, for who shows where a task stands
        return getattr(self._coroutine, name)

    def _give_up(self) -> NoReturn:
        name = getattr(self._coroutine, "__qualname__", "handler")
        log.error("%s went on after its run had ended; it is not resumed any more", name)
        _given_up.append(self._coroutine)
        raise Suspend


def _end(error: BaseException) -> NoReturn:
    """The exception to end with, instead of one that would leave the event loop."""
    if isinstance(error, Suspend):
        task = asyncio.current_task()
        # perhaps nobody waits for this branch, and looks at how it ended
        if isinstance(task, _BranchTask):
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise error
    said = (
        f"sys.exit({error.code!r})"
        if isinstance(error, SystemExit)
        else "for the end of the process"
    )
    raise HandlerExited(f"the handler called {said}") from error


# Creating tasks

Factory: TypeAlias = Callable[..., Any]


class TaskFactory:
    """Gives each task that a handler creates its branch; other tasks are made as before."""

    def __init__(self, before: Factory | None) -> None:
        self._before = before

    def __call__(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        place = here.get()
        if not isinstance(place, Branch):
            if (
                self._before is None
            ):  # nearly always: this is how a server makes a task for a request
                return asyncio.Task(coroutine, loop=loop, **options)
            return self._make(loop, coroutine, options)
        branch = _branch_of(place, coroutine)
        context = options.pop("context", None)
        if context is None:
            context = copy_context()
        elif (
            branch is not place
            and isinstance(context.get(here), Branch)
            and context[here] is not place
        ):
            raise RuntimeError(
                "two tasks of a handler cannot share one context=: each is a branch of its own"
            )
        context.run(here.set, branch)
        return self._make(loop, Driven(coroutine), {**options, "context": context}, _BranchTask)

    def _make(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Any,
        options: Mapping[str, Any],
        kind: type[asyncio.Task[Any]] = asyncio.Task,
    ) -> Any:
        if self._before is not None:
            # it may end in a factory of ours that was set before: the branch is known already
            with inside(None):
                return self._before(loop, coroutine, **options)
        return kind(coroutine, loop=loop, **options)


class _BranchTask(asyncio.Task[Any]):
    """A task of a handler. It notices `asyncio.timeout`, which asks it how often
    it is being cancelled."""

    def cancelling(self) -> int:
        notice_timeout(sys._getframe(1))
        return super().cancelling()


def spawn(branch: Branch, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task that is the given branch, whoever creates it and in whatever order."""
    context = copy_context()
    context.run(here.set, branch)
    return _BranchTask(Driven(coroutine), loop=asyncio.get_running_loop(), context=context)


_ENTERS_TIMEOUT: Final = asyncio.Timeout.__aenter__.__code__


def notice_timeout(frame: FrameType) -> None:
    """Keep the `asyncio.timeout` that is being entered, if this is how one asks."""
    place = here.get()
    if frame.f_code is _ENTERS_TIMEOUT and isinstance(place, Branch):
        place.notice(frame.f_locals["self"])


def number_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Set the task factory of the event loop, if it is not set yet."""
    factory = loop.get_task_factory()
    if not isinstance(factory, TaskFactory):
        loop.set_task_factory(TaskFactory(factory))


_WAIT_FOR: Final = asyncio.wait_for.__code__ if sys.version_info < (3, 12) else None
"""Python 3.11 runs what is waited for in a task of its own, later ones in the caller's: a journal
goes from the one to the other, so it is the caller's branch in both."""
_AS_COMPLETED: Final = (
    asyncio.as_completed
    if sys.version_info < (3, 13)
    else vars(asyncio.tasks)["_AsCompletedIterator"].__init__
).__code__
"""It creates tasks in the order of a set, which is another one in every process."""
_FRAMES: Final = 12
"""Between the creation of a task and the function of asyncio that asked for it."""


def _branch_of(parent: Branch, coroutine: object) -> Branch:
    """The branch of a new task."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_FRAMES):
        if frame is None:
            break
        if frame.f_code is _WAIT_FOR:
            if (handle := frame.f_locals.get("timeout_handle")) is not None:
                parent.notice(_WaitFor(handle))
            return parent
        if frame.f_code is _AS_COMPLETED:
            return _of_as_completed(parent, frame, coroutine)
        if frame.f_code.co_flags & _IS_ASYNC:
            break  # whoever awaits this one has not created the task
        frame = frame.f_back
    return parent.created(coroutine)


_IS_ASYNC: Final = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def _of_as_completed(parent: Branch, frame: FrameType, coroutine: Any) -> Branch:
    """Branches in the order in which the coroutines were given."""
    awaited = parent._awaited
    if id(coroutine) not in awaited:
        given = frame.f_locals.get("fs", frame.f_locals.get("aws"))
        if not isinstance(given, Sequence):
            raise RuntimeError(
                "asyncio.as_completed starts coroutines in no order; give it a list of them"
            )
        if not any(one is coroutine for one in given):
            coroutine.close()  # which asyncio has made of the object
            raise RuntimeError(
                "asyncio.as_completed starts awaitable objects in no order; give it coroutines or tasks"
            )
        awaited.clear()
        for one in given:
            if asyncio.iscoroutine(one) and id(one) not in awaited:
                awaited[id(one)] = parent.created(one)
    return awaited.pop(id(coroutine))
