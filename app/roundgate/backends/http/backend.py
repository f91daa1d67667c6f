"""The `http` back end: endpoints of an HTTP service, declared in gateway.yaml as tools.

A call becomes one request (`exchanges.Calling`): `Plan.request` places the arguments,
`Service.send` does the I/O within the back end's limits, `Endpoint.result` converts the answer.
Dialogues and jobs take several requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from roundgate.backends.base import CallTool, DirectCall, Offering, Shared, Tool
from roundgate.backends.dialogue import service_dialogue
from roundgate.backends.exchange import follow
from roundgate.backends.http.config import (
    HttpBackendConfig,
    HttpToolConfig,
    ServiceConfig,
)
from roundgate.backends.http.credential_config import FRAMING, Taken, header_key
from roundgate.backends.http.credentials import Accesses
from roundgate.backends.http.endpoint import PATH_VARIABLE, ToolEndpoint
from roundgate.backends.http.exchanges import (
    KEYED,
    Calling,
    JobRequests,
    check_job,
    make_exchange,
    make_key,
    parents,
)
from roundgate.backends.http.messages import Outgoing, ServiceAnswer
from roundgate.backends.http.reliability import Attempts
from roundgate.backends.http.service import Service
from roundgate.backends.http.tls import Certificates
from roundgate.errors import ConfigError, Problem
from roundgate.protocol import ToolResult
from roundgate.replay import Context
from roundgate.settings import Origin


class HttpBackend:
    """One service and its tools."""

    def __init__(self, config: HttpBackendConfig, origin: Origin, shared: Shared) -> None:
        self.name = config.name
        self._config = config
        self._origin = origin
        more = [tool.headers for tool in config.tools]
        self._accesses = Accesses(config, origin, shared, more=more)
        self._certificates = Certificates(config.tls, origin.at("tls"))
        self.senders: dict[str, Attempts] = {}
        self._service = Service(
            config,
            config.base_url,
            self._accesses.general(),
            self._accesses.redactor,
            self._certificates,
            self.senders,
        )

    async def offer(self) -> Offering:
        """Return the declared tools.

        Raises:
            ConfigError: a declaration contradicts itself, or a certificate or a secret is
                unavailable.
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
        endpoint = ToolEndpoint(config, _taken_by(self._config, config))
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
            may_ask=config.interactive,
            defaults=endpoint.defaults,
            place=("tools", index),
            cleans_up=config.job is not None and config.job.cancel is not None,
        )

    def _caller(self, config: HttpToolConfig, endpoint: ToolEndpoint) -> CallTool:
        timeout_s = config.timeout_s or self._config.timeout_s
        key_header = config.idempotency_key or (
            self._config.idempotency_key if config.method in KEYED else None
        )
        plan = endpoint.plan
        calling = Calling(
            plan,
            self._service,
            timeout_s,
            key_header,
            endpoint.result,
            endpoint.defaults,
        )

        async def exchanged(context: Context, arguments: dict[str, Any]) -> ToolResult:
            """Return the result of the last answer of a dialogue or a job."""

            async def send(request: Outgoing) -> ServiceAnswer:
                return await self._service.send(request, timeout_s, context.deadline)

            read = {**endpoint.defaults, **await calling.files_read(context, arguments)}
            outgoing = calling.request(context, read)
            in_paths = {} if config.job is None else parents(config.job, read)
            await context.continue_as_task()
            key = await make_key(context, config.method, key_header)
            if config.job is None:
                exchange = make_exchange(send, outgoing, key)
                kept = await service_dialogue(exchange, context, self._config.name)
            else:
                requests = JobRequests(config.job, send, outgoing, key, in_paths, plan.query, read)
                kept = await follow(requests.job(), context)
            return await calling.result_from(ServiceAnswer.revived(kept))

        if config.interactive or config.job is not None:
            return exchanged
        return calling.with_files if plan.may_have_files else DirectCall(calling)


def remarks(
    config: HttpBackendConfig, origin: Origin, fetched: Mapping[str, bytes]
) -> list[Problem]:
    """Return a remark for each path variable without a declared argument, in tools that declare
    other arguments. The name is often misspelt."""
    problems: list[Problem] = []
    for number, tool in enumerate(config.tools):
        described = tool.arguments.keys() | {
            argument.wire_name
            for argument in tool.arguments.values()
            if argument.wire_name is not None
        }
        for name in dict.fromkeys(PATH_VARIABLE.findall(tool.path)):
            if tool.arguments and name not in described:
                near = get_close_matches(name, tool.arguments, 1, cutoff=0.5)
                meant = f"did you mean {near[0]!r}? " if near else ""
                problems.append(
                    origin.at("tools", number, "path").problem(
                        f"no argument fills {{{name}}}: the tool gets a text argument {name!r} without a description",
                        f"{meant}give the argument that name, or describe {name!r} in `arguments`",
                    )
                )
    return problems


def _taken_by(service: ServiceConfig, tool: HttpToolConfig) -> Taken:
    """Return the names that the credential, fixed headers and fixed query parameters use."""
    taken = Taken() if service.credential is None else service.credential.taken()
    fixed = {header_key(name) for name in (*service.headers, *tool.headers)}
    return Taken(taken.headers | FRAMING | fixed, taken.query | tool.query.keys())
