"""The kinds of back end: one entry each, with its config model and what makes it.

`KINDS` has the gateway's own. A user's kind is a class, named by an entry point of the group
`roundgate.backends` or by `kind: module:Class` in gateway.yaml (`roundgate docs own-kinds`). How an entry
of `backends:` is read, its JSON Schema and the making of back ends follow from these. Importing
this module loads no kind: the model and the code of one are imported when a configuration has a
back end of that kind.
"""

from __future__ import annotations

import re
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Union

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError, PydanticKnownError, core_schema

from roundgate.backends.config import BackendConfig
from roundgate.backends.python.modules import prepend_path
from roundgate.errors import ConfigError, Problem
from roundgate.observability import place_of
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
    return attrgetter(name)(import_module(module))


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
            checker="roundgate.backends.http.backend:remarks",
        ),
        "openapi": Kind(
            "roundgate.backends.openapi.config:OpenApiBackendConfig",
            "roundgate.backends.openapi.backend:OpenApiBackend",
            "roundgate.backends.openapi.compiling:compile_to_file",
        ),
        "lambda": Kind(
            "roundgate.backends.aws_lambda.config:LambdaBackendConfig",
            "roundgate.backends.aws_lambda.backend:LambdaBackend",
            "roundgate.backends.aws_lambda.describing:compile_to_file",
        ),
    }
)
"""The gateway's own kinds, by name."""
GROUP: Final = "roundgate.backends"
"""The group of entry points that add kinds: the name is the kind, the value `module:Class`."""


def kind_names() -> Sequence[str]:
    """Return the names of all kinds: the gateway's own, then those of installed packages."""
    installed = entry_points(group=GROUP).names
    return [*KINDS, *sorted(installed - KINDS.keys())]


def kind_named(name: str) -> Kind:
    """Return the kind of that name, or the one that the class `module:Class` is.

    Raises:
        LookupError: there is no such kind. Otherwise as `own_kind`.
    """
    return KINDS.get(name) or own_kind(own_place(name))


def kind_of(config: BackendConfig) -> Kind:
    """Return the kind of a back end whose settings have been read."""
    return kind_named(config.kind)


def own_place(name: str) -> str:
    """Return `module:Class` of a user's kind, which is named so or by an entry point.

    Raises:
        LookupError: no entry point has this name.
    """
    if ":" in name:
        return name
    for entry in entry_points(group=GROUP, name=name):
        return entry.value
    raise LookupError(name)


def own_kind(place: str) -> Kind:
    """Return the kind that a class is; imports its module.

    The class has a model `Config` and is called as `roundgate.backends.base.MakeBackend` says. Its
    static methods `compile` and `remarks`, if there are any, are as in `Kind`.

    Raises:
        TypeError: the class is not a kind of back end. Exceptions of the module propagate.
    """
    made = _named(place)
    model = getattr(made, "Config", None)
    if not isinstance(model, type) or not issubclass(model, BackendConfig):
        raise TypeError("it needs a class attribute `Config`, derived from BackendConfig")
    if missing := [name for name in ("offer", "aclose") if not callable(getattr(made, name, None))]:
        raise TypeError(f"it has no method {missing[0]!r}, which a back end needs")
    return Kind(
        f"{place}.Config",
        place,
        compiler=f"{place}.compile" if hasattr(made, "compile") else None,
        checker=f"{place}.remarks" if hasattr(made, "remarks") else None,
    )


@contextmanager
def failures_told(config: BackendConfig, origin: Origin) -> Iterator[None]:
    """Report a failure of a user's kind as a problem of its entry, with the line of its code.

    Raises:
        ConfigError: the code of the kind raised anything else than a `ConfigError`, or exited.
    """
    try:
        yield
    except (ConfigError, KeyboardInterrupt, CancelledError, TimeoutError):
        raise
    except BaseException as error:
        if config.kind in KINDS:
            raise
        place = place_of(error)
        where = f" ({place})" if place else ""
        problem = origin.at("kind").problem(
            f"{config.kind} failed: {type(error).__name__}: {error}{where}",
            "correct the class: see `roundgate docs own-kinds`",
        )
        raise ConfigError([problem]) from error


class ByKind:
    """The annotation of an entry of `backends:`: the model of its kind reads it.

    pydantic's own union by `kind` would import all models before it reads the first entry, and
    could not be extended. The validation context may have `base_dir`, where modules of own kinds
    are searched for.
    """

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        def read(given: Any, info: core_schema.ValidationInfo) -> BackendConfig:
            return read_entry(given, (info.context or {}).get("base_dir"))

        return core_schema.with_info_plain_validator_function(read)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        models = tuple(kind.model() for kind in KINDS.values())
        entry: Any = Annotated[Union[models], Field(discriminator="kind")]  # noqa: UP007 - made from a table
        return {"anyOf": [handler(TypeAdapter(entry).core_schema), _own_kinds()]}


def _own_kinds() -> dict[str, Any]:
    """Return the JSON Schema of entries whose kind an editor cannot know."""
    installed = [name for name in kind_names() if name not in KINDS]
    return {
        "type": "object",
        "description": "A kind of your own: module:Class, or the name of an entry point.",
        "properties": {
            "kind": {
                "type": "string",
                "pattern": "|".join([":", *(f"^{re.escape(name)}$" for name in installed)]),
            },
            "name": {"type": "string"},
        },
        "required": ["kind", "name"],
    }


def read_entry(given: Any, base: Path | None = None) -> BackendConfig:
    """Return the settings in an entry of `backends:`.

    Args:
        given: the entry as it is in the file.
        base: the directory in which the modules of own kinds are found, besides `sys.path`.

    Raises:
        ValidationError, PydanticKnownError: the settings are wrong, or there is no such kind.
    """
    if isinstance(given, BackendConfig):
        return given
    if not isinstance(given, Mapping):
        raise PydanticKnownError("model_attributes_type")
    name = given.get("kind")
    if name is None:
        raise PydanticKnownError("union_tag_not_found", {"discriminator": "'kind'"})
    if isinstance(name, str) and name in KINDS:
        return KINDS[name].model().model_validate(given)
    try:
        place = own_place(str(name))
    except LookupError:
        names = ", ".join(repr(kind) for kind in kind_names())
        about = {"discriminator": "'kind'", "tag": str(name), "expected_tags": names}
        raise PydanticKnownError("union_tag_invalid", about) from None
    return _own_model(place, base).model_validate(given)


def _own_model(place: str, base: Path | None) -> type[BackendConfig]:
    """Return the model of a user's kind.

    Raises:
        ValidationError: says at `kind` why the class cannot be used.
    """
    if base is not None:
        prepend_path(base)
    try:
        return own_kind(place).model()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a script that exits would take the gateway with it
        reason = f"{place} is no kind of back end: {type(error).__name__}: {error}"
        wrong = PydanticCustomError("own_kind", "{reason}", {"reason": reason})
        detail = InitErrorDetails(type=wrong, loc=("kind",), input=place)
        raise ValidationError.from_exception_data("backend", [detail]) from error
