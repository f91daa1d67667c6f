"""The index: the compiled form of a description, in one file.

At startup the gateway does not parse the definitions and plans of tools, and the schemas that they
share; each stays JSON (`Raw`) until its first use.

roundgate-index 2 89abcdef    the format's version, and the CRC-32 of what follows
{"fingerprint": …, …}         an `Index` as JSON
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec.json
from msgspec import Raw, Struct

from roundgate.backends.base import StoredDefinition
from roundgate.backends.http.credential_config import header_key
from roundgate.backends.openapi.config import OpenApiBackendConfig
from roundgate.errors import IndexOfAnotherVersion, Problem, UnusableIndex
from roundgate.json import encode
from roundgate.settings import Origin

if TYPE_CHECKING:
    from roundgate.backends.http.plan import RequestPlan

_KIND: Final = b"roundgate-index "
_MAGIC: Final = _KIND + b"2 "
VERSION: Final = 3
"""The compiler's version. An index of another version is out of date."""
_COMPILED_WITH: Final = (
    *("document", "base_url", "variables", "origins", "references", "overlay", "media_types"),
    *("output_schemas", "strict"),
)
"""The settings that an index depends on."""
_MUTUAL_TLS: Final = "its own certificate: `tls` of the back end, with `cert`"
_OF_AWS: Final = "x-amazon-apigateway-authtype"
"""An extension of security schemes in documents exported by API Gateway."""

Alternative: TypeAlias = Mapping[str, Sequence[str]]
"""Security schemes that are used together, by name, with the scopes that the operation needs."""


class SchemeSlot(Struct, frozen=True, array_like=True):
    """A security scheme (OpenAPI "Security Scheme Object") that a configured credential fills."""

    name: str
    description: str
    """A description of the credential."""
    header: str | None = None
    """The header that carries the credential, or `None`; `query` and `cookie` likewise."""
    query: str | None = None
    cookie: str | None = None

    @property
    def is_mutual_tls(self) -> bool:
        """Return whether a client certificate fills the slot, instead of a credential."""
        return self.description == _MUTUAL_TLS

    def example(self, text: str) -> str | None:
        """Return a credential with a text as YAML, or `None` if text is not enough to fill the slot."""
        match self.description.partition(":")[0]:
            case "bearer" | "basic" as kind:
                return f'{{{kind}: "{text}"}}'
            case "header" | "query" | "cookie" as place:
                name = self.header or self.query or self.cookie
                return f'{{{place}: {name}, value: "{text}"}}'
            case "sigv4":
                return "{sigv4: execute-api}"
        return None

    @property
    def remedy(self) -> str:
        """The remedy for an unfilled slot, as text for a problem."""
        if self.is_mutual_tls:
            return f"give the gateway {self.description}"
        return f"set `credentials.{self.name}` ({self.description}), or one `credential` for all"


def make_slot(name: str, scheme: Any) -> SchemeSlot:
    """Return the slot of a scheme."""
    if not isinstance(scheme, dict):
        return SchemeSlot(name, "a scheme that the document does not describe")
    if scheme.get(_OF_AWS) == "awsSigv4":
        return SchemeSlot(name, "sigv4: execute-api", header="authorization")
    match scheme.get("type"), scheme.get("in"), str(scheme.get("scheme", "")).lower():
        case "apiKey", ("header" | "query" | "cookie") as place, _:
            key = str(scheme.get("name", ""))
            return SchemeSlot(name, f"{place}: {key}, value: the API key", **{str(place): key})
        case "http", _, "basic":
            return SchemeSlot(name, 'basic: "user:password"', header="authorization")
        case "http", _, _:
            return SchemeSlot(name, "bearer: the token", header="authorization")
        case "mutualTLS", _, _:
            return SchemeSlot(name, _MUTUAL_TLS)
        case (("oauth2" | "openIdConnect"), _, _):
            return SchemeSlot(
                name, "bearer: a token, or client_credentials", header="authorization"
            )
    return SchemeSlot(name, f"the credential for {scheme.get('type')}", header="authorization")


def chosen(offered: Sequence[Alternative], filled: Collection[str]) -> Alternative | None:
    """Return the first alternative whose schemes are all filled, preferably one with credentials,
    or `None`. An operation without alternatives needs no credentials."""
    if not offered:
        return {}
    full = [alternative for alternative in offered if set(alternative) <= set(filled)]
    return max(full, key=bool, default=None)


class Row(Struct, frozen=True, array_like=True):
    """A tool's row, with the data for selecting and listing the tool."""

    name: str
    method: str
    path: str
    tags: tuple[str, ...]
    server: int
    """The position of the base URL in `Index.servers`."""
    security: int
    """The position of the alternatives in `Index.security`."""
    extensions: Mapping[str, Any]
    may_have_files: bool
    """Whether a request may have a file."""
    about: Raw
    """Title, description and annotations of the definition."""
    input_schema: Raw
    """The input schema without `$defs`."""
    schemas: tuple[int, ...]
    """The schemas in `$defs`, by their positions in `Index.schemas`."""
    output_schema: Raw | None
    plan: Raw


class Index(Struct, frozen=True):
    """An index in memory."""

    fingerprint: str
    """A digest of the settings that the index depends on."""
    sources: Sequence[tuple[str, int, str]]
    """Path or URL, size and SHA-256 of each document."""
    servers: Sequence[str]
    """Base URLs."""
    security: Sequence[Sequence[Alternative]]
    slots: Mapping[str, SchemeSlot]
    rows: Sequence[Row]
    schemas: Sequence[tuple[str, Raw]]
    """The schemas that tools share, with their names in `$defs`."""
    problems: Sequence[Problem]
    """Omitted operations with reasons, dangling references, and overlay actions that change
    nothing."""
    left_out: int
    """The number of omitted operations."""

    def definition(self, row: Row, hints: Mapping[str, bool]) -> StoredDefinition:
        """Return a tool's definition, which reads its bytes at first use."""
        return StoredDefinition(row.name, hints, partial(self._rest, row))

    def _rest(self, row: Row) -> bytes:
        """Return the bytes of a definition after its name."""
        parts = [b",", bytes(row.about)[1:-1], b',"inputSchema":', bytes(row.input_schema)[:-1]]
        if row.schemas:
            shared = (self.schemas[number] for number in row.schemas)
            defs = b",".join(encode(name) + b":" + bytes(schema) for name, schema in shared)
            parts += [b',"$defs":{', defs, b"}"]
        parts.append(b"}")
        if row.output_schema is not None:
            parts += [b',"outputSchema":', bytes(row.output_schema)]
        return b"".join([*parts, b"}"])

    def plan(self, row: Row) -> RequestPlan:
        """Return the plan of a tool's requests."""
        from roundgate.backends.http.plan import RequestPlan

        return msgspec.json.decode(row.plan, type=RequestPlan)


def write(index: Index) -> bytes:
    """Return the content of an index file."""
    content = msgspec.json.encode(index)
    return b"%s%08x\n%s" % (_MAGIC, zlib.crc32(content), content)


def read(path: Path) -> Index:
    """Read an index from a file.

    Raises:
        IndexOfAnotherVersion: another version of the compiler wrote the file.
        UnusableIndex: the file is not an index, or is incomplete.
        OSError: the file cannot be read.
    """
    head, _, content = path.read_bytes().partition(b"\n")
    if not head.startswith(_MAGIC):
        is_other_version = head.startswith(_KIND)
        raise IndexOfAnotherVersion() if is_other_version else UnusableIndex("is not an index")
    if head.removeprefix(_MAGIC) != b"%08x" % zlib.crc32(content):
        raise UnusableIndex("is truncated or damaged")
    try:
        return msgspec.json.decode(content, type=Index)
    except msgspec.MsgspecError:
        raise UnusableIndex("is not an index") from None


def index_path(config: OpenApiBackendConfig, origin: Origin) -> Path:
    """Return the path of a back end's index."""
    return origin.base_dir / config.index_file


def fingerprint(config: OpenApiBackendConfig) -> str:
    """Return a digest of the settings that an index depends on, without secrets."""
    settings = {name: getattr(config, name) for name in _COMPILED_WITH} | {
        "dots": config.names.dots
    }
    taken_by_place = {place: sorted(names) for place, names in taken_names(config, ()).items()}
    return hashlib.sha256(
        encode([VERSION, settings, taken_by_place, len(config.effective_prefix)])
    ).hexdigest()[:32]


def is_current(index: Index, path: Path, base_dir: Path) -> bool:
    """Return whether the source files of an index are unchanged. Ignore URLs and missing files; a
    machine that only serves may lack the files. Read a file of unchanged size only if it is newer
    than the index."""
    written = path.stat().st_mtime_ns
    for where, size, digest in index.sources:
        if "://" in where:
            continue
        file = base_dir / where
        try:
            stat = file.stat()
            is_newer = stat.st_mtime_ns >= written
            if stat.st_size != size or (is_newer and _digest(file) != digest):
                return False
        except OSError:
            continue
    return True


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def taken_names(
    config: OpenApiBackendConfig, slots: Sequence[SchemeSlot]
) -> dict[str, frozenset[str]]:
    """Return the names of headers (in lower case), query parameters and cookies that the gateway
    sends itself. No tool parameter may use them."""
    general = () if config.credential is None else (config.credential,)
    taken = [credential.taken() for credential in (*config.credentials.values(), *general)]
    return {
        "header": frozenset(map(header_key, config.headers)).union(
            *(credential.headers for credential in taken),
            (header_key(credential.header) for credential in slots if credential.header),
        ),
        "query": frozenset[str]().union(
            *(credential.query for credential in taken),
            (credential.query for credential in slots if credential.query),
        ),
        "cookie": frozenset[str]().union(
            *(credential.cookies for credential in taken),
            (credential.cookie for credential in slots if credential.cookie),
        ),
    }
