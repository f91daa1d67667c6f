"""An OAuth 2.0 authorization server that no one here wrote (Authlib), and a service
that takes its tokens."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import ClientMixin
from authlib.oauth2.rfc6749.grants import ClientCredentialsGrant
from authlib.oauth2.rfc7523 import JWTBearerClientAssertion
from flask import Flask, Response, request
from werkzeug.serving import WSGIRequestHandler, make_server

CLIENT = "gateway-1"


class Client(ClientMixin):  # type: ignore[misc]  # without types
    """One client, and how it may authenticate itself."""

    def __init__(self, has: Issuer) -> None:
        self._has = has

    def get_client_id(self) -> str:
        return CLIENT

    def get_allowed_scope(self, scope: str) -> str:
        return " ".join(one for one in (scope or "").split() if one in ("read", "write"))

    def check_client_secret(self, client_secret: str) -> bool:
        return client_secret == self._has.secret

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method == self._has.method

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type == "client_credentials"


@dataclass
class Issuer:
    """What the server does, which a test may change while it runs, and what it has been asked."""

    secret: str = "s3cret & m€re"
    method: str = "client_secret_basic"
    public_key: Any = None
    subject: str | None = None
    """The common name that a client's certificate has to have."""
    lifetime_s: int = 3600
    skipped_s: float = 0
    """The time that has passed beside the real time."""
    is_down: bool = False
    pause_s: float = 0
    url: str = ""
    forms: list[dict[str, list[str]]] = field(default_factory=list)
    """Of each request for a token."""
    tokens: dict[str, float] = field(default_factory=dict)
    """Each token, and when it is over."""
    calls: list[str] = field(default_factory=list)
    """The tokens that the service was shown."""
    _used: set[str] = field(default_factory=set)

    def now_s(self) -> float:
        return time.monotonic() + self.skipped_s

    def revoke_all(self) -> None:
        """Take back all tokens."""
        self.tokens.clear()

    def app(self) -> Flask:
        """The server and, at /api, the service."""
        flask = Flask("authorization server")
        flask.config["OAUTH2_TOKEN_EXPIRES_IN"] = {"client_credentials": self.lifetime_s}
        flask.config["OAUTH2_SCOPES_SUPPORTED"] = ["read", "write"]
        issuer = self

        class Assertion(JWTBearerClientAssertion):  # type: ignore[misc]  # without types
            CLIENT_AUTH_METHOD = "private_key_jwt"

            def get_audiences(self) -> list[str]:
                return [f"{issuer.url}/token"]

            def validate_jti(self, claims: Any, jti: str) -> bool:
                is_new = jti not in issuer._used
                issuer._used.add(jti)
                return is_new

            def resolve_client_public_key(self, client: Client) -> Any:
                return issuer.public_key

        class Grant(ClientCredentialsGrant):  # type: ignore[misc]  # without types
            TOKEN_ENDPOINT_AUTH_METHODS = (
                *("client_secret_basic", "client_secret_post"),
                *("private_key_jwt", "tls_client_auth"),
            )

        def save(token: dict[str, Any], _: Any) -> None:
            issuer.tokens[token["access_token"]] = issuer.now_s() + issuer.lifetime_s

        server = AuthorizationServer(flask, lambda name: self._client(name), save)
        server.register_grant(Grant)
        server.register_client_auth_method("private_key_jwt", Assertion())
        server.register_client_auth_method("tls_client_auth", self._by_certificate)

        @flask.post("/token")
        def token() -> Any:
            issuer.forms.append(request.form.to_dict(flat=False))
            time.sleep(issuer.pause_s)
            if issuer.is_down:
                return Response("down", 503, {"Retry-After": "3"})
            return server.create_token_response()

        @flask.route("/api", methods=["GET", "POST"])
        @flask.route("/orders/<int:_number>")
        def api(_number: int = 0) -> Any:
            shown = request.headers.get("authorization", "").removeprefix("Bearer ")
            issuer.calls.append(shown)
            if issuer.tokens.get(shown, 0) <= issuer.now_s():
                return Response(
                    status=401, headers={"WWW-Authenticate": 'Bearer error="invalid_token"'}
                )
            return {"ok": True}

        return flask

    def _client(self, name: str) -> Client | None:
        return Client(self) if name == CLIENT else None

    def _by_certificate(self, query_client: Any, asked: Any) -> Client | None:
        """RFC 8705 section 2.1; the handshake has verified the certificate."""
        from cryptography import x509

        pem = request.environ.get("SSL_CLIENT_CERT")
        if not pem or self.subject is None:
            return None
        [name] = x509.load_pem_x509_certificate(pem.encode()).subject
        found: Client | None = query_client(request.form.get("client_id"))
        return found if name.value == self.subject else None


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *_: object) -> None:
        return


@contextmanager
def running(issuer: Issuer, context: ssl.SSLContext | None = None) -> Iterator[Issuer]:
    """The server of an issuer within the block, on a port of its own."""
    server = make_server(
        "127.0.0.1", 0, issuer.app(), threaded=True, request_handler=_Quiet, ssl_context=context
    )
    issuer.url = f"{'http' if context is None else 'https'}://127.0.0.1:{server.port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
