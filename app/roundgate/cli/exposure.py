"""Who may reach a server that `serve` begins."""

from __future__ import annotations

from typing import Final

from roundgate.config import ConfigFile
from roundgate.errors import ConfigError
from roundgate.settings import Settings

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
