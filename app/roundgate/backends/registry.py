"""The kinds of back end: their names, models and code, and the reading of an entry of `backends:`.

`KINDS` holds the gateway's own kinds. A user's kind is a class, named by an entry point of the
group `roundgate.backends` or by `kind: module:Class` in gateway.yaml (`roundgate docs own-kinds`).
Importing this module loads no kind: model and code are imported when a configuration has a back end
of that kind.
"""

from __future__ import annotations

import re
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import entry_points
from operator import attrgetter
from types import MappingProxyType
from typing import Annotated, Any, Final, Union

from msgspec import Struct
from pydantic import Field, TypeAdapter, ValidationError

from roundgate.backends.config import BackendConfig
from roundgate.backends.modules import prepend_path
from roundgate.errors import ConfigError
from roundgate.observability import place_of
from roundgate.settings import Origin


class BackendKind(Struct, frozen=True):
    """A kind of back end. Its parts are given as `module:name`, and imported on demand; a module
    that begins with a dot is of `roundgate.backends`."""

    config: str
    """The model of the settings. Its member `kind` is a literal with the name of the kind."""
    code: str
    """The function or class that makes a back end (`roundgate.backends.base.MakeBackend`)."""
    compiler: str | None = None
    """The function that `roundgate compile` runs for each back end of the kind. It gets the settings
    and their place, and returns a line for the user."""
    checker: str | None = None
    """The function that `roundgate check` runs for each back end of the kind. It gets the settings,
    their place, and the fetched documents by URL, and returns problems that do not prevent serving."""
    pinner: str | None = None
    """The function, like `compiler`, that accepts a service's current definitions. Only `roundgate
    compile` runs it, not `roundgate package`."""

    def model(self) -> type[BackendConfig]:
        model: type[BackendConfig] = imported(self.config)
        return model

    def factory(self) -> Callable[..., Any]:
        factory: Callable[..., Any] = imported(self.code)
        return factory


def imported(place: str) -> Any:
    """Import a module, and return the part of it that a place `module:name` names."""
    module, _, name = place.partition(":")
    return attrgetter(name)(import_module(module, "roundgate.backends"))


KINDS: Final[Mapping[str, BackendKind]] = MappingProxyType(
    {
        "python": BackendKind(
            ".python.backend:PythonBackendConfig",
            ".python.backend:PythonBackend",
            checker=".python.remarks:remarks",
        ),
        "http": BackendKind(
            ".http.config:HttpBackendConfig",
            ".http.backend:HttpBackend",
            checker=".http.backend:remarks",
        ),
        "openapi": BackendKind(
            ".openapi.config:OpenApiBackendConfig",
            ".openapi.backend:OpenApiBackend",
            ".openapi.compiling:compile_to_file",
        ),
        "mcp": BackendKind(
            ".mcp.config:McpBackendConfig",
            ".mcp.backend:McpBackend",
            pinner=".mcp.backend:pin_to_file",
        ),
        "skills": BackendKind(
            ".skills.config:SkillsBackendConfig", ".skills.backend:SkillsBackend"
        ),
        "lambda": BackendKind(
            ".aws_lambda.config:LambdaBackendConfig",
            ".aws_lambda.backend:LambdaBackend",
            ".aws_lambda.backend:compile_to_file",
        ),
    }
)
"""The gateway's own kinds, by name."""
GROUP: Final = "roundgate.backends"
"""The group of entry points that add kinds. An entry's name is the kind, its value is
`module:Class`."""


def kind_names() -> Sequence[str]:
    """Return the names of all kinds: the gateway's own kinds, then the kinds of installed
    packages."""
    installed = entry_points(group=GROUP).names
    return [*KINDS, *sorted(installed - KINDS.keys())]


def kind_of(config: BackendConfig) -> BackendKind:
    return KINDS.get(config.kind) or _own_kind(_own_place(config.kind))


def _own_place(name: str) -> str:
    """Return `module:Class` of a user's kind. `name` is that text, or the name of an entry point.

    Raises:
        LookupError: no entry point has this name.
    """
    if ":" in name:
        return name
    for entry in entry_points(group=GROUP, name=name):
        return entry.value
    raise LookupError(name)


def _own_kind(place: str) -> BackendKind:
    """Return the kind that a class defines by its model `Config` and the optional static methods
    `compile` and `remarks`.

    Raises:
        TypeError: the class is not a kind of back end. Exceptions of its module propagate.
    """
    kind = imported(place)
    model = getattr(kind, "Config", None)
    if not isinstance(model, type) or not issubclass(model, BackendConfig):
        raise TypeError("the class needs an attribute `Config`, derived from BackendConfig")
    if missing := [name for name in ("offer", "aclose") if not callable(getattr(kind, name, None))]:
        raise TypeError(f"the class has no method {missing[0]!r}, which a back end needs")
    compiler = f"{place}.compile" if hasattr(kind, "compile") else None
    checker = f"{place}.remarks" if hasattr(kind, "remarks") else None
    return BackendKind(f"{place}.Config", place, compiler, checker)


@contextmanager
def report_failures(config: BackendConfig, origin: Origin) -> Iterator[None]:
    """Report an exception of a user's kind as a problem of its entry, with the line of its code.

    Raises:
        ConfigError: the kind's code failed or exited. Exceptions of the gateway's own kinds,
            KeyboardInterrupt, CancelledError and TimeoutError propagate.
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


def read_entry(entry: Any, origin: Origin) -> BackendConfig:
    """Return the settings in an entry of `backends:`.

    Args:
        origin: the place of the entry. Modules of users' kinds may lie beside the file.

    Raises:
        ConfigError: the settings are invalid, or the kind does not exist.
    """
    if not isinstance(entry, Mapping):
        remedy = "write a mapping: `kind: …`, `name: …`, each on a line of its own, indented"
        raise ConfigError([origin.problem("is not a mapping", remedy)])
    if isinstance(name := entry.get("kind"), str) and name in KINDS:
        model = KINDS[name].model()
    else:
        model = _own_model(name, origin)
    try:
        return model.model_validate(entry)
    except ValidationError as error:
        from roundgate.settings.problems import problems_of

        raise ConfigError(problems_of(error, model, origin)) from None


def _own_model(name: Any, origin: Origin) -> type[BackendConfig]:
    """Return the model of a user's kind.

    Raises:
        ConfigError: the kind does not exist, or its class cannot be used.
    """
    names = kind_names()
    if name is None:
        remedy = "add " + " or ".join(f"kind: {kind}" for kind in names)
        raise ConfigError([origin.problem("has no kind", remedy)])
    try:
        place = _own_place(str(name))
    except LookupError:
        from difflib import get_close_matches

        near = get_close_matches(str(name).lower(), names, 1)
        remedy = "use one of these kinds" + (f"; did you mean {near[0]}?" if near else "")
        message = f"there is no kind {name!r}; the kinds are {', '.join(map(repr, names))}"
        raise ConfigError([origin.problem(message, remedy)]) from None
    prepend_path(origin.base_dir)
    try:
        return _own_kind(place).model()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: a script that exits must not end the gateway
        message = f"{place} is not a kind of back end: {type(error).__name__}: {error}"
        remedy = (
            "correct the module, the class or `kind: module:Class`: see `roundgate docs own-kinds`"
        )
        raise ConfigError([origin.at("kind").problem(message, remedy)]) from error


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of an entry of `backends:`, with the models of all kinds."""
    models = tuple(kind.model() for kind in KINDS.values())
    entry: Any = Annotated[Union[models], Field(discriminator="kind")]  # noqa: UP007 - made from a table
    schema = TypeAdapter(entry).json_schema(by_alias=True)
    definitions = schema.pop("$defs")
    installed = [f"^{re.escape(name)}$" for name in kind_names() if name not in KINDS]
    own = {
        "type": "object",
        "description": "A kind of your own: module:Class, or the name of an entry point.",
        "properties": {
            "kind": {"type": "string", "pattern": "|".join([":", *installed])},
            "name": {"type": "string"},
        },
        "required": ["kind", "name"],
    }
    return {"$defs": definitions, "anyOf": [schema, own]}
