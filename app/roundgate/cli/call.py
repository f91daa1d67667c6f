"""`roundgate call URL TOOL key=value …` and `roundgate wait HANDLE`: a tool call with its rounds
and its task.

`call --detach` prints a handle once the call is a task. `wait` waits for the task on any machine,
even after an interrupted call. The tool's schema gives arguments their types:

limit=5                a value of the property's type; text if the schema has no type
tag=a tag=b            the items of an array, in order; `tag=a` alone is an array of one item
filter:='{"a": 1}'     JSON, regardless of the schema
body=@letter.txt       the text of a file; `=@-` reads standard input
photo=@photo.png       the bytes of a file, where the schema wants base64 or a file
filter:=@filter.json   the JSON of a file
address.city=Paris     a member of an object
name=\\@handle          a value that begins with @
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from roundgate import errors
from roundgate.cli import output, remote
from roundgate.cli.arguments import Commands, command, flag
from roundgate.cli.output import OutputStatus, say
from roundgate.client import Answers, CallResult, Client, Task, split_handle
from roundgate.json import at_reference
from roundgate.protocol.forms import resolved


def declare(commands: Commands) -> None:
    """Add the commands of this module."""
    call = command(
        commands, "call", "call a tool of a server",
        "roundgate call http://127.0.0.1:8000/mcp calculate expression='2 * 21'",
        "roundgate call https://host/mcp search filter:='{\"year\": 2026}' tag=a tag=b | jq .items",
        "roundgate call https://host/mcp deploy env=prod --answers answers.yaml --detach",
        run=run,
    )  # fmt: skip
    remote.add_url(call)
    call.add_argument("tool", help="the tool's name, as `list` prints it")
    remote.add_pairs(call, "arguments, also as KEY:=JSON or KEY=@FILE")
    flag(call, "--detach", "print a handle as soon as the call is a task")
    about = "maximum number of rounds of the call (default: 10)"
    call.add_argument("--max-rounds", type=int, metavar="N", help=about)
    levels = ("debug", "info", "notice", "warning", "error")
    call.add_argument(
        "--log-level", choices=levels, help="show log messages of this level and above"
    )
    remote.add_timeout(call)
    remote.add_answers(call)
    remote.add_connection(call)

    wait = command(
        commands, "wait", "wait for a task", "roundgate wait 'https://host/mcp#task=786512e2'",
        "roundgate wait 'https://host/mcp#task=786512e2' --cancel", run=run,
    )  # fmt: skip
    remote.add_cassette_option(wait)
    wait.add_argument("handle", help="the handle that `call --detach` printed")
    flag(wait, "--cancel", "ask the server to cancel the task instead")
    remote.add_timeout(wait)
    remote.add_answers(wait)
    remote.add_connection(wait)


def run(arguments: argparse.Namespace) -> int:
    """Call a tool, or wait for a task; return an exit status of `cli.remote`."""
    if arguments.command == "call":
        return remote.run(arguments, _call)
    try:
        arguments.url, _ = split_handle(arguments.handle)
    except errors.WrongHandle as error:
        return remote.refused(error)
    return remote.run(arguments, _cancel if arguments.cancel else _wait)


@dataclass(slots=True)
class _Doubt:
    """Whether the effects of a call are unknown: it was sent, and its tool may change something."""

    is_due: bool = False

    def error(self, error: errors.ClientError) -> errors.ClientError:
        """Return an error, with words of doubt if the server may have run the call."""
        match error:
            case errors.ConnectionLost(was_sent=False) | errors.TimedOut(was_sent=False):
                return error
            case errors.HttpRefused(status=status) if status < 500 and status != 408:
                return error
        if self.is_due:
            error.args = (f"{error.args[0]}{errors.DOUBT}",)
        return error


async def _call(client: Client, arguments: argparse.Namespace) -> int:
    doubt = _Doubt()
    try:
        async with asyncio.timeout(arguments.timeout) as limit:
            return await _call_without_limit(client, arguments, doubt)
    except TimeoutError:
        if not limit.expired():
            raise
        text = f"No result of {arguments.tool} within {arguments.timeout:g} s (--timeout)"
        raise doubt.error(errors.TimedOut(text)) from None
    except (errors.BadAnswer, errors.ConnectionLost, errors.HttpRefused, errors.TimedOut) as error:
        raise doubt.error(error) from None


async def _call_without_limit(client: Client, arguments: argparse.Namespace, doubt: _Doubt) -> int:
    tool = next((each for each in await client.tools() if each.name == arguments.tool), None)
    if tool is None and arguments.tool in client.rejected:
        tool = await client.tool(arguments.tool)
    # a tool that is not listed may lack a scope, which only a call tells
    values = parse_arguments(arguments.pairs, {} if tool is None else tool.input_schema)
    with OutputStatus(sys.stderr) as status:
        answers = remote.answers(arguments, status.hide)
        doubt.is_due = tool is None or not tool.may_be_repeated
        try:
            task = await client.start(
                arguments.tool,
                values,
                answers=answers,
                max_rounds=arguments.max_rounds,
                on_progress=status.progressed,
                on_log=status.logged if arguments.log_level else None,
                log_level=arguments.log_level or "info",
            )
        except errors.RpcError as error:
            if tool is None and error.code == _INVALID_PARAMS:
                await client.tool(arguments.tool)  # raises an error with similar names
            raise
        doubt.is_due = False  # there is a result, or a handle
        if arguments.detach and task.handle is not None:
            print(task.handle)
            return remote.DONE
        result = await _finished(task, answers, status, None)
    remote.report_unused(answers)
    return _show(result, arguments)


async def _finished(
    task: Task, answers: Answers, status: OutputStatus, timeout_s: float | None
) -> CallResult:
    """Return the result of a task. If the user interrupts, or a question has no answer, print the
    command that resumes the wait."""
    try:
        return await task.wait(answers=answers, timeout_s=timeout_s, on_task=status.task)
    except (asyncio.CancelledError, KeyboardInterrupt, errors.Unanswered) as error:
        status.hide()
        if task.handle is not None:
            again = f"roundgate wait {shlex.quote(task.handle)}"
            how = (
                ". To wait for it"
                if not isinstance(error, errors.Unanswered)
                else ", once it is answered"
            )
            say(f"The task continues{how}: {again}", to=sys.stderr)
        raise


def _show(result: CallResult, arguments: argparse.Namespace) -> int:
    if arguments.json:
        output.show_json(result.raw)
    else:
        output.show_result(result)
    return remote.FAILED if result.is_error else remote.DONE


async def _wait(client: Client, arguments: argparse.Namespace) -> int:
    task = client.resume(arguments.handle)
    with OutputStatus(sys.stderr) as status:
        answers = remote.answers(arguments, status.hide)
        result = await _finished(task, answers, status, arguments.timeout)
    remote.report_unused(answers)
    return _show(result, arguments)


async def _cancel(client: Client, arguments: argparse.Namespace) -> int:
    task = client.resume(arguments.handle)
    await task.cancel()
    print((await task.get()).status)
    return remote.DONE


_INVALID_PARAMS: Final = -32602
MAX_FILE_BYTES: Final = 32 * 1024 * 1024
_MAX_REFERENCES: Final = 32
_BOOLEANS: Final = {"true": True, "yes": True, "false": False, "no": False}
_TYPES: Final = {
    "array": "an array (as JSON, or item by item)",
    "boolean": "true or false",
    "integer": "an integer",
    "null": "null",
    "number": "a number",
    "object": "an object (as JSON, or as key.member=value)",
    "string": "text",
}

_Schema: TypeAlias = Mapping[str, Any]


def parse_arguments(pairs: Iterable[str], schema: _Schema) -> dict[str, Any]:
    """Return the arguments of a call.

    Args:
        pairs: words of the command line, each a `key=value` or `key:=json`.
        schema: the tool's `inputSchema`.

    Raises:
        UsageError: a pair is malformed, does not match its type, or contradicts another pair.
    """
    arguments: dict[str, Any] = {}
    types = _PropertyTypes(schema)
    for pair in pairs:
        _Pair.parse(pair).add_to(arguments, types)
    return arguments


@dataclass(frozen=True, slots=True)
class _Pair:
    """One argument of the command line."""

    key: str
    text: str
    is_json: bool
    data: bytes | None = None
    """The bytes of a file."""
    file: str = ""

    @classmethod
    def parse(cls, pair: str) -> _Pair:
        key, equals, text = pair.partition("=")
        is_json = key.endswith(":")
        key = key.removesuffix(":")
        if not equals or not key:
            raise errors.UsageError(f"{pair!r} is not an argument: write key=value, or key:=json")
        if text.startswith("@"):
            data = _read_file(text[1:], key)
            return cls(key, data.decode("utf-8", "replace"), is_json, data, text[1:])
        return cls(key, text.removeprefix("\\") if text.startswith("\\@") else text, is_json)

    def add_to(self, arguments: dict[str, Any], types: _PropertyTypes) -> None:
        *path, name = types.path(self.key)
        holder = arguments
        for step in path:
            holder = holder.setdefault(step, {})
            if not isinstance(holder, dict):
                raise errors.UsageError(f"{self.key}: {step} already has another value")
        schema = types.property((*path, name))
        is_item = not self.is_json and not self.text.lstrip().startswith("[")
        if is_item and (items := types.items(schema)) is not None:
            value = holder.setdefault(name, [])
            if not isinstance(value, list):
                raise errors.UsageError(
                    f"{self.key} is set both as JSON and item by item: choose one form"
                )
            value.append(self._value(types, items))
        elif name in holder:
            raise errors.UsageError(
                f"{self.key} is set twice, but is not an array: remove one value"
            )
        else:
            holder[name] = self._json() if self.is_json else self._value(types, schema)

    def _value(self, of: _PropertyTypes, schema: _Schema) -> Any:
        """Return the text as a value of the first type that matches. Raise `UsageError` if none
        matches."""
        types, shape = of.types(schema), of.without_null(schema)
        if self.data is not None and (file := self._of_file(self.data, shape)) is not None:
            return file
        text, choices = self.text, schema.get("enum")
        if isinstance(choices, list) and text in choices:
            return text
        if "null" in types and text == "null":
            return None
        if types & {"integer", "number"} and (number := _number(text, types)) is not None:
            return number
        if "boolean" in types and (boolean := _BOOLEANS.get(text.lower())) is not None:
            return boolean
        if types & {"array", "object"} and text.lstrip()[:1] in ("[", "{"):
            return self._json()
        if not types or "string" in types:
            return text
        shown = repr(text if len(text) <= 40 else text[:37] + "…")
        expected = " or ".join(_TYPES[name] for name in sorted(types))
        raise errors.UsageError(f"{self.key}: {shown} is not {expected}")

    def _of_file(self, data: bytes, schema: _Schema) -> Any:
        """Return a file as its schema wants bytes, or `None` if it wants text. Raise UsageError if
        the file is not text then."""
        encoded = b64encode(data).decode()
        if schema.get("contentEncoding") == "base64" or schema.get("format") in ("base64", "byte"):
            return encoded
        members = schema.get("properties")
        if isinstance(members, Mapping) and "base64" in members:
            named = {"file_name": Path(self.file).name} if "file_name" in members else {}
            return {"base64": encoded, **({} if self.file == "-" else named)}
        if data != self.text.encode("utf-8", "replace"):
            raise errors.UsageError(f"{self.key}: {self.file} is not text, and the tool wants text")
        return None

    def _json(self) -> Any:
        try:
            return _parse_json(self.text)
        except ValueError as error:
            raise errors.UsageError(f"{self.key}: not JSON: {error}") from None


def _number(text: str, types: frozenset[str]) -> int | float | None:
    try:
        value = _parse_json(text)
    except ValueError:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if "number" in types or isinstance(value, int) else None


def _parse_json(text: str) -> Any:
    def refuse(word: str) -> Any:
        raise ValueError(f"{word} is not a number in JSON")

    return json.loads(text, parse_constant=refuse)


def _read_file(name: str, key: str) -> bytes:
    """Return the bytes of a file, or of standard input for `-`. Raise UsageError if it cannot be read
    or is too large."""
    try:
        if name == "-":
            data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise errors.UsageError(f"{key}: {name} cannot be read: {error}") from None
    if len(data) > MAX_FILE_BYTES:
        raise errors.UsageError(
            f"{key}: {name} has more than {MAX_FILE_BYTES} bytes; use a smaller file"
        )
    return data


class _PropertyTypes:
    """The types of a tool's arguments, from its schema. A `$ref` within the schema is followed."""

    def __init__(self, schema: _Schema) -> None:
        self._root = schema

    def path(self, key: str) -> tuple[str, ...]:
        """Return the path of a key. Split the key at its dots if its first part is a property and
        the whole key is not."""
        properties = self._properties(self._root)
        head, dot, _ = key.partition(".")
        if key in properties or not dot or head not in properties:
            return (key,)
        return tuple(key.split("."))

    def property(self, path: tuple[str, ...]) -> _Schema:
        schema = self._root
        for step in path:
            schema = self._followed(self._properties(schema).get(step, {}))
        return schema

    def without_null(self, schema: _Schema) -> _Schema:
        return resolved(schema, self._root)

    def items(self, schema: _Schema) -> _Schema | None:
        """Return the schema of an array's items, or `None` unless only an array or null is
        allowed."""
        if self.types(schema) - {"null"} != {"array"}:
            return None
        schemas = (schema, *map(self._followed, self._alternatives(schema)))
        return self._followed(
            next((candidate["items"] for candidate in schemas if "items" in candidate), {})
        )

    def types(self, schema: _Schema) -> frozenset[str]:
        """Return the JSON types that a schema allows; empty if it allows any."""
        types: set[str] = set()
        seen: set[int] = set()
        waiting: list[Any] = [schema]
        while waiting:
            schema = self._followed(waiting.pop())
            if id(schema) in seen:
                continue
            seen.add(id(schema))
            named, alternatives = schema.get("type"), self._alternatives(schema)
            if not named and not alternatives:
                return frozenset()
            kinds = named if isinstance(named, list) else [named]
            types.update(kind for kind in kinds if isinstance(kind, str))
            waiting += alternatives
        return frozenset(types) & _TYPES.keys()

    def _alternatives(self, schema: _Schema) -> list[Any]:
        lists = (schema.get(word) for word in ("anyOf", "oneOf"))
        return [
            alternative
            for alternatives in lists
            if isinstance(alternatives, list)
            for alternative in alternatives
        ]

    def _properties(self, schema: _Schema) -> _Schema:
        properties = self._followed(schema).get("properties")
        return properties if isinstance(properties, Mapping) else {}

    def _followed(self, schema: Any) -> _Schema:
        for _ in range(_MAX_REFERENCES):
            if not isinstance(schema, Mapping):
                return {}
            reference = schema.get("$ref")
            if not isinstance(reference, str) or not reference.startswith("#/"):
                return schema
            try:
                schema = at_reference(self._root, reference)
            except LookupError:
                break
        return {}
