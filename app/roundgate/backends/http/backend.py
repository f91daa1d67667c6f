"""The `http` back end: endpoints of an HTTP service, declared in gateway.yaml as tools.

A call becomes one request: `Endpoint.request` places the arguments, `Service.send` does the I/O
within the back end's limits, `Endpoint.result` converts the answer. Dialogues and jobs take several
requests (`exchanges`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

from roundgate.backends.base import CallTool, DirectCall, Offering, Shared, Tool
from roundgate.backends.exchange import dialogue, follow
from roundgate.backends.http.bodies import (
    FILE,
    Argument,
    BodyPlan,
    Location,
    Template,
    with_resources,
)
from roundgate.backends.http.config import (
    HttpArgument,
    HttpBackendConfig,
    HttpToolConfig,
    ServiceConfig,
)
from roundgate.backends.http.credential_config import FRAMING, Taken, header_key
from roundgate.backends.http.credentials import Accesses
from roundgate.backends.http.endpoint import PATH_VARIABLE, Endpoint
from roundgate.backends.http.exchanges import (
    KEYED,
    Requests,
    check_job,
    for_caller,
    make_exchange,
    make_key,
    parents,
    with_key,
)
from roundgate.backends.http.messages import LARGE_BYTES, Answer, Outgoing
from roundgate.backends.http.service import Service
from roundgate.backends.http.tls import Certificates
from roundgate.errors import ConfigError, Problem
from roundgate.protocol import ABSENT, ToolResult
from roundgate.replay import AnyContext, Context
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
        self._service = Service(
            config,
            config.base_url,
            self._accesses.general(),
            self._accesses.redactor,
            self._certificates,
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
        endpoint = make_endpoint(config, _taken_by(self._config, config))
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

    def _caller(self, config: HttpToolConfig, endpoint: Endpoint) -> CallTool:
        timeout_s = config.timeout_s or self._config.timeout_s
        key_header = config.idempotency_key or (
            self._config.idempotency_key if config.method in KEYED else None
        )
        files = {argument.name for argument in endpoint.arguments if argument.is_file}

        async def answered(context: AnyContext, outgoing: Outgoing) -> Answer:
            key = await make_key(context, config.method, key_header)
            request = with_key(outgoing, key)
            answer = await self._service.send(request, timeout_s, context.deadline)
            await context.log(
                "debug", {"upstream": self.name, "method": outgoing.method, "status": answer.status}
            )
            return answer

        async def exchanged(
            context: Context, outgoing: Outgoing, arguments: Mapping[str, Any]
        ) -> Answer:
            """Return the last answer of a dialogue or a job."""

            async def send(request: Outgoing) -> Answer:
                return await self._service.send(request, timeout_s, context.deadline)

            in_paths = {} if config.job is None else parents(config.job, arguments)
            await context.continue_as_task()
            key = await make_key(context, config.method, key_header)
            if config.interactive:
                return Answer.revived(await dialogue(make_exchange(send, outgoing, key), context))
            if config.job is None:
                return await answered(context, outgoing)
            query = "&".join(endpoint.fixed_query())
            requests = Requests(config.job, send, outgoing, key, in_paths, query, arguments)
            return Answer.revived(await follow(requests.job(), context))

        async def result(answer: Answer) -> ToolResult:
            if len(answer.body) > LARGE_BYTES:
                return await asyncio.to_thread(endpoint.result, answer)
            return endpoint.result(answer)

        async def direct(context: AnyContext, arguments: dict[str, Any]) -> ToolResult:
            outgoing = for_caller(endpoint.request(arguments), self._config, context.principal)
            await context.continue_as_task()
            return await result(await answered(context, outgoing))

        async def call(context: Context, arguments: dict[str, Any]) -> ToolResult:
            for name in files & arguments.keys():
                file = await with_resources(name, arguments[name], context)
                arguments = {**arguments, name: file}
            outgoing = for_caller(endpoint.request(arguments), self._config, context.principal)
            return await result(await exchanged(context, outgoing, endpoint.defaults | arguments))

        return call if files or config.interactive or config.job is not None else DirectCall(direct)


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


def make_endpoint(tool: HttpToolConfig, taken: Taken | None = None) -> Endpoint:
    """Return the endpoint that a tool declares.

    Raises:
        ValueError: `Endpoint` refuses the declaration, a fixed value contains an argument's name
            in braces, or a list in a path or header has the style `repeat` or `brackets`.
    """
    variables = PATH_VARIABLE.findall(tool.path)
    template = Template(tool.body) if isinstance(tool.body, dict) else None
    in_template = frozenset() if template is None else template.names
    declared = [
        _argument(name, argument, variables, tool, in_template)
        for name, argument in tool.arguments.items()
    ]
    path_names = {
        item.wire_name for item in declared if item.location == "path"
    } | tool.arguments.keys()
    implied = [name for name in dict.fromkeys(variables) if name not in path_names]
    headers = {name: value.get_secret_value() for name, value in tool.headers.items()}
    _check_fixed("header", headers, path_names | set(implied))
    _check_fixed("query", tool.query, path_names | set(implied))
    return Endpoint(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        method=tool.method,
        path=tool.path,
        arguments=(
            *(_argument(name, HttpArgument(), variables, tool, in_template) for name in implied),
            *declared,
        ),
        headers=headers,
        query=tool.query,
        body=BodyPlan(
            "json" if isinstance(tool.body, dict) else tool.body,
            tool.content_type,
            template,
            tool.fixed,
        ),
        pointer=tool.result,
        output_schema=tool.output_schema,
        read_only=tool.read_only,
        destructive=tool.destructive,
        idempotent=tool.idempotent,
        taken=taken or Taken(FRAMING),
        result_headers=tool.result_headers,
        max_bytes=tool.max_response_bytes,
    )


def _check_fixed(place: str, fixed: Mapping[str, str], arguments: Collection[str]) -> None:
    for name, value in fixed.items():
        if named := sorted({*PATH_VARIABLE.findall(value)} & {*arguments}):
            raise ValueError(
                f"{place} {name!r} is fixed, and {{{named[0]}}} would be sent unchanged; remove it, and give the"
                f" argument `in: {place}` and `as: {name}`"
            )


def _taken_by(service: ServiceConfig, tool: HttpToolConfig) -> Taken:
    """Return the names that the credential, fixed headers and fixed query parameters use."""
    taken = Taken() if service.credential is None else service.credential.taken()
    fixed = {header_key(name) for name in (*service.headers, *tool.headers)}
    return Taken(taken.headers | FRAMING | fixed, taken.query | tool.query.keys())


def _argument(
    name: str,
    argument: HttpArgument,
    variables: list[str],
    tool: HttpToolConfig,
    in_template: frozenset[str],
) -> Argument:
    wire_name = argument.wire_name or name
    location = argument.location or _usual_location(name, wire_name, variables, tool, in_template)
    if location in ("path", "header") and argument.list_ in ("repeat", "brackets"):
        raise ValueError(f"argument {name!r}: a list in a {location} is comma, pipe, space or json")
    schema = argument.schema_
    if argument.file:
        is_list = schema.get("type") == "array"
        schema = {**schema, "items": dict(FILE)} if is_list else dict(FILE)
    return Argument(
        name=name,
        location=location,
        wire_name=wire_name,
        schema=schema,
        required=argument.required,
        allow_slash=argument.allow_slash,
        description=argument.description,
        default=argument.default if "default" in argument.model_fields_set else ABSENT,
        style=argument.list_ or ("json" if location in ("path", "header") else "repeat"),
        sends_empty=argument.send_empty,
        is_file=argument.file,
        content_type=argument.content_type
        or (tool.content_type if location == "whole_body" else None),
    )


def _usual_location(
    name: str,
    wire_name: str,
    variables: list[str],
    tool: HttpToolConfig,
    in_template: frozenset[str],
) -> Location:
    if wire_name in variables:
        return "path"
    if name in in_template:
        return "template"
    return "query" if tool.method in ("GET", "HEAD", "DELETE") else "body"
