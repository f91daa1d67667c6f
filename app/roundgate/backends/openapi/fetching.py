"""Documents over HTTP, for the commands that may fetch them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import httpx

from roundgate.backends.openapi.sources import Fetch
from roundgate.errors import UnreadableDocument

TIMEOUT_S: Final = 60.0


@contextmanager
def fetching(fetched: dict[str, bytes] | None = None) -> Iterator[Fetch]:
    """What fetches documents within the block, but for those that have been `fetched`,
    by URL: others are added.

    Redirects are not followed: they lead where nothing was allowed.
    """
    known = {} if fetched is None else fetched
    with httpx.Client(
        timeout=TIMEOUT_S, trust_env=False, headers={"accept": "application/json, */*"}
    ) as client:

        def fetch(url: str, max_bytes: int) -> bytes:
            if url not in known or len(known[url]) > max_bytes:
                known[url] = had(url, max_bytes)
            return known[url]

        def had(url: str, max_bytes: int) -> bytes:
            body = bytearray()
            try:
                with client.stream("GET", url) as response:
                    if response.status_code != 200:
                        raise UnreadableDocument(
                            f"{url} answers {response.status_code}{_where(response)}"
                        )
                    for piece in response.iter_bytes(65_536):
                        body += piece
                        if len(body) > max_bytes:
                            raise UnreadableDocument(f"{url} has more than {max_bytes:,} bytes")
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise UnreadableDocument(
                    f"{url} cannot be fetched ({type(error).__name__})"
                ) from None
            return bytes(body)

        yield fetch


def _where(response: httpx.Response) -> str:
    target = response.headers.get("location", "")
    return f", a redirect to {target[:200]}: give that URL" if target else ""
