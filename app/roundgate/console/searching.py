"""The search for tasks: filters of a page's address, and bounded reads of the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias
from urllib.parse import urlencode

from pydantic import AfterValidator, BaseModel, Field

from roundgate.protocol import Status
from roundgate.storage import Ending, TaskRecord, TaskRef, Wanted
from roundgate.tasks.stored import StoredTasks

PAGE: Final = 100
"""The number of tasks on a page; a search for a text may show up to `BATCH` more."""
BATCH: Final = 500
"""The number of tasks that a search for a text reads in one call of the store."""
MAX_CALLS: Final = 4
"""The limit on the calls of the store for one page: 2,000 tasks in a search for a text. The next page
searches further."""
MAX_TEXT: Final = 200
"""The limit on a filter, in characters."""


def _cleaned(text: str) -> str:
    """Return the text of a filter without NUL, which PostgreSQL refuses."""
    return text.replace("\0", "").strip()[:MAX_TEXT]


def _known_statuses(statuses: list[str]) -> list[str]:
    return [status for status in Status if status in statuses]


Filter: TypeAlias = Annotated[str, AfterValidator(_cleaned)]


class Filters(BaseModel):
    """The filters of a search. Empty texts match any task; unknown statuses and outcomes are ignored."""

    text: Filter = Field("", description="A part of an id, call, tool, message or failed step.")
    tool: Filter = ""
    owner: Filter = ""
    status: Annotated[list[str], AfterValidator(_known_statuses)] = Field(
        [], description="Statuses, of which a task has one; empty for any."
    )
    outcome: Annotated[str, AfterValidator(lambda text: text if text in set(Ending) else "")] = ""
    cursor: str = Field("", description="The cursor of the page; empty for the first page.")

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

    def takes(self, record: TaskRecord) -> bool:
        """Return whether a task has the text."""
        texts = (
            str(record.ref),
            record.tool,
            record.call_id or "",
            record.status_message or "",
            *record.failed_steps,
        )
        return self.text.casefold() in "\n".join(texts).casefold()


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A page of a search."""

    records: Sequence[TaskRecord]
    """The tasks, the newest first."""
    cursor: str | None
    """The cursor of the next page; `None` after the last."""
    read: int
    """The number of tasks that were read."""
    calls: int = 1
    """The number of calls of the store."""


async def search(store: StoredTasks, filters: Filters) -> SearchResult:
    """Return a page of the tasks that match the filters.

    Raises:
        ValueError: the cursor does not belong to this search.
        Unavailable: the store cannot be reached.
    """
    cursor = filters.cursor or None
    if cursor is None and (ref := _ref(filters.text)) is not None:
        record = await store.head(ref)
        if record is not None:
            return SearchResult([record], None, 1)
    wanted, records, read = filters.wanted(), list[TaskRecord](), 0
    calls = 0
    while calls < MAX_CALLS:
        limit = BATCH if filters.text else PAGE - len(records)
        page = await store.find(wanted, limit, cursor)
        records += [record for record in page.records if filters.takes(record)]
        calls, read, cursor = calls + 1, read + len(page.records), page.cursor
        if cursor is None or len(records) >= PAGE:
            break
    records.sort(key=lambda record: record.created_ms, reverse=True)
    return SearchResult(records, cursor, read, calls)


def _ref(text: str) -> TaskRef | None:
    try:
        return TaskRef.parse(text)
    except ValueError:
        return None
