"""The questions of a handler to its client, and the external events that it awaits from a service.

A run returns recorded answers and requests missing ones from the client. An answer counts only for
the question as it was shown. If the text of the question has changed, the question is sent again
under a new key.

A handler opens an external event, passes its URL to a service, and waits until the service posts a
payload.

    open       the event is recorded before the handler gets the token, so every delivery finds the event
    wait       the run is suspended and releases its worker
    delivered  the next turn finds the payload beside the journal, like an answer

Only the record of the task decides, at the beginning of a turn, whether an event was delivered in
time (`roundgate.tasks.machine`). If a run decided by its own clock, a payload accepted a moment
before could be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from msgspec.structs import replace

from roundgate.errors import NeedsTask, ToolError, Unrepeatable
from roundgate.json import fresh
from roundgate.protocol import merged
from roundgate.replay.asyncio_internals import engine_call
from roundgate.replay.branches import Branch
from roundgate.replay.journal import (
    MISSED,
    Answered,
    Asked,
    Opened,
    Slept,
    TimedOutQuestion,
    plain,
    wire_key,
)
from roundgate.replay.questions import Answer, Form, Question, UnfitAnswer, question_digest
from roundgate.replay.recording import recording_cut, repeat_cut, take_event, within_scopes, write
from roundgate.replay.run import ExternalEvents, Run
from roundgate.replay.waiting import check_wait, refuse_timeout

MAX_CHANGES: Final = 3
"""The number of consecutive rounds with a changed question after which the run raises an error."""


@engine_call
async def ask(
    run: Run, questions: Mapping[str, Question], timeout_s: float | None = None, default: Any = None
) -> dict[str, Answer]:
    """Return the answers by name once all are known. Until then, ask the open questions and suspend
    the run.

    Args:
        run: the run of the handler that asks.
        questions: the questions by name.
        timeout_s: seconds from the first asking, after which a missing answer is `default`.
        default: the value of missing answers.

    Raises:
        MissingCapability: the client lacks a capability that a question needs; no question was
            sent.
        RuntimeError: a question changed in `MAX_CHANGES` consecutive rounds.
    """
    branch = await run.enter("question", *questions)
    keys = {name: run.come_to(branch, "question", name) for name in questions}
    given_up = f"{branch.path}question:{'+'.join(keys.values()).removeprefix(branch.path)}"
    await repeat_cut(run, given_up)
    while True:
        answers: dict[str, Answer] = {}
        opened: list[tuple[str, Asked, Question]] = []
        for name, question in questions.items():
            answer = _known(run, keys[name], name, question)
            if isinstance(answer, Answer):
                answers[name] = (
                    replace(answer, value=fresh(default)) if answer.action == "timeout" else answer
                )
            else:
                opened.append((name, answer, question))
        if not opened:
            async with recording_cut(run, given_up):
                await take_event(run, branch, given_up)
            for key in keys.values():
                run.mark_received(key)
            return answers
        async with recording_cut(run, given_up):
            await within_scopes(run, branch)
            refuse_timeout(run, branch)
            until_ms = _open(run, opened, timeout_s)
            try:
                await run.quiescence.park(
                    branch, until_ms, None if until_ms is None else until_ms - run.clock.now_ms()
                )
            except (asyncio.CancelledError, RuntimeError):
                if run.stopped is None:
                    _withdraw(run, opened)
                raise


def _withdraw(run: Run, opened: Sequence[tuple[str, Asked, Question]]) -> None:
    """Withdraw questions whose answers the handler no longer awaits."""
    for _, entry, _ in opened:
        current = run.journal.questions[entry.key]
        run.requests.pop(wire_key(getattr(current, "wire", None) or entry.key, entry.attempt), None)


@engine_call
async def ask_anew(run: Run, questions: Mapping[str, Question]) -> NoReturn:
    """Send questions even if they are answered, and suspend the run. This is the low-level form,
    whose handler looks up answers itself (`ctx.input_response`)."""
    branch = await run.enter("question", *questions)
    opened: list[tuple[str, Asked, Question]] = []
    for name, question in questions.items():
        entry, shown = run.journal.questions.get(name), question_digest(name, question)
        if not isinstance(entry, Asked) or entry.digest != shown:
            entry = Asked(name, shown, 1 if entry is None else entry.attempt + 1)
        opened.append((name, entry, question))
    _open(run, opened, None)
    await run.park(branch)


def answered_key(run: Run, name: str) -> str | None:
    """Return the wire key of the last answered question of a name, or `None`."""
    answered = [
        entry
        for entry in run.journal.questions.values()
        if isinstance(entry, Answered) and entry.key.rpartition("/")[2].partition("#")[0] == name
    ]
    return (
        wire_key(answered[-1].wire or answered[-1].key, answered[-1].attempt) if answered else None
    )


def _known(run: Run, key: str, name: str, question: Question) -> Answer | Asked:
    """Return the usable answer to a question, or the question in the form in which to send it.
    Raise RuntimeError if the question changed in `MAX_CHANGES` consecutive rounds."""
    entry, shown = _received(run, key, name), question_digest(name, question)
    match entry:
        case None:
            return Asked(key, shown)
        case TimedOutQuestion(digest=before) if before == shown:
            return Answer(name, "timeout")
        case Asked(digest=before) if before == shown:
            return _in_time(run, entry) or Answer(name, "timeout")
        case Answered(digest=before) if before is None or before == shown:
            try:
                answer = question.read(name, fresh(entry.response))
            except UnfitAnswer as error:
                return Asked(key, shown, entry.attempt + 1, 0, str(error)[:500], entry.wire)
            if before is None or entry.changed:
                # bind an unasked answer to this question; reset the count of changes
                run.journal.add(replace(entry, digest=shown, changed=0))
            return answer
    changed = getattr(entry, "changed", 0) + 1
    if changed >= MAX_CHANGES:
        raise Unrepeatable(
            f"question {name!r} changes in every round; build it from arguments, answers "
            "and steps alone (take times and random values from ctx.now and ctx.random)"
        )
    return Asked(key, shown, entry.attempt + 1, changed, None, entry.wire)


def _received(run: Run, key: str, name: str) -> Asked | Answered | TimedOutQuestion | None:
    """Return the entry of a question, or an unasked answer if the handler accepts unasked answers;
    `None` if there is neither."""
    entry = run.journal.questions.get(key)
    if entry is None and run.call.takes_unasked and name in run.journal.unasked:
        return Answered(key, None, 1, 0, run.journal.unasked[name], _wire(run, key, name))
    return entry


def _in_time(run: Run, entry: Asked) -> Asked | None:
    """Return the question, or record its timeout and return `None`."""
    if entry.until_ms is None or run.clock.now_ms() < entry.until_ms:
        return entry
    run.journal.add(TimedOutQuestion(entry.key, entry.digest, entry.attempt, entry.wire))
    run.requests.pop(wire_key(entry.wire or entry.key, entry.attempt), None)
    return None


def _open(
    run: Run, opened: Sequence[tuple[str, Asked, Question]], timeout_s: float | None
) -> int | None:
    """Add all of these questions to the response of this run. Return the earliest end of their time
    limits in milliseconds since the epoch, or `None`.

    Raises:
        MissingCapability: the client lacks a capability; no question was added.
        ToolError: the time limit ends later than a task can wait; no question was added.
    """
    names = ", ".join(entry.key for _, entry, _ in opened)
    required = merged(question.requires for _, _, question in opened)
    capabilities, what_for = run.call.capabilities, f"asking {names}"
    is_for_a_person = any(
        isinstance(question, Form) and question.is_approval for _, _, question in opened
    )
    if is_for_a_person:
        what_for = f"asking a person for approval ({names}), which text in a result cannot replace,"
        capabilities = capabilities.with_substitutes({})
    capabilities.require(required, what_for, has_substitute=not is_for_a_person)
    now_ms = run.clock.now_ms()
    if timeout_s is not None and any(entry.until_ms is None for _, entry, _ in opened):
        check_wait(run, now_ms + round(timeout_s * 1000))
    untils: list[int] = []
    for name, entry, question in opened:
        if entry.key not in run.journal.questions:
            run.is_beyond = True
            entry = replace(entry, wire=_wire(run, entry.key, name))
        if timeout_s is not None:
            until_ms = entry.until_ms or now_ms + round(timeout_s * 1000)
            entry = replace(entry, until_ms=until_ms)
            untils.append(until_ms)
        run.journal.add(entry)
        run.wire_names.take(entry.wire or entry.key)
        # a copy, because another branch may change the objects in the question before the round ends
        run.requests[wire_key(entry.wire or entry.key, entry.attempt)] = plain(
            question.to_wire(entry.problem), f"question {name!r}"
        )
    return min(untils, default=None)


def _wire(run: Run, key: str, name: str) -> str | None:
    """Return the wire name of a new question; `None` if it equals the key."""
    base = name if run.journal.generation == 1 else f"{name}@{run.journal.generation}"
    wire = run.wire_names.new(base)
    return None if wire == key else wire


class ExternalEvent:
    """An external event that can be delivered once."""

    __slots__ = ("_opened", "_run", "name")

    def __init__(self, run: Run, name: str, opened: Opened) -> None:
        self._run = run
        self._opened = opened
        self.name = name
        """The name that the handler gave the event."""

    @property
    def token(self) -> str:
        """Return the token that allows one delivery of the event, for a service with a URL of its
        own. Keep the token out of logs, because any holder can deliver the event."""
        return self._opened.token

    @property
    def url(self) -> str:
        """Return the URL to which a service posts the payload. The URL contains the token: keep it
        out of logs.

        Raises:
            ToolError: the gateway has no public URL.
        """
        return event_url(self._opened)

    async def wait(self) -> Any:
        """Return the payload, a JSON value, once the event was delivered. A task releases its
        worker meanwhile.

        Raises:
            TimeoutError: the event was not delivered within its `timeout_s`.
        """
        return await receive(self._run, self.name, self._opened.key)


def event_url(opened: Opened) -> str:
    """Return the URL of an event.

    Raises:
        ToolError: the gateway has no public URL.
    """
    if opened.base is None:
        raise ToolError(
            "The URL of an event is unknown: GATEWAY_PUBLIC_URL is not set. Set it to the URL "
            "under which services reach this gateway, such as https://mcp.example.com"
        )
    return opened.base + opened.token


@engine_call
async def open_event(run: Run, name: str, timeout_s: float | None) -> Opened:
    """Return an event that can be delivered from now on.

    Raises:
        NeedsTask: the call is not a task and cannot become one.
        ToolError: the task has `tasks.max_open_events` open events, or cannot wait so long.
        ValueError: `timeout_s` is not positive.
    """
    if timeout_s is not None and timeout_s <= 0:
        raise ValueError(f"timeout_s is {timeout_s}; it must be greater than 0")
    branch = await run.enter("event", name)
    key = run.come_to(branch, "event", name)
    await repeat_cut(run, key)
    opened = run.journal.steps.get(key)
    if isinstance(opened, Opened):
        return opened
    if timeout_s is not None:
        check_wait(run, run.clock.now_ms() + round(timeout_s * 1000))
    async with recording_cut(run, key):
        await within_scopes(run, branch)
        external = run.call.external
        if external is None:
            await _become_task(run, branch, name)
        else:
            opened = _new(run, external, key, timeout_s)
            await write(run, opened)
    assert isinstance(opened, Opened)
    return opened


async def _become_task(run: Run, branch: Branch, name: str) -> None:
    if not run.call.may_become_task:
        raise NeedsTask(name)
    run.wants_task = True
    await run.park(branch)


def _new(run: Run, external: ExternalEvents, key: str, timeout_s: float | None) -> Opened:
    if len(run.journal.opened()) - len(run.journal.missed) >= external.max_open:
        raise ToolError(
            f"The task already has {external.max_open} open events, the maximum "
            "(tasks.max_open_events)"
        )
    generation = run.journal.generation
    mark = None if generation == 1 else f"{key}@{generation}"
    token = external.token(key if mark is None else mark)
    seconds = external.default_s if timeout_s is None else timeout_s
    until_ms = run.clock.now_ms() + round(seconds * 1000)
    if run.call.last_ms is not None:
        until_ms = min(until_ms, run.call.last_ms)
    return Opened(key, until_ms, token, external.base, mark)


@engine_call
async def receive(run: Run, name: str, opened_key: str) -> Any:
    """Return the payload of an event once it was delivered.

    Raises:
        TimeoutError: the event was not delivered in time.
    """
    branch = await run.enter("event", name)
    key = run.come_to(branch, "wait", name)
    await repeat_cut(run, key)
    async with recording_cut(run, key):
        while (entry := _entry(run, opened_key)).outcome is None:
            await within_scopes(run, branch)
            if opened_key in run.journal.missed:
                _record_missed(run, entry)
            else:
                refuse_timeout(run, branch)
                await _suspend(run, branch, key, entry)
        await take_event(run, branch, key)
    if entry.outcome == MISSED:
        raise TimeoutError(f"event {name!r} was not delivered in time")
    return fresh(entry.payload)


def _entry(run: Run, key: str) -> Opened:
    entry = run.journal.steps[key]
    assert isinstance(entry, Opened), "the place of an event keeps its entry"
    return entry


def _record_missed(run: Run, entry: Opened) -> None:
    missed = replace(entry, outcome=MISSED)
    run.journal.add(missed)
    run.journal.missed.discard(entry.key)
    run.unwritten.append(missed)


async def _suspend(run: Run, branch: Branch, key: str, entry: Opened) -> None:
    if key not in run.journal.steps:
        run.journal.add(Slept(key, entry.until_ms))  # shows later runs how far this one came
    awaited = (entry.name, branch)
    run.awaits.append(awaited)
    try:
        await run.quiescence.park(branch, entry.until_ms)
    except asyncio.CancelledError:
        run.awaits.remove(awaited)
        raise
