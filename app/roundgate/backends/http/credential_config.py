"""Settings of the gateway's credentials, one model for each kind.

To add a kind, add a model, an entry in `CREDENTIALS` and a branch of `Credential` in this module,
and a case in `roundgate.backends.http.credentials`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

from pydantic import AfterValidator, Discriminator, Field, Tag, field_validator, model_validator

from roundgate.backends.http.tls import TlsConfig
from roundgate.settings import Model, Secret, checked
from roundgate.settings.sections import Algorithm

HeaderName: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")]
"""An HTTP header name: a token (RFC 9110 section 5.1)."""


def check_header_value(text: str) -> None:
    """Raise ValueError if a text cannot be a header's value, or is an unexpanded `$NAME`."""
    _refuse_bare_variable(text)
    if not re.fullmatch(r"[\x20-\x7e\t]*", text):
        raise ValueError(
            "is sent in an HTTP header and may contain only visible ASCII characters, on one line"
        )


def _check_cookie_value(text: str) -> None:
    check_header_value(text)
    if not re.fullmatch(r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]+", text):
        raise ValueError(
            'is sent in a cookie and may not contain blanks, quotes, ",", ";" and "\\"'
        )


def _check_user_and_password(text: str) -> None:
    _refuse_bare_variable(text)
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise ValueError('must be "user:password", on one line')


def _check_text(text: str) -> None:
    _refuse_bare_variable(text)
    if not text.strip():
        raise ValueError("may not be empty")


def _check_token(text: str) -> None:
    check_header_value(text)
    if re.match(r"(?i)(bearer|token)\s", text):
        raise ValueError('must be the token alone; the gateway adds "Bearer "')


def _refuse_bare_variable(text: str) -> None:
    if re.fullmatch(r"\$[A-Z][A-Z0-9_]*", text):
        raise ValueError(f"would be sent unchanged; write ${{{text[1:]}}} for the variable")


SecretToken: TypeAlias = Annotated[Secret, AfterValidator(checked(_check_token))]
SecretHeader: TypeAlias = Annotated[Secret, AfterValidator(checked(check_header_value))]
SecretCookie: TypeAlias = Annotated[Secret, AfterValidator(checked(_check_cookie_value))]
UserAndPassword: TypeAlias = Annotated[Secret, AfterValidator(checked(_check_user_and_password))]
SecretText: TypeAlias = Annotated[Secret, AfterValidator(checked(_check_text))]


FRAMING: Final = frozenset(
    {
        *("host", "connection", "content-length", "transfer-encoding", "te"),
        *("trailer", "upgrade", "keep-alive", "expect"),
    }
)
"""Headers that control the destination and framing of a request; arguments may not set them."""
_HEADERS: Final = frozenset({"authorization", "cookie", "proxy-authorization"})


def header_key(name: str) -> str:
    """Return the same text for names of headers that a service may take for one another: CGI, WSGI
    and PHP read `X-User` and `x_user` from one variable (RFC 3875 section 4.1.18)."""
    return re.sub(r"[^a-z0-9]", "-", name.lower())


class Taken(NamedTuple):
    """Names in a request that are reserved for the gateway, so that arguments may not use them."""

    headers: frozenset[str] = frozenset()
    """Names as `header_key` returns them."""
    query: frozenset[str] = frozenset()
    cookies: frozenset[str] = frozenset()


class CredentialConfig(Model):
    """A credential of the gateway for an HTTP service. The caller's own token is never passed
    on."""

    def taken(self) -> Taken:
        """Return the names that the credential uses."""
        return Taken(_HEADERS)

    def secrets(self) -> Sequence[Secret]:
        """Return the secrets to redact."""
        return [value for value in vars(self).values() if isinstance(value, Secret)]

    def parts_of(self, text: str) -> Iterable[str]:
        """Return the substrings of a secret that must be redacted in addition to the whole."""
        return ()


class BearerCredential(CredentialConfig):
    """A token."""

    bearer: SecretToken = Field(description="Sent as Authorization: Bearer ….")


class BasicCredential(CredentialConfig):
    """A user and a password."""

    basic: UserAndPassword = Field(description='"user:password", sent as Authorization: Basic ….')

    def parts_of(self, text: str) -> Iterable[str]:
        """Return the password without the user."""
        return (text.partition(":")[2],)


class HeaderCredential(CredentialConfig):
    """An API key in a header."""

    header: HeaderName = Field(description="Name of a header that carries an API key.")
    value: SecretHeader = Field(description="The API key.")

    def taken(self) -> Taken:
        """See `CredentialConfig`."""
        return Taken(_HEADERS | {header_key(self.header)})


class QueryCredential(CredentialConfig):
    """An API key in the query."""

    query: str = Field(description="Name of a query parameter that carries an API key.")
    value: SecretHeader = Field(description="The API key.")

    def taken(self) -> Taken:
        """See `CredentialConfig`."""
        return Taken(_HEADERS, query=frozenset({self.query}))


class CookieCredential(CredentialConfig):
    """An API key in a cookie."""

    cookie: str = Field(
        description="Name of a cookie that carries an API key.", pattern=r"^[A-Za-z0-9_.-]+$"
    )
    value: SecretCookie = Field(description="The API key.")

    def taken(self) -> Taken:
        """See `CredentialConfig`."""
        return Taken(_HEADERS, cookies=frozenset({self.cookie}))


ClientAuth: TypeAlias = Literal["basic", "post", "private_key_jwt", "tls"]
"""The authentication method of a client. RFC 7591 calls the methods client_secret_basic,
client_secret_post, private_key_jwt and tls_client_auth."""


class ClientCredential(CredentialConfig):
    """An OAuth client of the gateway itself, which requests tokens (RFC 6749 section 4.4)."""

    client_credentials: SecretText = Field(
        description="The gateway's client id at the authorization server."
    )
    client_secret: SecretText | None = Field(None, description="The client's secret.")
    private_key: SecretText | None = Field(
        None,
        description="The client's private key in PEM, instead of a secret: it signs an assertion for each request"
        " (private_key_jwt, RFC 7523).",
    )
    private_key_id: str | None = Field(
        None, description="`kid` of the assertion, by which the server finds the key."
    )
    private_key_algorithm: Algorithm | None = Field(
        None, description="Unset: RS256, ES256, ES384, ES512 or EdDSA, depending on the key."
    )
    assertion_audience: str | None = Field(
        None,
        description="`aud` of the assertion. Unset: token_url; some servers want their issuer.",
    )
    tls: TlsConfig | None = Field(
        None,
        description="TLS of token requests: a private certificate authority, and the client's certificate.",
    )
    token_url: str = Field(
        description="URL of the token endpoint: https, or http on loopback.",
        pattern=r"^(https://[^/?#\s@]+|http://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?)(/[^#\s]*)?$",
    )
    token_scopes: list[str] = Field([], description="Scopes to request.")
    audience: str | None = Field(
        None, description="`audience` of the request, which some servers require."
    )
    resource: str | list[str] = Field(
        [], description="`resource` of the request: URIs that the token is for (RFC 8707)."
    )
    token_parameters: dict[str, str] = Field(
        {}, description="More parameters of the token request."
    )
    client_auth: ClientAuth | None = Field(
        None,
        description="The client's authentication method: basic or post (its secret in a header or in the form),"
        " private_key_jwt, or tls (its certificate, RFC 8705). Unset: chosen by the other settings.",
    )

    @property
    def way(self) -> ClientAuth:
        """The client's authentication method: `client_auth`, or the method that the other settings
        imply."""
        if self.client_auth is not None:
            return self.client_auth
        if self.private_key is not None:
            return "private_key_jwt"
        return "tls" if self.client_secret is None else "basic"

    @property
    def resources(self) -> list[str]:
        """The setting `resource` as a list."""
        return [self.resource] if isinstance(self.resource, str) else self.resource

    def secrets(self) -> Sequence[Secret]:
        """Return the secret or key. The client's id is not redacted, because many answers contain
        it."""
        return [secret for secret in (self.client_secret, self.private_key) if secret is not None]

    @model_validator(mode="after")
    def _one_way(self) -> ClientCredential:
        if self.client_secret is not None and self.private_key is not None:
            raise ValueError("give client_secret or private_key, not both")
        has_certificate = self.tls is not None and self.tls.cert is not None
        if self.way in ("basic", "post") and self.client_secret is None:
            raise ValueError(f"client_auth: {self.way} needs client_secret")
        if self.way == "private_key_jwt" and self.private_key is None:
            raise ValueError("client_auth: private_key_jwt needs private_key")
        if self.way == "tls" and not has_certificate:
            raise ValueError("give client_secret, private_key, or tls with a cert")
        if self.tls is not None and not self.token_url.startswith("https:"):
            raise ValueError("tls is for a token_url with https")
        return self

    @field_validator("token_parameters")
    @classmethod
    def _no_other_way(cls, form: dict[str, str]) -> dict[str, str]:
        reserved = {"grant_type", "client_id", "client_secret", "client_assertion", "scope"}
        if clashes := sorted(form.keys() & reserved):
            raise ValueError(f"{', '.join(clashes)}: has a setting of its own")
        return form


class AwsCredential(CredentialConfig):
    """AWS signatures (Signature Version 4), made with the credentials of the process."""

    sigv4: str = Field(
        description="The service to sign requests for, such as execute-api, lambda, es, aoss, bedrock or s3.",
        pattern=r"^[a-z0-9-]+$",
    )
    region: str | None = Field(
        None, description="The service's region. Unset: the environment's.", pattern=r"^[a-z0-9-]+$"
    )

    def taken(self) -> Taken:
        """See `CredentialConfig`."""
        return Taken(_HEADERS | {"x-amz-date", "x-amz-security-token", "x-amz-content-sha256"})


CREDENTIALS: Final[Mapping[str, type[CredentialConfig]]] = MappingProxyType(
    {
        "bearer": BearerCredential,
        "basic": BasicCredential,
        "header": HeaderCredential,
        "query": QueryCredential,
        "cookie": CookieCredential,
        "client_credentials": ClientCredential,
        "sigv4": AwsCredential,
    }
)
"""Credential models by the setting that identifies the kind."""


def _tag(value: Any) -> str | None:
    """Return the kind in angle brackets, or `None` unless exactly one kind is given. The brackets
    distinguish a tag from a setting in a problem's location."""
    if not isinstance(value, Mapping | CredentialConfig):
        return None  # plain text
    names = value if isinstance(value, Mapping) else type(value).model_fields
    matching = [name for name in CREDENTIALS if name in names]
    return f"<{matching[0]}>" if len(matching) == 1 else None


Credential: TypeAlias = Annotated[
    Annotated[BearerCredential, Tag("<bearer>")]
    | Annotated[BasicCredential, Tag("<basic>")]
    | Annotated[HeaderCredential, Tag("<header>")]
    | Annotated[QueryCredential, Tag("<query>")]
    | Annotated[CookieCredential, Tag("<cookie>")]
    | Annotated[ClientCredential, Tag("<client_credentials>")]
    | Annotated[AwsCredential, Tag("<sigv4>")],
    Discriminator(
        _tag,
        custom_error_type="credential",
        custom_error_message=f"give exactly one of {', '.join(CREDENTIALS)}",
    ),
]
