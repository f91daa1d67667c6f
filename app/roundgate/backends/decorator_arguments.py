"""What may be given to `@tool`, `@prompt` and `@resource`, and what is wrong with something else.

Found when a decorator is used, told when the module is served: so one run of `roundgate check`
names every mistake of a module, and each at the line of its decorator.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from roundgate.protocol import Annotations, Icon
from roundgate.settings import TaskMode


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
"""By the name of the argument: it means the same for every decorator. `None` is
always what nobody said."""
_SHOWN_CHARS: Final = 60


def faults_of(decorator: str, given: Mapping[str, Any]) -> tuple[Fault, ...]:
    """What is wrong with the arguments that a decorator was given."""
    return tuple(
        Fault(decorator, name, f"is {_shown(value)}; it has to be {expected.what}", expected.remedy)
        for name, value in given.items()
        if value is not None and not (expected := _EXPECTED[name]).fits(value)
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}… ({type(value).__name__})"


def place_of_caller(depth: int = 2) -> tuple[str, int] | None:
    """Return the file and line that use a decorator.

    Args:
        depth: how many calls are in between.
    """
    frame = inspect.currentframe()
    for _ in range(depth):
        frame = frame and frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame else None
