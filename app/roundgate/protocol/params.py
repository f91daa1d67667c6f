"""The parameters of each method, as pydantic models (schema.ts: the `*RequestParams` interfaces).

Only what is read is declared; anything else a client sends is ignored, as JSON-RPC
parameters by name allow.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from roundgate.errors import InvalidParams

P = TypeVar("P", bound="Params")


Uri: TypeAlias = Annotated[str, Field(max_length=8_192)]
"""As long as servers take them on a request line; matching one takes time that
grows with its length."""


class Params(BaseModel):
    """Base: strict types, unknown members ignored, built when first used."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, defer_build=True)


class ListParams(Params):
    """The four list methods: an opaque cursor, or the first page."""

    cursor: str | None = None


class InputParams(Params):
    """What the three methods that may ask for input take on a retry (schema:
    `InputResponseRequestParams`)."""

    input_responses: dict[str, Any] | None = Field(default=None, alias="inputResponses")
    request_state: Any = Field(default=None, alias="requestState")
    """Anything: what is wrong with it is found, and not told, where it is opened."""


class CallToolParams(InputParams):
    """tools/call"""

    name: str
    arguments: dict[str, Any] = {}


class GetPromptParams(InputParams):
    """prompts/get"""

    name: str
    arguments: dict[str, str] = {}


class ReadResourceParams(InputParams):
    """resources/read"""

    uri: Uri


class PromptReference(Params):
    """What is being completed: an argument of a prompt."""

    type: Literal["ref/prompt"]
    name: str


class ResourceReference(Params):
    """What is being completed: a variable of a resource template."""

    type: Literal["ref/resource"]
    uri: Uri


class CompletionArgument(Params):
    """The argument and what the user has typed of it so far."""

    name: str
    value: str


class CompletionContext(Params):
    """Arguments that are settled already."""

    arguments: dict[str, str] = {}


class CompleteParams(Params):
    """completion/complete"""

    ref: Annotated[PromptReference | ResourceReference, Field(discriminator="type")]
    argument: CompletionArgument
    context: CompletionContext = CompletionContext.model_construct(arguments={})


class SubscriptionFilter(Params):
    """Which notifications a stream wants; absent means no."""

    tools_list_changed: bool = Field(default=False, alias="toolsListChanged")
    prompts_list_changed: bool = Field(default=False, alias="promptsListChanged")
    resources_list_changed: bool = Field(default=False, alias="resourcesListChanged")
    resource_subscriptions: list[Uri] = Field(
        default=[], alias="resourceSubscriptions", max_length=1000
    )
    task_ids: list[str] = Field(default=[], alias="taskIds", max_length=100)


class ListenParams(Params):
    """subscriptions/listen"""

    notifications: SubscriptionFilter


def validate(model: type[P], params: dict[str, Any]) -> P:
    """Read the params of a request into a model.

    Raises:
        InvalidParams: names each invalid member, without its value.
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
    if error["type"] == "union_tag_invalid":  # the only message that repeats what was sent
        return f"type should be one of {error['ctx']['expected_tags']}"
    return error["msg"]
