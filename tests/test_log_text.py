"""The log for a person: one line a record, the user's own line of an exception, and
nothing a terminal acts on."""

from __future__ import annotations

import importlib.util
import io
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from roundgate import json
from roundgate import observability as logs
from roundgate.observability.text import TextFormatter
from roundgate.observability.tracing import Correlation, Tracing
from tests.support import root_logger

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

TOOLS = """
import json


def refund(order):
    share = 2
    return order["total"] * share


def parse(text):
    return json.loads(text)


def wrap(order):
    try:
        refund(order)
    except KeyError as error:
        raise ValueError("no such\\x1b[31m order\\nsecond line") from error


def several():
    raise ExceptionGroup("two", [ValueError("one"), TypeError("other")])
"""


class Screen(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def written(
    message: str,
    *arguments: object,
    level: int = logging.INFO,
    to: io.StringIO | None = None,
    whole: bool = False,
    error: BaseException | None = None,
    **fields: Any,
) -> str:
    """What a record is written as, without its time."""
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord("roundgate.x", level, __file__, 1, message, arguments, exc_info)
    record.__dict__["fields"] = fields
    text = TextFormatter(to or io.StringIO(), whole=whole).format(record)
    time, _, said = text.partition("  ")
    assert re.search(r"\d\d:\d\d:\d\d\.\d{3}", time)
    return said


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[ModuleType]:
    path = tmp_path / "tools.py"
    path.write_text(TOOLS)
    spec = importlib.util.spec_from_file_location("tools_of_a_user", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("tools_of_a_user", None)


def raised(function: Any, *arguments: Any) -> BaseException:
    """What it raises, without the frame of this test."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 — whatever it is
        function(*arguments)
    assert caught.value.__traceback__ is not None
    return caught.value.with_traceback(caught.value.__traceback__.tb_next)


REQUEST: dict[str, Any] = {
    "method": "tools/call",
    "name": "refund",
    "subject": "ada",
    "status": 200,
}


def test_a_request_is_one_line_with_method_tool_status_and_time() -> None:
    said = written("request", **REQUEST, outcome="ok", ms=3.14159, bytes=9)
    assert re.fullmatch(r"tools/call refund +200 ok  3\.1 ms  subject=ada", said)


def test_the_line_of_a_failed_call_says_why() -> None:
    said = written("request", **REQUEST, outcome="tool_error", reason="upstream 503", ms=2.0)
    assert said.endswith('subject=ada  reason="upstream 503"')


def test_a_trace_is_its_id_in_the_request_and_in_all_that_is_logged_meanwhile() -> None:
    trace_id = PARENT.split("-")[1]
    assert f"trace={trace_id}" in written("request", outcome="ok", trace=PARENT)
    with Tracing().turn({"traceparent": PARENT}, Correlation("refund"), 1):
        assert f"trace={trace_id}" in written("hello")
        assert f'"trace":"{PARENT}"' in logs.JsonFormatter().format(
            logging.LogRecord("x", logging.INFO, "", 1, "hello", (), None)
        )
    assert "trace" not in written("hello")


def test_a_turn_at_a_task_is_such_a_line_too() -> None:
    said = written("task", task="ab12", name="refund", attempt=1, ms=5, outcome="finished")
    assert re.fullmatch(r"task refund +finished  5\.0 ms  task=ab12  attempt=1", said)


@pytest.mark.parametrize(
    ("environment", "is_coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_a_terminal_gets_colours_unless_it_wants_none(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], is_coloured: bool
) -> None:
    for name, value in ({"NO_COLOR": "", "TERM": "xterm"} | environment).items():
        monkeypatch.setenv(name, value)
    assert ("\x1b[" in written("x", level=logging.ERROR, to=Screen())) is is_coloured
    assert "\x1b[" not in written("x", level=logging.ERROR)


def test_an_exception_is_framed_at_the_users_own_line(tools: ModuleType) -> None:
    error = raised(tools.refund, {})
    above, place, source, kind = written("tool %s failed", "refund", error=error).splitlines()[:4]
    assert above == "info     tool refund failed"
    assert place.endswith("tools.py:7 in refund")
    assert source.strip() == 'return order["total"] * share'
    assert kind.strip() == "KeyError: 'total'"


def test_frames_of_libraries_are_folded_into_where_it_was_raised(tools: ModuleType) -> None:
    lines = written("x", error=raised(tools.parse, "{")).splitlines()
    assert lines[1].endswith("tools.py:11 in parse")
    assert "JSONDecodeError" in lines[3]
    assert re.search(r"\(raised in .*json/decoder\.py:\d+, raw_decode|.*\)", lines[4])
    assert sum(".py:" in line for line in lines) == 2


def test_what_led_to_an_exception_is_below_it_and_nothing_acts_on_a_terminal(
    tools: ModuleType,
) -> None:
    said = written("x", error=raised(tools.wrap, {}))
    assert said.index("no such") < said.index("because of:") < said.index("KeyError")
    assert "\x1b" not in said
    assert "\n    second line\n" in said


def test_the_members_of_a_group_are_told(tools: ModuleType) -> None:
    said = written("x", error=raised(tools.several))
    assert "ValueError: one" in said
    assert "TypeError: other" in said


def test_debug_and_a_fault_without_a_line_of_the_user_have_the_whole_traceback(
    tools: ModuleType,
) -> None:
    assert "Traceback (most recent call last)" in written(
        "x", whole=True, error=raised(tools.refund, {})
    )
    ours = raised(json.decode, b"{")
    assert "Traceback (most recent call last)" in written("x", error=ours)


def test_problems_stand_below_each_on_its_lines() -> None:
    said = written("not reloaded", level=logging.ERROR, problems=["a.yaml:3: x\n    → y", "b"])
    assert said.splitlines()[1:] == ["    a.yaml:3: x", "        → y", "    b"]


@pytest.mark.parametrize("value", ["a b", "", "x\ny\x1b[2J", ["a", 1], {"b": None}, "\u202e"])
def test_a_value_stays_on_its_line(value: Any) -> None:
    said = written("x", value=value)
    assert "\n" not in said
    assert not {"\x1b", "\u202e"} & set(said)


@pytest.mark.parametrize(
    ("form", "is_terminal", "alone", "is_text"),
    [
        ("auto", True, False, True),
        ("auto", False, False, False),
        ("auto", True, True, False),
        ("text", False, False, True),
        ("json", True, False, False),
    ],
)
def test_text_is_for_terminals_unless_something_else_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, form: Any, is_terminal: bool, alone: bool, is_text: bool
) -> None:
    monkeypatch.setattr(sys, "stderr", Screen() if is_terminal else io.StringIO())
    with root_logger.lent() as root:
        root.handlers.clear()
        logs.configure("info", form, alone=alone)
        logging.getLogger(logs.REQUESTS).info(
            "request", extra={"fields": {"method": "ping", "outcome": "ok"}}
        )
        assert sys.stderr.getvalue().startswith("{") is not is_text  # type: ignore[union-attr]
