"""Requests of the skills extension, which the official models do not have."""

from __future__ import annotations

from typing import Any

from tests.support.asgi import Client


async def answer(mcp: Client, method: str, **params: Any) -> dict[str, Any]:
    """The result of a request that succeeds."""
    response = await mcp.post(method, params)
    assert response.status_code == 200, response.text
    value: dict[str, Any] = response.json()["result"]
    return value


async def code(mcp: Client, method: str, **params: Any) -> int:
    """The code of a request's error."""
    value: int = (await mcp.post(method, params)).json()["error"]["code"]
    return value
