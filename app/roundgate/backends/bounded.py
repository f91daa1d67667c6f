"""A limit on the text that a tool returns to the model: the beginning, and a cursor for the rest.

    a tool with max_result ──▶ text of 95,000 characters ──▶ rows of the caller, for a time
                                     └─▶ the first 20,000, and "call read_more with cursor …"
    read_more {cursor}     ──▶ the next 20,000, and so on

If the rest cannot be stored, the result says so. The rows are in the store, so any process reads
them, for the same caller at the same view, with the scopes that the tool needed.

A caller has a fixed number of places at each view. Texts are numbered, and each replaces the text
whose number is lower by that number of places:

    limits.max_kept_results 3      place 0: text 3, then 6      place 1: text 4, then 7      place 2: text 5 …
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from roundgate import json
from roundgate.auth import Principal
from roundgate.backends.base import Returned, Tool
from roundgate.clock import Clock
from roundgate.errors import ToolError, Unavailable
from roundgate.protocol import ABSENT, ContentBlock, ForwardedContent, TextContent, ToolResult
from roundgate.replay import Context, TextPart, run_of
from roundgate.settings import LimitsConfig
from roundgate.storage.accounts import CountedRows

READ_MORE: Final = "read_more"
CHUNK: Final = 50_000
"""The number of characters in one row, at most 200 KB. A line of facts about the text precedes
them."""
_LONGER_S: Final = 60.0
"""Seconds for which the counter of texts is stored after the newest text has expired."""
_CURSOR: Final = re.compile(
    r"(?P<id>(?P<number>[1-9][0-9]{0,14})-[\w-]{1,40})\.(?P<start>[0-9]{1,9})", re.ASCII
)


class KeptTexts(Struct, frozen=True):
    """Long texts in the store (`roundgate.replay.LongTexts`)."""

    _rows_of: Callable[[Principal], CountedRows]
    clock: Clock
    limits: LimitsConfig
    view: str = ""
    checks_scopes: bool = True
    """Whether reading a text needs its scopes; False without authentication."""
    task_s: float = 0.0
    """Seconds for which the result of a task can be read."""

    async def keep(
        self,
        text: str,
        size: int,
        scopes: frozenset[str],
        owner: Principal,
        *,
        of_task: bool = False,
    ) -> str:
        stored_text, now_ms = text[: self.limits.max_kept_chars], self.clock.now_ms()
        longest_s = max(self.limits.kept_results_s, self.task_s)
        forget_ms = now_ms + int((longest_s if of_task else self.limits.kept_results_s) * 1000)
        # The counter outlives every text. If it were forgotten earlier, numbers would begin at 1
        # again and collide with texts that are still kept.
        rows = self._rows_of(owner)
        number = await rows.put(
            self._owned(owner), b"", now_ms + int((longest_s + _LONGER_S) * 1000)
        )
        text_id = f"{number}-{self.clock.new_id()}"
        facts = [len(text), len(stored_text), size, sorted(scopes), text_id]
        chunks = [
            # as JSON, a control character would take six bytes
            b"%b\n%b"
            % (json.encode(facts), stored_text[start : start + CHUNK].encode(errors="replace"))
            for start in range(0, len(stored_text), CHUNK)
        ]
        await rows.make_room(len(chunks), sum(map(len, chunks)), forget_ms)
        await asyncio.gather(
            *(
                rows.put(self._key(owner, number, place), chunk, forget_ms)
                for place, chunk in enumerate(chunks)
            )
        )
        return f"{text_id}.{size}"

    async def part(self, cursor: str, owner: Principal) -> TextPart | None:
        match = _CURSOR.fullmatch(cursor)
        if match is None:
            return None
        text_id, number, start = match["id"], int(match["number"]), int(match["start"])
        row = await self._chunk(owner, number, start, text_id)
        if row is None:
            return None
        total, stored_chars, size, scopes, _, text = row
        if self.checks_scopes and not owner.scopes.issuperset(scopes):
            return None
        text = text[start % CHUNK :][:size]
        while (
            text and len(text) < size and start + len(text) < stored_chars
        ):  # the part spans several rows
            row = await self._chunk(owner, number, start + len(text), text_id)
            if row is None:
                return None
            text += row[-1][: size - len(text)]
        end = start + len(text)
        if not text:
            return None
        return TextPart(text, start, total, f"{text_id}.{end}" if end < stored_chars else None)

    async def _chunk(
        self, owner: Principal, number: int, at: int, text_id: str
    ) -> Sequence[Any] | None:
        """Return the row that holds the character at `at`, or `None` if it is missing.

        Raises:
            ToolError: a newer text has replaced this text.
        """
        row = await self._rows_of(owner).read(self._key(owner, number, at // CHUNK))
        if row is None:
            return None
        line, _, chunk = row.value.partition(b"\n")
        values: Sequence[Any] = [*json.decode(line), chunk.decode()]
        if values[4] == text_id:
            return values
        if int(values[4].partition("-")[0]) > number:
            raise ToolError(
                "Newer long results have replaced this result. Call its tool again, and read each result to its"
                " end before the next"
            )
        return None

    def _key(self, owner: Principal, number: int, chunk: int) -> str:
        return f"{self._owned(owner)}.{number % self.limits.max_kept_results}.{chunk}"

    def _owned(self, owner: Principal) -> str:
        return f"texts.{json.digest([*owner.identity, self.view])}"


async def bounded(
    returned: Returned, limit: int, scopes: frozenset[str], context: Context
) -> Returned:
    """Return the result with at most `limit` characters of text, and store the rest for callers
    with `scopes`. A shortened result loses its structured content."""
    if not isinstance(returned, ToolResult):
        return returned
    text = _joined_text(returned)
    if len(text) <= limit:
        structured = returned.structured_content
        if structured is ABSENT or len(written := json.encode(structured).decode()) <= limit:
            return returned
        text = written
    call = run_of(context).call
    cursor = None
    if call.texts is not None:
        try:
            of_task = call.task_id is not None or call.needs_row
            cursor = await call.texts.keep(text, limit, scopes, call.principal, of_task=of_task)
        except Unavailable:
            cursor = None
    first = TextPart(text[:limit], 0, len(text), cursor)
    others = [part for part in returned.content if _text_in(part) is None]
    return replace(
        returned, content=(TextContent(_shown(first)), *others), structured_content=ABSENT
    )


def reading_tool() -> Tool:
    """Return the tool that reads the rest of long results."""
    cursor = {"type": "string", "maxLength": 100, "description": "From the end of a result."}
    definition = {
        "name": READ_MORE,
        "description": "Read the rest of a long result. The result ends with the cursor.",
        "inputSchema": {
            "type": "object",
            "properties": {"cursor": cursor},
            "required": ["cursor"],
            "additionalProperties": False,
        },
        "annotations": {"readOnlyHint": True, "openWorldHint": False},
    }
    return Tool(definition, _read_more)


async def _read_more(context: Context, arguments: dict[str, Any]) -> Returned:
    call = run_of(context).call
    part = None
    if call.texts is not None:
        part = await call.texts.part(arguments["cursor"], call.principal)
    if part is None:
        raise ToolError(
            "There is nothing to read under this cursor; call the tool that returned the result again"
        )
    return ToolResult((TextContent(_shown(part)),))


def _joined_text(result: ToolResult) -> str:
    texts = (_text_in(part) for part in result.content)
    return "\n".join(text for text in texts if text is not None)


def _text_in(block: ContentBlock | str) -> str | None:
    if isinstance(block, (TextContent, ForwardedContent)):
        return block.text
    return block if isinstance(block, str) else None


def _shown(part: TextPart) -> str:
    end = part.start + len(part.text)
    where = f"Characters {part.start:,} to {end:,} of {part.total:,}"
    if part.next_cursor is not None:
        how = f'{where}. To read on, call {READ_MORE} with {{"cursor": "{part.next_cursor}"}}'
    elif end < part.total:
        how = f"{where}. The rest could not be kept; ask for less at once"
    else:
        how = f"{where}. This is the end"
    return f"{part.text}\n\n[{how}]"
