"""The decorators `@tool`, `@prompt` and `@resource`: they record what a function is
and change nothing about it.

A decorated function stays an ordinary function that a test can call. `backends.python` finds what
they record when it loads a module named in gateway.yaml; there is no registry. A wrong option is
found when a decorator is used and told when the module is served, so that one run of
`roundgate check` names every mistake of a module, each at the line of its decorator.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypedDict, TypeVar, Unpack, get_args, overload

from roundgate.protocol import Annotations, Icon
from roundgate.settings import TaskMode

F = TypeVar("F", bound=Callable[..., Any])

Completer: TypeAlias = Sequence[str] | Callable[[str], Any]
"""Fixed values, or a function (plain or async) from what was typed to a list of
strings or a `Completion`."""

ATTRIBUTE: Final = "__mcp_declarations__"


class Options(TypedDict, total=False):
    """The options of all three decorators."""

    name: str | None
    """The name, without the prefix of its back end; by default the function's."""
    title: str | None
    """The name shown to people."""
    description: str | None
    """The description for the model; by default the docstring without its list of parameters."""
    icons: Sequence[Icon]
    """Icons shown to people."""
    meta: Mapping[str, Any] | None
    """The `_meta` of the entry in the list."""


class ToolOptions(Options, total=False):
    """The options of `@tool`; without one the function's name, docstring and signature count."""

    input_schema: Mapping[str, Any] | None
    """The JSON Schema of the arguments, served verbatim; by default derived from the signature."""
    output_schema: Mapping[str, Any] | None
    """The JSON Schema of `structuredContent`; by default derived from the return annotation."""
    read_only: bool | None
    """readOnlyHint of the tool's annotations."""
    destructive: bool | None
    """destructiveHint."""
    idempotent: bool | None
    """idempotentHint."""
    open_world: bool | None
    """openWorldHint."""
    requires: Mapping[str, Any] | None
    """Client capabilities, shaped as the schema's `ClientCapabilities` (`{"sampling": {}}`). A
    request that does not declare them is refused with -32021, and the function is not run."""
    scopes: Sequence[str]
    """The scopes that the caller's token must grant to see and call the tool."""
    once: bool
    """Whether a round that is repeated because its answer was lost gets the first outcome instead
    of running again."""
    task: TaskMode
    """Whether a call may outlive its request (`roundgate docs tasks`): "optional" if the client
    knows tasks; "required" refuses one that does not with -32021. A function that takes a `Context`
    says when, with `ctx.continue_as_task()`; any other becomes a task at once."""
    unasked_answers: bool
    """Whether to accept answers that a client sends before it is asked (`roundgate docs rounds`)."""
    approval: str | None
    """The text above the arguments when the user approves a call."""


class PromptOptions(Options, total=False):
    """The options of `@prompt`."""

    complete: Mapping[str, Completer] | None
    """Completions for arguments: `{"language": ["python", "rust"]}`, or a function of what was
    typed."""


class ResourceOptions(Options, total=False):
    """The options of `@resource`, besides its URI."""

    mime_type: str | None
    """The media type of its contents."""
    size: int | None
    """The size of its contents in bytes, if known."""
    annotations: Annotations | None
    """For whom the resource is, and how important it is."""
    complete: Mapping[str, Completer] | None
    """Completions for variables of the template, as of a prompt's arguments."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An argument of a decorator that cannot be what it is."""

    decorator: str
    argument: str
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class _Expected:
    """What an argument may be: a test, and the words for it."""

    fits: Callable[[Any], bool]
    what: str
    remedy: str


def _is_texts(given: Any) -> bool:
    return _is_list(given) and all(isinstance(one, str) and one for one in given)


def _is_list(given: Any) -> bool:
    return isinstance(given, Sequence | set | frozenset) and not isinstance(given, str | bytes)


def _is_completions(given: Any) -> bool:
    return isinstance(given, Mapping) and all(
        isinstance(name, str) and (callable(one) or _is_texts(one) or one == [])
        for name, one in given.items()
    )


def _is_object(given: Any) -> bool:
    return isinstance(given, Mapping) and all(isinstance(name, str) for name in given)


_TEXT: Final = _Expected(
    lambda given: isinstance(given, str) and bool(given.strip()),
    "a text",
    "put it in quotes, or leave it out",
)
_OBJECT: Final = _Expected(
    _is_object, "a mapping with texts as keys", 'write it as {"name": value}, or leave it out'
)
_SWITCH: Final = _Expected(
    lambda given: isinstance(given, bool), "True or False", "write True or False, or leave it out"
)
_MODES: Final = " or ".join(f'"{mode}"' for mode in get_args(TaskMode))
_ICONS: Final = _Expected(
    lambda given: _is_list(given) and all(isinstance(one, Icon) for one in given),
    "a list of Icon",
    "write icons=[Icon(…)]",
)
_COMPLETE: Final = _Expected(
    _is_completions,
    "a mapping from names of arguments to lists of texts, or to functions",
    'write complete={"language": ["python", "rust"]}',
)
_EXPECTED: Final[Mapping[str, _Expected]] = {
    **dict.fromkeys(("name", "title", "description", "approval", "uri", "mime_type"), _TEXT),
    **dict.fromkeys(("input_schema", "output_schema", "requires", "meta"), _OBJECT),
    **dict.fromkeys(
        ("read_only", "destructive", "idempotent", "open_world", "once", "unasked_answers"),
        _SWITCH,
    ),
    "icons": _ICONS,
    "scopes": _Expected(
        lambda given: _is_texts(given) and not any(" " in one for one in given),
        "a list of texts without blanks",
        'write scopes=["a", "b"]',
    ),
    "task": _Expected(
        lambda given: isinstance(given, str) and given in get_args(TaskMode),
        _MODES,
        f"write task={_MODES.rpartition(' or ')[2]}, or leave it out",
    ),
    "size": _Expected(
        lambda given: isinstance(given, int) and not isinstance(given, bool) and given >= 0,
        "a number of bytes",
        "write a number, or leave it out",
    ),
    "annotations": _Expected(
        lambda given: isinstance(given, Annotations),
        "an Annotations",
        "write annotations=Annotations(…)",
    ),
    "complete": _COMPLETE,
}
"""By the name of the option, which means the same for every decorator."""
_SHOWN_CHARS: Final = 60


def faults_of(decorator: str, given: Mapping[str, Any]) -> tuple[Fault, ...]:
    """Return the faults of the options that a decorator was given."""
    return tuple(
        Fault(decorator, name, f"is {_shown(value)}; it has to be {expected.what}", expected.remedy)
        for name, value in given.items()
        if not (expected := _EXPECTED[name]).fits(value)
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}… ({type(value).__name__})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDeclaration:
    """A function's `@tool`."""

    options: ToolOptions
    faults: Sequence[Fault] = ()
    place: tuple[str, int] | None = None
    """File and line of the decorator, if there are faults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptDeclaration:
    """A function's `@prompt`; fields as of a `ToolDeclaration`."""

    options: PromptOptions
    faults: Sequence[Fault] = ()
    place: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceDeclaration:
    """A function's `@resource`; fields as of a `ToolDeclaration`."""

    uri: str
    options: ResourceOptions
    faults: Sequence[Fault] = ()
    place: tuple[str, int] | None = None


Declaration: TypeAlias = ToolDeclaration | PromptDeclaration | ResourceDeclaration


def declarations_of(function: Any) -> Sequence[Declaration]:
    """Return the declarations on a function, first applied first; empty for anything else."""
    try:
        found = getattr(function, ATTRIBUTE, ())
    except Exception:  # framework proxies have attributes only during a request
        return ()
    return found if isinstance(found, tuple) else ()


def _attaching(
    declare: Callable[..., Declaration],
    decorator: str,
    known: type,
    options: Mapping[str, Any],
    **more: Any,
) -> Callable[[F], F]:
    """Return what records a declaration on a function.

    Called by a decorator itself: the place of a fault is two calls above this one.

    Raises:
        TypeError: the decorator has no such option.
    """
    if unknown := sorted(options.keys() - known.__annotations__.keys()):
        raise TypeError(f"{decorator}() got an unexpected keyword argument {unknown[0]!r}")
    given = {name: value for name, value in options.items() if value is not None}
    faults = faults_of(decorator, {**more, **given})
    place = _place_of_decorator() if faults else None
    declaration = declare(options=given, faults=faults, place=place, **more)

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


def _place_of_decorator() -> tuple[str, int] | None:
    """Return file and line of the first caller outside this module."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[F], F]: ...
def tool(function: F | None = None, /, **options: Unpack[ToolOptions]) -> F | Callable[[F], F]:
    """Offer a function as a tool (server/tools).

    Args:
        function: the function, where the decorator is used without parentheses.
        options: see `ToolOptions`.

    Raises:
        ValueError: both `unasked_answers` and `once` are set; a tool that runs once must ask its
            questions first.
    """
    if options.get("unasked_answers") and options.get("once"):
        raise ValueError(
            "unasked_answers and once exclude each other: what must happen once needs a question first"
        )
    attach: Callable[[F], F] = _attaching(ToolDeclaration, "tool", ToolOptions, options)
    return attach if function is None else attach(function)


@overload
def prompt(function: F, /) -> F: ...
@overload
def prompt(**options: Unpack[PromptOptions]) -> Callable[[F], F]: ...
def prompt(function: F | None = None, /, **options: Unpack[PromptOptions]) -> F | Callable[[F], F]:
    """Offer a function as a prompt (server/prompts); its parameters are the prompt's arguments.

    Args:
        function: the function, where the decorator is used without parentheses.
        options: see `PromptOptions`.
    """
    attach: Callable[[F], F] = _attaching(PromptDeclaration, "prompt", PromptOptions, options)
    return attach if function is None else attach(function)


def resource(uri: str, **options: Unpack[ResourceOptions]) -> Callable[[F], F]:
    """Offer a function as a resource, or as a resource template if `uri` has RFC
    6570 variables (server/resources).

    The template's variables are the function's parameters. It returns text, bytes, a JSON value, or
    `TextResourceContents` and `BlobResourceContents`.

    Args:
        uri: where clients read it.
        options: see `ResourceOptions`.
    """
    return _attaching(ResourceDeclaration, "resource", ResourceOptions, options, uri=uri)
