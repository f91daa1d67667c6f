"""Conversion between a Python handler's signature and JSON: schemas of its parameters and return
value, request arguments as keyword arguments, and return values as tool results, prompt
messages, resource contents or completions.

pydantic reads the parameters through a `TypedDict` made from the signature. So any parameter name
is possible, and a parameter that is not sent keeps the function's own default. Each function that
converts a return value raises UnusableReturn if it cannot.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import math
import types
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from msgspec import Struct, structs
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import (
    PydanticInvalidForJsonSchema,
    PydanticSchemaGenerationError,
    PydanticUserError,
)
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import CoreSchema, PydanticSerializationError, to_jsonable_python
from typing_extensions import TypedDict  # pydantic refuses typing's own before Python 3.12

from roundgate.aio import Threads, run_with_room
from roundgate.auth import Principal
from roundgate.backends.base import Bound
from roundgate.errors import Inside, ToolError
from roundgate.json import encode, fresh
from roundgate.protocol import (
    ABSENT,
    AudioContent,
    BlobResourceContents,
    Completion,
    EmbeddedResource,
    ImageContent,
    PartlyKnown,
    PromptMessage,
    ResourceContents,
    ResourceLink,
    Schema,
    TextContent,
    TextResourceContents,
    ToolResult,
)
from roundgate.protocol.content import Value
from roundgate.replay import AnyContext, Call, Context, SyncContext, run_of

if TYPE_CHECKING:  # loaded only for rules, and for parameters that are not plain
    from roundgate.backends.python_values import Names
    from roundgate.protocol.readings import Readings


class UnusableReturn(Inside, TypeError):
    """A handler returned a value that has no JSON form, or violates its declared schema."""


class WithoutTitles(GenerateJsonSchema):
    """A schema generator without titles. pydantic's titles repeat the names and cost tokens."""

    def field_title_should_be_set(self, schema: CoreSchema | Any) -> bool:
        return False


class _WithEveryChoice(WithoutTitles):
    """A schema generator that keeps alternatives of a union with equal schemas, because pydantic
    tries each."""

    def get_flattened_anyof(self, schemas: list[JsonSchemaValue]) -> JsonSchemaValue:
        return {"anyOf": schemas}


class FunctionParameter(Struct, frozen=True):
    """A parameter that a caller fills: its name or alias, its description from the docstring, and
    whether it is required."""

    name: str
    description: str | None
    required: bool


class Signature(Struct, frozen=True, dict=True):
    """The description of a function, made by `describe`."""

    summary: str | None
    parameters: tuple[FunctionParameter, ...]
    takes_context: str | None
    """The parameter that receives the `Context`."""
    takes_any: bool
    """Whether the function has `**arguments`, which accept any other argument."""
    is_async: bool
    returns: Any
    """The return annotation, or `Parameter.empty`."""
    _name: str
    _hints: Mapping[str, Any]
    """The annotations of `parameters`, by the function's own names."""
    _is_plain: bool
    """Whether all parameters have types of JSON. Such a signature is valid, and makes its adapter at
    the first call."""
    _defaults: Mapping[str, Any]
    _own_defaults: Mapping[str, Any]
    """Defaults by the function's own names."""
    _changeable: Mapping[str, Any]
    """Mutable defaults by the function's own names. Each call gets a copy, so that calls cannot
    change the defaults of later calls."""

    @cached_property
    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema 2020-12 of the arguments, an object. Raises TypeError if a parameter's
        type has none."""
        schema = self._plain_schema() if self._is_plain else self._schema()
        properties = schema.setdefault("properties", {})
        for parameter in self.parameters:
            shown = properties.get(parameter.name, {})
            if parameter.description:
                shown.setdefault("description", parameter.description)
            if parameter.name in self._defaults:
                shown.setdefault("default", self._defaults[parameter.name])
        return schema

    def _schema(self) -> dict[str, Any]:
        try:
            schema = self._adapter.json_schema(schema_generator=WithoutTitles)
        except PydanticInvalidForJsonSchema as error:
            reason = str(error).splitlines()[0]
            raise TypeError(f"a parameter has no JSON Schema: {reason}. {_TYPES}") from error
        schema.pop("title", None)
        return schema

    def _plain_schema(self) -> dict[str, Any]:
        """Return the result of `_schema` for plain parameters. Their schemas one by one take a fifth
        of the time, because most are those of earlier parameters."""
        required = [parameter.name for parameter in self.parameters if parameter.required]
        hints = zip(self.parameters, self._hints.values(), strict=True)
        return {
            "additionalProperties": False,
            "properties": {parameter.name: fresh(_derive(hint)[1]) for parameter, hint in hints},
            **({"required": required} if required else {}),
            "type": "object",
        }

    @property
    def compiled(self) -> tuple[dict[str, Any], Schema] | None:
        """The input schema, and the check of arguments by pydantic; `None` if JSON Schema has to
        check them."""
        if not self._is_plain:
            return None
        return self.input_schema, Schema(self.input_schema, self._accepts)

    def _accepts(self, arguments: Any) -> bool:
        return self._adapter.validator.isinstance_python(arguments, strict=True)

    @cached_property
    def _adapter(self) -> TypeAdapter[dict[str, Any]]:
        """Reads arguments. Raises TypeError if a parameter's type has no JSON Schema."""
        fields = {
            name: NotRequired[hint] if name in self._own_defaults else Required[hint]
            for name, hint in self._hints.items()
        }
        make: Any = TypedDict  # type checkers accept only fields that are known before run time
        arguments = make(self._name, fields)
        arguments.__pydantic_config__ = ConfigDict(extra="allow" if self.takes_any else "forbid")
        try:
            return TypeAdapter(arguments)
        except Exception as error:
            reason = str(error).splitlines()[0].partition(". Set `")[0]
            raise TypeError(f"a parameter has no JSON Schema: {reason}. {_TYPES}") from error

    @cached_property
    def _readings(self) -> Readings:
        from roundgate.protocol.readings import Readings

        schema = self._adapter.json_schema(schema_generator=_WithEveryChoice)
        return Readings(schema, of_pydantic=True)

    @cached_property
    def names(self) -> Names:
        from roundgate.backends.python_values import Names

        return Names.of(self._adapter.core_schema)

    def known(self, bound: Mapping[str, Any]) -> PartlyKnown:
        """Return bound arguments as JSON, with the function's defaults, under the schema's names."""
        values = {**self._own_defaults, **bound}
        in_order = {name: values[name] for name in self.names.parameters if name in values}
        return self.names.read(in_order | values)

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return keyword arguments, converted to the annotated types. Lists and dicts, including
        defaults, are copies, so a handler that changes them does not change the call or its
        task.

        Raises:
            ValueError: an argument is invalid (the message names each, with the reason), or
                validation would take too many attempts.
        """
        if not self._is_plain and self._readings.may_exceed(MAX_READINGS, arguments):
            raise ValueError(
                f"validating them takes more than {MAX_READINGS:,} attempts; send less, or nest values less deeply"
            )
        try:
            # pydantic itself copies the lists of plain parameters
            own = arguments if self._is_plain else fresh(arguments)
            bound: dict[str, Any] = self._adapter.validator.validate_python(own)
        except ValidationError as error:
            if (count := error.error_count()) > _MAX_ERRORS:
                raise ValueError(f"{count} values are invalid") from None
            wrong = [
                f"{'.'.join(map(str, e['loc']))}: {e['msg']}"[:_MAX_MESSAGE]
                for e in error.errors(include_input=False)[:8]
            ]
            raise ValueError("; ".join(wrong)) from None
        for name, default in self._changeable.items():
            if name not in bound:
                bound[name] = copy.deepcopy(default)
        return bound


_TYPES: Final = "Use plain types, a pydantic model, a dataclass or a TypedDict"
_MAX_ERRORS: Final = 100
"""The maximum number of errors that are listed: each may quote thousands of values or a long name."""
_MAX_MESSAGE: Final = 240
MAX_READINGS: Final = 100_000
"""The maximum number of attempts for validating one call's arguments, including missing members.
They block the event loop for some 50 ms."""
_CONTEXTS: Final = (Context, SyncContext)


def describe(function: Callable[..., Any]) -> Signature:
    """Read a function's signature, hints and docstring.

    Raises:
        TypeError: `function` is not a function with one result, a parameter cannot be filled by
            name, or its type has no JSON Schema.
    """
    _check_function(function)
    hints = _read_hints(function)
    summary, described = _read_docstring(function)
    filled: dict[str, Any] = {}
    parameters: list[FunctionParameter] = []
    defaults: dict[str, Any] = {}
    own_defaults: dict[str, Any] = {}
    changeable: dict[str, Any] = {}
    takes_context, takes_any = None, False
    for name, parameter in inspect.signature(function).parameters.items():
        hint = hints.get(name, Any)
        if _is_context(hint):
            if takes_context is not None:
                raise TypeError(f"{takes_context!r} and {name!r} both take the context; keep one")
            takes_context = name
        elif (name not in hints and name == "ctx") or any(
            argument in _CONTEXTS for argument in get_args(hint)
        ):
            raise TypeError(
                f"{name!r} receives the context only if it is annotated as {name}: Context"
            )
        elif parameter.kind is parameter.VAR_KEYWORD:
            takes_any = True
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise TypeError(
                f"parameter {name!r} cannot be filled by name; make it an ordinary or keyword-only parameter"
                + _OF_WRAPPERS * (parameter.kind is parameter.VAR_POSITIONAL)
            )
        else:
            required = parameter.default is parameter.empty
            filled[name] = hint
            parameters.append(
                FunctionParameter(_public_name(name, hint), described.get(name), required)
            )
            if not required:
                own_defaults[name] = parameter.default
                _note_default(defaults, parameters[-1].name, parameter.default)
                if _can_change(parameter.default):
                    changeable[name] = parameter.default
    signature = Signature(
        summary=summary,
        parameters=tuple(parameters),
        takes_context=takes_context,
        takes_any=takes_any,
        is_async=inspect.iscoroutinefunction(inspect.unwrap(function)),
        returns=hints.get("return", inspect.Parameter.empty),
        _name=function.__name__,
        _hints=filled,
        _is_plain=not takes_any and all(map(_is_plain, filled.values())),
        _defaults=defaults,
        _own_defaults=own_defaults,
        _changeable=changeable,
    )
    if not signature._is_plain:
        _ = signature._adapter
    return signature


_OF_WRAPPERS: Final = " (if your own decorator made the function, add functools.wraps to it)"


def _check_function(function: Callable[..., Any]) -> None:
    """Raise TypeError unless `function` is a function that returns one result."""
    if inspect.isclass(function):
        raise TypeError("is a class: decorate a function that makes one and uses it")
    inner = inspect.unwrap(function)
    if not inspect.isroutine(inner):  # such as a functools.partial
        raise TypeError(f"is a {type(function).__name__}: write a function that calls it")
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise TypeError(
            "is a generator, but a call has one result: return a list; report progress with `await ctx.progress(…)`"
        )


def _read_hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TypeError(
            f"{error} in its annotations: define or import the name at the top of the module, not in a function and"
            " not below TYPE_CHECKING"
        ) from None


def _is_context(hint: Any) -> bool:
    """Return whether an annotation is a context, which may be optional."""
    if get_origin(hint) is Annotated:
        return _is_context(get_args(hint)[0])
    options = [option for option in get_args(hint) if option is not type(None)]
    if get_origin(hint) in (Union, types.UnionType) and len(options) == 1:
        return _is_context(options[0])
    return hint in _CONTEXTS


def _is_plain(hint: Any) -> bool:
    """Return whether an annotation consists of types of JSON, so that values which pydantic accepts
    without conversion conform to its schema. Dicts do not, because pydantic accepts names that are
    not valid text; JSON Schema is thirty times as fast for lists of lists."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _is_plain(parts[0]) and all(map(_is_plain_note, parts[1:]))
    if origin in (Union, types.UnionType):
        return all(map(_is_plain, parts))
    return (parts[0] if origin is list else hint) in (bool, int, float, str, type(None))


def _is_plain_note(note: Any) -> bool:
    """Return whether a note of an annotation adds only a description and bounds, which mean the same
    to pydantic and in JSON Schema."""
    if isinstance(note, (Ge, Gt, Le, Lt)):
        (bound,) = dataclasses.astuple(note)
        return isinstance(bound, int) or (isinstance(bound, float) and math.isfinite(bound))
    if not isinstance(note, FieldInfo):
        return isinstance(note, (str, MinLen, MaxLen))
    attributes = note.asdict()["attributes"] | {"description": None}
    return attributes == _UNSET and all(map(_is_plain_note, note.metadata))


_UNSET: Final = FieldInfo().asdict()["attributes"]


def _public_name(name: str, hint: Any) -> str:
    """Return the name of a parameter for callers: `from_: Annotated[str, Field(alias="from")]` is
    `from`."""
    notes = [note for note in getattr(hint, "__metadata__", ()) if isinstance(note, FieldInfo)]
    alias: Any = next((n.validation_alias for n in notes if n.validation_alias is not None), name)
    if isinstance(alias, str):
        return alias
    from roundgate.backends.python_values import schema_name

    return schema_name(name, alias.convert_to_aliases())


def _can_change(default: Any) -> bool:
    """Return whether a default can change, as lists and models, which have no hash, and can be
    copied."""
    try:
        hash(default)
    except TypeError:
        return _can_be_copied(default)
    return False


def _can_be_copied(default: Any) -> bool:
    try:
        copy.deepcopy(default)
    except Exception:  # parts such as locks or connections raise errors of any type
        return False
    return True


def _note_default(defaults: dict[str, Any], name: str, value: Any) -> None:
    if isinstance(value, FieldInfo):  # the function would receive the Field, not its default
        raise TypeError(
            f"parameter {name!r} has Field(…) as its default; write Annotated[…, Field(…)] = … instead"
        )
    try:
        shown = to_jsonable_python(value, fallback=_members)
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
    import docstring_parser  # here: 30 ms that most cold starts do not need to pay

    try:
        parsed = docstring_parser.parse(text)
    except Exception:  # on some prose the parser raises errors of any type
        return text, {}
    described = {entry.arg_name: entry.description for entry in parsed.params if entry.description}
    if not described:
        return text, {}  # unparsed, because the parser would drop sections such as Example
    return (parsed.description or "").strip() or None, described


_BYTES: Final = (bytes, bytearray, memoryview)
BLOCKS: Final = (TextContent, ImageContent, AudioContent, ResourceLink, EmbeddedResource)


class ToolReturn(Struct, frozen=True):
    """The conversion of one tool's return values. `schema` is the tool's `outputSchema`, or
    `None`."""

    adapter: TypeAdapter[Any] | None
    schema: dict[str, Any] | None
    checker: Schema | None

    @classmethod
    def of(cls, annotation: Any, verbatim: dict[str, Any] | None) -> ToolReturn:
        """Read a return annotation; a `verbatim` output schema replaces the derived one.

        Raises:
            ValueError: the output schema is unusable.
        """
        adapter, derived = (None, None) if _is_content(annotation) else _derive(annotation)
        if adapter and derived and verbatim is None and _is_plain(annotation):
            accepts = partial(adapter.validator.isinstance_python, strict=True)
            return cls(adapter, derived, Schema(derived, accepts))
        schema = verbatim or derived
        return cls(adapter, schema, None if schema is None else Schema.compile(schema))

    def result(self, value: Any) -> ToolResult:
        """Convert a return value to a tool result; raise UnusableReturn unless it conforms to the
        output schema."""
        if isinstance(value, ToolResult):
            return self._explicit(value)
        if self.checker is None and (
            value is None or isinstance(value, (str, *BLOCKS)) or _is_block_list(value)
        ):
            return ToolResult(content=_blocks(value))
        structured, text = self._structured(value)
        return ToolResult(content=(text,), structured_content=structured)

    def _explicit(self, value: ToolResult) -> ToolResult:
        content = _blocks(value.content)
        meta = None if value.meta is None else to_json(value.meta, "_meta")[0]
        if value.structured_content is ABSENT:
            if self.checker is not None and not value.is_error:
                raise UnusableReturn("has no structured content, which the output schema requires")
            return ToolResult(content, ABSENT, value.is_error, meta)
        structured, text = self._structured(value.structured_content, check=not value.is_error)
        return ToolResult(content or (text,), structured, value.is_error, meta)

    def _structured(self, value: Any, check: bool = True) -> tuple[Any, str]:
        """Return a value as JSON values and as text, checked against the output schema."""
        structured, text = to_json(value, "result", self.adapter)
        if check and self.checker is not None and not self.checker.conforms(structured):
            problems = self.checker.problems(structured, "result")
            raise UnusableReturn(f"does not conform to the output schema: {'; '.join(problems)}")
        return structured, text


def to_json(value: Any, where: str, adapter: TypeAdapter[Any] | None = None) -> tuple[Any, str]:
    """Convert a Python value to JSON values, and these to text; raise UnusableReturn if that is
    impossible. `where` is the name of the value in the error."""
    try:
        written = _dumped(value, adapter, "json")
        text = encode(written).decode()
        # pydantic and `encode` write NaN and Infinity as null
        found = _not_finite(_dumped(value, adapter, "python")) if "null" in text else None
    except (PydanticSerializationError, ValueError) as error:
        raise UnusableReturn(
            f"cannot be written as JSON: {' '.join(str(error).split())[:500]}"
        ) from None
    if found is not None:
        raise UnusableReturn(f"cannot be written as JSON: {where}{found}, which JSON cannot hold")
    return written, text


def _dumped(value: Any, adapter: TypeAdapter[Any] | None, mode: Literal["json", "python"]) -> Any:
    if adapter is None:
        return to_jsonable_python(value, by_alias=True, fallback=_members)
    # no warnings: the output schema decides whether the value fits
    return adapter.serializer.to_python(
        value, mode=mode, by_alias=True, warnings=False, fallback=_members
    )


def _members(value: Any) -> dict[str, Any]:
    """Return the members of a value whose type no annotation names, such as an `Answer` in a dict."""
    if isinstance(value, Value):
        return structs.asdict(value)
    raise PydanticSerializationError(f"Unable to serialize unknown type: {type(value)}")


def _not_finite(value: Any) -> str | None:
    """Return the place of the first float that JSON cannot hold, and the float: `.rows[3] is
    nan`."""
    match value:
        case float():
            return None if math.isfinite(value) else f" is {value}"
        case dict():
            places = ((f".{key}", item) for key, item in value.items())
        case list() | tuple() | set() | frozenset():
            places = ((f"[{index}]", item) for index, item in enumerate(value))
        case _:
            return None
    for place, item in places:
        if (found := _not_finite(item)) is not None:
            return place + found
    return None


def prompt_messages(value: Any) -> Sequence[PromptMessage]:
    """Return the messages of a prompt; a string or block becomes a message of the user. Raise
    UnusableReturn for any other value."""
    messages: list[PromptMessage] = []
    for item in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(item, PromptMessage):
            messages.append(item)
        elif isinstance(item, (str, *BLOCKS)):
            messages.append(PromptMessage("user", item))
        else:
            raise UnusableReturn(
                f"is {type(item).__name__}, not a str, a content block or a PromptMessage"
            )
    return messages


def resource_contents(value: Any, uri: str, mime_type: str | None) -> Sequence[ResourceContents]:
    """Return the contents of a resource: explicit contents unchanged, text, bytes, or other values
    as JSON."""
    explicit = (TextResourceContents, BlobResourceContents)
    if isinstance(value, explicit):
        return (value,)
    if (
        isinstance(value, (list, tuple))
        and value
        and all(isinstance(item, explicit) for item in value)
    ):
        return list(value)
    if isinstance(value, str):
        return (TextResourceContents(uri, value, mime_type or "text/plain"),)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return (BlobResourceContents(uri, bytes(value), mime_type or "application/octet-stream"),)
    return (
        TextResourceContents(uri, to_json(value, "contents")[1], mime_type or "application/json"),
    )


def completion(value: Any) -> Completion:
    """Return a `Completion` unchanged, or make one from a string or a sequence of strings. Raise
    UnusableReturn if a suggestion is no string."""
    is_made = isinstance(value, Completion)
    found = value if is_made else Completion([value] if isinstance(value, str) else list(value))
    for text in found.values:
        if not isinstance(text, str):
            raise UnusableReturn(f"completes an argument with {type(text).__name__}; use str")
    return found


def _blocks(value: Any) -> Sequence[Any]:
    """Return the blocks of a tool's content: none, one block or text, or several. Raise
    UnusableReturn for a value of another type."""
    if value is None:
        return ()
    blocks = (value,) if isinstance(value, (str, *BLOCKS)) else tuple(value)
    for block in blocks:
        if not isinstance(block, (str, *BLOCKS)):
            raise UnusableReturn(
                f"has {type(block).__name__} in its content; use a str or a content block"
            )
        if isinstance(block, (ImageContent, AudioContent)) and not isinstance(block.data, _BYTES):
            raise UnusableReturn(
                f"has {type(block).__name__} with data that is {type(block.data).__name__}, not bytes"
            )
    return blocks


def _is_block_list(value: Any) -> bool:
    """Return whether a value is a list of content: at least one block, and otherwise only
    strings."""
    if not isinstance(value, (list, tuple)) or not any(isinstance(item, BLOCKS) for item in value):
        return False
    return all(isinstance(item, (str, *BLOCKS)) for item in value)


_COMMON: Final = (bool, int, float, str, dict, list)
_NO_SCHEMA: Final = (inspect.Parameter.empty, Any, object, None, type(None), str, ToolResult)


def _is_common(annotation: Any) -> bool:
    """Return whether many tools may share the schema of a type: a plain type, or a list or dict of
    plain types. Unions may not, because `int | str` equals `str | int`."""
    if get_origin(annotation) in (list, dict):
        return all(map(_is_common, get_args(annotation)))
    return annotation in _COMMON


def _is_content(annotation: Any) -> bool:
    """Return whether an annotation promises text, blocks or nothing in particular, rather than
    data."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if annotation in _NO_SCHEMA or annotation in BLOCKS:
        return True
    if get_origin(annotation) in (Union, types.UnionType):
        return any(
            _is_content(option) for option in get_args(annotation) if option is not type(None)
        )
    if get_origin(annotation) in (list, tuple, Sequence):
        return any(_mentions_block(item) for item in get_args(annotation))
    return False


def _mentions_block(annotation: Any) -> bool:
    return annotation in BLOCKS or any(_mentions_block(option) for option in get_args(annotation))


def _derive(annotation: Any) -> tuple[TypeAdapter[Any] | None, dict[str, Any] | None]:
    """Return the adapter and the JSON Schema of a type; `None` for a type without a schema: results
    still become JSON, but have no output schema."""
    derive = _derive_once if _is_common(annotation) else _derive_once.__wrapped__
    return derive(annotation)


@lru_cache(maxsize=256)
def _derive_once(annotation: Any) -> tuple[TypeAdapter[Any] | None, dict[str, Any] | None]:
    try:
        adapter = TypeAdapter(annotation)
        return adapter, adapter.json_schema(mode="serialization", schema_generator=WithoutTitles)
    except (PydanticSchemaGenerationError, PydanticUserError):
        return None, None


class Callee(Struct, frozen=True):
    """A function that is called without blocking the event loop."""

    function: Callable[..., Any]
    signature: Signature
    threads: Threads
    version: str
    """A digest of the function's code (`versions`)."""

    def __call__(self, context: AnyContext, keywords: dict[str, Any]) -> Awaitable[Any]:
        """Call the function with bound `keywords`, and the context if the function takes it; return
        its value."""
        signature = self.signature
        if not isinstance(context, Call):
            run_of(context).declare(self.version)
            if name := signature.takes_context:
                keywords[name] = context if signature.is_async else SyncContext(context)
        if signature.is_async:
            called: Awaitable[Any] = self.function(**keywords)
            return called
        return self._in_thread(context.principal, keywords)

    async def _in_thread(self, caller: Principal, keywords: dict[str, Any]) -> Any:
        value = await run_with_room(self.threads, lambda: self.function(**keywords), caller)
        # a plain function may return the coroutine of an async one
        return await value if inspect.isawaitable(value) else value


class PythonTool(Struct, frozen=True):
    """The calls of a function as a tool."""

    callee: Callee
    returns: ToolReturn
    schema: Mapping[str, Any] | None
    """The input schema that the decorator declares, if it declares one."""
    becomes_task_at_once: bool
    """Whether the function must run in a task and cannot call `continue_as_task` itself."""

    async def __call__(self, context: AnyContext, arguments: dict[str, Any]) -> ToolResult:
        """Bind the arguments, and call the function."""
        keywords = self._keywords(arguments)
        if self.becomes_task_at_once:
            await context.continue_as_task()
        return self.returns.result(await self.callee(context, keywords))

    def bind(self, arguments: dict[str, Any]) -> Bound:
        """Return a call that has bound its arguments; raise ToolError if they are invalid."""
        keywords = self._keywords(arguments)

        def known() -> PartlyKnown:
            read = self.callee.signature.known(keywords)
            if self.schema is None:
                return read
            from roundgate.backends.schema_values import ArgumentSchema, named_by

            return named_by(ArgumentSchema(self.schema), arguments, read)

        return Bound(lambda context: self._run(context, keywords), known)

    async def _run(self, context: AnyContext, keywords: dict[str, Any]) -> ToolResult:
        if self.becomes_task_at_once:
            await context.continue_as_task()
        return self.returns.result(await self.callee(context, keywords))

    def _keywords(self, arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            return self.callee.signature.bind(arguments)
        except ValueError as error:
            raise ToolError(f"Invalid arguments: {error}") from None
