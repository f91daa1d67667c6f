"""`scripts/tools console-pictures`: the pictures of docs/console.md, taken in headless Chromium: each page in
light at the width of a laptop, and in dark at that of a telephone."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.roundgate_console.shop import Shop, open_shop
from tests.support.chromium import CHROMIUM, Chromium, chromium

IMAGES = Path(__file__).resolve().parents[2] / "docs/images"
SIZES = (("", "light", 1280, 800), ("-narrow", "dark", 390, 844))
LEFT_OUT = frozenset(
    ("sign_in", "all_calls", "no_calls", "no_tasks", "task_event", "all_audit", "session", "error")
)
"""The pages that have no picture: others show the same, or they show little."""


async def take(browser: Chromium, name: str, folder: Path) -> None:
    """Write the page at both sizes to a folder."""
    for suffix, scheme, width, height in SIZES:
        await browser.scheme(scheme)
        await browser.resize(width, height)
        await browser.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
        picture = await browser.picture()
        file = folder / f"console-{name.replace('_', '-')}{suffix}.png"
        await asyncio.to_thread(file.write_bytes, picture)
        print(f"{file.name}  {len(picture) / 1000:.0f} KB")


async def take_all(shop: Shop, browser: Chromium, folder: Path) -> None:
    """Write the pictures of all pages to a folder."""
    await browser.goto(shop.served.link)
    for name, path in shop.pages().items():
        if name not in LEFT_OUT:
            await browser.goto(shop.served.url + path)
            await take(browser, name, folder)
    await browser.resize(1280, 800)
    await browser.goto(f"{shop.served.url}/tools/refund")
    for name, value in (("order", "A-17"), ("amount", "12.50"), ("note", "box was damaged")):
        await browser.focus(f"[name='argument/{name}']")
        await browser.type(value)
    await browser.press("Enter")
    await browser.until("document.body.innerText.includes('Refund 12.50')")
    await take(browser, "question", folder)


async def main() -> int:
    """Take all pictures."""
    if CHROMIUM is None:
        print("skipped: there is no Chromium here (apt-get install chromium)")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        async with open_shop(Path(folder)) as shop, chromium() as browser:
            await take_all(shop, browser, IMAGES)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
