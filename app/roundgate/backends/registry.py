"""The kinds of back end: one entry each, with its config model and what makes it.

Another kind is another module (or package) and another entry here. How an entry of
`backends:` in gateway.yaml is read, its JSON Schema and the making of back ends follow from
this table. Importing it loads no kind: the model and the code of one are imported when a
configuration has a back end of that kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Annotated, Any, Final, Union

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter
from pydantic_core import PydanticKnownError, core_schema

from roundgate.backends.config import BackendConfig
from roundgate.errors import Problem
from roundgate.settings import Origin


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of back end."""

    config: str
    """`module:class`, the model of its settings (`roundgate.backends.config.BackendConfig`); its
    member `kind` is a literal with the name of the kind."""
    code: str
    """`module:callable`, what makes a back end of its settings
    (`roundgate.backends.base.MakeBackend`)."""

    compiler: str | None = None
    """`module:callable`, what `roundgate compile` runs for each back end of the kind: with its
    settings and where they stand; it returns what to tell."""

    checker: str | None = None
    """`module:callable`, what `roundgate check` asks of each back end of the kind besides loading
    it: called as the compiler is, and with what has been fetched by URL, it returns remarks, which
    are problems that keep nothing from being served."""

    def model(self) -> type[BackendConfig]:
        """The model of its settings; imports it."""
        found: type[BackendConfig] = _named(self.config)
        return found

    def compile_with(self) -> Callable[[Any, Origin], str] | None:
        """What compiles back ends of this kind, if something has to; imports its code."""
        found: Callable[[Any, Origin], str] | None
        found = None if self.compiler is None else _named(self.compiler)
        return found

    def check_with(self) -> Callable[[Any, Origin, dict[str, bytes]], Sequence[Problem]] | None:
        """What has remarks on back ends of this kind, if something has; imports its code."""
        found: Callable[[Any, Origin, dict[str, bytes]], Sequence[Problem]] | None
        found = None if self.checker is None else _named(self.checker)
        return found

    def factory(self) -> Callable[..., Any]:
        """What makes back ends of this kind; imports its code."""
        found: Callable[..., Any] = _named(self.code)
        return found


def _named(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "python": Kind(
            "roundgate.backends.python.config:PythonBackendConfig",
            "roundgate.backends.python.backend:PythonBackend",
            checker="roundgate.backends.python.remarks:remarks",
        ),
        "http": Kind(
            "roundgate.backends.http.config:HttpBackendConfig",
            "roundgate.backends.http.backend:HttpBackend",
            checker="roundgate.backends.http.declared:remarks",
        ),
        "openapi": Kind(
            "roundgate.backends.openapi.config:OpenApiBackendConfig",
            "roundgate.backends.openapi.backend:OpenApiBackend",
            "roundgate.backends.openapi.command:compile_to_file",
            "roundgate.backends.openapi.command:remarks",
        ),
        "lambda": Kind(
            "roundgate.backends.aws_lambda.config:LambdaBackendConfig",
            "roundgate.backends.aws_lambda.backend:LambdaBackend",
            "roundgate.backends.aws_lambda.describing:compile_to_file",
        ),
    }
)
"""By what `kind:` says."""


def kind_of(config: BackendConfig) -> Kind:
    """The entry that a back end's settings belong to."""
    name: str = config.kind  # type: ignore[attr-defined]
    return KINDS[name]


class ByKind:
    """The annotation of an entry of `backends:`: it is read by the model that
    its `kind` has in the table.

    pydantic's own union by `kind` would have to have all models before it reads the first entry.
    """

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(read_entry)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        models = tuple(kind.model() for kind in KINDS.values())
        entry: Any = Annotated[Union[models], Field(discriminator="kind")]  # noqa: UP007 - made from a table
        return handler(TypeAdapter(entry).core_schema)


def read_entry(given: Any) -> BackendConfig:
    """The settings in an entry of `backends:`.

    Raises:
        ValidationError, PydanticKnownError: they are wrong, or there is no such kind;
            the words are pydantic's.
    """
    if isinstance(given, BackendConfig):
        return given
    if not isinstance(given, Mapping):
        raise PydanticKnownError("model_attributes_type")
    name, names = given.get("kind"), ", ".join(repr(kind) for kind in KINDS)
    if name is None:
        raise PydanticKnownError("union_tag_not_found", {"discriminator": "'kind'"})
    if not isinstance(name, str) or name not in KINDS:
        about = {"discriminator": "'kind'", "tag": str(name), "expected_tags": names}
        raise PydanticKnownError("union_tag_invalid", about)
    return KINDS[name].model().model_validate(given)
