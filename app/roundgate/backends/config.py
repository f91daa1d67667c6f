"""What can be set of every back end, whatever its kind."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from roundgate.config_base import Model


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
