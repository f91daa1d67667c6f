"""A step runs once in a call, and its handler sees what JSON makes of its outcome, in the
first run as in any other."""

from __future__ import annotations

import asyncio
import datetime
import enum
import functools
import json
import logging
import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from roundgate.errors import NotJson, StepFailed, ToolError
from roundgate.replay.context import Context
from roundgate.replay.journal import MAX_DEPTH, plain
from tests.support import json_values
from tests.support.long import examples
from tests.support.replay import (
    Effects,
    Name,
    elsewhere,
    error_of,
    play,
    play_to_the_end,
    polite,
    value_of,
)


class Color(enum.StrEnum):
    RED = "red"


class Flavour(str, enum.Enum):  # noqa: UP042 (its str() is not its value)
    SOUR = "sour"


async def first_and_replayed(value: Any) -> tuple[Any, Any]:
    """What a handler sees of a step's value in the run that runs it, and in the next."""
    seen: list[Any] = []

    async def handler(ctx: Context) -> None:
        seen.append(await ctx.step("step", lambda: value))
        await ctx.elicit("who", "Who?", Name)

    await play_to_the_end(handler, polite)
    return seen[0], seen[1]


@examples(60)
@given(json_values.values())
def test_any_json_is_the_same_in_the_run_that_made_it_and_in_its_replay(value: Any) -> None:
    first, replayed = asyncio.run(first_and_replayed(value))
    assert first == replayed == value


@pytest.mark.parametrize(
    ("value", "remembered"),
    [
        ((1, (2, [3])), [1, [2, [3]]]),
        ({"a": (1,)}, {"a": [1]}),
        (2**80, 2**80),
        (-0.0, -0.0),
        ("\x00 é \U0001f980 \u2028", "\x00 é \U0001f980 \u2028"),
        (None, None),
    ],
    ids=[
        "tuple",
        "tuple in a dict",
        "big int",
        "-0.0",
        "any text",
        "None",
    ],
)
async def test_the_value_of_a_step_is_what_json_makes_of_it(value: Any, remembered: Any) -> None:
    first, replayed = await first_and_replayed(value)
    assert first == replayed == remembered
    assert repr(first) == repr(replayed) == repr(remembered)


class Size(enum.IntEnum):
    SMALL = 1


def nested(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


def holding_itself() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "place", "what"),
    [
        (Name(name="x"), "step 'it' is Name", "model_dump"),
        (
            {"a": [0, datetime.datetime(2026, 7, 28)]},
            "step 'it'.a[1] is datetime",
            "JSON cannot hold",
        ),
        ([math.nan], "step 'it'[0] is nan", "JSON cannot hold"),
        ({"x": -math.inf}, "step 'it'.x is -inf", "JSON cannot hold"),
        ({"a": {1: 2}}, "step 'it'.a has the key 1", "strings as keys"),
        ({None: 2}, "step 'it' has the key None", "strings as keys"),
        ([b"raw"], "step 'it'[0] is bytes", "JSON cannot hold"),
        ({1, 2}, "step 'it' is set", "JSON cannot hold"),
        (Size.SMALL, "step 'it' is Size", "JSON cannot hold"),
        (["caf\udce9"], "step 'it'[0] is 'caf\\udce9'", "not valid Unicode"),
        ({"caf\udce9": 1}, "a key of the value of step 'it'", "not valid Unicode"),
        (nested(MAX_DEPTH + 1), "step 'it'[0][0]", "levels deep"),
        (holding_itself(), "step 'it'[0][0]", "contains itself"),
        ({"a": Counter("aab")}, "step 'it'.a is Counter", "would come back as dict"),
        (Color.RED, "step 'it' is Color", "annotate the function's return type (-> Color)"),
        ([{Flavour.SOUR: 1}], "step 'it'[0].key is Flavour", "would come back as str"),
    ],
    ids=[
        *(
            "a model",
            "a datetime",
            "NaN",
            "infinity",
            "an int key",
            "a None key",
            "bytes",
            "a set",
            "an IntEnum",
        ),
        *("half a surrogate pair", "such a key", "too deep", "itself"),
        *("a dict subclass", "a StrEnum", "a str Enum as key"),
    ],
)
async def test_a_value_that_is_not_json_is_refused_at_once_with_its_place(
    value: Any, place: str, what: str
) -> None:
    async def handler(ctx: Context) -> None:
        await ctx.step("it", lambda: value)

    error = error_of(await play(handler))
    assert isinstance(error, NotJson)
    assert place in str(error)
    assert what in str(error)


async def test_the_deepest_value_that_is_taken_comes_back() -> None:
    first, replayed = await first_and_replayed(nested(MAX_DEPTH))
    assert first == replayed == nested(MAX_DEPTH)


def returns(x: int, *, by: int = 1) -> int:
    return x * by


async def returns_async(x: int, *, by: int = 1) -> int:
    return x * by


class Callable_:
    async def __call__(self, x: int, *, by: int = 1) -> int:
        return x * by


@pytest.mark.parametrize(
    "function",
    [
        returns,
        returns_async,
        functools.partial(returns_async),
        Callable_(),
        lambda x, by: returns_async(x, by=by),
    ],
    ids=["plain", "async", "partial", "object", "lambda of async"],
)
async def test_anything_that_can_be_called_can_be_a_step(function: Any) -> None:
    async def handler(ctx: Context) -> Any:
        return await ctx.step("it", function, 2, by=21)

    assert value_of(await play(handler)) == 42


@pytest.mark.parametrize(
    ("raised", "kind", "text"),
    [
        (ValueError("no such row"), StepFailed, "step 'it' failed: ValueError: no such row"),
        (ToolError("out of tea"), ToolError, "out of tea"),
        (OSError("caf\udce9"), StepFailed, "step 'it' failed: OSError: caf?"),
        (StopIteration(), StepFailed, "step 'it' failed: "),
    ],
    ids=["an error", "a ToolError", "text that is not Unicode", "StopIteration"],
)
@pytest.mark.parametrize("in_thread", [False, True], ids=["async", "in a thread"])
async def test_an_error_of_a_step_is_remembered_and_raised_the_same_in_every_run(
    raised: Exception,
    kind: type[Exception],
    text: str,
    in_thread: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(
        logging.CRITICAL, "roundgate.replay"
    )  # pytest-xdist cannot carry the text that is no Unicode
    effects, seen = Effects(), list[Exception]()

    def fails() -> None:
        effects.do("it")
        raise raised

    async def fails_async() -> None:
        fails()

    async def handler(ctx: Context) -> None:
        try:
            await ctx.step("it", fails if in_thread else fails_async)
        except (StepFailed, ToolError) as error:
            seen.append(error)
        await ctx.elicit("who", "Who?", Name)

    await play_to_the_end(handler, polite)
    assert effects.seen == ["it"]
    assert [type(error) for error in seen] == [kind, kind]
    assert str(seen[0]) == str(seen[1])
    assert str(seen[0]).startswith(text)


@pytest.mark.parametrize("use", ["ask", "step", "shed", "request_input"])
@pytest.mark.parametrize("in_thread", [False, True], ids=["async", "in a thread"])
async def test_a_step_is_one_piece_that_neither_asks_nor_has_steps_nor_sheds(
    use: str, in_thread: bool
) -> None:
    async def handler(ctx: Context) -> Any:
        async def outer() -> Any:
            match use:
                case "ask":
                    return (await ctx.elicit("inner", "Who?", Name)).name
                case "step":
                    return await ctx.step("inner", lambda: "inner")
                case "shed":
                    await ctx.shed("inner")
                case _:
                    await ctx.request_input({"inner": {"method": "roots/list"}})
            return None

        return await ctx.step("outer", (lambda: outer()) if in_thread else outer)

    error = error_of(await play(handler, within_ms=5_000))
    assert isinstance(error, StepFailed)
    assert "step 'outer' contains the" in str(error)
    assert "'inner'" in str(error)


NAMES = ["", "a b", "a~2", "a#2", "shed:a", "é", "a" * 65, "a\n", "../a"]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
@pytest.mark.parametrize("use", ["step", "ask", "shed", "request_input"])
async def test_what_cannot_be_a_key_is_refused_as_a_name(name: str, use: str) -> None:
    async def handler(ctx: Context) -> None:
        match use:
            case "step":
                await ctx.step(name, lambda: 1)
            case "ask":
                await ctx.elicit(name, "Who?", Name)
            case "shed":
                await ctx.shed(name)
            case _:
                await ctx.request_input({name: {"method": "roots/list"}})

    error = error_of(await play(handler))
    assert isinstance(error, ValueError)
    assert repr(name) in str(error)


async def test_the_state_of_a_handler_is_there_again_in_the_next_round() -> None:
    async def handler(ctx: Context) -> Any:
        ctx.state["rounds"] = [*ctx.state.get("rounds", ()), len(ctx.state)]
        await ctx.elicit("who", "Who?", Name)
        await ctx.roots()
        return ctx.state

    assert (await play_to_the_end(handler, polite)).value == {"rounds": [0, 1, 1]}


class Model(BaseModel):
    x: int


async def test_a_state_that_is_not_json_is_refused_with_its_place() -> None:
    async def handler(ctx: Context) -> None:
        ctx.state["plan"] = {"for": Model(x=1)}
        await ctx.roots()

    outcome = await play(handler)
    with pytest.raises(NotJson, match=r"ctx\.state\.plan\.for is Model"):
        elsewhere(outcome.journal)  # type: ignore[union-attr]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text() | st.floats(), lambda x: st.lists(x)
    )
)
def test_what_plain_takes_is_what_json_reads_back(value: Any) -> None:
    try:
        taken = plain(value, "it")
    except NotJson:
        return
    assert json.loads(json.dumps(taken, allow_nan=False)) == taken
