"""Functions that describe their own tools (`roundgate docs lambda`).

gateway → function   {"roundgate": "describe", "version": 1}
function → gateway   {"tools": [{"name": "find", "description": "…", "inputSchema": {…}, "call": {…}}]}

A tool is the protocol's `Tool`; `call` says how it is invoked, as in gateway.yaml. The gateway
invokes such a function with `{"tool": "find", "arguments": {…}}`. `roundgate compile` keeps the
answer in a file, the index, because a cold start invokes nothing (docs/decisions/0026).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from roundgate import json
from roundgate.auth import LOCAL
from roundgate.backends.aws_lambda.config import (
    NAME_PATTERN,
    LambdaBackendConfig,
    LambdaCallConfig,
    LambdaToolConfig,
    PayloadConfig,
)
from roundgate.backends.aws_lambda.invoking import Functions, Invocation, target
from roundgate.backends.aws_lambda.results import answer_of, failure_of
from roundgate.errors import (
    BackendError,
    ConfigError,
    IndexOfAnotherVersion,
    ParseError,
    Problem,
    UnusableIndex,
)
from roundgate.json import decode, digest, encode
from roundgate.settings import Origin

KIND: Final = "roundgate lambda index "
FORMAT: Final = f"{KIND}1"


def index_path(config: LambdaBackendConfig, origin: Origin) -> Path:
    """Where the index of a back end is kept."""
    return origin.base_dir / (config.index or f"{config.name}.index")


def write_index(told: list[Any], config: LambdaBackendConfig) -> bytes:
    """An index as a file has it."""
    return encode({"format": FORMAT, "of": _of(config), "tools": told})


def read_index(path: Path, config: LambdaBackendConfig) -> list[Any]:
    """What the function told, from a file.

    Raises:
        IndexOfAnotherVersion: another version has written it.
        UnusableIndex: it is none, or of another function.
        OSError: there is none.
    """
    try:
        found = decode(path.read_bytes())
        if found["format"] == FORMAT and found["of"] == _of(config):
            return list(found["tools"])
        if found["format"] != FORMAT and str(found["format"]).startswith(KIND):
            raise IndexOfAnotherVersion()
    except (ParseError, KeyError, TypeError):
        pass
    raise UnusableIndex(f"is no index of {config.function}")


def _of(config: LambdaBackendConfig) -> str:
    """Which function was asked."""
    return digest([config.function, config.qualifier, config.region])


EVENT: Final = {"roundgate": "describe", "version": 1}
MOST_TOOLS: Final = 1_000
DESCRIBE_S: Final = 8.0
"""Within which a function has to tell them: a start waits for it."""
_REMEDY: Final = (
    "correct what the function answers to the describe event, see `roundgate docs lambda`"
)


class Hints(BaseModel):
    """The protocol's `ToolAnnotations`, as far as they say something about calls."""

    title: str | None = None
    readOnlyHint: bool | None = None  # noqa: N815
    destructiveHint: bool | None = None  # noqa: N815
    idempotentHint: bool | None = None  # noqa: N815


class DescribedTool(BaseModel):
    """A tool as a function tells it; members that the protocol adds later are left alone."""

    model_config = ConfigDict(strict=True)

    name: str = Field(pattern=NAME_PATTERN)
    title: str | None = None
    description: str = Field(min_length=1)
    inputSchema: dict[str, Any]  # noqa: N815
    outputSchema: dict[str, Any] | None = None  # noqa: N815
    annotations: Hints = Hints()
    call: dict[str, Any] = {}


async def ask(config: LambdaBackendConfig) -> list[Any]:
    """What the function tells: its tools, unread.

    Raises:
        ConfigError: boto3 is not installed, or there is no region.
        BackendError: it cannot be invoked, fails, or answers something else.
    """
    asked = target(str(config.function), config.qualifier, config.region)
    functions = Functions(1, config.max_response_bytes)
    try:
        functions.prepare(asked.region, DESCRIBE_S)
        invocation = Invocation(asked, json.encode(EVENT), is_repeatable=True)
        invoked = await functions.invoke(invocation, DESCRIBE_S, LOCAL)
    finally:
        await functions.aclose()
    if invoked.has_failed:
        raise failure_of(invoked.payload, asked)
    return _tools(answer_of(invoked.payload).body)


def _tools(body: bytes) -> list[Any]:
    try:
        said = json.decode(body)
    except ParseError:
        said = None
    tools = said.get("tools") if isinstance(said, Mapping) else None
    if not isinstance(tools, list) or len(tools) > MOST_TOOLS:
        raise BackendError(
            "it answered the describe event with something else than a list of at most "
            f"{MOST_TOOLS} tools"
        )
    return tools


def tools_of(
    told: Sequence[Any], config: LambdaBackendConfig, origin: Origin
) -> tuple[list[LambdaToolConfig], list[Problem]]:
    """The tools that a function has told of, without those that are declared under the same name;
    and what is wrong with those that are left out."""
    tools: list[LambdaToolConfig] = []
    problems: list[Problem] = []
    known = {one.name for one in config.tools}
    for number, one in enumerate(told):
        try:
            tool = _tool(one, config.output_schemas)
            if tool.name in {other.name for other in tools}:
                raise ValueError("another one has the same name")
            tools += [] if tool.name in known else [tool]
        except (ValidationError, ValueError) as error:
            name = one.get("name") if isinstance(one, Mapping) else None
            said = (
                f"tool {number + 1} ({str(name)[:64]!r}) that the function told of: {_first(error)}"
            )
            problems.append(origin.at("describe").problem(said, _REMEDY))
    return tools, problems


def _tool(told: Any, output_schemas: Sequence[str]) -> LambdaToolConfig:
    one = DescribedTool.model_validate(told)
    how = LambdaCallConfig.model_validate(one.call)
    if how.job is not None and how.job.function is not None:
        # what it may invoke is the gateway's owner's to say
        raise ValueError("call.job.function: a function follows its jobs itself")
    hints = one.annotations
    has_output = any(fnmatchcase(one.name, pattern) for pattern in output_schemas)
    return LambdaToolConfig(
        **{name: getattr(how, name) for name in how.model_fields_set},
        name=one.name,
        title=one.title or hints.title,
        description=one.description,
        input_schema=one.inputSchema,
        output_schema=one.outputSchema if has_output else None,
        payload=PayloadConfig(arguments_in="arguments", fixed={"tool": one.name}),
        read_only=hints.readOnlyHint,
        destructive=hints.destructiveHint,
        idempotent=hints.idempotentHint,
    )


def _first(error: Exception) -> str:
    """What is wrong, in a line."""
    if isinstance(error, ValidationError):
        one = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, one["loc"]))
        return f"{place}: {one['msg']}"[:300] if place else one["msg"][:300]
    return str(error)[:300]


def compile_to_file(config: LambdaBackendConfig, origin: Origin) -> str:
    """Write the index of a back end; returns what to tell the user of it.

    Raises:
        ConfigError: the function cannot be asked.
    """
    if not config.describe:
        return f"{config.name}: its tools are in gateway.yaml, there is nothing to compile"
    try:
        told = asyncio.run(ask(config))
    except BackendError as error:
        raise ConfigError([unasked(error, config, origin)]) from None
    tools, problems = tools_of(told, config, origin)
    path = index_path(config, origin)
    # a gateway that starts meanwhile reads the old one, or the new one
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_bytes(write_index(told, config))
    os.replace(fresh, path)
    summary = f"{config.name}: {len(tools)} tools, {len(problems)} left out: {path}"
    return "\n".join([*map(str, problems), summary])


def unasked(error: BackendError, config: LambdaBackendConfig, origin: Origin) -> Problem:
    """The function did not tell its tools."""
    return origin.at("function").problem(
        f"{config.function} did not tell its tools: {error}",
        "correct the function or the gateway's permissions, and run `roundgate compile` again",
    )
