"""The decorators `@tool`, `@prompt` and `@resource`, which record options on a function and leave
it otherwise unchanged.

There is no registry: `backends.python` finds the records when it loads a module that gateway.yaml
names. It checks the values of options only then, so one run of `roundgate check` reports every
mistake of a module.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, TypeAlias, TypeVar, Unpack, overload

from msgspec import Struct
from pydantic import ConfigDict, Field
from typing_extensions import TypedDict  # pydantic refuses typing's own before Python 3.12

from roundgate.protocol import Annotations, Icon
from roundgate.protocol.apps import App
from roundgate.settings import TaskMode

F = TypeVar("F", bound=Callable[..., Any])

Completer: TypeAlias = Sequence[str] | Callable[[str], Any]
"""Fixed values, or a function (plain or async) from the typed text to a list of strings or a
`Completion`."""
Scope: TypeAlias = Annotated[str, Field(pattern=r"^\S+$")]
Text: TypeAlias = Annotated[str, Field(pattern=r"\S")]

ATTRIBUTE: Final = "__mcp_declarations__"


class DeclaredOptions(TypedDict, total=False):
    """The options of all three decorators."""

    __pydantic_config__ = ConfigDict(  # type: ignore[misc]
        strict=True, arbitrary_types_allowed=True, revalidate_instances="always"
    )

    name: Text | None
    """The name, without the prefix of its back end; by default the function's name."""
    title: Text | None
    """The name shown to people."""
    description: Text | None
    """The description for the model; by default the docstring without its list of parameters."""
    icons: Sequence[Icon]
    """Icons shown to people."""
    meta: Mapping[str, Any] | None
    """The `_meta` of the entry in the list."""


class ToolOptions(DeclaredOptions, total=False):
    """The options of `@tool`. By default, name, description and schemas come from the function."""

    input_schema: Mapping[str, Any] | None
    """The JSON Schema of the arguments, served verbatim; by default derived from the signature."""
    output_schema: Mapping[str, Any] | None
    """The JSON Schema of `structuredContent`; by default derived from the return annotation."""
    read_only: bool | None
    """`readOnlyHint` of the tool's annotations."""
    destructive: bool | None
    """`destructiveHint` of the tool's annotations."""
    idempotent: bool | None
    """`idempotentHint` of the tool's annotations."""
    open_world: bool | None
    """`openWorldHint` of the tool's annotations."""
    requires: Mapping[str, Any] | None
    """Required client capabilities, shaped as the schema's `ClientCapabilities` (`{"sampling":
    {}}`). A request that does not declare them gets error -32021, and the function does not run."""
    scopes: Sequence[Scope]
    """The scopes that the caller's token must grant to see and call the tool."""
    once: bool
    """Whether a round runs at most once. A client that repeats the round because it lost the answer
    gets the first outcome."""
    task: TaskMode
    """Whether a call may outlive its request (`roundgate docs tasks`). With "optional", a call may
    if the client supports tasks; with "required", other clients get error -32021. A function that
    takes a `Context` becomes a task when it calls `ctx.continue_as_task()`; other functions become
    tasks immediately."""
    unasked_answers: bool
    """Whether to accept answers that a client sends before it is asked (`roundgate docs
    rounds`)."""
    approval: Text | None
    """The text above the arguments when the user approves a call."""
    ui: Text | App | None
    """The HTML page that hosts show for the tool's results (`roundgate docs apps`): the path of a
    file relative to the module's folder, or an `App` with further options."""


class PromptOptions(DeclaredOptions, total=False):
    """The options of `@prompt`."""

    complete: Mapping[str, Completer] | None
    """Completions for arguments: `{"language": ["python", "rust"]}`, or a function that takes the
    typed text."""


class ResourceOptions(DeclaredOptions, total=False):
    """The options of `@resource`, besides its URI."""

    mime_type: Text | None
    """The media type of the resource's contents."""
    size: Annotated[int, Field(ge=0)] | None
    """The size of the resource's contents in bytes, if known."""
    annotations: Annotations | None
    """The audience and priority of the resource."""
    complete: Mapping[str, Completer] | None
    """Completions for the template's variables, as for a prompt's arguments."""


OPTIONS: Final = {"tool": ToolOptions, "prompt": PromptOptions, "resource": ResourceOptions}
"""The options of each decorator, by its name."""


class Declaration(Struct, frozen=True):
    """The record of one decorator on a function."""

    decorator: str
    options: Mapping[str, Any]
    place: tuple[str, int]
    """The file and line of the decorator."""
    uri: str = ""


def read_declarations(function: Any) -> Sequence[Declaration]:
    """Return the declarations on a function, the first applied first; empty for any other
    object."""
    try:
        declared = getattr(function, ATTRIBUTE, ())
    except Exception:  # a framework's proxy may raise outside of a request
        return ()
    return declared if isinstance(declared, tuple) else ()


def _attaching(decorator: str, options: Mapping[str, Any], uri: str = "") -> Callable[[F], F]:
    """Return a decorator that records a declaration on a function.

    Raises:
        TypeError: an option does not exist.
    """
    names = list(OPTIONS[decorator].__annotations__)
    if unknown := sorted(options.keys() - set(names)):
        from difflib import get_close_matches

        near = get_close_matches(unknown[0], names, 1)
        meant = f": did you mean {near[0]}?" if near else ""
        raise TypeError(
            f"{decorator}() got an unexpected keyword argument {unknown[0]!r}{meant}"
            f" (@{decorator} takes {', '.join(names)})"
        )
    set_options = {name: value for name, value in options.items() if value is not None}
    declaration = Declaration(decorator, set_options, _place_of_decorator(), uri)

    def attach(function: F) -> F:
        if isinstance(function, str):
            raise TypeError(
                f"the name of a tool or prompt must be a keyword argument: write name={function!r}"
            )
        if not callable(function):
            raise TypeError(f"the decorator needs a function, but precedes {function!r}")
        setattr(function, ATTRIBUTE, (*read_declarations(function), declaration))
        return function

    return attach


def _place_of_decorator() -> tuple[str, int]:
    """Return the file and line of the innermost caller outside this module."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[F], F]: ...
def tool(function: F | None = None, /, **options: Unpack[ToolOptions]) -> F | Callable[[F], F]:
    """Offer a function as a tool (server/tools).

    Args:
        function: the function, if the decorator is used without parentheses.
        options: see `ToolOptions`.

    Raises:
        TypeError: an option does not exist.
        ValueError: both `unasked_answers` and `once` are set. A tool that runs once must ask its
            questions first.
    """
    if options.get("unasked_answers") and options.get("once"):
        raise ValueError(
            "unasked_answers and once cannot be combined: a tool that runs once must ask its questions first"
        )
    attach: Callable[[F], F] = _attaching("tool", options)
    return attach if function is None else attach(function)


@overload
def prompt(function: F, /) -> F: ...
@overload
def prompt(**options: Unpack[PromptOptions]) -> Callable[[F], F]: ...
def prompt(function: F | None = None, /, **options: Unpack[PromptOptions]) -> F | Callable[[F], F]:
    """Offer a function as a prompt (server/prompts). Its parameters are the prompt's arguments.

    Args:
        function: the function, if the decorator is used without parentheses.
        options: see `PromptOptions`.

    Raises:
        TypeError: an option does not exist.
    """
    attach: Callable[[F], F] = _attaching("prompt", options)
    return attach if function is None else attach(function)


def resource(uri: str, **options: Unpack[ResourceOptions]) -> Callable[[F], F]:
    """Offer a function as a resource, or as a template if `uri` has RFC 6570 variables
    (server/resources).

    The template's variables are the function's parameters. The function returns text, bytes, a JSON
    value, or `TextResourceContents` and `BlobResourceContents`.

    Args:
        uri: the URI or template by which clients read the resource.
        options: see `ResourceOptions`.

    Raises:
        TypeError: an option does not exist.
    """
    return _attaching("resource", options, uri)
