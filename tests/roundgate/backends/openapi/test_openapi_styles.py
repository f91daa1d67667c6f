"""Every style as the specification's own table has it, byte for byte, and what must not
come of hostile values."""

from pathlib import Path
from typing import Any

import pytest

from roundgate.backends.http.plan import Parameter, RequestPlan
from roundgate.errors import ToolError
from tests.support.openapi import Compiled, compiled, document, operation

TEXT, LIST, OBJECT = "blue", ["blue", "black", "brown"], {"R": 100, "G": 200, "B": 150}

TABLE = [
    (
        "path",
        "matrix",
        False,
        [";color=blue", ";color=blue,black,brown", ";color=R,100,G,200,B,150"],
    ),
    (
        "path",
        "matrix",
        True,
        [";color=blue", ";color=blue;color=black;color=brown", ";R=100;G=200;B=150"],
    ),
    ("path", "label", False, [".blue", ".blue,black,brown", ".R,100,G,200,B,150"]),
    ("path", "label", True, [".blue", ".blue.black.brown", ".R=100.G=200.B=150"]),
    ("path", "simple", False, ["blue", "blue,black,brown", "R,100,G,200,B,150"]),
    ("path", "simple", True, ["blue", "blue,black,brown", "R=100,G=200,B=150"]),
    ("query", "form", False, ["color=blue", "color=blue,black,brown", "color=R,100,G,200,B,150"]),
    (
        "query",
        "form",
        True,
        ["color=blue", "color=blue&color=black&color=brown", "R=100&G=200&B=150"],
    ),
    (
        "query",
        "spaceDelimited",
        False,
        [None, "color=blue%20black%20brown", "color=R%20100%20G%20200%20B%20150"],
    ),
    (
        "query",
        "pipeDelimited",
        False,
        [None, "color=blue%7Cblack%7Cbrown", "color=R%7C100%7CG%7C200%7CB%7C150"],
    ),
    (
        "query",
        "deepObject",
        True,
        [None, None, "color%5BR%5D=100&color%5BG%5D=200&color%5BB%5D=150"],
    ),
    ("header", "simple", False, ["blue", "blue,black,brown", "R,100,G,200,B,150"]),
    ("header", "simple", True, ["blue", "blue,black,brown", "R=100,G=200,B=150"]),
    ("cookie", "form", False, ["color=blue", "color=blue,black,brown", "color=R,100,G,200,B,150"]),
    (
        "cookie",
        "form",
        True,
        ["color=blue", "color=blue; color=black; color=brown", "R=100; G=200; B=150"],
    ),
    (
        "cookie",
        "cookie",
        False,
        ["color=blue", "color=blue,black,brown", "color=R,100,G,200,B,150"],
    ),
    (
        "cookie",
        "cookie",
        True,
        ["color=blue", "color=blue; color=black; color=brown", "R=100; G=200; B=150"],
    ),
]


def placed(
    value: Any, place: Any, style: Any, explode: bool = False, *, name: str = "color", **more: Any
) -> str:
    """Where it went: the path behind its slash, the query, or the header."""
    path = "/{" + name + "}" if place == "path" else "/"
    parameter = Parameter("a", name, place, style, explode, **more)
    outgoing = RequestPlan("GET", path, (parameter,)).request({"a": value})
    if place == "path":
        return outgoing.path[1:]
    if place == "query":
        return outgoing.query
    return outgoing.headers["cookie" if place == "cookie" else name]


@pytest.mark.parametrize(("place", "style", "explode", "written"), TABLE)
def test_the_table_of_the_specification(
    place: str, style: str, explode: bool, written: list[str | None]
) -> None:
    found = [
        None if expected is None else placed(value, place, style, explode)
        for value, expected in zip((TEXT, LIST, OBJECT), written, strict=True)
    ]
    assert found == written


@pytest.mark.parametrize(
    ("number", "written"),
    [(7.0, "7"), (-0.0, "0"), (0.5, "0.5"), (2.0**60, "1152921504606846976")],
)
def test_a_number_without_a_fraction_is_written_as_the_integer_that_it_is(
    number: float, written: str
) -> None:
    for place in ("path", "query", "header", "cookie"):
        assert written in placed(
            number, place, "form" if place in ("query", "cookie") else "simple"
        )
        assert ".0" not in placed([number], place, "simple" if place == "path" else "form")


def test_an_empty_text_is_a_value_and_an_empty_list_is_none() -> None:
    assert placed("", "query", "form", True) == "color="
    assert placed([], "query", "form", True) == ""
    assert placed({}, "query", "deepObject", True) == ""


def test_a_deep_object_goes_as_deep_as_its_value() -> None:
    value = {"price": {"gte": 5}, "tags": ["a b", {"n": None, "m": True}]}
    expected = "f%5Bprice%5D%5Bgte%5D=5&f%5Btags%5D%5B0%5D=a%20b&f%5Btags%5D%5B1%5D%5Bm%5D=true"
    assert placed(value, "query", "deepObject", True, name="f") == expected


def test_reserved_characters_stay_only_as_far_as_they_begin_no_other_parameter() -> None:
    hostile = "a/b?c:d@e,f&admin=true#x+y;z%"
    assert (
        placed(hostile, "query", "form", reserved=True)
        == "color=a/b?c:d@e,f%26admin%3Dtrue%23x%2By%3Bz%25"
    )
    assert (
        placed(hostile, "query", "form")
        == "color=a%2Fb%3Fc%3Ad%40e%2Cf%26admin%3Dtrue%23x%2By%3Bz%25"
    )


@pytest.mark.parametrize("style", ["simple", "label", "matrix"])
@pytest.mark.parametrize("explode", [True, False])
@pytest.mark.parametrize(
    "value", ["", ".", "..", "a/b", "../../etc", "%2e%2e", "%252e%252e", "\x00", "\\", "..;x"]
)
def test_a_path_keeps_its_segments_in_every_style(style: str, explode: bool, value: str) -> None:
    for given in (value, [value], {"k": value}, {value: "v"}):
        with pytest.raises(ToolError, match=r"arguments\.a: may not"):
            placed(given, "path", style, explode)


@pytest.mark.parametrize("value", [[], {}, None, [None], {"a": None}])
def test_nothing_is_no_part_of_a_path(value: Any) -> None:
    with pytest.raises(ToolError, match="may not be empty"):
        placed(value, "path", "simple")


@pytest.mark.parametrize(
    "value", ["a\r\nX-Admin: 1", "a\nb", "é", " a", "a\x00", ["ok", "a\r\nb"], {"k\r\n": "v"}]
)
def test_a_header_stays_on_its_line(value: Any) -> None:
    with pytest.raises(ToolError, match="visible ASCII"):
        placed(value, "header", "simple")


def test_a_cookie_keeps_its_pair() -> None:
    assert placed("a; admin=1, b", "cookie", "form") == "color=a%3B%20admin%3D1%2C%20b"
    with pytest.raises(ToolError, match="cookie"):
        placed("a; admin=1", "cookie", "cookie")
    with pytest.raises(ToolError, match="cookie"):
        placed({"a; admin": "1\r\n"}, "cookie", "cookie", True)


def test_usual_styles_and_explosions_are_those_of_the_specification(tmp_path: Path) -> None:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": name, "schema": {}} for name in ("path", "query", "header", "cookie")
    ]
    paths = operation(path="/{path}", parameters=parameters)
    plan = Compiled(compiled(tmp_path, document(paths))).plan
    assert [(one.place, one.style, one.explode) for one in plan.parameters] == [
        ("path", "simple", False),
        ("query", "form", True),
        ("header", "simple", False),
        ("cookie", "form", True),
    ]


def test_a_parameter_with_content_is_json(tmp_path: Path) -> None:
    content = {"application/json": {"schema": {"type": "object"}}}
    paths = operation(parameters=[{"name": "filter", "in": "query", "content": content}])
    one = Compiled(compiled(tmp_path, document(paths)))
    assert one.sent(filter={"a": [1, "&"]}) == "/x?filter=%7B%22a%22%3A%5B1%2C%22%26%22%5D%7D"


def test_a_whole_query_is_one_argument(tmp_path: Path) -> None:
    content = {"application/x-www-form-urlencoded": {"schema": {"type": "object"}}}
    paths = operation(parameters=[{"name": "all", "in": "querystring", "content": content}])
    assert Compiled(compiled(tmp_path, document(paths, "3.2.0"))).sent(
        all={"a": "x y", "b": [1, 2]}
    ) == ("/x?a=x%20y&b=1&b=2")


def test_a_style_that_there_is_not_leaves_the_operation_out_and_says_so(tmp_path: Path) -> None:
    bad = operation(parameters=[{"name": "q", "in": "query", "style": "matrix", "schema": {}}])
    good = operation(path="/y", operationId="good")
    index = compiled(tmp_path, document(bad | good))
    assert [row.name for row in index.rows] == ["good"]
    assert [(problem.path, problem.message) for problem in index.problems] == [
        ("/paths/~1x/get", "GET /x is left out: parameter 'q': there is no style 'matrix' in query")
    ]
