"""The parameters of each method, as pydantic models (schema.ts: the `*RequestParams` interfaces), and
the pages that the cursor of a list selects (server/utilities/pagination).

Only members that the gateway reads are declared; others are ignored, as JSON-RPC allows for
parameters by name.

A cursor names the entry after which the next page starts, so any replica can serve any page, even
after a restart with another page size or with entries added at other places in the list.
"""

import base64
import binascii
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from roundgate.errors import InvalidParams

P = TypeVar("P", bound="Params")


Uri: TypeAlias = Annotated[str, Field(max_length=8_192)]
"""A URI, limited to the length that servers accept on a request line, because the time to match a
URI grows with its length."""


class Params(BaseModel):
    """The base class of all params. It checks types strictly, ignores unknown members, and builds
    its validator at first use."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, defer_build=True)


class ListParams(Params):
    """The params of the four list methods: an opaque cursor, or `None` for the first page."""

    cursor: str | None = None


class InputParams(Params):
    """The params of a retry, for the three methods that may ask for input (schema:
    `InputResponseRequestParams`)."""

    input_responses: dict[str, Any] | None = Field(default=None, alias="inputResponses")
    request_state: Any = Field(default=None, alias="requestState")
    """Any value. `tokens.StateSealer.open` checks it, without telling the client the reason for a
    refusal."""


class CallToolParams(InputParams):
    """The params of tools/call."""

    name: str
    sent: dict[str, Any] | None = Field(default=None, alias="arguments")
    """The arguments as the client sends them; some clients send null for none."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments."""
        return {} if self.sent is None else self.sent


class GetPromptParams(InputParams):
    """The params of prompts/get."""

    name: str
    arguments: dict[str, str] = {}


class ReadResourceParams(InputParams):
    """The params of resources/read."""

    uri: Uri


class PromptReference(Params):
    """A reference to the prompt whose argument is being completed."""

    type: Literal["ref/prompt"]
    name: str


class ResourceReference(Params):
    """A reference to the resource template whose variable is being completed."""

    type: Literal["ref/resource"]
    uri: Uri


class CompletionArgument(Params):
    """The argument, and the beginning that the user has typed."""

    name: str
    value: str


class CompletionContext(Params):
    """The arguments that already have values."""

    arguments: dict[str, str] = {}


class CompleteParams(Params):
    """The params of completion/complete."""

    ref: Annotated[PromptReference | ResourceReference, Field(discriminator="type")]
    argument: CompletionArgument
    context: CompletionContext = CompletionContext.model_construct(arguments={})


class SubscriptionFilter(Params):
    """The notifications that a client requests; an absent member requests none."""

    tools_list_changed: bool = Field(default=False, alias="toolsListChanged")
    prompts_list_changed: bool = Field(default=False, alias="promptsListChanged")
    resources_list_changed: bool = Field(default=False, alias="resourcesListChanged")
    resource_subscriptions: list[Uri] = Field(
        default=[], alias="resourceSubscriptions", max_length=1000
    )
    task_ids: list[str] = Field(default=[], alias="taskIds", max_length=100)


class ListenParams(Params):
    """The params of subscriptions/listen."""

    notifications: SubscriptionFilter


def validate(model: type[P], params: dict[str, Any]) -> P:
    """Validate the params of a request; return them as a model.

    Raises:
        InvalidParams: the message names up to five invalid members, without their values.
    """
    try:
        validated: P = model.__pydantic_validator__.validate_python(params)
    except ValidationError as error:
        wrong = [
            f"params.{'.'.join(map(str, e['loc']))}: {_message(e)}"
            for e in error.errors(include_input=False)[:5]
        ]
        raise InvalidParams(f"Invalid params: {'; '.join(wrong)[:1000]}") from None
    return validated


def _message(error: ErrorDetails) -> str:
    if error["type"] == "union_tag_invalid":  # pydantic's message would repeat the value
        return f"type should be one of {error['ctx']['expected_tags']}"
    return error["msg"]


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
