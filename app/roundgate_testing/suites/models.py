"""The models of a suite file; `roundgate docs testing` describes the format.

`roundgate_testing.suites.loading` validates patterns, expressions and references.
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
    """Return the union tag for a value of the file, or `None` if the value matches no member."""
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


class SuiteServer(SuiteModel):
    """The server under test: a running server (`url`), or a server that is started for the run
    (`gateway`, or `command` with `url`)."""

    url: str | None = Field(None, description="The endpoint, such as https://host/mcp.")
    gateway: str | None = Field(
        None, description="A gateway.yaml to serve for the run, relative to the suite."
    )
    command: list[str] | None = Field(
        None,
        min_length=1,
        description="A command that starts a server for the run; ${port} in it, in `url` and in `environment` is "
        "a free port.",
    )
    environment: dict[str, str] = Field({}, description="Variables of the started server.")
    start_timeout_s: float = Field(60.0, gt=0, description="Seconds that a start may take.")
    token: str | None = Field(None, description="A bearer token: ${secret:NAME}.")
    headers: dict[str, str] = Field({}, description="Headers of each request.")
    revisions: list[str] | None = Field(
        None, min_length=1, description="The only revisions to use, the preferred one first."
    )


class AnswerRule(SuiteModel):
    """An answer to the questions that meet all conditions of the rule. A rule without conditions
    answers every question."""

    key: str | None = Field(None, description="The question's key.")
    round: int | None = Field(None, ge=1, description="The question's round, counted from 1.")
    kind: Literal["form", "url", "sampling", "roots"] | None = Field(
        None, description="The kind of the question."
    )
    message: str | None = Field(None, description="A regular expression that matches its message.")
    answer: Any = Field(None, description="The answer: content, {action: decline}, text, a list.")
    defaults: bool = Field(False, description="Answer a form with the defaults of its schema.")


AnswersGiven: TypeAlias = Annotated[
    Annotated[dict[str, Any], Tag("<mapping>")] | Annotated[list[AnswerRule], Tag("<list>")],
    Discriminator(_shape),
]
"""Answers by question key or by names of form fields, or a list of rules. The first rule that
matches a question answers it."""


SchemaGiven: TypeAlias = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[dict[str, Any], Tag("<mapping>")],
    Discriminator(_shape),
]


class ExpectedError(SuiteModel):
    """The expected error of the protocol or of the client."""

    kind: ClientFailure | None = Field(None, description="The client's name for the error.")
    code: Any = Field(None, description="A pattern for the code of a JSON-RPC error.")
    message: Any = Field(None, description="A pattern for the error's message.")
    data: Any = Field(None, description="A pattern for the `data` of a JSON-RPC error.")
    status: Any = Field(None, description="A pattern for the HTTP status, or a task's last status.")


ErrorExpected: TypeAlias = Annotated[
    Annotated[int, Tag("<number>")] | Annotated[ExpectedError, Tag("<mapping>")],
    Discriminator(_shape),
]


SnapshotGiven: TypeAlias = Annotated[
    Annotated[bool, Tag("<flag>")] | Annotated[str, Tag("<text>")], Discriminator(_shape)
]


class Expect(SuiteModel):
    """The expected outcome of a step. Members that are not set are not checked, but an unexpected
    error fails the step."""

    result: Any = Field(None, description="A pattern for the result (`roundgate docs testing`).")
    text: Any = Field(None, description="A pattern for the text of the result.")
    jmespath: dict[str, Any] = Field({}, description="Patterns by JMESPath into the outcome.")
    json_schema: SchemaGiven | None = Field(
        None, alias="schema", description="A JSON Schema of the result, or the path of its file."
    )
    tool_error: Any = Field(None, description="true, or a pattern for the text of the failure.")
    error: ErrorExpected | None = Field(
        None, description="The code of a JSON-RPC error, or a description of the error."
    )
    rounds: Any = Field(None, description="The number of rounds of the step, or a pattern.")
    asked: list[Any] | None = Field(
        None, description="Each question in order: its key, or a pattern for it."
    )
    task: bool | None = Field(None, description="Whether the call became a task.")
    within_s: float | None = Field(None, gt=0, description="Seconds that the step may take.")
    snapshot: SnapshotGiven = Field(
        False,
        description="Whether to compare the result (or a part, by JMESPath) with the stored snapshot.",
    )


class Save(SuiteModel):
    """The source of a variable in an outcome."""

    of: str = Field(description="JMESPath into the outcome.")
    secret: bool = Field(False, description="Whether to redact it in reports and snapshots.")


SaveGiven: TypeAlias = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[Save, Tag("<mapping>")], Discriminator(_shape)
]


class SuiteStep(SuiteModel):
    """One action on the server, and its expected outcome."""

    call: str | None = Field(None, description="A tool to call, with its rounds and its task.")
    start: str | None = Field(None, description="A tool to call until the call is a task.")
    wait: str | None = Field(None, description="A started task (its `as`) to wait for.")
    cancel: str | None = Field(None, description="A started task (its `as`) to cancel.")
    prompt: str | None = Field(None, description="A prompt to fill in.")
    read: str | None = Field(None, description="The URI of a resource to read.")
    complete: str | None = Field(
        None, description="A prompt or URI template with an argument to complete."
    )
    list_: Literal["tools", "prompts", "resources", "templates"] | None = Field(
        None, alias="list", description="The kind of entries to list, with all pages."
    )
    request: str | None = Field(None, description="A method of the protocol to request as it is.")
    arguments: dict[str, Any] = Field({}, description="The arguments of a tool or a prompt.")
    params: dict[str, Any] = Field({}, description="The params of a `request`.")
    argument: str | None = Field(None, description="The argument that `complete` completes.")
    value: str = Field("", description="The typed beginning of that argument.")
    as_: str | None = Field(None, alias="as", description="A name for the started task.")
    until: Literal["working", "input_required", "completed", "failed", "cancelled"] | None = Field(
        None, description="The status to wait for, instead of the end; questions stay open."
    )
    answers: AnswersGiven = Field({}, description="Answers to the server's questions.")
    expect: Expect = Field(Expect(), description="The expected outcome.")
    save: dict[str, SaveGiven] = Field({}, description="Variables to save from the outcome.")
    timeout_s: float | None = Field(None, gt=0, description="Seconds that the step may take.")
    max_rounds: int | None = Field(None, ge=1, description="Rounds that the step may take.")

    @property
    def actions(self) -> list[str]:
        """The actions of the step, in the order of `ACTIONS`. A valid step has exactly one."""
        return [name for name in ACTIONS if self._target(name) is not None]

    @property
    def title(self) -> str:
        """The action and its target for reports, such as `call book`."""
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
"""The actions of a step, each with the fields that it accepts."""


class Case(SuiteStep):
    """One test case: a list of steps, or a single step written in the case itself."""

    name: str = Field(min_length=1, max_length=200, description="A name, unique within the suite.")
    tags: list[str] = Field([], description="Words that --filter searches, besides the name.")
    skip: str | None = Field(None, description="The reason for skipping the case.")
    steps: list[SuiteStep] = Field([], description="The steps, run in order until one fails.")


class Suite(SuiteModel):
    """A file of test cases."""

    name: str | None = Field(None, description="A name for reports; the file's name by default.")
    server: SuiteServer | None = Field(
        None, description="The server under test, unless --url or --serve."
    )
    variables: dict[str, Any] = Field({}, description="Variables with which each case begins.")
    answers: AnswersGiven = Field(
        {}, description="Answers for questions that a step does not answer."
    )
    timeout_s: float = Field(60.0, gt=0, description="Seconds that each step may take.")
    cases: list[Case] = Field(min_length=1, description="The cases, each with its own client.")


def schema_of_suites() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of suite files."""
    schema = Suite.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
