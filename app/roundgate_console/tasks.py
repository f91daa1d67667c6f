"""The pages of tasks: the search, one task with its line of time, and an operator's actions on it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Annotated, Any, Final, TypeAlias
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query, Request
from pydantic import AfterValidator, BaseModel, ValidationError
from pydantic import Field as Described
from starlette.responses import Response

from roundgate import json
from roundgate.client.questions import Question
from roundgate.clock import iso
from roundgate.errors import BadAnswer, NotRetryable, ParseError
from roundgate.json import decode
from roundgate.operators import ACTIONS, Act, Acted, TaskControl, possible_actions
from roundgate.operators.continuing import Repeated, steps_done
from roundgate.operators.facts import (
    Need,
    activity,
    details,
    need_of,
    short_event,
    task_facts,
)
from roundgate.operators.finding import PER_PAGE, SearchResult, search
from roundgate.protocol import OPEN, Status
from roundgate.replay import Finished, from_row
from roundgate.storage import Ending, TaskRecord, TaskRef, Wanted, Work
from roundgate.tasks import TaskCall
from roundgate.tasks.external import decode_payload
from roundgate_console.charts import MomentView, moment_views, picture
from roundgate_console.forms import asked, questions_of, read_answers
from roundgate_console.frame import Console, ConsolePage, PageError, form_of, operator_of
from roundgate_console.recent import RecentEvents
from roundgate_console.timeline import make_timeline

NEEDS: Final[Mapping[Need, str]] = MappingProxyType(
    {
        Need.FAILED: "failed",
        Need.OPERATOR: "wait for an operator",
        Need.APPROVAL: "wait for an approval",
        Need.CLIENT: "wait for a client",
        Need.WORKER: "wait long for a worker",
    }
)
"""The reasons for which tasks need a person, in words."""
MAX_SHOWN: Final = 20_000
"""The limit on a shown value, in characters."""
MAX_ENTRIES: Final = 200
"""The limit on the entries of a journal whose results are shown."""


MAX_TEXT: Final = 200
"""The limit on a filter, in characters."""


def _cleaned(text: str) -> str:
    """Return the text of a filter without NUL, which PostgreSQL refuses."""
    return text.replace("\0", "").strip()[:MAX_TEXT]


Filter: TypeAlias = Annotated[str, AfterValidator(_cleaned)]


class Filters(BaseModel):
    """The filters of a search. Empty texts match any task; unknown statuses and outcomes are ignored."""

    text: Filter = Described("", description="A part of an id, call, tool, message or failed step.")
    tool: Filter = ""
    owner: Filter = ""
    status: Annotated[
        list[str], AfterValidator(lambda texts: [each for each in Status if each in texts])
    ] = Described([], description="Statuses, of which a task has one; empty for any.")
    outcome: Annotated[str, AfterValidator(lambda text: text if text in set(Ending) else "")] = ""
    needs: Annotated[str, AfterValidator(lambda text: text if text in set(Need) else "")] = (
        Described(
            "", description="A reason for which a task needs a person; then `status` is unused."
        )
    )
    cursor: str = Described("", description="The cursor of the page; empty for the first page.")

    def query(self, **more: str) -> str:
        """Return the query of an address with these filters and further members."""
        members = self.model_dump() | more
        return urlencode({name: value for name, value in members.items() if value}, doseq=True)

    def wanted(self) -> Wanted:
        """Return the filters that the store applies."""
        return Wanted(
            owner=self.owner or None,
            tool=self.tool or None,
            statuses=frozenset(map(Status, self.status)) or None,
            endings=frozenset({Ending(self.outcome)}) if self.outcome else None,
        )


class TaskRow(BaseModel):
    """A task in a list."""

    task: str = Described(description="The task as `OWNER.ID`, as the commands spell it.")
    tool: str
    call: str | None
    status: str = Described(description="The status as its operator sees it, or `expired`.")
    outcome: str | None
    message: str | None
    doing: str = Described(description="Its activity in a few words, or `-`.")
    failed_steps: list[str]
    created: str
    changed: str
    turns: int = Described(description="How often a worker has begun it.")
    deaths: int = Described(
        description="Workers that died or stalled while they ran only this task."
    )
    faults: int = Described(description="Turns in a row that a fault of the gateway ended.")

    @classmethod
    def of(cls, record: TaskRecord, now_ms: int) -> TaskRow:
        """Return the row of a record."""
        is_expired = record.expires_ms <= now_ms
        return cls(
            task=str(record.ref),
            tool=record.tool,
            call=record.call_id,
            status="expired" if is_expired else record.shown_status.value,
            outcome=None if record.ending is None else record.ending.value,
            message=record.status_message,
            doing=activity(record, now_ms),
            failed_steps=list(record.failed_steps),
            created=iso(record.created_ms),
            changed=iso(record.updated_ms),
            turns=record.fence,
            deaths=record.deaths,
            faults=record.attempts,
        )


class TaskList(BaseModel):
    """A page of tasks, the newest first."""

    tasks: list[TaskRow]
    cursor: str | None = Described(description="The cursor of the next page.")
    read: int = Described(description="The number of tasks that were read to find these.")


class TaskDetails(BaseModel):
    """A task with its line of time."""

    facts: dict[str, Any] = Described(description="As `roundgate tasks show --json`.")
    moments: list[MomentView]
    actions: list[str] = Described(description="The actions that its state allows.")


class _Task:
    """A task as a page shows it."""

    def __init__(
        self, record: TaskRecord, work: Work | None, events: RecentEvents, now_ms: int
    ) -> None:
        self.record = record
        self.work = work
        self.now_ms = now_ms
        self.steps = None if work is None else steps_done(record, work)
        lines = events.of_task(str(record.ref), record.call_id)
        self.moments = make_timeline(lines, record, self.steps, now_ms)

    def facts(self, *, shows_values: bool) -> dict[str, Any]:
        return task_facts(self.record, self.now_ms, self.steps, shows_values=shows_values)

    def questions(self) -> list[Question]:
        """Return the outstanding questions that a page can ask: forms and pages of services."""
        questions: list[Question] = []
        for key, request in self.record.requests.items():
            with suppress(BadAnswer):  # a question for the client's model or its roots
                questions += questions_of({key: decode(request)})
        return questions

    def asks_digest(self) -> str:
        """Return a digest of the outstanding questions: an answer is for the questions that its
        page showed, which forms only number."""
        questions = sorted(self.record.requests.items())
        return hashlib.sha256(repr(questions).encode()).hexdigest()

    @property
    def has_form(self) -> bool:
        """Return whether the page has a form that an operator may be filling in."""
        return bool(self.record.requests or self.record.events)

    @property
    def stage(self) -> str:
        """Return the facts on which actions and questions of the page depend, as one word."""
        record = self.record
        actions = possible_actions(record, self.now_ms)
        return ".".join((record.shown_status, *actions, self.asks_digest()[:8]))

    def retry_places(self) -> list[tuple[str, str]]:
        """Return the places from which the task can continue, each with its label. The first one, the
        failed step or the place where the handler stopped, is an empty text."""
        failed = self.record.failed_steps
        where = f"{', '.join(failed)} (failed)" if failed else "the place where it stopped"
        names = [step.name for step in self.steps or () if step.name not in failed]
        return [("", where), *((name, name) for name in names)]

    def values(self) -> Mapping[str, str]:
        """Return the arguments, results of steps, answers and result of the call as text."""
        values: dict[str, Any] = {}
        if self.work is not None:
            with suppress(ParseError, ValueError, TypeError, KeyError):  # of another version
                values["Arguments"] = dict(TaskCall.from_bytes(self.work.call).arguments)
                entries = (from_row(decode(row)) for row in self.work.journal[:MAX_ENTRIES])
                finished = (entry for entry in entries if isinstance(entry, Finished))
                values |= {f"Result of step {step.key}": step.value for step in finished}
            for key, answer in self.work.answers.items():
                values[f"Answer {key}"] = decode(answer)
        if self.record.outcome is not None:
            values["Result"] = decode(self.record.outcome)
        return {label: _shown(value) for label, value in values.items()}


def _shown(value: Any) -> str:
    text = json.encode(value).decode()
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"


def make_router(console: Console) -> APIRouter:
    """Return the pages of tasks and their path operations."""
    pages = _Pages(console)
    router = console.page_router(
        {
            "GET /tasks": pages.list_page,
            "GET /tasks/{task}": pages.task_page,
            "GET /tasks/{task}/state": pages.state_page,
            "POST /tasks/{task}/actions/{action}": pages.act_page,
        }
    )
    router.get("/api/tasks", summary="Tasks")(pages.list)
    router.get("/api/tasks/{task}", summary="A task")(pages.show)
    router.post("/api/tasks/{task}/actions", summary="Act on a task")(pages.act)
    return router


class _Pages:
    """The pages and path operations of one console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._store = console.core.stores.tasks

    # the path operations

    async def list(self, filters: Annotated[Filters, Query()]) -> TaskList:
        """List tasks, the newest first."""
        now_ms = self._console.clock.now_ms()
        page = await self._search(filters)
        rows = [TaskRow.of(record, now_ms) for record in page.records]
        return TaskList(tasks=rows, cursor=page.cursor, read=page.read)

    async def show(self, task: str) -> TaskDetails:
        """Return a task with its line of time, from the store and the events of this process."""
        shown = await self._read(task)
        return TaskDetails(
            facts=shown.facts(shows_values=self._console.shows_values),
            moments=moment_views(shown.moments),
            actions=list(possible_actions(shown.record, shown.now_ms)),
        )

    async def act(self, task: str, act: Act, request: Request) -> Acted:
        """Cancel, queue again, retry, purge or answer a task, or deliver an event to it."""
        return await self._control(request).act(_parse(task), act)

    # the pages

    async def list_page(self, request: Request, filters: Annotated[Filters, Query()]) -> Response:
        now_ms = self._console.clock.now_ms()
        is_part = "hx-request" in request.headers
        page = await self._search(filters)
        return self._console.page(
            request,
            "tasks_rows.html" if is_part else "tasks.html",
            rows=[TaskRow.of(record, now_ms) for record in page.records],
            read=page.read,
            filters=filters,
            statuses=[status.value for status in Status],
            outcomes=[ending.value for ending in Ending],
            next=None if page.cursor is None else filters.query(cursor=page.cursor),
            query=filters.query(),
            is_one_call=page.calls == 1,
            is_full=len(page.records) >= PER_PAGE,
            needs=NEEDS,
        )

    async def task_page(self, task: str, request: Request) -> Response:
        return self._page(request, await self._read(task))

    def _page(
        self,
        request: Request,
        shown: _Task,
        posted: Mapping[str, Sequence[str]] | None = None,
        problems: Mapping[str, str] | None = None,
    ) -> Response:
        record, shows = shown.record, self._console.shows_values
        possible = possible_actions(record, shown.now_ms)
        return self._console.page(
            request,
            "task.html",
            **self._state(shown),
            actions=[name for name in possible if name not in ("answer", "event", "retry")],
            effects={name: action.effect for name, action in ACTIONS.items()},
            retry_from=shown.retry_places() if "retry" in possible else [],
            events=[
                short_event(mark.name)
                for mark in record.events
                if "event" in possible and mark.is_open(shown.now_ms)
            ],
            can_answer=shows and "answer" in possible,
            asks=list(record.requests),
            asks_digest=shown.asks_digest(),
            asked=asked(shown.questions(), posted, problems) if shows else [],
            values=shown.values() if shows else None,
        )

    async def state_page(self, task: str, request: Request) -> Response:
        """Return the part of a task's page that updates itself."""
        shown = await self._read(task)
        seen = request.query_params.get("seen")
        state = self._state(shown, seen)
        page = self._console.page(request, "task_update.html", **state)
        if state["is_newer"] and not shown.has_form:
            page.headers["HX-Refresh"] = "true"  # for the actions that are possible now
        return page

    async def act_page(self, task: str, action: str, request: Request) -> Response:
        """Show the effect of an action; once it is confirmed, act and show the result."""
        form, shown = form_of(request), await self._read(task)
        if action == "answer":
            digest = shown.asks_digest()
            if form.get("asks", [digest]) != [digest]:
                text = "asks other questions now: load its page again"
                acted = Acted(task=task, done=False, text=text)
                return await self._acted(request, shown.record.ref, acted)
            answers = read_answers(shown.questions(), form)
            if answers.problems:
                return self._page(request, shown, form, answers.problems)
        try:
            act = _act_from_form(shown, action, form)
            again = None
            if act.step is not None:
                again = await self._control(request).repeats(shown.record.ref, act.step)
        except ValidationError:
            raise PageError(400, "The form is not one of this console") from None
        except ValueError as error:
            raise PageError(400, str(error)) from None
        except NotRetryable as refusal:
            acted = Acted(task=task, done=False, text=str(refusal))
            return await self._acted(request, shown.record.ref, acted)
        if form.get("confirmed") == ["yes"]:
            acted = await self._control(request).act(shown.record.ref, act)
            return await self._acted(request, shown.record.ref, acted)
        return self._confirmation(request, shown, act, form, again)

    async def _acted(self, request: Request, ref: TaskRef, acted: Acted) -> Response:
        """Return the page of a result, with links to the task and to the task that continues it."""
        record = await self._store.head(ref)
        successor = None if record is None else record.retried_as
        return self._console.page(
            request,
            "task_acted.html",
            acted=acted,
            is_stored=record is not None,
            successor=successor and str(TaskRef(ref.owner, successor)),
        )

    def _confirmation(
        self,
        request: Request,
        shown: _Task,
        act: Act,
        form: Mapping[str, Sequence[str]],
        again: Repeated | None,
    ) -> Response:
        sent = [(name, value) for name in form for value in form[name] if name not in _OWN_FIELDS]
        return self._console.page(
            request,
            "task_confirm.html",
            task=TaskRow.of(shown.record, shown.now_ms),
            act=act,
            arguments=shown.values().get("Arguments") if self._console.shows_values else None,
            effect=ACTIONS[act.action].effect,
            again=[] if again is None else again.lines(),
            sent=sent,
        )

    # parts

    def _state(self, shown: _Task, seen: str | None = None) -> dict[str, Any]:
        """Return the values of the part that updates itself. `seen` is the stage of the task that
        the rest of the page shows."""
        record, stage = shown.record, shown.stage
        facts = shown.facts(shows_values=self._console.shows_values)
        address = f"/tasks/{quote(str(record.ref), safe='')}/state"
        return {
            "task": TaskRow.of(record, shown.now_ms),
            "need": need_of(record, shown.now_ms),
            "failure": facts.get("lastFailure"),
            "details": [each for each in details(facts) if each.name not in _SHOWN_APART],
            "times": {label: facts[name] for name, label in _TIMES.items() if name in facts},
            "successor": facts.get("retriedAs"),
            "open_of_owner": Filters(owner=record.ref.owner, status=sorted(OPEN)).query(),
            "moments": moment_views(shown.moments),
            "picture": picture(shown.moments, shown.now_ms),
            "is_over": record.status.is_terminal,
            "address": f"{address}?seen={quote(seen or stage)}",
            "is_newer": seen not in (None, stage),
            "process": self._console.process,
        }

    async def _search(self, filters: Filters) -> SearchResult:
        now_ms = self._console.clock.now_ms()
        try:
            return await search(
                self._store,
                filters.wanted(),
                filters.text,
                filters.cursor or None,
                need=(Need(filters.needs), now_ms) if filters.needs else None,
            )
        except ValueError as error:
            raise PageError(400, f"The cursor is not valid: {error}") from None

    async def _read(self, task: str) -> _Task:
        record = await self._store.read(_parse(task), 0)  # time 0: also expired tasks
        if record is None:
            raise PageError(404, f"There is no task {task[:200]}")
        _, work = await self._store.read_work(record.ref)
        return _Task(record, work, self._console.recent, self._console.clock.now_ms())

    def _control(self, request: Request) -> TaskControl:
        config = self._console.config
        return TaskControl(
            self._store,
            self._console.clock,
            config.tasks,
            operator_of(request).principal,
            list(config.endpoints.values()),
        )


_TIMES: Final = {
    "created": "created",
    "changed": "changed",
    "wakes": "wakes",
    "leasedUntil": "leased until",
    "due": "due",
    "expires": "expires",
}
"""The facts that are times, with their labels."""
_SHOWN_APART: Final = frozenset(
    {"task", "tool", "call", "status", "outcome", "doing", "lastFailure", "message", *_TIMES}
)
"""The facts that a task's page shows above the others, or as times."""
_OWN_FIELDS: Final = frozenset({"csrf_token", "confirmed"})


def _parse(task: str) -> TaskRef:
    try:
        return TaskRef.parse(task.replace("\0", ""))
    except ValueError as error:
        raise PageError(404, str(error)) from None


def _act_from_form(shown: _Task, action: str, form: Mapping[str, Sequence[str]]) -> Act:
    """Return the action in a form.

    Raises:
        ValueError: there is no such action, or the payload is not JSON.
    """
    if action not in ACTIONS:
        raise ValueError(f"There is no action {action[:50]!r}")
    values: dict[str, Any] = {"action": action}
    if action == "retry" and form.get("step", [""])[0]:
        values["step"] = form["step"][0]
    if action == "event":
        text = form.get("payload", [""])[0].strip()
        values["event"] = form.get("event", [""])[0]
        try:
            values["payload"] = decode_payload(text.encode()) if text else None
        except ParseError as error:
            raise ValueError(f"The payload is not JSON: {error}") from None
    if action == "answer":
        values["answers"] = read_answers(shown.questions(), form).value
    return Act.model_validate(values)


PAGE: Final = ConsolePage("/tasks", "Tasks", make_router, 2)
