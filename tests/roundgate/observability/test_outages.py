"""An outage is an error of the server, in spans and metrics; a refused caller is counted."""

from __future__ import annotations

from opentelemetry.trace import StatusCode

from roundgate import prompt
from roundgate.errors import RateExceeded, Unavailable
from roundgate.settings.process import Settings
from tests.support.asgi import STATE_KEY, built, client, config_file, gateway
from tests.support.issuer import ISSUER, PUBLIC_URL, jwks, token
from tests.support.services import answer, service
from tests.support.telemetry import recorded

DOWN = answer(b"", "503 Down")


@prompt
async def away() -> str:
    """Needs a service that is away."""
    raise Unavailable("The service is away")


@prompt
async def busy() -> str:
    """Is called too often."""
    raise RateExceeded("60 a minute", 1)


async def test_a_request_that_fails_for_an_outage_is_an_error_in_its_span_and_metrics() -> None:
    with recorded() as seen:
        async with client(gateway(away, busy)) as mcp:
            assert (await mcp.error("prompts/get", {"name": "away"}))[0] == 503
            await mcp.post("prompts/get", {"name": "busy"})
        outage, refusal = seen.spans()
        assert outage.attributes is not None
        assert outage.attributes["error.type"] == "503"
        assert outage.attributes["rpc.response.status_code"] == "-32600"
        assert outage.status.status_code is StatusCode.ERROR
        assert refusal.attributes is not None
        assert "error.type" not in refusal.attributes
        assert refusal.status.status_code is StatusCode.UNSET
        assert seen.points("mcp.server.operation.duration", error__type="503")


async def test_callers_that_are_refused_are_counted_by_the_reason() -> None:
    async with service(answer(jwks("ec")), DOWN) as keys:
        auth = {"issuer": ISSUER, "jwks_url": f"{keys.url}/jwks"}
        using = Settings(public_url=PUBLIC_URL, state_keys=STATE_KEY)
        app = built(config_file(away, auth=auth), using)
        with recorded() as seen:
            async with client(app) as mcp:
                for header in (
                    {},
                    {"authorization": "Bearer no"},
                    {"authorization": f"Bearer {token(iss='https://other.example')}"},
                    {"authorization": f"Bearer {token(exp=1)}"},
                    {"authorization": f"Bearer {token()}"},
                ):
                    host = {"host": "mcp.example.com"}
                    await mcp.post("prompts/list", headers={**host, **header})
            points = seen.points("roundgate.auth.refused")
    assert {dict(point.attributes)["reason"]: point.value for point in points} == {
        "no token": 1,
        "malformed": 1,
        "issuer": 1,
        "expired": 1,
    }


async def test_callers_that_cannot_be_verified_are_counted_too() -> None:
    async with service(DOWN) as keys:
        auth = {"issuer": ISSUER, "jwks_url": f"{keys.url}/jwks"}
        using = Settings(public_url=PUBLIC_URL, state_keys=STATE_KEY)
        with recorded() as seen:
            async with client(built(config_file(away, auth=auth), using)) as mcp:
                response = await mcp.post(
                    "prompts/list",
                    headers={"host": "mcp.example.com", "authorization": f"Bearer {token()}"},
                )
                assert response.status_code == 503
            points = seen.points("roundgate.auth.refused", reason="keys unavailable")
    assert [point.value for point in points] == [1]
