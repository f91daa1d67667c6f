"""Settings that are common to several kinds of back end, and the settings of views and search."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from roundgate.settings import ArgumentMode, CallLimits, Model, TaskMode, WithoutTasks

NOT_PLAIN: Final = re.compile(r"[^A-Za-z0-9_-]")
"""A character that several clients refuse in names of tools."""


class Selector(Model):
    """A selector of the tools that match all of its members. `*` stands for any text."""

    name: str | None = Field(None, description="Name of the tool, without prefix.")
    tag: str | None = Field(None, description="One of the tool's tags.")
    path: str | None = Field(None, description="Path template of its operation.")
    method: str | None = Field(None, description="HTTP method of its operation, in any case.")
    hint: Literal["read_only", "destructive", "idempotent", "open_world"] | None = Field(
        None,
        description="A hint that is true for the tool, as declared or by the protocol's default.",
    )
    extension: str | None = Field(
        None,
        description='An x- member of its description: "x-internal" (present and not false), or '
        '"x-team=ops".',
    )

    @model_validator(mode="after")
    def _means_something(self) -> Self:
        if not self.model_fields_set:
            *names, last = type(self).model_fields
            raise ValueError(f"give at least one of {', '.join(names)} and {last}")
        return self


class ArgumentOverride(Model):
    """A change of one argument of a tool."""

    name: str | None = Field(
        None, description="The argument's name for the model.", pattern=r"^[A-Za-z0-9_.-]{1,64}$"
    )
    description: str | None = Field(None, description="The argument's description for the model.")
    hidden: bool = Field(False, description="Whether the argument is hidden from the model.")
    fixed: Any = Field(None, description="The value that is always sent; the model cannot set it.")
    default: Any = Field(None, description="The value sent if the model omits the argument.")

    @model_validator(mode="after")
    def _is_one_thing(self) -> Self:
        members = self.model_fields_set
        if "fixed" in members and members & {"default", "name", "description"}:
            raise ValueError(
                "leave out default, name and description: the model does not see a fixed argument"
            )
        if self.hidden and members & {"name", "description"}:
            raise ValueError(
                "leave out name and description: the model does not see a hidden argument"
            )
        return self


class BackendLimits(CallLimits):
    """Limits on the calls of a back end or a tool, whoever makes them."""

    shared: bool = Field(
        False,
        description="Whether replicas count calls a minute together, in the store. Unset: each by itself.",
    )
    waiting: int = Field(
        100, description="Maximum number of waiting calls; further ones are a tool error.", ge=0
    )
    wait_s: float = Field(
        10, description="Seconds after which a waiting call is a tool error.", gt=0, le=3_600
    )

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        if self.concurrent is None and self.calls_per_minute is None:
            raise ValueError("give at least one of concurrent and calls_per_minute")
        if self.shared and self.calls_per_minute is None:
            raise ValueError("shared needs calls_per_minute")
        return self


class ToolOverride(Model):
    """A change of one tool, for every kind of back end."""

    name: str | None = Field(None, description="Another name.", pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    title: str | None = Field(None, description="Another name for people.")
    description: str | None = Field(
        None, description="Another description, for the model.", min_length=1
    )
    read_only: bool | None = Field(None, description="readOnlyHint.")
    destructive: bool | None = Field(None, description="destructiveHint.")
    idempotent: bool | None = Field(None, description="idempotentHint.")
    open_world: bool | None = Field(None, description="openWorldHint.")
    approve: Literal["never", "always"] | None = Field(
        None, description="Whether the user must approve each call."
    )
    approval: str | None = Field(
        None, description="The text above the arguments in the approval question.", max_length=1_000
    )
    ask_for: list[str] = Field(
        [], description="Arguments that a form asks the user for when they are missing."
    )
    task: TaskMode | None = Field(None, description="Whether its calls become tasks.")
    ask_in_words: bool | None = Field(None, description="As fallback.ask_in_words, for this tool.")
    without_tasks: WithoutTasks | None = Field(
        None, description="As fallback.without_tasks, for this tool."
    )
    argument_mode: ArgumentMode | None = Field(
        None, description="As arguments.mode, for this tool."
    )
    once: Literal[True] | None = Field(
        None, description="A round that is sent again does not run again."
    )
    scopes: list[str] | None = Field(
        None,
        description="Scopes that the caller's token must grant, instead of the tool's own scopes.",
    )
    timeout_s: float | None = Field(
        None, description="Seconds that a call may take.", gt=0, le=86_400
    )
    limits: BackendLimits | None = Field(
        None, description="Limits on its calls, within the limits of its back end."
    )
    arguments: dict[str, ArgumentOverride] = Field(
        {}, description="Changes of arguments, by their original names."
    )
    result: str | None = Field(
        None, description="A JMESPath expression that selects a part of a JSON result."
    )
    fields: list[str] = Field(
        [], description="Members to keep of a JSON result, or of each item of a list."
    )

    max_result: int | None = Field(
        None,
        description="Maximum number of characters of a result that the model gets at once.",
        ge=200,
        le=1_000_000,
    )

    @model_validator(mode="after")
    def _one_projection(self) -> Self:
        if self.result is not None and self.fields:
            raise ValueError("result and fields cannot be combined; choose one")
        return self


class NamesConfig(Model):
    """The names of a back end's tools."""

    dots: Literal["_", "-"] | None = Field(
        None,
        description="Replaces each character of the prefix and of tools' names that is not in A-Z a-z 0-9 _ -, because"
        " several clients refuse the others. null: names stay.",
    )

    def plain(self, name: str) -> str:
        """Return a name with the replacements."""
        return name if self.dots is None else NOT_PLAIN.sub(self.dots, name)


class BackendConfig(Model):
    """The settings that all kinds of back end have; each kind derives its own model."""

    kind: str = Field(description="The kind of back end.")
    name: str = Field(description="Unique name of the back end.", pattern=r"^[A-Za-z0-9_.-]{1,40}$")
    prefix: str | None = Field(
        None,
        description='Text before the names of tools and prompts, with "__". Unset: the name. Empty: none.',
        pattern=r"^[A-Za-z0-9_.-]{0,40}$",
    )

    names: NamesConfig = Field(NamesConfig(), description="The names of its tools.")
    approve: Literal["never", "destructive", "always"] = Field(
        "never",
        description="The tools that the user must approve; destructive: all without a hint that they are not.",
    )

    limits: BackendLimits | None = Field(None, description="Limits on all calls of its tools.")
    include: list[Selector] = Field([], description="The tools to serve. Unset: all.")
    exclude: list[Selector] = Field([], description="Tools not to serve, even if included.")
    override: dict[str, ToolOverride] = Field(
        {}, description="Changes of tools, by their names without prefix."
    )

    @property
    def effective_prefix(self) -> str:
        """The prefix of names, separator included; by default made from the back end's name."""
        prefix = self.name if self.prefix is None else self.prefix
        return self.names.plain(f"{prefix}__") if prefix else ""

    @property
    def named_claims(self) -> frozenset[str]:
        """The claims of callers that the settings name."""
        return frozenset()

    @property
    def packed_files(self) -> tuple[str, ...]:
        """The files and folders, relative to gateway.yaml, that a packaged function needs."""
        return ()

    @property
    def packed_modules(self) -> tuple[str, ...]:
        """The dotted names of the modules that the back end loads."""
        module, colon, _ = self.kind.partition(":")
        return (module,) if colon else ()


class SearchConfig(Model):
    """Three tools in place of a long list: search_tools, describe_tool and call_tool."""

    above: int = Field(
        0, description="Number of tools up to which all are listed, without search.", ge=0
    )
    pinned: list[str] = Field(
        [], description='Names of tools that are always listed; "*" stands for any text.'
    )
    results: int = Field(
        5, description="Number of tools that a search returns by default.", ge=1, le=20
    )


class ViewSelector(Selector):
    """A selector among all tools; `name` is the full name, with the prefix."""

    backend: str | None = Field(None, description="Name of its back end.")


class ViewConfig(Model):
    """A separate endpoint for a part of the tools, prompts and resources."""

    name: str = Field(
        description="Unique name of the view; tasks and calls belong to it.",
        pattern=r"^[A-Za-z0-9_-]{1,40}$",
    )
    path: str | None = Field(
        None,
        description="Path of its endpoint. Unset: /NAME/mcp. With http.path, it replaces that endpoint.",
        pattern=r"^/[A-Za-z0-9_./-]*[A-Za-z0-9_-]$",
    )
    instructions: str | None = Field(
        None, description="Guidance for models, instead of server.instructions."
    )
    scopes: list[str] = Field(
        [], description="Scopes that every call of the view needs, in addition to auth.scopes."
    )
    include: list[ViewSelector] = Field([], description="The tools of the view. Unset: all.")
    exclude: list[ViewSelector] = Field([], description="Tools not in the view, even if included.")
    override: dict[str, ToolOverride] = Field(
        {}, description="Changes of the view's tools, by their full names."
    )
    bare_names: bool = Field(
        False,
        description="Whether its tools have their names without the prefixes of their back ends, as pages of MCP"
        " servers call them.",
    )
    search: SearchConfig | None = Field(
        None, description="Search in place of the list of its tools."
    )
    prompts: list[str] = Field(
        [], description='Names of the view\'s prompts; "*" stands for any text. Unset: none.'
    )
    resources: list[str] = Field(
        [], description='URIs and templates of its resources; "*" stands for any text. Unset: none.'
    )

    @property
    def effective_path(self) -> str:
        """The endpoint's path; by default `/NAME/mcp`."""
        return f"/{self.name}/mcp" if self.path is None else self.path


JsonPointer: TypeAlias = Annotated[str, Field(pattern=r"^(/.*)?$")]
"""A JSON pointer (RFC 6901): "/job/id"; "" is the whole document."""


class JobConfig(Model):
    """The interpretation of a service's answers about a job that it has started."""

    variables: dict[str, JsonPointer] = Field(
        {"id": "/id"},
        description="Names for later requests, and their places in the answer of the start.",
    )
    every_s: float = Field(
        5, description="Seconds between two polls; no worker waits meanwhile.", ge=0.1, le=86_400
    )
    status: JsonPointer = Field(
        "/status", description="Place of the job's status in the answer of a poll."
    )
    succeeded: list[str] = Field(description="Statuses of a job that has succeeded.", min_length=1)
    failed: list[str] = Field(
        [], description="Statuses of a job that has failed, which is a tool error."
    )
    error: JsonPointer | None = Field(
        None, description="Place of the reason of a failure in the answer of a poll."
    )


NAME_PATTERN: Final = r"^[A-Za-z0-9_.-]{1,64}$"


class CallConfig(Model):
    """The settings of a declared tool's calls."""

    once: bool = Field(False, description="Whether a round that is sent again must not run again.")
    task: TaskMode = Field(
        "forbidden",
        description="Whether its calls become tasks: forbidden, optional (if the client can) or required.",
    )
    result: JsonPointer = Field(
        "",
        description='JSON Pointer (RFC 6901) to the part of a JSON answer that is the result; "" is all of it.',
    )


class DeclaredToolConfig(CallConfig):
    """A tool that gateway.yaml declares for a service or a function."""

    name: str = Field(description="Name of the tool.", pattern=NAME_PATTERN)
    title: str | None = Field(None, description="Name for people.")
    description: str = Field(
        description="The tool's purpose and when to use it, for the model.", min_length=1
    )
    output_schema: dict[str, Any] | None = Field(
        None, description="JSON Schema of the result, checked and advertised."
    )
    ask_for: list[str] = Field(
        [], description="Arguments that a form asks the user for when they are missing."
    )
    scopes: list[str] = Field(
        [], description="Scopes that the caller's token must grant to see and call it."
    )
    approval: str | None = Field(
        None,
        description="The text above the arguments in the approval question; {name} stands for an argument.",
        max_length=1_000,
    )
    read_only: bool | None = Field(None, description="readOnlyHint.")
    destructive: bool | None = Field(
        None, description="destructiveHint; unset, clients and `approve` treat it as true."
    )
    idempotent: bool | None = Field(None, description="idempotentHint.")

    def definition(
        self, input_schema: Mapping[str, Any], hints: Mapping[str, bool]
    ) -> dict[str, Any]:
        """Return the tool's definition (schema: `Tool`). `hints` are its annotations unless the
        settings say otherwise."""
        stated = {
            "readOnlyHint": self.read_only,
            "destructiveHint": self.destructive,
            "idempotentHint": self.idempotent,
        }
        definition = {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": input_schema,
            "outputSchema": self.output_schema,
            "annotations": {
                **hints,
                **{name: hint for name, hint in stated.items() if hint is not None},
            },
        }
        return {name: value for name, value in definition.items() if value is not None}
