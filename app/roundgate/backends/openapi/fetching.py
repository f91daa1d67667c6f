"""Documents over HTTP, for the commands that may fetch them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import httpx

from roundgate.backends.http.body import ACCEPTED, Unpacker
from roundgate.backends.openapi.sources import Fetch
from roundgate.errors import AnswerTooLarge, UnknownEncoding, UnreadableDocument

TIMEOUT_S: Final = 60.0


@contextmanager
def fetching(fetched: dict[str, bytes] | None = None) -> Iterator[Fetch]:
    """What fetches documents within the block, but for those that have been `fetched`,
    by URL: others are added.

    Redirects are not followed: they lead where nothing was allowed.
    """
    known = {} if fetched is None else fetched
    with httpx.Client(
        timeout=TIMEOUT_S,
        trust_env=False,
        headers={"accept": "application/json, */*", "accept-encoding": ACCEPTED},
    ) as client:

        def fetch(url: str, max_bytes: int) -> bytes:
            if url not in known or len(known[url]) > max_bytes:
                known[url] = had(url, max_bytes)
            return known[url]

        def had(url: str, max_bytes: int) -> bytes:
            try:
                with client.stream("GET", url) as response:
                    if response.status_code != 200:
                        raise UnreadableDocument(
                            f"{url} answers {response.status_code}{_where(response)}"
                        )
                    return _unpacked(response, max_bytes)
            except AnswerTooLarge:
                raise UnreadableDocument(f"{url} has more than {max_bytes:,} bytes") from None
            except UnknownEncoding:
                raise UnreadableDocument(
                    f"{url} is packed in a way that was not asked for ({ACCEPTED})"
                ) from None
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise UnreadableDocument(
                    f"{url} cannot be fetched ({type(error).__name__})"
                ) from None

        yield fetch


def _unpacked(response: httpx.Response, max_bytes: int) -> bytes:
    unpacker = Unpacker(response.headers.get("content-encoding", ""), max_bytes)
    for piece in response.iter_raw(65_536):
        unpacker.feed(piece)
    return unpacker.body()


def _where(response: httpx.Response) -> str:
    target = response.headers.get("location", "")
    return f", a redirect to {target[:200]}: give that URL" if target else ""
