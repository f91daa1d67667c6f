"""Our `dataclass` makes what that of the standard library makes."""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import pickle
import threading
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import pytest
from pydantic import TypeAdapter

import roundgate
from roundgate import values
from roundgate.values import dataclass

APP = Path(roundgate.__file__).parent
T = TypeVar("T")
OPTIONS = [
    {},
    {"frozen": True},
    {"slots": True},
    {"frozen": True, "slots": True},
    {"frozen": True, "slots": True, "kw_only": True},
    {"slots": True, "eq": False},
    {"frozen": True, "slots": True, "eq": False},
    {"frozen": True, "order": True},
]
Maker = Callable[..., Any]


def made_by(maker: Maker, **options: bool) -> Any:
    @maker(**options)
    class Reading:
        place: str
        value: float = 0.5
        notes: list[str] = field(default_factory=list)
        unit: str = field(default="C", compare=False)
        source: str = field(default="", repr=False, hash=False)
        every: ClassVar[int] = 3
        seen: dict[str, int] = field(init=False, default_factory=dict, compare=False)
        times: int = field(init=False, default=1)

    return Reading


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_class_has_the_same_face(options: dict[str, bool]) -> None:
    ours, theirs = made_by(dataclass, **options), made_by(dataclasses.dataclass, **options)
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    assert ours.__init__.__qualname__ == theirs.__init__.__qualname__
    assert ours.__init__.__annotations__ == theirs.__init__.__annotations__
    assert ours.__match_args__ == theirs.__match_args__
    assert getattr(ours, "__slots__", None) == getattr(theirs, "__slots__", None)
    assert repr(ours.__dataclass_params__) == repr(theirs.__dataclass_params__)
    assert [str(each) for each in dataclasses.fields(ours)] == [
        str(each) for each in dataclasses.fields(theirs)
    ]
    assert (ours.__hash__ is None) == (theirs.__hash__ is None)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_an_instance_is_the_same(options: dict[str, bool]) -> None:
    ours, theirs = made_by(dataclass, **options), made_by(dataclasses.dataclass, **options)
    for given in ({"place": "roof"}, {"place": "roof", "value": 2.0, "notes": ["wet"]}):
        assert repr(ours(**given)) == repr(theirs(**given))
        assert dataclasses.asdict(ours(**given)) == dataclasses.asdict(theirs(**given))
    one = ours(place="roof")
    for other, is_same in (
        (ours(place="roof"), True),
        (ours(place="roof", unit="F"), True),
        (ours(place="cellar"), False),
        (replace(one, value=1.0), False),
    ):
        assert (one == other) == (is_same and options.get("eq", True))
    assert one != theirs(place="roof")
    assert one.notes is not ours(place="roof").notes


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_what_is_frozen_refuses_to_change_and_what_is_not_does_not(
    options: dict[str, bool],
) -> None:
    one = made_by(dataclass, **options)(place="roof")
    if not options.get("frozen"):
        one.place = "cellar"
        del one.place
        return
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'place'"):
        one.place = "cellar"
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'place'"):
        del one.place
    with pytest.raises(FrozenInstanceError):
        one.another = 1


@pytest.mark.parametrize("maker", [dataclass, dataclasses.dataclass])
def test_wrong_arguments_are_refused_in_the_same_words(maker: Maker) -> None:
    made = made_by(maker, frozen=True)
    with pytest.raises(TypeError, match=r"Reading.__init__\(\) missing 1 required .*: 'place'"):
        made()
    with pytest.raises(TypeError, match=r"Reading.__init__\(\) got an unexpected .* 'colour'"):
        made("roof", colour="red")
    with pytest.raises(TypeError, match="unhashable"):
        hash(made("roof"))


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 0


@dataclass(frozen=True, slots=True)
class Named(Point):
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name.upper())


@dataclass(slots=True)
class Box(Generic[T]):
    held: T
    more: list[Box[T]] = field(default_factory=list)


@dataclass(frozen=True)
class Own:
    value: int

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 7

    def __repr__(self) -> str:
        return "own"


class Larger(Point):
    """Not a dataclass itself."""

    colour: str


def test_values_are_copied_and_pickled() -> None:
    for value in (Point(1, 2), Named(1, name="a"), Box([1])):
        assert (
            copy.copy(value) == copy.deepcopy(value) == pickle.loads(pickle.dumps(value)) == value
        )


def test_a_class_takes_the_fields_of_its_base() -> None:
    assert repr(Named(1, 2, "a")) == "Named(x=1, y=2, name='A')"
    assert Named(1) != Point(1)
    assert hash(Named(1)) == hash(Named(1))
    with pytest.raises(FrozenInstanceError):
        Named(1).x = 2  # type: ignore[misc]
    with pytest.raises(TypeError, match="cannot inherit non-frozen"):

        @dataclass
        class Loose(Point):  # type: ignore[misc]
            pass


def test_a_class_of_the_standard_library_takes_the_fields_of_ours() -> None:
    @dataclasses.dataclass(frozen=True)
    class Point3(Point):
        z: int = 0

    assert repr(Point3(1, 2, 3)).endswith("Point3(x=1, y=2, z=3)")


def test_a_class_that_only_inherits_is_made_by_the_init_of_its_base() -> None:
    larger = Larger(1, 2)
    larger.colour = "red"
    assert (larger.x, larger.y, larger.colour) == (1, 2, "red")
    with pytest.raises(FrozenInstanceError):
        larger.x = 3  # type: ignore[misc]


def test_what_a_class_writes_itself_stays() -> None:
    assert repr(Own(1)) == "own"
    assert hash(Own(1)) == 7
    assert Own(1) == Own(2)


def test_what_holds_itself_can_be_shown() -> None:
    box = Box(1)
    box.more.append(box)
    assert repr(box) == "Box(held=1, more=[...])"


def test_pydantic_reads_them_as_dataclasses() -> None:
    read = TypeAdapter(Point)
    assert read.validate_python({"x": "1", "y": 2}) == Point(1, 2)
    assert read.dump_python(Point(1, 2)) == {"x": 1, "y": 2}


def test_pattern_matching_knows_the_positions() -> None:
    match Point(1, 2):
        case Point(x, y):
            assert (x, y) == (1, 2)


def test_threads_may_make_the_first_instance_together() -> None:
    for _ in range(20):
        made, ready = made_by(dataclass, frozen=True), threading.Barrier(4)
        found: list[Any] = []

        def make(made: Any = made, ready: threading.Barrier = ready, found: Any = found) -> None:
            ready.wait()
            found.append(made("roof"))

        threads = [threading.Thread(target=make) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [made("roof")] * 4


def test_the_whole_product_uses_it() -> None:
    """The standard library's costs 4,000,000 instructions a class, before anything is served."""
    theirs = [
        str(path.relative_to(APP))
        for path in APP.rglob("*.py")
        if path != Path(values.__file__) and "new_files" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.ImportFrom) and node.module == "dataclasses")
        and "dataclass" in {alias.name for alias in node.names}
    ]
    assert theirs == []
