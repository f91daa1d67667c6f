"""The MCP endpoints of a configuration: the usual one, and one for each view."""

from __future__ import annotations

from roundgate.backends import ViewConfig
from roundgate.config import GatewayConfig
from roundgate.settings import ServerConfig


def endpoints_of(config: GatewayConfig) -> dict[str, str]:
    """The view at each path of an MCP endpoint, the usual one first; that of
    everything has no name."""
    views = {view.effective_path: view.name for view in config.views}
    usual = views.pop(config.http.path, "")
    return {config.http.path: usual, **views}


def view_of(config: GatewayConfig, name: str) -> ViewConfig | None:
    """The settings of a view; `None` for the endpoint of everything."""
    return next((view for view in config.views if view.name == name), None)


def server_of(config: GatewayConfig, view: str) -> ServerConfig:
    """What a view says of itself."""
    found = view_of(config, view)
    if found is None or found.instructions is None:
        return config.server
    return config.server.model_copy(update={"instructions": found.instructions})
