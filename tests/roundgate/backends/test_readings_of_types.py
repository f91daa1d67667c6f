"""Unions that pydantic would try in more and more ways with every level of a value."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from pydantic import BaseModel, Discriminator, Field, JsonValue, Tag, create_model
from pydantic import Json as JsonText
from typing_extensions import TypeAliasType, TypedDict

from roundgate.backends.signature import MAX_READINGS, describe


@dataclass
class And:
    left: Filter
    right: Filter


@dataclass
class Or:
    left: Filter
    right: Filter


@dataclass
class Not:
    of: Filter


Filter = And | Or | Not | int


class Wide(BaseModel):
    kind: Literal["wide"]
    inner: Undiscriminated


class Narrow(BaseModel):
    kind: Literal["narrow"]
    inner: Undiscriminated


Undiscriminated = Wide | Narrow


class Aliased(BaseModel):
    within: Both = Field(alias="in")


class Direct(TypedDict, total=False):
    within: Both


Both = Aliased | Direct | None


class Listed(BaseModel):
    items: list[Listed] | tuple[Listed, ...] | int


class Open(BaseModel):
    left: Any = None
    others: dict[str, Opened] = {}


class Keyed(BaseModel):
    others: dict[str, Opened] = {}


Opened = Open | Keyed


class Add(BaseModel):
    kind: Literal["add"]
    left: Term
    right: Term | None = None


class Minus(BaseModel):
    kind: Literal["minus"]
    left: Term


Term = Annotated[Add | Minus, Field(discriminator="kind")]


def kind_of(value: Any) -> Any:
    return value["kind"]


class Tree(BaseModel):
    children: list[Tree] = []
    parent: Tree | None = None
    named: dict[str, Tree | str] = {}


class Every(BaseModel):
    all: list[Found]


class Some(BaseModel):
    any: list[Found]


class Never(BaseModel):
    none: Found


Found = Every | Some | Never | int


class Company(BaseModel):
    employees: list[Employee]
    sites: list[Site]


class Employee(BaseModel):
    company: Company | None


class Site(BaseModel):
    company: Company | None


class Step(NamedTuple):
    name: str
    then: Step | None
    otherwise: Step | None


class Chained(TypedDict):
    next: Chained | list[Chained] | None


class Base(BaseModel):
    children: list[Base] = []


class Derived(Base):
    more: int = 0


Json = TypeAliasType("Json", "dict[str, Json] | list[Json] | str | int | float | bool | None")


for one in (Wide, Narrow, Aliased, Open, Keyed, Add, Minus, Tree, Every, Some, Never, Company):
    one.model_rebuild()


def tool_of(hint: Any) -> Callable[..., Any]:
    def tool(where: Any, limit: int = 10) -> None: ...

    tool.__annotations__ = {"where": hint, "limit": int, "return": None}
    return tool


@pytest.mark.parametrize(
    ("hint", "member"),
    [
        (Filter, "left"),
        (Filter | None, "left"),
        (Undiscriminated, "inner"),
        (Opened, "others"),
        (Annotated[And | Or, Field(union_mode="left_to_right")], "left"),
    ],
)
def test_a_deep_value_of_a_union_that_branches_at_every_level_is_refused(
    hint: Any, member: str
) -> None:
    value: Any = 1
    for _ in range(40):
        value = {member: {"key": value} if member == "others" else value}
    with pytest.raises(ValueError, match=f"more than {MAX_READINGS:,} attempts"):
        describe(tool_of(hint)).bind({"where": value})


def test_a_deep_value_of_lists_in_a_union_is_refused() -> None:
    value: Any = 1
    for _ in range(40):
        value = {"items": [value]}
    with pytest.raises(ValueError, match=f"more than {MAX_READINGS:,} attempts"):
        describe(tool_of(Listed)).bind({"where": value})


@pytest.mark.parametrize(
    "hint",
    [
        Term,
        Annotated[
            Annotated[Add, Tag("add")] | Annotated[Minus, Tag("minus")],
            Discriminator(kind_of),
        ],
        Tree,
        Found,
        Company,
        Step,
        Chained,
        Base | Derived,
        Json,
        JsonValue,
        Any,
        int | str,
        list[int | str | None] | None,
        dict[str, int | list[int | str]],
    ],
)
def test_ordinary_types_are_taken(hint: Any) -> None:
    describe(tool_of(hint))


def test_a_deep_value_of_a_tagged_union_is_bound() -> None:
    term: dict[str, Any] = {"kind": "minus", "left": {"kind": "add", "left": None}}
    for _ in range(60):
        term = {"kind": "add", "left": term}
    with pytest.raises(ValueError, match="where"):
        describe(tool_of(Term)).bind({"where": term})


class A(BaseModel):
    values: list[int]


class B(A): ...


class C(A): ...


Last = A | B | C


class D(BaseModel):
    inner: list[Last]


class E(D): ...


class F(D): ...


class G(BaseModel):
    inner: list[D | E | F]


class H(G): ...


class I(G): ...  # noqa: E742


Several = list[G | H | I]


def test_what_a_type_that_is_not_recursive_multiplies_is_bounded_by_what_is_sent() -> None:
    bind = describe(tool_of(Several)).bind
    few = {"inner": [{"inner": [{"values": [1, 2]}]}]}
    assert len(bind({"where": [few] * 100})["where"]) == 100
    with pytest.raises(ValueError, match=f"more than {MAX_READINGS:,} attempts"):
        bind({"where": [few] * 1_000})


def union_of(count: int, members: int, *others: Any) -> Any:
    """Models with members of their own, all required, and others."""
    required: Any = {f"member{at}": (int, ...) for at in range(members)}
    made = [create_model(f"Event{at}", **required, **own(at)) for at in range(count)]
    return functools.reduce(operator.or_, [*made, *others])


def own(at: int) -> Any:
    return {f"own{at}": (int, ...)}


class Empty(BaseModel):
    note: str = ""


def test_required_members_that_alternatives_do_not_find_count() -> None:
    signature = describe(tool_of(list[union_of(15, 30, Empty)]))  # type: ignore[misc]
    assert len(signature.bind({"where": [{}] * 100})["where"]) == 100
    with pytest.raises(ValueError, match=f"more than {MAX_READINGS:,} attempts"):
        signature.bind({"where": [{}] * 1_000})


def test_five_hundred_events_of_twenty_kinds_are_bound() -> None:
    event = {**{f"member{at}": 1 for at in range(5)}, "own19": 1}
    signature = describe(tool_of(list[union_of(20, 5)]))  # type: ignore[misc]
    assert len(signature.bind({"where": [event] * 500})["where"]) == 500


def test_what_a_text_of_json_stands_for_counts() -> None:
    class Form(BaseModel):
        first: int
        second: int

    signature = describe(tool_of(JsonText[list[Form]]))
    assert len(signature.bind({"where": '[{"first": 1, "second": 2}]'})["where"]) == 1
    with pytest.raises(ValueError, match="where: Invalid JSON"):
        signature.bind({"where": "[{"})
    with pytest.raises(ValueError, match=f"more than {MAX_READINGS:,} attempts"):
        signature.bind({"where": f"[{'{},' * 50_000}NaN]"})
