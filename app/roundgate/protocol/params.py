"""The parameters of each method, as values (schema.ts: the `*RequestParams` interfaces), and the pages
that the cursor of a list selects (server/utilities/pagination).

Only members that the gateway reads are declared; others are ignored, as JSON-RPC allows for
parameters by name.

A cursor names the entry after which the next page starts, so any replica can serve any page, even
after a restart with another page size or with entries added at other places in the list.
"""

import base64
import binascii
from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct, field

from roundgate.errors import InvalidParams

Uri: TypeAlias = Annotated[str, Meta(max_length=8_192)]
"""A URI, limited to the length that servers accept on a request line, because the time to match a
URI grows with its length."""


class Params(Struct, frozen=True, kw_only=True, rename="camel"):
    """The base class of all params. Types are checked strictly, and unknown members ignored."""


class ListParams(Params, frozen=True):
    """The params of the four list methods: an opaque cursor, or `None` for the first page."""

    cursor: str | None = None


class InputParams(Params, frozen=True):
    """The params of a retry, for the three methods that may ask for input (schema:
    `InputResponseRequestParams`)."""

    input_responses: dict[str, Any] | None = None
    request_state: Any = None
    """Any value. `tokens.StateSealer.open` checks it, without telling the client the reason for a
    refusal."""


class CallToolParams(InputParams, frozen=True, kw_only=True):
    """The params of tools/call."""

    name: str
    sent: dict[str, Any] | None = field(default=None, name="arguments")
    """The arguments as the client sends them; some clients send null for none."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments."""
        return {} if self.sent is None else self.sent


class GetPromptParams(InputParams, frozen=True, kw_only=True):
    """The params of prompts/get."""

    name: str
    arguments: dict[str, Any] = {}
    """The arguments by name; their values have to be text."""


class ReadResourceParams(InputParams, frozen=True, kw_only=True):
    """The params of resources/read."""

    uri: Uri


class PromptReference(Params, frozen=True, tag_field="type", tag="ref/prompt"):
    """A reference to the prompt whose argument is being completed."""

    name: str


class ResourceReference(Params, frozen=True, tag_field="type", tag="ref/resource"):
    """A reference to the resource template whose variable is being completed."""

    uri: Uri


class CompletionArgument(Params, frozen=True):
    """The argument, and the beginning that the user has typed."""

    name: str
    value: str


class CompletionContext(Params, frozen=True):
    """The arguments that already have values."""

    arguments: dict[str, str] = {}


class CompleteParams(Params, frozen=True):
    """The params of completion/complete."""

    ref: PromptReference | ResourceReference
    argument: CompletionArgument
    context: CompletionContext = CompletionContext()


class SubscriptionFilter(Params, frozen=True):
    """The notifications that a client requests; an absent member requests none."""

    tools_list_changed: bool = False
    prompts_list_changed: bool = False
    resources_list_changed: bool = False
    resource_subscriptions: Annotated[list[Uri], Meta(max_length=1_000)] = []
    task_ids: Annotated[list[str], Meta(max_length=100)] = []


class ListenParams(Params, frozen=True):
    """The params of subscriptions/listen."""

    notifications: SubscriptionFilter


class Page(Struct, frozen=True):
    """One page: its entries as the inside of a JSON array, and the cursor of the next page, `None`
    for the last."""

    entries: bytes
    next_cursor: str | None


class Pages:
    """A whole list: (key, serialised entry) in order. Pages that start at a multiple of `size` are
    cached. Other pages are made each time, so that unusual cursors cost no memory."""

    def __init__(self, items: Sequence[tuple[str, bytes]], size: int) -> None:
        self.items = items
        self.size = size
        self._starts: dict[str, int] = {}
        """The start of the page after each entry, by the entry's key; filled for the first cursor."""
        self._made: dict[int, Page] = {}

    def page(self, cursor: str | None) -> Page:
        """Return the page of a cursor, or the first page.

        Raises:
            InvalidParams: the cursor was not made by `page`, or its entry is no longer in the list.
        """
        start = 0 if cursor is None else self._after(_decode(cursor))
        if start is None:
            raise InvalidParams(
                "Invalid cursor: start again without one; the list may have changed"
            )
        if start % self.size:
            return self._make(start)
        if start not in self._made:
            self._made[start] = self._make(start)
        return self._made[start]

    def _after(self, key: str) -> int | None:
        if not self._starts:
            self._starts.update((key, index + 1) for index, (key, _) in enumerate(self.items))
        return self._starts.get(key)

    def _make(self, start: int) -> Page:
        chosen = self.items[start : start + self.size]
        more = start + self.size < len(self.items)
        return Page(
            b",".join(entry for _, entry in chosen), _encode(chosen[-1][0]) if more else None
        )


def _encode(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")


def _decode(cursor: str) -> str:
    try:
        return base64.b64decode(
            cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True
        ).decode()
    except (binascii.Error, ValueError):
        return "\0"  # matches no key: names and URIs have no NUL
