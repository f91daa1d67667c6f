"""The models of a suite file; `roundgate docs testing` describes the format.

`roundgate.suites.loading` validates patterns, expressions and references.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

ClientFailure: TypeAlias = Literal[
    "AnswerInvalid", "AuthorizationFailed", "BadAnswer", "ConnectionLost", "HttpRefused", "NoCommonVersion",
    "RpcError", "TaskEnded", "TimedOut", "TooManyRounds", "Unanswered",
]  # fmt: skip
"""The names of the errors of `roundgate.client` that a step may expect."""


def _shape(value: Any) -> str | None:
    """Return the union tag for a value of the file, or `None` if no member of the union fits."""
    if isinstance(value, bool):
        return "<flag>"
    if isinstance(value, int):
        return "<number>"
    if isinstance(value, str):
        return "<text>"
    if isinstance(value, list):
        return "<list>"
    return "<mapping>" if isinstance(value, Mapping | SuiteModel) else None


class SuiteModel(BaseModel):
    """The base of the models: frozen, and without unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Server(SuiteModel):
    """The server under test: a running one (`url`), or one that is started for the run (`gateway`, or
    `command` with `url`)."""

    url: str | None = Field(None, description="The endpoint, such as https://host/mcp.")
    gateway: str | None = Field(
        None, description="A gateway.yaml that is served for the run, relative to the suite."
    )
    command: list[str] | None = Field(
        None,
        min_length=1,
        description="A command that serves for the run; ${port} in it, in `url` and in `environment` is "
        "a free port.",
    )
    environment: dict[str, str] = Field({}, description="Variables of what is started.")
    start_timeout_s: float = Field(60.0, gt=0, description="For how long a start may take.")
    token: str | None = Field(None, description="A bearer token: ${secret:NAME}.")
    headers: dict[str, str] = Field({}, description="Headers of each request.")
    revisions: list[str] | None = Field(
        None, min_length=1, description="Speak only these revisions, the preferred one first."
    )


class AnswerRule(SuiteModel):
    """An answer to the questions that meet all conditions of the rule. A rule without conditions
    answers every question."""

    key: str | None = Field(None, description="The question's key.")
    round: int | None = Field(None, ge=1, description="The round it is asked in; the first is 1.")
    kind: Literal["form", "url", "sampling", "roots"] | None = Field(
        None, description="What sort of question it is."
    )
    message: str | None = Field(None, description="A regular expression found in its message.")
    answer: Any = Field(None, description="The answer: content, {action: decline}, text, a list.")
    defaults: bool = Field(False, description="Answer a form with the defaults of its schema.")


AnswersGiven: TypeAlias = Annotated[
    Annotated[dict[str, Any], Tag("<mapping>")] | Annotated[list[AnswerRule], Tag("<list>")],
    Discriminator(_shape),
]
"""Answers by question key or by names of form fields, or a list of rules, of which the first that
fits a question answers it."""


SchemaGiven: TypeAlias = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[dict[str, Any], Tag("<mapping>")],
    Discriminator(_shape),
]


class ExpectedError(SuiteModel):
    """The expected error of the protocol or of the client."""

    kind: ClientFailure | None = Field(None, description="The client's name for it.")
    code: Any = Field(None, description="A pattern for the code of a JSON-RPC error.")
    message: Any = Field(None, description="A pattern for what is said.")
    data: Any = Field(None, description="A pattern for the `data` of a JSON-RPC error.")
    status: Any = Field(None, description="A pattern for the HTTP status, or how a task ended.")


ErrorExpected: TypeAlias = Annotated[
    Annotated[int, Tag("<number>")] | Annotated[ExpectedError, Tag("<mapping>")],
    Discriminator(_shape),
]


SnapshotGiven: TypeAlias = Annotated[
    Annotated[bool, Tag("<flag>")] | Annotated[str, Tag("<text>")], Discriminator(_shape)
]


class Expect(SuiteModel):
    """The expected outcome of a step. Members that are not set are not checked, but an error that is
    not expected fails the step."""

    result: Any = Field(None, description="A pattern for the result (`roundgate docs testing`).")
    text: Any = Field(None, description="A pattern for the text of the result.")
    jmespath: dict[str, Any] = Field({}, description="Patterns by JMESPath into the outcome.")
    json_schema: SchemaGiven | None = Field(
        None, alias="schema", description="A JSON Schema of the result, or the path of one."
    )
    tool_error: Any = Field(None, description="true, or a pattern for the text of the failure.")
    error: ErrorExpected | None = Field(
        None, description="The code of a JSON-RPC error, or more about the error."
    )
    rounds: Any = Field(None, description="How many requests the step takes, or a pattern.")
    asked: list[Any] | None = Field(
        None, description="Each question in order: its key, or a pattern for it."
    )
    task: bool | None = Field(None, description="Whether it became a task.")
    within_s: float | None = Field(None, gt=0, description="For how long it may take.")
    snapshot: SnapshotGiven = Field(
        False,
        description="Compare the result, or what this JMESPath finds, with what `--update` stored.",
    )


class Save(SuiteModel):
    """The source of a variable that is taken from an outcome."""

    of: str = Field(description="JMESPath into the outcome.")
    secret: bool = Field(False, description="Keep its value out of reports and snapshots.")


SaveGiven: TypeAlias = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[Save, Tag("<mapping>")], Discriminator(_shape)
]


class Step(SuiteModel):
    """One action on the server, and its expected outcome."""

    call: str | None = Field(None, description="A tool that is called, through rounds and task.")
    start: str | None = Field(None, description="A tool that is called until it is a task.")
    wait: str | None = Field(None, description="A task that was started (its `as`), to its end.")
    cancel: str | None = Field(None, description="A task that was started, which is cancelled.")
    prompt: str | None = Field(None, description="A prompt that is filled in.")
    read: str | None = Field(None, description="The URI of a resource that is read.")
    complete: str | None = Field(
        None, description="The prompt or the URI template whose argument is completed."
    )
    list_: Literal["tools", "prompts", "resources", "templates"] | None = Field(
        None, alias="list", description="What is listed, every page of it."
    )
    request: str | None = Field(None, description="A method of the protocol, sent as it is.")
    arguments: dict[str, Any] = Field({}, description="Of a tool or a prompt.")
    params: dict[str, Any] = Field({}, description="Of a `request`.")
    argument: str | None = Field(None, description="Which argument `complete` is about.")
    value: str = Field("", description="What has been typed of it.")
    as_: str | None = Field(None, alias="as", description="A name for a task that is started.")
    until: Literal["working", "input_required", "completed", "failed", "cancelled"] | None = Field(
        None, description="Wait only until the task has this status; nothing is answered."
    )
    answers: AnswersGiven = Field({}, description="What is answered when the server asks.")
    expect: Expect = Field(Expect(), description="What has to be so afterwards.")
    save: dict[str, SaveGiven] = Field({}, description="Variables that are taken from the outcome.")
    timeout_s: float | None = Field(None, gt=0, description="For how long it may take at most.")
    max_rounds: int | None = Field(None, ge=1, description="How many requests it may take.")

    @property
    def actions(self) -> list[str]:
        """Return the actions of the step, in the order of `ACTIONS`. A valid step has exactly one."""
        return [name for name in ACTIONS if self._target(name) is not None]

    @property
    def title(self) -> str:
        """Return the action and its target for reports, such as `call book`."""
        return " ".join(f"{name} {self._target(name)}" for name in self.actions)

    def _target(self, action: str) -> str | None:
        target: str | None = self.list_ if action == "list" else getattr(self, action)
        return target


_EVERY: Final = frozenset({"expect", "save", "timeout_s"})
_CALL: Final = _EVERY | {"arguments", "answers", "max_rounds"}
ACTIONS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "call": _CALL,
        "start": _CALL | {"as"},
        "wait": _EVERY | {"answers", "until"},
        "cancel": _EVERY,
        "prompt": _EVERY | {"arguments", "answers"},
        "read": _EVERY | {"answers"},
        "complete": _EVERY | {"arguments", "argument", "value"},
        "list": _EVERY,
        "request": _EVERY | {"params"},
    }
)
"""The actions of a step, each with the fields that it takes."""


class Case(Step):
    """One test case: a list of steps, or a single step written in the case itself."""

    name: str = Field(min_length=1, max_length=200, description="Unique within the suite.")
    tags: list[str] = Field([], description="Words that --filter looks at, beside the name.")
    skip: str | None = Field(None, description="Why it is not run.")
    steps: list[Step] = Field([], description="Done one after the other, until one fails.")


class Suite(SuiteModel):
    """A file of test cases."""

    name: str | None = Field(None, description="For reports; the file's unless given.")
    server: Server | None = Field(None, description="What is tested; --url and --serve replace it.")
    variables: dict[str, Any] = Field({}, description="Values that each case begins with.")
    answers: AnswersGiven = Field({}, description="For what a step does not answer itself.")
    timeout_s: float = Field(60.0, gt=0, description="For how long each step may take.")
    cases: list[Case] = Field(min_length=1, description="Each with a client of its own.")


def schema_of_suites() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of suite files."""
    schema = Suite.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
