"""Peer: FastMCP's proxy in front of the servers whose addresses are in `BENCH_SERVERS`."""

import os

# Not in `.venv`, where types are checked.
from fastmcp.server import create_proxy  # type: ignore[import-not-found, unused-ignore]
from starlette.applications import Starlette


def proxy() -> Starlette:
    urls = os.environ["BENCH_SERVERS"].split()
    # FastMCP puts one "_" between the key and the name of a tool
    servers = {f"s{number}_": {"url": url} for number, url in enumerate(urls)}
    app: Starlette = create_proxy({"mcpServers": servers}, name="bench").http_app(
        json_response=True, stateless_http=True, host_origin_protection=False
    )
    return app
