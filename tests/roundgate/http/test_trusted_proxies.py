"""Proxies in front of `roundgate serve`, and clients that pretend to be behind one."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from roundgate.errors import ConfigError
from tests.support import wire
from tests.support.asgi import config_of
from tests.support.server import running

TOOLS = """
from roundgate import tool

@tool
async def hello() -> str:
    return "hello"
"""


@pytest.mark.parametrize(
    ("trusted", "forwarded", "allowed"),
    [
        ("[]", "203.0.113.{}", 3),
        ("[127.0.0.1]", "203.0.113.{}", 6),
        ("[127.0.0.0/8]", "203.0.113.{}", 6),
        ("[10.0.0.1]", "203.0.113.{}", 3),
        ("[127.0.0.1]", "198.51.100.1, 203.0.113.{},", 6),
        ("[127.0.0.1]", "203.0.113.{}, , 127.0.0.1 ,", 6),
        ("[127.0.0.1]", ",", 3),
    ],
)
def test_only_a_proxy_that_is_named_says_who_is_calling(
    tmp_path: Path, trusted: str, forwarded: str, allowed: int
) -> None:
    (tmp_path / "tools.py").write_text(TOOLS)
    config = tmp_path / "gateway.yaml"
    config.write_text(
        f"http: {{trusted_proxies: {trusted}}}\nrate: {{calls_per_minute: 3}}\n"
        "backends: [{kind: python, name: own, prefix: '', path: tools.py}]\n"
    )
    call = wire.message("tools/call", {"name": "hello", "arguments": {}})
    environment = {
        "GATEWAY_ALLOW_ANONYMOUS": "true",
        "GATEWAY_STORE": f"sqlite:///{tmp_path}/s.sqlite3",
    }
    with running(config, environment) as server, httpx.Client(timeout=60) as http:
        answers = [
            http.post(
                f"{server.url}/mcp",
                json=call,
                headers={**wire.headers(call), "x-forwarded-for": forwarded.format(number)},
            )
            for number in range(6)
        ]
    assert [answer.status_code for answer in answers].count(200) == allowed


@pytest.mark.parametrize("proxy", ["*", "proxy.internal", "10.0.0.1/8", "10.0.0.0/33", ""])
def test_a_proxy_is_named_by_its_address_or_network(proxy: str) -> None:
    with pytest.raises(ConfigError, match="trusted_proxies"):
        config_of({"http": {"trusted_proxies": [proxy]}, "backends": []})
