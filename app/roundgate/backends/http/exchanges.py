"""Calls: idempotency keys, the caller's headers, dialogues and jobs.

The gateway derives a key from the call: from the sealed state of its round, the client's own key,
or the task that the call became. A retry, another replica with the same round, and the next worker
after a crash all send the same key.

A service can ask the gateway for input and receive its own state back (`roundgate docs rounds`):

service → gateway   200, Content-Type: application/vnd.roundgate.input-required+json
                    {"inputRequests": {"size": {"method": "elicitation/create", "params": {…}}}, "state": anything}
gateway → service   the same method and path, Content-Type: application/vnd.roundgate.input-responses+json
                    {"body": the first request's body, "inputResponses": {"size": {"action": …}}, "state": …}
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import unquote_plus

from msgspec import Struct
from msgspec.structs import replace

from roundgate import json
from roundgate.auth import Principal
from roundgate.backends.dialogue import (
    Answering,
    Kept,
    ServiceExchange,
    recorded,
    service_questions,
)
from roundgate.backends.exchange import AnsweredJob, NotNow
from roundgate.backends.http.bodies import BodyTemplate
from roundgate.backends.http.caller_headers import caller_headers
from roundgate.backends.http.config import HttpCancelConfig, HttpJobConfig
from roundgate.backends.http.credential_config import header_key
from roundgate.backends.http.endpoint import PATH_VARIABLE, Argument
from roundgate.backends.http.messages import LARGE_BYTES, Outgoing, Send, ServiceAnswer
from roundgate.backends.http.plan import RequestPlan
from roundgate.backends.http.service import Service
from roundgate.backends.http.values import clashing, pairs, path_text, text
from roundgate.errors import BackendError, ParseError, ToolError, UnexpectedAnswer
from roundgate.protocol import ToolResult
from roundgate.replay import AnyContext, Context
from roundgate.settings import CallerReference

USUAL: Final = "idempotency-key"
KEYED: Final = frozenset({"POST", "PATCH"})
"""Methods whose repetition may change something (RFC 9110 section 9.2.2)."""
INPUT_REQUIRED: Final = "application/vnd.roundgate.input-required+json"
INPUT_RESPONSES: Final = "application/vnd.roundgate.input-responses+json"


class IdempotencyKey(Struct, frozen=True):
    """The idempotency key of a call's first request."""

    header: str
    value: str
    is_declared: bool
    """Whether the configuration says that the service accepts keys. Only then does a key make a
    request repeatable."""


async def make_key(context: AnyContext, method: str, header: str | None) -> IdempotencyKey | None:
    """Return the key of a call, or `None` if the call needs none.

    A POST or PATCH of a task has a key even without a declared `header`, because a worker may die
    after it sends a request and before it records that.
    """
    if header is not None:
        return IdempotencyKey(header, await context.idempotency_key("request"), is_declared=True)
    if context.task_id is None or method not in KEYED:
        return None
    return IdempotencyKey(USUAL, context.task_id, is_declared=False)


def with_key(outgoing: Outgoing, key: IdempotencyKey | None, number: int = 1) -> Outgoing:
    """Return a request with the key, unless the tool sets the header itself. `number` counts the
    requests of a dialogue from 1; each request has its own key."""
    if key is None:
        return outgoing
    keyed = replace(
        outgoing,
        is_repeatable=outgoing.is_repeatable or key.is_declared,
        has_key=key.is_declared,
    )
    if key.header.lower() in map(str.lower, outgoing.headers):
        return keyed
    value = key.value
    if number > 1:
        value = f"{value}-{number}"
        if key.is_declared:  # different answers of the user make a different request
            body = (outgoing.body or b"").decode("utf-8", "replace")
            value = f"{value}-{json.digest(body)}"
    return replace(keyed, headers={key.header: value, **outgoing.headers})


def for_caller(
    outgoing: Outgoing, references: Mapping[str, CallerReference], principal: Principal
) -> Outgoing:
    """Return a request with the headers that tell who calls. Nothing else sets these headers.

    Raises:
        BackendError: a value is too long.
    """
    if not references:
        return outgoing
    names = set(map(header_key, references))
    others = {
        name: text for name, text in outgoing.headers.items() if header_key(name) not in names
    }
    return replace(outgoing, headers=others | caller_headers(references, principal))


class Calling(Struct, frozen=True):
    """A function that calls one tool, with one request."""

    plan: RequestPlan
    service: Service
    timeout_s: float
    key_header: str | None
    """The header of the idempotency key that the service accepts."""
    result: Callable[[ServiceAnswer], ToolResult]
    defaults: Mapping[str, Any] = {}
    """The values to send for omitted arguments."""
    taken: frozenset[str] = frozenset()
    """Query parameters and cookies that credentials use."""

    async def __call__(self, context: AnyContext, arguments: Mapping[str, Any]) -> ToolResult:
        outgoing = self.request(context, arguments)
        await context.continue_as_task()
        return await self.result_from(await self.answered(context, outgoing))

    async def with_files(self, context: Context, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool that may take files, which may be named by the URIs of resources."""
        return await self(context, await self.files_read(context, arguments))

    async def files_read(self, context: Context, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments with the contents of the resources that files name."""
        body = self.plan.body
        return arguments if body is None else await body.read_resources(arguments, context)

    def request(self, context: AnyContext, arguments: Mapping[str, Any]) -> Outgoing:
        """Build the request of a call.

        Raises:
            BackendError: a fact about the caller is too long for a header.
            ToolError: a value is not allowed in its part of the request.
        """
        if self.defaults:
            arguments = {**self.defaults, **arguments}
        references = self.service.callers_headers
        outgoing = for_caller(self.plan.request(arguments), references, context.principal)
        if self.taken:
            _check_taken(outgoing, self.taken)
        return outgoing

    async def answered(self, context: AnyContext, outgoing: Outgoing) -> ServiceAnswer:
        """Send the request of a call with its key; return the answer."""
        key = await make_key(context, outgoing.method, self.key_header)
        answer = await self.service.send(with_key(outgoing, key), self.timeout_s, context.deadline)
        about = {"upstream": self.service.name, "method": outgoing.method, "status": answer.status}
        await context.log("debug", about)
        return answer

    async def result_from(self, answer: ServiceAnswer) -> ToolResult:
        """Convert an answer to the tool's result, in a thread if it is large."""
        if len(answer.body) > LARGE_BYTES:
            return await asyncio.to_thread(self.result, answer)
        return self.result(answer)


def _check_taken(outgoing: Outgoing, taken: frozenset[str]) -> None:
    """Raise ToolError if a member of an exploded object has the name of a credential."""
    sent = [*outgoing.query.split("&"), *outgoing.headers.get("cookie", "").split("; ")]
    if clashes := clashing({unquote_plus(pair.partition("=")[0]) for pair in sent}, taken):
        raise ToolError(f"{', '.join(clashes)}: is reserved for the gateway; leave it out")


def make_exchange(send: Send, outgoing: Outgoing, key: IdempotencyKey | None) -> ServiceExchange:
    """Return the function that sends each request of the dialogue that `outgoing` begins."""

    async def exchange(number: int, answering: Answering | None) -> Kept:
        request = outgoing if answering is None else _answering(outgoing, answering)
        answer = await send(with_key(request, key, number))
        return _read_questions(answer) if answer.media_type == INPUT_REQUIRED else answer.kept()

    return exchange


def _read_questions(answer: ServiceAnswer) -> Kept:
    if answer.status != 200:  # an error answer would show the service's state to the caller
        raise BackendError(
            f"The service asked for input with the status {answer.status} instead of 200"
        )
    try:
        return recorded(service_questions(answer.value()))
    except ParseError:
        raise BackendError(
            "The service asked for input in a form that the gateway does not know"
        ) from None


def _answering(outgoing: Outgoing, answering: Answering) -> Outgoing:
    body = None if outgoing.body is None else json.decode(outgoing.body)
    envelope = {"body": body, "inputResponses": dict(answering.responses), "state": answering.state}
    headers = outgoing.headers | {"content-type": INPUT_RESPONSES}
    return replace(outgoing, headers=headers, body=json.encode(envelope))


def check_job(job: HttpJobConfig, arguments: Sequence[Argument]) -> None:
    """Raise ValueError if a job's request uses an unknown variable, or a path uses an argument
    that a call may omit."""
    names = {argument.name for argument in arguments}
    if unknown := sorted(_names_in(job.cancel) - job.variables.keys() - names):
        raise ValueError(
            f"job.cancel needs {', '.join(unknown)}, which neither job.variables nor the arguments have"
        )
    certain = {argument.name for argument in arguments if argument.is_certain}
    for path in _paths(job):
        missing = set(PATH_VARIABLE.findall(path)) - job.variables.keys() - certain
        if optional := sorted(missing & names):
            raise ValueError(
                f"job path {path!r} needs the argument {', '.join(optional)}, which a call may omit:"
                " set `required` or a `default`"
            )
        if missing:
            raise ValueError(
                f"job path {path!r} needs {', '.join(sorted(missing))}, which neither job.variables nor"
                " the arguments have"
            )


def parents(job: HttpJobConfig, arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the call's arguments that the job's paths use, percent-encoded for a path.

    Raises:
        ToolError: an argument is not allowed in a path.
    """
    names = {name for path in _paths(job) for name in PATH_VARIABLE.findall(path)}
    parent_names: dict[str, str] = {}
    for name in sorted(names - job.variables.keys()):
        try:
            parent_names[name] = path_text(text(arguments[name]))
        except ValueError as error:
            raise ToolError(f"arguments.{name}: {error}") from None
    return parent_names


def _paths(job: HttpJobConfig) -> list[str]:
    cancel = None if job.cancel is None else job.cancel.path
    return [path for path in (job.poll, job.fetch, cancel) if path is not None]


def _names_in(cancel: HttpCancelConfig | None) -> frozenset[str]:
    """Return the variables in the query, body and form of a cancel request."""
    if cancel is None:
        return frozenset()
    return BodyTemplate(
        {"query": cancel.query, "body": cancel.body or {}, "form": cancel.form or {}}
    ).names


class JobRequests(Struct, frozen=True):
    """The requests of one call to start, poll, fetch and cancel its job."""

    config: HttpJobConfig
    send: Send
    started: Outgoing
    """The request that starts the job, without its key."""
    key: IdempotencyKey | None
    parents: Mapping[str, str]
    """The result of the function `parents`: the path arguments."""
    query: str
    """The fixed query of every request, such as the version of the service's API."""
    arguments: Mapping[str, Any]
    """The arguments of the call, for the query and body of a cancel request."""

    def job(self) -> AnsweredJob:
        """Return the job, with functions that send its requests."""
        config, start = self.config, with_key(self.started, self.key)
        return AnsweredJob(
            config,
            "service",
            begin=lambda: self.send(start),
            look=partial(self._get, config.poll),
            result=None if config.fetch is None else partial(self._get, config.fetch),
            end=None if config.cancel is None else partial(self._cancel, config.cancel),
            starts_once=start.is_repeatable,
        )

    async def _get(self, path: str, values: Mapping[str, str]) -> ServiceAnswer:
        request = self._request(path, values)
        try:
            return await self.send(request)
        except UnexpectedAnswer:
            raise  # a retry would get the same answer
        except BackendError as error:
            raise NotNow(str(error)) from None

    async def _cancel(self, cancel: HttpCancelConfig, values: Mapping[str, str]) -> ServiceAnswer:
        variables = {**self.arguments, **values}
        request = self._request(cancel.path, values)
        query = BodyTemplate(cancel.query).filled(variables)
        added = [pair for name, value in query.items() for pair in pairs(name, value)]
        body: bytes | None = None
        headers = request.headers
        if cancel.form is not None:
            filled = BodyTemplate(cancel.form).filled(variables)
            members = [pair for name, value in filled.items() for pair in pairs(name, value)]
            body = "&".join(members).encode()
            headers = {**headers, "content-type": "application/x-www-form-urlencoded"}
        elif cancel.body is not None:
            body = json.encode(BodyTemplate(cancel.body).filled(variables))
            headers = {**headers, "content-type": "application/json"}
        whole_query = "&".join(filter(None, (request.query, *added)))
        return await self.send(
            replace(request, method=cancel.method, query=whole_query, headers=headers, body=body)
        )

    def _request(self, path: str, values: Mapping[str, str]) -> Outgoing:
        """Return a GET request. Raise BackendError if a value from the service is not allowed in a
        path, because it could lead to another endpoint."""
        route = path
        for name, written in self.parents.items():
            path = path.replace(f"{{{name}}}", written)
        for name, value in values.items():
            try:
                path = path.replace(f"{{{name}}}", path_text(value))
            except ValueError:
                shown = repr(value[:100])
                raise BackendError(
                    f"The service started a job with {name} = {shown}, which cannot be part of a path"
                ) from None
        started = self.started
        headers = {
            name: value for name, value in started.headers.items() if name.lower() != "content-type"
        }
        return Outgoing(
            "GET",
            path,
            self.query,
            headers,
            None,
            is_repeatable=True,
            wants=started.wants,
            max_bytes=started.max_bytes,
            route=route,
        )
