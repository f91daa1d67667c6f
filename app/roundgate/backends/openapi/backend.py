"""The operations of an OpenAPI document as tools.

A start reads the index and nothing else; how a tool is called is read when it is called for the first time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote_plus

from roundgate.backends.base import Offering, Shared, Tool, ToolAbout
from roundgate.backends.http.access import Accesses
from roundgate.backends.http.answers import result_of
from roundgate.backends.http.certificates import Certificates
from roundgate.backends.http.credential_config import Credential
from roundgate.backends.http.files import with_resources
from roundgate.backends.http.hosts import Hosts
from roundgate.backends.http.keys import KEYED, key_of, with_key
from roundgate.backends.http.messages import Answer, Outgoing
from roundgate.backends.http.service import Service
from roundgate.backends.openapi.config import OpenApiBackendConfig
from roundgate.backends.openapi.fingerprint import fingerprint, index_path, is_current
from roundgate.backends.openapi.hints import hints
from roundgate.backends.openapi.index import Index, Row, read
from roundgate.backends.openapi.plan import Plan
from roundgate.backends.openapi.requests import request
from roundgate.backends.openapi.security import Slot, chosen
from roundgate.backends.policy import with_approval
from roundgate.backends.selection import is_selected
from roundgate.config import Origin
from roundgate.errors import ConfigError, Problem, ToolError, UnusableIndex
from roundgate.protocol import Schema, ToolResult
from roundgate.replay import Context
from roundgate.values import dataclass

_LARGE: Final = 262_144
"""Answers of more bytes are read in a thread: they would keep everybody else waiting."""

log = logging.getLogger("roundgate.backends")


class OpenApiBackend:
    """One description and its tools."""

    def __init__(self, config: OpenApiBackendConfig, origin: Origin, shared: Shared) -> None:
        self.name = config.name
        self.prefix = config.effective_prefix
        self._config = config
        self._origin = origin
        self._fetches = shared.fetches
        self._accesses = Accesses(config, origin, shared, config.credentials)
        self._certificates = Certificates(config.tls, origin.at("tls"))
        self._hosts = Hosts(config)
        self._services: dict[tuple[str, frozenset[str]], Service] = {}

    async def offer(self) -> Offering:
        """What the index has, and the configuration has credentials for.

        Raises:
            ConfigError: there is neither an index nor a document to make one of, a security scheme is not filled, or a
                certificate or a secret cannot be had.
        """
        if problems := await self._accesses.problems(self._certificates):
            raise ConfigError(problems)
        index, path = _index(self._config, self._origin, fetches=self._fetches)
        tools = {row.name: self._tool(index, row) for row in index.rows}
        rows = [row for row in index.rows if is_selected(tools[row.name], self._config)]
        if problems := self._unfilled(index, rows):
            raise ConfigError(problems)
        if index.left_out:
            log.warning(
                "operations are left out",
                extra={"fields": {"backend": self.name, "n": index.left_out}},
            )
        files = {
            path,
            *self._certificates.files,
            *self._accesses.files,
            *(self._origin.base_dir / where for where, _, _ in index.sources if "://" not in where),
        }
        return Offering(tools=list(tools.values()), files=frozenset(files), left_out=index.problems)

    async def aclose(self) -> None:
        """Close the pooled connections."""
        for service in self._services.values():
            await service.aclose()
        await self._accesses.aclose()

    def _unfilled(self, index: Index, rows: Sequence[Row]) -> list[Problem]:
        """A problem for each security scheme that keeps these operations from being called."""
        if self._config.credential is not None:
            return []
        missing: dict[str, int] = {}
        used = [row.security for row in rows]
        for number, offered in enumerate(index.security):
            if number in used and chosen(offered, self.filled(index)) is None:
                for name in offered[0]:
                    if name not in self.filled(index):
                        missing[name] = missing.get(name, 0) + used.count(number)
        place = self._origin.at("credentials")
        return [
            place.problem(
                f"{count} operations need the security scheme {name!r}",
                index.slots.get(name, Slot(name, "a credential")).remedy,
            )
            for name, count in missing.items()
        ]

    def filled(self, index: Index) -> frozenset[str]:
        """The security schemes that the configuration fills: with credentials, or with a certificate of the gateway."""
        tls = self._config.tls
        has_certificate = tls is not None and tls.cert is not None
        shown = {
            name for name, slot in index.slots.items() if has_certificate and slot.is_mutual_tls
        }
        return frozenset(shown | self._config.credentials.keys())

    def _tool(self, index: Index, row: Row) -> Tool:
        about = ToolAbout(row.tags, row.method, row.path, row.extensions)
        definition = index.definition(row, hints(row.method))
        return with_approval(
            Tool(definition, _Operation(self, index, row, definition), about=about), self._config
        )

    def service(self, base_url: str, names: frozenset[str]) -> Service:
        """The service at a base URL, with the credentials of the schemes that are named; made once."""
        key = (base_url, names)
        if key not in self._services:
            self._services[key] = Service(
                self._config,
                base_url,
                self._accesses.of(sorted(names)) if names else self._accesses.general(),
                self._accesses.redactor,
                self._certificates,
                self._hosts,
            )
        return self._services[key]

    def credentials(self, names: frozenset[str]) -> Sequence[Credential]:
        """Those of security schemes; the general one where there are none."""
        if names:
            return [self._config.credentials[name] for name in sorted(names)]
        return [] if self._config.credential is None else [self._config.credential]

    @property
    def config(self) -> OpenApiBackendConfig:
        """Its settings."""
        return self._config


@dataclass(slots=True)
class _Ready:
    """What calls of one operation need."""

    plan: Plan
    service: Service
    output: Schema | None
    taken: frozenset[str]
    """Query parameters and cookies that credentials have."""


class _Operation:
    """Calls one operation (`roundgate.backends.base.CallTool`)."""

    def __init__(
        self, backend: OpenApiBackend, index: Index, row: Row, definition: Mapping[str, Any]
    ) -> None:
        self._backend = backend
        self._index = index
        self._row = row
        self._definition = definition
        self._ready: _Ready | None = None

    async def __call__(self, context: Context, arguments: dict[str, Any]) -> ToolResult:
        ready = self._made_ready()
        arguments = await _with_resources(ready.plan, arguments, context)
        outgoing = request(ready.plan, arguments)
        _check_names(outgoing, ready.taken)
        await context.continue_as_task()
        answer = await self._sent(ready.service, outgoing, context)
        about = {"upstream": self._backend.name, "method": outgoing.method, "status": answer.status}
        await context.log("debug", about)
        if len(answer.body) > _LARGE:
            return await asyncio.to_thread(self._result, answer, ready.output)
        return self._result(answer, ready.output)

    async def _sent(self, service: Service, outgoing: Outgoing, context: Context) -> Answer:
        config, method = self._backend.config, outgoing.method
        key = await key_of(context, method, config.idempotency_key if method in KEYED else None)
        override = config.override.get(self._row.name)
        hint = None if override is None else override.idempotent
        is_repeatable = method not in KEYED if hint is None else hint
        keyed = with_key(replace(outgoing, is_repeatable=is_repeatable), key)
        return await service.send(keyed, config.timeout_s, context.deadline)

    def _result(self, answer: Answer, output: Schema | None) -> ToolResult:
        return result_of(self._row.name, answer, "", output, lenient=True)

    def _made_ready(self) -> _Ready:
        if self._ready is None:
            backend, row = self._backend, self._row
            offered = self._index.security[row.security]
            alternative = chosen(offered, backend.filled(self._index)) or {}
            names = frozenset(alternative).intersection(backend.config.credentials)
            taken = [one.queries() | one.cookies() for one in backend.credentials(names)]
            output = self._definition.get("outputSchema")
            self._ready = _Ready(
                self._index.plan(row),
                backend.service(self._index.servers[row.server], names),
                None if output is None else Schema.compile(output),
                frozenset().union(*taken),
            )
        return self._ready


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
    """An object that is exploded brings names of its own, of which none may be that of a credential.

    Raises:
        ToolError
    """
    if not taken:
        return
    pairs = [*outgoing.raw_query.split("&"), *outgoing.headers.get("cookie", "").split("; ")]
    if found := {unquote_plus(pair.partition("=")[0]) for pair in pairs} & taken:
        raise ToolError(f"{', '.join(sorted(found))}: is the gateway's own; leave it out")


def _index(config: OpenApiBackendConfig, origin: Origin, *, fetches: bool) -> tuple[Index, Path]:
    """The index on file if it is of these settings and documents, else one that is made now.

    Raises:
        ConfigError: none can be made here.
    """
    path = index_path(config, origin)
    with suppress(UnusableIndex, OSError):
        index = read(path)
        if index.fingerprint == fingerprint(config) and is_current(index, path, origin.base_dir):
            return index, path
    if config.document.startswith(("http://", "https://")) and not fetches:
        problem = origin.at("document").problem(
            f"{path.name} is no index of {config.document} with these settings, and a start fetches nothing",
            "run `roundgate compile` with this file, and keep what it writes beside it",
        )
        raise ConfigError([problem])
    from roundgate.backends.openapi.command import compiled

    return compiled(config, origin, fetches=fetches), path
