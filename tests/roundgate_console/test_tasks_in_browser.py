"""An operator finds a stuck task, answers its question, retries a step that failed and reads the line
of time, in headless Chromium and by keys alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel, Field

from roundgate import Context, tool
from tests.roundgate_console.in_browser import served
from tests.roundgate_console.test_in_browser import check, shows
from tests.support.chromium import CHROMIUM, Chromium, chromium

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        CHROMIUM is None, reason="there is no Chromium here (apt-get install chromium)"
    ),
]

is_down = [True]


class Approval(BaseModel):
    """Approval."""

    approved: bool = Field(description="Whether the refund is paid.")


def _pay(order: str) -> str:
    if is_down[0]:
        raise ConnectionError("the bank does not answer")
    return f"{order} is paid"


@tool(task="required")
async def refund(ctx: Context, order: str) -> str:
    """Refunds an order."""
    await ctx.step("plan", len, order)
    answer = await ctx.elicit("approve", f"Refund {order}?", Approval)
    return await ctx.step("pay", _pay, order) if answer.approved else "not refunded"


async def follow(browser: Chromium, selector: str, until: str) -> None:
    """Reach a link or button by keys, press Enter, and wait for the next page."""
    await browser.focus(selector)
    await browser.press("Enter")
    await browser.until(until)


async def test_a_stuck_task_is_found_answered_retried_and_told(tmp_path: Path) -> None:
    is_down[:] = [True]
    async with served(tmp_path, refund) as (url, link), chromium() as browser:
        await browser.goto(link)
        await browser.goto(f"{url}/tools/refund")
        await browser.focus("[name='argument/order']")
        await browser.type("A-17")
        await browser.press("Enter")
        await browser.until(shows("The call continues as a task"))

        # find the task that waits
        await follow(browser, "a[href$='/tasks']", "document.querySelector('#status')")
        await browser.focus("#text")
        await browser.type("REFUND")
        await browser.press("Enter")
        await browser.until("location.search.includes('REFUND')")
        await browser.until(shows("waits for its client"))
        await check(browser)

        # answer its question
        await follow(browser, "#tasks a[href*='/tasks/']", shows("Refund A-17?"))
        await check(browser)
        await browser.focus("[name='answer/0/approved']")
        await browser.press("ArrowDown")
        await follow(browser, "#answers button", shows("Answer this task?"))
        await check(browser)
        await follow(browser, "#confirm", shows("has the answer and continues"))

        # it fails: the page shows that by itself
        await follow(browser, "#task", shows("failed at pay"))
        await browser.until(shows("ConnectionError"))
        await browser.until("document.querySelector('#action-retry')")
        await check(browser)

        # retry the step that failed, once the bank answers
        is_down[:] = [False]
        await follow(browser, "#action-retry button", shows("Retry this task?"))
        await follow(browser, "#confirm", shows("continues as"))
        await follow(browser, "#successor", shows("completed"))
        await check(browser)

        # its call is one line of time, with a picture
        await follow(browser, "#call", shows("round 1: tools/call refund"))
        for text in ("step plan", "operator: answer", "step pay", "turn of a worker"):
            assert await browser.evaluate(shows(text)), text
        assert await browser.evaluate("document.querySelectorAll('svg .bar').length > 5")
        await check(browser)
        assert browser.errors == []
