"""Settings shared by all HTTP back ends, and settings of the kind `http`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from roundgate.backends.config import BackendConfig, DeclaredToolConfig, JobConfig
from roundgate.backends.http.caller_headers import HeaderText
from roundgate.backends.http.credential_config import (
    FRAMING,
    Credential,
    CredentialConfig,
    HeaderName,
    check_header_value,
    header_key,
)
from roundgate.backends.http.tls import TlsConfig
from roundgate.settings import CallerReference, Model, Secret


class RetryConfig(Model):
    """The retry policy. The gateway retries a request that is safe to repeat: GET, HEAD, PUT,
    DELETE, a tool with `idempotent: true`, or a request with an idempotency key. It retries any
    request if no connection was made."""

    attempts: int = Field(3, description="Maximum number of attempts.", ge=1, le=10)
    pause_s: float = Field(
        0.2,
        description="Approximate seconds before the second attempt, doubled before each further "
        "one, 10 at most.",
        gt=0,
        le=10,
    )
    within_s: float = Field(
        30,
        description="Seconds from the first attempt after which there is no further attempt, even if "
        "Retry-After asks for a longer pause.",
        gt=0,
        le=3_600,
    )


class BreakerConfig(Model):
    """The circuit breaker of a host. A request fails if the host does not answer, or answers 502,
    503 or 504."""

    failures: int = Field(5, description="Number of failures in a row that open the breaker.", ge=1)
    pause_s: float = Field(
        30,
        description="Seconds for which calls are tool errors at once; then one request is tried, "
        "and decides.",
        gt=0,
        le=3_600,
    )


class TimeoutsConfig(Model):
    """The timeouts of parts of a request, in seconds, within timeout_s."""

    connect_s: float | None = Field(None, description="For a connection, TLS included.", gt=0)
    write_s: float | None = Field(
        None, description="For the service to accept each piece of the request.", gt=0
    )
    read_s: float | None = Field(
        None, description="For the whole head of the answer, then for each piece of the body.", gt=0
    )

    @model_validator(mode="after")
    def _means_something(self) -> TimeoutsConfig:
        if not self.model_fields_set:
            raise ValueError("give at least one of connect_s, write_s and read_s")
        return self


def usable_base_url(value: str) -> str:
    """Return a base URL; raise ValueError if it has a user, a password or port 0."""
    parts = urlsplit(value)
    if parts.port == 0 or "@" in parts.netloc:
        raise ValueError(
            "may have a host, a port and a path; a user and password go into credential.basic"
        )
    return value


BaseUrl: TypeAlias = Annotated[
    str, Field(pattern=r"^https?://[^/?#\s]+[^?#\s]*$"), AfterValidator(usable_base_url)
]


class RemoteConfig(BackendConfig):
    """Settings that all HTTP back ends share, without the address."""

    headers: dict[HeaderName, HeaderText] = Field(
        {},
        description="Headers of every request: fixed texts, or facts about the caller, such as ${caller.subject}.",
    )
    credential: Credential | None = Field(
        None, description="The gateway's credential for the service."
    )
    tls: TlsConfig | None = Field(
        None,
        description="A private certificate authority, and the gateway's own certificate (mutual TLS).",
    )
    timeout_s: float = Field(
        15, description="Seconds for connecting and for the whole answer.", gt=0
    )
    timeouts: TimeoutsConfig | None = Field(
        None, description="Seconds for parts of a request, within timeout_s."
    )
    retry: RetryConfig | None = Field(
        None, description="Retries of requests. Unset: a request that was sent is not sent again."
    )
    idempotency_key: HeaderName | None = Field(
        None,
        description="Header for a key by which the service recognizes a repeated POST or PATCH, such as"
        " Idempotency-Key; sent with each of them.",
    )
    breaker: BreakerConfig | None = Field(
        None, description="The circuit breaker, which pauses requests to a failing host."
    )
    max_response_bytes: int = Field(1_000_000, description="Larger answers are a tool error.", ge=1)
    max_connections: int = Field(
        50, description="Connections kept to the service by one process.", ge=1
    )
    keep_alive_s: float = Field(
        4.0,
        description="Seconds for which an idle connection is reused. Choose fewer than the service keeps it open,"
        " so that no request meets a connection that is just being closed.",
        ge=0,
        le=3_600,
    )

    @property
    def fixed_headers(self) -> dict[str, Secret]:
        """The fixed texts among `headers`."""
        return {name: text for name, text in self.headers.items() if isinstance(text, Secret)}

    @property
    def callers_headers(self) -> dict[str, CallerReference]:
        """The facts about the caller among `headers`."""
        return {
            name: fact for name, fact in self.headers.items() if isinstance(fact, CallerReference)
        }

    @property
    def named_claims(self) -> frozenset[str]:
        """See `BackendConfig`."""
        claims = (reference.claim for reference in self.callers_headers.values())
        return frozenset(claim for claim in claims if claim is not None)

    @model_validator(mode="after")
    def _each_header_is_set_once(self) -> RemoteConfig:
        taken = CredentialConfig().taken() if self.credential is None else self.credential.taken()
        own = {header_key(self.idempotency_key or ""), "accept", "accept-encoding", "content-type"}
        spelled: dict[str, str] = {}
        for name in self.headers:
            if (other := spelled.setdefault(header_key(name), name)) != name:
                raise ValueError(f"headers.{other} and headers.{name} are one header: remove one")
        for name in self.callers_headers:
            key = header_key(name)
            if key in taken.headers | FRAMING | own or key.startswith("mcp-"):
                raise ValueError(f"headers.{name} is set by the gateway: choose another name")
        return self


def _checked_header(value: SecretStr) -> SecretStr:
    check_header_value(value.get_secret_value())
    return value


def _known_body(value: Any) -> Any:
    """Return a valid body setting; raise a single ValueError for others, where a union would report
    a problem for each member."""
    if not isinstance(value, dict) and value not in ("json", "form", "multipart"):
        raise ValueError("must be json, form or multipart, or the JSON body itself")
    return value


HeaderValue: TypeAlias = Annotated[SecretStr, AfterValidator(_checked_header)]
MediaType: TypeAlias = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+(; ?[A-Za-z0-9_-]+=[^;\r\n\x00-\x1f]+)*$"
    ),
]


class HttpArgument(Model):
    """One argument of a tool and its place in the HTTP request."""

    location: Literal["path", "query", "header", "body", "whole_body"] | None = Field(
        None,
        alias="in",
        description="Unset: path if the path template has the name, else query for GET, HEAD and DELETE, else body."
        " body is a member of the JSON or form body, whole_body the body itself.",
    )
    wire_name: str | None = Field(
        None, alias="as", description="Its name in the HTTP request, if not the argument's."
    )
    required: bool = Field(
        False, description="Whether the argument is required; path arguments always are."
    )
    allow_slash: bool = Field(
        False,
        description='Whether a path argument may be several segments, with "/" between them; never "..".',
    )
    description: str | None = Field(None, description="The argument's description for the model.")
    schema_: dict[str, Any] = Field(
        {"type": "string"}, alias="schema", description="JSON Schema of its value."
    )
    default: Any = Field(
        None, description="The value sent if the model omits the argument; the model sees it."
    )
    list_: Literal["repeat", "comma", "pipe", "space", "brackets", "json"] | None = Field(
        None,
        alias="list",
        description="Format of a list: repeat (a=1&a=2), brackets (a[]=1&a[]=2), comma (a=1,2), pipe, space, or"
        " json. Unset: repeat in a query or form, json in a path or header.",
    )
    send_empty: bool = Field(
        False,
        description="Whether an empty list in a query or form is sent as a= instead of not at all.",
    )
    file: bool = Field(
        False,
        description="Whether it is a file, with its name and type: a part of a multipart body, or the whole body. With"
        " the schema {type: array}: several.",
    )
    content_type: MediaType | None = Field(
        None,
        description="Media type of its part, or of the whole body; a file's own type takes precedence.",
    )


class HttpCancelConfig(Model):
    """The request that cancels a job when its call is cancelled. {name} stands for a variable or
    an argument."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = Field(
        "POST", description="HTTP method."
    )
    path: str = Field(
        description="Path below base_url, such as /jobs/{id}/cancel, with names as in poll.",
        pattern=r"^/",
    )
    query: dict[str, Any] = Field(
        {}, description="Query parameters in addition to the fixed query of the tool."
    )
    body: dict[str, Any] | None = Field(None, description="JSON body.")
    form: dict[str, Any] | None = Field(None, description="Form body, instead of a JSON one.")

    @model_validator(mode="after")
    def _one_body(self) -> HttpCancelConfig:
        if self.body is not None and self.form is not None:
            raise ValueError("body and form cannot be combined; choose one")
        return self


class HttpJobConfig(JobConfig):
    """A job that the tool's request starts. The gateway polls the job until it ends, then fetches
    its result."""

    poll: str = Field(
        description="Path below base_url of the job's status, such as /projects/{project}/jobs/{id}; names are"
        " variables and the tool's arguments.",
        pattern=r"^/",
    )
    fetch: str | None = Field(
        None,
        description="Path of the result. Unset: the last poll's answer is the result.",
        pattern=r"^/",
    )
    cancel: HttpCancelConfig | None = Field(
        None,
        description="The request to send when the task is cancelled, or has taken too long. Unset: the job"
        " continues.",
    )


class HttpToolConfig(DeclaredToolConfig):
    """An endpoint of an HTTP service as a tool."""

    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] = Field(
        "GET", description="HTTP method."
    )
    path: str = Field(
        description="Path below base_url; {name} stands for a path argument.", pattern=r"^/"
    )
    arguments: dict[str, HttpArgument] = Field(
        {}, description="Arguments by name; path arguments may be left out."
    )
    headers: dict[HeaderName, HeaderValue] = Field(
        {}, description="Fixed request headers of this tool."
    )
    query: dict[str, str] = Field({}, description="Fixed query parameters.")
    body: Annotated[
        Literal["json", "form", "multipart"] | dict[str, Any], BeforeValidator(_known_body)
    ] = Field(
        "json",
        description="Format of body arguments: json, form or multipart; or the JSON body itself, in which {name}"
        " stands for an argument.",
    )
    fixed: dict[str, Any] = Field({}, description="Members of the body that are always sent.")
    content_type: MediaType | None = Field(
        None,
        description="Content-Type of the body, instead of the usual one: application/merge-patch+json, text/csv.",
    )
    result_headers: dict[str, HeaderName] = Field(
        {},
        description="Headers of the answer that belong to the result, by the names of members: {next: Link}.",
    )
    timeout_s: float | None = Field(None, description="Overrides the back end's.", gt=0)
    max_response_bytes: int | None = Field(None, description="Overrides the back end's.", ge=1)
    idempotency_key: HeaderName | None = Field(
        None, description="Overrides the back end's; for any method."
    )
    interactive: bool = Field(
        False,
        description="Whether the service may ask for input itself, with the envelope of `roundgate docs rounds`.",
    )
    approve: Literal["never", "always"] | None = Field(
        None,
        description="Whether the user must approve each call. Unset: as for the back end.",
    )
    job: HttpJobConfig | None = Field(
        None, description="How to follow the job that the request starts."
    )
    read_only: bool | None = Field(None, description="readOnlyHint; unset: true for GET and HEAD.")
    destructive: bool | None = Field(
        None,
        description="destructiveHint; unset: true for DELETE, false for GET and HEAD, and omitted for the others,"
        " which clients and `approve` treat as true.",
    )
    idempotent: bool | None = Field(
        None, description="idempotentHint; unset: true for GET, HEAD, PUT and DELETE."
    )

    @model_validator(mode="after")
    def _keeps_cookies(self) -> HttpToolConfig:
        if any(name.lower() == "set-cookie" for name in self.result_headers.values()):
            raise ValueError(
                "Set-Cookie in result_headers would give the gateway's session to the model; remove it"
            )
        return self

    @model_validator(mode="after")
    def _can_ask(self) -> HttpToolConfig:
        has_text = any(argument.location == "whole_body" for argument in self.arguments.values())
        is_other = self.body in ("form", "multipart") or has_text
        if self.interactive and (self.method not in ("POST", "PUT", "PATCH") or is_other):
            raise ValueError(
                "interactive needs a method with a JSON body (POST, PUT or PATCH, without whole_body)"
            )
        if self.interactive and self.job is not None:
            raise ValueError("interactive and job cannot be combined; choose one")
        return self


class ServiceConfig(RemoteConfig):
    """A service whose base URL is in the configuration."""

    base_url: BaseUrl = Field(description="URL of the service; requests never leave its origin.")

    @model_validator(mode="after")
    def _tls_has_a_use(self) -> ServiceConfig:
        if self.tls is not None and not self.base_url.startswith("https:"):
            raise ValueError("tls is for a base_url with https")
        return self


class HttpBackendConfig(ServiceConfig):
    """An HTTP service with endpoints that the configuration declares one by one."""

    kind: Literal["http"]
    tools: list[HttpToolConfig] = Field(description="The tools.", min_length=1)
