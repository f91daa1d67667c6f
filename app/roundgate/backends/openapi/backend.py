"""The operations of an OpenAPI document as tools.

At startup the gateway parses no definition. It parses a tool's plan, and imports the code for
calls, when the tool is first called.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from roundgate.backends.base import DirectCall, Offering, Returned, Shared, Tool, method_hints
from roundgate.backends.http.credentials import Accesses
from roundgate.backends.http.tls import Certificates
from roundgate.backends.openapi.config import OpenApiBackendConfig
from roundgate.backends.openapi.index import (
    Index,
    Row,
    SchemeSlot,
    chosen,
    fingerprint,
    index_path,
    is_current,
    read,
)
from roundgate.backends.shaping import is_selected
from roundgate.errors import ConfigError, Problem, UnusableIndex
from roundgate.replay import AnyContext, Context
from roundgate.settings import Origin

if TYPE_CHECKING:
    from roundgate.backends.http.exchanges import Calling
    from roundgate.backends.http.reliability import Attempts
    from roundgate.backends.http.service import Service

_REMEDY: Final = "run `roundgate compile` with this file again, and keep the written file beside it"

log = logging.getLogger("roundgate.backends")


class OpenApiBackend:
    """An OpenAPI description and its tools."""

    def __init__(self, config: OpenApiBackendConfig, origin: Origin, shared: Shared) -> None:
        self.name = config.name
        self._config = config
        self._origin = origin
        self._fetches = shared.fetches
        self._fetched = shared.fetched
        self._accesses = Accesses(config, origin, shared, config.credentials)
        self._certificates = Certificates(config.tls, origin.at("tls"))
        self._services: dict[tuple[str, frozenset[str]], Service] = {}
        self.senders: dict[str, Attempts] = {}

    async def offer(self) -> Offering:
        """Return the tools of the index.

        Raises:
            ConfigError: neither the index nor the document is available, every operation needs a
                security scheme that is not filled (with `strict`: any), or a certificate or a secret
                is unavailable.
        """
        if problems := await self._accesses.problems(self._certificates):
            raise ConfigError(problems)
        index, path = _index(
            self._config, self._origin, fetches=self._fetches, fetched=self._fetched
        )
        tools = {row.name: self._tool(index, row) for row in index.rows}
        rows = index.rows
        if self._config.include or self._config.exclude:
            rows = [row for row in rows if is_selected(tools[row.name], self._config)]
        unfilled = self._unfilled(index, rows)
        problems = self._unknown_schemes(index) or self._unfilled_problems(index, unfilled)
        if problems and (not unfilled or len(unfilled) == len(rows) or self._config.strict):
            raise ConfigError(problems)
        absent = {row.name for row in unfilled}
        if left_out := index.left_out + len(absent):
            log.warning(
                "operations are left out",
                extra={"fields": {"backend": self.name, "n": left_out}},
            )
        files = {
            path,
            *self._certificates.files,
            *self._accesses.files,
            *(self._origin.base_dir / where for where, _, _ in index.sources if "://" not in where),
        }
        return Offering(
            tools=[tool for name, tool in tools.items() if name not in absent],
            files=frozenset(files),
            left_out=[*index.problems, *problems],
            absent=frozenset(absent),
        )

    async def aclose(self) -> None:
        """Close the pooled connections."""
        for service in self._services.values():
            await service.aclose()
        await self._accesses.aclose()

    def _unknown_schemes(self, index: Index) -> list[Problem]:
        """Return a problem for each credential of an unknown security scheme."""
        place = self._origin.at("credentials")
        slots = ", ".join(index.slots) or "none: use `credential`"
        return [
            place.at(name).problem(
                "is not a security scheme of the document", f"correct the name; there are {slots}"
            )
            for name in self._config.credentials
            if name not in index.slots
        ]

    def _unfilled(self, index: Index, rows: Sequence[Row]) -> list[Row]:
        """Return the operations that cannot be called, because no alternative of their security
        schemes is filled."""
        if self._config.credential is not None:
            return []
        filled = self._filled(index)
        is_open = [chosen(offered, filled) is not None for offered in index.security]
        return [row for row in rows if not is_open[row.security]]

    def _unfilled_problems(self, index: Index, unfilled: Sequence[Row]) -> list[Problem]:
        """Return a problem for each security scheme that these operations lack."""
        needed = Counter(
            name
            for row in unfilled
            for name in index.security[row.security][0]
            if name not in self._filled(index)
        )
        return [
            self._origin.at("credentials").problem(
                f"{count} operations need the security scheme {name!r}",
                index.slots.get(name, SchemeSlot(name, "a credential")).remedy,
            )
            for name, count in needed.items()
        ]

    def _filled(self, index: Index) -> frozenset[str]:
        """Return the security schemes that a credential or the gateway's certificate fills."""
        tls = self._config.tls
        has_certificate = tls is not None and tls.cert is not None
        shown = {
            name for name, slot in index.slots.items() if has_certificate and slot.is_mutual_tls
        }
        return frozenset(shown | self._config.credentials.keys())

    def _tool(self, index: Index, row: Row) -> Tool:
        definition = index.definition(row, method_hints(row.method))
        made: list[Calling] = []

        def calling() -> Calling:
            if not made:
                made.append(self._calling(index, row, definition))
            return made[0]

        async def direct(context: AnyContext, arguments: dict[str, Any]) -> Returned:
            return await calling()(context, arguments)

        async def with_files(context: Context, arguments: dict[str, Any]) -> Returned:
            return await calling().with_files(context, arguments)

        call = with_files if row.may_have_files else DirectCall(direct)
        return Tool(definition, call, about=row)

    def _calling(self, index: Index, row: Row, definition: Mapping[str, Any]) -> Calling:
        from roundgate.backends.http.exchanges import KEYED, Calling
        from roundgate.backends.http.messages import result_from_answer
        from roundgate.protocol import Schema

        config = self._config
        alternative = chosen(index.security[row.security], self._filled(index)) or {}
        names = frozenset(alternative).intersection(config.credentials)
        general = () if config.credential is None else (config.credential,)
        credentials = [config.credentials[name] for name in names] or general
        taken = [credential.taken() for credential in credentials]
        declared = definition.get("outputSchema")
        output = None if declared is None else Schema.compile(declared)
        override = config.override.get(row.name)
        idempotent = None if override is None else override.idempotent
        is_repeatable = row.method not in KEYED if idempotent is None else idempotent
        return Calling(
            replace(index.plan(row), is_repeatable=is_repeatable),
            self._service(index.servers[row.server], names),
            config.timeout_s,
            config.idempotency_key if row.method in KEYED else None,
            lambda answer: result_from_answer(row.name, answer, "", output, lenient=True),
            taken=frozenset().union(*(taker.query | taker.cookies for taker in taken)),
        )

    def _service(self, base_url: str, names: frozenset[str]) -> Service:
        """Return the service at a base URL with the credentials of the named schemes."""
        from roundgate.backends.http.service import Service

        key = (base_url, names)
        if key not in self._services:
            self._services[key] = Service(
                self._config,
                base_url,
                self._accesses.of(sorted(names)) if names else self._accesses.general(),
                self._accesses.redactor,
                self._certificates,
                self.senders,
            )
        return self._services[key]


def _index(
    config: OpenApiBackendConfig, origin: Origin, *, fetches: bool, fetched: dict[str, bytes]
) -> tuple[Index, Path]:
    """Return the index and the path of its file. If the file is missing, unusable or out of date,
    compile a new index.

    Raises:
        ConfigError: the index cannot be compiled on this machine.
    """
    path, defect = index_path(config, origin), ""
    try:
        index = read(path)
        if index.fingerprint == fingerprint(config) and is_current(index, path, origin.base_dir):
            return index, path
        defect = "was compiled from other settings or another document"
    except UnusableIndex as error:
        defect = str(error)
    except OSError:
        pass
    if not fetches:
        _check_document_is_here(config, origin, path, defect)
        if defect:
            about = {"backend": config.name, "index": path.name}
            fields = {**about, "reason": defect, "remedy": _REMEDY}
            log.warning("an index is not used; its document is compiled", extra={"fields": fields})
    from roundgate.backends.openapi.compiling import compiled

    return compiled(config, origin, fetches=fetches, fetched=fetched), path


def _check_document_is_here(
    config: OpenApiBackendConfig, origin: Origin, path: Path, defect: str
) -> None:
    """Raise ConfigError if the document is a URL, or if the index has a defect and the document's
    file is missing. `defect` is empty if there is no index."""
    document = config.document
    if document.startswith(("http://", "https://")):
        reason = defect or "is missing"
        message = f"{path.name} {reason}, and a start fetches no documents"
    elif defect and not (origin.base_dir / document).exists():
        message = f"{path.name} {defect}, and {document} is not here"
    else:
        return
    raise ConfigError([origin.at("document").problem(message, _REMEDY)])
