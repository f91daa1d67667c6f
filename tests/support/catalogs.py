"""Catalogs of back ends without a configuration."""

from collections.abc import Sequence

from roundgate.backends.base import NamedBackend
from roundgate.backends.catalog import Catalog
from roundgate.backends.serving import ask, merge
from roundgate.errors import Problem


async def built(backends: Sequence[NamedBackend], page_size: int = 100) -> Catalog:
    """The catalog of everything that back ends offer."""
    problems: list[Problem] = []
    return merge(await ask(backends, problems, {}), page_size, problems, {})
