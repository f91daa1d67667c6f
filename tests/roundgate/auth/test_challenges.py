"""What a caller without a sufficient token is told: challenges before any work, and the
documents they point to."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from roundgate import Context, tool
from roundgate.errors import ConfigError
from roundgate.settings.process import Settings
from tests.support import wire
from tests.support.asgi import Client, built, client, config_file, gateway
from tests.support.issuer import (
    AUDIENCE,
    ISSUER,
    PUBLIC_URL,
    bearer,
    gateway_for,
    guarded,
    jwks,
    token,
)
from tests.support.services import Service, answer
from tests.support.sessions import BOTH, calling, opening

METADATA = "/.well-known/oauth-protected-resource"
ADDRESS = f"{PUBLIC_URL}{METADATA}/mcp"


@tool
async def whoami(ctx: Context) -> str:
    """Who calls."""
    who = ctx.principal
    return f"{who.subject} of {who.issuer} with {who.client_id}: {' '.join(sorted(who.scopes))}"


@tool(scopes=["files:read"])
async def read(ctx: Context) -> str:
    """Needs one scope."""
    return "read"


@tool(scopes=["files:write", "files:read"])
async def write(ctx: Context) -> str:
    """Needs two scopes."""
    return "written"


@pytest.fixture
async def mcp() -> AsyncIterator[Client]:
    async with gateway_for(whoami, read, write) as (made, _):
        yield made


@pytest.fixture
async def strict() -> AsyncIterator[Client]:
    """A gateway where every call needs a scope."""
    async with gateway_for(whoami, read, write, auth={"scopes": ["mcp"]}) as (made, _):
        yield made


def challenge(response: httpx.Response) -> dict[str, str]:
    """The members of a Bearer challenge, which must be one well-formed header."""
    (value,) = response.headers.get_list("www-authenticate")
    member = r'([a-z_]+)="([^"\\\x00-\x1f]*)"'
    assert re.fullmatch(rf"Bearer {member}(, {member})*", value), value
    return dict(re.findall(member, value))


async def test_a_caller_with_a_token_is_who_it_says(mcp: Client) -> None:
    response = await mcp.post("tools/call", {"name": "whoami"}, headers=bearer(token(scope="b a")))
    assert response.json()["result"]["content"][0]["text"] == f"ann of {ISSUER} with cli: a b"


async def test_a_caller_without_a_token_is_told_where_to_begin(mcp: Client) -> None:
    response = await mcp.post("tools/list")
    assert response.status_code == 401
    assert challenge(response) == {"resource_metadata": ADDRESS}
    assert response.headers["content-type"] == "application/json"


async def test_the_first_challenge_names_the_scopes_that_every_call_needs(strict: Client) -> None:
    assert challenge(await strict.post("tools/list")) == {
        "scope": "mcp",
        "resource_metadata": ADDRESS,
    }


async def test_the_log_names_the_caller_whose_token_lacks_a_scope_of_every_call(
    strict: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "roundgate.request")
    for headers in (bearer(token(scope="other")), bearer(token(scope="other")[:-4] + "AAAA")):
        await strict.post("tools/call", {"name": "whoami"}, headers=headers)
    refused, forged = [vars(record)["fields"] for record in caplog.records]
    assert (refused["status"], refused["error"]) == (403, "every call needs the scope mcp")
    assert (refused["subject"], refused["issuer"], refused["client"]) == ("ann", ISSUER, "cli")
    assert (forged["status"], forged.get("subject")) == (401, None)


ENTRA = {"mcp.access": "api://gateway/mcp.access", "files:read": "api://gateway/files:read"}


async def test_clients_are_told_the_names_under_which_they_request_scopes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Clients of Entra request `api://…/mcp.access`, and the token says `mcp.access`."""
    caplog.set_level("INFO", "roundgate")
    auth = {"scopes": ["mcp.access"], "scope_names": ENTRA}
    async with gateway_for(whoami, read, write, auth=auth) as (made, _):
        scope = "api://gateway/mcp.access"
        assert challenge(await made.post("tools/list"))["scope"] == scope
        lacking = await made.post("tools/list", headers=bearer(token(scp="other")))
        assert challenge(lacking)["scope"] == scope
        words = f"every call needs the scope {scope}"
        assert lacking.json()["error"]["message"] == words
        params = {"name": "read"}
        headers = bearer(token(scp="mcp.access"))
        lacking = await made.post("tools/call", params, headers=headers)
        assert challenge(lacking)["scope"] == f"{scope} api://gateway/files:read"
        words = "tool read needs the scope api://gateway/files:read"
        assert lacking.json()["error"]["message"] == words
        served = await made.post(
            "tools/call", params, headers=bearer(token(scp="mcp.access files:read"))
        )
        assert "result" in served.json()
        document = (await made.http.get(f"{METADATA}/mcp")).json()
        assert document["scopes_supported"] == [
            "api://gateway/files:read",
            "files:write",
            "api://gateway/mcp.access",
        ]
    assert words in [getattr(record, "fields", {}).get("error") for record in caplog.records]


async def test_a_batch_of_an_older_client_is_told_these_names_too() -> None:
    auth = {"scope_names": ENTRA}
    async with gateway_for(read, auth=auth) as (made, _):
        headers = {"authorization": f"Bearer {token()}", "accept": BOTH}
        begun = await made.http.post("/mcp", json=opening("2025-03-26"), headers=headers)
        headers |= {"mcp-session-id": begun.headers["mcp-session-id"]}
        answered = await made.http.post("/mcp", json=[calling("read")], headers=headers)
        (refused,) = wire.events(answered.text)
        words = "tool read needs the scope api://gateway/files:read"
        assert refused["error"]["message"] == words


@pytest.mark.parametrize("member", ["scopes", "operator_scope"])
def test_other_settings_use_the_name_in_tokens(member: str) -> None:
    requested = ENTRA["mcp.access"]
    value = [requested] if member == "scopes" else requested
    with pytest.raises(ConfigError, match=f"{requested} is the name in requests: write mcp.access"):
        guarded("https://x/jwks", read, auth={"scope_names": ENTRA, member: value})


async def test_a_token_that_does_not_hold_is_an_invalid_token(mcp: Client) -> None:
    response = await mcp.post("tools/list", headers=bearer(token(exp=1)))
    said = challenge(response)
    assert (response.status_code, said["error"], said["resource_metadata"]) == (
        401,
        "invalid_token",
        ADDRESS,
    )
    words = {"error": "invalid_token", "error_description": "The token has expired"}
    error = {"code": -32600, "message": "The token has expired", "data": words}
    assert response.json() == {"jsonrpc": "2.0", "id": 1, "error": error}


async def test_who_cannot_be_answered_under_an_id_is_answered_in_the_words_of_oauth(
    mcp: Client,
) -> None:
    expired = {"authorization": f"Bearer {token(exp=1)}"}
    response = await mcp.http.post(
        "/mcp", content=b"{", headers={**wire.headers(wire.message("x")), **expired}
    )
    assert response.json() == {
        "error": "invalid_token",
        "error_description": "The token has expired",
    }


async def test_nothing_of_the_body_is_looked_at_before_the_caller_is_known(mcp: Client) -> None:
    headers = {"content-type": "application/json", "accept": BOTH}
    known = {**headers, "authorization": f"Bearer {token()}"}
    for body in (b"", b"{", b"\xff" * 100, b"[]", b"x" * 5_000_000):
        assert (await mcp.http.post("/mcp", content=body, headers=headers)).status_code == 401
        assert (await mcp.http.post("/mcp", content=body, headers=known)).status_code in (400, 413)


async def test_a_body_that_never_comes_is_not_waited_for(mcp: Client) -> None:
    async def never() -> AsyncIterator[bytes]:
        yield pytest.fail("the body was read")

    response = await mcp.http.post(
        "/mcp", content=never(), headers={"content-type": "application/json"}
    )
    assert response.status_code == 401


async def test_a_notification_needs_a_token_too(mcp: Client) -> None:
    body = json.dumps(
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    )
    headers = {"content-type": "application/json"}
    assert (await mcp.http.post("/mcp", content=body, headers=headers)).status_code == 401
    headers["authorization"] = f"Bearer {token()}"
    assert (await mcp.http.post("/mcp", content=body, headers=headers)).status_code == 202


async def test_two_authorization_headers_are_none(mcp: Client) -> None:
    one = ("authorization", f"Bearer {token()}")
    headers = [("content-type", "application/json"), one, one]
    assert (await mcp.http.post("/mcp", content=b"{}", headers=headers)).status_code == 401


async def test_a_token_in_the_address_is_none(mcp: Client) -> None:
    response = await mcp.http.post(
        f"/mcp?access_token={token()}", content=b"{}", headers={"content-type": "application/json"}
    )
    assert response.status_code == 401


@pytest.mark.parametrize("path", [METADATA, f"{METADATA}/mcp"], ids=["root", "path-inserted"])
async def test_the_metadata_is_where_rfc_9728_has_it_and_needs_no_token(
    mcp: Client, path: str
) -> None:
    response = await mcp.http.get(path)
    assert response.status_code == 200
    assert response.json() == {
        "resource": AUDIENCE,
        "authorization_servers": [ISSUER],
        "bearer_methods_supported": ["header"],
        "scopes_supported": ["files:read", "files:write"],
    }


async def test_the_address_in_the_challenge_leads_to_the_document_about_the_resource(
    mcp: Client,
) -> None:
    address = challenge(await mcp.post("tools/list"))["resource_metadata"]
    document = (await mcp.http.get(address.removeprefix(PUBLIC_URL))).json()
    assert document["resource"] == f"{PUBLIC_URL}/mcp"


@pytest.mark.parametrize(
    ("auth", "scopes"),
    [
        ({"scopes": ["mcp"]}, ["files:read", "files:write", "mcp"]),
        ({"scopes": ["mcp"], "scopes_supported": ["mcp"]}, ["mcp"]),
        ({"scopes_supported": []}, None),
    ],
    ids=["with required", "as configured", "hidden"],
)
async def test_the_metadata_offers_scopes(auth: dict[str, Any], scopes: list[str] | None) -> None:
    async with gateway_for(read, write, auth=auth) as (mcp, _):
        assert (await mcp.http.get(METADATA)).json().get("scopes_supported") == scopes


async def test_another_path_has_its_document_at_its_own_address() -> None:
    async with gateway_for(read, http={"path": "/api/tools"}) as (mcp, _):
        assert (await mcp.http.get(f"{METADATA}/api/tools")).json()[
            "resource"
        ] == f"{PUBLIC_URL}/api/tools"
        assert (await mcp.http.get(f"{METADATA}/mcp")).status_code == 404


async def test_the_host_of_a_request_does_not_change_what_the_resource_is() -> None:
    async with gateway_for(read, http={"allowed_hosts": ["*"]}) as (mcp, _):
        response = await mcp.http.get(
            METADATA, headers={"host": "evil.example", "x-forwarded-host": "evil.example"}
        )
        assert "evil" not in response.text


async def test_without_authentication_there_is_no_metadata() -> None:
    async with client(gateway(read)) as mcp:
        assert (await mcp.http.get(METADATA)).status_code == 404


def test_authentication_needs_a_public_url() -> None:
    with pytest.raises(ConfigError, match="GATEWAY_PUBLIC_URL"):
        built(guarded("http://127.0.0.1:9/jwks", read), Settings())


async def test_a_configured_audience_takes_the_place_of_the_address() -> None:
    async with gateway_for(whoami, auth={"audience": "api://gateway"}) as (mcp, _):
        assert (
            await mcp.post("tools/list", headers=bearer(token(aud="api://gateway")))
        ).status_code == 200
        assert (await mcp.post("tools/list", headers=bearer(token()))).status_code == 401


@pytest.mark.parametrize(
    ("granted", "status"),
    [
        ("", 403),
        ("files:read", 403),
        ("files:write", 403),
        ("files", 403),
        ("files:read files:write x", 200),
    ],
)
async def test_a_tool_needs_every_one_of_its_scopes(mcp: Client, granted: str, status: int) -> None:
    response = await mcp.post("tools/call", {"name": "write"}, headers=bearer(token(scope=granted)))
    assert response.status_code == status
    if status == 403:
        said = challenge(response)
        assert said == {
            "error": "insufficient_scope",
            "error_description": said["error_description"],
            "scope": "files:read files:write",
            "resource_metadata": ADDRESS,
        }
        assert "tool write" in said["error_description"]


@pytest.mark.parametrize(
    "method", ["server/discover", "tools/list", "prompts/list", "no/such/method"]
)
async def test_a_call_without_the_scopes_that_every_call_needs_is_refused(
    strict: Client, method: str
) -> None:
    response = await strict.post(method, headers=bearer(token(scope="files:read")))
    said = challenge(response)
    assert (response.status_code, said["error"], said["scope"]) == (
        403,
        "insufficient_scope",
        "mcp",
    )


async def test_a_token_with_the_scopes_of_one_challenge_will_do(strict: Client) -> None:
    said = challenge(
        await strict.post("tools/call", {"name": "write"}, headers=bearer(token(scope="mcp")))
    )
    assert said["scope"].split() == ["mcp", "files:read", "files:write"]
    response = await strict.post(
        "tools/call", {"name": "write"}, headers=bearer(token(scope=said["scope"]))
    )
    assert response.json()["result"]["content"][0]["text"] == "written"


@pytest.mark.parametrize(
    ("granted", "names"),
    [
        ("", ["whoami"]),
        ("files:read", ["whoami", "read"]),
        ("files:write", ["whoami"]),
        ("files:write other files:read", ["whoami", "read", "write"]),
    ],
)
async def test_the_list_has_what_the_caller_may_call_and_is_private(
    mcp: Client, granted: str, names: list[str]
) -> None:
    response = await mcp.post("tools/list", headers=bearer(token(scope=granted)))
    result = response.json()["result"]
    assert ([one["name"] for one in result["tools"]], result["cacheScope"]) == (names, "private")


async def test_pages_of_a_filtered_list_are_full_and_end() -> None:
    async with gateway_for(whoami, read, write, limits={"page_size": 1}) as (mcp, _):
        seen: list[str] = []
        params: dict[str, Any] = {}
        while True:
            caller = bearer(token(scope="files:read"))
            result = (await mcp.post("tools/list", params, headers=caller)).json()["result"]
            seen += [one["name"] for one in result["tools"]]
            if "nextCursor" not in result:
                break
            params = {"cursor": result["nextCursor"]}
        assert seen == ["whoami", "read"]


async def test_a_list_that_is_the_same_for_all_may_be_shared() -> None:
    async with gateway_for(whoami) as (mcp, _):
        assert (await mcp.post("tools/list", headers=bearer(token()))).json()["result"][
            "cacheScope"
        ] == "public"


async def test_without_authentication_scopes_are_nobody_s() -> None:
    async with client(gateway(read, write)) as mcp:
        assert await mcp.text("write") == "written"
        assert len((await mcp.result("tools/list"))["tools"]) == 2


async def test_without_authentication_a_token_is_not_read() -> None:
    async with client(gateway(whoami)) as mcp:
        response = await mcp.post("tools/call", {"name": "whoami"}, headers=bearer("x"))
        assert response.json()["result"]["content"][0]["text"] == "local of local with : "


async def test_keys_that_were_never_read_are_a_503_with_a_time_to_come_back() -> None:
    down = answer(b"", "500 Internal Server Error")
    async with gateway_for(read, documents=(down,)) as (mcp, keys):
        response = await mcp.post("tools/list", headers=bearer(token()))
        assert (response.status_code, response.headers["retry-after"].isdigit()) == (503, True)
        assert "www-authenticate" not in response.headers, "a new token would not help"
        assert (await mcp.post("tools/list")).status_code == 401, (
            "no token is no token all the same"
        )
        asked: Service = keys
        assert len(asked.requests) == 1


async def test_a_roll_over_of_keys_is_not_noticed_by_callers() -> None:
    from tests.support.clocks import SkippingClock

    clock = SkippingClock()
    documents = (answer(jwks("ec")), answer(jwks("ec", "rsa")), answer(jwks("rsa")))
    async with gateway_for(whoami, documents=documents, clock=clock) as (mcp, _):
        statuses = []
        for kid in ("ec", "rsa", "ec"):
            statuses.append((await mcp.post("tools/list", headers=bearer(token(kid)))).status_code)
            clock.skip(31)
        clock.skip(3600)
        statuses += [
            (await mcp.post("tools/list", headers=bearer(token(kid)))).status_code
            for kid in ("rsa", "ec")
        ]
        assert statuses == [200, 200, 200, 200, 401]


async def test_the_log_names_the_subject_and_never_the_token(
    mcp: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    good, bad = token(sub="ann"), token(exp=1)
    for text in (good, bad):
        await mcp.post("tools/list", headers=bearer(text))
    lines = [
        vars(record).get("fields", {})
        for record in caplog.records
        if record.name == "roundgate.request"
    ]
    assert [(line.get("subject"), line["status"], line["outcome"]) for line in lines] == [
        ("ann", 200, "ok"),
        (None, 401, "unauthorized"),
    ]
    said = " ".join([caplog.text, *(str(vars(record).get("fields")) for record in caplog.records)])
    assert not [
        text
        for text in (good, bad)
        if text.rpartition(".")[2] in said or text.split(".")[1] in said
    ]


def test_symmetric_algorithms_cannot_be_configured() -> None:
    for name in ("HS256", "none", "dir"):
        with pytest.raises(ConfigError, match="algorithms"):
            config_file(
                read, auth={"issuer": ISSUER, "jwks_url": "https://x", "algorithms": [name]}
            )
