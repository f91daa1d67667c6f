"""From documents to an index: everything that takes time, done once.

Nothing here runs in a gateway that has an index. An operation that cannot be offered is left out,
and named with the place in the document and what to do about it; the rest is offered all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

from roundgate.backends.openapi.config import OpenApiBackendConfig
from roundgate.backends.openapi.index import (
    Index,
    Row,
    Span,
    Writer,
    fingerprint,
    hints,
    taken_names,
)
from roundgate.backends.openapi.names import Identity, tool_names
from roundgate.backends.openapi.overlays import Action, actions_of, overlaid
from roundgate.backends.openapi.reading import Document, Found, Operation
from roundgate.backends.openapi.references import References
from roundgate.backends.openapi.schemas import Schemas
from roundgate.backends.openapi.security import Alternative, Slot, slot_of
from roundgate.backends.openapi.servers import Servers
from roundgate.backends.openapi.sources import Fetch, Sources, documents_in, path_of
from roundgate.errors import ConfigError, Problem, UnreadableDocument, UnusableOperation
from roundgate.json import encode
from roundgate.protocol import Schema
from roundgate.settings import Origin

MAX_NAME: Final = 64
MAX_NAMED: Final = 5
"""Operations that one problem names."""


def compile_index(
    config: OpenApiBackendConfig, origin: Origin, fetch: Fetch | None = None
) -> Index:
    """The index of a back end's documents.

    Args:
        config: of the back end.
        origin: where it stands, for problems.
        fetch: gets documents by URL; without it only files are read.

    Raises:
        ConfigError: there is no document, it has no operation that can be offered, or, with
            `strict`, one that cannot.
    """
    return _Compiler(config, origin, fetch).index()


def documents_of(
    config: OpenApiBackendConfig, origin: Origin, fetch: Fetch | None = None
) -> list[Document]:
    """The descriptions of a back end as its overlays have changed them; arguments and
    errors of `compile_index`."""
    return _Compiler(config, origin, fetch).documents()


@dataclass(frozen=True, slots=True)
class _Named:
    """An operation, its document and where it stands."""

    document: Document
    found: Found


class _Compiler:
    def __init__(self, config: OpenApiBackendConfig, origin: Origin, fetch: Fetch | None) -> None:
        self._config = config
        self._origin = origin
        self._root = _uri(config.document, origin.base_dir)
        allowed = [
            *_own_folder(self._root),
            *(_uri(one, origin.base_dir) for one in (*config.references, *config.overlay)),
        ]
        self._sources = Sources(allowed, fetch)
        self._references = References(self._sources)
        self._requests = Schemas(self._references, self._is_old, "request")
        self._answers = Schemas(self._references, self._is_old, "response")
        self._servers = Servers(config.base_url, config.variables, config.origins)
        self._problems: list[Problem] = []
        self._reasons: set[tuple[str, str]] = set()
        self._dangling: dict[tuple[str, str, str, str], list[Identity]] = {}
        self._idle: list[Problem] = []
        self._writer = Writer()
        self._urls: dict[str, int] = {}
        self._security: dict[bytes, tuple[int, Sequence[Alternative]]] = {}
        self._slots: dict[str, Slot] = {}
        self._first_is_old = False

    def index(self) -> Index:
        documents = self.documents()
        operations = [
            _Named(document, found) for document in documents for found in self._found(document)
        ]
        longest = MAX_NAME - len(self._config.effective_prefix)
        identities = [self._identity(one, len(documents) > 1) for one in operations]
        for name, one in zip(tool_names(identities, longest), operations, strict=True):
            try:
                self._add(name, one)
            except UnusableOperation as error:
                self._leave_out(one.found.uri, one.found.pointer, one.found.identity, error)
        problems = [*self._idle, *self._problems, *self._incomplete()]
        if problems and self._config.strict:
            raise ConfigError(problems)
        if not self._writer.rows:
            raise ConfigError(self._nothing_offered())
        sources = [
            (self._shown(one.uri), one.size, one.sha256) for one in self._sources.read.values()
        ]
        security = [offered for _, offered in self._security.values()]
        print_ = fingerprint(self._config)
        return self._writer.index(
            print_,
            sources,
            list(self._urls),
            security,
            self._slots,
            problems,
            len(self._problems),
        )

    def documents(self) -> list[Document]:
        """Every description: the document itself, or those in the folder that have `paths`."""
        path = None if urlsplit(self._root).scheme != "file" else path_of(self._root)
        uris = (
            [one.resolve().as_uri() for one in documents_in(path)]
            if path is not None and path.is_dir()
            else []
        )
        actions = self._actions()
        idle: list[list[Problem]] = []
        found: list[Document] = []
        for uri in uris or [self._root]:
            try:
                value = self._sources.document(uri)
            except UnreadableDocument as error:
                raise ConfigError(
                    [self._here(str(error), "correct `document`, or mend the file")]
                ) from None
            if _is_description(value):
                value, without_effect = overlaid(value, actions) if actions else (value, [])
                idle.append(without_effect)
                self._sources.replace(uri, value)
                found.append(self._document(uri, value))
        if not found:
            remedy = "name an OpenAPI 3 or Swagger 2.0 document, or a folder that has some"
            raise ConfigError([self._here(f"{self._config.document} describes no service", remedy)])
        self._first_is_old = _is_old(found[0].value)
        self._idle = [one for one in idle[0] if all(one in others for others in idle)]
        return found

    def _actions(self) -> list[Action]:
        """Those of all overlays.

        Raises:
            ConfigError
        """
        found: list[Action] = []
        for number, given in enumerate(self._config.overlay):
            uri = _uri(given, self._origin.base_dir)
            try:
                overlay = self._sources.document(uri)
            except UnreadableDocument as error:
                place = self._origin.at("overlay", number)
                problem = place.problem(str(error), "correct `overlay`, or mend the file")
                raise ConfigError([problem]) from None
            found += actions_of(self._shown(uri), overlay)
        return found

    def _document(self, uri: str, value: Mapping[str, Any]) -> Document:
        plain = Document(
            uri,
            value,
            self._references,
            self._requests,
            self._answers,
            self._config.media_types,
            {},
        )
        try:
            with _of_known_kinds("one of them"):
                slots = [slot_of(name, one) for name, one in plain.security_schemes().items()]
        except UnusableOperation as error:
            raise ConfigError([self._here(f"security schemes: {error}", error.remedy)]) from None
        self._slots |= {slot.name: slot for slot in slots}
        taken = taken_names(self._config, slots)
        return Document(
            uri,
            value,
            self._references,
            self._requests,
            self._answers,
            self._config.media_types,
            taken,
        )

    def _is_old(self, uri: str) -> bool:
        value = self._sources.document(uri)
        if isinstance(value, dict) and ("openapi" in value or "swagger" in value):
            return _is_old(value)
        return self._first_is_old

    def _found(self, document: Document) -> Iterable[Found]:
        for one in document.operations():
            if isinstance(one, Found):
                yield one
            else:
                pointer, error = one
                self._leave_out(document.uri, pointer, None, error)

    def _identity(self, one: _Named, is_one_of_many: bool) -> Identity:
        identity = one.found.identity
        source = self._shown(one.document.uri) if is_one_of_many else ""
        return Identity(identity.method, identity.path, identity.operation_id, source)

    def _add(self, name: str, one: _Named) -> None:
        wants_answer = any(fnmatchcase(name, pattern) for pattern in self._config.output_schemas)
        document = one.document
        with _of_known_kinds("the operation"):
            operation = document.read(one.found, with_answer=wants_answer)
            server = self._servers.of(operation.own_servers, document.servers(), document.uri)
        try:
            Schema.compile(operation.input_schema)
            if operation.output_schema is not None:
                Schema.compile(operation.output_schema)
        except ValueError as error:
            raise UnusableOperation(str(error)) from None
        for where, dangling in operation.dangling:
            key = (where.uri, where.pointer, str(dangling), dangling.remedy)
            self._dangling.setdefault(key, []).append(operation.identity)
        head, tail, schemas = self._definition(operation)
        self._writer.rows.append(
            Row(
                name=name,
                method=operation.identity.method,
                path=operation.identity.path,
                tags=operation.tags,
                server=self._urls.setdefault(server, len(self._urls)),
                security=self._alternatives(operation.security),
                extensions=operation.extensions,
                head=head,
                tail=tail,
                schemas=schemas,
                plan=self._writer.piece(encode(operation.plan.kept())),
            )
        )

    def _definition(self, operation: Operation) -> tuple[Span, Span, tuple[int, ...]]:
        schema = dict(operation.input_schema)
        definitions = schema.pop("$defs", {})
        title = {} if operation.title is None else {"title": operation.title}
        members = {
            **title,
            "description": operation.description,
            "annotations": dict(hints(operation.identity.method)),
        }
        head = b"," + encode(members)[1:-1] + b',"inputSchema":' + encode(schema)[:-1]
        output = operation.output_schema
        tail = b"}}" if output is None else b'},"outputSchema":' + encode(dict(output)) + b"}"
        numbers = tuple(self._writer.schema(name, one) for name, one in definitions.items())
        return self._writer.piece(head), self._writer.piece(tail), numbers

    def _alternatives(self, security: Sequence[Alternative]) -> int:
        key = encode([dict(one) for one in security])
        return self._security.setdefault(key, (len(self._security), security))[0]

    def _leave_out(
        self, uri: str, pointer: str, identity: Identity | None, error: UnusableOperation
    ) -> None:
        what = (
            "the path is left out"
            if identity is None
            else f"{identity.method} {identity.path} is left out"
        )
        self._reasons.add((str(error), error.remedy))
        self._problems.append(Problem(self._shown(uri), pointer, f"{what}: {error}", error.remedy))

    def _incomplete(self) -> list[Problem]:
        """Return a problem for each dangling reference, with the operations that are offered
        without its target."""
        return [
            Problem(
                self._shown(uri),
                pointer,
                f"{message}; offered without it: {_operations_named(operations)}",
                remedy,
            )
            for (uri, pointer, message, remedy), operations in self._dangling.items()
        ]

    def _nothing_offered(self) -> list[Problem]:
        """Why there is no operation: once where all have the same reason, such as
        that there are no servers."""
        if len(self._reasons) == 1 and len(self._problems) > 1:
            [(reason, remedy)] = self._reasons
            return [
                self._here(
                    f"none of {len(self._problems):,} operations can be offered: {reason}", remedy
                )
            ]
        whole = self._here(
            "has no operation that can be offered", "see the other problems, or its `paths`"
        )
        return [whole, *self._problems]

    def _here(self, message: str, remedy: str) -> Problem:
        return self._origin.at("document").problem(message, remedy)

    def _shown(self, uri: str) -> str:
        """A path relative to the configuration, where it is one: an index
        goes to other machines."""
        if urlsplit(uri).scheme != "file":
            return uri
        path = path_of(uri)
        base = self._origin.base_dir
        return str(path.relative_to(base)) if path.is_relative_to(base) else str(path)


def _operations_named(operations: Sequence[Identity]) -> str:
    """Return the first operations by method and path, and the number of the others."""
    each = list(dict.fromkeys(f"{one.method} {one.path}" for one in operations))
    more = [f"{len(each) - MAX_NAMED} more operations"] if len(each) > MAX_NAMED else []
    return ", ".join([*each[:MAX_NAMED], *more])


@contextmanager
def _of_known_kinds(what: str) -> Iterator[None]:
    """Read a part of a document in which any value may be of any kind.

    Raises:
        UnusableOperation: one is of a kind that OpenAPI does not put there, and nothing
            before has said so better.
    """
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        message = f"{what} has a value of a kind that OpenAPI does not put there: {error}"
        raise UnusableOperation(message) from error


def _uri(document: str, base_dir: Path) -> str:
    if urlsplit(document).scheme in ("http", "https"):
        return document
    return (base_dir / document).resolve().as_uri()


def _own_folder(uri: str) -> list[str]:
    if urlsplit(uri).scheme == "file" and path_of(uri).is_dir():
        return [uri]
    return [uri, urljoin(uri, ".").rstrip("/")]


def _is_description(value: Any) -> bool:
    return (
        isinstance(value, dict) and ("openapi" in value or "swagger" in value) and "paths" in value
    )


def _is_old(document: Mapping[str, Any]) -> bool:
    return "swagger" in document or str(document.get("openapi", "")).startswith("3.0")
