"""Who may use the console: sessions, links, tokens and forged requests."""

from __future__ import annotations

from tests.support.console import local, with_auth


async def test_a_token_is_exchanged_for_a_session() -> None:
    async with with_auth() as browser:
        first = await browser.get()
        assert (first.status_code, first.headers["location"]) == (303, "/console/sign-in")
        signed_in = await browser.sign_in()
        assert (signed_in.status_code, signed_in.headers["location"]) == (303, "/console")
        assert "Overview" in await browser.page()


async def test_a_link_starts_a_session() -> None:
    async with local() as browser:
        assert "Overview" in await browser.page()
