"""gateway.yaml as a whole: its root model, and the validation of a file into settings or problems.

file ──▶ plain values ──▶ `${…}` filled in ──▶ sections: `GatewayConfig` ──▶ ConfigFile, or every
problem
                                          └──▶ entries of `backends`: the models of their kinds
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from msgspec import Struct
from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

from roundgate import settings
from roundgate.backends import BackendConfig, SearchConfig, ViewConfig, registry
from roundgate.errors import ConfigError, Problem
from roundgate.policy.config import RuleConfig
from roundgate.settings import yaml_file
from roundgate.settings.references import Resolver, misplaced, misplaced_caller, own_name
from roundgate.settings.yaml_file import Loc

_PROBES: Final = frozenset({"/healthz", "/readyz"})
_METRICS: Final = "/metrics"
_DOCS: Final = "/docs"
_WELL_KNOWN: Final = "/.well-known/"
_EVENTS: Final = "/events/"
_ABOUT_BACK_ENDS: Final = frozenset({"views", "search", "fallback"})
_ENTRY: Final = re.compile(r"backends\[(\d+)\]")


def _kind_of_auth(value: Any) -> str:
    """Return the tag of a section `auth`. The tag is in angle brackets, so problems omit it from
    their location."""
    match value:
        case settings.AuthorizerConfig() | {"authorizer": _}:
            return "<authorizer>"
        case settings.CallersConfig() | Mapping():
            return "<jwt>"
    return "<none>"


class GatewayConfig(settings.Model):
    """The whole file. The entries of `backends` stay raw, because the registry reads them."""

    server: settings.ServerConfig = Field(
        settings.ServerConfig.model_construct(), description="The gateway's description of itself."
    )
    http: settings.HttpConfig = Field(
        settings.HttpConfig.model_construct(), description="The HTTP edge."
    )
    limits: settings.LimitsConfig = Field(
        settings.LimitsConfig.model_construct(), description="Bounds on work."
    )
    rate: settings.RateConfig = Field(
        settings.RateConfig.model_construct(), description="Limits on the calls of each caller."
    )
    auth: Annotated[
        Annotated[Literal["none"], Tag("<none>")]
        | Annotated[settings.JwtAuthConfig, Tag("<jwt>")]
        | Annotated[settings.AuthorizerConfig, Tag("<authorizer>")],
        Discriminator(_kind_of_auth),
    ] = Field(
        "none",
        description='Who may call: "none" (one local subject, for loopback addresses), bearer JWTs, or callers that an'
        " authorizer in front has verified.",
    )
    policy: list[RuleConfig] | None = Field(
        None,
        description="Rules about calls of tools: the first that matches decides. Unset: calls need no rule.",
    )
    state: settings.StateConfig = Field(
        settings.StateConfig.model_construct(),
        description="The state of a call between its rounds.",
    )
    sessions: settings.SessionsConfig = Field(
        settings.SessionsConfig.model_construct(),
        description="Clients that speak a revision before 2026-07-28.",
    )
    fallback: settings.FallbackConfig = Field(
        settings.FallbackConfig.model_construct(),
        description="Substitutes for clients that do not support questions or tasks.",
    )
    arguments: settings.ArgumentsConfig = Field(
        settings.ArgumentsConfig.model_construct(),
        description="How arguments that models write are read.",
    )
    tasks: settings.TasksConfig = Field(
        settings.TasksConfig.model_construct(), description="Calls that outlive their request."
    )
    caching: settings.CachingConfig = Field(
        settings.CachingConfig.model_construct(), description="Caching hints."
    )
    audit: settings.AuditConfig | None = Field(
        None, description="The audit log. Unset: there is none; {} writes one with the defaults."
    )
    console: settings.ConsoleConfig | None = Field(
        None,
        description="Pages for operators. Unset: there are none; {} serves them with the defaults.",
    )
    backends: list[Any] = Field(
        description="The back ends, in the order of the lists.",
        min_length=1,
        repr=False,  # raw entries have secrets in plain text
    )
    search: SearchConfig | None = Field(
        None, description="Search in place of the list of all tools."
    )
    views: list[ViewConfig] = Field(
        [], description="Additional endpoints, each with a selection of the catalog."
    )
    env: dict[Annotated[str, AfterValidator(own_name)], str] = Field(
        {},
        description="Variables for tools and ${NAME}, unless the environment has them: texts, ${secret:NAME} or"
        " ${ssm:NAME}. On AWS Lambda, they are parameters of the stack.",
    )
    package: settings.PackageConfig = Field(
        settings.PackageConfig.model_construct(),
        description="The contents of `roundgate package`'s functions.",
    )

    @property
    def endpoints(self) -> dict[str, str]:
        """The name of the view at each path of an MCP endpoint, with `http.path` first; empty for
        the endpoint of all tools."""
        views = {view.effective_path: view.name for view in self.views}
        usual = views.pop(self.http.path, "")
        return {self.http.path: usual, **views}

    def view(self, name: str) -> ViewConfig | None:
        """Return the settings of a view, or `None` for the endpoint of all tools."""
        return next((view for view in self.views if view.name == name), None)

    def server_of(self, view: str) -> settings.ServerConfig:
        """Return the section `server`, with the view's own instructions if it has any."""
        view_config = self.view(view)
        if view_config is None or view_config.instructions is None:
            return self.server
        return self.server.model_copy(update={"instructions": view_config.instructions})

    @field_validator("audit", "console", mode="before")
    @classmethod
    def _empty_is_on(cls, value: Any) -> Any:
        """Take a section without settings for the defaults. Otherwise `audit:` would turn nothing on."""
        return {} if value is None else value

    @field_validator("policy", mode="before")
    @classmethod
    def _has_rules(cls, value: Any) -> Any:
        """Refuse `policy:` without rules. Otherwise a file that ends there would allow all calls."""
        if not value:
            raise ValueError("give at least one rule: `- allow: {}` allows all calls")
        return value

    @model_validator(mode="after")
    def _scopes_need_callers(self) -> Self:
        if self.auth == "none" and self.rate.scopes:
            raise ValueError("rate.scopes needs auth: without it, callers have no scopes")
        if self.auth == "none" and any(rule.match.asks_for_callers for rule in self.policy or ()):
            raise ValueError(
                "policy: subject, client, scope and claims need auth: without it, all callers are one"
            )
        return self

    @model_validator(mode="after")
    def _rule_names_differ(self) -> Self:
        names = [rule.name for rule in self.policy or () if rule.name is not None]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two rules of policy have the name {twice[0]!r}")
        return self

    @model_validator(mode="after")
    def _console_needs_operators(self) -> Self:
        if self.console is None:
            return self
        if self.auth != "none" and self.auth.operator_scope is None:
            raise ValueError("console needs auth.operator_scope: it is for operators")
        if isinstance(self.auth, settings.AuthorizerConfig):
            raise ValueError("console is not served on AWS Lambda, where auth.authorizer works")
        below = f"{self.console.path}/"
        for path in (*self.endpoints, *_PROBES, _METRICS, _WELL_KNOWN, _EVENTS, _DOCS):
            if f"{path}/".startswith(below) or below.startswith(path.rstrip("/") + "/"):
                raise ValueError(f"console.path {self.console.path!r} overlaps with {path!r}")
        return self

    @model_validator(mode="after")
    def _views_differ(self) -> Self:
        paths = [view.effective_path for view in self.views]
        for member, values in (("name", [view.name for view in self.views]), ("path", paths)):
            if twice := sorted({value for value in values if values.count(value) > 1}):
                raise ValueError(f"two views have the {member} {twice[0]!r}")
        for path in paths:
            if path in _PROBES or f"{path}/".startswith((_WELL_KNOWN, _EVENTS)):
                raise ValueError(f"the path {path!r} of a view is reserved for the gateway")
        operators = None if self.auth == "none" else self.auth.operator_scope
        if operators is not None and any(operators in view.scopes for view in self.views):
            raise ValueError("auth.operator_scope must not be one of a view's scopes")
        return self


class ConfigFile(Struct, frozen=True):
    """A valid configuration, and its place."""

    config: GatewayConfig
    origin: settings.Origin
    backends: Sequence[BackendConfig]
    """The back ends in the order of the file."""
    references: frozenset[Path] = frozenset()
    """The files that `${file:…}` in the configuration names."""
    environment: Mapping[str, str] = {}
    """The variables of the section `env`, with their values."""
    positions: Sequence[int] | None = None
    """The position of each back end in the file; `None` if no back end is left out."""
    placeholder: str | None = None
    """The text that replaces references, as for `load`."""

    def __repr__(self) -> str:
        return f"ConfigFile({self.origin.located.file})"

    def backend_origin(self, index: int) -> settings.Origin:
        """Return the place in the file of the back end at an index of `backends`."""
        return self.origin.at("backends", self.positions[index] if self.positions else index)


class Inspected(Struct, frozen=True):
    """The problems of a file, and its valid parts."""

    problems: Sequence[Problem]
    file: ConfigFile | None
    """The whole file if it has no problems; otherwise the valid back ends and sections. `None` if
    no back end is valid."""


def load(
    path: Path, environ: Mapping[str, str] = os.environ, *, placeholder: str | None = None
) -> ConfigFile:
    """Read and validate a configuration file (YAML, or JSON, which starts faster).

    Args:
        environ: the variables that `${NAME}` refers to.
        placeholder: a text to use for references that cannot be resolved on this machine, for
            commands that look at the rest of the file. Without it, they are problems.

    Raises:
        ConfigError: lists every problem of the file.
    """
    file = inspect(path, environ, placeholder=placeholder)
    if file.problems or file.file is None:
        raise ConfigError(file.problems)
    return file.file


def validated(value: Mapping[str, Any], origin: settings.Origin) -> ConfigFile:
    """Return the configuration in plain values that contain no references.

    Raises:
        ConfigError: lists every problem.
    """
    problems: list[Problem] = []
    config = _sections(value, origin, problems)
    backends = _backends(value, origin, problems)
    if problems or config is None:
        raise ConfigError(problems)
    return ConfigFile(config, origin, list(backends.values()))


def inspect(
    path: Path, environ: Mapping[str, str] = os.environ, *, placeholder: str | None = None
) -> Inspected:
    """Return the problems of a file, and its valid parts. Takes the arguments of `load`."""
    problems: list[Problem] = []
    try:
        located = yaml_file.read(path, repeated=problems)
    except ConfigError as error:
        return Inspected(error.problems, None)
    origin = settings.Origin(located)
    value, environment, references = _filled_in(origin, environ, placeholder, problems)
    unresolved = {problem.path for problem in problems}
    listed: list[Problem] = []
    config = _sections(value, origin, listed)
    backends = _backends(value, origin, listed)
    # Skip the model's problems with unresolved references, which are reported already.
    listed = [entry for entry in listed if entry.path not in unresolved]
    problems += [*listed, *_repeated_names(value, origin), *_misplaced(config, backends, origin)]
    left_out = {int(entry[1]) for path in unresolved if (entry := _ENTRY.match(path))}
    usable = {index: entry for index, entry in backends.items() if index not in left_out}
    if config is None or len(usable) < len(config.backends):
        return Inspected(problems, _rest(value, origin, usable, environment))
    file = ConfigFile(
        config, origin, list(usable.values()), references, environment, placeholder=placeholder
    )
    return Inspected(problems, file)


def _filled_in(
    origin: settings.Origin,
    environ: Mapping[str, str],
    placeholder: str | None,
    problems: list[Problem],
) -> tuple[Any, dict[str, str], frozenset[Path]]:
    """Return three values: the file's value with its references filled in, the variables of its
    section `env` (to which other sections may refer), and the files that references name."""
    value, own = origin.located.value, dict[str, str]()
    resolver = Resolver(environ, placeholder, problems)
    if not isinstance(value, dict) or "env" not in value:
        return resolver.fill_in(value, origin), own, frozenset(resolver.files)
    own = resolver.environment(value["env"], origin.at("env"))
    rest = Resolver({**environ, **own}, placeholder, problems, resolver.files)
    others = {name: item for name, item in value.items() if name != "env"}
    filled = {**rest.fill_in(others, origin), "env": value["env"]}
    return filled, own, frozenset(rest.files)


def _sections(value: Any, origin: settings.Origin, problems: list[Problem]) -> GatewayConfig | None:
    try:
        return GatewayConfig.model_validate(value)
    except ValidationError as error:
        from roundgate.settings.problems import problems_of

        problems += problems_of(error, GatewayConfig, origin)
        return None


def _backends(
    value: Any, origin: settings.Origin, problems: list[Problem]
) -> dict[int, BackendConfig]:
    entries = value.get("backends") if isinstance(value, dict) else None
    backends: dict[int, BackendConfig] = {}
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        try:
            backends[index] = registry.read_entry(entry, origin.at("backends", index))
        except ConfigError as error:
            problems += error.problems
    return backends


def _rest(
    value: Any,
    origin: settings.Origin,
    backends: Mapping[int, BackendConfig],
    environment: Mapping[str, str],
) -> ConfigFile | None:
    """Return the valid back ends with the valid sections, or `None` if nothing usable remains.
    Views, search and fallback are left out, because they may refer to the other back ends."""
    if not backends or not isinstance(value, dict):
        return None
    sections = {name: part for name, part in value.items() if name not in _ABOUT_BACK_ENDS}
    for _ in range(2):  # the second time without the invalid sections
        try:
            config = GatewayConfig.model_validate(sections)
        except ValidationError as error:
            wrong = {detail["loc"][0] for detail in error.errors() if detail["loc"]}
            sections = {name: part for name, part in sections.items() if name not in wrong}
        else:
            break
    else:  # valid sections contradict each other
        return None
    return ConfigFile(
        config, origin, list(backends.values()), environment=environment, positions=list(backends)
    )


def _misplaced(
    config: GatewayConfig | None, backends: Mapping[int, BackendConfig], origin: settings.Origin
) -> list[Problem]:
    """Return a problem for each reference to AWS or the caller in a setting that accepts any value."""
    parts: dict[Loc, Any] = {("backends", index): backend for index, backend in backends.items()}
    if config is not None:
        parts[()] = config.model_copy(update={"backends": []})
    problems: list[Problem] = []
    for place, part in parts.items():
        for loc, setting in settings.settings_of(part, place):
            if isinstance(setting, settings.Deferred):
                problems.append(setting.problem or misplaced(origin.at(*loc)))
            elif isinstance(setting, settings.CallerReference) and loc[2:3] != ("headers",):
                problems.append(misplaced_caller(origin.at(*loc)))
    return problems


def _repeated_names(value: Any, origin: settings.Origin) -> list[Problem]:
    problems: list[Problem] = []
    seen: dict[str, int] = {}
    entries = value.get("backends") if isinstance(value, dict) else None
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        name = entry.get("name") if isinstance(entry, dict) else None
        if isinstance(name, str) and (first := seen.setdefault(name, index)) != index:
            place = origin.at("backends", index, "name")
            problems.append(
                place.problem(f"is also the name of backends[{first}]", "choose another")
            )
    return problems


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of gateway.yaml, with the models of all kinds of back end."""
    schema, entry = GatewayConfig.model_json_schema(by_alias=True), registry.json_schema()
    schema["$defs"] |= entry.pop("$defs")
    schema["properties"]["backends"]["items"] = entry
    return schema
