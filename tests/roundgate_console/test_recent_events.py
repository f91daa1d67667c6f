"""The events that a process keeps: those of calls and tasks, bounded, and without values."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from roundgate.observability import observe
from roundgate.observability.tracing import Correlation, correlated
from roundgate_console.recent import (
    MAX_BYTES,
    MAX_EVENTS,
    MAX_LIST,
    MAX_TEXT,
    RecentEvent,
    RecentEvents,
    recent_calls,
)
from tests.support import root_logger


def record(
    message: str = "request", logger: str = "roundgate.request", **fields: Any
) -> logging.LogRecord:
    made = logging.LogRecord(logger, logging.INFO, __file__, 1, message, (), None)
    made.fields = fields
    return made


def kept(*records: logging.LogRecord, **bounds: int) -> list[RecentEvent]:
    ring = RecentEvents(bounds.get("max_events", MAX_EVENTS), bounds.get("max_bytes", MAX_BYTES))
    for each in records:
        ring.handle(each)
    return list(ring.all())


def test_an_event_has_the_ids_of_its_line_and_known_members_alone() -> None:
    with correlated(Correlation("refund", task="u.1", known_call_id="C")):
        (event,) = kept(record(outcome="ok", ms=1.5, data={"card": "4111"}, arguments={"a": 1}))
    assert (event.call, event.task, event.tool) == ("C", "u.1", "refund")
    assert event.facts == {"outcome": "ok", "ms": 1.5}


@pytest.mark.parametrize(
    "line",
    [
        record(outcome="ok"),
        record(call="C", method="tasks/get"),
        record("log message of a task", "roundgate.handler", call="C", data="secret"),
    ],
    ids=["no call", "poll", "handler"],
)
def test_lines_of_no_call_polls_and_lines_of_handlers_are_not_kept(line: logging.LogRecord) -> None:
    assert kept(line) == []


def test_the_path_of_a_url_may_have_arguments_and_is_not_kept() -> None:
    (event,) = kept(record("request to a service", call="C", url="https://api.example:8/u/4111"))
    assert event.facts == {"host": "api.example:8"}


def test_texts_and_lists_are_cut_off() -> None:
    (event,) = kept(record(call="C", reason="x" * 10_000, questions=["q" * 999] * 999))
    assert len(event.facts["reason"]) == MAX_TEXT
    assert (len(event.facts["questions"]), len(event.facts["questions"][0])) == (MAX_LIST, MAX_TEXT)


def test_the_oldest_events_are_dropped_beyond_the_number() -> None:
    ring = RecentEvents(max_events=3)
    for number in range(5):
        ring.handle(record(call=str(number)))
    assert [event.call for event in ring.all()] == ["2", "3", "4"]
    assert ring.dropped == 2


def test_the_oldest_events_are_dropped_beyond_the_size() -> None:
    events = kept(*(record(call=str(n), reason="x" * 300) for n in range(100)), max_bytes=20_000)
    assert 0 < sum(event.size for event in events) <= 20_000
    assert events[-1].call == "99"


def test_a_call_has_the_events_of_all_its_tasks_and_a_task_its_own() -> None:
    ring = RecentEvents()
    lines = [
        record(call="C", round=1),
        record(call="C", task="u.1"),
        record(task="u.1", action="retry"),
        record(call="C", task="u.2"),
        record(call="D"),
        record(task="u.3"),
    ]
    for line in lines:
        ring.handle(line)
    of_call = [(event.call, event.task) for event in ring.of_call("C")]
    assert of_call == [("C", None), ("C", "u.1"), (None, "u.1"), ("C", "u.2")]
    of_task = [(event.call, event.task) for event in ring.of_task("u.1", "C")]
    assert of_task == [("C", None), ("C", "u.1"), (None, "u.1")]
    assert [event.task for event in ring.of_task("u.3", None)] == ["u.3"]


def test_a_line_of_time_has_the_last_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roundgate_console.recent.MAX_OF_CALL", 3)
    ring = RecentEvents()
    for number in range(5):
        ring.handle(record(call="C", task="u.1", ms=number))
    for events in (ring.of_call("C"), ring.of_task("u.1", "C")):
        assert [event.facts["ms"] for event in events] == [2, 3, 4]


def test_a_call_is_summed_up_from_its_events() -> None:
    lines = [
        record(call="C", name="refund", outcome="input_required", subject="ada"),
        record(call="D", name="other", outcome="ok"),
        record(call="C", name="refund", outcome="task", task="u.1"),
        record("task", call="C", name="refund", outcome="step failed", task="u.1"),
    ]
    calls = {call.id: call for call in recent_calls(kept(*lines))}
    assert set(calls) == {"C", "D"}
    call = calls["C"]
    assert (call.tool, call.rounds, call.outcome) == ("refund", 2, "step failed")
    assert (call.subject, call.task) == ("ada", "u.1")


class Lines(logging.Handler):
    """The handler of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture
def log() -> Iterator[Lines]:
    """The log of a gateway at the level `warning`."""
    with root_logger.lent() as root:
        lines = Lines()
        root.handlers[:] = [lines]
        root.setLevel("WARNING")
        yield lines


def test_an_observer_gets_details_that_the_log_does_not_show(log: Lines) -> None:
    ring = RecentEvents()
    end = observe(ring)
    try:
        for name in ("roundgate.replay", "roundgate.request", "roundgate"):
            logger = logging.getLogger(name)
            logger.debug("a step ended", extra={"fields": {"call": "C"}})
            logger.info("request", extra={"fields": {"call": "C"}})
            logger.warning("a step failed", extra={"fields": {"call": "C"}})
        logging.getLogger("of_the_user").info("quiet")
        logging.getLogger("of_the_user").warning("loud")
        logging.getLogger("roundgate.metrics").info("task created")  # at any level
    finally:
        end()
    assert len(ring.all()) == 9
    assert log.messages == [*["a step failed"] * 3, "loud", "task created"]


def test_the_end_of_an_observation_leaves_the_log_as_it_was(log: Lines) -> None:
    logger, ring = logging.getLogger("roundgate"), RecentEvents()
    before = logger.level, list(logger.handlers), list(log.filters)
    observe(ring)()
    assert (logger.level, logger.handlers, log.filters) == before
