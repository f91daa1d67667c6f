"""URIs with characters beyond ASCII (IRIs): a client may send them as they are listed, or
percent-encoded, as clients on the Python SDK do."""

from __future__ import annotations

from typing import Any

import pytest

from roundgate import resource
from tests.support.asgi import Client, client, gateway
from tests.support.scripted import Asked, error, result, scripted
from tests.support.upstreams import gateway_of

RAW, ENCODED = "note://café/menü", "note://caf%C3%A9/men%C3%BC"
SPELLINGS = (RAW, ENCODED, ENCODED.lower(), "note://café/men%c3%bc")


@resource(RAW)
def listed_raw() -> str:
    """Is listed as people write it."""
    return "listed"


@resource("memo://caf%C3%A9")
def listed_encoded() -> str:
    """Is listed as URIs are written."""
    return "listed"


@resource("dish://café/{name}")
def dish(name: str) -> str:
    """Return its variable."""
    return name


APP = (listed_raw, listed_encoded, dish)


async def read(mcp: Client, uri: str) -> dict[str, Any]:
    body: dict[str, Any] = (await mcp.post("resources/read", {"uri": uri})).json()
    return body


async def texts(mcp: Client, *uris: str) -> list[Any]:
    read_ones = [await read(mcp, uri) for uri in uris]
    return [each.get("result", {}).get("contents", [{}])[0].get("text") for each in read_ones]


async def test_a_resource_is_read_in_either_spelling() -> None:
    async with client(gateway(*APP)) as mcp:
        assert await texts(mcp, *SPELLINGS) == ["listed"] * 4
        assert await texts(mcp, "memo://café", "memo://caf%c3%a9") == ["listed"] * 2
        contents = (await read(mcp, ENCODED))["result"]["contents"]
        assert contents[0]["uri"] == ENCODED
        assert (await read(mcp, "note://cafe/menü"))["error"]["data"] == {"uri": "note://cafe/menü"}


async def test_a_template_matches_either_spelling() -> None:
    async with client(gateway(*APP)) as mcp:
        uris = ["dish://café/crêpe", "dish://caf%C3%A9/cr%C3%AApe", "dish://caf%c3%a9/cr%c3%aape"]
        assert await texts(mcp, *uris) == ["crêpe"] * 3
        assert await texts(mcp, "dish://café/a%2Fb", "dish://café/a/b") == [None, None]


@pytest.mark.parametrize("ruled", SPELLINGS)
@pytest.mark.parametrize("effect", ["deny", "allow"])
async def test_a_rule_in_either_spelling_decides_about_both(effect: str, ruled: str) -> None:
    rules: list[dict[str, Any]] = [{effect: {"resource": ruled}}]
    rules += [{"allow": {}}] if effect == "deny" else []
    async with client(gateway(*APP, policy=rules)) as mcp:
        expected = None if effect == "deny" else "listed"
        assert await texts(mcp, *SPELLINGS) == [expected] * 4
        dishes = "dish://café/tea", "memo://café"
        others = await texts(mcp, *dishes)
        assert others == (["tea", "listed"] if effect == "deny" else [None, None])


class Notes:
    """A server that knows one spelling of its resources, and its template."""

    def __init__(self, listed: str) -> None:
        self.listed = listed

    def __call__(self, asked: Asked) -> Any:
        match asked.rpc:
            case "server/discover":
                about = {"supportedVersions": ["2026-07-28"], "capabilities": {"resources": {}}}
                return result(asked, about)
            case "resources/list":
                return result(asked, {"resources": [{"uri": self.listed, "name": "menu"}]})
            case "resources/templates/list":
                template = {"uriTemplate": "dish://café/{name}", "name": "dish"}
                return result(asked, {"resourceTemplates": [template]})
            case "resources/read":
                uri = asked.params["uri"]
                if uri != self.listed and not uri.startswith("dish:"):
                    return error(asked, -32602, "unknown", {"uri": uri})
                return result(asked, {"contents": [{"uri": uri, "text": "read"}]})
        return error(asked, -32601)


@pytest.mark.parametrize("uris", ["kept", "named"])
@pytest.mark.parametrize("listed", [RAW, ENCODED])
async def test_a_server_is_asked_for_the_spelling_that_it_lists(listed: str, uris: str) -> None:
    async with scripted(Notes(listed)) as server:
        entry = {"kind": "mcp", "name": "up", "url": server.url, "uris": uris}
        async with gateway_of(entry) as mcp:
            name = "up/" if uris == "named" else ""
            spellings = [uri.replace("note://", f"note://{name}") for uri in SPELLINGS]
            assert await texts(mcp, *spellings) == ["read"] * 4
            dishes = [f"dish://{name}café/crêpe", f"dish://{name}caf%C3%A9/cr%C3%AApe"]
            assert await texts(mcp, *dishes) == ["read"] * 2


@pytest.mark.parametrize("excluded", SPELLINGS)
async def test_an_excluded_resource_of_a_server_is_read_in_no_spelling(excluded: str) -> None:
    async with scripted(Notes(RAW)) as server:
        entry = {"kind": "mcp", "name": "up", "url": server.url}
        async with gateway_of(
            {**entry, "resources": {"exclude": [excluded, "dish://caf*"]}}
        ) as mcp:
            dishes = ["dish://café/crêpe", "dish://caf%C3%A9/cr%C3%AApe"]
            assert await texts(mcp, *SPELLINGS, *dishes) == [None] * 6
