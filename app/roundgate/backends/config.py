"""What can be set of back ends of several kinds."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from roundgate.config import Model


class BackendConfig(Model):
    """What all kinds of back end have."""

    name: str = Field(description="Unique name of the back end.", pattern=r"^[A-Za-z0-9_.-]{1,40}$")
    prefix: str | None = Field(
        None,
        description='Stands before the names of its tools and prompts, joined by "__". Unset: its name. Empty: none.',
        pattern=r"^[A-Za-z0-9_.-]{0,40}$",
    )

    approve: Literal["never", "destructive", "always"] = Field(
        "never",
        description="Which of its tools ask the user for confirmation, showing the arguments, before they run:"
        " destructive are all that neither say readOnlyHint: true nor destructiveHint: false.",
    )

    @property
    def effective_prefix(self) -> str:
        """The prefix with its separator."""
        prefix = self.name if self.prefix is None else self.prefix
        return f"{prefix}__" if prefix else ""


JsonPointer: TypeAlias = Annotated[str, Field(pattern=r"^(/.*)?$")]
"""RFC 6901: "/job/id"; "" is the whole."""


class JobConfig(Model):
    """What a service's answers say of a job that it has started, whatever carries them."""

    variables: dict[str, JsonPointer] = Field(
        {"id": "/id"}, description="What names the job in later requests, and where the answer of the start has it."
    )
    every_s: float = Field(5, description="Seconds between two polls; no worker waits meanwhile.", ge=0.1, le=86_400)
    status: JsonPointer = Field("/status", description="Where the answer of a poll has the job's status.")
    succeeded: list[str] = Field(description="Statuses of a job that is over and went well.", min_length=1)
    failed: list[str] = Field([], description="Statuses of a job that is over and did not; a tool error.")
    error: JsonPointer | None = Field(None, description="Where the answer of a poll has the reason of a failure.")
