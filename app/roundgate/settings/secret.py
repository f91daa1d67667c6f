"""Secrets in a configuration: text that stands there, or references to where it is kept,
which are read when needed.

    ${secret:NAME}   ${secret:NAME#KEY}   a secret of AWS Secrets Manager; KEY is a member of its JSON object
    ${ssm:NAME}      ${ssm:NAME#KEY}      a parameter of AWS Systems Manager, decrypted
    ${file:PATH}                          a file

A `Secret` does not hold what is read: `roundgate.backends.secret_reading` does, and reads it
again when it has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import PydanticCustomError, core_schema

from roundgate.errors import Problem

Kept: TypeAlias = Literal["secret", "ssm", "file"]
"""AWS Secrets Manager, AWS Systems Manager Parameter Store, the file system."""

HIDDEN: Final = "**********"


@dataclass(frozen=True, slots=True)
class Reference:
    """Where a text is kept."""

    kept: Kept
    name: str
    """Name or ARN; of a file its path."""
    key: str | None = None
    """The member of the JSON object that the text is."""

    def __str__(self) -> str:
        return f"{self.kept}:{self.name}{'' if self.key is None else f'#{self.key}'}"


Parts: TypeAlias = tuple[str | Reference, ...]
"""Texts and references, in the order in which they make a value."""


@dataclass(frozen=True, slots=True)
class Deferred:
    """A string of a configuration file with references that are not read yet; fits
    into a `Secret` alone."""

    parts: Parts = field(repr=False)
    problem: Problem | None = field(default=None, repr=False)
    """What kept it from being read: the file is not there. A back end whose `Secret` it is has the
    same problem later, and the others are served."""


class FromFiles(str):
    """A string of a configuration file with the contents of files in it; a
    `Secret` reads them again."""

    __slots__ = ("parts",)
    parts: Parts

    @classmethod
    def of(cls, text: str, parts: Parts) -> FromFiles:
        """The string, and what it was made of."""
        made = cls(text)
        made.parts = parts
        return made


def _any_text(_: str) -> None:
    """What a secret may be, unless something else is said."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A setting that nobody but a service may read."""

    parts: Parts = field(repr=False)
    check: Callable[[str], None] = field(default=_any_text, repr=False, compare=False)
    """Raises ValueError for a text that cannot be used."""
    first: str | None = field(default=None, repr=False, compare=False)
    """What files held when the configuration was read, until that is checked."""

    @property
    def text(self) -> str | None:
        """The text, if all of it stands in the configuration."""
        if self.references:
            return None
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def references(self) -> tuple[Reference, ...]:
        """What has to be read for it."""
        return tuple(part for part in self.parts if isinstance(part, Reference))

    def __str__(self) -> str:
        return HIDDEN

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            _read, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"type": "string", "format": "password", "writeOnly": True}


def _read(given: Any) -> Secret:
    match given:
        case Secret():
            return given
        case Deferred(parts=parts):
            return Secret(parts)
        case FromFiles(parts=parts):
            return Secret(parts, first=str(given))
        case str():
            return Secret((given,))
    raise PydanticCustomError("string_type", "Input should be a valid string")


def checked(check: Callable[[str], None]) -> Callable[[Secret], Secret]:
    """For `pydantic.AfterValidator`: a text of the configuration is checked there,
    another when it is read."""

    def fit(secret: Secret) -> Secret:
        known = secret.text if secret.first is None else secret.first
        if known is not None:
            check(known)
        return replace(secret, check=check, first=None)

    return fit


def of_file(path: Path) -> Reference:
    """The reference to a file."""
    return Reference("file", str(path))


def found_in(
    value: Any, loc: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], Secret | Deferred]]:
    """Each secret in a part of the configuration, and each reference that no secret has
    taken, with its place."""
    for place, one in settings_of(value, loc):
        if isinstance(one, Secret | Deferred):
            yield place, one


def settings_of(
    value: Any, loc: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield each setting in a part of the configuration that has no parts of its own, with its
    place."""
    match value:
        case BaseModel():
            for name, about in type(value).model_fields.items():
                yield from settings_of(getattr(value, name), (*loc, about.alias or name))
        case dict():
            for name, item in value.items():
                yield from settings_of(item, (*loc, name))
        case list() | tuple():
            for index, item in enumerate(value):
                yield from settings_of(item, (*loc, index))
        case _:
            yield loc, value
