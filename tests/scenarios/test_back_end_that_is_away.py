"""A service is away: its callers are told so, everybody else is served, and when it is
back nothing is restarted."""

from __future__ import annotations

from tests.scenarios.conftest import Agency, clients
from tests.support.proxy import Proxy, Way
from tests.support.services import answer, service

SERVICE = """  - kind: http
    name: weather
    base_url: {url}
    timeout_s: 5
    tools: [{{name: forecast, description: The weather., path: /forecast}}]
"""


async def test_a_service_that_is_away_costs_its_own_callers_alone(agency: Agency) -> None:
    async with service(answer(b'{"sky": "clear"}')) as weather:
        with Proxy(weather.url) as network:
            agency.more_yaml = SERVICE.format(url=network.url)
            network.turn(Way.SHUT)
            gateway = agency.gateway()
            async with clients(gateway) as (one,):
                assert (await one.mcp.http.get("/healthz")).json()["status"] == "ok"
                names = [tool["name"] for tool in (await one.mcp.result("tools/list"))["tools"]]
                assert "weather__forecast" in names
                away = await one.mcp.call("weather__forecast")
                assert away["isError"] is True
                assert "weather" in away["content"][0]["text"]
                assert network.url not in away["content"][0]["text"], (
                    "where a service is is nobody's business"
                )
                assert (await one.call("book", {"city": "Oslo"})).json()["result"][
                    "resultType"
                ] == "input_required"
                network.turn(Way.OPEN)
                back = await one.mcp.call("weather__forecast")
                assert back["structuredContent"] == {"sky": "clear"}
    assert weather.request_lines == ["GET /forecast HTTP/1.1"]
