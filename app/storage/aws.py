"""Calls of an AWS service: boto3's client blocks, so each call hops to a thread here, and "not now" becomes one error.

boto3 is not imported: whoever builds a store hands it a function that makes the client.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

from anyio import CapacityLimiter, to_thread

from app.errors import Unavailable

MakeClient: TypeAlias = Callable[[], Any]
"""Makes boto3's client; raises ConfigError if something that it needs is not set. Called once, when the first call
needs it or by `Aws.prepare`."""

THREADS: Final = 32
"""Calls at once; the client's pool of connections has to be as large."""

NOT_NOW: Final = frozenset(
    {
        "InternalFailure",
        "InternalServerError",
        "KmsThrottled",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestTimeout",
        "ServiceUnavailable",
        "Throttling",
        "ThrottlingException",
    }
)
"""Codes of errors that pass: botocore has tried again by itself before we get one."""


class Aws:
    """One service, under one client."""

    def __init__(self, make_client: MakeClient, name: str) -> None:
        self._make_client = make_client
        self._name = name
        self._client: Any = None
        self._making = threading.Lock()
        self._limiter = CapacityLimiter(THREADS)

    async def call(self, operation: str, **arguments: Any) -> Any:
        """What an operation of the client answers.

        Raises:
            Unavailable: throttled, timed out, not reached, or the service's own fault.
        """
        return await self.do(lambda client: getattr(client, operation)(**arguments))

    async def do(self, work: Callable[[Any], Any], *, abandon: bool = False) -> Any:
        """What several calls in one thread return; see `call`. With `abandon` nobody waits once we are cancelled."""
        run = partial(self._run, work)
        return await to_thread.run_sync(run, limiter=self._limiter, abandon_on_cancel=abandon)

    def prepare(self) -> None:
        """Make the client now, which opens no connection: for a process that nobody waits for yet.

        Raises:
            ConfigError: see `MakeClient`.
        """
        self._made()

    async def aclose(self) -> None:
        """Let go of the connections."""
        client, self._client = self._client, None
        if client is not None:
            await to_thread.run_sync(client.close)

    def _run(self, work: Callable[[Any], Any]) -> Any:
        from botocore import exceptions

        try:
            return work(self._made())
        except exceptions.ClientError as error:
            if not _passes(error.response):
                raise
            raise Unavailable(f"{self._name} cannot take the call just now") from error
        except (exceptions.ConnectionError, exceptions.CredentialRetrievalError, exceptions.HTTPClientError) as error:
            raise Unavailable(f"{self._name} cannot be reached just now") from error

    def _made(self) -> Any:
        with self._making:  # a client may be shared by threads, but not made by two
            if self._client is None:
                self._client = self._make_client()
            return self._client


def _passes(response: Any) -> bool:
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status >= 500 or response.get("Error", {}).get("Code") in NOT_NOW
