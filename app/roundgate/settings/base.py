"""What every part of gateway.yaml is made of: models that are frozen, and the places
that problems are found at.

Knows no section of the file; `roundgate.config` and the back ends' own models build on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

from roundgate.errors import Problem
from roundgate.settings.yaml_file import Located, dotted


class Model(BaseModel):
    """Base: frozen, and a misspelt setting is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, defer_build=True)


TaskMode: TypeAlias = Literal["forbidden", "optional", "required"]
"""Whether a tool's call becomes a task: never; if the client can; always, and a client
that cannot is refused."""

WithoutTasks: TypeAlias = Literal["none", "wait", "tools"]
"""What a client gets that knows no tasks, of a tool whose calls become some: an ordinary call or an
error; the result, for which its call waits; a handle, and tools that take it."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a part of the configuration came from; makes the problems found in it."""

    located: Located
    loc: tuple[str | int, ...] = ()

    @property
    def base_dir(self) -> Path:
        """The directory of the file: what relative paths in it start from."""
        return self.located.file.resolve().parent

    def at(self, *steps: str | int) -> Origin:
        """A part of this part."""
        return Origin(self.located, (*self.loc, *steps))

    def problem(self, message: str, remedy: str) -> Problem:
        """Something wrong here.

        Args:
            message: what is wrong, as the rest of a sentence about this place.
            remedy: what to do about it.
        """
        return Problem(
            str(self.located.file),
            dotted(self.loc) or "(file)",
            message,
            remedy,
            self.located.line(self.loc),
        )
