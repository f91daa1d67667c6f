"""Approvals under attack: nobody approves what they were not asked; what is
shown is what runs, once."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from roundgate import Context, tool
from roundgate.settings.process import Settings
from tests.support import rounds
from tests.support.asgi import Client, built, client, config_file
from tests.support.rounds import CAPABILITIES, KEYS, REFUSAL, accept, retry
from tests.support.services import answer, gateway_to, service

ran: list[Any] = []
YES = accept(approve=True)


@pytest.fixture(autouse=True)
def _clean() -> None:
    ran.clear()


@tool
async def erase(path: str, note: str = "", force: bool = False) -> str:
    """Erases a file; says nothing of what it is, so it is destructive."""
    ran.append(path)
    return f"erased {path}"


@tool
async def take_any(ctx: Context, value: Any = None, more: Any = None) -> str:
    """Takes anything."""
    ran.append(value)
    return "taken"


@tool
async def loose(**arguments: Any) -> str:
    """Takes arguments of any name."""
    ran.append(arguments)
    return "taken"


@tool(once=False)
async def deploy(ctx: Context, env: str) -> str:
    """Asks something of its own after it was approved."""
    who = await ctx.elicit(
        "who", "Who?", {"type": "object", "properties": {"name": {"type": "string"}}}
    )
    ran.append((env, who.get("name")))
    return f"deployed to {env}"


@asynccontextmanager
async def guarded(*functions: Callable[..., Any], **backend: Any) -> AsyncIterator[Client]:
    """A gateway that has the user approve these functions, and its client."""
    file = config_file(*functions, backend={"approve": "destructive", **backend})
    async with client(built(file, Settings(state_keys=KEYS))) as made:
        yield made


async def send(
    mcp: Client, params: dict[str, Any], capabilities: dict[str, Any] = CAPABILITIES
) -> dict[str, Any]:
    body: dict[str, Any] = (
        await mcp.post("tools/call", params, clientCapabilities=capabilities)
    ).json()
    return body


async def question(mcp: Client, name: str, **arguments: Any) -> str:
    """What the user is shown."""
    asked = await rounds.ask(mcp, *rounds.tool(name, **arguments))
    text: str = asked["inputRequests"]["approve"]["params"]["message"]
    return text


# ---- an approval that nobody was asked for


@pytest.mark.parametrize(
    "capabilities", [{}, CAPABILITIES], ids=["a client without capabilities", "one with all"]
)
@pytest.mark.parametrize("key", ["approve", "approve~2", "approve~3"])
async def test_an_approval_that_comes_unasked_is_none(
    key: str, capabilities: dict[str, Any]
) -> None:
    _, params = rounds.tool("erase", path="/")
    async with guarded(erase) as mcp:
        body = await send(mcp, {**params, "inputResponses": {key: YES}}, capabilities)
    assert ran == []
    if capabilities:
        assert rounds.valid_input_required(body)["inputRequests"].keys() == {"approve"}
    else:
        assert body["error"]["code"] == -32021


async def test_dropping_the_state_does_not_move_an_approval_to_other_arguments() -> None:
    _, params = rounds.tool("erase", path="/tmp/x")
    async with guarded(erase) as mcp:
        asked = await rounds.ask(mcp, "tools/call", params)
        await send(mcp, retry(params, asked, approve=YES))
        ran.clear()
        await send(
            mcp, {"name": "erase", "arguments": {"path": "/"}, "inputResponses": {"approve": YES}}
        )
    assert ran == []


async def test_an_approval_is_not_taken_in_the_round_before_it_is_asked_for() -> None:
    arguments = {"count": {"required": True, "schema": {"type": "integer"}}}
    declared = {
        "name": "order",
        "method": "POST",
        "path": "/o",
        "arguments": arguments,
        "ask_for": ["count"],
    }
    params = {"name": "order", "arguments": {}}
    async with (
        service(answer(b"{}")) as told,
        gateway_to(told.url, declared, approve="always") as mcp,
    ):
        form = await rounds.ask(mcp, "tools/call", params)
        early = retry(params, form, arguments=accept(count=3), approve=YES)
        again = await rounds.ask(mcp, "tools/call", early)
        assert again["inputRequests"].keys() == {"approve"}
        assert told.requests == []


async def test_a_tool_that_takes_unasked_answers_takes_no_unasked_approval() -> None:
    @tool(unasked_answers=True)
    async def open_minded(ctx: Context) -> str:
        """Takes answers unasked, but is destructive."""
        ran.append("open_minded")
        return "done"

    _, params = rounds.tool("open_minded")
    async with guarded(open_minded) as mcp:
        body = await send(mcp, {**params, "inputResponses": {"approve": YES}})
    assert (list(rounds.valid_input_required(body)["inputRequests"]), ran) == (["approve"], [])


# ---- one approval is one run


async def test_an_approved_call_runs_once_however_often_it_is_sent() -> None:
    _, params = rounds.tool("erase", path="/tmp/x")
    async with guarded(erase) as mcp:
        approved = retry(params, await rounds.ask(mcp, "tools/call", params), approve=YES)
        together = await asyncio.gather(*(send(mcp, approved) for _ in range(5)))
        later = await send(mcp, approved)
    assert ran == ["/tmp/x"]
    assert {json.dumps(body["result"]) for body in together} == {json.dumps(later["result"])}


async def test_an_approval_is_not_good_for_a_second_run_with_another_answer() -> None:
    _, params = rounds.tool("deploy", env="prod")
    async with guarded(deploy) as mcp:
        asked = await rounds.ask(mcp, "tools/call", params)
        approved = await rounds.ask(mcp, "tools/call", retry(params, asked, approve=YES))
        await send(mcp, retry(params, approved, who=accept(name="Ann")))
        other = await send(mcp, retry(params, approved, who=accept(name="Eve")))
    assert (other["error"]["code"], other["error"]["message"]) == (-32602, REFUSAL)
    assert ran == [("prod", "Ann")]


async def test_who_said_no_is_asked_anew_and_cannot_send_a_yes_after_it() -> None:
    _, params = rounds.tool("erase", path="/tmp/x")
    async with guarded(erase) as mcp:
        asked = await rounds.ask(mcp, "tools/call", params)
        await send(mcp, retry(params, asked, approve=accept(approve=False)))
        body = await send(mcp, retry(params, asked, approve=YES))
    assert (body["error"]["message"], ran) == (REFUSAL, [])


# ---- what is approved is what runs


async def test_every_argument_is_shown_however_long_the_one_before_it() -> None:
    async with guarded(erase) as mcp:
        shown = await question(mcp, "erase", note="x" * 5_000, path="/", force=True)
    assert '\n- path: "/"' in shown
    assert "\n- force: true" in shown


async def test_a_long_value_is_shortened_by_itself_with_its_length_and_digest() -> None:
    async with guarded(erase) as mcp:
        one = await question(mcp, "erase", note="x" * 5_000 + "a" + "x" * 1_000, path="/")
        other = await question(mcp, "erase", note="x" * 5_000 + "b" + "x" * 1_000, path="/")
    (note,) = [line for line in one.splitlines() if line.startswith("- note:")]
    assert "6,001 characters" in note
    assert re.search(r"SHA-256 [0-9a-f]{16}", note)
    assert len(note) < 600
    assert one != other


HIDDEN = {
    "right-to-left override": "\u202e",
    "zero width space": "\u200b",
    "byte order mark": "\ufeff",
    "soft hyphen": "\u00ad",
    "tag letter": "\U000e0041",
    "variation selector": "\ufe0f",
    "hangul filler": "\u3164",
    "no-break space": "\u00a0",
    "line separator": "\u2028",
    "escape": "\x1b",
    "delete": "\x7f",
    "private use": "\ue000",
    "grapheme joiner": "\u034f",
    "braille blank": "\u2800",
}


@pytest.mark.parametrize("hidden", HIDDEN.values(), ids=HIDDEN.keys())
async def test_what_cannot_be_seen_is_shown_escaped(hidden: str) -> None:
    async with guarded(erase, loose) as mcp:
        shown = await question(mcp, "erase", path=f"/tmp/{hidden}cod.exe")
        named = await question(mcp, "loose", **{f"pa{hidden}th": "/"})
    assert hidden not in shown + named
    escape = f"\\u{ord(hidden):04x}" if ord(hidden) < 0x10000 else "\\udb40\\udc41"
    assert f"/tmp/{escape}cod.exe" in shown
    assert escape in named


async def test_a_value_cannot_look_like_another_argument() -> None:
    async with guarded(erase) as mcp:
        shown = await question(mcp, "erase", note='fine"\n- path: "/home', path="/")
    assert [line for line in shown.splitlines() if line.startswith("- path:")] == ['- path: "/"']


async def test_marks_that_pile_up_over_other_text_are_escaped() -> None:
    async with guarded(erase) as mcp:
        shown = await question(mcp, "erase", path="a" + "\u0336" * 40 + " e\u0301")
    assert shown.count("\u0336") <= 2
    assert "e\u0301" in shown


async def test_members_within_members_are_shown_each() -> None:
    value = {
        "to": {"street": "y" * 300, "city": "Oslo"},
        "items": [{"id": n, "note": "z" * 50} for n in range(5)],
    }
    async with guarded(take_any) as mcp:
        shown = await question(mcp, "take_any", value=value)
    assert '\n- value.to.city: "Oslo"' in shown
    for number in range(5):
        assert f"value.items[{number}]" in shown
    assert '"id":4' in shown or "value.items[4].id: 4" in shown


async def test_a_small_value_is_shown_on_one_line() -> None:
    async with guarded(take_any) as mcp:
        shown = await question(mcp, "take_any", value={"a": [1, 2.5, None, True], "b": {}}, more=[])
    assert '- value: {"a":[1,2.5,null,true],"b":{}}' in shown.splitlines()
    assert "- more: []" in shown.splitlines()


async def test_a_call_without_arguments_says_so() -> None:
    async with guarded(loose) as mcp:
        assert await question(mcp, "loose") == "Run loose?\n\nIt is called without arguments."


async def test_the_defaults_of_a_function_are_shown() -> None:
    async with guarded(take_any) as mcp:
        text = await question(mcp, "take_any", value=1)
        assert text == "Run take_any?\n\nIt is called with\n- value: 1\n- more: null"


@pytest.mark.parametrize(
    "value",
    [
        [f"/home/{number}" for number in range(1_000)],
        {f"k{n}": "v" * 300 for n in range(100)},
        "x" * 3_000_000,
    ],
    ids=["a thousand members", "thirty thousand characters", "three million characters"],
)
async def test_what_is_too_much_to_show_is_refused_and_does_not_run(value: Any) -> None:
    async with guarded(take_any) as mcp:
        body = await send(mcp, {"name": "take_any", "arguments": {"value": value}})
    if isinstance(value, str):  # one value, which can be shortened
        assert "3,000,000 characters" in str(rounds.valid_input_required(body)["inputRequests"])
        return
    assert body["result"]["isError"]
    assert "too many to show" in body["result"]["content"][0]["text"]
    assert ran == []


async def test_the_tool_is_named_as_it_is_listed() -> None:
    async with guarded(erase, prefix="disk") as mcp:
        shown = await question(mcp, "disk__erase", path="/")
    assert shown.startswith("Run disk__erase?\n")


async def test_a_tool_has_words_of_its_own_for_its_approval_beside_its_arguments() -> None:
    @tool(approval="This cannot be undone.\u202e")
    async def wipe(disk: str) -> str:
        """Wipes a disk."""
        return "wiped"

    async with guarded(wipe) as mcp:
        shown = await question(mcp, "wipe", disk="sda")
    assert shown.splitlines()[:2] == ["Run wipe?", "This cannot be undone.\\u202e"]
    assert '- disk: "sda"' in shown.splitlines()


@tool
async def pages(ctx: Context, page: int = 1) -> str:
    """Begins anew with other arguments, and then with none."""
    if page < 3:
        await ctx.restart(page=page + 1)
    if not await ctx.elicit("again", "Once more?", {"type": "object", "properties": {}}):
        ran.append(page)
    return f"page {page}"


async def test_what_a_handler_begins_anew_with_is_approved_anew() -> None:
    _, params = rounds.tool("pages")
    async with guarded(pages) as mcp:
        asked = await rounds.ask(mcp, "tools/call", params)
        for page in (2, 3):
            ((key, _),) = asked["inputRequests"].items()
            asked = await rounds.ask(mcp, "tools/call", retry(params, asked, **{key: YES}))
            ((_, request),) = asked["inputRequests"].items()
            assert request["params"]["message"].endswith(f"It is called with\n- page: {page}")
    assert ran == []


async def test_a_handler_that_begins_anew_without_arguments_has_none() -> None:
    @tool(destructive=False)
    async def twice(ctx: Context, page: int = 1) -> int:
        """Begins anew, once, with what it does by default."""
        ran.append(page)
        if page != 1:
            await ctx.restart()
        return page

    async with guarded(twice) as mcp:
        assert await mcp.text("twice", {"page": 7}) == "1"
    assert ran == [7, 1]


# ---- which are destructive

HINTS: list[tuple[dict[str, bool], bool]] = [
    ({}, True),
    ({"destructive": True}, True),
    ({"destructive": False}, False),
    ({"read_only": True}, False),
    ({"read_only": False}, True),
    ({"read_only": True, "destructive": True}, False),
    ({"read_only": False, "destructive": False}, False),
    ({"idempotent": True}, True),
]


@pytest.mark.parametrize(("hints", "asks"), HINTS, ids=[str(hints) for hints, _ in HINTS])
async def test_what_does_not_say_that_it_is_harmless_is_destructive(
    hints: dict[str, Any], asks: bool
) -> None:
    async def some() -> str:
        """Something."""
        return "done"

    async with guarded(tool(**hints)(some)) as mcp:
        body = await send(mcp, rounds.tool("some")[1])
    assert body["result"]["resultType"] == ("input_required" if asks else "complete")


METHODS = {"GET": False, "HEAD": False, "POST": True, "PUT": True, "PATCH": True, "DELETE": True}


@pytest.mark.parametrize(("method", "asks"), METHODS.items())
async def test_the_same_holds_for_the_tools_of_a_service(method: str, asks: bool) -> None:
    declared = {"name": "some", "method": method, "path": "/some", "approval": "Sure?"}
    harmless = {**declared, "name": "harmless", "destructive": False}
    async with (
        service(answer(b"{}")) as told,
        gateway_to(told.url, declared, harmless, approve="destructive") as mcp,
    ):
        body = await send(mcp, rounds.tool("some")[1])
        assert (await send(mcp, rounds.tool("harmless")[1]))["result"]["resultType"] == "complete"
    assert body["result"]["resultType"] == ("input_required" if asks else "complete")
    if asks:
        shown = body["result"]["inputRequests"]["approve"]["params"]["message"]
        assert shown.splitlines()[1] == "Sure?"
