"""gateway.yaml → frozen models, or every problem in it with file, line, path and remedy.

`load` reads the file (YAML, or JSON, which starts faster), fills in `${…}` references and validates. What each setting
means is in its `description`, which is also what `roundgate schema` exports for editors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from roundgate import yaml_file
from roundgate.errors import ConfigError, Problem
from roundgate.yaml_file import Located, dotted


class Model(BaseModel):
    """Base: frozen, and a misspelt setting is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, defer_build=True)


class ServerConfig(Model):
    """Who the gateway says it is (schema: `Implementation`)."""

    name: str = Field("roundgate", description="Name in serverInfo, for display and logs.", min_length=1)
    version: str = Field("0.0.0", description="Version in serverInfo: that of your deployment.", min_length=1)
    title: str | None = Field(None, description="Name for people.")
    description: str | None = Field(None, description="What this server is for.")
    website_url: str | None = Field(None, description="Where to read more.")
    instructions: str | None = Field(
        None, description="Guidance for models on how to use the tools; sent by server/discover."
    )


class HttpConfig(Model):
    """The HTTP edge."""

    path: str = Field("/mcp", description="Path of the MCP endpoint.", pattern=r"^/[A-Za-z0-9_./-]*[A-Za-z0-9_-]$")
    allowed_hosts: list[str] | None = Field(
        None,
        description="Host headers that are served: names, names with port, *.suffixes, or *. Unset: loopback names and"
        " the host of GATEWAY_PUBLIC_URL; on AWS Lambda, where no browser can rebind a name to it, any.",
    )
    allowed_origins: list[str] | None = Field(
        None,
        description="Origin headers (browsers send them) that are served and get CORS headers, such as https://app.example.com,"
        " or *. Unset: origins on loopback names and that of GATEWAY_PUBLIC_URL.",
    )
    max_body_bytes: int = Field(4_000_000, description="Larger request bodies are refused with 413.", ge=1024)
    keep_alive_s: float = Field(
        15, description="Seconds between comments on an idle subscriptions/listen stream.", gt=0
    )
    max_streams: int = Field(1000, description="Open subscriptions/listen streams in one process; more get 503.", ge=1)
    max_streams_per_caller: int = Field(100, description="Of these, how many one caller may have open.", ge=1)
    max_json_nodes: int = Field(
        100_000, description="Values and keys in a request body; more are refused with 413.", ge=1_000
    )
    max_pending_bytes: int = Field(
        64_000_000,
        description="Bodies of more than 8 KB that are being read and served at once, with 100 bytes for each value in"
        " them; more get 503.",
        ge=1_000_000,
    )
    max_header_bytes: int = Field(65_536, description="Request line and headers; more get 431.", ge=4_096)
    max_headers: int = Field(100, description="Header fields of a request; more get 431.", ge=16)
    max_connections: int = Field(
        1_000, description="Open connections of one process, as far as it may have descriptors; more get 503.", ge=1
    )
    head_timeout_s: float = Field(10, description="Seconds within which a request's head has to arrive.", gt=0)
    body_timeout_s: float = Field(60, description="Seconds within which a request's body has to arrive.", gt=0)
    send_timeout_s: float = Field(
        30, description="Seconds within which a client has to take 64 KB of what waits for it, or is cut off.", gt=0
    )


Algorithm: TypeAlias = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Asymmetric ones alone: with a shared secret every verifier could also sign."""


class LimitsConfig(Model):
    """Bounds on work."""

    call_timeout_s: float = Field(60, description="Seconds after which a call ends with an error.", gt=0, le=86_400)
    threads: int = Field(40, description="Plain (not async) functions running at once in one process.", ge=1, le=1000)
    page_size: int = Field(200, description="Entries on a page of a list.", ge=1, le=10_000)


class StateConfig(Model):
    """requestState: what a call remembers between its rounds, sealed, on its way through the client."""

    lifetime_s: float = Field(900, description="Seconds within which the next round has to come.", gt=0, le=86_400)
    max_bytes: int = Field(64_000, description="Most that one call may have remembered.", ge=1024, le=1_000_000)
    audience: str = Field(
        "roundgate", description="Bound into every token; keeps apart deployments that share keys.", min_length=1
    )
    max_rounds: int = Field(25, description="Rounds after which a call is given up; clients often stop at 10.", ge=1)


class TasksConfig(Model):
    """Calls that outlive their request (tasks extension)."""

    ttl_s: float = Field(
        86_400, description="Seconds after its creation for which a task and its result can be had.", ge=1, le=2_592_000
    )
    poll_interval_ms: int = Field(
        1_000, description="How often clients are asked to poll, and how often watched tasks are looked at.", ge=100
    )
    concurrency: int = Field(16, description="Tasks that one process works on at once.", ge=1, le=1_000)
    max_running_per_owner: int | None = Field(
        None,
        description="Tasks of one owner that one process works on at once. Unset: half of concurrency, or all of it"
        " without auth, where there is one owner.",
        ge=1,
        le=1_000,
    )
    lease_s: float = Field(
        30, description="Seconds after which the task of a worker that died is taken up by another.", ge=1, le=900
    )
    requeue_after_s: float = Field(
        30, description="Seconds after which a task that no worker has taken up is queued again.", ge=1, le=3_600
    )
    requeue_at_most_s: float = Field(
        900,
        description="To where the pause grows after which a task that still waits is queued again.",
        ge=1,
        le=86_400,
    )
    sweep_every_s: float = Field(5, description="Seconds between two looks for late tasks.", gt=0, le=3_600)
    clock_skew_s: float | None = Field(
        None,
        description="By how much the clocks of workers may differ: a dead worker's task is taken up lease_s and this"
        " later. Unset: 5 with SQLite, which is one machine, 60 with DynamoDB.",
        ge=0,
        le=900,
    )
    shards: int = Field(
        8,
        description="Parts of DynamoDB's index of open tasks: each takes 1,000 writes a second and one sweeper at a"
        " time. Never lower it while tasks are open.",
        ge=1,
        le=1_000,
    )
    max_attempts: int = Field(
        5, description="Turns in a row without progress that faults of ours ended, after which a task fails.", ge=1
    )
    max_deaths: int = Field(
        3, description="Workers that died, or stalled, while they ran nothing but one task, after which it fails.", ge=1
    )
    stall_part: float = Field(
        0.6,
        description="Part of lease_s for which a handler may block the event loop; then its process lets go of all"
        " tasks and ends with status 70.",
        gt=0,
        lt=1,
    )
    stop_grace_s: float | None = Field(
        None,
        description="Seconds for which steps may go on when the process is told to stop. Unset: 10 for serve, 25 for"
        " worker.",
        ge=0,
        le=3_600,
    )
    task_timeout_s: float = Field(
        86_400, description="Seconds from its creation after which a task that still runs is ended.", gt=0, le=2_592_000
    )
    unserved_s: float = Field(
        3_600,
        description="Seconds for which a task waits for a worker that serves its tool, as during a deployment; then it"
        " fails.",
        ge=0,
        le=2_592_000,
    )
    max_result_bytes: int = Field(
        4_500_000, description="Largest result of a task; 4,600,000 at most on AWS Lambda.", ge=1_024
    )
    max_open_per_owner: int = Field(
        1_000, description="Tasks of one caller that have not ended; a call that needs one more is a tool error.", ge=1
    )
    max_call_bytes: int = Field(
        256_000,
        description="Most that the call behind a task may take: its arguments, and what its client says of itself.",
        ge=1_024,
    )
    max_journal_bytes: int = Field(
        3_000_000, description="Most that one task may have remembered of its steps.", ge=1_024, le=100_000_000
    )

    @property
    def share(self) -> int:
        """How many of the turns of a process may be at tasks of one owner."""
        return self.max_running_per_owner or max(1, self.concurrency // 2)


TaskMode: TypeAlias = Literal["forbidden", "optional", "required"]
"""Whether a tool's call becomes a task: never; if the client can; always, and a client that cannot is refused."""


class CallersConfig(Model):
    """What callers with tokens need, whoever verifies them."""

    scopes: list[str] = Field([], description="Scopes that every call needs.")
    scopes_supported: list[str] | None = Field(
        None, description="What the metadata document offers. Unset: the scopes that tools need and `scopes`."
    )
    operator_scope: str | None = Field(
        None,
        description="The scope that makes a caller an operator, who may use what is served beside the MCP endpoint."
        " Unset: nobody is one. No metadata document offers it unless scopes_supported does.",
        pattern=r"^[!#-\[\]-~]+$",
    )

    @model_validator(mode="after")
    def _operators_are_few(self) -> CallersConfig:
        if self.operator_scope in self.scopes:
            raise ValueError("operator_scope must be none of scopes: every caller has those")
        return self


class JwtAuthConfig(CallersConfig):
    """Bearer JWTs of one authorization server."""

    issuer: str = Field(description="The `iss` of its tokens.", min_length=1)
    audience: str | None = Field(
        None,
        description="The `aud` that tokens must have. Unset: GATEWAY_PUBLIC_URL with the endpoint's path (RFC 8707).",
    )
    jwks_url: str = Field(description="Where its public keys are.", pattern=r"^https?://")
    algorithms: list[Algorithm] = Field(
        ["RS256", "ES256"], description="Signature algorithms that are taken.", min_length=1
    )
    leeway_s: float = Field(30, description="By how many seconds the clocks may differ.", ge=0, le=300)


class AuthorizerConfig(CallersConfig):
    """Callers that an authorizer of API Gateway in front has verified; on AWS Lambda only."""

    authorizer: Literal["api-gateway"] = Field(description="Who has verified the token: the authorizer of the API.")
    issuer: str = Field(
        description="The `iss` of its tokens, and what callers are told to get theirs from.", min_length=1
    )
    subject_claim: str = Field("sub", description="The claim that names the subject.", min_length=1)
    client_claim: str = Field("client_id", description="The claim that names the client; azp stands in for it.")
    scope_claim: str = Field("scope", description="The claim that has the scopes: a list, or text with blanks.")


class CacheHint(Model):
    """How long and by whom a result may be kept (server/utilities/caching)."""

    ttl_ms: int = Field(0, description="Milliseconds for which a client may consider the result fresh.", ge=0)
    scope: Literal["public", "private"] = Field(
        "public",
        description="public: the same for every caller, shared caches may keep it; private: for this caller only.",
    )


class CachingConfig(Model):
    """Caching hints on the six results that carry them."""

    discover: CacheHint = Field(CacheHint(ttl_ms=3_600_000), description="server/discover")
    tools: CacheHint = Field(CacheHint(ttl_ms=300_000), description="tools/list")
    prompts: CacheHint = Field(CacheHint(ttl_ms=300_000), description="prompts/list")
    resources: CacheHint = Field(CacheHint(ttl_ms=300_000), description="resources/list")
    resource_templates: CacheHint = Field(CacheHint(ttl_ms=300_000), description="resources/templates/list")
    read: CacheHint = Field(CacheHint(ttl_ms=0, scope="private"), description="resources/read")

    @model_validator(mode="before")
    @classmethod
    def _keep_the_rest(cls, given: Any) -> Any:
        """A hint of which only one half is given keeps its own default for the other: `read` stays private."""
        if not isinstance(given, dict):
            return given
        defaults = {name: field.default.model_dump() for name, field in cls.model_fields.items()}
        return {name: defaults.get(name, {}) | hint if isinstance(hint, dict) else hint for name, hint in given.items()}


def _fit_for_a_header(value: SecretStr) -> SecretStr:
    if not re.fullmatch(r"[\x20-\x7e\t]*", value.get_secret_value()):
        raise ValueError("goes into an HTTP header and may only have visible ASCII characters, on one line")
    return value


HeaderName: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")]
HeaderValue: TypeAlias = Annotated[SecretStr, AfterValidator(_fit_for_a_header)]
NAME_PATTERN: Final = r"^[A-Za-z0-9_.-]{1,64}$"


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


class PythonBackendConfig(BackendConfig):
    """A module whose functions wear @tool, @prompt and @resource."""

    kind: Literal["python"]
    path: str | None = Field(None, description="Python file, relative to gateway.yaml.")
    module: str | None = Field(None, description="Dotted name of an importable module, instead of path.")

    @model_validator(mode="after")
    def _one_source(self) -> PythonBackendConfig:
        if (self.path is None) == (self.module is None):
            raise ValueError("give either path (a file) or module (a dotted name)")
        return self


class Credential(Model):
    """How the gateway authenticates itself to an HTTP service; the caller's own token is never passed on."""

    bearer: HeaderValue | None = Field(None, description="Sent as Authorization: Bearer ….")
    basic: SecretStr | None = Field(None, description='"user:password", sent as Authorization: Basic ….')
    header: str | None = Field(
        None, description="Name of a header that carries an API key.", pattern=r"^[A-Za-z0-9-]+$"
    )
    query: str | None = Field(None, description="Name of a query parameter that carries an API key.")
    value: HeaderValue | None = Field(None, description="The API key for header or query.")

    @model_validator(mode="after")
    def _one_kind(self) -> Credential:
        given = [kind for kind in ("bearer", "basic", "header", "query") if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError("give exactly one of bearer, basic, header and query")
        if (self.value is None) != (given[0] in ("bearer", "basic")):
            raise ValueError("header and query take the key in value; bearer and basic have none")
        return self


class HttpArgument(Model):
    """One argument of a tool and where it goes in the HTTP request."""

    location: Literal["path", "query", "header", "body", "whole_body"] | None = Field(
        None,
        alias="in",
        description="Unset: path if the path template has the name, else query for GET, HEAD and DELETE, else body."
        " body is a member of the JSON or form body, whole_body the body itself.",
    )
    wire_name: str | None = Field(None, alias="as", description="Its name in the HTTP request, if not the argument's.")
    required: bool = Field(False, description="Whether the tool needs it; path arguments always are.")
    allow_slash: bool = Field(
        False, description='Whether a path argument may be several segments, with "/" between them; never "..".'
    )
    description: str | None = Field(None, description="What it means, for the model.")
    schema_: dict[str, Any] = Field({"type": "string"}, alias="schema", description="JSON Schema of its value.")


JsonPointer: TypeAlias = Annotated[str, Field(pattern=r"^(/.*)?$")]
"""RFC 6901: "/job/id"; "" is the whole."""


class HttpJobConfig(Model):
    """How to follow a job that a request of the tool has started: poll it until it is over, then fetch its result."""

    variables: dict[str, JsonPointer] = Field(
        {"id": "/id"}, description="Variables of the paths below, and where the answer of the start has their values."
    )
    poll: str = Field(description="Path below base_url that tells how the job is, such as /jobs/{id}.", pattern=r"^/")
    every_s: float = Field(5, description="Seconds between two polls; no worker waits meanwhile.", ge=0.1, le=86_400)
    status: JsonPointer = Field("/status", description="Where the answer of a poll has the job's status.")
    succeeded: list[str] = Field(description="Statuses of a job that is over and went well.", min_length=1)
    failed: list[str] = Field([], description="Statuses of a job that is over and did not; a tool error.")
    error: JsonPointer | None = Field(None, description="Where the answer of a poll has the reason of a failure.")
    fetch: str | None = Field(
        None, description="Path of the result. Unset: the last poll's answer is the result.", pattern=r"^/"
    )


class HttpToolConfig(Model):
    """One endpoint of an HTTP service as a tool."""

    name: str = Field(description="Name of the tool.", pattern=NAME_PATTERN)
    title: str | None = Field(None, description="Name for people.")
    description: str = Field(description="What it does and when to use it, for the model.", min_length=1)
    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] = Field("GET", description="HTTP method.")
    path: str = Field(description="Path below base_url; {name} stands for a path argument.", pattern=r"^/")
    arguments: dict[str, HttpArgument] = Field({}, description="Arguments by name; path arguments may be left out.")
    headers: dict[HeaderName, HeaderValue] = Field({}, description="Fixed request headers of this tool.")
    query: dict[str, str] = Field({}, description="Fixed query parameters.")
    body: Literal["json", "form"] = Field("json", description="How body arguments are sent.")
    result: JsonPointer = Field(
        "", description='JSON Pointer (RFC 6901) to the part of a JSON answer that is the result; "" is all of it.'
    )
    output_schema: dict[str, Any] | None = Field(None, description="JSON Schema of the result, checked and advertised.")
    timeout_s: float | None = Field(None, description="Overrides the back end's.", gt=0)
    ask: list[str] = Field([], description="Arguments for which the user is asked with a form when they are missing.")
    asks: bool = Field(
        False, description="Whether the service may ask for input itself, with the envelope of docs/rounds.md."
    )
    scopes: list[str] = Field([], description="Scopes that the caller's token must grant to see and call it.")
    approval: str | None = Field(
        None,
        description="What the user reads above the arguments where calls have to be approved.",
        max_length=1_000,
    )
    once: bool = Field(False, description="Whether a round that is sent again must not be run again.")
    task: TaskMode = Field(
        "forbidden",
        description="Whether its calls become tasks: forbidden, optional (if the client can) or required.",
    )
    job: HttpJobConfig | None = Field(None, description="The request only starts a job, which is to be followed.")
    read_only: bool | None = Field(None, description="readOnlyHint; unset: true for GET and HEAD.")
    destructive: bool | None = Field(
        None,
        description="destructiveHint; unset: true for DELETE, false for GET and HEAD, and left out for the others,"
        " which clients and `approve` take for true.",
    )
    idempotent: bool | None = Field(None, description="idempotentHint; unset: true for GET, HEAD, PUT and DELETE.")

    @model_validator(mode="after")
    def _can_ask(self) -> HttpToolConfig:
        has_text = any(argument.location == "whole_body" for argument in self.arguments.values())
        if self.asks and (self.method not in ("POST", "PUT", "PATCH") or self.body != "json" or has_text):
            raise ValueError("asks needs a method with a JSON body (POST, PUT or PATCH, without whole_body)")
        if self.asks and self.job is not None:
            raise ValueError("asks and job are two ways to go on after the first answer; choose one")
        return self


class HttpBackendConfig(BackendConfig):
    """Endpoints of an HTTP service, declared one by one."""

    kind: Literal["http"]
    base_url: str = Field(
        description="Where the service is; requests never leave this origin.", pattern=r"^https?://[^/?#\s]+[^?#\s]*$"
    )
    headers: dict[HeaderName, HeaderValue] = Field({}, description="Fixed headers of every request.")
    credential: Credential | None = Field(None, description="How the gateway authenticates itself.")
    timeout_s: float = Field(15, description="Seconds for connecting and for the whole answer.", gt=0)
    max_response_bytes: int = Field(1_000_000, description="Larger answers are a tool error.", ge=1)
    max_connections: int = Field(50, description="Connections kept to the service by one process.", ge=1)
    tools: list[HttpToolConfig] = Field(description="The tools.", min_length=1)

    @field_validator("base_url")
    @classmethod
    def _is_usable(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.port == 0 or "@" in parts.netloc:
            raise ValueError("may have a host, a port and a path; a user and password go into credential.basic")
        return value


AnyBackendConfig: TypeAlias = Annotated[PythonBackendConfig | HttpBackendConfig, Field(discriminator="kind")]


class GatewayConfig(Model):
    """The whole file."""

    server: ServerConfig = Field(ServerConfig.model_construct(), description="Who the gateway says it is.")
    http: HttpConfig = Field(HttpConfig.model_construct(), description="The HTTP edge.")
    limits: LimitsConfig = Field(LimitsConfig.model_construct(), description="Bounds on work.")
    auth: Literal["none"] | JwtAuthConfig | AuthorizerConfig = Field(
        "none",
        description='Who may call: "none" (one local subject, for loopback addresses), bearer JWTs, or callers that an'
        " authorizer in front has verified.",
    )
    state: StateConfig = Field(StateConfig.model_construct(), description="What a call remembers between its rounds.")
    tasks: TasksConfig = Field(TasksConfig.model_construct(), description="Calls that outlive their request.")
    caching: CachingConfig = Field(CachingConfig.model_construct(), description="Caching hints.")
    backends: list[AnyBackendConfig] = Field(
        description="What is behind the gateway, in the order of the lists.", min_length=1
    )


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
        """Something wrong here."""
        return Problem(
            str(self.located.file), dotted(self.loc) or "(file)", message, remedy, self.located.line(self.loc)
        )


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A valid configuration and where it came from."""

    config: GatewayConfig
    origin: Origin


def load(path: Path, environ: Mapping[str, str] = os.environ) -> ConfigFile:
    """Read and validate a configuration file.

    Raises:
        ConfigError: everything that is wrong with it.
    """
    located = yaml_file.read(path)
    origin = Origin(located)
    unresolved: list[Problem] = []
    value = _fill_in(located.value, origin, environ, unresolved)
    try:
        config = GatewayConfig.model_validate(value)
    except ValidationError as error:
        told = {problem.path for problem in unresolved}  # what is wrong with the nothing in its place is no news
        raise ConfigError([*unresolved, *(one for one in _problems(error, origin) if one.path not in told)]) from None
    problems = [*unresolved, *_cross_checks(config, origin)]
    if problems:
        raise ConfigError(problems)
    return ConfigFile(config, origin)


_REFERENCE: Final = re.compile(
    r"(?P<escape>\$\$\{)|\$\{(?P<source>file:)?(?P<name>[^}:]+)(?::-(?P<default>(?:(?!\$\{)[^}])*))?\}|\$\{"
)


def _fill_in(value: Any, origin: Origin, environ: Mapping[str, str], problems: list[Problem]) -> Any:
    """`${NAME}`, `${NAME:-default}` and `${file:path}` in every string; `$${` stands for `${`."""
    match value:
        case dict():
            return {key: _fill_in(item, origin.at(key), environ, problems) for key, item in value.items()}
        case list():
            return [_fill_in(item, origin.at(index), environ, problems) for index, item in enumerate(value)]
        case str() if "${" in value:
            return _REFERENCE.sub(lambda found: _resolve(found, origin, environ, problems), value)
        case _:
            return value


def _resolve(found: re.Match[str], origin: Origin, environ: Mapping[str, str], problems: list[Problem]) -> str:
    name, default = found["name"], found["default"]
    if found["escape"]:
        return "${"
    if name is None:
        remedy = "write ${NAME}, ${NAME:-default} or ${file:path}, or $${ for a plain ${"
        problems.append(origin.problem("${ begins something that is not a reference", remedy))
        return ""
    if found["source"]:
        try:
            return (origin.base_dir / name).read_text("utf-8").rstrip("\r\n")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "is not text"
            problems.append(origin.problem(f"{name}: {reason}", "mount the file, or correct the path"))
            return ""
    value = environ.get(name) or default
    if value is None:
        remedy = f"set it, or write ${{{name}:-default}}"
        problems.append(origin.problem(f"the environment variable {name} is not set", remedy))
    return value or ""


_REMEDIES: Final = {
    "missing": "add it",
    "extra_forbidden": "remove it, or correct its spelling",
    "union_tag_invalid": "use one of the kinds named",
    "union_tag_not_found": "add kind: python or kind: http",
    "string_pattern_mismatch": "see docs/configuration.md for what it may be",
}


def _problems(error: ValidationError, origin: Origin) -> list[Problem]:
    found: list[Problem] = []
    for detail in error.errors(include_input=False, include_url=False):
        # pydantic puts the tag of a discriminated union into the location; the file has no such step
        loc = [step for index, step in enumerate(detail["loc"]) if not (index == 2 and step in ("python", "http"))]
        message = detail["msg"].removeprefix("Value error, ")
        remedy = _REMEDIES.get(detail["type"], "see docs/configuration.md, or `roundgate schema` for your editor")
        found.append(origin.at(*loc).problem(message, remedy))
    return found


def _cross_checks(config: GatewayConfig, origin: Origin) -> list[Problem]:
    problems: list[Problem] = []
    seen: dict[str, int] = {}
    for index, backend in enumerate(config.backends):
        if backend.name in seen:
            where = f"backends[{seen[backend.name]}]"
            problems.append(
                origin.at("backends", index, "name").problem(f"is the name of {where} too", "choose another")
            )
        seen.setdefault(backend.name, index)
    return problems
