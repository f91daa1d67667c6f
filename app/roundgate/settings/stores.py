"""The kinds of store, by the text of GATEWAY_STORE: what a process knows of a store before it opens
it."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Final

from msgspec import Struct

from roundgate.errors import Problem

_HOST: Final = r"(?:[\w.%-]*|\[[\dA-Fa-f:]+\])(?::\d+)?"
_POSTGRESQL: Final = rf"postgres(?:ql)?://(?:[^@:/?#\s]+(?::[^@:/?#\s]*)?@)?{_HOST}(?:,{_HOST})*/[^@/?#\s]+(?:\?[^#\s]*)?"
"""The pattern of a URL that libpq accepts. A driver's error about another URL could quote a part of
the password."""


class StoreKind(Struct, frozen=True):
    """A kind of store.

    Its module has `open_store(opening: storage.opening.Opening) -> storage.opening.Ports`.
    """

    pattern: str
    """The pattern of the text."""
    example: str
    """A text, for an error about another text."""
    module: str
    driver: str | None = None
    """The module that must be installed, if the store needs one."""
    extra: str | None = None
    """The extra of roundgate that installs the driver."""
    is_file: bool = False
    """Whether the text is `sqlite:///` and a path. Commands of operators do not create the file."""
    needs_keys: bool = False
    """Whether a key file on one host cannot serve all replicas."""
    has_shards: bool = False
    """Whether the number of `tasks.shards` decides where due tasks are found."""

    def missing(self) -> Problem | None:
        """Return the problem of a driver that is not installed."""
        if self.driver is None or find_spec(self.driver) is not None:
            return None
        message = f"needs the extra {self.extra}, which is not installed"
        remedy = f"pip install 'roundgate[{self.extra}]'"
        return Problem("environment", "GATEWAY_STORE", message, remedy)


STORES: Final = (
    StoreKind("sqlite:///.+", "sqlite:///path", "roundgate.storage.sqlite", is_file=True),
    StoreKind(
        *(_POSTGRESQL, "postgresql://user:password@host:5432/database"),
        *("roundgate.storage.postgres", "asyncpg", "postgres"),
        needs_keys=True,
    ),
    StoreKind(
        *(r"dynamodb://[A-Za-z0-9_.-]{3,255}", "dynamodb://table"),
        *("roundgate.storage.dynamodb", "boto3", "aws"),
        has_shards=True,
    ),
)


def kind_of(text: str) -> StoreKind | None:
    """Return the kind of store that a text of GATEWAY_STORE names."""
    return next((kind for kind in STORES if re.fullmatch(kind.pattern, text)), None)
