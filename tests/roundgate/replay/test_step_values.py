"""Steps that return what JSON does not have: the same type in every run,
wherever its process dies."""

from __future__ import annotations

import functools
import gc
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, StrEnum
from ipaddress import IPv4Address, IPv6Network
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from pydantic import (
    AliasChoices,
    AwareDatetime,
    BaseModel,
    Field,
    HttpUrl,
    NaiveDatetime,
    PastDate,
    PrivateAttr,
    SecretStr,
)
from typing_extensions import TypeAliasType, TypedDict

from roundgate import Context
from roundgate.errors import NondeterminismError, NotJson
from roundgate.replay.steps import check_return
from roundgate.replay.values import find_conversion
from roundgate_testing import fake_context
from tests.support.lives import DiesAt, Story, every_death
from tests.support.replay import value_of
from tests.support.rounds import accept

T = TypeVar("T")


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


class Point(NamedTuple):
    x: int
    y: int


class Card(BaseModel):
    id: str
    amount: int


class Refund(BaseModel):
    id: str
    amount: int


class Gift(Card):
    note: str = ""


class Trip(BaseModel):
    id: str
    day: date


class Charged(Card):
    kind: Literal["charged"] = "charged"


class Paid(Card):
    kind: Literal["paid"] = "paid"


@dataclass
class Priced:
    """A whole number where a float is annotated stays what it is worth."""

    price: float


class Trips(BaseModel):
    costs: list[Priced]


class Maybe(BaseModel):
    cost: float | None


class Cached(BaseModel):
    id: str
    hidden: str = Field("default", exclude=True)
    _seen: list[object] = PrivateAttr(default_factory=lambda: [object()])


class Word(StrEnum):
    YES = "yes"


class Code(Enum):
    LOW = "low"


class Total(BaseModel):
    total: int = Field(validation_alias=AliasChoices("sum", "total_amount"))


class Page(BaseModel, Generic[T]):
    items: list[T]
    next: str | None = None


@dataclass
class Boxed(Generic[T]):
    value: T


class Pair(Enum):
    LEFT = (1, "a")
    RIGHT = (2, date(2026, 1, 2))


class Written(BaseModel):
    total: int = Field(serialization_alias="sum")


OrderId = NewType("OrderId", UUID)
Quotes = TypeAliasType("Quotes", list[Quote])


@dataclass
class Unknown:
    """A class with a name that only a type checker knows."""

    day: Holiday  # type: ignore[name-defined]  # noqa: F821


class Secret(BaseModel):
    token: SecretStr


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
    ((1, "a"), tuple[int, str]),
    ((1, 2), tuple),
    (Point(1, 2), Point),
    ([Point(1, 2)], list[Point]),
    ({1: "a"}, dict[int, str]),
    ({date(2026, 1, 2): Decimal("1.50")}, dict[date, Decimal]),
    (frozenset({Decimal("1.50")}), frozenset[Decimal]),
    (datetime(2026, 1, 2, tzinfo=ZoneInfo("Europe/Berlin")), datetime),
    (datetime(2026, 1, 2, 3, 4), date | datetime),
    (Total(sum=3), Total),
    (OrderId(UUID(int=7)), OrderId),
    ([OrderId(UUID(int=7))], list[OrderId]),
    ([QUOTE], Quotes),
    (Word.YES, Literal[Word.YES]),
    (date(2026, 1, 2), datetime | date),
    (Decimal("1.5"), int | float | Decimal),
    (b"ab", bytes | UUID),
    (Path("a"), UUID | Path),
    (Card(id="a", amount=1), Card | Trip),
    (Trip(id="a", day=date(2026, 1, 2)), Card | Trip),
    (Paid(id="a", amount=1), Annotated[Charged | Paid, Field(discriminator="kind")]),
    (Priced(3), Priced),
    (None, Quote | None),
    (QUOTE, Quote | None),
    ({"day": date(2026, 1, 2), "count": 3}, Row),
    (Page[Card](items=[Card(id="a", amount=1)]), Page[Card]),
    (Boxed(Card(id="a", amount=1)), Boxed[Card]),
    ([Card(id="a", amount=1)], Iterable[Card]),
    ([Card(id="a", amount=1)], Collection[Card]),
    (SENT, AwareDatetime),
    (datetime(2026, 1, 2), NaiveDatetime),
    (SENT, AwareDatetime | None),
    (date(2020, 1, 2), PastDate),
    (HttpUrl("https://example.com/a"), HttpUrl),
    ([HttpUrl("https://example.com/a")], list[HttpUrl]),
    (IPv4Address("127.0.0.1"), IPv4Address),
    (IPv6Network("2001:db8::/32"), IPv6Network),
    (deque([1, 2]), deque[int]),
    (deque([QUOTE]), deque[Quote]),
    (deque([1]), deque),
    (Counter("aab"), Counter[str]),
    (OrderedDict(b=1, a=2), OrderedDict[str, int]),
    (defaultdict(list, {"a": [1]}), defaultdict[str, list[int]]),
    (Pair.LEFT, Pair),
    ([Pair.LEFT], list[Pair]),
    (Pair.LEFT, Pair | None),
    (Written(total=3), Written),
    ([Written(total=3)], list[Written]),
]


@pytest.mark.parametrize(("value", "hint"), VALUES, ids=lambda one: str(one)[:30])
async def test_a_value_comes_back_as_its_annotation_says(value: Any, hint: Any) -> None:
    with fake_context() as ctx:
        found = await ctx.step("one", returning(value, hint))
    assert (found, type(found)) == (value, type(value))
    assert found is not value or value is None or isinstance(value, Enum)


@pytest.mark.parametrize("fold", [0, 1])
@pytest.mark.parametrize("day", [datetime(2026, 10, 25, 2, 30), datetime(2026, 3, 29, 2, 30)])
async def test_a_time_in_the_hour_of_a_clock_change_comes_back(day: datetime, fold: int) -> None:
    given = day.replace(tzinfo=ZoneInfo("Europe/Berlin"), fold=fold)
    with fake_context() as ctx:
        found = await ctx.step("one", returning(given, datetime))
    assert found.isoformat() == given.isoformat()


LOST = [
    str | date,
    date | str | None,
    str | Decimal,
    Decimal | str,
    str | bytes,
    bytes | str,
    str | UUID,
    str | PurePosixPath,
    str | timedelta,
    Code | str,
    list[str] | set[str],
    list[int] | tuple[int, ...],
    list[str | Decimal],
    dict[str, str | date],
    tuple[int, str | Decimal],
    dict[int | str, int],
    dict[tuple[int, int], str],
    dict[None, int],
    Unknown,
    NewType("Either", str | date),
    Card | Refund,
    Gift | Card,
    list[Card | Refund],
    Annotated[str | date, Field(description="when")],
    HttpUrl | str,
    IPv4Address | str,
    deque[int] | list[int],
]


@pytest.mark.parametrize("hint", LOST, ids=str)
async def test_a_type_whose_values_json_cannot_tell_apart_is_refused_before_the_effect(
    hint: Any,
) -> None:
    called: list[int] = []

    def effect() -> Any:
        called.append(1)

    effect.__annotations__["return"] = hint
    with fake_context() as ctx, pytest.raises(NotJson, match=r"step 'pay' returns .*discriminator"):
        await ctx.step("pay", effect)
    assert called == []


CHANGED: list[tuple[Any, Any, str]] = [
    (Trips(costs=[Priced(1.5), Priced(float("nan"))]), Trips, r"costs\[1\]\.price is nan"),
    (Maybe(cost=float("inf")), Maybe, "cost is float, but would come back as None"),
    (Gift(id="a", amount=1), Card, "is Gift, but would come back as Card"),
    ([Gift(id="a", amount=1)], list[Card], r"\[0\] is Gift, but would come back as Card"),
    ((date(2026, 1, 2),), Sequence[Any], "date"),
    (Cached(id="a", hidden="other"), Cached, r"hidden would come back as another str"),
    (Secret(token=SecretStr("4711")), Secret, "token would come back as another SecretStr"),
    ({"due": [date(2026, 1, 2)]}, dict[str, Any], r"due\[0\] is date"),
    (Word.YES, str, "is Word, but would come back as str"),
    ({"a": [Word.YES]}, None, r"a\[0\] is Word, but would come back as str"),
    ({Word.YES: 1}, None, "key is Word, but would come back as str"),
    (defaultdict(int, a=1), dict[str, int], "is defaultdict, but would come back as dict"),
    (deque([1], maxlen=3), deque[int], "would come back with another length"),
    (defaultdict(float, a=1), defaultdict[str, int], "would come back with another default"),
    ({QUOTE.until}, Iterable[date], "is set, but would come back as list"),
    (Point(1, 2), None, r"annotate the function's return type \(-> Point\)"),
    (Word.YES, None, r"annotate the function's return type \(-> Word\)"),
    (Code.LOW, None, r"annotate the function's return type \(-> Code\)"),
    ({1: "a"}, None, "has the key 1"),
]


@pytest.mark.parametrize(("value", "hint", "message"), CHANGED, ids=lambda one: str(one)[:30])
async def test_a_value_that_would_come_back_as_another_is_an_error_at_its_record(
    value: Any, hint: Any, message: str
) -> None:
    with fake_context() as ctx, pytest.raises(NotJson, match=message) as one:
        await ctx.step("pay", returning(value, hint))
    assert "4711" not in str(one.value)


async def test_private_attributes_of_a_model_are_made_anew() -> None:
    with fake_context() as ctx:
        found = await ctx.step("one", returning(Cached(id="a"), Cached))
    assert (found.id, found.hidden) == ("a", "default")


@pytest.mark.parametrize("hint", [None, Any, list[int], Sequence[int]])
async def test_a_tuple_is_a_list_unless_its_annotation_is_a_tuple(hint: Any) -> None:
    with fake_context() as ctx:
        assert await ctx.step("pair", returning((1, 2), hint)) == [1, 2]


@pytest.mark.parametrize("hint", [int, str, list[int], int | str, dict[str, Any], Any, None])
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


async def ship(ctx: Context) -> str:
    quote = await ctx.step("quote", make_quote, 3)
    await ctx.elicit("sure", f"For {quote.total + 1}?", Go)
    parcel = await ctx.step("pack", pack, quote)
    return f"{parcel.label!r} {parcel.sent.isoformat()} {parcel.quotes[0].until.year}"


@pytest.mark.parametrize("task_id", ["task", None])
async def test_wherever_a_process_dies_the_handler_has_the_same_types(task_id: str | None) -> None:
    async def lived(fate: DiesAt) -> None:
        story = Story(ship, lambda request: accept(go=True), fate, task_id=task_id)
        assert value_of(await story.told()) == f"b'0.75\\xff' {SENT.isoformat()} 2026"

    await every_death(lived)


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
