"""A function's signature and docstring as JSON Schema, and the arguments of a
request as keyword arguments."""

import dataclasses
import datetime as dt
import enum
import inspect
import json
import math
import threading
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, wraps
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import pytest
from annotated_types import MinLen
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, Field

from roundgate import Context, SyncContext
from roundgate.backends.signature import describe
from roundgate.protocol.schemas import Schema
from tests.support.long import examples


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Place(BaseModel):
    """Somewhere."""

    city: str
    near: Optional["Place"] = None
    kind: Literal["home", "work"] = Field("home", description="What one does there.")


def schema(function: Callable[..., Any]) -> dict[str, Any]:
    return describe(function).input_schema


def properties(function: Callable[..., Any]) -> dict[str, Any]:
    found: dict[str, Any] = schema(function)["properties"]
    return found


def test_a_function_without_parameters_takes_the_empty_object_only() -> None:
    def now() -> str: ...

    assert schema(now) == {"type": "object", "properties": {}, "additionalProperties": False}


def test_parameters_without_default_are_required_in_their_order() -> None:
    def search(words: str, limit: int = 10, *, where: str) -> None: ...

    found = schema(search)
    assert list(found["properties"]) == ["words", "limit", "where"]
    assert found["required"] == ["words", "where"]
    assert found["additionalProperties"] is False
    assert found["properties"]["limit"] == {"type": "integer", "default": 10}


def test_a_parameter_without_annotation_takes_anything() -> None:
    def echo(value) -> None: ...  # type: ignore[no-untyped-def]

    assert properties(echo) == {"value": {}}


def test_optional_is_about_null_and_a_default_is_about_leaving_out() -> None:
    def find(one: int | None, two: Optional[int] = None) -> None: ...  # noqa: UP045

    nullable = [{"type": "integer"}, {"type": "null"}]
    assert properties(find) == {
        "one": {"anyOf": nullable},
        "two": {"anyOf": nullable, "default": None},
    }
    assert schema(find)["required"] == ["one"]


def test_literals_enums_and_their_defaults_are_shown_as_json_has_them() -> None:
    def paint(
        colour: Colour = Colour.RED, size: Literal["s", 7] = 7, day: dt.date = dt.date(2026, 7, 28)
    ) -> None: ...

    found = schema(paint)
    assert found["$defs"]["Colour"]["enum"] == ["red", "blue"]
    assert found["properties"]["colour"] == {"$ref": "#/$defs/Colour", "default": "red"}
    assert found["properties"]["size"] == {"enum": ["s", 7], "default": 7}
    assert found["properties"]["day"] == {
        "type": "string",
        "format": "date",
        "default": "2026-07-28",
    }


def test_nested_and_recursive_models_come_with_their_definitions() -> None:
    def travel(to: Place) -> None: ...

    compiled = Schema.compile(schema(travel))
    assert compiled.is_valid({"to": {"city": "Rome", "near": {"city": "Ostia", "kind": "work"}}})
    assert not compiled.is_valid({"to": {"city": "Rome", "near": {"kind": "work"}}})
    assert (
        schema(travel)["$defs"]["Place"]["properties"]["kind"]["description"]
        == "What one does there."
    )


def test_nothing_is_titled_with_its_own_name() -> None:
    def travel(to: Place, with_luggage: bool) -> None: ...

    found = schema(travel)
    assert "title" not in found
    assert not any("title" in one for one in found["properties"].values())
    assert not any("title" in one for one in found["$defs"]["Place"]["properties"].values())


def test_a_context_may_be_optional_or_annotated() -> None:
    def one(a: int, ctx: Context | None = None) -> None: ...
    def two(a: int, ctx: Optional[Context] = None) -> None: ...  # noqa: UP045
    def three(a: int, ctx: Annotated[Context, "who asks"]) -> None: ...
    def four(a: int, ctx: "SyncContext | None" = None) -> None: ...

    for function in (one, two, three, four):
        assert describe(function).takes_context == "ctx"
        assert list(properties(function)) == ["a"]


def test_an_annotated_field_gives_bounds_and_overrides_the_docstring() -> None:
    def roll(sides: Annotated[int, Field(ge=2, le=100, description="How many faces.")] = 6) -> None:
        """Roll a die.

        Args:
            sides: Something else.
        """

    assert properties(roll) == {
        "sides": {
            "type": "integer",
            "minimum": 2,
            "maximum": 100,
            "description": "How many faces.",
            "default": 6,
        }
    }


GOOGLE = """Find books.

    Titles and authors are searched.

    Args:
        words: What to look for:
            several words are all needed.
        limit (int): How many.

    Returns:
        The books.
    """
NUMPY = """Find books.

    Titles and authors are searched.

    Parameters
    ----------
    words : str
        What to look for:
        several words are all needed.
    limit : int
        How many.
    """
SPHINX = """Find books.

    Titles and authors are searched.

    :param words: What to look for:
        several words are all needed.
    :param int limit: How many.
    :returns: The books.
    """


@pytest.mark.parametrize("docstring", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_a_docstring_describes_the_function_and_each_parameter(docstring: str) -> None:
    def search(words: str, limit: int = 10) -> None: ...

    search.__doc__ = docstring
    found = describe(search)
    assert found.summary == "Find books.\n\nTitles and authors are searched."
    assert [p.description for p in found.parameters] == [
        "What to look for:\nseveral words are all needed.",
        "How many.",
    ]


def test_a_docstring_that_describes_no_parameters_is_kept_whole() -> None:
    def shout(text: str) -> None:
        """Shout.

        Example:
            >>> shout("a")

        Note that `text` may be *long*:

        - one
        - two
        """

    summary = describe(shout).summary
    assert summary is not None
    assert summary.startswith('Shout.\n\nExample:\n    >>> shout("a")')
    assert summary.endswith("- one\n- two")


@pytest.mark.parametrize("docstring", [None, "", "   "])
def test_a_function_without_docstring_has_no_description(docstring: str | None) -> None:
    def nothing() -> None: ...

    nothing.__doc__ = docstring
    assert describe(nothing).summary is None


@given(
    st.text(st.sampled_from(":@-= \n\tparmArgs>`*()[]é"), max_size=60).map(
        lambda text: f"First.\n{text}"
    )
)
def test_no_docstring_stops_a_function_from_being_served(docstring: str) -> None:
    def one(a: int) -> None: ...

    one.__doc__ = docstring
    assert (describe(one).summary or "").startswith("First.")


@pytest.mark.parametrize("kind", [Context, SyncContext])
def test_the_context_is_no_argument_whatever_its_name_and_place(kind: type) -> None:
    def work(a: int, call: kind, b: int = 1) -> None: ...  # type: ignore[valid-type]

    found = describe(work)
    assert found.takes_context == "call"
    assert [p.name for p in found.parameters] == list(properties(work)) == ["a", "b"]
    with pytest.raises(ValueError, match="call: Extra inputs"):
        found.bind({"a": 1, "call": {}})


def test_names_that_mean_something_to_pydantic_or_python_are_ordinary_parameters() -> None:
    names = [
        "schema",
        "json",
        "self_",
        "cls",
        "model_config",
        "model_fields",
        "items",
        "keys",
        "_private",
        "__dunder",
    ]
    names += ["validate", "copy", "dict", "fields", "construct", "total", "name"]
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=int) for name in names
    ]

    def odd(**_: int) -> None: ...

    odd.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    odd.__annotations__ = dict.fromkeys(names, int)
    arguments = {name: index for index, name in enumerate(names)}
    assert list(properties(odd)) == names
    assert describe(odd).bind(arguments) == arguments


def test_an_alias_is_what_a_caller_sends_and_the_function_never_sees() -> None:
    def mail(
        from_: Annotated[str, Field(alias="from")],
        class_: Annotated[str, Field(alias="class")] = "a",
    ) -> None:
        """Send it.

        Args:
            from_: The sender.
        """

    found = describe(mail)
    assert properties(mail)["from"] == {"type": "string", "description": "The sender."}
    assert properties(mail)["class"]["default"] == "a"
    assert [p.name for p in found.parameters] == ["from", "class"]
    assert found.bind({"from": "ann"}) == {"from_": "ann"}


def test_annotations_in_quotes_are_looked_up_where_the_function_was_written() -> None:
    def paint(colour: "Colour", when: "dt.datetime | None" = None) -> "str": ...

    assert properties(paint)["colour"] == {"$ref": "#/$defs/Colour"}
    assert describe(paint).returns is str


def test_a_wrapped_function_is_described_by_what_it_wraps() -> None:
    async def add(a: int, b: int = 2) -> int:
        """Add."""

    @wraps(add)
    def logged(*args: Any, **kwargs: Any) -> Any: ...

    assert schema(logged) == schema(add)
    assert describe(logged).is_async


def test_arbitrary_arguments_are_allowed_and_passed_on_and_the_named_ones_converted() -> None:
    def work(day: dt.date, /, **rest: Any) -> None: ...

    def fine(day: dt.date, **rest: Any) -> None: ...

    assert schema(fine)["additionalProperties"] is True
    assert describe(fine).bind({"day": "2026-07-28", "x": [1]}) == {
        "day": dt.date(2026, 7, 28),
        "x": [1],
    }
    with pytest.raises(
        TypeError, match="'day' cannot be filled by name; make it an ordinary or keyword-only"
    ):
        describe(work)


@pytest.mark.parametrize("default", [math.inf, object(), {"a": math.nan}, b"\xff"])
def test_a_default_that_json_cannot_show_is_not_shown_and_still_a_default(default: Any) -> None:
    def work(a: Any = default) -> Any:
        return a

    assert schema(work)["properties"] == {"a": {}}
    assert work(**describe(work).bind({})) == default


@pytest.mark.parametrize(
    ("hint", "sent", "got"),
    [
        (dt.datetime, "2026-07-28T12:00:00Z", dt.datetime(2026, 7, 28, 12, tzinfo=dt.UTC)),
        (dt.timedelta, "PT90S", dt.timedelta(seconds=90)),
        (Colour, "blue", Colour.BLUE),
        (Place, {"city": "Rome"}, Place(city="Rome")),
        (list[Place], [{"city": "Rome"}], [Place(city="Rome")]),
        (Decimal, "1.10", Decimal("1.10")),
        (uuid.UUID, "00000000-0000-0000-0000-00000000000a", uuid.UUID(int=10)),
        (Path, "a/b", Path("a/b")),
        (bytes, "é", "é".encode()),
        (set[int], [1, 2, 1], {1, 2}),
        (tuple[int, str], [1, "a"], (1, "a")),
        (dict[int, bool], {"1": True}, {1: True}),
        (int, 3.0, 3),
        (float, 3, 3.0),
        (int, 10**30, 10**30),
        (int | None, None, None),
        (Any, {"a": [None]}, {"a": [None]}),
    ],
)
def test_json_becomes_the_annotated_type(hint: Any, sent: Any, got: Any) -> None:
    def work(value: hint) -> None: ...

    bound = describe(work).bind({"value": sent})["value"]
    assert bound == got
    assert type(bound) is type(got)


def test_what_does_not_fit_is_said_for_each_argument_without_repeating_the_value() -> None:
    def work(day: dt.date, at: Place, n: int) -> None: ...

    with pytest.raises(ValueError, match="day: ") as refused:
        describe(work).bind({"day": "s3cret", "at": {"city": 5}, "n": 1, "m": 1})
    assert "at.city: Input should be a valid string" in str(refused.value)
    assert "m: Extra inputs are not permitted" in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_a_long_list_of_mistakes_is_cut_and_a_very_long_one_is_only_counted() -> None:
    def work(days: list[dt.date]) -> None: ...

    with pytest.raises(ValueError, match=r"days\.0: .*; days\.7: ") as refused:
        describe(work).bind({"days": ["x"] * 100})
    assert "days.8" not in str(refused.value)
    with pytest.raises(ValueError, match="101 values are invalid"):
        describe(work).bind({"days": ["x"] * 101})


def test_the_text_of_a_mistake_is_cut() -> None:
    def work(counts: dict[str, int]) -> None: ...

    with pytest.raises(ValueError, match=r"counts\.nn") as refused:
        describe(work).bind({"counts": {"n" * 1_000_000: "x"}})
    assert len(str(refused.value)) < 1000


HINTS = [
    int,
    float,
    bool,
    str,
    Any,
    list[int],
    dict[str, float],
    int | None,
    str | int,
    Literal["a", 1],
    Colour,
]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(-1e9, 1e9)
    | st.sampled_from(["a", "red", ""]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
    ),
    max_leaves=4,
)


@examples(60)
@given(st.lists(st.sampled_from(range(len(HINTS))), min_size=1, max_size=3), st.data())
def test_whatever_the_schema_lets_through_can_be_bound(
    chosen: list[int], data: st.DataObject
) -> None:
    names = [f"p{index}" for index in range(len(chosen))]

    def work(**_: Any) -> None: ...

    work.__annotations__ = {name: HINTS[hint] for name, hint in zip(names, chosen, strict=True)}
    work.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    )
    arguments = {name: data.draw(VALUES) for name in names}
    if Schema.compile(schema(work)).is_valid(arguments):
        assert describe(work).bind(arguments).keys() == arguments.keys()


def test_each_call_has_a_default_of_its_own() -> None:
    def collect(word: str, into: list[str] = []) -> list[str]:  # noqa: B006 - what people write
        into.append(word)
        return into

    signature = describe(collect)
    assert collect(**signature.bind({"word": "a"})) == ["a"]
    assert collect(**signature.bind({"word": "b"})) == ["b"]
    assert collect(**signature.bind({"word": "c", "into": ["x"]})) == ["x", "c"]
    assert signature.input_schema["properties"]["into"]["default"] == []


class Basket(BaseModel):
    articles: list[str] = []


@dataclass
class Cart:
    articles: list[str] = dataclasses.field(default_factory=list)


@pytest.mark.parametrize("default", [Basket(), Cart(), ([],), deque[str]()], ids=repr)
def test_each_call_has_a_default_of_its_own_whatever_its_type(default: Any) -> None:
    def work(a: Any = default) -> Any:
        return a

    signature = describe(work)
    first, second = work(**signature.bind({})), work(**signature.bind({}))
    assert first == second == default
    assert first is not second
    assert first is not default


def test_a_default_that_cannot_change_is_given_as_it_is() -> None:
    unset = object()

    def work(a: Any = unset) -> Any:
        return a

    assert work(**describe(work).bind({})) is unset


def test_a_default_that_cannot_be_copied_is_given_as_it_is() -> None:
    lock = threading.Lock()

    def work(a: Any = {"lock": lock}) -> Any:  # noqa: B006
        return a["lock"]

    assert work(**describe(work).bind({})) is lock


PLAIN = (
    *(int, str, bool, float, type(None), list[int], list[str], list[bool], int | None),
    *(None | int, str | int | bool, int | float, list[str] | None, list[float] | list[bool]),
    *(Annotated[str | None, "a note"], Annotated[int, Field(description="A number.")]),
    Annotated[int | None, Field(ge=-3, lt=7)],
    Annotated[float, Field(description="A size.", gt=0.5, le=4)],
    Annotated[str, Field(min_length=1, max_length=2)],
    Annotated[list[int], Field(min_length=1, max_length=2)] | Annotated[str, MinLen(2)] | None,
)
"""Types of JSON."""


def taking(hint: Any) -> Callable[..., Any]:
    def function(a: Any, b: Any = None) -> None: ...

    function.__annotations__ = {"a": hint, "b": hint}
    return function


@pytest.mark.parametrize("hint", PLAIN, ids=str)
def test_the_schema_of_plain_parameters_is_the_one_that_pydantic_derives(hint: Any) -> None:
    """The text as well: clients and indexes compare lists of tools."""
    plain = describe(taking(hint))
    other = describe(taking(Annotated[hint, ("a note that another library reads",)]))
    assert plain.compiled is not None
    assert other.compiled is None
    assert json.dumps(plain.input_schema) == json.dumps(other.input_schema)


@pytest.mark.parametrize(
    "hint",
    [
        Any,
        list,
        dict,
        *(list[Any], list[list[int]]),
        Literal[1],
        dt.date,
        Annotated[int, Field(multiple_of=2)],
        Annotated[str, Field(pattern="^a")],
        Annotated[str, Field(alias="from")],
        Annotated[int, Field(default=1)],
        Annotated[int, Field(json_schema_extra={"examples": [1]})],
        list[Annotated[int, AfterValidator(abs)]],
    ],
    ids=str,
)
def test_other_parameters_are_checked_by_their_schema(hint: Any) -> None:
    assert describe(taking(hint)).compiled is None


@pytest.mark.parametrize("hint", [list[int], list[int] | None, list[str] | list[int], list, Any])
def test_a_function_that_changes_a_list_does_not_change_its_call(hint: Any) -> None:
    sent = {"a": [1, 2]}
    describe(taking(hint)).bind(sent)["a"].append(3)
    assert sent == {"a": [1, 2]}


ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3)
    | st.sampled_from(["1", "true", "\ud800", 10**40, 1.0, 1e300, 2**63, 2**64]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=2) | st.sampled_from(["1", "\ud800"]), inner, max_size=3)
    ),
    max_leaves=5,
)


@cache
def checks() -> list[tuple[Any, Schema]]:
    """For each type, what checks arguments and the schema that it follows."""
    compiled = [describe(taking(hint)).compiled for hint in PLAIN]
    return [(one[1], Schema.compile(one[0])) for one in compiled if one is not None]


@examples(500)
@given(ANY_JSON, ANY_JSON)
def test_arguments_are_valid_exactly_if_their_schema_says_so(a: Any, b: Any) -> None:
    assert len(checks()) == len(PLAIN)
    for arguments in ({"a": a}, {"a": a, "b": b}, {"b": b}, {"a": a, "c": b}):
        for checked, schema in checks():
            assert checked.conforms(arguments) == schema.conforms(arguments), arguments
