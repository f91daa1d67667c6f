"""What comes behind an answer on its connection: nobody's answer, and least
of all the next caller's.

    service    HTTP/1.1 200 … Content-Length: 7 … "first" HTTP/1.1 200 … "forged"
    call 1     reads "first"; what is behind it waits in a buffer
    call 2     on the same connection would read "forged" as the answer to its own request

So a connection on which more came than was announced is not used again (RFC 9112 section 6.3).
httpcore sees what comes later, while a connection is idle, and not what has been read already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import httpx

_TO_H11: Final = ("_stream", "_httpcore_stream", "_stream", "_connection", "_h11_state")
"""From the stream of an answer to the parser of its connection. No public way leads there;
where this one has come to an end after an upgrade of httpx or httpcore, no connection is used
twice, and a test says so."""


async def drop_if_more_came(response: httpx.Response) -> None:
    """Close the connection of an answer that has been read whole, if there is more on it."""
    if response.extensions.get("http_version") == b"HTTP/2":
        return  # its frames name their stream
    found: Any = response.stream
    for name in _TO_H11:
        found = getattr(found, name, None)
    left = getattr(found, "trailing_data", None)
    if left is not None and not left[0]:
        return
    connection = response.extensions.get("network_stream")
    if connection is not None:
        await connection.aclose()
