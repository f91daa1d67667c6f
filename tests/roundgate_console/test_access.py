"""Who may use the console: sessions, links, tokens, forged requests, and the policy of its pages."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from roundgate import tool
from roundgate.errors import ConfigError
from roundgate.settings.process import Settings
from roundgate_console import overview
from tests.support.asgi import STATE_KEY, built, config_file
from tests.support.console import (
    COOKIES,
    OPERATOR,
    ORIGIN,
    browser_of,
    csrf_of,
    elements,
    local,
    with_auth,
)
from tests.support.issuer import ISSUER, PUBLIC_URL, token

PAGES = ["", "/session", "/tools", "/tools/hello", "/limits", "/audit"]


@tool
async def hello() -> str:
    """Says hello."""
    return "hello"


async def test_a_token_is_exchanged_for_a_session() -> None:
    async with with_auth() as browser:
        signed_in = await browser.sign_in()
        assert (signed_in.status_code, signed_in.headers["location"]) == (303, "/console")
        cookie = signed_in.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert "Secure" in cookie
        assert "Path=/;" in cookie
        assert cookie.startswith("__Host-roundgate_console_")
        assert "Overview" in await browser.page()


async def test_without_a_session_every_page_leads_to_the_sign_in() -> None:
    async with with_auth(hello) as browser:
        for path in (*PAGES, "/none", "/docs"):
            response = await browser.get(path)
            assert response.status_code == 303, path
            assert response.headers["location"].startswith("/console/sign-in"), path
            part = await browser.get(path, **{"hx-request": "true"})
            leads_to = part.status_code, part.headers["hx-redirect"]
            assert leads_to == (401, "/console/sign-in"), path
        for path in ("/api/overview", "/api/tools", "/api/limits", "/api/none"):
            response = await browser.get(path)
            challenge = response.status_code, response.headers["www-authenticate"]
            assert challenge == (401, "Bearer"), path


async def test_a_bearer_token_of_an_operator_opens_path_operations() -> None:
    async with with_auth(hello) as browser:

        async def status(**claims: Any) -> int:
            key = f"Bearer {token(**claims)}"
            return (await browser.get("/api/overview", authorization=key)).status_code

        assert await status(scope=OPERATOR) == 200
        assert await status(scope="files:read") == 403
        assert await status(scope=OPERATOR, aud="https://other.example.com") == 401
        assert await status(scope=OPERATOR, exp=1) == 401
        assert (await browser.get("/api/overview", authorization="Basic eA==")).status_code == 401


async def test_the_form_refuses_other_tokens() -> None:
    refusals: list[tuple[dict[str, Any], int]] = [
        ({"scope": "files:read"}, 403),
        ({"exp": 1}, 401),
        ({"iss": "https://x.example.com/"}, 401),
    ]
    async with with_auth() as browser:
        for claims, status in refusals:
            refused = await browser.sign_in(**claims)
            assert refused.status_code == status, claims
            assert "set-cookie" not in refused.headers, claims
            assert 'role="alert"' in refused.text, claims


async def test_a_token_is_in_no_page_log_line_and_url(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with with_auth() as browser:
        text = token(scope=OPERATOR)
        wrong = text[:-6] + "AAAAAA"
        for key in (text, wrong):
            response = await browser.post("/sign-in", {"token": key, "next": ""})
            shown = response.text + str(response.headers)
            assert key not in shown
            assert key.split(".")[1] not in shown + caplog.text


async def test_a_session_ends_with_its_token_and_with_its_own_time() -> None:
    async with with_auth(console={"session_s": 60}) as browser:
        assert "Max-Age=60" in (await browser.sign_in()).headers["set-cookie"]
    async with with_auth() as browser:
        soon = (await browser.sign_in()).headers["set-cookie"]
        life_s = int(soon.partition("Max-Age=")[2].partition(";")[0])
        assert 0 < life_s <= 300


async def test_rules_of_a_policy_see_the_claims_of_a_session() -> None:
    policy = [
        {"deny": {"tool": "hello", "claims": {"groups": "contractors"}}},
        {"allow": {}},
    ]
    async with with_auth(hello, policy=policy) as browser:
        await browser.sign_in(groups=["contractors"])
        refused = (await browser.submit("/tools/hello/call", {})).text
        assert "Result" not in refused
        await browser.sign_in(groups=["staff"])
        assert "Result" in (await browser.submit("/tools/hello/call", {})).text


async def test_a_session_without_all_claims_ends_when_a_policy_begins() -> None:
    policy: list[dict[str, Any]] = [{"allow": {}}]
    many = " ".join(f"service-{number}:read" for number in range(900))
    async with with_auth(hello) as browser:
        await browser.sign_in(scope=f"{OPERATOR} {many}")
        session = browser.session
        assert "Overview" in await browser.page()
    async with with_auth(hello, policy=policy) as browser:
        browser.session = session
        assert (await browser.get()).status_code == 303
        browser.http.cookies.clear()
        refused = await browser.sign_in(scope=f"{OPERATOR} {many}")
        assert "too many scopes or claims" in refused.text
        await browser.sign_in()
        assert "Overview" in await browser.page()


async def test_a_long_session_has_only_scopes_that_the_gateway_knows() -> None:
    many = " ".join(f"service-{number}:read" for number in range(900))

    @tool(scopes=["orders:read"])
    async def orders() -> str:
        """Reads orders."""
        return "no orders"

    async with with_auth(hello, orders) as browser:
        await browser.sign_in(scope=f"{OPERATOR} orders:read {many}")
        assert len(browser.session) < 1_000
        assert "no orders" in (await browser.submit("/tools/orders/call", {})).text


async def test_a_session_that_browsers_would_drop_is_refused() -> None:
    scopes = [f"service-{number}:read" for number in range(900)]

    @tool(scopes=scopes)
    async def orders() -> str:
        """Reads orders."""
        return "no orders"

    async with with_auth(orders) as browser:
        refused = await browser.sign_in(scope=" ".join([OPERATOR, *scopes]))
        assert (refused.status_code, "set-cookie" in refused.headers) == (400, False)
        assert "too many scopes" in refused.text


async def test_a_session_of_another_key_issuer_or_scope_is_none() -> None:
    file = config_file(hello, console={})
    other = built(file, Settings(state_keys="A" * 43 + "="))
    async with local(hello) as browser:
        cookie = browser.session
        async with browser_of(other) as stranger:
            stranger.session = cookie
            assert (await stranger.get()).status_code == 303
    async with with_auth(hello) as browser:  # sealed with the same key, without `auth`
        browser.session = cookie
        assert (await browser.get()).status_code == 303
        browser.http.cookies.clear()
        await browser.sign_in()
        session = browser.session
    async with with_auth(hello, auth={"operator_scope": "other"}) as browser:
        browser.session = session
        assert (await browser.get()).status_code == 303


async def test_a_forged_session_is_none() -> None:
    async with with_auth() as browser:
        for cookie in ("", "x", "v1.a.b", "v1." + "a" * 9_000, '"'):
            response = await browser.get(cookie=f"{COOKIES[1]}={cookie}")
            assert response.status_code == 303, cookie


async def test_a_link_works_once_and_for_every_replica() -> None:
    file = config_file(hello, console={})
    using = Settings(state_keys=STATE_KEY)
    app, other = built(file, using), built(file, using)
    path = f"/enter?token={app.state.console.sessions.seal_link()}"
    async with browser_of(app) as first, browser_of(other) as second:
        entered = await second.get(path)
        assert (entered.status_code, entered.headers["location"]) == (303, "/console")
        assert "Overview" in await second.page()
        for browser in (first, second):
            assert (await browser.get(path)).status_code == 403
        assert (await first.get("/enter?token=x")).status_code == 403
        assert (await first.get("/enter")).status_code == 403
        session = second.session
        assert (await first.get(f"/enter?token={session}")).status_code == 403


async def test_a_link_of_a_gateway_with_auth_is_none() -> None:
    app = built(config_file(hello, console={}))
    link = app.state.console.sessions.seal_link()
    async with with_auth(hello) as browser:
        assert (await browser.get(f"/enter?token={link}")).status_code == 403


async def test_the_sign_in_page_writes_another_link_to_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "roundgate.console")
    async with browser_of(built(config_file(hello, console={}))) as browser:
        for _ in range(3):
            response = await browser.post(
                "/sign-in", {}, host="localhost:9999", origin="http://localhost:9999"
            )
            assert "log" in response.text
        links = [record.getMessage() for record in caplog.records]
        assert len(links) == 1
        assert "localhost" not in links[0]  # the address that listens, not the client's Host
        path = links[0].partition("/console")[2]
        assert (await browser.get(path)).status_code == 303
        assert "Overview" in await browser.page()


async def test_a_post_of_another_page_is_refused() -> None:
    elsewhere: list[dict[str, str]] = [
        {"origin": "https://evil.example.com", "sec-fetch-site": "cross-site"},
        {"origin": ORIGIN, "sec-fetch-site": "same-site"},
        {"origin": ORIGIN, "sec-fetch-site": "none"},
        {"origin": "null"},
        {"origin": "https://app.example.com"},  # it may call the endpoints
        {},
    ]
    http = {"allowed_origins": ["https://app.example.com"]}
    async with local(hello, http=http) as browser:
        fields = {"csrf_token": csrf_of(await browser.page())}
        for headers in elsewhere:
            for path in ("/tools/hello/call", "/sign-out", "/sign-in"):
                response = await browser.http.post(f"/console{path}", data=fields, headers=headers)
                assert response.status_code == 403, (path, headers)
        assert "Overview" in await browser.page()


async def test_a_query_is_bounded_before_its_fields_are_read() -> None:
    metadata = "/.well-known/oauth-protected-resource/mcp"
    async with with_auth(hello) as browser:
        for path in ("/console/sign-in", "/console/enter", "/healthz", metadata):
            assert (await browser.http.get(f"{path}?{'a&' * 255}a")).status_code != 414, path
            refused = await browser.http.get(f"{path}?{'a&' * 256}a")
            assert refused.status_code == 414, path
            assert "more than 256 fields" in refused.text, path


async def test_a_sign_in_is_bounded_before_its_fields_are_read() -> None:
    async with with_auth(hello) as browser:
        fields = {"token": token(scope=OPERATOR), "next": ""}
        many = fields | {f"field{number}": "" for number in range(9)}
        assert (await browser.post("/sign-in", many)).status_code == 400
        long = fields | {"next": "x" * 40_000}
        assert (await browser.post("/sign-in", long)).status_code == 413
        assert (await browser.post("/sign-in", fields)).status_code == 303


async def test_a_proxy_may_send_another_host_name() -> None:
    async with with_auth(hello) as browser:
        fields = {"token": token(scope=OPERATOR), "next": ""}
        assert (await browser.post("/sign-in", fields, host="127.0.0.1")).status_code == 303
        other = {"origin": "http://127.0.0.1:9", "host": "127.0.0.1"}
        assert (await browser.post("/sign-in", fields, **other)).status_code == 403


async def test_a_browser_without_fetch_metadata_is_known_by_its_origin() -> None:
    async with local(hello) as browser:
        fields = {"csrf_token": csrf_of(await browser.page())}
        response = await browser.http.post(
            "/console/tools/hello/call", data=fields, headers={"origin": ORIGIN}
        )
        assert "hello" in response.text


async def test_a_post_without_the_token_of_its_session_is_refused() -> None:
    async with local(hello) as browser:
        for csrf in (None, "", "x", "é"):
            fields = {} if csrf is None else {"csrf_token": csrf}
            response = await browser.post("/tools/hello/call", fields)
            assert response.status_code == 403, csrf
            assert "earlier session" in response.text, csrf
        api = await browser.http.post(
            "/console/api/tools/hello/call", json={}, headers=browser.same_origin
        )
        assert (api.status_code, "error" in api.json()) == (403, True)


async def test_the_token_of_another_session_is_refused() -> None:
    async with local(hello) as first, local(hello) as second:
        fields = {"csrf_token": csrf_of(await first.page())}
        assert (await second.post("/tools/hello/call", fields)).status_code == 403
        assert (await first.post("/tools/hello/call", fields)).status_code == 200


async def test_a_script_of_the_console_sends_the_token_in_a_header() -> None:
    async with local(hello) as browser:
        key = {"x-csrf-token": csrf_of(await browser.page())}
        response = await browser.http.post(
            "/console/api/tools/hello/call", json={}, headers={**browser.same_origin, **key}
        )
        assert response.json()["kind"] == "complete"


async def test_signing_out_removes_the_session() -> None:
    async with local(hello) as browser:
        assert (await browser.submit("/sign-out", {})).status_code == 303
        assert (await browser.get()).status_code == 303


async def test_other_methods_are_refused() -> None:
    async with local(hello) as browser:
        for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
            url, headers = "/console/tools", browser.same_origin
            response = await browser.http.request(method, url, headers=headers)
            assert response.status_code == 405, method


async def test_every_response_has_the_policy_of_the_console() -> None:
    async with local(hello) as browser:
        for path in (*PAGES, "/sign-in", "/none", "/api/overview", "/static/none"):
            headers = (await browser.get(path)).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy, path
            assert "frame-ancestors 'none'" in policy, path
            assert "unsafe" not in policy, path
            assert headers["x-content-type-options"] == "nosniff", path
            assert headers["referrer-policy"] == "same-origin", path
            assert headers["cache-control"] == "no-store", path


async def test_pages_keep_the_policy() -> None:
    async with local(hello) as browser:
        for path in (*PAGES, "/sign-in"):
            for tag, each in elements((await browser.get(path)).text):
                assert tag != "style", path
                assert "style" not in each, path
                assert not [name for name in each if name.startswith("on")], path
                for name in ("src", "href", "action", "hx-get", "hx-post"):
                    address = each.get(name)
                    assert not address or address.startswith(("/console", "#", "?")), address
                if tag == "script":
                    assert each.get("src"), path


async def test_files_come_from_the_console_and_may_be_kept() -> None:
    async with with_auth() as browser:
        page = (await browser.get("/sign-in")).text
        files = [
            str(each.get("src") or each.get("href"))
            for tag, each in elements(page)
            if tag in ("script", "link")
        ]
        assert len(files) == 4
        for file in files:
            response = await browser.http.get(file)
            assert response.status_code == 200
            assert response.headers["cache-control"] == "max-age=86400"
            assert response.headers["x-content-type-options"] == "nosniff"
        assert (await browser.get("/static/..%2fframe.py")).status_code in (303, 404)


async def test_a_sign_in_leads_back_to_the_page_and_to_no_other_site() -> None:
    async with with_auth() as browser:
        for path in ("//evil.example.com", "https://evil.example.com", "/\\evil"):
            text = token(scope=OPERATOR)
            response = await browser.post("/sign-in", {"token": text, "next": path})
            assert response.headers["location"].startswith("/console"), path
            browser.http.cookies.clear()
        sign_in = (await browser.get("/limits")).headers["location"]
        field = next(
            each
            for _, each in elements((await browser.http.get(sign_in)).text)
            if each.get("name") == "next"
        )
        fields = {"token": token(scope=OPERATOR), "next": str(field["value"])}
        response = await browser.post("/sign-in", fields)
        assert response.headers["location"] == "/console/limits"


async def test_other_hosts_are_refused() -> None:
    async with local(hello) as browser:
        response = await browser.get(host="evil.example.com")
        assert response.status_code == 403
        assert "not allowed" in response.text


async def test_an_unexpected_error_is_a_page_with_the_policy_and_a_reference(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = built(config_file(hello, console={}))

    def fail(most: int) -> list[Any]:
        raise RuntimeError("4111 1111")

    monkeypatch.setattr(app.state.console.replica.rates, "uses", fail)
    async with browser_of(app) as browser:
        await browser.get(f"/enter?token={app.state.console.sessions.seal_link()}")
        for path in ("/limits", "/api/limits"):
            response = await browser.get(path)
            assert response.status_code == 500
            assert "default-src 'none'" in response.headers["content-security-policy"]
            assert response.headers["cache-control"] == "no-store"
            assert "4111" not in response.text
            record = next(each for each in reversed(caplog.records) if each.exc_info)
            assert vars(record)["fields"]["reference"] in response.text


async def test_refused_credentials_are_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with with_auth() as browser:
        await browser.sign_in(scope="files:read")
        key = f"Bearer {token(scope='files:read')}"
        await browser.get("/api/overview", authorization=key)
    lines = [vars(each)["fields"] for each in caplog.records if each.getMessage() == "request"]
    refused = [line for line in lines if line["outcome"] == "unauthorized"]
    assert len(refused) == 2
    assert all("gateway:operate" in line["error"] and line["address"] for line in refused)


async def test_large_forms_are_refused() -> None:
    async with local(hello, http={"max_body_bytes": 200_000}) as browser:
        for path, size in (("/sign-in", 70_000), ("/tools/hello/call", 250_000)):
            response = await browser.post(path, {"json": "x" * size})
            assert response.status_code == 413
        many = "&".join(f"a{number}=" for number in range(11_000))
        kind = {"content-type": "application/x-www-form-urlencoded"}
        response = await browser.http.post(
            "/console/tools/hello/call", content=many, headers={**browser.same_origin, **kind}
        )
        assert response.status_code == 400


async def test_the_console_stands_behind_the_prefix_of_a_proxy() -> None:
    app = built(config_file(hello, console={"path": "/ops"}))
    transport = httpx.ASGITransport(app, root_path="/gw")
    async with httpx.AsyncClient(transport=transport, base_url=ORIGIN) as http:
        first = await http.get("/gw/ops")
        assert first.headers["location"] == "/gw/ops/sign-in"
        link = app.state.console.sessions.seal_link()
        async with app.router.lifespan_context(app):
            entered = await http.get(f"/gw/ops/enter?token={link}")
            assert entered.headers["location"] == "/gw/ops"
            assert "Path=/gw/ops" in entered.headers["set-cookie"]
            page = await http.get("/gw/ops")
        assert 'href="/gw/ops/tools"' in page.text
        assert 'aria-current="page"' in page.text


async def test_no_path_of_a_console_that_is_off_is_open() -> None:
    app = built(config_file(hello))
    async with browser_of(app) as browser:
        assert (await browser.get("/sign-in")).status_code == 404


@pytest.mark.parametrize(
    ("using", "auth", "problem"),
    [
        ({"allow_anonymous": True}, "none", "without auth"),
        ({"public_url": PUBLIC_URL}, "none", "without auth"),
        (
            {"public_url": PUBLIC_URL},
            {"issuer": ISSUER, "jwks_url": "https://x.example.com"},
            "operator_scope",
        ),
        ({"on_lambda": True, "on_function": "gateway"}, "none", "function"),
    ],
)
async def test_a_console_that_others_could_open_is_refused(
    using: dict[str, Any], auth: Any, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        built(config_file(hello, console={}, auth=auth), replace(Settings(), **using))


@pytest.mark.parametrize("path", ["/mcp", "/healthz", "/metrics", "/docs", "/events", "/mcp/x"])
async def test_the_path_of_the_console_is_its_own(path: str) -> None:
    with pytest.raises(ConfigError, match=r"console\.path"):
        config_file(hello, console={"path": path})


async def test_a_configuration_of_functions_has_no_console() -> None:
    auth = {"authorizer": "api-gateway", "issuer": ISSUER, "operator_scope": OPERATOR}
    with pytest.raises(ConfigError, match="not served on AWS Lambda"):
        config_file(hello, console={}, auth=auth)


async def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roundgate.runtime.checks.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"(?s)extra console.*roundgate\[console\]"):
        built(config_file(hello, console={}))


@pytest.fixture
def hangs(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Let the overview hang; the event is set when it does."""
    begun = asyncio.Event()

    async def hang(*_: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(overview, "survey", hang)
    return begun


@pytest.mark.parametrize("path", ["", "/api/overview"])
async def test_a_page_that_outlasts_the_grace_says_that_the_process_stops(
    path: str, hangs: asyncio.Event
) -> None:
    app = built(config_file(console={}))
    console = app.state.console
    async with browser_of(app) as browser:
        await browser.get(f"/enter?token={console.sessions.seal_link()}")
        request = asyncio.create_task(browser.get(path))
        await hangs.wait()
        console.replica.readiness.is_draining = True
        request.cancel()  # as uvicorn cancels requests
        response = await request
        assert response.status_code == 503
        assert "The server is being restarted" in response.text
        assert "content-security-policy" in response.headers


async def test_a_page_whose_request_is_cancelled_otherwise_has_no_response(
    hangs: asyncio.Event,
) -> None:
    async with local() as browser:
        request = asyncio.create_task(browser.get())
        await hangs.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
