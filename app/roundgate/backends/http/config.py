"""What can be set of a back end of the kind http: the service, its tools, and how they are called."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    SecretStr,
    Tag,
    field_validator,
    model_validator,
)

from roundgate.backends.config import BackendConfig, JobConfig, JsonPointer
from roundgate.backends.http.reliability import (
    BreakerConfig,
    LimitConfig,
    RetryConfig,
    TimeoutsConfig,
)
from roundgate.config import Model, TaskMode


def _fit_for_a_header(value: SecretStr) -> SecretStr:
    if not re.fullmatch(r"[\x20-\x7e\t]*", value.get_secret_value()):
        raise ValueError(
            "goes into an HTTP header and may only have visible ASCII characters, on one line"
        )
    return value


HeaderName: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")]
HeaderValue: TypeAlias = Annotated[SecretStr, AfterValidator(_fit_for_a_header)]
MediaType: TypeAlias = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+(; ?[A-Za-z0-9_-]+=[^;\r\n\x00-\x1f]+)*$"
    ),
]
NAME_PATTERN: Final = r"^[A-Za-z0-9_.-]{1,64}$"


class CredentialConfig(Model):
    """How the gateway authenticates itself to an HTTP service; the caller's own token is never passed on."""

    def headers(self) -> frozenset[str]:
        """Names of request headers, in small letters, that no argument may have beside it."""
        return frozenset({"authorization", "cookie", "proxy-authorization"})

    def queries(self) -> frozenset[str]:
        """Names of query parameters that no argument may have beside it."""
        return frozenset()

    def cookies(self) -> frozenset[str]:
        """Names of cookies that no argument may have beside it."""
        return frozenset()

    def secrets(self) -> frozenset[str]:
        """What nobody but the service may read."""
        return frozenset(
            one.get_secret_value() for one in vars(self).values() if isinstance(one, SecretStr)
        )


class BearerCredential(CredentialConfig):
    """A token."""

    bearer: HeaderValue = Field(description="Sent as Authorization: Bearer ….")


class BasicCredential(CredentialConfig):
    """A user and a password."""

    basic: SecretStr = Field(description='"user:password", sent as Authorization: Basic ….')

    def secrets(self) -> frozenset[str]:
        """The password, also with the user in front."""
        return super().secrets() | {self.basic.get_secret_value().partition(":")[2]}


class HeaderCredential(CredentialConfig):
    """An API key in a header."""

    header: str = Field(
        description="Name of a header that carries an API key.", pattern=r"^[A-Za-z0-9-]+$"
    )
    value: HeaderValue = Field(description="The API key.")

    def headers(self) -> frozenset[str]:
        """Its own one too."""
        return super().headers() | {self.header.lower()}


class QueryCredential(CredentialConfig):
    """An API key in the query."""

    query: str = Field(description="Name of a query parameter that carries an API key.")
    value: HeaderValue = Field(description="The API key.")

    def queries(self) -> frozenset[str]:
        """Its own one."""
        return frozenset({self.query})


class CookieCredential(CredentialConfig):
    """An API key in a cookie."""

    cookie: str = Field(
        description="Name of a cookie that carries an API key.", pattern=r"^[A-Za-z0-9_.-]+$"
    )
    value: HeaderValue = Field(description="The API key.")

    def cookies(self) -> frozenset[str]:
        """Its own one."""
        return frozenset({self.cookie})

    @field_validator("value")
    @classmethod
    def _fits(cls, value: SecretStr) -> SecretStr:
        if not re.fullmatch(
            r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]+", value.get_secret_value()
        ):
            raise ValueError(
                'goes into a cookie and may not have blanks, quotes, ",", ";" and "\\"'
            )
        return value


class ClientCredentials(CredentialConfig):
    """Tokens of an authorization server, for the gateway itself (RFC 6749 section 4.4)."""

    client_credentials: str = Field(description="The client id of the gateway there.", min_length=1)
    client_secret: SecretStr = Field(description="The client's secret.")
    token_url: str = Field(
        description="Where tokens are had: https, or http on loopback.",
        pattern=r"^(https://[^/?#\s@]+|http://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?)(/[^#\s]*)?$",
    )
    token_scopes: list[str] = Field([], description="Scopes that are asked for.")
    token_parameters: dict[str, str] = Field(
        {}, description="More parameters of the request for a token, such as audience or resource."
    )
    client_auth: Literal["basic", "post"] = Field(
        "basic", description="Whether id and secret go into a header or into the form."
    )


CREDENTIALS: Final[Mapping[str, type[CredentialConfig]]] = MappingProxyType(
    {
        "bearer": BearerCredential,
        "basic": BasicCredential,
        "header": HeaderCredential,
        "query": QueryCredential,
        "cookie": CookieCredential,
        "client_credentials": ClientCredentials,
    }
)
"""By the setting that says which it is. Another kind is another model, an entry here, and a flow in `credentials`."""


def _tag(given: Any) -> str | None:
    """Which of them is meant; the tag is in brackets because no setting is, so that it can be told from one in the
    location of a problem."""
    names = given if isinstance(given, Mapping) else type(given).model_fields
    found = [name for name in CREDENTIALS if name in names]
    return f"<{found[0]}>" if len(found) == 1 else None


Credential: TypeAlias = Annotated[
    Annotated[BearerCredential, Tag("<bearer>")]
    | Annotated[BasicCredential, Tag("<basic>")]
    | Annotated[HeaderCredential, Tag("<header>")]
    | Annotated[QueryCredential, Tag("<query>")]
    | Annotated[CookieCredential, Tag("<cookie>")]
    | Annotated[ClientCredentials, Tag("<client_credentials>")],
    Discriminator(
        _tag,
        custom_error_type="credential",
        custom_error_message=f"give exactly one of {', '.join(CREDENTIALS)}",
    ),
]


class HttpArgument(Model):
    """One argument of a tool and where it goes in the HTTP request."""

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
        False, description="Whether the tool needs it; path arguments always are."
    )
    allow_slash: bool = Field(
        False,
        description='Whether a path argument may be several segments, with "/" between them; never "..".',
    )
    description: str | None = Field(None, description="What it means, for the model.")
    schema_: dict[str, Any] = Field(
        {"type": "string"}, alias="schema", description="JSON Schema of its value."
    )
    default: Any = Field(
        None, description="What is sent where the model gives nothing; the model is told of it."
    )
    list_: Literal["repeat", "comma", "pipe", "space", "brackets", "json"] | None = Field(
        None,
        alias="list",
        description="How a list is written: repeat (a=1&a=2), brackets (a[]=1&a[]=2), comma (a=1,2), pipe, space, or"
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
        None, description="Media type of its part, or of the whole body; a file's own goes before."
    )


class HttpJobConfig(JobConfig):
    """How to follow a job that a request of the tool has started: poll it until it is over, then fetch its result."""

    poll: str = Field(
        description="Path below base_url that tells how the job is, such as /projects/{project}/jobs/{id}; names are"
        " those of variables and of the tool's arguments.",
        pattern=r"^/",
    )
    fetch: str | None = Field(
        None,
        description="Path of the result. Unset: the last poll's answer is the result.",
        pattern=r"^/",
    )


class HttpToolConfig(Model):
    """One endpoint of an HTTP service as a tool."""

    name: str = Field(description="Name of the tool.", pattern=NAME_PATTERN)
    title: str | None = Field(None, description="Name for people.")
    description: str = Field(
        description="What it does and when to use it, for the model.", min_length=1
    )
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
    body: Literal["json", "form", "multipart"] | dict[str, Any] = Field(
        "json",
        description="How body arguments are sent: json, form or multipart; or the JSON body itself, in which {name}"
        " stands for an argument.",
    )
    fixed: dict[str, Any] = Field({}, description="Members of the body that are always sent.")
    content_type: MediaType | None = Field(
        None,
        description="Content-Type of the body, instead of the usual one: application/merge-patch+json, text/csv.",
    )
    result: JsonPointer = Field(
        "",
        description='JSON Pointer (RFC 6901) to the part of a JSON answer that is the result; "" is all of it.',
    )
    result_headers: dict[str, HeaderName] = Field(
        {},
        description="Headers of the answer that belong to the result, by the names of members: {next: Link}.",
    )
    output_schema: dict[str, Any] | None = Field(
        None, description="JSON Schema of the result, checked and advertised."
    )
    timeout_s: float | None = Field(None, description="Overrides the back end's.", gt=0)
    max_response_bytes: int | None = Field(None, description="Overrides the back end's.", ge=1)
    idempotency_key: HeaderName | None = Field(
        None, description="Overrides the back end's; for any method."
    )
    ask_for: list[str] = Field(
        [], description="Arguments for which the user is asked with a form when they are missing."
    )
    interactive: bool = Field(
        False,
        description="Whether the service may ask for input itself, with the envelope of docs/rounds.md.",
    )
    scopes: list[str] = Field(
        [], description="Scopes that the caller's token must grant to see and call it."
    )
    approve: Literal["never", "always"] | None = Field(
        None,
        description="Whether the user is asked before it runs; unset: what holds for the back end.",
    )
    approval: str | None = Field(
        None,
        description="What the user reads above the arguments where calls have to be approved; {name} stands for an"
        " argument.",
        max_length=1_000,
    )
    once: bool = Field(
        False, description="Whether a round that is sent again must not be run again."
    )
    task: TaskMode = Field(
        "forbidden",
        description="Whether its calls become tasks: forbidden, optional (if the client can) or required.",
    )
    job: HttpJobConfig | None = Field(
        None, description="The request only starts a job, which is to be followed."
    )
    read_only: bool | None = Field(None, description="readOnlyHint; unset: true for GET and HEAD.")
    destructive: bool | None = Field(
        None,
        description="destructiveHint; unset: true for DELETE, false for GET and HEAD, and left out for the others,"
        " which clients and `approve` take for true.",
    )
    idempotent: bool | None = Field(
        None, description="idempotentHint; unset: true for GET, HEAD, PUT and DELETE."
    )

    @model_validator(mode="after")
    def _keeps_cookies(self) -> HttpToolConfig:
        if any(name.lower() == "set-cookie" for name in self.result_headers.values()):
            raise ValueError(
                "Set-Cookie in result_headers would hand a session of the gateway's to the model"
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
            raise ValueError(
                "interactive and job are two ways to go on after the first answer; choose one"
            )
        return self


def usable_base_url(value: str) -> str:
    """A base URL as it was given.

    Raises:
        ValueError: it has what does not belong there.
    """
    parts = urlsplit(value)
    if parts.port == 0 or "@" in parts.netloc:
        raise ValueError(
            "may have a host, a port and a path; a user and password go into credential.basic"
        )
    return value


BaseUrl: TypeAlias = Annotated[
    str, Field(pattern=r"^https?://[^/?#\s]+[^?#\s]*$"), AfterValidator(usable_base_url)
]


class TlsConfig(Model):
    """TLS of connections: each a file beside gateway.yaml, or the PEM text itself."""

    ca: str | None = Field(
        None,
        description="Certificates of the authorities that are believed, instead of the public ones.",
        min_length=1,
    )
    cert: str | None = Field(
        None,
        description="The gateway's certificate, with those between it and the authority.",
        min_length=1,
    )
    key: SecretStr | None = Field(
        None, description="Its private key. Unset: it is in the same file as cert.", min_length=1
    )
    key_password: SecretStr | None = Field(None, description="Where the key is encrypted.")

    @model_validator(mode="after")
    def _belongs_together(self) -> TlsConfig:
        if self.cert is None and (self.key is not None or self.key_password is not None):
            raise ValueError("key and key_password need cert beside them")
        return self


class RemoteConfig(BackendConfig):
    """What can be set of every back end that is reached over HTTP, wherever it is."""

    headers: dict[HeaderName, HeaderValue] = Field(
        {}, description="Fixed headers of every request."
    )
    credential: Credential | None = Field(None, description="How the gateway authenticates itself.")
    tls: TlsConfig | None = Field(
        None, description="A private authority, and the gateway's own certificate (mutual TLS)."
    )
    timeout_s: float = Field(
        15, description="Seconds for connecting and for the whole answer.", gt=0
    )
    timeouts: TimeoutsConfig | None = Field(
        None, description="Seconds for parts of a request, within timeout_s."
    )
    retry: RetryConfig | None = Field(
        None, description="When a request is sent again. Unset: never, once it has been sent."
    )
    idempotency_key: HeaderName | None = Field(
        None,
        description="Header that takes a key by which the service knows a POST or PATCH again, such as"
        " Idempotency-Key; sent with each.",
    )
    limit: LimitConfig | None = Field(
        None, description="How many requests one process has under way to one host."
    )
    breaker: BreakerConfig | None = Field(
        None, description="When a host that fails is left alone for a while."
    )
    max_response_bytes: int = Field(1_000_000, description="Larger answers are a tool error.", ge=1)
    max_connections: int = Field(
        50, description="Connections kept to the service by one process.", ge=1
    )


class ServiceConfig(RemoteConfig):
    """One service, with a place that the configuration names."""

    base_url: BaseUrl = Field(description="Where the service is; requests never leave this origin.")

    @model_validator(mode="after")
    def _tls_has_a_use(self) -> ServiceConfig:
        if self.tls is not None and not self.base_url.startswith("https:"):
            raise ValueError("tls is for a base_url with https")
        return self


class HttpBackendConfig(ServiceConfig):
    """Endpoints of an HTTP service, declared one by one."""

    kind: Literal["http"]
    tools: list[HttpToolConfig] = Field(description="The tools.", min_length=1)
