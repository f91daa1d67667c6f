"""Creating tasks: each asyncio task that a handler creates is a branch of it.

`TaskFactory` numbers tasks where they are created. It is set on the loop with the first run and
asks one context variable of any task that belongs to no run.
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
            # it may end in a factory of ours that was set before: the branch is known already
            with inside(None):
                return self._before(loop, coroutine, **options)
        return kind(coroutine, loop=loop, **options)


class BranchTask(asyncio.Task[Any]):
    """A task of a handler. It notices `asyncio.timeout`, which asks it how often it is being
    cancelled, and `as_completed`, which asks to be called back."""

    def cancelling(self) -> int:
        place, timer = here.get(), entered_timeout(sys._getframe(1))
        if timer is not None and isinstance(place, Branch):
            place.notice(timer)
        return super().cancelling()

    def add_done_callback(self, *given: Any, **options: Any) -> None:
        refuse_as_completed(sys._getframe(1))
        super().add_done_callback(*given, **options)


def spawn(branch: Branch, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task that is the given branch, whoever creates it and in whatever order."""
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
    """The branch of a new task."""
    match creator(sys._getframe(2)):
        case "wait_for", frame:
            # a journal goes from Python 3.11 to later ones, which create no task here
            if (handle := frame.f_locals.get("timeout_handle")) is not None:
                parent.notice(WaitForTimer(handle))
            return parent
        case "as_completed", frame:
            refuse_as_completed(frame)
            return _of_as_completed(parent, frame, coroutine)
    return parent.created(coroutine)


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
