"""The parameters of each method, as pydantic models (schema.ts: the `*RequestParams` interfaces).

Only members that the gateway reads are declared; others are ignored, as JSON-RPC allows for
parameters by name.
"""

from typing import Annotated, Any, Literal, TypeAlias, TypeVar

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
