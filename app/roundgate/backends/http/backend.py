"""Endpoints of an HTTP service as tools, declared in gateway.yaml.

A call becomes one request: `Endpoint.request` places the arguments (pure), `Service.send` does the
I/O within the back end's limits, `Endpoint.result` reads the answer (pure). `dialogue` and `job`
make more of it, where the tool says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from roundgate.backends.base import CallTool, Offering, Shared, Tool
from roundgate.backends.exchange import dialogue, follow
from roundgate.backends.http.access import Accesses
from roundgate.backends.http.config import HttpBackendConfig, HttpToolConfig
from roundgate.backends.http.declared import endpoint_of, taken_by
from roundgate.backends.http.dialogue import exchange_of
from roundgate.backends.http.endpoint import Endpoint
from roundgate.backends.http.files import with_resources
from roundgate.backends.http.job import Requests, check_job, parents
from roundgate.backends.http.keys import KEYED, key_of, with_key
from roundgate.backends.http.messages import Answer, Outgoing
from roundgate.backends.http.service import Service
from roundgate.backends.http.tls import Certificates
from roundgate.errors import ConfigError
from roundgate.protocol import ToolResult
from roundgate.replay import Context
from roundgate.settings import Origin

_LARGE: Final = 262_144
"""Answers of more bytes are read in a thread: they would keep everybody else waiting."""


class HttpBackend:
    """One service and its tools."""

    def __init__(self, config: HttpBackendConfig, origin: Origin, shared: Shared) -> None:
        self.name = config.name
        self._config = config
        self._origin = origin
        more = [tool.headers for tool in config.tools]
        self._accesses = Accesses(config, origin, shared, more=more)
        self._certificates = Certificates(config.tls, origin.at("tls"))
        self._service = Service(
            config,
            config.base_url,
            self._accesses.general(),
            self._accesses.redactor,
            self._certificates,
        )

    async def offer(self) -> Offering:
        """The tools as declared.

        Raises:
            ConfigError: a declaration contradicts itself, or a certificate
                or a secret cannot be had.
        """
        tools: list[Tool] = []
        problems = await self._accesses.problems(self._certificates)
        for index, config in enumerate(self._config.tools):
            try:
                tools.append(self._tool(config, index))
            except ValueError as error:
                place = self._origin.at("tools", index)
                problems.append(
                    place.problem(str(error), "correct the tool's path, arguments or schemas")
                )
        if problems:
            raise ConfigError(problems)
        return Offering(tools=tools, files=self._certificates.files | self._accesses.files)

    async def aclose(self) -> None:
        """Close the pooled connections."""
        await self._service.aclose()
        await self._accesses.aclose()

    def _tool(self, config: HttpToolConfig, index: int) -> Tool:
        endpoint = endpoint_of(config, taken_by(self._config, config))
        if config.job is not None:
            check_job(config.job, endpoint.arguments)
        return Tool(
            endpoint.definition(),
            self._caller(config, endpoint),
            scopes=frozenset(config.scopes),
            once=config.once,
            task=config.task,
            approve=config.approve,
            approval=config.approval,
            ask_for=config.ask_for,
            defaults=endpoint.defaults,
            place=("tools", index),
            cleans_up=config.job is not None and config.job.cancel is not None,
        )

    def _caller(self, config: HttpToolConfig, endpoint: Endpoint) -> CallTool:
        timeout_s = config.timeout_s or self._config.timeout_s

        declared = config.idempotency_key or (
            self._config.idempotency_key if config.method in KEYED else None
        )

        async def exchange(
            outgoing: Outgoing,
            context: Context,
            given: Mapping[str, str],
            arguments: Mapping[str, Any],
        ) -> Answer:
            async def send(one: Outgoing) -> Answer:
                return await self._service.send(one, timeout_s, context.deadline)

            key = await key_of(context, config.method, declared)
            if config.interactive:
                return Answer.revived(await dialogue(exchange_of(send, outgoing, key), context))
            if config.job is not None:
                query = tuple(config.query.items())
                requests = Requests(config.job, send, outgoing, key, given, query, arguments)
                return Answer.revived(await follow(requests.job(), context))
            answer = await send(with_key(outgoing, key))
            await context.log(
                "debug", {"upstream": self.name, "method": outgoing.method, "status": answer.status}
            )
            return answer

        files = {one.name for one in endpoint.arguments if one.is_file}

        async def call(context: Context, arguments: dict[str, Any]) -> ToolResult:
            for name in files & arguments.keys():
                arguments = {
                    **arguments,
                    name: await with_resources(name, arguments[name], context),
                }
            outgoing = endpoint.request(arguments)
            all_of_them = endpoint.defaults | arguments
            given = {} if config.job is None else parents(config.job, all_of_them)
            await context.continue_as_task()
            answer = await exchange(outgoing, context, given, all_of_them)
            if len(answer.body) > _LARGE:
                return await asyncio.to_thread(endpoint.result, answer)
            return endpoint.result(answer)

        return call
