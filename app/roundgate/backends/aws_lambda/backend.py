"""Functions of AWS Lambda as tools: declared in gateway.yaml, or described by the function itself.

Each call is one invocation. `messages` makes the payload and reads the answer without I/O,
`invoking.Functions` does the I/O within the back end's limits, and `calling` runs dialogues and
jobs.

A function describes its tools (`roundgate docs lambda`):

    gateway → function   {"roundgate": "describe", "version": 1}
    function → gateway   {"tools": [{"name": "find", "description": "…", "inputSchema": {…}, "call": {…}}]}

A tool is the protocol's `Tool`; `call` has the settings of its invocation, as in gateway.yaml. The
gateway invokes such a function with `{"tool": "find", "arguments": {…}}`. `roundgate compile`
writes the answer to a file, the index, because a cold start does not invoke functions
(docs/decisions/0026).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from roundgate import errors, json, lenient
from roundgate.auth import LOCAL
from roundgate.backends.aws_lambda import invoking
from roundgate.backends.aws_lambda.calling import FunctionCalling, check_job, make_caller
from roundgate.backends.aws_lambda.config import (
    LambdaBackendConfig,
    LambdaCallConfig,
    LambdaToolConfig,
    PayloadConfig,
)
from roundgate.backends.aws_lambda.messages import (
    RESPONSES,
    answer_from_payload,
    failure_from_payload,
)
from roundgate.backends.base import Offering, Shared, Tool
from roundgate.backends.config import NAME_PATTERN
from roundgate.protocol import Schema
from roundgate.settings import Origin
from roundgate.settings.files import write_whole

log = logging.getLogger("roundgate.backends")


def make_definition(tool: LambdaToolConfig) -> dict[str, Any]:
    """Return the protocol's `Tool`.

    Raises:
        ValueError: a schema is unusable, or settings of the tool contradict each other.
    """
    schema = tool.input_schema
    if schema.get("type") != "object":
        raise ValueError('input_schema: the arguments are an object; set "type": "object"')
    Schema.compile(schema)
    arguments = set(schema.get("properties", {}))
    if tool.payload.arguments_in is None:
        more = {*tool.payload.fixed, *filter(None, [tool.payload.context_in])}
        if tool.interactive:
            more |= {RESPONSES}
        if clashes := sorted(arguments & more):
            raise ValueError(
                f"input_schema: the gateway uses {', '.join(clashes)} itself; use other names, or set"
                " payload.arguments_in"
            )
    if tool.job is not None:
        check_job(tool.job, arguments)
    return tool.definition(schema, {"openWorldHint": True})


class LambdaBackend:
    """A back end of the kind lambda."""

    def __init__(self, config: LambdaBackendConfig, origin: Origin, shared: Shared) -> None:
        self.name = config.name
        self._config = config
        self._origin = origin
        self._shared = shared
        self._functions = invoking.Functions(config.max_connections, config.max_response_bytes)

    async def offer(self) -> Offering:
        """Return the declared tools and the tools that the function describes.

        Raises:
            ConfigError: boto3 is missing, a declaration contradicts itself, or the function does
                not describe its tools.
        """
        if find_spec("botocore") is None:
            message, remedy = "needs boto3, which is not installed", "pip install 'roundgate[aws]'"
            raise errors.ConfigError([self._origin.at("kind").problem(message, remedy)])
        described, left_out, files = await self._described()
        declared, problems = self._make_tools(self._config.tools, self._origin.at("tools"))
        if problems:
            raise errors.ConfigError(problems)
        described_tools, unusable = self._make_tools(described, None)
        left_out += unusable
        if left_out:
            fields = {"backend": self.name, "n": len(left_out)}
            log.warning("tools are left out", extra={"fields": fields})
        if not self._shared.is_cold:
            await asyncio.to_thread(self._prepare)
        return Offering([*declared, *described_tools], files=files, left_out=left_out)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._functions.aclose()

    def _prepare(self) -> None:
        """Make the clients; raise ConfigError if a region is missing."""
        for tool in self._config.tools:
            region = invoking.choose_target(tool, self._config).region
            self._functions.prepare(region, tool.timeout_s or self._config.timeout_s)

    async def _described(
        self,
    ) -> tuple[list[LambdaToolConfig], list[errors.Problem], frozenset[Path]]:
        """Return the described tools, the problems of unusable tools, and the index's path."""
        config = self._config
        if not config.describe:
            return [], [], frozenset()
        path = index_path(config, self._origin)
        try:
            descriptions = read_index(path, config)
        except errors.UnusableIndex as error:
            descriptions = await self._ask(path, str(error))
        except OSError:
            descriptions = await self._ask(path, "is missing")
        return *read_described_tools(descriptions, config, self._origin), frozenset({path})

    async def _ask(self, path: Path, why: str) -> list[Any]:
        """Ask the function for its tools. `why` is the problem of the index.

        Raises:
            ConfigError: the function fails, or this is a cold start.
        """
        if self._shared.is_cold:
            problem = self._origin.at("describe").problem(
                f"{path.name} {why}, and a cold start does not invoke functions",
                "run `roundgate compile` with this file, and keep the written file beside it",
            )
            raise errors.ConfigError([problem])
        return await ask(self._config, self._origin)

    def _make_tools(
        self, tools: list[LambdaToolConfig], place: Origin | None
    ) -> tuple[list[Tool], list[errors.Problem]]:
        """Make the tools; return them and the problems of unusable tools. `place` is `None` if the
        function described the tools."""
        made: list[Tool] = []
        problems: list[errors.Problem] = []
        for index, config in enumerate(tools):
            try:
                made.append(self._tool(config, None if place is None else index))
            except ValueError as error:
                if place is None:
                    where, message = self._origin.at("describe"), f"tool {config.name!r}: {error}"
                else:
                    where, message = place.at(index), str(error)
                problems.append(
                    where.problem(message, "correct the tool's schemas, payload or job")
                )
        return made, problems

    def _tool(self, config: LambdaToolConfig, index: int | None) -> Tool:
        return Tool(
            make_definition(config),
            make_caller(FunctionCalling.of(self._functions, config, self._config)),
            scopes=frozenset(config.scopes),
            once=config.once,
            task=config.task,
            approval=config.approval,
            ask_for=config.ask_for,
            place=("describe",) if index is None else ("tools", index),
            is_described_remotely=index is None,
            cleans_up=config.cleans_up,
        )


# Tools that a function describes

KIND: Final = "roundgate lambda index "
FORMAT: Final = f"{KIND}1"


def index_path(config: LambdaBackendConfig, origin: Origin) -> Path:
    """Return the path of a back end's index."""
    return origin.base_dir / (config.index or f"{config.name}.index")


def write_index(descriptions: list[Any], config: LambdaBackendConfig) -> bytes:
    """Return the content of an index."""
    return json.encode({"format": FORMAT, "of": _function_digest(config), "tools": descriptions})


def read_index(path: Path, config: LambdaBackendConfig) -> list[Any]:
    """Return the described tools of an index.

    Raises:
        IndexOfAnotherVersion: another version of roundgate wrote the index.
        UnusableIndex: the file is not an index, or is the index of another function.
        OSError: the file cannot be read.
    """
    try:
        content = json.decode(path.read_bytes())
        if content["format"] == FORMAT and content["of"] == _function_digest(config):
            return list(content["tools"])
        if content["format"] != FORMAT and str(content["format"]).startswith(KIND):
            raise errors.IndexOfAnotherVersion()
    except (errors.ParseError, KeyError, TypeError):
        pass
    raise errors.UnusableIndex(f"is not an index of {config.function}")


def _function_digest(config: LambdaBackendConfig) -> str:
    return json.digest([config.function, config.qualifier, config.region])


EVENT: Final = {"roundgate": "describe", "version": 1}
MOST_TOOLS: Final = 1_000
DESCRIBE_S: Final = 8.0
"""The timeout of the describe event, in seconds. The gateway's start waits for the answer."""
_REMEDY: Final = "correct the function's answer to the describe event, see `roundgate docs lambda`"


class Hints(BaseModel):
    """The members of the protocol's `ToolAnnotations` that concern calls."""

    title: str | None = None
    readOnlyHint: bool | None = None  # noqa: N815
    destructiveHint: bool | None = None  # noqa: N815
    idempotentHint: bool | None = None  # noqa: N815


class DescribedTool(BaseModel):
    """A tool as a function describes it; unknown members are ignored."""

    model_config = ConfigDict(strict=True)

    name: str = Field(pattern=NAME_PATTERN)
    title: str | None = None
    description: str = Field(min_length=1)
    inputSchema: dict[str, Any]  # noqa: N815
    outputSchema: dict[str, Any] | None = None  # noqa: N815
    annotations: Hints = Hints()
    call: dict[str, Any] = {}


async def ask(config: LambdaBackendConfig, origin: Origin) -> list[Any]:
    """Send the function the describe event; return the tools in its answer, not yet validated.

    Raises:
        ConfigError: boto3 is not installed, no region is set, the function cannot be invoked or
            fails, or its answer is malformed.
    """
    try:
        return await _describe(config)
    except errors.BackendError as error:
        problem = origin.at("function").problem(
            f"{config.function} did not describe its tools: {error}",
            "correct the function or the gateway's permissions, and run `roundgate compile` again",
        )
        raise errors.ConfigError([problem]) from None


async def _describe(config: LambdaBackendConfig) -> list[Any]:
    function = invoking.target(str(config.function), config.qualifier, config.region)
    functions = invoking.Functions(1, config.max_response_bytes)
    try:
        functions.prepare(function.region, DESCRIBE_S)
        invocation = invoking.FunctionInvocation(function, json.encode(EVENT), is_repeatable=True)
        invoked = await functions.invoke(invocation, DESCRIBE_S, LOCAL)
    finally:
        await functions.aclose()
    if invoked.has_failed:
        raise failure_from_payload(invoked.payload, function)
    return _tools(answer_from_payload(invoked.payload).body)


def _tools(body: bytes) -> list[Any]:
    try:
        answer = lenient.read(body).value
    except errors.ParseError:
        answer = None
    tools = answer.get("tools") if isinstance(answer, Mapping) else None
    if not isinstance(tools, list) or len(tools) > MOST_TOOLS:
        raise errors.BackendError(
            f"its answer to the describe event is not a list of at most {MOST_TOOLS} tools"
        )
    return tools


def read_described_tools(
    descriptions: Sequence[Any], config: LambdaBackendConfig, origin: Origin
) -> tuple[list[LambdaToolConfig], list[errors.Problem]]:
    """Return the described tools, except for names that gateway.yaml declares, and the problems of
    omitted tools."""
    tools: list[LambdaToolConfig] = []
    problems: list[errors.Problem] = []
    declared = {entry.name for entry in config.tools}
    for number, entry in enumerate(descriptions):
        try:
            tool = _tool(entry, config.output_schemas)
            if tool.name in {other.name for other in tools}:
                raise ValueError("another tool has the same name")
            tools += [] if tool.name in declared else [tool]
        except (ValidationError, ValueError) as error:
            name = entry.get("name") if isinstance(entry, Mapping) else None
            message = f"tool {number + 1} ({str(name)[:64]!r}) that the function described: {_first(error)}"
            problems.append(origin.at("describe").problem(message, _REMEDY))
    return tools, problems


def _tool(description: Any, output_schemas: Sequence[str]) -> LambdaToolConfig:
    described = DescribedTool.model_validate(description)
    how = LambdaCallConfig.model_validate(described.call)
    if how.job is not None and how.job.function is not None:
        # only the gateway's owner may choose which functions it invokes
        raise ValueError("call.job.function is not allowed here: a function follows its own jobs")
    hints = described.annotations
    has_output = any(fnmatchcase(described.name, pattern) for pattern in output_schemas)
    return LambdaToolConfig(
        **{name: getattr(how, name) for name in how.model_fields_set},
        name=described.name,
        title=described.title or hints.title,
        description=described.description,
        input_schema=described.inputSchema,
        output_schema=described.outputSchema if has_output else None,
        payload=PayloadConfig(arguments_in="arguments", fixed={"tool": described.name}),
        read_only=hints.readOnlyHint,
        destructive=hints.destructiveHint,
        idempotent=hints.idempotentHint,
    )


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError):
        detail = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, detail["loc"]))
        return f"{place}: {detail['msg']}"[:300] if place else detail["msg"][:300]
    return str(error)[:300]


def compile_to_file(config: LambdaBackendConfig, origin: Origin) -> str:
    """Write the index of a back end; return a summary for the user.

    Raises:
        ConfigError: the function cannot be invoked.
    """
    if not config.describe:
        return f"{config.name}: its tools are in gateway.yaml, there is nothing to compile"
    descriptions = asyncio.run(ask(config, origin))
    tools, problems = read_described_tools(descriptions, config, origin)
    path = index_path(config, origin)
    write_whole(path, write_index(descriptions, config))
    summary = f"{config.name}: {len(tools)} tools, {len(problems)} left out: {path}"
    return "\n".join([*map(str, problems), summary])
