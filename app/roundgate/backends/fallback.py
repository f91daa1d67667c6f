"""The tools with a substitute for a feature that a client lacks, and the names of the gateway's own
tools that provide the substitutes.

    a client lacks           setting           it gets
    questions                `ask_in_words`    the question as text, and a tool that takes the answers
    the tasks extension      `without_tasks`   the result, after a wait; or a handle, and tools for it

The settings are set for all tools (`fallback`) or for one (`override`). If they are unset, tools that
are known to ask and declare no `requires` are asked in words, and tools that have to be tasks return
handles, unless a tool of a back end has the name of one of the gateway's own tools.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Self

from msgspec import Struct

from roundgate.backends.catalog import Catalog
from roundgate.errors import ConfigError, Problem
from roundgate.settings import FallbackConfig, Origin, WithoutTasks


class OwnTool(StrEnum):
    """The gateway's own tools."""

    ANSWER = "answer"
    STATUS = "status"
    RESULT = "result"
    TASK_ANSWER = "task answer"
    CANCEL = "cancel"


class Fallback(Struct, frozen=True):
    """The tools that have a substitute, by name."""

    in_words: frozenset[str]
    """Tools whose questions may be asked as text."""
    waiting: frozenset[str]
    """Tools whose calls wait for their tasks."""
    with_handles: frozenset[str]
    """Tools whose callers get a handle of the task."""
    tasks: frozenset[str]
    """Tools that may be tasks."""
    names: Mapping[OwnTool, str]
    """The names of the gateway's own tools that are served."""

    @classmethod
    def of(cls, catalog: Catalog, config: FallbackConfig) -> Self:
        """Build the substitutes from the defaults and each tool's own settings."""
        tools = [(name, served.tool) for name, served in catalog.tools.items()]
        prefix = config.task_tool_prefix
        of_tasks = {
            OwnTool.STATUS: f"{prefix}status",
            OwnTool.RESULT: f"{prefix}result",
            OwnTool.TASK_ANSWER: f"{prefix}answer",
            OwnTool.CANCEL: f"{prefix}cancel",
        }
        may_answer = config.answer_tool not in catalog.tools
        usual_way: WithoutTasks = (
            "tools" if catalog.tools.keys().isdisjoint(of_tasks.values()) else "none"
        )
        in_words = frozenset(
            name
            for name, tool in tools
            if _first(
                tool.ask_in_words,
                config.ask_in_words,
                may_answer and tool.may_ask and not tool.requires,
            )
        )
        ways = {
            name: tool.without_tasks
            or config.without_tasks
            or (usual_way if tool.task == "required" else "none")
            for name, tool in tools
            if tool.task != "forbidden"
        }
        with_handles = frozenset(name for name, way in ways.items() if way == "tools")
        names: dict[OwnTool, str] = {}
        if in_words:
            names[OwnTool.ANSWER] = config.answer_tool
        if with_handles:
            names |= of_tasks
        waiting = frozenset(name for name, way in ways.items() if way == "wait")
        return cls(in_words, waiting, with_handles, frozenset(ways), names)

    @property
    def is_on(self) -> bool:
        """Return whether any tool has a substitute."""
        return bool(self.in_words or self.waiting or self.with_handles)


def _first(*choices: bool | None) -> bool:
    return next(choice for choice in choices if choice is not None)


def check_names(
    catalog: Catalog, config: FallbackConfig, origin: Origin, continue_tool: str
) -> None:
    """Check that no tool of any view has the name of one of the gateway's own tools.

    Raises:
        ConfigError: lists each collision, with the setting that resolves it.
    """
    problems = [
        problem
        for view in (catalog, *catalog.views.values())
        for problem in _collisions(view, _named(view, config, continue_tool), origin)
    ]
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))


def _named(
    catalog: Catalog, config: FallbackConfig, continue_tool: str
) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the name of each of the gateway's own tools, with the setting that determines the
    name."""
    yield continue_tool, ("sessions", "continue_tool")
    for own, name in Fallback.of(catalog, config).names.items():
        yield name, ("fallback", "answer_tool" if own is OwnTool.ANSWER else "task_tool_prefix")


def _collisions(
    catalog: Catalog, named: Iterable[tuple[str, tuple[str, str]]], origin: Origin
) -> Iterator[Problem]:
    collisions: set[str] = set()
    for name, setting in named:
        if name in catalog.tools:
            backend = catalog.tools[name].backend
            message = f"the gateway's own tool {name!r} is offered by back end {backend!r} too"
            remedy = (
                f"give it another name with {'.'.join(setting)}, or rename that tool, or give its"
                " back end a prefix"
            )
            yield origin.at(*setting).problem(message, remedy)
        elif name in collisions:
            message = f"two of the gateway's own tools would be called {name!r}"
            yield origin.at(*setting).problem(message, f"change {'.'.join(setting)}")
        collisions.add(name)
