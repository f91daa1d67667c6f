"""A function's signature ↔ JSON: the schema of its parameters, and the arguments of a request as keyword arguments.

pydantic does both, over a `TypedDict` made from the signature: any parameter name is fine, and a parameter that is not
sent keeps the function's own default.
"""

from __future__ import annotations

import inspect
import json
import types
from collections.abc import Callable, Mapping
from typing import (
    Annotated,
    Any,
    Final,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import CoreSchema, to_jsonable_python
from typing_extensions import TypedDict  # pydantic refuses typing's own before Python 3.12

from roundgate.replay import Context, SyncContext
from roundgate.values import dataclass


class WithoutTitles(GenerateJsonSchema):
    """pydantic titles every field with its own name; that tells a model nothing and costs it tokens."""

    def field_title_should_be_set(self, schema: CoreSchema | Any) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter that a caller fills: its name (the alias, if it has one), its description from the docstring, and
    whether it has no default."""

    name: str
    description: str | None
    required: bool


@dataclass(frozen=True, slots=True)
class Signature:
    """What `describe` found out about a function."""

    summary: str | None
    parameters: tuple[Parameter, ...]
    takes_context: str | None
    """The parameter that gets the `Context`, if there is one."""
    takes_any: bool
    """`**arguments`: whatever is sent is passed on."""
    is_async: bool
    returns: Any
    """The return annotation, or `Parameter.empty`."""
    _adapter: TypeAdapter[dict[str, Any]]
    _defaults: Mapping[str, Any]

    def input_schema(self) -> dict[str, Any]:
        """JSON Schema 2020-12 of the arguments, an object."""
        schema = self._adapter.json_schema(schema_generator=WithoutTitles)
        schema.pop("title", None)
        properties = schema.setdefault("properties", {})
        for parameter in self.parameters:
            shown = properties.get(parameter.name, {})
            if parameter.description:
                shown.setdefault("description", parameter.description)
            if parameter.name in self._defaults:
                shown.setdefault("default", self._defaults[parameter.name])
        return schema

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Keyword arguments, converted to the annotated types.

        Raises:
            ValueError: names each argument that does not fit, and why.
        """
        try:
            bound: dict[str, Any] = self._adapter.validator.validate_python(dict(arguments))
        except ValidationError as error:
            if (count := error.error_count()) > _MAX_ERRORS:  # to list a million takes ten seconds
                raise ValueError(f"{count} values in them do not fit") from None
            wrong = [
                f"{'.'.join(map(str, e['loc']))}: {e['msg']}"
                for e in error.errors(include_input=False)[:8]
            ]
            raise ValueError("; ".join(wrong)) from None
        return bound


_MAX_ERRORS: Final = 1_000
_CONTEXTS: Final = (Context, SyncContext)


def describe(function: Callable[..., Any]) -> Signature:
    """Read a function's signature, hints and docstring.

    Raises:
        TypeError: a parameter cannot be filled by name, or its type has no JSON Schema.
    """
    hints = get_type_hints(function, include_extras=True)
    summary, described = _read_docstring(function)
    fields: dict[str, Any] = {}
    parameters: list[Parameter] = []
    defaults: dict[str, Any] = {}
    takes_context, takes_any = None, False
    for name, parameter in inspect.signature(function).parameters.items():
        hint = hints.get(name, Any)
        if _is_context(hint):
            takes_context = name
        elif parameter.kind is parameter.VAR_KEYWORD:
            takes_any = True
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise TypeError(
                f"parameter {name!r} cannot be filled by name; make it an ordinary or keyword-only parameter"
            )
        else:
            required = parameter.default is parameter.empty
            fields[name] = Required[hint] if required else NotRequired[hint]
            parameters.append(Parameter(_public_name(name, hint), described.get(name), required))
            if not required:
                _note_default(defaults, parameters[-1].name, parameter.default)
    return Signature(
        summary=summary,
        parameters=tuple(parameters),
        takes_context=takes_context,
        takes_any=takes_any,
        is_async=inspect.iscoroutinefunction(inspect.unwrap(function)),
        returns=hints.get("return", inspect.Parameter.empty),
        _adapter=_adapter(function.__name__, fields, closed=not takes_any),
        _defaults=defaults,
    )


def _is_context(hint: Any) -> bool:
    """Whether a parameter is the context, which may be optional for whoever calls the function without a gateway."""
    if get_origin(hint) is Annotated:
        return _is_context(get_args(hint)[0])
    options = [one for one in get_args(hint) if one is not type(None)]
    if get_origin(hint) in (Union, types.UnionType) and len(options) == 1:
        return _is_context(options[0])
    return hint in _CONTEXTS


def _adapter(name: str, fields: dict[str, Any], closed: bool) -> TypeAdapter[dict[str, Any]]:
    make: Any = TypedDict  # for a type checker the fields would have to be known before run time
    arguments = make(name, fields)
    arguments.__pydantic_config__ = ConfigDict(extra="forbid" if closed else "allow")
    try:
        return TypeAdapter(arguments)
    except Exception as error:
        raise TypeError(f"a parameter has no JSON Schema: {str(error).splitlines()[0]}") from error


def _public_name(name: str, hint: Any) -> str:
    """`from_: Annotated[str, Field(alias="from")]` is sent as `from`."""
    notes = [note for note in getattr(hint, "__metadata__", ()) if isinstance(note, FieldInfo)]
    return next(
        (note.validation_alias for note in notes if isinstance(note.validation_alias, str)), name
    )


def _note_default(defaults: dict[str, Any], name: str, value: Any) -> None:
    if isinstance(value, FieldInfo):  # a function gets it as it is, not the value inside
        raise TypeError(
            f"parameter {name!r} has Field(…) as its default; write Annotated[…, Field(…)] = … instead"
        )
    try:
        shown = to_jsonable_python(value)
        json.dumps(shown, allow_nan=False)
    except ValueError:  # a default that JSON cannot show is still a default
        return
    defaults[name] = shown


def _read_docstring(function: Callable[..., Any]) -> tuple[str | None, dict[str, str]]:
    text = inspect.getdoc(function)
    if not text:
        return None, {}
    if "\n" not in text:
        return text, {}
    import docstring_parser  # only for docstrings with more than one line: 30 ms that most cold starts can do without

    try:
        parsed = docstring_parser.parse(text)
    except Exception:  # some prose makes the parser fail, with whatever it runs into
        return text, {}
    described = {entry.arg_name: entry.description for entry in parsed.params if entry.description}
    if not described:
        return text, {}  # as it is: the parser would drop sections such as Example
    return (parsed.description or "").strip() or None, described
