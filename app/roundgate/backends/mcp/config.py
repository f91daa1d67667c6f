"""Settings of the kind `mcp`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field, model_validator

from roundgate.backends.config import JobConfig
from roundgate.backends.http.config import BaseUrl, RemoteConfig
from roundgate.client.flows import LEGACY, VERSIONS
from roundgate.protocol.uri_template import has_dot_segments, normalized_uri, readings_of
from roundgate.settings import Model, Secret, TaskMode

Argument: TypeAlias = Annotated[str, Field(pattern=r"^[^\x00]*$")]
Variable: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
ServerRevision: TypeAlias = Literal[
    "2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"
]
_SETTINGS_OF: Final[Mapping[str, Sequence[str]]] = {
    "url": ("headers", "credential", "tls", "timeouts", "max_connections", "keep_alive_s"),
    "command": ("env", "cwd"),
}
"""The settings that apply only to a server with a url, or with a command."""


class JobToolConfig(Model):
    """A call of another tool of the server for a job."""

    tool: str = Field(description="The name of the tool at the server.", min_length=1)
    arguments: dict[str, Any] = Field(
        description='The arguments, such as {"build": "{id}"}; {name} stands for a variable or an argument.'
    )


class McpJobConfig(JobConfig):
    """A job that a tool starts and other tools of the server follow."""

    task: TaskMode = Field("optional", description="Whether a call becomes a task.")
    poll: JobToolConfig = Field(description="The call that returns the state of the job.")
    fetch: JobToolConfig | None = Field(
        None,
        description="The call that returns the result. Unset: the last poll's answer is the result.",
    )
    cancel: JobToolConfig | None = Field(
        None,
        description="The call that ends the job if the task is cancelled or exceeds its time limit. Unset: the job"
        " continues.",
    )

    @property
    def requests(self) -> Mapping[str, JobToolConfig]:
        """The calls that follow the start, by their setting."""
        calls = {"poll": self.poll, "fetch": self.fetch, "cancel": self.cancel}
        return {part: call for part, call in calls.items() if call is not None}


class PartConfig(Model):
    """The selection of a server's prompts or resources."""

    include: list[str] = Field(
        ["*"], description='Names of prompts, or URIs and templates; "*" stands for any text.'
    )
    exclude: list[str] = Field([], description="Exceptions from `include`.")
    scopes: list[str] = Field([], description="Scopes that the caller's token must grant.")

    def has(self, name: str) -> bool:
        """Return whether a prompt, URI or template is selected."""
        return any(fnmatchcase(name, each) for each in self.include) and not self.excludes(name)

    def excludes(self, name: str) -> bool:
        """Return whether a prompt, URI or template must not be served, even if unlisted. A server
        may decode and normalize a URI, so no other spelling of it leads past `exclude`."""
        if not self.exclude:
            return False
        texts = readings_of(name)
        patterns = {*self.exclude, *map(normalized_uri, self.exclude)}
        is_named = any(fnmatchcase(text, each) for text in texts for each in patterns)
        return is_named or has_dot_segments(name)


class McpBackendConfig(RemoteConfig):
    """An MCP server, whose tools, prompts and resources the gateway serves unchanged."""

    kind: Literal["mcp"]
    url: BaseUrl | None = Field(
        None,
        description="The server's endpoint (Streamable HTTP); requests never leave its origin.",
    )
    command: list[Argument] = Field(
        [],
        description="Program and arguments of a server that speaks on its standard streams; one process for the"
        " gateway.",
    )
    env: dict[Variable, Secret] = Field(
        {},
        description="Variables of the process, besides PATH, HOME and a few others of the gateway's environment.",
    )
    cwd: str | None = Field(
        None,
        description="Working directory of the process, relative to gateway.yaml. Unset: the directory of gateway.yaml.",
    )
    revision: ServerRevision | Annotated[list[ServerRevision], Field(min_length=1)] = Field(
        list(VERSIONS),
        description="The revision that the gateway speaks with the server, or a list; the newest that the server has.",
    )
    timeout_s: float = Field(
        60,
        description="Seconds within which the server must send an answer or progress.",
        gt=0,
    )
    max_response_bytes: int = Field(
        10_000_000,
        description="The maximum size of a message; a larger message is a tool error.",
        ge=1_000,
    )
    max_tools: int = Field(
        2_000,
        description="Entries that each list of the server may have; a longer list is not served.",
        ge=1,
    )
    prompts: PartConfig = Field(PartConfig(), description="The prompts that are served.")
    resources: PartConfig = Field(
        PartConfig(),
        description="The resources and templates that are served, by the server's own URIs.",
    )
    uris: Literal["kept", "named"] = Field(
        "kept",
        description="Whether URIs of resources are the server's, or have the back end's name in front.",
    )
    refresh_s: float = Field(
        300,
        description="Seconds after which lists are read again, unless the server declares their time to live.",
        ge=5,
        le=86_400,
    )
    check_arguments: bool = Field(
        True, description="Whether arguments are checked against the tool's schema before a call."
    )

    questions: bool | None = Field(
        None,
        description="Whether a server before 2026-07-28 may ask the user. Each caller then has sessions or processes of"
        " its own; otherwise all callers share one. Unset: a server with a url may.",
    )
    max_held_calls: int = Field(
        100,
        description="The maximum number of such calls whose streams one process holds open for users; each caller has"
        " a fifth.",
        ge=1,
    )
    held_s: float = Field(
        600,
        description="Seconds for which such a call waits for answers in total.",
        gt=0,
        le=86_400,
    )
    jobs: dict[str, McpJobConfig] = Field(
        {},
        description="Jobs, by the name of the tool that starts them; other tools of the server follow them.",
    )

    changes: Literal["take", "announce", "quarantine"] = Field(
        "take",
        description="The treatment of a tool, prompt, template, skill or page that differs from the lock file.",
    )
    lock: str | None = Field(
        None,
        description="The file that `roundgate compile` writes, relative to gateway.yaml. Unset: NAME.lock.",
    )
    dynamic_pages: list[str] = Field(
        [],
        description='Pages that the server makes anew for each read, such as "ui://report/*"; they are not compared'
        " with the lock file.",
    )

    @property
    def versions(self) -> Sequence[str]:
        """The revisions that the gateway may speak with the server, newest first."""
        return [version for version in VERSIONS if version in self.revision]

    @property
    def older_versions(self) -> Sequence[str]:
        """The revisions with sessions among `versions`."""
        return [version for version in LEGACY if version in self.revision]

    @property
    def lock_file(self) -> str:
        """The path of the lock file, relative to gateway.yaml."""
        return self.lock or f"{self.name}.lock"

    def pins_page(self, uri: str) -> bool:
        """Return whether a page, by the server's URI, is served and compared with the lock file."""
        is_dynamic = any(fnmatchcase(uri, each) for each in self.dynamic_pages)
        return not is_dynamic and not self.resources.excludes(uri)

    @property
    def packed_files(self) -> tuple[str, ...]:
        """The lock file, if definitions are compared with it."""
        return () if self.changes == "take" else (self.lock_file,)

    @model_validator(mode="after")
    def _is_somewhere(self) -> McpBackendConfig:
        if (self.url is None) == (not self.command):
            raise ValueError("set either url or command")
        used = self.model_fields_set
        own, other = ("command", "url") if self.url is None else ("url", "command")
        if foreign := [name for name in _SETTINGS_OF[other] if name in used]:
            raise ValueError(
                f"{', '.join(foreign)}: only for a server with a {other}; remove it, or replace {own} by {other}"
            )
        if "idempotency_key" in used:
            raise ValueError("idempotency_key: MCP has no such header; remove the setting")
        if self.tls is not None and not str(self.url).startswith("https:"):
            raise ValueError("tls needs a url with https")
        return self
