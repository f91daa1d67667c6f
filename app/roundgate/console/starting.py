"""The conditions under which a gateway serves the console. They need no extra."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from roundgate.config import ConfigFile
from roundgate.errors import ConfigError, Problem
from roundgate.runtime.startup import is_private
from roundgate.settings import Settings


def check(file: ConfigFile, using: Settings) -> None:
    """Check that this process can serve the console.

    Raises:
        ConfigError: an extra is missing, or others than operators could use the console.
    """
    if problems := list(_problems(file, using)):
        raise ConfigError(problems)


def _problems(file: ConfigFile, using: Settings) -> Iterator[Problem]:
    """Yield the reasons why this process cannot serve the console."""
    place = file.origin.at("console")
    if find_spec("jinja2") is None:
        yield place.problem(
            "needs the extra console, which is not installed", "pip install 'roundgate[console]'"
        )
    if file.config.auth == "none" and not is_private(file, using):
        yield place.problem(
            "is on without auth, but not only this machine can call",
            "configure auth with operator_scope; or unset GATEWAY_PUBLIC_URL and "
            "GATEWAY_ALLOW_ANONYMOUS",
        )
