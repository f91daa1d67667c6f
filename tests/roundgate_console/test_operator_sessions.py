"""The sessions of operators: their revocation, their records in the audit log, and their cookies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import HTTPConnection

from roundgate import tool
from roundgate.auth import Principal
from roundgate.errors import Unavailable
from roundgate.settings import MAX_SESSION_S
from roundgate.settings.process import Settings
from roundgate.storage import SessionRow
from roundgate.tokens import Key, KeyRing
from roundgate_console import signing_in
from roundgate_console.sessions import OperatorSessions, cookie_name
from roundgate_console.signing_in import Seldom
from tests.support.asgi import STATE_KEY, built, config_file
from tests.support.audit import KEY, records
from tests.support.clocks import FixedClock
from tests.support.console import OPERATOR, browser_of, elements, local, with_auth
from tests.support.issuer import ISSUER, PUBLIC_URL, token


@tool
async def hello() -> str:
    """Says hello."""
    return "hello"


class Rows:
    """Expiring rows in memory."""

    def __init__(self, clock: FixedClock) -> None:
        self._clock = clock
        self.rows: dict[str, SessionRow] = {}

    async def put(self, key: str, value: bytes, forget_ms: int) -> int:
        self.rows[key] = SessionRow(value, 1, forget_ms)
        return 1

    async def read(self, key: str) -> SessionRow | None:
        row = self.rows.get(key)
        return row if row is not None and self._clock.now_ms() < row.forget_ms else None


STEPS = st.lists(
    st.sampled_from(["sign in", "revoke", "revoke another", "an hour", "a day"]), max_size=25
)


@given(STEPS)
def test_a_session_is_valid_until_it_ends_or_is_revoked(steps: list[str]) -> None:
    clock = FixedClock()
    store: Any = Rows(clock)
    sessions = OperatorSessions(KeyRing([Key(bytes(32))]), clock, MAX_SESSION_S, store)
    ann = Principal(ISSUER, "ann")
    begun: list[tuple[str, int]] = []
    revoked = -1

    async def run(step: str, number: int) -> None:
        nonlocal revoked
        match step:
            case "sign in":
                last = await sessions.last_revocation(ann.issuer, ann.subject)
                begun.append((sessions.seal(ann, last)[0], number))
            case "revoke":
                await sessions.revoke(ann.issuer, ann.subject)
                revoked = number
            case "revoke another":
                await sessions.revoke(ann.issuer, "bob")
            case _:
                clock.skip(3_600 if step == "an hour" else 86_400)
        for cookie, at in begun:
            operator = sessions.open(cookie)
            is_open = operator is not None and not await sessions.is_revoked(operator)
            assert is_open == (operator is not None and at > revoked)

    async def run_all() -> None:
        for number, step in enumerate(steps):
            await run(step, number)
        assert len(store.rows) <= 2

    asyncio.run(run_all())


async def test_signing_out_everywhere_ends_all_sessions_at_every_replica() -> None:
    file = config_file(hello, console={})
    using = Settings(state_keys=STATE_KEY)
    first, second = built(file, using), built(file, using)
    async with browser_of(first) as one, browser_of(second) as two, browser_of(second) as three:
        for browser in (one, two):
            link = first.state.console.sessions.seal_link()
            await browser.get(f"/enter?token={link}")
            assert "Overview" in await browser.page()
        copied = one.session
        assert (await one.submit("/sign-out", {"everywhere": "yes"})).status_code == 303
        assert (await two.get()).status_code == 303
        three.session = copied
        assert (await three.get()).status_code == 303
        await one.get(f"/enter?token={first.state.console.sessions.seal_link()}")
        assert "Overview" in await one.page()


async def test_an_operator_ends_the_sessions_of_another_one() -> None:
    async with with_auth(hello) as browser:
        await browser.sign_in(sub="bob")
        of_bob = browser.session
        browser.http.cookies.clear()
        await browser.sign_in(sub="ann")
        assert (
            "Sessions of bob have ended"
            in (await browser.submit("/session/end", {"subject": " bob "})).text
        )
        assert "Overview" in await browser.page()
        for wrong in ("", "x" * 2_000):
            refused = await browser.submit("/session/end", {"subject": wrong})
            assert refused.status_code == 400
        browser.session = of_bob
        assert (await browser.get()).status_code == 303


async def test_names_of_operators_are_texts() -> None:
    script = '"><script>alert(1)</script><img src=x onerror=alert(1)>'
    async with with_auth(hello) as browser:
        await browser.sign_in(sub=script)
        pages = [
            await browser.page("/session"),
            (await browser.submit("/session/end", {"subject": f"x{script}"})).text,
        ]
        for page in pages:
            assert "&lt;script&gt;" in page
            for tag, attributes in elements(page):
                assert tag != "img"
                assert tag != "script" or (attributes.get("src") or "").startswith("/console/")


async def test_a_program_ends_the_sessions_of_an_operator() -> None:
    async with with_auth(hello) as browser:
        await browser.sign_in(sub="bob")
        key = {"authorization": f"Bearer {token(sub='deployer', scope=OPERATOR)}"}
        path = "/console/api/sessions/end"
        ended = await browser.http.post(path, json={"subject": "bob"}, headers=key)
        assert (ended.status_code, ended.json()) == (200, {"subject": "bob"})
        assert (await browser.get()).status_code == 303
        other = {"authorization": f"Bearer {token(sub='deployer', scope='files:read')}"}
        refused = await browser.http.post(path, json={"subject": "bob"}, headers=other)
        assert refused.status_code == 403


async def test_no_session_is_open_while_the_store_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(self: OperatorSessions, issuer: str, subject: str) -> str:
        raise Unavailable("The store cannot be reached just now")

    async with with_auth(hello) as browser:
        await browser.sign_in()
        monkeypatch.setattr(OperatorSessions, "last_revocation", fail)
        for path in ("", "/tools", "/api/overview"):
            response = await browser.get(path)
            assert (response.status_code, "cannot be reached" in response.text) == (503, True)
        assert (await browser.sign_in()).status_code == 503
        assert (await browser.get("/sign-in")).status_code == 200
        key = f"Bearer {token(scope=OPERATOR)}"
        assert (await browser.get("/api/overview", authorization=key)).status_code == 200


async def test_sessions_are_in_the_audit_log(tmp_path: Path) -> None:
    audit = {"directory": str(tmp_path), "key": KEY}
    async with with_auth(hello, audit=audit) as browser:
        await browser.sign_in(sub="ann", scope="files:read")
        await browser.sign_in(sub="ann")
        await browser.submit("/session/end", {"subject": "bob"})
        await browser.submit("/sign-out", {})
    ann = {"issuer": ISSUER, "subject": "ann", "client": ""}
    acts = records(tmp_path, "operator", "operator_ended")
    kept = ("event", "action", "who", "subject", "error", "outcome")
    shown = [{name: act[name] for name in kept if name in act} for act in acts]
    for act in shown:
        act.setdefault("who", ann)
        act["who"]["client"] = ""
    operator, ended = {"event": "operator", "who": ann}, {"event": "operator_ended", "who": ann}
    assert shown == [
        {**operator, "action": "sign_in_refused", "error": "InsufficientScope"},
        {**operator, "action": "sign_in"},
        {**operator, "action": "end_sessions", "subject": "bob"},
        {**ended, "action": "end_sessions", "outcome": "done"},
        {**operator, "action": "sign_out"},
    ]
    assert all(act["address"] for act in acts[:2])


async def test_a_refused_token_has_no_caller_in_the_audit_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signing_in, "REFUSAL_EVERY_MS", 0)
    refusals: list[dict[str, Any]] = [{"exp": 1}, {"iss": "https://x.example.com/"}]
    async with with_auth(hello, audit={"directory": str(tmp_path), "key": KEY}) as browser:
        for claims in refusals:
            await browser.sign_in(**claims)
    refused = records(tmp_path, "operator")
    told = [(each["action"], each["count"], "who" in each) for each in refused]
    assert told == [("sign_in_refused", 1, False)] * 2


async def test_a_used_link_is_in_the_audit_log(tmp_path: Path) -> None:
    async with local(hello, audit={"directory": str(tmp_path), "key": KEY}) as browser:
        await browser.get("/enter?token=x")
    acts = [act["action"] for act in records(tmp_path, "operator")]
    assert acts == ["sign_in", "sign_in_refused"]


def test_refusals_that_follow_each_other_are_counted_in_one_record() -> None:
    clock = FixedClock()
    seldom = Seldom(1_000, clock)
    assert [seldom.take() for _ in range(4)] == [1, 0, 0, 0]
    clock.skip(1)
    assert seldom.take() == 4


async def test_nobody_signs_in_without_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        refuses = False
        trouble = None

        def operator(self, *args: Any, **facts: Any) -> None:
            raise Unavailable("The gateway cannot write its audit log")

    app = built(config_file(hello, console={}))
    async with browser_of(app) as browser:
        monkeypatch.setattr(app.state.console, "core", _with_trail(app.state.console.core, Full()))
        entered = await browser.get(f"/enter?token={app.state.console.sessions.seal_link()}")
        assert (entered.status_code, "set-cookie" in entered.headers) == (503, False)


def _with_trail(core: Any, trail: Any) -> Any:
    class WithTrail:
        def __getattr__(self, name: str) -> Any:
            return trail if name == "trail" else getattr(core, name)

    return WithTrail()


@pytest.mark.parametrize(
    ("public_url", "host", "name"),
    [
        (None, "127.0.0.1:8000", "roundgate_console_8000"),
        (None, "localhost:9000", "roundgate_console_9000"),
        (None, "[::1]:8000", "roundgate_console_8000"),
        (None, "localhost", "roundgate_console_80"),
        (None, "[::1]", "roundgate_console_80"),
        (None, "", "roundgate_console_80"),
        (PUBLIC_URL, "127.0.0.1:8000", "__Host-roundgate_console_490f20c4"),
        ("http://mcp.example.com", "x", "roundgate_console_f20063e0"),
    ],
)
def test_gateways_on_a_host_have_cookies_of_their_own(
    public_url: str | None, host: str, name: str
) -> None:
    headers = [(b"host", host.encode())]
    request = HTTPConnection({"type": "http", "headers": headers})
    assert cookie_name(public_url, request) == name


async def test_two_consoles_on_a_host_keep_both_sessions() -> None:
    first, second = built(config_file(hello, console={})), built(config_file(hello, console={}))
    origins = "http://127.0.0.1:8001", "http://127.0.0.1:8002"
    async with browser_of(first, origins[0]) as one, browser_of(second, origins[1]) as two:
        two.http.cookies = one.http.cookies  # as in a browser
        await one.get(f"/enter?token={first.state.console.sessions.seal_link()}")
        await two.get(f"/enter?token={second.state.console.sessions.seal_link()}")
        assert "Overview" in await one.page()
        assert "Overview" in await two.page()
