"""Every page at the widths of a laptop and a telephone, in light and dark: WCAG 2.2 AA by axe-core, no overflow, and a
menu that keys open."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.roundgate_console.in_browser import STOP_UPDATES
from tests.roundgate_console.pictures import IMAGES, take_all
from tests.roundgate_console.shop import open_shop
from tests.support.axe import AXE, findings
from tests.support.chromium import CHROMIUM, chromium

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        CHROMIUM is None, reason="there is no Chromium here (apt-get install chromium)"
    ),
]
needs_axe = pytest.mark.skipif(
    not AXE.exists(), reason="axe-core is not installed (scripts/tools axe)"
)
WIDTHS = (1280, 390)
OVERFLOW = "document.documentElement.scrollWidth - innerWidth"


@needs_axe
async def test_axe_finds_nothing_on_any_page(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop, chromium() as browser:
        found, pages = list[str](), shop.pages()
        await browser.goto(shop.served.url + pages.pop("sign_in"))
        found += await findings(browser)
        await browser.goto(shop.served.link)
        for name, path in pages.items():
            await browser.goto(shop.served.url + path)
            await browser.until("document.querySelector('h1')")
            await browser.evaluate(STOP_UPDATES)
            for width in WIDTHS:
                await browser.resize(width, 844)
                for scheme in ("light", "dark"):
                    await browser.scheme(scheme)
                    found += [f"{name} {width} {scheme} {each}" for each in await findings(browser)]
                if (more := await browser.evaluate(OVERFLOW)) > 0:
                    found.append(f"{name}: {more} pixels wider than {width}")
        assert found == []
        assert browser.errors == []


async def test_long_names_and_texts_stay_within_the_page(tmp_path: Path) -> None:
    """Also without axe-core."""
    async with open_shop(tmp_path, long=True) as shop, chromium() as browser:
        await browser.goto(shop.served.link)
        for name, path in shop.pages().items():
            await browser.goto(shop.served.url + path)
            for width in (1280, 900, 760, 390):
                await browser.resize(width, 844)
                assert await browser.evaluate(OVERFLOW) <= 0, (name, width)


@pytest.mark.parametrize("entries", [7, 10])
async def test_a_menu_with_pages_of_other_packages_stays_within_the_page(
    tmp_path: Path, entries: int
) -> None:
    async with open_shop(tmp_path) as shop, chromium() as browser:
        pages = shop.served.app.state.console.pages
        for number in range(len(pages), entries):
            pages.append(replace(pages[0], path=f"/other/{number}", label=f"Forecast {number}"))
        await browser.goto(shop.served.link)
        for width in (1280, 900, 890, 780, 760, 737, 390):
            await browser.resize(width, 844)
            assert await browser.evaluate(OVERFLOW) <= 0, width


async def test_the_menu_of_a_telephone_opens_by_keys(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop, chromium() as browser:
        await browser.resize(390, 844)
        await browser.goto(shop.served.link)
        link = "document.querySelector('header nav a[href$=\"/tasks\"]').checkVisibility()"
        assert not await browser.evaluate(link)
        await browser.focus("header .menu")
        await browser.press("Enter")
        await browser.until(link)
        await browser.focus("header nav a[href$='/tasks']")
        await browser.press("Enter")
        await browser.until("location.pathname.endsWith('/tasks')")


async def test_a_page_that_cannot_be_updated_says_so(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop, chromium() as browser:
        await browser.goto(shop.served.link)
        await browser.goto(f"{shop.served.url}/limits")
        stale = "document.querySelector('.stale').checkVisibility()"
        assert not await browser.evaluate(stale)
        await browser.send("Network.enable")
        offline = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        await browser.send("Network.emulateNetworkConditions", offline=True, **offline)
        await browser.until(stale)
        await browser.send("Network.emulateNetworkConditions", offline=False, **offline)
        await browser.until(f"!{stale}")


async def test_the_pictures_of_the_documents_can_be_taken_anew(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    async with open_shop(tmp_path) as shop, chromium() as browser:
        await take_all(shop, browser, folder)
    taken = {file.name for file in folder.iterdir()}
    assert taken == {file.name for file in IMAGES.glob("console-*.png")}
    assert max(file.stat().st_size for file in IMAGES.glob("console-*.png")) < 120_000
    page = (IMAGES.parent / "console.md").read_text()
    assert [name for name in sorted(taken) if f"(images/{name})" not in page] == []
