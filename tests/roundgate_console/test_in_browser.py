"""The console in headless Chromium: pages and calls by the keyboard alone, and the policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.roundgate_console.in_browser import (
    CONTROLS,
    FOCUS,
    GO_ON,
    STOP_UPDATES,
    served,
)
from tests.support.axe import AXE, findings
from tests.support.chromium import CHROMIUM, Chromium, chromium

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        CHROMIUM is None, reason="there is no Chromium here (apt-get install chromium)"
    ),
]

CHECKED = ("", "/tools", "/tools/refund", "/limits", "/audit", "/tasks", "/calls", "/session")
"""The pages that are checked, below the console's own path."""


def shows(text: str) -> str:
    """Whether the page, with its script at work, shows a text."""
    return f"(document.readyState == 'complete' && document.body.innerText.includes({text!r}))"


async def check(browser: Chromium) -> None:
    """Check the page: each control can be reached by keys, and axe-core finds nothing in light and dark."""
    await browser.evaluate(STOP_UPDATES)
    for scheme in ("dark", "light") if AXE.exists() else ():
        await browser.scheme(scheme)
        assert await findings(browser) == [], scheme
    controls = await browser.evaluate(
        f"{CONTROLS.strip()}.map(each => Array.from(document.querySelectorAll('*')).indexOf(each))"
    )
    await browser.evaluate("document.activeElement.blur()")
    reached = set[int]()
    for _ in range(len(controls) + 2):
        await browser.press("Tab")
        place, is_shown = await browser.evaluate(FOCUS)
        if place not in controls:
            continue
        assert is_shown, f"the focus does not show at element {place}"
        reached.add(place)
        if reached == set(controls):
            break  # behind the last one the focus leaves the page, and comes back to it a moment later
    assert reached == set(controls)
    await browser.evaluate(GO_ON)


async def test_the_pages_can_be_read_and_used_by_everybody(tmp_path: Path) -> None:
    async with served(tmp_path) as (url, link), chromium() as browser:
        await browser.goto(f"{url}/sign-in")
        await check(browser)
        await browser.goto(link)
        for path in CHECKED:
            await browser.goto(url + path)
            await browser.until("document.querySelector('h1')")
            await check(browser)
        assert browser.errors == []


async def test_a_call_and_its_question_by_keys(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, link), chromium() as browser:
        await browser.goto(link)
        await browser.focus("a[href$='/tools']")
        await browser.press("Enter")
        await browser.until(shows("find_orders"))
        await browser.focus("#text")
        await browser.type("refunds")
        await browser.until(f"!{shows('find_orders')}")
        await browser.focus("a[href*='/tools/refund']")
        await browser.press("Enter")
        await browser.until("document.querySelector('#call')")
        for name, value in (("order", "A-17"), ("amount", "12.5")):
            await browser.focus(f"[name='argument/{name}']")
            await browser.type(value)
        await browser.press("Enter")
        await browser.until(shows("Refund 12.50 EUR of A-17?"))
        await check(browser)
        await browser.focus("[name='answer/0/approved']")
        await browser.press("ArrowDown")
        await browser.focus("main button")
        await browser.press("Enter")
        await browser.until(shows("refunded A-17, damaged"))
        await check(browser)
        assert browser.errors == []
