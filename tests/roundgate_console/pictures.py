"""`scripts/tools console-pictures`: the pictures of docs/console.md, taken in headless Chromium."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.roundgate_console.in_browser import served
from tests.support.chromium import CHROMIUM, LIMIT_S, Chromium, chromium

IMAGES = Path(__file__).resolve().parents[2] / "docs/images"
WIDTH = 1000


async def take(browser: Chromium, name: str, height: int) -> None:
    """Write what the window shows, at this height, to docs/images."""
    await browser.resize(WIDTH, height)
    picture = await browser.picture()
    await asyncio.to_thread((IMAGES / f"console-{name}.png").write_bytes, picture)
    print(f"docs/images/console-{name}.png  {len(picture) / 1000:.0f} KB")


async def fill_in(browser: Chromium, **values: str) -> None:
    for name, value in values.items():
        await browser.focus(f"[name='argument/{name}']")
        await browser.type(value)


async def pictures(folder: Path) -> None:
    async with served(folder) as (url, link), chromium() as browser:
        await browser.scheme("light")
        await browser.goto(link)
        await browser.goto(f"{url}/tools/refund")
        await fill_in(browser, order="A-17", amount="12.50", note="box was damaged")
        await take(browser, "tool", 790)
        await browser.focus("#call button")
        await browser.press("Enter")
        await browser.until("document.body.innerText.includes('Refund 12.50')")
        await take(browser, "question", 420)
        await browser.goto(f"{url}/tools/close_month")
        await fill_in(browser, month="2026-10")
        await browser.focus("#call button")
        await browser.press("Enter")
        await browser.until("document.querySelector('a[href*=\"/tasks/\"].id')")
        task = await browser.evaluate("document.querySelector('a[href*=\"/tasks/\"].id').href")
        await seen(browser, task, "document.querySelector('#answers')")
        await browser.focus("[name='answer/0/approved']")
        await browser.press("ArrowDown")
        for button in ("#answers button", "#confirm"):
            await browser.focus(button)
            await browser.press("Enter")
            await browser.until(f"!document.querySelector('{button}')")
        await seen(browser, task, "document.body.innerText.includes('task completed')")
        await take(browser, "task", 1150)


async def seen(browser: Chromium, url: str, expression: str) -> None:
    """Load a page again until an expression holds: a worker changes what it shows."""
    async with asyncio.timeout(LIMIT_S):
        await browser.goto(url)
        while not await browser.evaluate(f"!!({expression})"):
            await asyncio.sleep(0.2)
            await browser.goto(url)


def main() -> int:
    """Take all pictures."""
    if CHROMIUM is None:
        print("skipped: there is no Chromium here (apt-get install chromium)")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(pictures(Path(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
