"""Proxies in front of `roundgate serve`, and clients that pretend to be behind one."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from roundgate.errors import ConfigError
from tests.support import wire
from tests.support.asgi import config_of
from tests.support.server import configured, running

TOOLS = """
from roundgate import tool

@tool
async def hello() -> str:
    return "hello"
"""


@pytest.mark.parametrize(
    ("trusted", "served"),
    [
        ([], {"203.0.113.{}": 3}),
        (["10.0.0.1"], {"203.0.113.{}": 3}),
        (["127.0.0.0/8"], {"203.0.113.{}": 6}),
        (
            ["127.0.0.1"],
            {
                "203.0.113.{}": 6,
                "198.51.100.1, 203.0.113.1{},": 6,
                "203.0.113.2{}, , 127.0.0.1 ,": 6,
                ",": 3,
            },
        ),
    ],
    ids=["none", "another", "a network", "an address"],
)
def test_only_a_proxy_that_is_named_says_who_is_calling(
    tmp_path: Path, trusted: list[str], served: dict[str, int]
) -> None:
    config = configured(
        tmp_path, TOOLS, http={"trusted_proxies": trusted}, rate={"calls_per_minute": 3}
    )
    call = wire.call("hello")
    environment = {
        "GATEWAY_ALLOW_ANONYMOUS": "true",
        "GATEWAY_STORE": f"sqlite:///{tmp_path}/s.sqlite3",
    }

    def allowed(forwarded: str) -> int:
        headers = [{"x-forwarded-for": forwarded.format(number)} for number in range(6)]
        answers = [
            http.post("/mcp", json=call, headers=wire.headers(call) | one) for one in headers
        ]
        return [answer.status_code for answer in answers].count(200)

    with (
        running(config, environment) as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
    ):
        assert {forwarded: allowed(forwarded) for forwarded in served} == served


@pytest.mark.parametrize("proxy", ["*", "proxy.internal", "10.0.0.1/8", "10.0.0.0/33", ""])
def test_a_proxy_is_named_by_its_address_or_network(proxy: str) -> None:
    with pytest.raises(ConfigError, match="trusted_proxies"):
        config_of({"http": {"trusted_proxies": [proxy]}, "backends": []})
