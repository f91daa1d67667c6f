"""MCP Apps (SEP-1865): the declaration that tools have pages. Pages are ordinary resources, and calls
of pages are ordinary calls; hosts do the rest."""

from __future__ import annotations

from roundgate.backends import Catalog
from roundgate.methods.parts import Extension
from roundgate.protocol import apps


class AppsExtension(Extension):
    """Pages of tools. The extension has no methods."""

    name = apps.EXTENSION
    feature = "apps"

    def is_served(self, catalog: Catalog) -> bool:
        """Return whether the catalog has a page."""
        return any(uri.startswith(apps.SCHEME) for uri in (*catalog.resources, *catalog.unlisted))
