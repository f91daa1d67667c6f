"""Signatures of AWS (Signature Version 4) on requests to a service: API Gateway, Lambda
function URLs, OpenSearch, S3.

botocore signs, with the credentials that the process has: of the environment, of a profile, of the
role of a function, a container or an instance. It renews them by itself.
"""

from __future__ import annotations

from asyncio import to_thread
from collections import deque

import httpx

from roundgate import aws
from roundgate.backends.http.credential_config import AwsCredential
from roundgate.errors import BackendError, ConfigError


class Signing:
    """Signs one request."""

    def __init__(self, config: AwsCredential, session_tokens: deque[str]) -> None:
        """What is sent of the session's tokens is noted in these."""
        self._config = config
        self._session_tokens = session_tokens

    async def add(self, request: httpx.Request) -> None:
        """Sign it as it is now: method, URL, body, host, and what it says of itself to AWS.

        Headers that a proxy on the way may change are left out. The body is hashed whole.
        """
        body = await request.aread()
        signed = {
            name: value
            for name, value in request.headers.items()
            if name in ("host", "content-type") or name.startswith("x-amz-")
        }
        for name in ("x-amz-date", "x-amz-security-token", "x-amz-content-sha256"):
            signed.pop(name, None)  # of a signature before
        try:
            # credentials may have to be fetched first
            headers = await to_thread(
                aws.signed_headers,
                aws.ToSign(request.method, str(request.url), signed, body),
                self._config.sigv4,
                self._config.region,
            )
        except ConfigError as error:
            problem = error.problems[0]
            raise BackendError(f"The gateway cannot sign the request: {problem.message}") from None
        request.headers.update(headers)
        token = request.headers.get("x-amz-security-token")
        if token is not None and token not in self._session_tokens:
            self._session_tokens.append(token)

    async def has_another(self) -> bool:
        """Another signature would be the same."""
        return False
