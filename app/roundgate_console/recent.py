"""The recent events of calls and tasks in this process: the log's own records, kept in memory.

`RecentEvents` is a handler of the gateway's log, so an event of the console is a line of the log,
with the same ids. It keeps only members that are known to hold no arguments, answers and results,
and no lines of handlers. Older events are dropped once there are too many, or they are too large.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Final
from urllib.parse import urlsplit

from roundgate.observability.tracing import members_here
from roundgate_console.activity import Activity, Cell, Span

MAX_EVENTS: Final = 20_000
"""The limit on kept events: some 3,000 calls of a few steps each."""
MAX_BYTES: Final = 8 * 1024 * 1024
"""The limit on the size of all kept events, in bytes of memory as `RecentEvent.size` estimates it."""
MAX_OF_CALL: Final = 2_000
"""The limit on the events of one line of time, the last ones: some 15 ms of work."""
MAX_TEXT: Final = 300
"""The limit on a text of an event, in characters."""
MAX_LIST: Final = 20
"""The limit on the texts of a list of an event."""
_BASE_BYTES: Final = 350
"""The size of an event without its texts, in bytes."""
_POLLS: Final = frozenset({"tasks/get", "tasks/result", "subscriptions/listen"})
"""The methods that clients repeat while a task runs, which would drop all other events."""
_RUNS: Final = frozenset({"tools/call", "prompts/get", "resources/read"})
"""The methods whose requests are rounds."""
_OF_HANDLERS: Final = "roundgate.handler"
"""The logger of handlers, whose messages may have values."""
MEMBERS: Final = (
    *("method", "name", "through", "view", "subject", "issuer", "client", "address"),
    *(
        "outcome",
        "status",
        "code",
        "reason",
        "round",
        "questions",
        "ms",
        "attempt",
        "turn",
        "faults",
    ),
    *("step", "again", "seconds", "deaths", "host", "backend", "function", "event"),
    *("job", "reference", "ended_by", "error", "action"),
)
"""The members of a log line that an event keeps beside its ids."""


@dataclass(frozen=True, slots=True)
class RecentEvent:
    """A line of the log that belongs to a call or a task."""

    at_ms: float
    """When the line was written, in milliseconds since the epoch."""
    message: str
    level: str = "info"
    call: str | None = None
    task: str | None = None
    """The task as `OWNER.ID`."""
    tool: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Members of the line, as `MEMBERS` names them."""
    backend: str = ""
    """The back end of the tool, prompt or resource; empty if it is unknown."""

    @property
    def took_ms(self) -> float:
        """Return the duration of the event, which ended at `at_ms`; 0 if it is unknown."""
        took_ms = self.facts.get("ms")
        return float(took_ms) if isinstance(took_ms, int | float) else 0.0

    @property
    def began_ms(self) -> float:
        """Return when the event began, in milliseconds since the epoch."""
        return self.at_ms - self.took_ms

    @property
    def is_run(self) -> bool:
        """Return whether this is the end of a round of a call, or of a turn of a worker."""
        is_round = self.message == "request" and self.facts.get("method") in _RUNS
        return is_round or self.message == "task"

    @property
    def name(self) -> str:
        """Return the tool, prompt or resource of a request or turn."""
        return str(self.facts.get("name") or self.tool or "")

    @property
    def size(self) -> int:
        """Return the estimated size in memory, in bytes."""
        texts = [self.message, self.call or "", self.task or "", self.tool or ""]
        for value in self.facts.values():
            texts += value if isinstance(value, list) else [str(value)]
        return _BASE_BYTES + sum(map(sys.getsizeof, texts))


def event_from_record(record: logging.LogRecord) -> RecentEvent | None:
    """Return the event of a log record, or `None` if it belongs to no call and no task, or is a
    poll."""
    members = {**members_here(), **getattr(record, "fields", {})}
    call, task = members.get("call"), members.get("task")
    if (call is None and task is None) or record.name == _OF_HANDLERS:
        return None
    if members.get("method") in _POLLS:
        return None
    known = {name: _short(members[name]) for name in MEMBERS if members.get(name) is not None}
    if "url" in members:  # its path may have arguments
        known["host"] = urlsplit(str(members["url"])).netloc[:MAX_TEXT]
    return RecentEvent(
        at_ms=record.created * 1000,
        message=record.getMessage()[:MAX_TEXT],
        level=record.levelname.lower(),
        call=None if call is None else str(call)[:MAX_TEXT],
        task=None if task is None else str(task)[:MAX_TEXT],
        tool=None if (tool := members.get("tool")) is None else str(tool)[:MAX_TEXT],
        facts=known,
    )


def _short(value: Any) -> Any:
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [str(item)[:MAX_TEXT] for item in value[:MAX_LIST]]
    return str(value)[:MAX_TEXT]


class RecentEvents(logging.Handler):
    """The recent events of this process. Any thread may log and read.

    Args:
        max_events: the limit on the number of events.
        max_bytes: the limit on their estimated size.
        backend_of: returns the back end of a method's tool, prompt or resource, or an empty text.
    """

    def __init__(
        self,
        max_events: int = MAX_EVENTS,
        max_bytes: int = MAX_BYTES,
        backend_of: Callable[[str, str], str] = lambda method, name: "",
    ) -> None:
        super().__init__()
        self._backend_of = backend_of
        self._activity = Activity()
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._events: deque[RecentEvent] = deque()
        self._bytes = 0
        self.dropped = 0
        """The number of events that are no longer kept."""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the event of a log record. `handle` holds the handler's lock meanwhile."""
        event = event_from_record(record)
        if event is None:
            return
        method, outcome = (str(event.facts.get(name, "")) for name in ("method", "outcome"))
        event = replace(event, backend=self._backend_of(method, event.name))
        self._keep(event)
        if event.is_run:
            self._activity.add(event.backend, outcome, event.took_ms, event.at_ms)

    def _keep(self, event: RecentEvent) -> None:
        self._events.append(event)
        self._bytes += event.size
        while len(self._events) > self._max_events or self._bytes > self._max_bytes:
            self._bytes -= self._events.popleft().size
            self.dropped += 1

    def all(self) -> Sequence[RecentEvent]:
        """Return all kept events, the oldest first."""
        self.acquire()
        try:
            return list(self._events)
        finally:
            self.release()

    def activity(self, span: Span, now_ms: int) -> list[dict[str, Cell]]:
        """Return the rounds and turns of each slot by back end, the oldest slot first."""
        self.acquire()
        try:
            return [dict(cells) for cells in self._activity.slots(span, now_ms)]
        finally:
            self.release()

    def of_call(self, call: str) -> Sequence[RecentEvent]:
        """Return the last events of a call, and of all its tasks: a retried task has a successor."""
        events = self.all()
        tasks = {event.task for event in events if event.call == call and event.task is not None}
        return _last(event for event in events if event.call == call or event.task in tasks)

    def of_task(self, task: str, call: str | None) -> Sequence[RecentEvent]:
        """Return the last events of a task, and of its call before it became the task."""
        return _last(
            event
            for event in self.all()
            if event.task == task
            or (call is not None and event.call == call and event.task is None)
        )


def _last(events: Iterable[RecentEvent]) -> Sequence[RecentEvent]:
    return list(deque(events, MAX_OF_CALL))


@dataclass(frozen=True, slots=True)
class RecentCall:
    """A call that this process served lately, in whole or in part."""

    id: str
    tool: str
    began_ms: float
    changed_ms: float
    """When its last event ended."""
    rounds: int
    outcome: str
    """The outcome of its last round or turn."""
    subject: str
    task: str | None
    reason: str = ""
    """The reason of its last failure, as the log has it."""
    backend: str = ""
    """The back end of its tool, prompt or resource; empty if it is unknown."""

    @property
    def took_ms(self) -> float:
        """Return the duration from the first event to the last."""
        return self.changed_ms - self.began_ms

    @property
    def kind(self) -> tuple[str, str, str, str | None]:
        """Return the facts in which equal calls agree."""
        return (self.tool, self.subject, f"{self.outcome} {self.reason}", self.task)


def recent_calls(events: Iterable[RecentEvent]) -> list[RecentCall]:
    """Return the calls of events that are in the order of time, the newest call first."""
    calls: dict[str, RecentCall] = {}
    for event in events:
        if event.call is not None:
            calls[event.call] = _with(calls.get(event.call), event, event.call)
    return sorted(calls.values(), key=lambda call: call.began_ms, reverse=True)


def _with(call: RecentCall | None, event: RecentEvent, call_id: str) -> RecentCall:
    is_round, facts = event.message == "request", event.facts
    ends_part = is_round or event.message == "task"
    before = call or RecentCall(call_id, "", event.began_ms, event.at_ms, 0, "", "", None)
    return RecentCall(
        id=call_id,
        tool=str((facts.get("name") if ends_part else None) or event.tool or before.tool),
        began_ms=min(before.began_ms, event.began_ms),
        changed_ms=max(before.changed_ms, event.at_ms),
        rounds=before.rounds + is_round,
        outcome=str(facts.get("outcome", "")) if ends_part else before.outcome,
        subject=str(facts.get("subject", before.subject)),
        task=event.task or before.task,
        reason=str(facts.get("reason") or facts.get("error") or "") if ends_part else before.reason,
        backend=event.backend or before.backend,
    )


def equal_calls(calls: Iterable[RecentCall]) -> list[list[RecentCall]]:
    """Return the calls in groups: neighbours with the same tool, caller, outcome and reason."""
    return [list(group) for _, group in groupby(calls, key=lambda call: call.kind)]
