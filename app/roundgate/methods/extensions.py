"""The table of extensions: one entry for each, and no other place that names their modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roundgate.backends import Catalog
from roundgate.methods.parts import Extension
from roundgate.methods.search import SearchExtension
from roundgate.methods.tasks import TasksExtension
from roundgate.protocol import Route

EXTENSIONS: Final[tuple[Extension, ...]] = (TasksExtension(), SearchExtension())

ROUTES: Final[Mapping[str, Route]] = {
    method: route for extension in EXTENSIONS for method, route in extension.routes.items()
}
"""The methods of all extensions, served or not."""


def features_of_extensions(catalog: Catalog) -> frozenset[str]:
    """Return the features of the extensions that a catalog has something to serve for."""
    return frozenset(one.feature for one in EXTENSIONS if one.is_served(catalog))


def discovered(features: frozenset[str]) -> dict[str, Any]:
    """Return the member `extensions` of the server's capabilities."""
    return {
        one.name: settings
        for one in EXTENSIONS
        if one.feature in features and (settings := one.settings()) is not None
    }
