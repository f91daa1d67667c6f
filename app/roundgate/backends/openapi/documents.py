"""The documents of a description, and the references between them.

A `$ref` may name another file or URL. The compiler opens only places that the configuration allows.
Otherwise a third party's document could read any file, or call any address, that the compiling
machine can reach. Each document is read once, within size limits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from msgspec import Struct

from roundgate.backends.http.messages import ACCEPTED
from roundgate.errors import (
    AnswerTooLarge,
    Inside,
    UnknownEncoding,
    UnreadableDocument,
    YamlTooCostly,
)
from roundgate.json import at_pointer
from roundgate.lenient import Unpacker
from roundgate.settings import yaml_file

if TYPE_CHECKING:
    import httpx

MAX_BYTES: Final = 128_000_000
MAX_DOCUMENTS: Final = 10_000
MAX_NODES: Final = 5_000_000
"""The limit for values in one document. A YAML alias counts wherever it is used."""
MAX_ALIASED: Final = 1_000_000
"""The limit for values that the aliases of one document repeat."""
SUFFIXES: Final = (".json", ".yaml", ".yml")
TIMEOUT_S: Final = 60.0
MAX_HOPS: Final = 50
_NOT_SCHEMAS: Final = ("example", "examples", "default", "const", "enum")

Fetch: TypeAlias = Callable[[str, int], bytes]
"""A function that returns the body at a URL, up to a number of bytes, or raises
UnreadableDocument."""


class UnusableOperation(Inside):
    """A part of a document cannot be used. `remedy` is for the person who maintains the document or
    the configuration."""

    def __init__(
        self,
        message: str,
        remedy: str = "correct the document, or leave the operation out with `exclude`",
    ):
        super().__init__(message)
        self.remedy = remedy


class DanglingReference(UnusableOperation):
    """A `$ref` of a document has no target, or its target may not be read."""


class Source(Struct, frozen=True):
    """The size and digest of a document when it was read."""

    uri: str
    size: int
    sha256: str


@dataclass(slots=True)
class Sources:
    """The documents of a description, by URI without fragment."""

    allowed: Sequence[str]
    """URIs that may be opened, including all URIs below them."""
    fetch: Fetch | None = None
    """The function that fetches documents; `None` allows files only."""
    read: dict[str, Source] = field(default_factory=dict)
    _documents: dict[str, Any] = field(default_factory=dict)
    _bytes: int = 0

    def document(self, uri: str) -> Any:
        """Return the parsed document.

        Raises:
            UnreadableDocument: the document is not allowed, missing, too large, or neither JSON nor
                YAML.
        """
        if uri not in self._documents:
            if len(self._documents) >= MAX_DOCUMENTS:
                raise UnreadableDocument(f"there are more than {MAX_DOCUMENTS:,} documents")
            raw = self._raw(uri)
            self._bytes += len(raw)
            if self._bytes > MAX_BYTES:
                raise UnreadableDocument(
                    f"the documents have more than {MAX_BYTES:,} bytes together"
                )
            self._documents[uri] = parsed(raw, uri)
            self.read[uri] = Source(uri, len(raw), hashlib.sha256(raw).hexdigest())
        return self._documents[uri]

    def replace(self, uri: str, document: Any) -> None:
        """Replace a document with a copy that overlays have changed."""
        self._documents[uri] = document

    def _raw(self, uri: str) -> bytes:
        if not self._allows(uri):
            raise UnreadableDocument(f"{uri} is outside the places that the document may refer to")
        if urlsplit(uri).scheme == "file":
            try:
                return path_from_uri(uri).read_bytes()
            except OSError as error:
                raise UnreadableDocument(f"{uri}: {error.strerror or 'cannot be read'}") from None
        if self.fetch is None:
            raise UnreadableDocument(
                f"{uri} is fetched by `roundgate compile` and `roundgate check` only"
            )
        return self.fetch(uri, MAX_BYTES)

    def _allows(self, uri: str) -> bool:
        parts = urlsplit(uri)
        if parts.scheme not in ("file", "http", "https"):
            return False
        # resolve symbolic links and dot segments before the comparison
        plain = path_from_uri(uri).resolve().as_uri() if parts.scheme == "file" else uri
        if ".." in unquote(urlsplit(plain).path).split("/"):
            return False
        return any(
            plain == allowed
            or plain.startswith(allowed if allowed.endswith("/") else allowed + "/")
            for allowed in self.allowed
        )


def path_from_uri(uri: str) -> Path:
    """Return the path of a `file:` URI."""
    return Path(unquote(urlsplit(uri).path))


def documents_in(folder: Path) -> list[Path]:
    """Return the files of a folder that may be documents or parts of them."""
    return sorted(
        path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file()
    )


def parsed(raw: bytes, uri: str) -> Any:
    """Return a document as plain JSON values.

    Raises:
        UnreadableDocument: the document is neither JSON nor YAML.
    """
    raw = raw.removeprefix(b"\xef\xbb\xbf")  # a byte order mark, which .NET writes
    if raw.lstrip()[:1] == b"<":
        raise UnreadableDocument(
            f"{uri} is a page (HTML or XML), not the document: give its URL, such as /openapi.json of FastAPI,"
            " /v3/api-docs of springdoc, /swagger/v1/swagger.json of Swashbuckle"
        )
    try:
        if raw.lstrip()[:1] in (b"{", b"["):
            return json.loads(raw)
        return _plain(_yaml(raw, uri), iter(range(MAX_NODES)))
    except StopIteration:
        raise UnreadableDocument(f"{uri} has more than {MAX_NODES:,} values") from None
    except RecursionError:
        raise UnreadableDocument(f"{uri} is nested too deeply, or contains itself") from None
    except ValueError as error:
        if raw.lstrip()[:1] == b"{" and not uri.lower().endswith(".json"):
            return _plain(_yaml(raw, uri), iter(range(MAX_NODES)))
        raise UnreadableDocument(f"{uri} is not JSON: {str(error)[:200]}") from None


def _yaml(raw: bytes, uri: str) -> Any:
    import yaml

    class Yaml12(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        """The core schema of YAML 1.2, which OpenAPI requires: `no`, `on` and dates are text."""

        yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - replaces the parent's
        yaml_constructors: dict[Any, Any] = yaml.SafeLoader.yaml_constructors | {
            "tag:yaml.org,2002:int": lambda _, node: _integer(str(node.value))
        }

    for tag, pattern, first in _CORE:
        Yaml12.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", pattern, first)
    try:
        yaml_file.check_cost(raw, max_values=MAX_NODES, max_aliased=MAX_ALIASED)
        return yaml.load(raw, Yaml12)  # noqa: S506 - a safe loader with other resolvers
    except YamlTooCostly as error:
        raise UnreadableDocument(f"{uri} {error} (line {error.line})") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UnreadableDocument(f"{uri} is not YAML{place}: {reason[:200]}") from None


def _core() -> Iterator[tuple[str, Any, list[str]]]:
    import re

    yield "bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
    yield "null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]
    integer = r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$"
    yield "int", re.compile(integer), list("-+0123456789")
    yield (
        "float",
        re.compile(r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$"),
        list("-+.0123456789"),
    )
    yield "merge", re.compile(r"^(?:<<)$"), ["<"]


_CORE: Final = tuple(_core())


def _integer(text: str) -> int:
    """Return an integer as YAML 1.2 reads it: `010` is ten, `0o10` is eight. PyYAML follows YAML
    1.1, which reads `010` as eight and refuses `090`."""
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    return int(text if base == 10 else text[2:], base)


def _plain(value: Any, count: Iterator[int]) -> Any:
    """Convert keys to text, because `200:` is a number in YAML. Each value uses up one of
    `count`."""
    next(count)
    if isinstance(value, dict):
        return {_key(key): _plain(item, count) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, count) for item in value]
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)


def _key(key: Any) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    return "null" if key is None else str(key)


@contextmanager
def fetching(fetched: dict[str, bytes] | None = None) -> Iterator[Fetch]:
    """Provide a function that fetches documents by URL and caches them in `fetched`. The function
    follows no redirects, because their targets may not be allowed."""
    import httpx

    documents = {} if fetched is None else fetched
    with httpx.Client(
        timeout=TIMEOUT_S,
        trust_env=False,
        headers={"accept": "application/json, */*", "accept-encoding": ACCEPTED},
    ) as client:

        def fetch(url: str, max_bytes: int) -> bytes:
            if url not in documents or len(documents[url]) > max_bytes:
                documents[url] = _fetched(client, url, max_bytes)
            return documents[url]

        yield fetch


def _fetched(client: httpx.Client, url: str, max_bytes: int) -> bytes:
    import httpx

    try:
        with client.stream("GET", url) as response:
            if response.status_code != 200:
                target = response.headers.get("location", "")[:200]
                hint = f", a redirect to {target}: give that URL" if target else ""
                raise UnreadableDocument(f"{url} answers {response.status_code}{hint}")
            unpacker = Unpacker(response.headers.get("content-encoding", ""), max_bytes)
            for piece in response.iter_raw(65_536):
                unpacker.feed(piece)
            return unpacker.body()
    except AnswerTooLarge:
        raise UnreadableDocument(f"{url} has more than {max_bytes:,} bytes") from None
    except UnknownEncoding:
        raise UnreadableDocument(
            f"{url} has a content encoding that was not requested ({ACCEPTED})"
        ) from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UnreadableDocument(f"{url} cannot be fetched ({type(error).__name__})") from None


class Place(NamedTuple):
    """The place of a value: its document's URI and a JSON Pointer."""

    uri: str
    pointer: str
    is_part: bool = False
    """Whether the value is a part of another schema (`allOf`), which has more members."""
    is_missing: bool = False
    """Whether the target is missing. Then `uri` is the document that has the `$ref`, and `pointer`
    is the `$ref` as written."""


def reference_in(value: Any) -> str | None:
    """Return the `$ref` of a value, if it has one."""
    reference = value.get("$ref") if isinstance(value, dict) else None
    return reference if isinstance(reference, str) else None


@dataclass(slots=True)
class References:
    """Resolves references between the documents of one description (OpenAPI "Reference Object",
    JSON Schema 2020-12 section 8.2.3)."""

    sources: Sources
    _names: dict[str, dict[str, str]] = field(default_factory=dict)

    def resolve(self, uri: str, reference: str) -> tuple[Place, Any]:
        """Return the place and value of the target of a reference in the document at `uri`.

        Raises:
            DanglingReference: the target is missing, or may not be read.
        """
        target, fragment = urldefrag(reference)
        fragment = unquote(fragment)
        whole = urljoin(uri, target) if target else uri
        named = self._named(uri)
        if reference in named:
            return self._at(uri, named[reference], reference)
        try:
            self.sources.document(whole)
        except UnreadableDocument as error:
            raise DanglingReference(
                f"$ref {reference[:200]!r}: {error}",
                "add the place to `references`, or put the file there",
            ) from None
        if fragment and not fragment.startswith("/"):
            pointer = self._named(whole).get(f"#{fragment}")
            if pointer is None:
                raise DanglingReference(f"$ref {reference[:200]!r}: there is no such anchor")
            return self._at(whole, pointer, reference)
        return self._at(whole, fragment, reference)

    def follow(self, uri: str, value: Any) -> tuple[str, Any]:
        """Return a value with every `$ref` at its top followed, and the URI of the document that
        holds it.

        Raises:
            DanglingReference: a reference has no target.
            UnusableOperation: the references form a cycle, or exceed `MAX_HOPS`.
        """
        for _ in range(MAX_HOPS):
            reference = reference_in(value)
            if reference is None:
                return uri, value
            place, value = self.resolve(uri, reference)
            uri = place.uri
        raise UnusableOperation("a $ref leads to itself, or through too many others")

    def _at(self, uri: str, pointer: str, reference: str) -> tuple[Place, Any]:
        try:
            return Place(uri, pointer), at_pointer(self.sources.document(uri), pointer)
        except (LookupError, ValueError):
            raise DanglingReference(f"$ref {reference[:200]!r} has no target") from None

    def _named(self, uri: str) -> dict[str, str]:
        """Return the pointers of `$id`s and of `#anchor`s in a document."""
        if uri not in self._names:
            self._names[uri] = {}
            if urldefrag(uri).url in self.sources.read:
                self._names[uri] = dict(_names_in(self.sources.document(uri)))
        return self._names[uri]


def _names_in(document: Any) -> Iterator[tuple[str, str]]:
    stack = [("", document)]
    while stack:
        pointer, node = stack.pop()
        if isinstance(node, dict):
            for word in ("$anchor", "$dynamicAnchor"):
                if isinstance(node.get(word), str):
                    yield f"#{node[word]}", pointer
            if isinstance(node.get("$id"), str):
                yield node["$id"], pointer
            stack.extend(
                (f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}", item)
                for key, item in node.items()
                if key not in _NOT_SCHEMAS or pointer.endswith("/properties")
            )
        elif isinstance(node, list):
            stack.extend((f"{pointer}/{index}", item) for index, item in enumerate(node))
