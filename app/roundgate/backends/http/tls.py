"""TLS settings for connections to a service: trusted authorities and the gateway's certificate.

Each setting is a file name relative to gateway.yaml, or PEM text, such as from `${…}`. The gateway
reads them when it loads the back end, so that errors appear then.
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import Field, SecretStr, model_validator

from roundgate.errors import ConfigError
from roundgate.settings import Model, Origin

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

_PEM: Final = "-----BEGIN "


class TlsConfig(Model):
    """TLS of connections. Each value is a file beside gateway.yaml, or the PEM text itself."""

    ca: str | None = Field(
        None,
        description="Certificates of the trusted authorities, instead of the public authorities.",
        min_length=1,
    )
    cert: str | None = Field(
        None,
        description="The gateway's certificate, with the intermediate certificates.",
        min_length=1,
    )
    key: SecretStr | None = Field(
        None, description="Its private key. Unset: it is in the same file as cert.", min_length=1
    )
    key_password: SecretStr | None = Field(None, description="The password of an encrypted key.")

    @model_validator(mode="after")
    def _belongs_together(self) -> TlsConfig:
        if self.cert is None and (self.key is not None or self.key_password is not None):
            raise ValueError("key and key_password need cert beside them")
        return self


class Certificates:
    """The `tls:` setting of a back end or of a credential, at its place in the configuration."""

    def __init__(self, config: TlsConfig | None, origin: Origin) -> None:
        """Store the settings; read no file yet. `origin` is the place of the setting."""
        self._config = config or TlsConfig()
        self._origin = origin

    @property
    def files(self) -> frozenset[Path]:
        """The files in the setting, to watch for changes."""
        config = self._config
        secret = None if config.key is None else config.key.get_secret_value()
        named = [path for path in (config.ca, config.cert, secret) if path and _PEM not in path]
        return frozenset(self._origin.base_dir / path for path in named)

    def check(self) -> None:
        """Raise ConfigError if a file cannot be read, or its content is not usable."""
        if self._config.ca is not None or self._config.cert is not None:
            _ = self.context

    @cached_property
    def context(self) -> ssl.SSLContext:
        """The TLS context for connections. Raises ConfigError as `check` does."""
        config = self._config
        if config.ca is None and config.cert is None:
            from roundgate.net.http import trust_store

            return trust_store()
        context = self._trusting(config.ca)
        if config.cert is not None:
            self._identify(context, config.cert)
        return context

    def _trusting(self, ca: str | None) -> ssl.SSLContext:
        import ssl

        if ca is None:
            import httpx

            return httpx.create_ssl_context()
        try:
            return ssl.create_default_context(cadata=self._text("ca", ca))
        except (ssl.SSLError, ValueError):
            raise self._problem("ca", "has no certificate in PEM") from None

    def _identify(self, context: ssl.SSLContext, cert: str) -> None:
        import ssl

        key = self._config.key
        password = self._config.key_password
        secret = "" if password is None else password.get_secret_value()
        texts = [self._text("cert", cert)]
        if key is not None:
            texts.append(self._text("key", key.get_secret_value()))
        try:
            with _in_a_file("\n".join(texts)) as path:
                # without a password, OpenSSL would prompt on the terminal
                context.load_cert_chain(path, password=lambda: secret)
        except (ssl.SSLError, ValueError):
            message = "does not match the key, or one of the two is not in PEM, or is encrypted"
            raise self._problem("cert", message) from None

    def _text(self, name: str, value: str) -> str:
        if _PEM in value:
            return value
        try:
            return (self._origin.base_dir / value).read_text("ascii", "replace")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "cannot be read"
            # a key that was pasted without its first line must not be shown as the name of a file
            shown = value if len(value) < 200 and "\n" not in value else "it"
            raise self._problem(name, f"{shown}: {reason}") from None

    def _problem(self, name: str, message: str) -> ConfigError:
        remedy = "name a PEM file beside gateway.yaml, or give its text, as with ${NAME}"
        return ConfigError([self._origin.at(name).problem(message, remedy)])


@contextmanager
def _in_a_file(text: str) -> Iterator[Path]:
    """Keep a text in a temporary file that only this user may read. OpenSSL loads a certificate
    and key from files only."""
    with tempfile.TemporaryDirectory() as directory:  # its mode is 0700
        path = Path(directory, "identity.pem")
        path.touch(mode=0o600)
        path.write_text(text, "ascii", "replace")
        yield path
