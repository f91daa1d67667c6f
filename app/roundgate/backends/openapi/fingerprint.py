"""Whether an index is of these settings and documents."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from roundgate.backends.openapi.config import OpenApiBackendConfig
from roundgate.backends.openapi.index import Index
from roundgate.backends.openapi.security import Slot
from roundgate.json import encode
from roundgate.settings import Origin

VERSION: Final = 1
"""Of what an index has for a document; another one makes all indexes out of date."""
_COMPILED_WITH: Final = (
    *(
        "document",
        "base_url",
        "variables",
        "origins",
        "references",
        "overlay",
        "media_types",
        "output_schemas",
        "strict",
    ),
)


def index_path(config: OpenApiBackendConfig, origin: Origin) -> Path:
    """Where the index of a back end is kept."""
    return origin.base_dir / config.index_file


def fingerprint(config: OpenApiBackendConfig) -> str:
    """Of the settings that an index depends on; no secret is among them."""
    settings = {name: getattr(config, name) for name in _COMPILED_WITH}
    taken = {place: sorted(names) for place, names in taken_names(config, ()).items()}
    return hashlib.sha256(
        encode([VERSION, settings, taken, len(config.effective_prefix)])
    ).hexdigest()[:32]


def is_current(index: Index, path: Path, base_dir: Path) -> bool:
    """Whether the files that an index was made of are what they were. Those that are not here, as
    on the machine that only serves, do not count; neither do URLs. One that is no newer than the
    index and as long is not read."""
    written = path.stat().st_mtime_ns
    for where, size, digest in index.sources:
        if "://" in where:
            continue
        try:
            found = (base_dir / where).stat()
            if found.st_size != size:
                return False
            if found.st_mtime_ns >= written and _digest(base_dir / where) != digest:
                return False
        except OSError:
            continue
    return True


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def taken_names(config: OpenApiBackendConfig, slots: Iterable[Slot]) -> dict[str, frozenset[str]]:
    """By place, what no parameter may be called, because the gateway sends it itself."""
    filled = [
        *config.credentials.values(),
        *(() if config.credential is None else (config.credential,)),
    ]
    headers = {name.lower() for name in config.headers}
    queries: set[str] = set()
    cookies: set[str] = set()
    for one in filled:
        headers |= one.headers()
        queries |= one.queries()
        cookies |= one.cookies()
    for slot in slots:
        headers |= {slot.header.lower()} if slot.header else set()
        queries |= {slot.query} if slot.query else set()
        cookies |= {slot.cookie} if slot.cookie else set()
    return {"header": frozenset(headers), "query": frozenset(queries), "cookie": frozenset(cookies)}
