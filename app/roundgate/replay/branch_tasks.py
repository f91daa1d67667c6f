"""Creation of tasks: each asyncio task that a handler creates is a branch of it.

`TaskFactory` numbers tasks at their creation. It is installed on the loop with the first run; a
task that belongs to no run costs one look at a context variable.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import copy_context
from types import FrameType
from typing import Any, TypeAlias, TypeVar

from roundgate.replay.branches import Branch, here, inside
from roundgate.replay.driving import Driven
from roundgate.replay.insides import (
    WaitForTimer,
    creator,
    entered_timeout,
    made_by_wait_for,
    refuse_as_completed,
)

T = TypeVar("T")

Factory: TypeAlias = Callable[..., Any]


class TaskFactory:
    """A task factory that gives each task of a handler its branch. Other tasks are created as
    before."""

    def __init__(self, before: Factory | None) -> None:
        self._before = before

    def __call__(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        place = here.get()
        if not isinstance(place, Branch):
            if self._before is None:  # the usual case: a server's task for a request
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
        driven = Driven(coroutine, branch.owner)
        task = self._make(loop, driven, {**options, "context": context}, BranchTask)
        if branch is place:
            made_by_wait_for.add(task)
        return task

    def _make(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Any,
        options: Mapping[str, Any],
        kind: type[asyncio.Task[Any]] = asyncio.Task,
    ) -> Any:
        if self._before is not None:
            # an earlier factory of ours may get the task: the branch is known already
            with inside(None):
                return self._before(loop, coroutine, **options)
        return kind(coroutine, loop=loop, **options)


class BranchTask(asyncio.Task[Any]):
    """A task of a handler. Detects `asyncio.timeout`, which calls `cancelling`, and `as_completed`,
    which calls `add_done_callback`."""

    def cancelling(self) -> int:
        place, timer = here.get(), entered_timeout(sys._getframe(1))
        if timer is not None and isinstance(place, Branch):
            place.notice(timer)
        return super().cancelling()

    def add_done_callback(self, *given: Any, **options: Any) -> None:
        refuse_as_completed(sys._getframe(1))
        super().add_done_callback(*given, **options)


def spawn(branch: Branch, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Create a task that runs as the given branch."""
    context = copy_context()
    context.run(here.set, branch)
    return BranchTask(
        Driven(coroutine, branch.owner), loop=asyncio.get_running_loop(), context=context
    )


def number_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Set the task factory of the event loop, if it is not set yet."""
    factory = loop.get_task_factory()
    if not isinstance(factory, TaskFactory):
        loop.set_task_factory(TaskFactory(factory))


def _branch_of(parent: Branch, coroutine: object) -> Branch:
    """Return the branch of a new task."""
    match creator(sys._getframe(2)):
        case "wait_for", frame:
            # a journal may move from Python 3.11 to later versions, which create no task here
            if (handle := frame.f_locals.get("timeout_handle")) is not None:
                parent.notice(WaitForTimer(handle))
            return parent
        case "as_completed", frame:
            refuse_as_completed(frame)
            return _of_as_completed(parent, frame, coroutine)
    return parent.created(coroutine)


def _of_as_completed(parent: Branch, frame: FrameType, coroutine: Any) -> Branch:
    """Return the branch of a coroutine of `as_completed`, numbered in the order of its list."""
    awaited = parent._awaited
    if id(coroutine) not in awaited:
        given = frame.f_locals.get("fs", frame.f_locals.get("aws"))
        if not isinstance(given, Sequence):
            raise RuntimeError(
                "asyncio.as_completed starts coroutines in no order; give it a list of them"
            )
        if not any(one is coroutine for one in given):
            coroutine.close()  # the wrapper that asyncio made
            raise RuntimeError(
                "asyncio.as_completed starts awaitable objects in no order; give it coroutines or tasks"
            )
        awaited.clear()
        for one in given:
            if asyncio.iscoroutine(one) and id(one) not in awaited:
                awaited[id(one)] = parent.created(one)
    return awaited.pop(id(coroutine))
