"""Functions of AWS Lambda as tools.

A call becomes one invocation: `payload` makes what is sent (pure), `Functions.invoke`
does the I/O within the back end's limits, `results` reads what comes back (pure). `calling` and
`job` make dialogues and jobs of it, where the tool says so.
"""

from __future__ import annotations

import asyncio
import logging
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from roundgate.backends.aws_lambda.calling import Calling, caller_of
from roundgate.backends.aws_lambda.config import LambdaBackendConfig, LambdaToolConfig
from roundgate.backends.aws_lambda.describing import ask, index_path, read_index, tools_of, unasked
from roundgate.backends.aws_lambda.invoking import Functions, target_of
from roundgate.backends.aws_lambda.job import check_job
from roundgate.backends.aws_lambda.payload import RESPONSES
from roundgate.backends.base import CallTool, Offering, Shared, Tool
from roundgate.errors import BackendError, ConfigError, Problem, UnusableIndex
from roundgate.protocol import Schema, without_none
from roundgate.settings import Origin


def definition_of(tool: LambdaToolConfig) -> dict[str, Any]:
    """The schema's `Tool`.

    Raises:
        ValueError: a schema is not usable, or the tool contradicts itself.
    """
    _check(tool)
    hints = without_none(
        readOnlyHint=tool.read_only,
        destructiveHint=tool.destructive,
        idempotentHint=tool.idempotent,
    )
    return {
        "name": tool.name,
        **without_none(title=tool.title),
        "description": tool.description,
        "inputSchema": tool.input_schema,
        **without_none(outputSchema=tool.output_schema),
        "annotations": {**hints, "openWorldHint": True},
    }


def _check(tool: LambdaToolConfig) -> None:
    schema = tool.input_schema
    if schema.get("type") != "object":
        raise ValueError('input_schema: has to be of "type": "object", as arguments are')
    Schema.compile(schema)
    arguments = set(schema.get("properties", {}))
    if tool.payload.arguments_in is None:
        more = {*tool.payload.fixed, *filter(None, [tool.payload.context_in])}
        if tool.interactive:
            more |= {RESPONSES}
        if taken := sorted(arguments & more):
            raise ValueError(
                f"input_schema: {', '.join(taken)} is the gateway's own name; use another, or "
                "payload.arguments_in"
            )
    if tool.job is not None:
        check_job(tool.job, arguments)


log = logging.getLogger("roundgate.backends")


class LambdaBackend:
    """Functions and their tools."""

    def __init__(self, config: LambdaBackendConfig, origin: Origin, shared: Shared) -> None:
        self.name = config.name
        self._config = config
        self._origin = origin
        self._shared = shared
        self._functions = Functions(config.max_connections, config.max_response_bytes)

    async def offer(self) -> Offering:
        """The tools as declared, and as the function tells them.

        Raises:
            ConfigError: boto3 is missing, a declaration contradicts itself, or
                the function does not tell.
        """
        if find_spec("botocore") is None:
            message, remedy = "needs boto3, which is not installed", "pip install 'roundgate[aws]'"
            raise ConfigError([self._origin.at("kind").problem(message, remedy)])
        described, left_out, files = await self._described()
        declared, problems = self._made(self._config.tools, self._origin.at("tools"))
        if problems:
            raise ConfigError(problems)
        told, unusable = self._made(described, None)
        left_out += unusable
        if left_out:
            fields = {"backend": self.name, "n": len(left_out)}
            log.warning("tools are left out", extra={"fields": fields})
        if not self._shared.is_cold:
            await asyncio.to_thread(self._prepare)
        return Offering([*declared, *told], files=files, left_out=left_out)

    async def aclose(self) -> None:
        """Let go of the connections."""
        await self._functions.aclose()

    def _prepare(self) -> None:
        """Find out now whether there is a region, and have the first call find the client ready."""
        for tool in self._config.tools:
            region = target_of(tool, self._config).region
            self._functions.prepare(region, tool.timeout_s or self._config.timeout_s)

    async def _described(
        self,
    ) -> tuple[list[LambdaToolConfig], list[Problem], frozenset[Path]]:
        """What the function tells, what of it is left out, and the file that it is from."""
        config = self._config
        if not config.describe:
            return [], [], frozenset()
        path = index_path(config, self._origin)
        try:
            told = read_index(path, config)
        except UnusableIndex as error:
            told = await self._asked(path, str(error))
        except OSError:
            told = await self._asked(path, f"is no index of {config.function}: it is not there")
        return *tools_of(told, config, self._origin), frozenset({path})

    async def _asked(self, path: Path, why: str) -> list[Any]:
        """What the function tells when it is asked now; `why` is what is wrong with the index.

        Raises:
            ConfigError: it does not, or may not be asked.
        """
        if self._shared.is_cold:
            problem = self._origin.at("describe").problem(
                f"{path.name} {why}, and a cold start invokes nothing",
                "run `roundgate compile` with this file, and keep what it writes beside it",
            )
            raise ConfigError([problem])
        try:
            return await ask(self._config)
        except BackendError as error:
            raise ConfigError([unasked(error, self._config, self._origin)]) from None

    def _made(
        self, tools: list[LambdaToolConfig], place: Origin | None
    ) -> tuple[list[Tool], list[Problem]]:
        """The tools, and what is wrong with others; without a place, they are the function's."""
        made: list[Tool] = []
        problems: list[Problem] = []
        for index, config in enumerate(tools):
            try:
                made.append(self._tool(config, None if place is None else index))
            except ValueError as error:
                if place is None:
                    where, said = self._origin.at("describe"), f"tool {config.name!r}: {error}"
                else:
                    where, said = place.at(index), str(error)
                problems.append(where.problem(said, "correct the tool's schemas, payload or job"))
        return made, problems

    def _tool(self, config: LambdaToolConfig, index: int | None) -> Tool:
        return Tool(
            definition_of(config),
            self._caller(config),
            scopes=frozenset(config.scopes),
            once=config.once,
            task=config.task,
            approval=config.approval,
            ask_for=config.ask_for,
            place=("describe",) if index is None else ("tools", index),
            is_described_remotely=index is None,
            cleans_up=config.cleans_up,
        )

    def _caller(self, config: LambdaToolConfig) -> CallTool:
        calling = Calling.of(self._functions, config, self._config)
        return caller_of(calling)
