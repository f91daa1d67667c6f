"""Steps that return what JSON does not have: the same type in every run,
wherever its process dies."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from roundgate import Context, tool
from roundgate.errors import NondeterminismError, NotJson
from roundgate.replay.steps import check_return
from roundgate.replay.values import find_conversion
from roundgate.testing import Gateway, fake_context


class Colour(Enum):
    RED = "red"


class Quote(BaseModel):
    total: Decimal = Field(alias="sum")
    until: date


@dataclass
class Parcel:
    label: bytes
    sent: datetime
    quotes: list[Quote]


class Row(TypedDict):
    day: date
    count: int


QUOTE = Quote(sum=Decimal("9.90"), until=date(2026, 11, 23))
SENT = datetime(2026, 11, 23, 4, 5, 6, 789, timezone(timedelta(hours=2)))
PARCEL = Parcel(b"\x00\xff", SENT, [QUOTE])


def returning(value: Any, hint: Any) -> Callable[[], Any]:
    """A function with an annotation that returns a value."""

    def give() -> Any:
        return value

    give.__annotations__["return"] = hint
    return give


VALUES = [
    (QUOTE, Quote),
    (PARCEL, Parcel),
    (date(2026, 1, 2), date),
    (SENT, datetime),
    (timedelta(days=1, microseconds=1), timedelta),
    (Decimal("1.10"), Decimal),
    (b"\x00\xff", bytes),
    (UUID(int=7), UUID),
    (Colour.RED, Colour),
    (PurePosixPath("/a"), PurePosixPath),
    ({1, 2}, set[int]),
    ([QUOTE], list[Quote]),
    ({"a": Decimal(1)}, dict[str, Decimal]),
    ((date(2026, 1, 2), 3), tuple[date, int]),
    (None, Quote | None),
    (QUOTE, Quote | None),
    ({"day": date(2026, 1, 2), "count": 3}, Row),
]


@pytest.mark.parametrize(("value", "hint"), VALUES, ids=lambda one: str(one)[:30])
async def test_a_value_comes_back_as_its_annotation_says(value: Any, hint: Any) -> None:
    with fake_context() as ctx:
        found = await ctx.step("one", returning(value, hint))
    assert (found, type(found)) == (value, type(value))
    assert found is not value or value is None or isinstance(value, Colour)


@pytest.mark.parametrize("hint", [int, str, list[int], tuple[int, str], dict[str, Any], Any, None])
def test_what_json_has_is_remembered_as_it_was(hint: Any) -> None:
    assert find_conversion(returning(1, hint)) is None


async def test_partials_classes_and_awaitables_say_what_they_return_too() -> None:
    async def later() -> Quote:
        return QUOTE

    def soon() -> Coroutine[Any, Any, Quote]:
        return later()

    with fake_context() as ctx:
        for name, function in (("later", later), ("soon", soon), ("p", functools.partial(later))):
            assert await ctx.step(name, function) == QUOTE
        made = await ctx.step("class", Quote, sum="1.5", until="2026-01-02")
        assert made == Quote(sum=Decimal("1.5"), until=date(2026, 1, 2))
        found = await ctx.poll("poll", returning(QUOTE, Quote | None), every_s=1)
        assert found == QUOTE


async def test_a_value_that_is_none_of_the_annotations_is_an_error_that_does_not_say_it() -> None:
    with fake_context() as ctx:
        with pytest.raises(
            NotJson,
            match="is dict, which JSON cannot convert back to the annotated return type Quote",
        ) as one:
            await ctx.step("bad", returning({"sum": "secret-4711"}, Quote))
        assert "4711" not in str(one.value)
        with pytest.raises(NotJson, match=r"annotate the function's return type \(-> Quote\)"):
            await ctx.step("bare", lambda: QUOTE)


async def test_a_remembered_value_that_no_longer_fits_is_another_way() -> None:
    conversion = find_conversion(returning(QUOTE, Quote))
    assert conversion is not None
    with pytest.raises(NondeterminismError, match="a value of another type"):
        conversion.from_json({"other": 1}, "quote")


async def make_quote(order: int) -> Quote:
    return Quote(sum=Decimal(order) / 4, until=date(2026, 11, 23))


def pack(quote: Quote) -> Parcel:
    return Parcel(str(quote.total).encode() + b"\xff", SENT, [quote])


class Go(BaseModel):
    go: bool


async def _ship(ctx: Context, order: int) -> str:
    quote = await ctx.step("quote", make_quote, order)
    await ctx.elicit("sure", f"For {quote.total + 1}?", Go)
    parcel = await ctx.step("pack", pack, quote)
    return f"{parcel.label!r} {parcel.sent.isoformat()} {parcel.quotes[0].until.year}"


@tool
async def ship(ctx: Context, order: int) -> str:
    """In rounds."""
    return await _ship(ctx, order)


@tool(task="required")
async def ship_later(ctx: Context, order: int) -> str:
    """As a task."""
    return await _ship(ctx, order)


@pytest.mark.parametrize("name", ["ship", "ship_later"])
async def test_wherever_a_process_dies_the_handler_has_the_same_types(name: str) -> None:
    async with Gateway(ship, ship_later) as gateway:
        result = await gateway.call(
            name, order=3, answers={"sure": {"go": True}}, crash="everywhere"
        )
    assert result.value == f"b'0.75\\xff' {SENT.isoformat()} 2026"


def test_what_a_function_closes_over_is_not_kept_when_its_call_is_over() -> None:
    """A step is often a `lambda` that holds the arguments of the call, whatever is in them."""

    class Held:
        pass

    def call() -> weakref.ref[Held]:
        held = Held()
        find_conversion(lambda: held)
        find_conversion(functools.partial(lambda of: held, held))
        return weakref.ref(held)

    gone = call()
    gc.collect()
    assert gone() is None


async def test_functions_that_share_their_code_keep_their_own_annotations() -> None:
    def made(annotation: Any) -> Any:
        async def function() -> Any:
            return {"name": "Ada"}

        function.__annotations__["return"] = annotation
        return function

    held: list[Any] = [dict[str, str], None, "dict[str, str]", "dict[str, int]", "Any"]
    opaque: list[Any] = [Opaque, "Opaque"]
    for annotation in held:
        check_return(made(annotation), "step")
    for annotation in opaque:
        with pytest.raises(NotJson, match="Opaque"):
            check_return(made(annotation), "step")
    check_return(made("Any"), "step")


class Opaque:
    """A class that JSON cannot hold."""
