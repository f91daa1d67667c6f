"""Settings of the kind `skills`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from roundgate.backends.config import BackendConfig


class SkillsBackendConfig(BackendConfig):
    """A folder of skills, which the gateway serves as resources."""

    kind: Literal["skills"]
    path: str = Field(
        description="Folder of skills, relative to gateway.yaml: each folder in it with a SKILL.md is a skill.",
        min_length=1,
    )

    @property
    def packed_files(self) -> tuple[str, ...]:
        return (self.path,)
