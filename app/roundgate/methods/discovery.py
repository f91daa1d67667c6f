"""server/discover: what the server is, speaks and can do."""

from __future__ import annotations

from typing import Any

from roundgate.backends import Catalog
from roundgate.methods.extensions import discovered, features_of_extensions
from roundgate.methods.parts import Kit
from roundgate.methods.results import Reply
from roundgate.methods.rounds import RequestContext
from roundgate.protocol import SUPPORTED_VERSIONS, Params, without_none
from roundgate.settings import ServerConfig


class DiscoveryMethods:
    """The answer is the same for everybody until the catalog changes."""

    def __init__(self, kit: Kit) -> None:
        found = {
            "supportedVersions": list(SUPPORTED_VERSIONS),
            "capabilities": capabilities(kit.features),
            **without_none(instructions=kit.config.server.instructions),
        }
        self._reply = kit.results.reply(found, kit.config.caching.discover)

    async def discover(self, context: RequestContext, asked: Params) -> Reply:
        """server/discover"""
        return self._reply


def features_of(catalog: Catalog, *, streams: bool) -> frozenset[str]:
    """What there is something to serve for; a revision asks this before it lets a request in.

    What is missing just now may have had tools and tasks: "there are none here" would be for good,
    and whoever was told so would not hear of them when they are back.
    """
    served = {
        "tools": bool(catalog.tools or catalog.missing),
        "prompts": bool(catalog.prompts),
        "resources": bool(catalog.resources or catalog.templates),
        "completions": catalog.can_complete,
        "subscriptions": streams,
    }
    own = frozenset(feature for feature, is_served in served.items() if is_served)
    return own | features_of_extensions(catalog)


def capabilities(features: frozenset[str]) -> dict[str, Any]:
    """The schema's `ServerCapabilities`: exactly what the features let through."""
    changes = {"listChanged": True} if "subscriptions" in features else {}
    found: dict[str, Any] = {
        name: dict(changes) for name in ("tools", "prompts", "resources") if name in features
    }
    if "resources" in found and changes:
        found["resources"]["subscribe"] = True
    if "completions" in features:
        found["completions"] = {}
    if found:
        found["logging"] = {}  # any handler may log to a client that asks for it
    if extensions := discovered(features):
        found["extensions"] = extensions
    return found


def server_info(server: ServerConfig) -> dict[str, Any]:
    """The schema's `Implementation`."""
    optional = without_none(
        title=server.title, description=server.description, websiteUrl=server.website_url
    )
    return {"name": server.name, "version": server.version, **optional}
