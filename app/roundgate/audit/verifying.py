"""Reading and verifying the audit log.

    a record changed            the next record has another `prev`
    a record removed            a number is missing
    records reordered           a number comes too early or too late
    the last records removed    a checkpoint has more records than the chain
    a chain removed             a checkpoint names a chain without records

A change of the last record of a chain, and the removal of records after the last checkpoint, are found
only by a later checkpoint that was kept elsewhere. Whoever can write the files and all checkpoints can
write another history.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field

from roundgate.audit.records import (
    FIRST,
    ChainCheckpoint,
    checkpoint_from_line,
    hash_of,
    record_from_line,
)
from roundgate.audit.sinks import HEADS
from roundgate.errors import UsageError

MAX_PROBLEMS: Final = 100
"""The maximum number of reported problems; the others are counted."""


class Line(Struct, frozen=True):
    """A line of a file, without its end."""

    file: Path
    number: int
    data: bytes
    is_whole: bool = True
    """Whether the line has an end."""

    @property
    def place(self) -> str:
        """The file and the number of the line."""
        return f"{self.file}:{self.number}"


class ChainState(Struct):
    """The records of a chain that were read so far."""

    records: int = 0
    head: str = FIRST
    is_stopped: bool = False
    place: str = ""
    """The place of the last record."""


class Report(Struct):
    """The result of a verification."""

    chains: dict[str, ChainState] = field(default_factory=dict)
    records: int = 0
    checkpoints: int = 0
    problems: list[str] = field(default_factory=list)
    more_problems: int = 0
    """The number of problems beyond `MAX_PROBLEMS`."""
    remarks: list[str] = field(default_factory=list)

    def problem(self, text: str) -> None:
        """Add a problem."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(text)
        else:
            self.more_problems += 1


def files_of(paths: Sequence[Path]) -> list[Path]:
    """Return the files with records among files and directories, in the order of each chain.

    Raises:
        UsageError: a path does not exist.
        OSError: a directory cannot be read.
    """
    files: list[Path] = []
    for path in paths:
        if path.is_dir():  # `glob` would return nothing from a directory that it cannot read
            names = sorted(name for name in os.listdir(path) if name.endswith(".jsonl"))
            files += [path / name for name in names if name != HEADS]
        elif path.is_file():
            files.append(path)
        else:
            raise UsageError(f"{path} does not exist")
    return files


def lines_of(files: Iterable[Path]) -> Iterator[Line]:
    """Yield the lines of files that are not empty."""
    for file in files:
        with file.open("rb") as content:
            for number, line in enumerate(content, 1):
                data = line.rstrip(b"\n")
                if data:
                    yield Line(file, number, data, is_whole=line.endswith(b"\n"))


def checkpoints_of(paths: Sequence[Path], anchors: Sequence[Path]) -> list[ChainCheckpoint]:
    """Return the checkpoints beside the chains, and those in files kept elsewhere, such as logs."""
    heads = [path / HEADS for path in paths if path.is_dir() and (path / HEADS).is_file()]
    found = (checkpoint_from_line(line.data) for line in lines_of([*heads, *anchors]))
    return [checkpoint for checkpoint in found if checkpoint is not None]


def verify(
    lines: Iterable[Line], checkpoints: Iterable[ChainCheckpoint], *, is_mixed: bool = False
) -> Report:
    """Verify chains of records against each other and against checkpoints.

    Args:
        lines: the lines, those of each chain in order.
        checkpoints: the checkpoints.
        is_mixed: whether lines that are not records belong to another program.
    """
    report = Report()
    wanted: dict[str, dict[int, str]] = {}
    for checkpoint in checkpoints:
        report.checkpoints += 1
        heads = wanted.setdefault(checkpoint.chain, {})
        if heads.setdefault(checkpoint.records, checkpoint.head) != checkpoint.head:
            report.problem(
                f"chain {checkpoint.chain}: two checkpoints of {checkpoint.records} records differ"
            )
    for line in lines:
        record = record_from_line(line.data)
        if record is None:
            if not line.is_whole:
                report.problem(f"{line.place}: the file ends in the middle of a record")
            elif not is_mixed:
                report.problem(f"{line.place}: is not a record")
            continue
        _add(report, line, record, wanted.get(record["chain"], {}))
    _compare(report, wanted)
    return report


def _add(report: Report, line: Line, record: dict[str, Any], heads: dict[int, str]) -> None:
    report.records += 1
    name, number, prev = record["chain"], record["n"], record["prev"]
    chain = report.chains.setdefault(name, ChainState())
    if number < chain.records:
        report.problem(f"{line.place}: record {number} of chain {name} is repeated or out of order")
        return
    if number > chain.records:
        missing = f"records {chain.records} to {number - 1}"
        report.problem(f"{line.place}: {missing} of chain {name} are missing before this line")
    elif prev != chain.head:
        report.problem(
            f"{line.place}: record {number} of chain {name} does not follow from {chain.place or 'its beginning'}:"
            " one of the two was changed"
        )
    if chain.is_stopped:
        report.problem(f"{line.place}: record {number} follows the end of chain {name}")
    chain.head, chain.records, chain.place = hash_of(line.data), number + 1, line.place
    chain.is_stopped = record["event"] == "stopped"
    if not line.is_whole:
        report.problem(f"{line.place}: the file ends in the middle of a record")
    if chain.records in heads and heads[chain.records] != chain.head:
        report.problem(
            f"{line.place}: record {number} of chain {name} differs from the checkpoint of"
            f" {chain.records} records"
        )


def _compare(report: Report, wanted: dict[str, dict[int, str]]) -> None:
    for name, heads in wanted.items():
        last, chain = max(heads), report.chains.get(name)
        if chain is None:
            report.problem(f"chain {name} is missing: a checkpoint has {last} records of it")
        elif chain.records < last:
            report.problem(
                f"{chain.place}: chain {name} ends with {chain.records} records; a checkpoint has {last}"
            )
    for name, chain in report.chains.items():
        if not chain.is_stopped:
            report.remarks.append(
                f"chain {name} has no end: its process is running or was killed, or its end was removed"
            )


def records_of_call(lines: Iterable[Line], call: str) -> list[dict[str, Any]]:
    """Return the records of a call and of its tasks, by time."""
    tasks: set[str] = set()
    candidates: list[dict[str, Any]] = []
    for line in lines:
        record = record_from_line(line.data)
        if record is None:
            continue
        if record.get("call") == call:
            candidates.append(record)
            if "task" in record:
                tasks.add(record["task"])
        elif "task" in record and "call" not in record:
            candidates.append(record)
    found = [
        record for record in candidates if record.get("call") == call or record["task"] in tasks
    ]
    return sorted(found, key=lambda record: (record["at"], record["chain"], record["n"]))
