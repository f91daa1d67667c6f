"""Ports for servers in processes of their own."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port that the system gives to nobody else until the block ends.

    A server may listen on it all the same: it sets SO_REUSEADDR, as we do, and Linux lets two
    such sockets have one port while at most one of them listens. Elsewhere the port is only
    free when the block begins.
    """
    with socket.socket() as holder:
        if sys.platform == "linux":
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port: int = holder.getsockname()[1]
        if sys.platform != "linux":
            holder.close()
        yield port
