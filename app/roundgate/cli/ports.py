"""The socket that a server listens on."""

from __future__ import annotations

import socket

from roundgate.errors import UsageError


def bind(host: str, port: int) -> socket.socket:
    """A socket of this address; port 0 is one that the system chooses.

    Raises:
        UsageError: it cannot be had.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # a name such as localhost may stand for both: clients of either kind try IPv4
        family, kind, protocol, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UsageError(f"--host {host}: this is no address of this machine ({error})") from None
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise UsageError(
            f"--port {port}: it cannot be had at {host} ({error.strerror}); "
            "end what has it, or choose another (0: any that is free)"
        ) from None
    bound.set_inheritable(True)
    return bound
