"""An identity provider for `scripts/chaos issuer`: an authorization server of Authlib's in a process of its own, which
is killed, stopped and started again.

Its state is a file of private keys. The first key signs; `/jwks` publishes all.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import httpx
from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import ClientMixin
from authlib.oauth2.rfc6749.grants import ClientCredentialsGrant
from authlib.oauth2.rfc9068 import JWTBearerTokenGenerator
from flask import Flask
from joserfc.jwk import ECKey
from werkzeug.serving import make_server

SECRET: Final = "s3cret"


class Provider:
    """The provider's process and its file of keys."""

    def __init__(self, port: int, folder: Path, issuer: str, audience: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._log = folder / "provider.log"
        self._keys = folder / "keys.json"
        self._command = [
            *(sys.executable, "-m", "tests.chaos.provider"),
            *(str(port), str(self._keys), issuer, audience),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self._keys.write_text("[]")
        self.rotate()

    def rotate(self) -> None:
        """Sign with a new key from the next start on, and publish the former ones too."""
        key = ECKey.generate_key("P-256", auto_kid=True)
        self._keys.write_text(json.dumps([key.as_dict(private=True), *self._read()]))

    def start(self) -> None:
        """Start the provider and wait until it answers."""
        with self._log.open("ab") as sink:
            self._process = subprocess.Popen(self._command, stdout=sink, stderr=sink)
        with httpx.Client(transport=httpx.HTTPTransport(retries=10), timeout=60) as http:
            http.get(f"{self.url}/jwks").raise_for_status()

    def kill(self) -> None:
        """Kill the provider, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Let connections hang until the provider is killed."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    async def token(self, scope: str = "") -> str:
        """Return a token by the grant of client credentials."""
        form = {"grant_type": "client_credentials", "scope": scope}
        async with httpx.AsyncClient(base_url=self.url, timeout=60) as http:
            answer = await http.post("/token", data=form, auth=("ops", SECRET))
        return str(answer.raise_for_status().json()["access_token"])

    def _read(self) -> list[dict[str, Any]]:
        keys: list[dict[str, Any]] = json.loads(self._keys.read_text())
        return keys


class _Client(ClientMixin):  # type: ignore[misc]  # without types
    def get_client_id(self) -> str:
        return "ops"

    def get_allowed_scope(self, scope: str) -> str:
        return scope or ""

    def check_client_secret(self, client_secret: str) -> bool:
        return client_secret == SECRET

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return True

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type == "client_credentials"


def app(keys: list[dict[str, Any]], issuer: str, audience: str) -> Flask:
    """Return the provider."""
    flask = Flask("identity provider")

    class Generator(JWTBearerTokenGenerator):  # type: ignore[misc]  # without types
        def get_jwks(self) -> dict[str, Any]:
            return {"keys": keys[:1]}  # from a set, the token has the id of its key

        def get_audiences(self, client: Any, user: Any, scope: str) -> str:
            return audience

    server = AuthorizationServer(flask, lambda name: _Client(), lambda token, request: None)
    server.register_token_generator("default", Generator(issuer, alg="ES256"))
    server.register_grant(ClientCredentialsGrant)
    public = {
        "keys": [{**ECKey.import_key(key).as_dict(private=False), "use": "sig"} for key in keys]
    }
    flask.post("/token")(server.create_token_response)
    flask.get("/jwks")(lambda: public)
    return flask


if __name__ == "__main__":
    port, path, *names = sys.argv[1:]
    served = app(json.loads(Path(path).read_text()), *names)
    make_server("127.0.0.1", int(port), served, threaded=True).serve_forever()
