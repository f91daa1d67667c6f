"""The documents that a description is made of: read once, from allowed places only, within bounds.

A `$ref` may name another file or URL. What the configuration does not allow is never opened: a
document that somebody else wrote could otherwise have the gateway read any file, or call any
address, of the machine that compiles it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import unquote, urlsplit

from roundgate.errors import UnreadableDocument, YamlTooCostly
from roundgate.settings import yaml_file

MAX_BYTES: Final = 128_000_000
MAX_DOCUMENTS: Final = 10_000
MAX_NODES: Final = 5_000_000
"""Values in one document, aliases of YAML counted wherever they are used."""
MAX_ALIASED: Final = 1_000_000
"""Values that the aliases of one document may repeat."""
SUFFIXES: Final = (".json", ".yaml", ".yml")

Fetch: TypeAlias = Callable[[str, int], bytes]
"""The body at a URL, of so many bytes at most; raises UnreadableDocument."""


@dataclass(frozen=True, slots=True)
class Source:
    """What one document was when it was read."""

    uri: str
    size: int
    sha256: str


@dataclass(slots=True)
class Sources:
    """Documents by URI without fragment."""

    allowed: Sequence[str]
    """URIs: each with everything below it."""
    fetch: Fetch | None = None
    """Without it nothing is fetched."""
    read: dict[str, Source] = field(default_factory=dict)
    _documents: dict[str, Any] = field(default_factory=dict)
    _bytes: int = 0

    def document(self, uri: str) -> Any:
        """The parsed document.

        Raises:
            UnreadableDocument: it is not allowed, not there, too large, or not JSON or YAML.
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
        """Have another value stand for a document that was read, as overlays change it."""
        self._documents[uri] = document

    def _raw(self, uri: str) -> bytes:
        if not self._allows(uri):
            raise UnreadableDocument(f"{uri} is outside of what the document may refer to")
        if urlsplit(uri).scheme == "file":
            try:
                return path_of(uri).read_bytes()
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
        # what a link leads to counts, and dot segments have to be gone before anything is compared
        plain = path_of(uri).resolve().as_uri() if parts.scheme == "file" else uri
        if ".." in unquote(urlsplit(plain).path).split("/"):
            return False
        return any(
            plain == one or plain.startswith(one if one.endswith("/") else one + "/")
            for one in self.allowed
        )


def path_of(uri: str) -> Path:
    """The path of a `file:` URI."""
    return Path(unquote(urlsplit(uri).path))


def documents_in(folder: Path) -> list[Path]:
    """The files of a folder that may be documents or parts of them."""
    return sorted(
        path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file()
    )


def parsed(raw: bytes, uri: str) -> Any:
    """A document as plain JSON values.

    Raises:
        UnreadableDocument: it is neither JSON nor YAML.
    """
    raw = raw.removeprefix(b"\xef\xbb\xbf")  # which .NET begins files with
    if raw.lstrip()[:1] == b"<":
        raise UnreadableDocument(
            f"{uri} is a page (HTML or XML), not the document: that is at /openapi.json of FastAPI,"
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
        """The core schema of YAML 1.2, which OpenAPI asks for: `no`, `on` and dates are text."""

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
        what = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UnreadableDocument(f"{uri} is not YAML{place}: {what[:200]}") from None


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
    """With text for keys, as JSON has them: `200:` is a number in YAML. Each
    value takes one of `count`."""
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
