"""Audit logs of tests: where they are, and their records."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from roundgate.audit.digests import Digests
from roundgate.audit.verifying import Report, checkpoints_of, files_of, lines_of, verify
from roundgate.tokens import Key

KEY = "dGhpcnR5LXR3byBieXRlcywga25vd24gdG8gYSBmZXc="
"""`audit.key`."""
DIGESTS = Digests(Key(b"thirty-two bytes, known to a few"))


def audited(directory: Path, **settings: Any) -> dict[str, Any]:
    """The section `audit` of a test."""
    return {"directory": str(directory / "audit"), "key": KEY, **settings}


@contextmanager
def blocked(directory: Path) -> Iterator[None]:
    """While this lasts, a log cannot begin its next file."""
    directory.rename(moved := directory.with_name("moved"))
    directory.write_text("in the way of the next file")
    yield
    directory.unlink()
    moved.rename(directory)


def records(directory: Path, *events: str) -> list[dict[str, Any]]:
    """The records in a directory, by time, those of a chain in its order; of these events alone, if any are named."""
    found = [json.loads(line.data) for line in lines_of(files_of([directory]))]
    latest: dict[str, str] = {}
    for record in found:  # a call may have begun before its chain
        latest[record["chain"]] = max(record["at"], latest.get(record["chain"], ""))
        record["by"] = latest[record["chain"]]
    found.sort(key=lambda record: str(record.pop("by")))
    return [record for record in found if not events or record["event"] in events]


def verified(directory: Path) -> Report:
    """What verifying a directory finds."""
    return verify(lines_of(files_of([directory])), checkpoints_of([directory], []))


def text(directory: Path) -> str:
    """Everything in the files of a directory, but the key."""
    return "".join(file.read_text() for file in sorted(directory.glob("*.jsonl")))


def files(directory: Path, pattern: str = "*.jsonl") -> list[Path]:
    """The files of a directory with such a name."""
    return sorted(directory.glob(pattern))


async def written(directory: Path, event: str, count: int = 1) -> list[dict[str, Any]]:
    """The records of an event, once there are so many."""
    async with asyncio.timeout(60):
        while True:
            if len(found := records(directory, event)) >= count:
                return found
            await asyncio.sleep(0.05)


async def checkpointed(directory: Path) -> None:
    """Return once there is a checkpoint."""
    async with asyncio.timeout(60):
        while True:
            if files(directory, "heads.jsonl"):
                return
            await asyncio.sleep(0.05)
