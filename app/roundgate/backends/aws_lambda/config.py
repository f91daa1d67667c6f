"""Settings of a back end of the kind lambda: functions, their tools and their invocations."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field, model_validator

from roundgate.backends.config import (
    BackendConfig,
    CallConfig,
    DeclaredToolConfig,
    JobConfig,
)
from roundgate.settings import Model

MAX_PAYLOAD_BYTES: Final = 6_291_456
"""The limit on payload and answer of a synchronous invocation (AWS Lambda quotas: 6 MB)."""
OBJECT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}
FUNCTION_PATTERN: Final = (
    r"^(arn:aws[a-zA-Z-]*:lambda:[a-z]{2,8}(-[a-z]+)+-\d:\d{12}:function:|\d{12}:function:)?"
    r"[A-Za-z0-9_-]{1,140}(:(\$LATEST|[A-Za-z0-9_-]+))?$"
)
"""A name, an ARN, or an ARN without its first half, each with an optional version or alias."""

FunctionName: TypeAlias = Annotated[str, Field(pattern=FUNCTION_PATTERN, max_length=256)]
Qualifier: TypeAlias = Annotated[str, Field(pattern=r"^(\$LATEST|[A-Za-z0-9_-]{1,128})$")]


def is_qualified(function: str) -> bool:
    """Return whether a name or ARN ends in a version or an alias."""
    return ":" in function.rpartition(":function:")[2]


class PayloadConfig(Model):
    """The place of the arguments in the payload, and the payload's other members."""

    arguments_in: str | None = Field(
        None,
        description="Member of the payload that has the arguments. Unset, they are the payload.",
        min_length=1,
    )
    fixed: dict[str, Any] = Field({}, description="Members that are always sent.")
    context_in: str | None = Field(
        None,
        description="Member of the payload for the data of the client context, which an "
        "asynchronous invocation does not carry.",
        min_length=1,
    )

    @model_validator(mode="after")
    def _has_room(self) -> PayloadConfig:
        taken = [name for name in (self.arguments_in, self.context_in, *self.fixed) if name]
        if twice := sorted({name for name in taken if taken.count(name) > 1}):
            raise ValueError(f"{', '.join(twice)}: two members have this name; rename one")
        return self


class HttpEventConfig(Model):
    """The payload as an event of an HTTP API (payload format 2.0), for functions behind one."""

    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] = Field(
        description="HTTP method."
    )
    path: str = Field(
        description="Path; {name} stands for an argument. Other arguments go into the query for GET, "
        "HEAD and DELETE, else into a JSON body.",
        pattern=r"^/",
    )
    headers: dict[str, str] = Field({}, description="Fixed headers.")


class LambdaJobConfig(JobConfig):
    """The invocations that follow a job that an earlier invocation has started."""

    poll: dict[str, Any] = Field(
        description='Payload of an invocation that returns the job\'s status, such as {"job": "{id}"}; '
        "{name} stands for a"
        " variable."
    )
    fetch: dict[str, Any] | None = Field(
        None,
        description="Payload of the invocation that returns the result. Unset: the last poll's answer is "
        "the result.",
    )
    cancel: dict[str, Any] | None = Field(
        None,
        description="Payload of the invocation that cancels the job when the task is cancelled, or has taken "
        "too long; {name} stands for a variable or an argument. Unset: the job continues.",
    )
    function: FunctionName | None = Field(
        None, description="The function to invoke. Unset: the function that started the job."
    )


class DurableConfig(Model):
    """The settings for following the execution of a durable function."""

    every_s: float = Field(
        5, description="Seconds between two polls; no worker waits meanwhile.", ge=1, le=86_400
    )
    cancel: bool = Field(
        False,
        description="Whether to stop the execution when the task is cancelled, or has taken too "
        "long; the role needs lambda:StopDurableExecution.",
    )


class LambdaCallConfig(CallConfig):
    """The settings of a function's calls, declared in gateway.yaml or described by the function."""

    interactive: bool = Field(
        False,
        description="Whether the function may ask for input itself, with the envelope of "
        "`roundgate docs rounds`.",
    )
    asynchronous: bool = Field(
        False,
        description="Whether AWS Lambda only queues the call (Event); the result says that it was "
        "accepted.",
    )
    job: LambdaJobConfig | None = Field(
        None, description="How to follow the job that the invocation starts."
    )
    durable: DurableConfig | None = Field(
        None, description="How to follow the execution of a durable function."
    )
    timeout_s: float | None = Field(
        None, description="Overrides the back end's, for each invocation.", gt=0, le=900
    )

    @property
    def cleans_up(self) -> bool:
        """Return whether a job or an execution can be cancelled."""
        job, durable = self.job, self.durable
        by_payload = job is not None and job.cancel is not None
        return by_payload or (durable is not None and durable.cancel)

    @model_validator(mode="after")
    def _one_way(self) -> LambdaCallConfig:
        ways = [
            name
            for name in ("interactive", "asynchronous", "job", "durable")
            if getattr(self, name) not in (None, False)
        ]
        if len(ways) > 1:
            raise ValueError(f"{' and '.join(ways)} cannot be combined; choose one")
        if self.asynchronous and self.result:
            raise ValueError("an asynchronous call has no result; remove `result`")
        return self


def _check_qualifier(function: str | None, qualifier: str | None) -> None:
    if qualifier is not None and function is not None and is_qualified(function):
        raise ValueError(
            "function already ends in a qualifier; remove it from the name, or remove `qualifier`"
        )


class LambdaToolConfig(LambdaCallConfig, DeclaredToolConfig):
    """A tool that invokes a function."""

    function: FunctionName | None = Field(
        None, description="The function, by name or ARN. Unset: the back end's."
    )
    qualifier: Qualifier | None = Field(
        None,
        description="A version or an alias. Unset: the back end's, if `function` is unset too.",
    )
    input_schema: dict[str, Any] = Field(
        OBJECT, description="JSON Schema of the arguments, of type object."
    )
    payload: PayloadConfig = Field(
        PayloadConfig(), description="The payload, if it is not the arguments alone."
    )
    http: HttpEventConfig | None = Field(
        None,
        description="Send the function an event of an HTTP API, and read its answer accordingly.",
    )
    idempotent: bool | None = Field(
        None,
        description="idempotentHint; true: an invocation that may have run is tried again.",
    )

    @model_validator(mode="after")
    def _is_callable(self) -> LambdaToolConfig:
        if self.http is not None and (self.payload.model_fields_set or self.interactive):
            raise ValueError("http cannot be combined with payload or interactive; choose one")
        if self.asynchronous and self.output_schema is not None:
            raise ValueError("an asynchronous call has no result; remove `output_schema`")
        _check_qualifier(self.function, self.qualifier)
        return self


class LambdaBackendConfig(BackendConfig):
    """Functions of AWS Lambda, with boto3's credentials."""

    kind: Literal["lambda"]
    function: FunctionName | None = Field(
        None, description="The function of tools without their own function, by name or ARN."
    )
    qualifier: Qualifier | None = Field(None, description="A version or an alias of the function.")
    region: str | None = Field(
        None,
        description="Region of functions that are named without one. Unset: AWS_DEFAULT_REGION.",
        pattern=r"^[a-z]{2,8}(-[a-z]+)+-\d$",
    )
    describe: bool = Field(
        False,
        description="Whether `function` describes its tools itself, see `roundgate docs lambda`; `tools` takes "
        "precedence.",
    )
    index: str | None = Field(
        None,
        description="File for the described tools that `roundgate compile` writes, relative to gateway.yaml. "
        "Unset: NAME.index.",
    )
    output_schemas: list[str] = Field(
        [],
        description='Described tools (names without prefix, "*" for any text) that advertise '
        "the schema of their"
        " result.",
    )
    client_context: bool = Field(
        True,
        description="Whether functions receive the caller's subject and the trace, but never the "
        "token.",
    )
    timeout_s: float = Field(25, description="Seconds that an invocation may take.", gt=0, le=900)
    max_response_bytes: int = Field(
        MAX_PAYLOAD_BYTES,
        description="Larger answers are a tool error.",
        ge=1,
        le=MAX_PAYLOAD_BYTES,
    )
    max_connections: int = Field(
        50, description="Maximum number of concurrent invocations of one process.", ge=1
    )
    tools: list[LambdaToolConfig] = Field([], description="The declared tools.")

    @property
    def packed_files(self) -> tuple[str, ...]:
        """The path of the index, if the function describes its tools."""
        return (self.index or f"{self.name}.index",) if self.describe else ()

    @model_validator(mode="after")
    def _has_functions(self) -> LambdaBackendConfig:
        if not self.tools and not self.describe:
            raise ValueError("has no tools: list them in `tools`, or set `describe`")
        if self.describe and self.function is None:
            raise ValueError("describe needs `function`, the function that describes its tools")
        if without := [
            tool.name for tool in self.tools if (tool.function or self.function) is None
        ]:
            raise ValueError(
                f"{', '.join(without)}: no function; set `function` for the tool, or for the back end"
            )
        _check_qualifier(self.function, self.qualifier)
        return self
