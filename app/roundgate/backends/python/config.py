"""What can be set of a back end of the kind python."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from roundgate.backends.config import BackendConfig


class PythonBackendConfig(BackendConfig):
    """A module whose functions wear @tool, @prompt and @resource."""

    kind: Literal["python"]
    path: str | None = Field(None, description="Python file, relative to gateway.yaml.")
    module: str | None = Field(
        None, description="Dotted name of an importable module, instead of path."
    )

    @property
    def module_name(self) -> str:
        """Under which name it is in `sys.modules`."""
        return self.module or f"roundgate_backend_{self.name}"

    @property
    def packed_files(self) -> tuple[str, ...]:
        """Its file."""
        return () if self.path is None else (self.path,)

    @property
    def packed_modules(self) -> tuple[str, ...]:
        """Its module."""
        return () if self.module is None else (self.module,)

    @model_validator(mode="after")
    def _one_source(self) -> PythonBackendConfig:
        if (self.path is None) == (self.module is None):
            raise ValueError("give either path (a file) or module (a dotted name)")
        return self
