"""The decorators `@tool`, `@prompt` and `@resource`: they record what a function is
and change nothing about it.

A decorated function stays an ordinary function that a test can call. `backends.python` finds what
they record when it loads a module named in gateway.yaml; there is no registry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, TypeAlias, TypeVar, overload

from roundgate.backends.decorator_arguments import Fault, faults_of, place_of_caller
from roundgate.protocol import Annotations, Completion, Icon
from roundgate.settings import TaskMode

F = TypeVar("F", bound=Callable[..., Any])

Completer: TypeAlias = Sequence[str] | Callable[[str], Any]
"""Fixed values, or a function (plain or async) from what was typed to a list of
strings or a `Completion`."""

ATTRIBUTE: Final = "__mcp_declarations__"
_FOUND: Final = ("faults", "place")
"""Fields that no argument is behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What tools, prompts and resources have in common; `None` is filled in from the function."""

    name: str | None = None
    title: str | None = None
    description: str | None = None
    icons: Sequence[Icon] = ()
    meta: Mapping[str, Any] | None = None
    faults: Sequence[Fault] = ()
    """What is wrong with what the decorator was given."""
    place: tuple[str, int] | None = None
    """File and line of the decorator, if something is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDeclaration(Described):
    """What `@tool` was told."""

    input_schema: Mapping[str, Any] | None = None
    output_schema: Mapping[str, Any] | None = None
    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None
    requires: Mapping[str, Any] | None = None
    scopes: Sequence[str] = ()
    once: bool = False
    task: TaskMode = "forbidden"
    unasked_answers: bool = False
    approval: str | None = None

    @property
    def hints(self) -> Mapping[str, bool]:
        """The annotations of the tool's entry, as far as it was told any."""
        said = {
            "readOnlyHint": self.read_only,
            "destructiveHint": self.destructive,
            "idempotentHint": self.idempotent,
            "openWorldHint": self.open_world,
        }
        return {hint: value for hint, value in said.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptDeclaration(Described):
    """What `@prompt` was told."""

    complete: Mapping[str, Completer] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceDeclaration(Described):
    """What `@resource` was told."""

    uri: str
    mime_type: str | None = None
    size: int | None = None
    annotations: Annotations | None = None
    complete: Mapping[str, Completer] | None = None


Declaration: TypeAlias = ToolDeclaration | PromptDeclaration | ResourceDeclaration


def declarations_of(function: Any) -> Sequence[Declaration]:
    """The declarations on a function, first applied first; empty for anything else."""
    try:
        found = getattr(function, ATTRIBUTE, ())
    except Exception:  # framework proxies have attributes only during a request
        return ()
    return found if isinstance(found, tuple) else ()


def _attaching(decorator: str, declaration: Declaration) -> Callable[[F], F]:
    """Called by a decorator itself: what is wrong with its arguments has the place
    two calls above this one."""
    if faults := faults_of(decorator, _arguments(declaration)):
        declaration = replace(declaration, faults=faults, place=place_of_caller(3))

    def attach(function: F) -> F:
        if isinstance(function, str):
            raise TypeError(
                f"the name of a tool or prompt is given by name: write name={function!r}"
            )
        if not callable(function):
            raise TypeError(f"a decorator of functions stands in front of {function!r}")
        setattr(function, ATTRIBUTE, (*declarations_of(function), declaration))
        return function

    return attach


def _arguments(declaration: Declaration) -> dict[str, Any]:
    """What the decorator was given, by name."""
    names = (field.name for field in fields(declaration))
    return {name: getattr(declaration, name) for name in names if name not in _FOUND}


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

    Every parameter is optional: without it the decorator takes the function's
    name, docstring and signature.

    Args:
        function: the function, where the decorator is used without parentheses.
        name: the tool's name, without its back end's prefix.
        title: the name shown to people.
        description: the description for the model; by default the docstring without its list of
            parameters.
        input_schema: the JSON Schema of the arguments, served verbatim; by default derived from the
            signature.
        output_schema: the JSON Schema of `structuredContent`; by default derived from the return
            annotation.
        read_only: readOnlyHint of the tool's annotations, and so on for the next three.
        destructive: destructiveHint.
        idempotent: idempotentHint.
        open_world: openWorldHint.
        icons: icons shown to people.
        requires: client capabilities, shaped as the schema's `ClientCapabilities`
            (`{"sampling": {}}`). A request that does not declare them is refused with -32021,
            and the function is not run.
        scopes: the scopes that the caller's token must grant to see and call the tool.
        once: whether a round that is repeated because its answer was lost gets the first outcome
            instead of running again.
        task: whether a call may outlive its request (`roundgate docs tasks`): "optional" if the client knows
            tasks; "required" refuses one that does not with -32021. A function that takes a
            `Context` says when, with `ctx.continue_as_task()`; any other becomes a task at once.
        unasked_answers: whether to accept answers that a client sends before it is asked
            (`roundgate docs rounds`).
        approval: the text above the arguments when the user approves a call.
        meta: the `_meta` of the tool's entry in the list.

    Raises:
        ValueError: both `unasked_answers` and `once` are set; a tool that runs once must ask its
            questions first.
    """
    if unasked_answers and once:
        raise ValueError(
            "unasked_answers and once exclude each other: what must happen once needs a question first"
        )
    attach: Callable[[F], F] = _attaching(
        "tool",
        ToolDeclaration(
            name=name,
            title=title,
            description=description,
            input_schema=input_schema,
            output_schema=output_schema,
            read_only=read_only,
            destructive=destructive,
            idempotent=idempotent,
            open_world=open_world,
            icons=icons,
            requires=requires,
            scopes=scopes,
            once=once,
            task=task,
            unasked_answers=unasked_answers,
            approval=approval,
            meta=meta,
        ),
    )
    return attach if function is None else attach(function)


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

    Args:
        function: the function, where the decorator is used without parentheses.
        name: the prompt's name, without the prefix of its back end; unset, the function's.
        title: another name, for people.
        description: what it is for; unset, the docstring without its list of parameters.
        icons: for people.
        complete: completions for arguments: `{"language": ["python", "rust"]}`, or a
            function of what was typed.
        meta: `_meta` of its entry in the list.
    """
    attach: Callable[[F], F] = _attaching(
        "prompt",
        PromptDeclaration(
            name=name,
            title=title,
            description=description,
            icons=icons,
            complete=complete,
            meta=meta,
        ),
    )
    return attach if function is None else attach(function)


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
    """Offer a function as a resource, or as a resource template if `uri` has RFC
    6570 variables (server/resources).

    The template's variables are the function's parameters. It returns text, bytes, a JSON value, or
    `TextResourceContents` and `BlobResourceContents`.

    Args:
        uri: where clients read it.
        name: its name; unset, the function's.
        title: another name, for people.
        description: what it is; unset, the docstring without its list of parameters.
        mime_type: of its contents.
        size: bytes of its contents, if that is known.
        annotations: for whom it is, and how important.
        icons: for people.
        complete: completions for variables of the template.
        meta: `_meta` of its entry in the list.
    """
    return _attaching(
        "resource",
        ResourceDeclaration(
            uri=uri,
            name=name,
            title=title,
            description=description,
            mime_type=mime_type,
            size=size,
            annotations=annotations,
            icons=icons,
            complete=complete,
            meta=meta,
        ),
    )


__all__ = [
    "Completer",
    "Completion",
    "PromptDeclaration",
    "ResourceDeclaration",
    "ToolDeclaration",
    "declarations_of",
    "prompt",
    "resource",
    "tool",
]
