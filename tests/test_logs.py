"""Every record becomes one line of JSON, whatever is in it."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from logging.handlers import BufferingHandler
from typing import Any

import pytest

from roundgate import observability as logs
from roundgate.clock import Clock, iso
from roundgate.observability import JsonFormatter, RequestLog, escaped, lines
from tests.support import root_logger


def line(
    name: str = "roundgate.request", message: str = "request", *arguments: object, **extra: Any
) -> dict[str, Any]:
    """What a record is written as."""
    record = logging.LogRecord(
        name, logging.INFO, __file__, 1, message, arguments, extra.pop("exc_info", None)
    )
    record.__dict__.update(extra)
    written = JsonFormatter().format(record)
    assert "\n" not in written
    value: dict[str, Any] = json.loads(written)
    return value


def test_a_record_has_time_level_and_message() -> None:
    written = line("roundgate.request", "%d of %s", 3, "four")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", written.pop("ts"))
    assert written == {"level": "info", "msg": "3 of four"}


def test_the_milliseconds_are_those_of_the_record() -> None:
    assert line(created=1_790_000_000.0625)["ts"] == "2026-09-21T14:13:20.062Z"


def test_fields_become_members() -> None:
    assert (
        line(fields={"status": 200, "outcome": "ok"}).items()
        >= {"status": 200, "outcome": "ok"}.items()
    )


def test_a_logger_of_its_own_is_named() -> None:
    assert line("roundgate.methods")["logger"] == "roundgate.methods"
    assert "logger" not in line("roundgate.request")


def test_a_traceback_is_one_member() -> None:
    try:
        raise ValueError("line one\nline two")
    except ValueError as error:
        written = line("roundgate.http", exc_info=(type(error), error, error.__traceback__))
    assert written["traceback"].startswith("Traceback (most recent call last):\n")
    assert written["traceback"].endswith("ValueError: line one\nline two")


@pytest.mark.parametrize("text", ["a\nb\r\nc\u2028d", '"}\x00\x1b[31m', "ü😀", "\ud800"])
def test_no_text_breaks_the_line(text: str) -> None:
    assert line("roundgate", text)["msg"] == text.replace("\ud800", "?")


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    with root_logger.lent() as logger:
        yield logger


def test_configuring_twice_writes_each_record_once(
    root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure("info")
    logs.configure("info")
    logging.getLogger("roundgate.request").info("once")
    assert [json.loads(one)["msg"] for one in capsys.readouterr().err.splitlines()] == ["once"]


def test_the_last_level_counts(root: logging.Logger) -> None:
    logs.configure("debug")
    logs.configure("error")
    assert root.level == logging.ERROR
    assert not logging.getLogger("roundgate.request").isEnabledFor(logging.INFO)


def test_the_http_client_does_not_log_urls(root: logging.Logger) -> None:
    logs.configure("debug")
    assert not logging.getLogger("httpx").isEnabledFor(logging.INFO)


@pytest.mark.parametrize(
    "char", ["\x1b", "\x7f", "\x9b", "\u200b", "\u202e", "\u2066", "\u2028", "\ufeff", "\U000e0041"]
)
def test_what_a_terminal_or_an_eye_would_be_misled_by_is_escaped(char: str) -> None:
    record = logging.LogRecord(
        "roundgate.request", logging.INFO, __file__, 1, "a%sb", (char,), None
    )
    record.fields = {"subject": f"x{char}y"}
    written = JsonFormatter().format(record)
    assert char not in written
    assert json.loads(written).items() >= {"msg": f"a{char}b", "subject": f"x{char}y"}.items()
    assert char not in escaped(f"a{char}é日b")
    assert "é日b" in escaped(f"a{char}é日b")


# --- the line of a request ---


class Records:
    """Counts the records that are made, and passes them on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = 0
        self._make = logging.getLogRecordFactory()
        monkeypatch.setattr(logging, "_logRecordFactory", self)

    def __call__(self, *arguments: Any, **more: Any) -> logging.LogRecord:
        self.made += 1
        return self._make(*arguments, **more)


FIELDS = {"method": "tools/call", "name": "é\x9b\u202e", "status": 200, "ms": 0.25}


def request_lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """What was written to standard error, without the times."""
    written = [json.loads(one) for one in capsys.readouterr().err.splitlines()]
    assert all(
        re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", one.pop("ts")) for one in written
    )
    return written


def test_a_request_has_the_line_that_its_logger_would_write_but_no_record(
    root: logging.Logger, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.configure("info", alone=True)
    logging.getLogger("roundgate.request").info("request", extra={"fields": FIELDS})
    records = Records(monkeypatch)
    RequestLog().write(FIELDS)
    assert records.made == 0
    ours, theirs = (
        re.sub(r'"ts":"[^"]*"', "", one) for one in capsys.readouterr().err.splitlines()
    )
    assert ours == theirs


def test_the_time_in_the_line_of_a_request_is_now(
    root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure("info", alone=True)
    before = iso(Clock().now_ms())
    RequestLog().write(FIELDS)
    assert before <= json.loads(capsys.readouterr().err)["ts"] <= iso(Clock().now_ms())


def test_below_the_level_nobody_wants_the_lines_of_requests(root: logging.Logger) -> None:
    logs.configure("info", alone=True)
    assert RequestLog().is_on
    logs.configure("warning")
    assert not RequestLog().is_on


@pytest.mark.parametrize("where", [None, "roundgate", "roundgate.request"])
def test_every_other_handler_gets_a_record_of_a_request(
    root: logging.Logger, where: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure("info", alone=True)
    kept = BufferingHandler(10)
    logging.getLogger(where).addHandler(kept)
    try:
        RequestLog().write(FIELDS)
    finally:
        logging.getLogger(where).removeHandler(kept)
    assert [vars(record)["fields"] for record in kept.buffer] == [FIELDS]
    assert request_lines(capsys) == [{"level": "info", "msg": "request", **FIELDS}]


@pytest.mark.parametrize("where", ["logger", "handler"])
def test_a_filter_may_leave_out_the_lines_of_requests(
    root: logging.Logger, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure("info", alone=True)
    filtered: logging.Filterer = (
        root.handlers[0] if where == "handler" else logging.getLogger("roundgate.request")
    )
    leave_out = logging.Filter("something.else")
    filtered.addFilter(leave_out)
    try:
        RequestLog().write(FIELDS)
    finally:
        filtered.removeFilter(leave_out)
    assert request_lines(capsys) == []


def test_a_handler_may_have_a_level_of_its_own(
    root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure("info", alone=True)
    root.handlers[0].setLevel("WARNING")
    RequestLog().write(FIELDS)
    assert request_lines(capsys) == []


def test_a_handler_may_have_another_format(
    root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure("info", alone=True)
    root.handlers[0].setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    RequestLog().write(FIELDS)
    assert capsys.readouterr().err == "INFO: request\n"


def test_a_stream_that_is_closed_fails_no_request(
    root: logging.Logger, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.configure("info", alone=True)
    stream = io.StringIO()
    stream.close()
    (handler,) = root.handlers
    monkeypatch.setattr(handler, "stream", stream)
    RequestLog().write(FIELDS)
    assert "ValueError" in capsys.readouterr().err  # as `logging` tells of it


async def test_nor_does_a_closed_stream_fail_an_app_that_ends(root: logging.Logger) -> None:
    logs.configure("info", alone=True)
    stream = io.StringIO()
    root.handlers[0].stream = stream  # type: ignore[attr-defined]
    stream.close()
    logs.flush()


# --- lines that wait ---


async def test_lines_of_requests_are_written_together_after_a_moment(
    root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    root.handlers.clear()  # pytest's own want records
    logs.configure("info")
    for _ in range(3):
        RequestLog().write(FIELDS)
    assert capsys.readouterr().err == ""
    await asyncio.sleep(4 * lines.FLUSH_S)
    assert len(request_lines(capsys)) == 3


async def test_a_record_comes_behind_the_lines_before_it(
    root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    root.handlers.clear()  # pytest's own want records
    logs.configure("info")
    RequestLog().write(FIELDS)
    logging.getLogger("roundgate.http").error("request failed")
    assert [one["msg"] for one in request_lines(capsys)] == ["request", "request failed"]
    logs.flush()
    assert capsys.readouterr().err == ""


async def test_no_more_lines_wait_than_there_is_room_for(
    root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    root.handlers.clear()  # pytest's own want records
    logs.configure("info")
    for _ in range(lines.MAX_WAITING):
        RequestLog().write(FIELDS)
    assert len(request_lines(capsys)) == lines.MAX_WAITING


async def test_on_aws_lambda_no_line_waits(
    root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure("info", alone=True)
    RequestLog().write(FIELDS)
    assert len(request_lines(capsys)) == 1


def test_each_event_loop_writes_what_waits_in_it(
    root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    async def serve(stays_s: float) -> None:
        RequestLog().write(FIELDS)
        await asyncio.sleep(stays_s)

    root.handlers.clear()  # pytest's own want records
    logs.configure("info")
    asyncio.run(serve(0))
    asyncio.run(serve(4 * lines.FLUSH_S))
    assert len(request_lines(capsys)) == 2


@pytest.mark.parametrize("end", ["sys.exit(3)", "raise ValueError", "return"])
def test_a_process_that_ends_has_written_all_its_lines(end: str) -> None:
    code = f"""
import asyncio, sys
from roundgate import observability as logs
from roundgate.observability import lines
async def serve():
    logs.RequestLog().write({{"status": 200}})
    {end}
logs.configure("info")
asyncio.run(serve())
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert '"msg":"request","status":200' in ended.stderr


SEVERAL = """
import asyncio, sys
from roundgate.observability import lines
lines.configure("info", "json")
async def main():
    log = lines.RequestLog()
    for _ in range(12):
        for number in range(200):
            log.write({"name": "é" * 30 + "x" * 100, "number": number})
        await asyncio.sleep(2 * lines.FLUSH_S)
asyncio.run(main())
"""


def test_lines_of_several_processes_do_not_come_in_between_each_other() -> None:
    """As with `--workers`: they write to one pipe, which whoever collects the log
    reads when it has time."""
    reads, writes = os.pipe()
    command = [sys.executable, "-c", SEVERAL]
    processes = [subprocess.Popen(command, stderr=writes) for _ in range(3)]
    os.close(writes)
    received = b""
    with open(reads, "rb", buffering=0) as pipe:
        while some := pipe.read(4_096):
            received += some
            time.sleep(0.0002)
    assert [process.wait(30) for process in processes] == [0, 0, 0]
    told = [json.loads(line)["number"] for line in received.splitlines()]
    assert sorted(told) == sorted(list(range(200)) * 12 * 3)
