"""Rules about arguments against Python functions: a rule reads the value that the function gets, however it was made of
the arguments; a rule that cannot read it refuses the call."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import count
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasPath,
    AnyUrl,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Json,
    RootModel,
    SecretStr,
    StringConstraints,
    computed_field,
    field_serializer,
    field_validator,
    model_serializer,
    model_validator,
)
from typing_extensions import TypedDict

from roundgate import tool
from roundgate.backends.approvals import shown
from roundgate.backends.python_values import MAX_VALUES
from roundgate.backends.schema_values import ArgumentSchema, with_schema
from roundgate.backends.signature import describe
from tests.support.asgi import Client, client, gateway
from tests.support.rounds import CAPABILITIES, accept, ask, retry

ran: list[Any] = []
numbers = count()
NUMBER = {"type": "number", "maximum": 100}
NOT_THESE = "does not allow this call with these arguments"


def member(path: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of arguments with a member at a path: `order.sum`."""
    for name in reversed(path.split(".")):
        schema = {"type": "object", "properties": {name: schema}, "required": [name]}
    return schema


class Aliased(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    max_amount: float = Field(10, alias="sum")


class Choices(BaseModel):
    sum: float = Field(10, validation_alias=AliasChoices("sum", "max_amount"))


class Path(BaseModel):
    sum: float = Field(10, validation_alias=AliasPath("more", "sum"))


class Generated(BaseModel):
    model_config = ConfigDict(alias_generator=lambda name: name.lower(), validate_by_name=True)
    SUM: float = 10


class ByName(BaseModel):
    model_config = ConfigDict(validate_by_name=True, validate_by_alias=False)
    sum: float = Field(10, alias="max_amount")


class Factory(BaseModel):
    sum: float = Field(default_factory=lambda: 1000)


class FactoryOfData(BaseModel):
    factor: int = 1
    sum: float = Field(default_factory=lambda data: data["factor"] * 100)


class Money(BaseModel):
    sum: Decimal = Decimal(10)


class ModelValidator(BaseModel):
    sum: float = 10
    percent: float = 100

    @model_validator(mode="after")
    def _all(self) -> ModelValidator:
        self.sum = self.sum * self.percent / 100
        return self


class Wrapped(BaseModel):
    sum: float = 10

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, value: Any) -> Any:
        return {"sum": value.get("amount", value.get("sum", 10))}


class Liar(BaseModel):
    sum: float = 10

    @field_serializer("sum")
    def _small(self, value: float) -> float:
        return 1.0


class WholeLiar(BaseModel):
    sum: float = 10

    @model_serializer
    def _small(self) -> dict[str, Any]:
        return {"sum": 1.0}


class Excluded(BaseModel):
    sum: float = Field(10, exclude=True)


class OtherName(BaseModel):
    sum: float = Field(10, serialization_alias="amount")


class Computed(BaseModel):
    model_config = ConfigDict(extra="allow")
    total: float = Field(10, validation_alias="sum")

    @computed_field(alias="sum")  # type: ignore[prop-decorator]
    @property
    def small(self) -> float:
        return 1.0


class Rooted(RootModel[Choices]):
    pass


class Paid(BaseModel):
    kind: Literal["paid"]
    sum: float = Field(10, validation_alias=AliasChoices("sum", "max_amount"))


class Free(BaseModel):
    kind: Literal["free"]


class Holder(BaseModel):
    sum: float = 10
    token: SecretStr = SecretStr("k")
    data: bytes = b""


class Validated(BaseModel):
    sum: float = 10

    @field_validator("sum")
    @classmethod
    def _cents(cls, value: float) -> float:
        return value * 100


@dataclasses.dataclass
class Plain:
    sum: float = 10


@dataclasses.dataclass
class Renamed:
    __pydantic_config__ = ConfigDict(extra="ignore")
    amount: Annotated[float, Field(validation_alias=AliasChoices("sum", "max_amount"))] = 10


@dataclasses.dataclass
class Initial:
    sum: float = 10
    more: dataclasses.InitVar[float] = 0

    def __post_init__(self, more: float) -> None:
        self.total = self.sum + more


class Typed(TypedDict, total=False):
    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    amount: Annotated[float, Field(validation_alias=AliasChoices("sum", "max_amount"))]


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Text(BaseModel):
    model_config = ConfigDict(str_to_lower=True, str_strip_whitespace=True)
    name: str


class Custom:
    def __init__(self, value: float) -> None:
        self.value = value


CustomNumber = Annotated[Any, AfterValidator(Custom), Field(json_schema_extra={"type": "number"})]


def got(value: Any) -> str:
    ran.append(value)
    return "ran"


def paying(annotation: Any, amount: Callable[[Any], Any] = lambda order: order.sum) -> Any:
    """A tool with the argument `order`, which notes the amount that it would pay."""
    return of("order", annotation, amount)


def of(
    name: str,
    annotation: Any,
    amount: Callable[[Any], Any] = lambda value: value,
    more: bool = False,
    schema: dict[str, Any] | None = None,
) -> Any:
    """A tool with one argument of a name, and any others if `more`. No two of them have one name."""
    scope: dict[str, Any] = {"of_value": amount, "got": got}
    exec(f"def pay({name}{'=10, **others' * more}): return got(of_value({name}))", scope)
    scope["pay"].__annotations__ = {name: annotation, "return": str}
    scope["pay"].__name__ = f"pay{next(numbers)}"
    return tool(input_schema=schema)(scope["pay"])


SUM = "order.sum"


def ordering(
    annotation: Any, sent: Any, amount: Callable[[Any], Any] = lambda order: order.sum
) -> tuple[Any, str, Any]:
    """The tool, the place that a rule names and the arguments, of an order."""
    return paying(annotation, amount), SUM, {"order": sent}


Cases = dict[str, tuple[Any, str, Any]]
LARGE: Cases = {
    # the way in which the value changes: the tool, the place that the rule names, what a caller sends
    "populate_by_name": ordering(Aliased, {"max_amount": 1000}, lambda o: o.max_amount),
    "both names": ordering(Choices, {"max_amount": 1000, "more": 1}),
    "AliasChoices": ordering(Choices, {"max_amount": 1000}),
    "AliasPath": ordering(Path, {"more": {"sum": 1000}}),
    "alias_generator": ordering(Generated, {"SUM": 1000}, lambda o: o.SUM),
    "validate_by_alias=False": ordering(ByName, {"sum": 1000}),
    "default_factory": ordering(Factory, {}),
    "default_factory of data": ordering(FactoryOfData, {"factor": 10}),
    "Decimal as text": ordering(Money, {"sum": "1000"}),
    "Decimal as exponent": ordering(Money, {"sum": "1e3"}),
    "Decimal near the bound": ordering(Money, {"sum": "100.00000000000000000000001"}),
    "Decimal of a billion digits": ordering(Money, {"sum": "1E+999999"}),
    "model_validator after": ordering(ModelValidator, {"sum": 100, "percent": 1000}),
    "model_validator before": ordering(Wrapped, {"amount": 1000, "sum": 1}),
    "field_validator": ordering(Validated, {"sum": 100}),
    "field_serializer": ordering(Liar, {"sum": 1000}),
    "model_serializer": ordering(WholeLiar, {"sum": 1000}),
    "exclude=True": ordering(Excluded, {"sum": 1000}),
    "serialization_alias": ordering(OtherName, {"sum": 1000, "amount": 1}),
    "computed_field": ordering(Computed, {"sum": 1000}, lambda o: o.total),
    "RootModel": ordering(Rooted, {"max_amount": 1000}, lambda o: o.root.sum),
    "discriminated union": ordering(
        Annotated[Paid | Free, Field(discriminator="kind")], {"kind": "paid", "max_amount": 1000}
    ),
    "union of models": ordering(Paid | Free, {"kind": "paid", "max_amount": 1000}),
    "optional model": ordering(Choices | None, {"max_amount": 1000}),
    "list of models": (
        of("orders", list[Choices], lambda orders: orders[0].sum),
        "orders",
        {"orders": [{"max_amount": 1000}]},
    ),
    "dict of models": (
        of("orders", dict[str, Choices], lambda orders: orders["a"].sum),
        "orders.a.sum",
        {"orders": {"a": {"max_amount": 1000}}},
    ),
    "dataclass": ordering(Renamed, {"max_amount": 1000}, lambda o: o.amount),
    "InitVar": ordering(Initial, {"sum": 1, "more": 1000}, lambda o: o.total),
    "TypedDict": ordering(Typed, {"sum": 1, "max_amount": 1000}, lambda o: o.get("amount", 10)),
    "TypedDict, alias alone": ordering(Typed, {"max_amount": 1000}, lambda o: o.get("amount", 10)),
    "alias of a parameter": (
        of(
            "max_amount",
            Annotated[float, Field(validation_alias=AliasChoices("sum", "amount"))],
            more=True,
        ),
        "sum",
        {"amount": 1000},
    ),
    "path of a parameter": (
        of("sum", Annotated[float, Field(validation_alias=AliasPath("more", 0))], more=True),
        "sum",
        {"more": [1000]},
    ),
    "BeforeValidator": (
        of("sum", Annotated[float, BeforeValidator(lambda value: value * 100)]),
        "sum",
        {"sum": 99},
    ),
    "AfterValidator": (
        of("sum", Annotated[float, AfterValidator(lambda value: value * 100)]),
        "sum",
        {"sum": 99},
    ),
    "another type": ordering(
        Annotated[Choices, AfterValidator(lambda order: order.sum)],
        {"sum": 1000},
        lambda value: value,
    ),
    "custom type": (of("sum", CustomNumber, lambda value: value.value), "sum", {"sum": 1000}),
    "Json": (of("sum", Json[float]), "sum", {"sum": "1000"}),
    "Decimal parameter": (of("sum", Decimal), "sum", {"sum": "1000"}),
    "float or text": (of("sum", float | str, float), "sum", {"sum": "1000"}),
}
LARGE_ORDER: dict[str, Any] = {
    "list of models": {
        "type": "object",
        "properties": {"orders": {"type": "array", "items": member("sum", NUMBER)}},
        "required": ["orders"],
    }
}
OVER = {
    "list of models": {
        "properties": {
            "orders": {"contains": member("sum", {"type": "number", "exclusiveMinimum": 100})}
        },
        "required": ["orders"],
    }
}


SMALL: Cases = {
    "plain": ordering(Choices, {"sum": 5}),
    "default": ordering(Choices, {}),
    "populate_by_name": ordering(Aliased, {"max_amount": 5}, lambda o: o.max_amount),
    "AliasChoices": ordering(Choices, {"max_amount": 5}),
    "AliasPath": ordering(Path, {"more": {"sum": 5}}),
    "alias_generator": ordering(Generated, {"SUM": 5}, lambda o: o.SUM),
    "default_factory of data": ordering(FactoryOfData, {"factor": 1}),
    "Decimal as text": ordering(Money, {"sum": "5.5"}),
    "Decimal as number": ordering(Money, {"sum": 0.1}),
    "model_validator": ordering(ModelValidator, {"sum": 1000, "percent": 1}),
    "field_validator": ordering(Validated, {"sum": 1}),
    "field_serializer": ordering(Liar, {"sum": 5}),
    "exclude=True": ordering(Excluded, {"sum": 5}),
    "serialization_alias": ordering(OtherName, {"sum": 5}),
    "RootModel": ordering(Rooted, {"max_amount": 5}, lambda o: o.root.sum),
    "union of models": ordering(Paid | Free, {"kind": "paid", "max_amount": 5}),
    "dataclass": ordering(Renamed, {"max_amount": 5}, lambda o: o.amount),
    "plain dataclass": ordering(Plain, {}),
    "alias of a parameter": (
        of("amount", Annotated[float, Field(validation_alias=AliasChoices("sum", "max_amount"))]),
        "sum",
        {"sum": 5},
    ),
    "BeforeValidator": (
        of("sum", Annotated[float, BeforeValidator(lambda value: value / 100)]),
        "sum",
        {"sum": 1000},
    ),
    "a secret and bytes beside": ordering(Holder, {"sum": 5, "token": "t", "data": "d"}),
}
UNREADABLE: Cases = {
    "custom type": (of("sum", CustomNumber, lambda value: value.value), "sum", {"sum": 5}),
    "Json": (of("sum", Json[float]), "sum", {"sum": "5"}),
    "another type": ordering(
        Annotated[Choices, AfterValidator(lambda order: order.sum)], {"sum": 5}, lambda value: value
    ),
    "alias in a TypedDict": ordering(Typed, {"sum": 5}, lambda o: o["amount"]),
    "InitVar": ordering(Initial, {"sum": 5}),
    "secret": (paying(Holder), "order.token", {"order": {"token": "t"}}),
    "bytes": (paying(Holder), "order.data", {"order": {"data": "t"}}),
    "Decimal with more digits than a double": ordering(Money, {"sum": "1.00000000000000000000001"}),
}


async def results_of(
    cases: Cases, rules_of: Callable[[str], list[dict[str, Any]]]
) -> dict[str, tuple[str, list[Any]]]:
    """What the tool of each case says under its rules, and the amounts that it would have paid."""
    rules = [
        {effect: {"tool": function.__name__, **match}}
        for way, (function, _, _) in cases.items()
        for rule in rules_of(way)
        for effect, match in rule.items()
    ]
    found = {}
    functions = [function for function, _, _ in cases.values()]
    async with client(gateway(*functions, policy=rules)) as mcp:
        for way, (function, _, arguments) in cases.items():
            ran.clear()
            found[way] = await mcp.text(function.__name__, arguments), list(ran)
    return found


def refused(results: dict[str, tuple[str, list[Any]]], *said: str) -> set[str]:
    """The cases whose call was refused with one of these texts, and did not run."""
    return {
        way
        for way, (text, amounts) in results.items()
        if any(one in text for one in said or (NOT_THESE, "Invalid arguments")) and not amounts
    }


async def test_an_allow_of_small_sums_refuses_a_large_sum() -> None:
    def rules(way: str) -> list[dict[str, Any]]:
        return [{"allow": {"arguments": LARGE_ORDER.get(way, member(LARGE[way][1], NUMBER))}}]

    assert refused(await results_of(LARGE, rules)) == LARGE.keys()


OVER_100 = {"type": "number", "exclusiveMinimum": 100}


async def test_a_deny_of_large_sums_refuses_a_large_sum() -> None:
    def rules(way: str) -> list[dict[str, Any]]:
        large = OVER.get(way, member(LARGE[way][1], OVER_100))
        return [{"deny": {"arguments": large}}, {"allow": {}}]

    # a text is no large number
    cases = {way: case for way, case in LARGE.items() if way != "float or text"}
    assert refused(await results_of(cases, rules)) == cases.keys()


async def test_a_small_sum_is_allowed_and_not_denied() -> None:
    def rules(way: str) -> list[dict[str, Any]]:
        _, place, _ = SMALL[way]
        large = {"deny": {"arguments": member(place, OVER_100)}}
        return [large, {"allow": {"arguments": member(place, NUMBER)}}]

    for way, (text, (amount,)) in (await results_of(SMALL, rules)).items():
        assert (text, 0 < amount <= 100) == ("ran", True), way


@pytest.mark.parametrize("effect", ["allow", "deny", "other"])
async def test_a_rule_that_cannot_read_a_value_refuses_it(effect: str) -> None:
    def rules_of(way: str) -> list[dict[str, Any]]:
        _, place, _ = UNREADABLE[way]
        rules: dict[str, list[dict[str, Any]]] = {
            "allow": [{"allow": {"arguments": member(place, {"not": {"const": "other"}})}}],
            "deny": [{"deny": {"arguments": member(place, {"const": "other"})}}, {"allow": {}}],
            "other": [{"deny": {"arguments": member("elsewhere", {"const": 1})}}, {"allow": {}}],
        }
        return rules[effect]

    results = await results_of(UNREADABLE, rules_of)
    if effect == "other":
        assert {text for text, _ in results.values()} == {"ran"}
    else:
        assert refused(results, NOT_THESE) == UNREADABLE.keys()


LEAVES: dict[str, tuple[Any, Any, Any]] = {
    # the annotation, what is sent, what a rule reads
    "date": (date, "2024-02-01", "2024-02-01"),
    "date as a number in text": (date, "1706745600", "2024-02-01"),
    "datetime": (datetime, "2024-02-01T10:00:00+00:00", "2024-02-01T10:00:00Z"),
    "timedelta": (timedelta, "PT60M", "PT1H"),
    "UUID": (UUID, "00000000000000000000000000000001", "00000000-0000-0000-0000-000000000001"),
    "Enum": (Size, "small", "small"),
    "lower case": (Annotated[str, StringConstraints(to_lower=True)], "ADMIN", "admin"),
    "strip": (Annotated[str, StringConstraints(strip_whitespace=True)], " admin ", "admin"),
    "integer as 1.0": (int, 1.0, 1),
    "whole Decimal": (Decimal, "1000.00", 1000),
    "set": (set[int], [2, 1, 3], [1, 2, 3]),
    "tuple": (tuple[int, str], [1, "a"], [1, "a"]),
    "dict with numbers as keys": (dict[int, Decimal], {"1": "2.50"}, {"1": 2.5}),
    "nested": (dict[str, list[Text]], {"a": [{"name": " Bob "}]}, {"a": [{"name": "bob"}]}),
    "URL": (AnyUrl, "HTTP://EXAMPLE.com", "http://example.com/"),
    "file path": (PurePosixPath, "/a//b/./c", "/a/b/c"),
}


async def question(mcp: Client, function: Any, arguments: Any) -> str:
    """The text of the approval question of a call."""
    result = await ask(mcp, "tools/call", {"name": function.__name__, "arguments": arguments})
    return str(result["inputRequests"]["approve"]["params"]["message"])


async def test_a_rule_and_an_approval_read_the_value_after_validation() -> None:
    functions = {kind: of("value", annotation) for kind, (annotation, _, _) in LEAVES.items()}
    rules = [
        {"allow": {"tool": functions[kind].__name__, "arguments": member("value", {"const": read})}}
        for kind, (_, _, read) in LEAVES.items()
    ]
    sections: Any = {"policy": rules, "backend": {"approve": "always"}}
    async with client(gateway(*functions.values(), **sections)) as mcp:
        for kind, (_, sent, read) in LEAVES.items():
            asked = (
                f"Run {functions[kind].__name__}?\n\nIt is called with\n{shown({'value': read})}"
            )
            assert await question(mcp, functions[kind], {"value": sent}) == asked, kind


async def test_an_approval_shows_what_runs_and_what_it_is_made_of() -> None:
    async def asked(function: Any, arguments: Any) -> str:
        async with client(gateway(function, backend={"approve": "always"})) as mcp:
            return await question(mcp, function, arguments)

    hidden = {"order": {"max_amount": 1000, "note": "sum: 1"}}
    assert '- order: {"sum":1000.0}' in await asked(paying(Choices), hidden)
    secret = await asked(paying(Holder), {"order": {"token": "t"}})
    assert '"token":"(SecretStr)"' in secret
    assert secret.endswith('It is made of\n- order: {"token":"t"}')
    default = await asked(paying(Holder), {"order": {}})
    assert "(SecretStr)" in default
    assert '"k"' not in default


MAX = "order.max_amount"
DECLARED: dict[str, tuple[Any, Any]] = {
    # the schema of `order` that the author of the function wrote, and what a caller sends
    "name in Python": ({"properties": {"max_amount": {"type": "number"}}}, {"max_amount": 1000}),
    "both names": (
        {"properties": {"max_amount": {"type": "number"}, "sum": {"type": "number"}}},
        {"max_amount": 1000},
    ),
    "no names": ({}, {"max_amount": 1000}),
    "default under another name": ({"properties": {"max_amount": {"type": "number"}}}, {}),
}


async def test_a_rule_cannot_read_an_argument_that_a_declared_schema_names_otherwise() -> None:
    large = member(MAX, {"type": "number", "exclusiveMinimum": 5})
    cases: Cases = {}
    for way, (order, sent) in DECLARED.items():
        schema = {"type": "object", "properties": {"order": {"type": "object", **order}}}
        cases[way] = (
            of("order", Aliased, lambda o: o.max_amount, schema=schema),
            MAX,
            {"order": sent},
        )
    results = await results_of(cases, lambda way: [{"deny": {"arguments": large}}, {"allow": {}}])
    assert refused(results) == cases.keys()


async def test_a_rule_reads_arguments_under_the_names_of_a_declared_schema() -> None:
    def pay(amount: int) -> tuple[Any, str, Any]:
        schema = member(SUM, {"type": "number"})
        return (
            of("order", Aliased, lambda o: o.max_amount, schema=schema),
            SUM,
            {"order": {"sum": amount}},
        )

    small = [{"allow": {"arguments": member(SUM, NUMBER)}}]
    results = await results_of({"5": pay(5), "1000": pay(1000)}, lambda way: small)
    assert results["5"] == ("ran", [5])
    assert refused(results) == {"1000"}


def test_the_names_of_values_are_those_of_the_schema() -> None:
    models = [
        Aliased,
        Choices,
        Path,
        Generated,
        ByName,
        Money,
        Computed,
        Paid,
        Holder,
        Renamed,
        Plain,
    ]
    for model in models:
        described = describe(paying(model))
        bound = described.bind({"order": {"kind": "paid"} if model is Paid else {}})
        read = described.known(bound)
        schema = described.input_schema
        reference = schema["properties"]["order"]["$ref"].rpartition("/")[2]
        names = schema["$defs"][reference]["properties"].keys()
        assert read.value["order"].keys() == names


async def test_of_a_value_that_changes_at_each_call_what_was_approved_runs() -> None:
    amounts = count(1)

    class Changing(BaseModel):
        sum: float = Field(default_factory=lambda: next(amounts))

    ran.clear()
    pay = paying(Changing)
    call = {"name": pay.__name__, "arguments": {"order": {}}}
    async with client(gateway(pay, backend={"approve": "always"})) as mcp:
        first = await ask(mcp, "tools/call", call)
        shown_first = first["inputRequests"]["approve"]["params"]["message"]
        approved = retry(call, first, approve=accept(approve=True))
        body = (await mcp.post("tools/call", approved, clientCapabilities=CAPABILITIES)).json()
        assert ran == []
        assert shown_first not in str(body)


def test_too_many_values_are_unknown() -> None:
    described = describe(of("value", list[int]))
    few, many = ({"value": [1] * size} for size in (1000, MAX_VALUES))
    assert described.known(few).unknown == []
    assert described.known(many).unknown == [()]
    document = ArgumentSchema(described.input_schema)
    assert with_schema(document, few).unknown == []
    assert with_schema(document, {"value": [1] * MAX_VALUES + [1]}).unknown == [()]
