"""The format of the audit log: JSON Lines, one record a line, in chains.

    {"chain": C, "n": 0, "prev": "000…", "at": "2026-11-27T03:07:09.123Z", "event": "started", …}
    {"chain": C, "n": 1, "prev": SHA-256 of the line above, "at": …, "event": "called", …}

`prev` is the hexadecimal SHA-256 of the bytes of the record before, without the line end. So
`sed -n 1p FILE | tr -d '\\n' | sha256sum` prints the `prev` of line 2. A chain belongs to one process
and continues in the next file when a file is full. A checkpoint names a chain, the number of its
records and the hash of the last of them:

    {"chain": C, "records": 2, "head": SHA-256 of the second record, "at": …}
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from roundgate.errors import ParseError
from roundgate.json import decode

FIRST: Final = "0" * 64
"""The `prev` of the first record of a chain."""
MAX_KEYS: Final = 100
"""The maximum number of answers in a record. Further answers are only counted."""
MAX_KEY: Final = 200
"""The maximum number of recorded characters of a name or key."""


def hash_of(line: bytes) -> str:
    """Return the hash of a record, the `prev` of the next one."""
    return hashlib.sha256(line).hexdigest()


class ChainCheckpoint(Struct, frozen=True):
    """The state of a chain at some time: the number of its records, and the hash of the last."""

    chain: str
    records: int
    head: str

    def facts(self) -> dict[str, Any]:
        """Return the checkpoint as members of a line."""
        return {"chain": self.chain, "records": self.records, "head": self.head}


def checkpoint_from_line(line: bytes) -> ChainCheckpoint | None:
    """Return the checkpoint in a line of the heads file or of a JSON log; `None` if there is none."""
    match _decoded(line):
        case {"chain": str(chain), "records": int(records), "head": str(head)} if records > 0:
            return ChainCheckpoint(chain, records, head)
    return None


def record_from_line(line: bytes) -> dict[str, Any] | None:
    """Return the record in a line; `None` if there is none."""
    record = _decoded(line)
    match record:
        case {"chain": str(), "n": int(), "prev": str(), "at": str(), "event": str()}:
            return dict(record)
    return None


def _decoded(line: bytes) -> Any:
    try:
        return decode(line)
    except ParseError:
        return None


def answer_facts(
    responses: Mapping[str, Any], digest: Callable[[Any], str]
) -> dict[str, dict[str, Any]]:
    """Return each answer of a request as its action and digest, by the key of its question."""
    facts: dict[str, dict[str, Any]] = {}
    for key, response in responses.items():
        if len(facts) == MAX_KEYS:
            facts["…"] = {"more": len(responses) - MAX_KEYS}
            break
        action = response.get("action") if isinstance(response, Mapping) else None
        known = {"action": action} if action in ("accept", "decline", "cancel") else {}
        facts[key[:MAX_KEY]] = {**known, "digest": digest(response)}
    return facts
