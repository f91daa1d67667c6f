"""The audit log: its newest records, those of a call or a subject, and whether its chains are whole.

The page reads the files that this process can see: its own, and those of processes that share its
directory. `roundgate audit` reads logs of any size.
"""

from __future__ import annotations

import asyncio
from math import ceil
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import HTMLResponse

from roundgate.audit.records import record_from_line
from roundgate.audit.verifying import checkpoints_of, files_of, lines_of, verify
from roundgate.runtime.audit_log import audit_directory
from roundgate_console.frame import Console, ConsolePage, Page, PageError

PER_PAGE: Final = 100
"""The number of records of a page."""
MAX_READ_BYTES: Final = 20_000_000
"""The limit on the bytes that a page reads, from the newest records; a second of work."""
MAX_VERIFIED_BYTES: Final = 500_000_000
"""The limit on the bytes that a page verifies, some ten seconds of work."""
_TEXTS: Final = ("name", "call", "task")
_SHOWN_APART: Final = ("chain", "n", "prev", "at", "event", "who", *_TEXTS)


class AuditRecord(BaseModel):
    """A record. Arguments and answers are in it as digests."""

    at: str
    event: str
    subject: str | None = Field(None, description="The caller, in records of what it sent.")
    name: str | None = Field(None, description="The tool, prompt or resource.")
    call: str | None = None
    task: str | None = None
    chain: str
    number: int
    facts: dict[str, Any] = Field(description="The other members.")


class AuditRecords(BaseModel):
    """The newest records first."""

    is_whole: bool = Field(description="Whether all records were read, or only the newest.")
    pages: int = Field(1, description="The number of pages of the records that were read.")
    records: list[AuditRecord]


class AuditReport(BaseModel):
    """The result of a verification."""

    chains: int
    records: int
    checkpoints: int
    problems: list[str]
    remarks: list[str]


def make_router(console: Console) -> APIRouter:
    """Return the page and its path operations."""
    router = console.router()
    reading, verifying = asyncio.Lock(), asyncio.Lock()

    def directory() -> Path:
        config = console.file.config.audit
        if config is None:
            raise PageError(404, "There is no audit log: write `audit:` into gateway.yaml")
        if config.to != "files":
            raise PageError(404, "The records of the audit log are in the standard output")
        return audit_directory(console.file, config)

    @router.get("/api/audit", summary="Records of the audit log")
    async def read_records(call: str = "", subject: str = "", page: Page = 1) -> AuditRecords:
        """Report the newest records, or those of a call or a subject among the newest."""
        async with reading:  # the records of one request may take 100 MB of memory
            sought = (call.strip(), subject.strip(), page)
            return await asyncio.to_thread(_newest, directory(), *sought)

    @router.post("/api/audit/verify", summary="Verify the audit log")
    async def verify_log() -> AuditReport:
        """Verify the chains of the audit log against each other and their checkpoints."""
        async with verifying:
            return await asyncio.to_thread(_verified, directory())

    async def show(
        request: Request, call: str, subject: str, page: int, report: AuditReport | None
    ) -> HTMLResponse:
        found = await read_records(call, subject, page)
        return console.page(
            request,
            "audit.html",
            found=found,
            call=call,
            subject=subject,
            page=page,
            query=urlencode({"call": call, "subject": subject}),
            report=report,
        )

    @router.get("/audit", include_in_schema=False)
    async def records_page(
        request: Request, call: str = "", subject: str = "", page: Page = 1
    ) -> HTMLResponse:
        return await show(request, call, subject, page, None)

    @router.post("/audit", include_in_schema=False)
    async def verified_page(request: Request) -> HTMLResponse:
        return await show(request, "", "", 1, await verify_log())

    return router


def _newest(directory: Path, call: str, subject: str, page: int) -> AuditRecords:
    """Return a page of the newest records of a directory that belong to a call and a subject, if
    named."""
    files = sorted(_files(directory), key=lambda file: file.stat().st_mtime, reverse=True)
    rest, records = MAX_READ_BYTES, list[dict[str, Any]]()
    for file in files:
        size = file.stat().st_size
        if rest <= 0:
            break
        with file.open("rb") as content:
            content.seek(max(0, size - rest))
            lines = content.read(rest).splitlines()
        rest -= size
        records += (record for line in lines if (record := record_from_line(line)) is not None)
    if call:
        records = [each for each in records if call in (each.get("call"), each.get("task"))]
    if subject:
        # only the first record of a round names its caller
        calls = {each.get("call") for each in records if _subject(each) == subject} - {None}
        records = [
            each for each in records if _subject(each) == subject or each.get("call") in calls
        ]
    records.sort(key=lambda each: (each["at"], each["chain"], each["n"]), reverse=True)
    return AuditRecords(
        is_whole=rest > 0,
        pages=max(1, ceil(len(records) / PER_PAGE)),
        records=[_record(each) for each in records[(page - 1) * PER_PAGE : page * PER_PAGE]],
    )


def _verified(directory: Path) -> AuditReport:
    files = _files(directory)
    if sum(file.stat().st_size for file in files) > MAX_VERIFIED_BYTES:
        raise PageError(413, "The log is too large for a page: run `roundgate audit verify`")
    report = verify(lines_of(files), checkpoints_of([directory], []))
    more = [f"and {report.more_problems} more problems"] if report.more_problems else []
    return AuditReport(
        chains=len(report.chains),
        records=report.records,
        checkpoints=report.checkpoints,
        problems=[*report.problems, *more],
        remarks=report.remarks,
    )


def _files(directory: Path) -> list[Path]:
    """Return the files of a log; none before the first record."""
    return files_of([directory]) if directory.is_dir() else []


def _subject(record: dict[str, Any]) -> Any:
    """Return the subject of the caller in a record, or `None`."""
    caller = record.get("who")
    return caller.get("subject") if isinstance(caller, dict) else None


def _record(record: dict[str, Any]) -> AuditRecord:
    texts = {"subject": _subject(record), **{name: record.get(name) for name in _TEXTS}}
    return AuditRecord(
        at=record["at"],
        event=record["event"],
        chain=record["chain"],
        number=record["n"],
        facts={
            name: value
            for name, value in record.items()
            if name not in _SHOWN_APART and value not in ("", None)
        },
        **{name: value for name, value in texts.items() if isinstance(value, str) and value},
    )


PAGE: Final = ConsolePage("/audit", "Audit log", make_router, 5)
