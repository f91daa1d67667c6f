"""The socket that a server listens on."""

from __future__ import annotations

import socket
from typing import Final

from roundgate.config import ConfigFile
from roundgate.errors import ConfigError, UsageError
from roundgate.settings import Settings


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


LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


def check_exposure(file: ConfigFile, using: Settings, host: str) -> None:
    """Without authentication everybody who reaches the gateway is its one local
    subject: not on a public address.

    Raises:
        ConfigError: nobody said that this is meant.
    """
    if file.config.auth != "none" or host in LOOPBACK or using.allow_anonymous:
        return
    remedy = (
        "configure auth, bind to 127.0.0.1, or say --allow-anonymous if something in front "
        "authenticates"
    )
    message = f"there is no authentication, but --host {host} can be reached from outside"
    raise ConfigError([file.origin.at("auth").problem(message, remedy)])
