"""Recorded histories: journals of tasks for replays in tests with the current handlers
(`roundgate_testing.Gateway.replay`).

A replay needs the arguments of the call, the results of its steps and the answers to its questions.
These belong to the owner of the task, so by default a history is an *outline* without them: the
places of steps, questions and sleeps, the functions of steps, versions, and outcomes. An outline
has no digests of arguments or questions either, because a digest can confirm a guess. With values,
each value that is redacted is redacted wherever it occurs in the task.

One history is one line of JSON:

    {"history": 1, "task": "pX3…", "tool": "refund", "journal": [["s", "plan", null, "step plan"], …], …}
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import asdict, replace

from roundgate import json, replay
from roundgate.backends.http.secrets import SECRET_NAME
from roundgate.clock import Clock
from roundgate.errors import ParseError
from roundgate.operators.finding import tasks_with_work
from roundgate.protocol import OPEN, Status, without_none
from roundgate.settings.redacting import SHOWN, Secrets
from roundgate.storage import TaskRecord, Wanted, Work
from roundgate.tasks.call import TaskCall
from roundgate.tasks.stored import StoredTasks

Redact: TypeAlias = Callable[[str, Any], Any]
"""Returns the replacement for a value, given the name of its step, question or member."""

FORMAT: Final = 1
NO_URL: Final = "https://gateway.invalid/"
"""The URL of external events in a history."""
_WITH_IDENTITY: Final = (
    replay.Finished,
    replay.Raised,
    replay.Tried,
    replay.Cut,
    replay.Began,
    replay.Slept,
)
LATER_MS: Final = 86_400_000
"""The time in milliseconds after its export when an unfinished sleep ends in an outline."""


class History(Struct, frozen=True):
    """A recorded history. The last four members are `None` in an outline."""

    task: str
    """The id of the task, without its owner."""
    tool: str
    view: str
    generation: int
    exported_ms: int
    """The time of the export, in milliseconds since the epoch."""
    capabilities: Mapping[str, Any]
    substituted: Mapping[str, Any]
    journal: Sequence[Any]
    """The entries as rows, in order."""
    is_redacted: bool = False
    """Whether values were replaced, so that replays cannot compare the arguments of steps."""
    arguments: Mapping[str, Any] | None = None
    principal: Sequence[Any] | None = None
    """The issuer, subject, client and scopes, and the claims that the row has, if any."""
    client_info: Mapping[str, Any] | None = None
    state: Mapping[str, Any] | None = None

    @property
    def is_outline(self) -> bool:
        """Return whether the history has no values."""
        return self.arguments is None

    def entries(self) -> list[replay.Entry]:
        """Return the entries of the journal."""
        return [replay.from_row(entry_row) for entry_row in self.journal]

    def to_json(self) -> dict[str, Any]:
        """Return the history as a JSON object."""
        return {"history": FORMAT, **without_none(**asdict(self))}

    @classmethod
    def from_json(cls, value: Any) -> History:
        """Return the history that `to_json` wrote.

        Raises:
            ValueError, TypeError: another program or a later version wrote it.
        """
        members = dict(value)
        if members.pop("history", None) != FORMAT:
            raise ValueError(f"not a recorded history of format {FORMAT}")
        history = cls(**members)
        history.entries()
        return history


def history_from_record(record: TaskRecord, work: Work, now_ms: int) -> History:
    """Return the whole history of a task. The history contains the tokens of external events, which
    must not leave the process: use `make_outline` or `redacted` first.

    Raises:
        ParseError, ValueError, TypeError, KeyError: a later version of Roundgate wrote the journal.
    """
    call = TaskCall.from_bytes(work.call)
    journal, places = replay.Journal(), dict[tuple[bool, str], None]()
    for value in work.journal:
        entry = replay.from_row(json.decode(value))
        journal.add(entry)
        place = _place(entry)
        if not place[0]:
            places.pop(place, None)  # steps are in the order of their outcomes
        places[place] = None
    answers = {key: json.decode(answer) for key, answer in work.answers.items()}
    journal.receive(answers)
    journal.deliver(answers, {mark.name for mark in record.events})
    for event in journal.opened():
        if event.key in journal.missed:
            journal.steps[event.key] = replace(event, outcome=replay.MISSED)
    entries = {_place(entry): entry for entry in journal.entries()}
    principal = call.principal
    kept = [dict(principal.kept_claims)] if principal.kept_claims else []
    return History(
        task=record.ref.id,
        tool=call.tool,
        view=call.view,
        generation=call.generation,
        exported_ms=now_ms,
        capabilities=call.capabilities,
        substituted=call.substituted,
        journal=[replay.row(entries[place]) for place in places],
        arguments=call.arguments,
        principal=[*principal.identity, sorted(principal.scopes), *kept],
        client_info=call.client_info or {},
        state=json.decode(work.state),
    )


def make_outline(history: History) -> History:
    """Return a history without its values."""
    at_ms = history.exported_ms
    journal = [replay.row(_outline(entry, at_ms)) for entry in history.entries()]
    return replace(
        history, journal=journal, arguments=None, principal=None, client_info=None, state=None
    )


def redacted(history: History, redact: Redact) -> History:
    """Return a history without tokens, with the values that `redact` returns. If any value was
    replaced, the history has no digests of values either."""
    changed = replace(
        history,
        journal=[replay.row(_redacted(entry, redact)) for entry in history.entries()],
        arguments=redact("arguments", history.arguments),
        principal=redact("principal", history.principal),
        client_info=redact("client_info", history.client_info),
        state=redact("state", history.state),
    )
    if changed == history:
        return history
    journal = [replay.row(_without_digest(entry)) for entry in changed.entries()]
    return replace(changed, journal=journal, is_redacted=True)


def _redacted(entry: replay.Entry, redact: Redact) -> replay.Entry:
    name = entry.key.rpartition("/")[2].partition("#")[0]
    match entry:
        case replay.Finished():
            return replace(entry, value=redact(name, entry.value))
        case replay.Raised():
            return replace(entry, message=redact(name, entry.message))
        case replay.Answered(response={"action": str(), "content": content}):
            return replace(entry, response={**entry.response, "content": redact(name, content)})
        case replay.Answered():
            return replace(entry, response=redact("", entry.response))
        case replay.Asked():
            return replace(entry, problem=redact(name, entry.problem))
        case replay.Opened():
            entry = _without_token(entry)
            return replace(entry, payload=redact(name.removeprefix("event:"), entry.payload))
    return entry


def _outline(entry: replay.Entry, at_ms: int) -> replay.Entry:
    entry = _without_digest(entry)
    match entry:
        case replay.Finished():
            return replace(entry, value=None)
        case replay.Remembered() if not entry.key.startswith(replay.VERSION):
            return replace(entry, value=None)
        case replay.Slept():
            return replace(entry, until_ms=at_ms if entry.until_ms <= at_ms else at_ms + LATER_MS)
        case replay.Opened():
            return replace(_without_token(entry), payload=None, until_ms=at_ms + LATER_MS)
        case replay.Answered():
            return replace(entry, response=None)
        case replay.Asked():
            return replace(entry, problem=None)
        case replay.Raised():
            return replace(entry, message="")
    return entry


def _without_token(event: replay.Opened) -> replay.Opened:
    return replace(event, token="", base=None if event.base is None else NO_URL)


def _without_digest(entry: replay.Entry) -> replay.Entry:
    if isinstance(entry, replay.Asked | replay.Answered | replay.TimedOutQuestion):
        return replace(entry, digest="")
    if isinstance(entry, _WITH_IDENTITY) and entry.what is not None:
        return replace(entry, what=without_arguments(entry.what))
    return entry


def _place(entry: replay.Entry) -> tuple[bool, str]:
    """Return whether an entry belongs to a question, and its key. The pair identifies the entry."""
    return isinstance(entry, replay.Asked | replay.Answered | replay.TimedOutQuestion), entry.key


def without_arguments(identity: str) -> str:
    """Return the first two words of an identity: `step charge`, `sleep until`."""
    return " ".join(identity.split(" ")[:2])


WITH_JOURNAL: Final = OPEN | {Status.FAILED}
"""The statuses of tasks with a stored journal: open tasks, and tasks that a failed step ended."""


async def export(
    store: StoredTasks, wanted: Wanted, clock: Clock, redact: Collection[str] | None
) -> AsyncIterator[History | str]:
    """Yield the histories of the tasks that a search selects, or why one is skipped.

    Args:
        redact: the names of members whose values are redacted, as the values of members with a
            secret-looking name are; `None` for outlines.
    """
    statuses = (wanted.statuses or WITH_JOURNAL) & WITH_JOURNAL
    if not statuses:
        return
    async for record, work in tasks_with_work(store, replace(wanted, statuses=statuses)):
        if work is None or record.expires_ms <= clock.now_ms():
            continue
        try:
            history = history_from_record(record, work, clock.now_ms())
        except (ParseError, ValueError, TypeError, KeyError):
            yield "written by another version of Roundgate"
            continue
        exported = make_outline(history) if redact is None else without_secrets(history, redact)
        yield exported or "a key contains a redacted value"


def without_secrets(history: History, names: Collection[str]) -> History | None:
    """Return a history without the values of members that look secret or have one of the names.
    Return `None` if a key contains such a value, as the key of an item of `ctx.map` can."""
    secrets = Secrets()

    def is_secret(name: str) -> bool:
        return name in names or SECRET_NAME.search(name) is not None

    def hide(name: str, value: Any) -> Any:
        if is_secret(name):
            return _hidden(value, secrets)
        match value:
            case dict():
                return {member: hide(member, item) for member, item in value.items()}
            case list():
                return [hide("", item) for item in value]
        return value

    for entry in history.entries():
        if isinstance(entry, replay.Opened):
            secrets.add(entry.token)
    left = redacted(redacted(history, hide), lambda name, value: secrets.without(value))
    is_named = any(secrets.hidden(entry.key) != entry.key for entry in left.entries())
    return None if is_named else left


def _hidden(value: Any, secrets: Secrets) -> Any:
    """Return a value of the same shape without its content; add its parts to the secrets."""
    match value:
        case dict():
            return {name: _hidden(item, secrets) for name, item in value.items()}
        case list():
            return [_hidden(item, secrets) for item in value]
        case str():
            secrets.add(value)
            return SHOWN
        case int() | float() if not isinstance(value, bool):
            secrets.add(value)
            return 0
    return value
