"""The lock file of a server: digests of the definitions that an operator has accepted.

`roundgate compile` writes it beside gateway.yaml, and a later definition is compared with it, so
that a server cannot change the text that a model reads without notice. Tools, prompts and resource
templates are pinned. Single resources are not: their list is data.

    {"version": 1, "tools": {"search": "9f86…"}, "prompts": {}, "templates": {}}
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from roundgate.backends.mcp.tools import without_hop
from roundgate.client.types import Json
from roundgate.observability import escaped

VERSION: Final = 1
KINDS: Final[Mapping[str, str]] = {
    "tools": "name",
    "prompts": "name",
    "templates": "uriTemplate",
}
"""The member that identifies a definition, by kind."""
MAX_BYTES: Final = 16_000_000
"""The largest lock file that is read: three lists of the longest names."""


@dataclass(frozen=True, slots=True)
class Lock:
    """The accepted digests, by kind and name."""

    digests: Mapping[str, Mapping[str, str]]

    @classmethod
    def of(cls, definitions: Mapping[str, Sequence[Json]]) -> Lock:
        """Return the lock of these definitions, by kind. A definition without a name is left out."""
        return cls(
            {
                kind: {
                    raw[member]: digest_of(raw)
                    for raw in definitions.get(kind, ())
                    if isinstance(raw.get(member), str)
                }
                for kind, member in KINDS.items()
            }
        )

    @classmethod
    def read(cls, path: Path) -> Lock:
        """Read a lock file.

        Raises:
            OSError: it cannot be read.
            ValueError: it is not a lock file of this version.
        """
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"has more than {MAX_BYTES:,} bytes")
        value: Any = json.loads(path.read_bytes())
        if not isinstance(value, dict) or value.get("version") != VERSION:
            raise ValueError(f"is not a lock file of version {VERSION}")
        digests = {kind: value.get(kind) for kind in KINDS}
        if not all(isinstance(names, dict) for names in digests.values()):
            raise ValueError(f"has no object for each of {', '.join(KINDS)}")
        return cls(digests)  # type: ignore[arg-type]  # checked above; digests are only compared

    def write(self, path: Path) -> None:
        """Write the file; a gateway that starts meanwhile reads the old one or the new one."""
        fresh = path.with_name(f"{path.name}.new")
        value = {"version": VERSION, **self.digests}
        fresh.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", "utf-8")
        os.replace(fresh, path)

    def changes_to(self, other: Lock) -> list[str]:
        """Return a line for each definition that another lock adds, removes or changes."""
        lines: list[str] = []
        for kind, accepted in self.digests.items():
            now = other.digests[kind]
            for name in sorted(accepted.keys() | now.keys()):
                if name not in now:
                    lines.append(f"  removed: {kind} {escaped(name)}")
                elif name not in accepted:
                    lines.append(f"  added: {kind} {escaped(name)}")
                elif now[name] != accepted[name]:
                    lines.append(f"  changed: {kind} {escaped(name)}")
        return lines

    def differences(self, kind: str, definitions: Iterable[Mapping[str, Any]]) -> dict[str, str]:
        """Return how definitions differ from the accepted ones, by name."""
        accepted, differences = self.digests[kind], dict[str, str]()
        for raw in definitions:
            name = raw.get(KINDS[kind])
            if not isinstance(name, str):
                continue
            if name not in accepted:
                differences[name] = "it is not in the lock file"
            elif accepted[name] != digest_of(raw):
                differences[name] = "its definition differs from the one in the lock file"
        return differences


def digest_of(definition: Mapping[str, Any]) -> str:
    """Return the SHA-256 digest of a definition, whatever the order of its members."""
    kept = without_hop(dict(definition))
    canonical = json.dumps(kept, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()
