"""The lock file of a server: digests of the definitions that an operator has accepted.

`roundgate compile` writes the file beside gateway.yaml, and the gateway compares later definitions
with it, so a server cannot change the text that a model reads, or the page that a host shows,
unnoticed. Tools, prompts, resource templates, skills and pages are pinned; the entry of a skill has
the digests of its files. Other resources are not, because their list is data.

    {"version": 1, "tools": {"search": "9f86…"}, "prompts": {}, "templates": {}, "skills": {},
     "resources": {}, "pages": {"ui://search/app.html": "60ab…"}}
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from roundgate.backends.mcp.tools import without_hop
from roundgate.client.types import Json
from roundgate.observability import escaped

VERSION: Final = 1
KINDS: Final[Mapping[str, str]] = {
    "tools": "name",
    "prompts": "name",
    "templates": "uriTemplate",
    "skills": "uri",
    "resources": "uri",
    "pages": "uri",
}
"""The member that identifies a definition, by kind. "resources" are the entries of pages in the list
of resources; "pages" are their contents."""
_ADDED_KINDS: Final = ("skills", "resources", "pages")
"""The kinds that lock files of earlier releases lack."""
MAX_BYTES: Final = 32_000_000
"""The maximum size of a lock file, in bytes: enough for lists of the longest names."""


class LockFile(Struct, frozen=True):
    """The accepted digests, by kind and name."""

    digests: Mapping[str, Mapping[str, str]]

    @classmethod
    def from_definitions(cls, definitions: Mapping[str, Sequence[Json]]) -> LockFile:
        """Return a lock of definitions, which are listed by kind. Skip definitions without a name."""
        return cls(
            {
                kind: {
                    raw[member]: definition_digest(raw)
                    for raw in definitions.get(kind, ())
                    if isinstance(raw.get(member), str)
                }
                for kind, member in KINDS.items()
            }
        )

    @classmethod
    def read(cls, path: Path) -> LockFile:
        """Read a lock file.

        Raises:
            OSError: the file cannot be read.
            ValueError: the file is not a lock file of this version.
        """
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"has more than {MAX_BYTES:,} bytes")
        value: Any = json.loads(path.read_bytes())
        if not isinstance(value, dict) or value.get("version") != VERSION:
            raise ValueError(f"is not a lock file of version {VERSION}")
        digests = {kind: value.get(kind, {} if kind in _ADDED_KINDS else None) for kind in KINDS}
        if not all(isinstance(names, dict) for names in digests.values()):
            raise ValueError(f"must have an object for each of {', '.join(KINDS)}")
        return cls(digests)  # type: ignore[arg-type]  # checked above; digests are only compared

    def write(self, path: Path) -> None:
        """Write the file atomically, because a gateway may read it at the same time."""
        temporary = path.with_name(f"{path.name}.new")
        value = {"version": VERSION, **self.digests}
        temporary.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", "utf-8")
        os.replace(temporary, path)

    def changes_to(self, other: LockFile) -> list[str]:
        """Return a line for each definition that another lock adds, removes or changes."""
        lines: list[str] = []
        for kind, accepted in self.digests.items():
            changed = other.digests[kind]
            for name in sorted(accepted.keys() | changed.keys()):
                if name not in changed:
                    lines.append(f"  removed: {kind} {escaped(name)}")
                elif name not in accepted:
                    lines.append(f"  added: {kind} {escaped(name)}")
                elif changed[name] != accepted[name]:
                    lines.append(f"  changed: {kind} {escaped(name)}")
        return lines

    def differences(self, kind: str, definitions: Iterable[Mapping[str, Any]]) -> dict[str, str]:
        """Return the differences of definitions from the accepted definitions, by name."""
        accepted, differences = self.digests[kind], dict[str, str]()
        for raw in definitions:
            name = raw.get(KINDS[kind])
            if not isinstance(name, str):
                continue
            if name not in accepted:
                differences[name] = "it is not in the lock file"
            elif accepted[name] != definition_digest(raw):
                differences[name] = "its definition differs from the accepted definition"
        return differences


def definition_digest(definition: Mapping[str, Any]) -> str:
    """Return the SHA-256 digest of a definition, independent of the order of its members."""
    canonical = json.dumps(without_hop(dict(definition)), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()
