"""The compiler from OpenAPI documents to an index.

The compiler omits an operation that cannot be offered, and reports its place in the document and a
remedy. It offers the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

from msgspec import Raw, to_builtins
from msgspec.structs import replace

from roundgate.backends.base import method_hints
from roundgate.backends.openapi.config import OpenApiBackendConfig
from roundgate.backends.openapi.documents import (
    Fetch,
    References,
    Sources,
    UnusableOperation,
    documents_in,
    fetching,
    path_from_uri,
)
from roundgate.backends.openapi.index import (
    Alternative,
    Index,
    Row,
    SchemeSlot,
    fingerprint,
    index_path,
    make_slot,
    taken_names,
    write,
)
from roundgate.backends.openapi.overlays import OverlayAction, overlaid, read_actions
from roundgate.backends.openapi.reading import (
    ApiDocument,
    FoundOperation,
    Identity,
    tool_names,
)
from roundgate.backends.openapi.schemas import Schemas
from roundgate.backends.openapi.servers import Servers
from roundgate.clock import Clock
from roundgate.errors import ConfigError, Problem, UnreadableDocument
from roundgate.json import encode
from roundgate.protocol import Schema, without_none
from roundgate.settings import Origin
from roundgate.settings.files import write_whole

MAX_NAME: Final = 64
MAX_NAMED: Final = 5
"""The number of operations that one problem names."""


def compile_to_file(config: OpenApiBackendConfig, origin: Origin) -> str:
    """Write the index of a back end for `roundgate compile`; return a report for the user.

    Raises:
        ConfigError: see `compile_index`.
    """
    clock = Clock()
    started = clock.monotonic_ms()
    index = compiled(config, origin, fetches=True)
    data = write(index)
    path = index_path(config, origin)
    write_whole(path, data)
    seconds = (clock.monotonic_ms() - started) / 1000
    counts = f"{len(index.rows)} operations, {index.left_out} left out"
    summary = f"{config.name}: {counts}, {len(data):,} bytes, {seconds:.1f} s: {path}"
    return "\n".join([*map(str, index.problems), summary])


def compiled(
    config: OpenApiBackendConfig,
    origin: Origin,
    *,
    fetches: bool,
    fetched: dict[str, bytes] | None = None,
) -> Index:
    """Return a new index of a back end.

    Args:
        origin: the place of `config`, for problems.
        fetches: whether to fetch documents by URL.
        fetched: fetched documents, by URL; newly fetched documents are added.

    Raises:
        ConfigError: see `compile_index`.
    """
    places = (config.document, *config.references, *config.overlay)
    is_remote = any(place.startswith(("http://", "https://")) for place in places)
    with fetching(fetched) if fetches and is_remote else nullcontext() as fetch:
        return compile_index(config, origin, fetch)


def compile_index(
    config: OpenApiBackendConfig, origin: Origin, fetch: Fetch | None = None
) -> Index:
    """Return the index of a back end's documents.

    Args:
        origin: the place of `config`, for problems.
        fetch: the function that fetches documents by URL; `None` allows files only.

    Raises:
        ConfigError: there is no document, no operation can be offered, or `strict` is set and an
            operation cannot be offered.
    """
    return _Compiler(config, origin, fetch).index()


class _Compiler:
    def __init__(self, config: OpenApiBackendConfig, origin: Origin, fetch: Fetch | None) -> None:
        self._config = config
        self._origin = origin
        self._root = _uri(config.document, origin.base_dir)
        allowed = [
            *_own_folder(self._root),
            *(_uri(path, origin.base_dir) for path in (*config.references, *config.overlay)),
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
        self._rows: list[Row] = []
        self._schemas: dict[str, tuple[int, Raw]] = {}
        self._urls: dict[str, int] = {}
        self._security: dict[bytes, tuple[int, Sequence[Alternative]]] = {}
        self._slots: dict[str, SchemeSlot] = {}
        self._first_is_old = False

    def index(self) -> Index:
        documents = self._documents()
        operations = [
            (document, operation) for document in documents for operation in self._found(document)
        ]
        longest = MAX_NAME - len(self._config.effective_prefix)
        identities = [
            replace(operation.identity, source=self._shown(document.uri))
            if len(documents) > 1
            else operation.identity
            for document, operation in operations
        ]
        for name, (document, operation) in zip(
            tool_names(identities, longest, self._config.names.plain), operations, strict=True
        ):
            try:
                self._add(name, document, operation)
            except UnusableOperation as error:
                identity = operation.identity
                title = f"{identity.method} {identity.path}"
                self._leave_out(operation.uri, operation.pointer, title, error)
        problems = [*self._idle, *self._problems, *self._incomplete()]
        if problems and self._config.strict:
            raise ConfigError(problems)
        if not self._rows:
            raise ConfigError(self._nothing_offered())
        return Index(
            fingerprint=fingerprint(self._config),
            sources=[
                (self._shown(source.uri), source.size, source.sha256)
                for source in self._sources.read.values()
            ],
            servers=list(self._urls),
            security=[offered for _, offered in self._security.values()],
            slots=self._slots,
            rows=self._rows,
            schemas=[(name, schema) for name, (_, schema) in self._schemas.items()],
            problems=problems,
            left_out=len(self._problems),
        )

    def _documents(self) -> list[ApiDocument]:
        """Return every description, changed by the overlays: the document itself, or the documents
        in the folder that have `paths`. Raise ConfigError if there is none, or one cannot be
        read."""
        path = None if urlsplit(self._root).scheme != "file" else path_from_uri(self._root)
        uris = [self._root]
        if path is not None and path.is_dir():
            uris = [action.resolve().as_uri() for action in documents_in(path)]
        actions = self._actions()
        idle: list[list[Problem]] = []
        documents: list[ApiDocument] = []
        for uri in uris:
            try:
                value = self._sources.document(uri)
            except UnreadableDocument as error:
                raise ConfigError(
                    [self._problem(str(error), "correct `document`, or the file")]
                ) from None
            if _is_description(value):
                value, without_effect = overlaid(value, actions) if actions else (value, [])
                idle.append(without_effect)
                self._sources.replace(uri, value)
                documents.append(self._document(uri, value))
        if not documents:
            remedy = "name an OpenAPI 3 or Swagger 2.0 document, or a folder that has some"
            raise ConfigError(
                [self._problem(f"{self._config.document} describes no service", remedy)]
            )
        self._first_is_old = _is_old(documents[0].value)
        self._idle = [action for action in idle[0] if all(action in others for others in idle)]
        return documents

    def _actions(self) -> list[OverlayAction]:
        actions: list[OverlayAction] = []
        for number, place in enumerate(self._config.overlay):
            uri = _uri(place, self._origin.base_dir)
            try:
                overlay = self._sources.document(uri)
            except UnreadableDocument as error:
                setting = self._origin.at("overlay", number)
                problem = setting.problem(str(error), "correct `overlay`, or the file")
                raise ConfigError([problem]) from None
            actions += read_actions(self._shown(uri), overlay)
        return actions

    def _document(self, uri: str, value: Mapping[str, Any]) -> ApiDocument:
        document = ApiDocument(
            uri,
            value,
            self._references,
            self._requests,
            self._answers,
            self._config.media_types,
            {},
        )
        try:
            with _expecting_known_types("one of them"):
                slots = [
                    make_slot(name, scheme) for name, scheme in document.security_schemes().items()
                ]
        except UnusableOperation as error:
            raise ConfigError([self._problem(f"security schemes: {error}", error.remedy)]) from None
        self._slots |= {slot.name: slot for slot in slots}
        return replace(document, taken=taken_names(self._config, slots))

    def _is_old(self, uri: str) -> bool:
        value = self._sources.document(uri)
        if isinstance(value, dict) and ("openapi" in value or "swagger" in value):
            return _is_old(value)
        return self._first_is_old

    def _found(self, document: ApiDocument) -> Iterator[FoundOperation]:
        for operation in document.operations():
            if isinstance(operation, FoundOperation):
                yield operation
            else:
                pointer, error = operation
                self._leave_out(document.uri, pointer, "the path", error)

    def _add(self, name: str, document: ApiDocument, location: FoundOperation) -> None:
        wants_answer = any(fnmatchcase(name, pattern) for pattern in self._config.output_schemas)
        with _expecting_known_types("the operation"):
            operation = document.read(location, with_answer=wants_answer)
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
        identity, output = operation.identity, operation.output_schema
        about = {
            **without_none(title=operation.title),
            "description": operation.description,
            "annotations": dict(method_hints(identity.method)),
        }
        schema = dict(operation.input_schema)
        definitions = schema.pop("$defs", {})
        security = encode([dict(alternative) for alternative in operation.security])
        self._rows.append(
            Row(
                name=name,
                method=identity.method,
                path=identity.path,
                tags=operation.tags,
                server=self._urls.setdefault(server, len(self._urls)),
                security=self._security.setdefault(
                    security, (len(self._security), operation.security)
                )[0],
                extensions=operation.extensions,
                may_have_files=operation.plan.may_have_files,
                about=Raw(encode(about)),
                input_schema=Raw(encode(schema)),
                schemas=tuple(self._number(*each) for each in definitions.items()),
                output_schema=None if output is None else Raw(encode(dict(output))),
                plan=Raw(encode(to_builtins(operation.plan))),
            )
        )

    def _number(self, name: str, schema: Any) -> int:
        """Return the position of a schema that tools share, by its name in `$defs`."""
        if name not in self._schemas:
            self._schemas[name] = (len(self._schemas), Raw(encode(schema)))
        return self._schemas[name][0]

    def _leave_out(self, uri: str, pointer: str, what: str, error: UnusableOperation) -> None:
        self._reasons.add((str(error), error.remedy))
        message = f"{what} is left out: {error}"
        self._problems.append(Problem(self._shown(uri), pointer, message, error.remedy))

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
        """Return the problems that prevent all operations; one problem if all share the same
        reason."""
        if len(self._reasons) == 1 and len(self._problems) > 1:
            [(reason, remedy)] = self._reasons
            message = f"none of {len(self._problems):,} operations can be offered: {reason}"
            return [self._problem(message, remedy)]
        message = "has no operation that can be offered"
        return [self._problem(message, "see the other problems, or its `paths`"), *self._problems]

    def _problem(self, message: str, remedy: str) -> Problem:
        return self._origin.at("document").problem(message, remedy)

    def _shown(self, uri: str) -> str:
        """Return a file's path relative to the configuration, because an index goes to other
        machines."""
        if urlsplit(uri).scheme != "file":
            return uri
        path = path_from_uri(uri)
        base = self._origin.base_dir
        return str(path.relative_to(base)) if path.is_relative_to(base) else str(path)


def _operations_named(operations: Sequence[Identity]) -> str:
    each = list(dict.fromkeys(f"{operation.method} {operation.path}" for operation in operations))
    more = [f"{len(each) - MAX_NAMED} more operations"] if len(each) > MAX_NAMED else []
    return ", ".join([*each[:MAX_NAMED], *more])


@contextmanager
def _expecting_known_types(what: str) -> Iterator[None]:
    """Report an unexpected type of a value in a part of a document.

    Raises:
        UnusableOperation: a value is of a type that OpenAPI does not allow at its place.
    """
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        message = f"{what} has a value of a kind that OpenAPI does not allow there: {error}"
        raise UnusableOperation(message) from error


def _uri(document: str, base_dir: Path) -> str:
    if urlsplit(document).scheme in ("http", "https"):
        return document
    return (base_dir / document).resolve().as_uri()


def _own_folder(uri: str) -> list[str]:
    if urlsplit(uri).scheme == "file" and path_from_uri(uri).is_dir():
        return [uri]
    return [uri, urljoin(uri, ".").rstrip("/")]


def _is_description(value: Any) -> bool:
    return (
        isinstance(value, dict) and ("openapi" in value or "swagger" in value) and "paths" in value
    )


def _is_old(document: Mapping[str, Any]) -> bool:
    return "swagger" in document or str(document.get("openapi", "")).startswith("3.0")
