"""Who is calling. Knows nothing of MCP methods, tools or HTTP frameworks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roundgate.lazy import face

if TYPE_CHECKING:
    from roundgate.auth.authorizer import AuthorizerVerifier as AuthorizerVerifier
    from roundgate.auth.jwks import KeySet as KeySet
    from roundgate.auth.principal import LOCAL as LOCAL
    from roundgate.auth.principal import LocalVerifier as LocalVerifier
    from roundgate.auth.principal import Principal as Principal
    from roundgate.auth.principal import Verifier as Verifier
    from roundgate.auth.verifier import JwtVerifier as JwtVerifier
else:
    __getattr__, __all__ = face(
        __name__,
        {
            ".authorizer": "AuthorizerVerifier",
            ".jwks": "KeySet",
            ".principal": "LOCAL LocalVerifier Principal Verifier",
            ".verifier": "JwtVerifier",
        },
    )
