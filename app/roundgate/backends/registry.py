"""The kinds of back end: one entry each, with its config model and what makes it.

Another kind is another module (or package) and another entry here. The union of `backends:` in gateway.yaml, its JSON
Schema and the making of back ends follow from this table. Importing it loads the models alone: the code of a kind is
imported when a configuration has a back end of that kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Annotated, Any, Final, Union

from pydantic import Field

from roundgate.backends.config import BackendConfig
from roundgate.backends.http.config import HttpBackendConfig
from roundgate.backends.openapi.config import OpenApiBackendConfig
from roundgate.backends.python.config import PythonBackendConfig
from roundgate.config import Origin


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of back end."""

    config: type[BackendConfig]
    """Its settings; the member `kind` is a literal with its name."""
    code: str
    """`module:callable`, what makes a back end of its settings (`roundgate.backends.base.MakeBackend`)."""

    compiler: str | None = None
    """`module:callable`, what `roundgate compile` runs for each back end of the kind: with its settings and where they
    stand; it returns what to tell."""

    def compile_with(self) -> Callable[[Any, Origin], str] | None:
        """What compiles back ends of this kind, if something has to; imports its code."""
        return None if self.compiler is None else _named(self.compiler)

    def factory(self) -> Callable[..., Any]:
        """What makes back ends of this kind; imports its code."""
        return _named(self.code)


def _named(place: str) -> Callable[..., Any]:
    module, _, name = place.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found


KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "python": Kind(PythonBackendConfig, "roundgate.backends.python.backend:PythonBackend"),
        "http": Kind(HttpBackendConfig, "roundgate.backends.http.backend:HttpBackend"),
        "openapi": Kind(
            OpenApiBackendConfig,
            "roundgate.backends.openapi.backend:OpenApiBackend",
            "roundgate.backends.openapi.command:compile_to_file",
        ),
    }
)
"""By what `kind:` says."""


def kind_of(config: BackendConfig) -> Kind:
    """The entry that a back end's settings belong to."""
    return next(kind for kind in KINDS.values() if type(config) is kind.config)


def any_config() -> Any:
    """The type of an entry of `backends:`, which is one of the models in the table, by its `kind`."""
    models = tuple(kind.config for kind in KINDS.values())
    return Annotated[Union[models], Field(discriminator="kind")]  # noqa: UP007 - made from a table
