"""Calls of an operation: arguments → a request → a result. No start imports this."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_plus

from roundgate.backends.http.answers import result_of
from roundgate.backends.http.files import with_resources
from roundgate.backends.http.keys import KEYED, key_of, with_key
from roundgate.backends.http.messages import Answer, Outgoing
from roundgate.backends.http.service import Service
from roundgate.backends.openapi.config import OpenApiBackendConfig
from roundgate.backends.openapi.index import Index, Row
from roundgate.backends.openapi.plan import Plan
from roundgate.backends.openapi.requests import clashing, request
from roundgate.backends.openapi.security import chosen
from roundgate.errors import ToolError
from roundgate.protocol import Schema, ToolResult
from roundgate.replay import Context

if TYPE_CHECKING:
    from roundgate.backends.openapi.backend import OpenApiBackend

_LARGE: Final = 262_144
"""Answers of more bytes are read in a thread: they would keep everybody else waiting."""


def called(
    backend: OpenApiBackend, index: Index, row: Row, definition: Mapping[str, Any]
) -> Calling:
    """What calls the operation of a row."""
    alternative = chosen(index.security[row.security], backend.filled(index)) or {}
    names = frozenset(alternative).intersection(backend.config.credentials)
    taken = [one.queries() | one.cookies() for one in backend.credentials(names)]
    output = definition.get("outputSchema")
    return Calling(
        backend.config,
        row.name,
        index.plan(row),
        backend.service(index.servers[row.server], names),
        None if output is None else Schema.compile(output),
        frozenset().union(*taken),
    )


@dataclass(frozen=True, slots=True)
class Calling:
    """Calls one operation (`roundgate.backends.base.CallTool`)."""

    config: OpenApiBackendConfig
    name: str
    plan: Plan
    service: Service
    output: Schema | None
    taken: frozenset[str]
    """Query parameters and cookies that credentials have."""

    async def __call__(self, context: Context, arguments: dict[str, Any]) -> ToolResult:
        arguments = await _with_resources(self.plan, arguments, context)
        outgoing = request(self.plan, arguments)
        _check_names(outgoing, self.taken)
        await context.continue_as_task()
        answer = await self._sent(outgoing, context)
        about = {"upstream": self.config.name, "method": outgoing.method, "status": answer.status}
        await context.log("debug", about)
        if len(answer.body) > _LARGE:
            return await asyncio.to_thread(self._result, answer)
        return self._result(answer)

    async def _sent(self, outgoing: Outgoing, context: Context) -> Answer:
        config, method = self.config, outgoing.method
        key = await key_of(context, method, config.idempotency_key if method in KEYED else None)
        override = config.override.get(self.name)
        hint = None if override is None else override.idempotent
        is_repeatable = method not in KEYED if hint is None else hint
        keyed = with_key(replace(outgoing, is_repeatable=is_repeatable), key)
        return await self.service.send(keyed, config.timeout_s, context.deadline)

    def _result(self, answer: Answer) -> ToolResult:
        return result_of(self.name, answer, "", self.output, lenient=True)


async def _with_resources(
    plan: Plan, arguments: dict[str, Any], context: Context
) -> dict[str, Any]:
    """The arguments, with what resources hold in the place of the URIs that files have.

    Raises:
        ToolError: there is no such resource.
    """
    body = plan.body
    if body is None or body.kind not in ("multipart", "binary"):
        return arguments
    files = {name for name, member in body.encoding.items() if member.is_file}
    if body.members is not None:
        named = [one for one, name in body.members.items() if name in files and one in arguments]
        given = {one: await with_resources(one, arguments[one], context) for one in named}
        return {**arguments, **given}
    if body.argument not in arguments:
        return arguments
    whole = arguments[body.argument]
    if body.kind == "binary":
        return {**arguments, body.argument: await with_resources(body.argument, whole, context)}
    given = {one: await with_resources(one, whole[one], context) for one in files & whole.keys()}
    return {**arguments, body.argument: {**whole, **given}}


def _check_names(outgoing: Outgoing, taken: frozenset[str]) -> None:
    """An object that is exploded brings names of its own, of which none may be that of a
    credential.

    Raises:
        ToolError
    """
    if not taken:
        return
    pairs = [*outgoing.raw_query.split("&"), *outgoing.headers.get("cookie", "").split("; ")]
    if found := clashing({unquote_plus(pair.partition("=")[0]) for pair in pairs}, taken):
        raise ToolError(f"{', '.join(found)}: is the gateway's own; leave it out")
