"""Every record becomes one line of JSON, whatever is in it."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from roundgate import observability as logs
from roundgate.observability import JsonFormatter, escaped
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


SEVERAL = """
import logging
from roundgate import observability
observability.configure("info", "json")
log = logging.getLogger(observability.REQUESTS)
for _ in range(12):
    for number in range(200):
        log.info("request", extra={"fields": {"name": "é" * 30 + "x" * 100, "number": number}})
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
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    told = [json.loads(line)["number"] for line in received.splitlines()]
    assert sorted(told) == sorted(list(range(200)) * 12 * 3)
