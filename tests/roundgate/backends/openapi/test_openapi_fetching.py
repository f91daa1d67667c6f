"""Documents over HTTP: what comes packed is unpacked while it arrives, one layer, within the limit."""

from __future__ import annotations

import asyncio
import gzip
import zlib

import pytest

from roundgate.backends.openapi.documents import fetching
from roundgate.errors import UnreadableDocument
from tests.support.services import answer, service

DOCUMENT = b'{"openapi": "3.1.0"}'


def fetched(url: str, max_bytes: int = 1_000_000) -> bytes:
    with fetching() as fetch:
        return fetch(url, max_bytes)


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (DOCUMENT, "identity"),
        (gzip.compress(DOCUMENT, mtime=0), "gzip"),
        (zlib.compress(DOCUMENT), "deflate"),
    ],
)
async def test_a_document_may_be_packed_once(body: bytes, encoding: str) -> None:
    async with service(answer(body, content_encoding=encoding)) as served:
        assert await asyncio.to_thread(fetched, served.url) == DOCUMENT


@pytest.mark.parametrize(
    ("body", "encoding", "said"),
    [
        (
            gzip.compress(gzip.compress(DOCUMENT, mtime=0), mtime=0),
            "gzip, gzip",
            "was not requested",
        ),
        (gzip.compress(DOCUMENT, mtime=0)[:-9], "gzip", "was not requested"),
        (DOCUMENT, "gzip", "was not requested"),
        (DOCUMENT, "br", "was not requested"),
        (gzip.compress(b" " * 1_000_001, mtime=0), "gzip", "more than 1,000,000 bytes"),
        (b" " * 1_000_001, "identity", "more than 1,000,000 bytes"),
    ],
)
async def test_what_unpacks_to_more_or_in_another_way_is_refused(
    body: bytes, encoding: str, said: str
) -> None:
    async with service(answer(body, content_encoding=encoding)) as served:
        with pytest.raises(UnreadableDocument, match=said):
            await asyncio.to_thread(fetched, served.url)
