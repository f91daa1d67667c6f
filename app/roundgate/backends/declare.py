"""The decorators `@tool`, `@prompt` and `@resource`: they note what a function is and change nothing about it.

A decorated function stays an ordinary function that a test can call. `backends.python` finds the notes when it loads a
module named in gateway.yaml; there is no registry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar, overload

from roundgate.config import TaskMode
from roundgate.protocol import Annotations, Completion, Icon

F = TypeVar("F", bound=Callable[..., Any])

Completer: TypeAlias = Sequence[str] | Callable[[str], Any]
"""Fixed values, or a function (plain or async) from what was typed to a list of strings or a `Completion`."""

NOTES: Final = "__mcp_declarations__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What tools, prompts and resources have in common; `None` is filled in from the function."""

    name: str | None = None
    title: str | None = None
    description: str | None = None
    icons: Sequence[Icon] = ()
    meta: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolNote(Described):
    """What `@tool` was told."""

    input_schema: Mapping[str, Any] | None = None
    output_schema: Mapping[str, Any] | None = None
    hints: Mapping[str, bool]
    requires: Mapping[str, Any]
    scopes: Sequence[str] = ()
    once: bool = False
    task: TaskMode = "forbidden"
    unasked_answers: bool = False
    approval: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptNote(Described):
    """What `@prompt` was told."""

    complete: Mapping[str, Completer]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceNote(Described):
    """What `@resource` was told."""

    uri: str
    mime_type: str | None = None
    size: int | None = None
    annotations: Annotations | None = None
    complete: Mapping[str, Completer]


Note: TypeAlias = ToolNote | PromptNote | ResourceNote


def notes_of(function: Any) -> Sequence[Note]:
    """The declarations on a function, first applied first; empty for anything else."""
    found = getattr(function, NOTES, ())
    return found if isinstance(found, tuple) else ()


def _attach(function: F, note: Note) -> F:
    setattr(function, NOTES, (*notes_of(function), note))
    return function


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(
    *,
    name: str | None = None,
    title: str | None = None,
    description: str | None = None,
    input_schema: Mapping[str, Any] | None = None,
    output_schema: Mapping[str, Any] | None = None,
    read_only: bool | None = None,
    destructive: bool | None = None,
    idempotent: bool | None = None,
    open_world: bool | None = None,
    icons: Sequence[Icon] = (),
    requires: Mapping[str, Any] | None = None,
    scopes: Sequence[str] = (),
    once: bool = False,
    task: TaskMode = "forbidden",
    unasked_answers: bool = False,
    approval: str | None = None,
    meta: Mapping[str, Any] | None = None,
) -> Callable[[F], F]: ...
def tool(
    function: F | None = None,
    /,
    *,
    name: str | None = None,
    title: str | None = None,
    description: str | None = None,
    input_schema: Mapping[str, Any] | None = None,
    output_schema: Mapping[str, Any] | None = None,
    read_only: bool | None = None,
    destructive: bool | None = None,
    idempotent: bool | None = None,
    open_world: bool | None = None,
    icons: Sequence[Icon] = (),
    requires: Mapping[str, Any] | None = None,
    scopes: Sequence[str] = (),
    once: bool = False,
    task: TaskMode = "forbidden",
    unasked_answers: bool = False,
    approval: str | None = None,
    meta: Mapping[str, Any] | None = None,
) -> F | Callable[[F], F]:
    """Offer a function as a tool (server/tools).

    Name, description and input schema come from the function's name, docstring and signature unless given here. An
    `input_schema` that is given is served verbatim. `read_only`, `destructive`, `idempotent` and `open_world` become
    the hints of the tool's annotations. `requires` names client capabilities, shaped as the schema's
    `ClientCapabilities` (`{"sampling": {}}`): a request that does not declare them is refused with -32021 unrun.
    `scopes` are what the caller's token must grant to see and call the tool. `once` makes sure that a round that is
    sent again, because its answer was lost, is not run again: the retry gets the same outcome. `task` says whether a
    call may outlive its request (docs/tasks.md): "optional" if the client knows tasks, "required" refuses one that does
    not with -32021. A function that takes a `Context` says when, with `ctx.continue_as_task()`; any other becomes a
    task at once. `unasked_answers` takes answers that a client sends before it was asked (docs/rounds.md); without it
    an answer counts only for a question that was put. `approval` is what the user reads above the arguments where the
    back end has calls approved.

    Raises:
        ValueError: `unasked_answers` and `once`: what must happen once needs an answer to a question that was put.
    """
    if unasked_answers and once:
        raise ValueError(
            "unasked_answers and once exclude each other: what must happen once needs a question first"
        )
    hints = {
        "readOnlyHint": read_only,
        "destructiveHint": destructive,
        "idempotentHint": idempotent,
        "openWorldHint": open_world,
    }
    note = ToolNote(
        name=name,
        title=title,
        description=description,
        icons=icons,
        meta=meta,
        input_schema=input_schema,
        output_schema=output_schema,
        hints={hint: value for hint, value in hints.items() if value is not None},
        requires=requires or {},
        scopes=scopes,
        once=once,
        task=task,
        unasked_answers=unasked_answers,
        approval=approval,
    )
    return (
        _attach(function, note)
        if function is not None
        else lambda decorated: _attach(decorated, note)
    )


@overload
def prompt(function: F, /) -> F: ...
@overload
def prompt(
    *,
    name: str | None = None,
    title: str | None = None,
    description: str | None = None,
    icons: Sequence[Icon] = (),
    complete: Mapping[str, Completer] | None = None,
    meta: Mapping[str, Any] | None = None,
) -> Callable[[F], F]: ...
def prompt(
    function: F | None = None,
    /,
    *,
    name: str | None = None,
    title: str | None = None,
    description: str | None = None,
    icons: Sequence[Icon] = (),
    complete: Mapping[str, Completer] | None = None,
    meta: Mapping[str, Any] | None = None,
) -> F | Callable[[F], F]:
    """Offer a function as a prompt (server/prompts); its parameters are the prompt's arguments.

    `complete` gives completions for arguments: `{"language": ["python", "rust"]}` or a function of what was typed.
    """
    note = PromptNote(
        name=name,
        title=title,
        description=description,
        icons=icons,
        meta=meta,
        complete=complete or {},
    )
    return (
        _attach(function, note)
        if function is not None
        else lambda decorated: _attach(decorated, note)
    )


def resource(
    uri: str,
    *,
    name: str | None = None,
    title: str | None = None,
    description: str | None = None,
    mime_type: str | None = None,
    size: int | None = None,
    annotations: Annotations | None = None,
    icons: Sequence[Icon] = (),
    complete: Mapping[str, Completer] | None = None,
    meta: Mapping[str, Any] | None = None,
) -> Callable[[F], F]:
    """Offer a function as a resource, or as a resource template if `uri` has RFC 6570 variables (server/resources).

    The template's variables are the function's parameters. It returns text, bytes, a JSON value, or
    `TextResourceContents` and `BlobResourceContents`.
    """
    note = ResourceNote(
        uri=uri,
        name=name,
        title=title,
        description=description,
        mime_type=mime_type,
        size=size,
        annotations=annotations,
        icons=icons,
        complete=complete or {},
        meta=meta,
    )
    return lambda decorated: _attach(decorated, note)


__all__ = [
    "Completer",
    "Completion",
    "PromptNote",
    "ResourceNote",
    "ToolNote",
    "notes_of",
    "prompt",
    "resource",
    "tool",
]
