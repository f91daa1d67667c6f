"""A token expires between two rounds: the caller gets a new one and goes on; nobody else
can go on in their place."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from tests.scenarios.conftest import Agency, clients
from tests.support import wire
from tests.support.issuer import ISSUER, PUBLIC_URL, bearer, jwks, token
from tests.support.rounds import REFUSAL, accept, retry, tool, valid_input_required
from tests.support.services import answer, service


@pytest.fixture
async def guarded(agency: Agency) -> AsyncIterator[Agency]:
    """The agency for callers with tokens."""
    async with service(answer(jwks("ec"))) as keys:
        agency.more_yaml = f"auth: {{issuer: {ISSUER}, jwks_url: {keys.url}/jwks}}\n"
        agency.environment = {"GATEWAY_PUBLIC_URL": PUBLIC_URL}
        yield agency


async def test_a_caller_goes_on_with_a_new_token_and_nobody_else_does(guarded: Agency) -> None:
    first, second = guarded.gateway(), guarded.gateway()
    method, params = tool("book", city="Oslo")
    async with clients(first, second) as (one, two):
        one.headers = bearer(token())
        asked = valid_input_required((await one.send(method, params)).json())
        again = retry(params, asked, who=accept(name="Ann"))

        two.headers = bearer(token(exp=int(time.time()) - 600))
        refused = await two.send(method, again)
        assert refused.status_code == 401
        assert 'error="invalid_token"' in refused.headers["www-authenticate"]
        assert "resource_metadata=" in refused.headers["www-authenticate"]

        two.headers = bearer(token(sub="eve"))
        assert (await two.error(method, again))[1]["message"] == REFUSAL
        assert guarded.diary == ["hold Oslo"]

        two.headers = bearer(token(jti="another token of the same caller"))
        result = wire.valid_result(method, (await two.send(method, again)).json())
    assert result["content"][0]["text"] == "hold Oslo, book Oslo for Ann"
    assert guarded.diary == ["hold Oslo", "book Oslo for Ann"]
