"""Several back ends as one catalog: names, order, collisions, look-up, and lists as bytes."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from roundgate.backends.base import Offering, Prompt, Resource, Tool
from roundgate.backends.catalog import Catalog
from roundgate.errors import ConfigError, InvalidParams, Problem, ResourceNotFound
from roundgate.protocol.content import Completion
from roundgate.protocol.params import Pages, PromptReference, ResourceReference
from tests.support.catalogs import built


async def nothing(*_: Any) -> Any:
    """What stands behind everything here."""


async def complete(typed: str) -> Completion:
    return Completion([typed])


def tool(name: str, schema: Mapping[str, Any] | None = None) -> Tool:
    return Tool({"name": name, "inputSchema": schema or {"type": "object"}}, nothing)


def prompt(name: str, **completers: Any) -> Prompt:
    return Prompt({"name": name}, nothing, completers)


def resource(uri: str, **completers: Any) -> Resource:
    key = "uriTemplate" if "{" in uri else "uri"
    return Resource({key: uri, "name": "r"}, nothing, completers)


class Fake:
    """A back end that offers what it is given, or fails to load."""

    def __init__(
        self, name: str, *offered: Tool | Prompt | Resource, prefix: str = "", wrong: str = ""
    ) -> None:
        self.name, self.prefix = name, prefix
        self._offered, self._wrong = offered, wrong

    async def offer(self) -> Offering:
        if self._wrong:
            raise ConfigError([Problem("f", "p", self._wrong, "r")])
        kinds = [
            [one for one in self._offered if isinstance(one, kind)]
            for kind in (Tool, Prompt, Resource)
        ]
        return Offering(*kinds)  # type: ignore[arg-type]

    async def aclose(self) -> None: ...


def entries(pages: Pages) -> list[dict[str, Any]]:
    return list(json.loads(b"[" + pages.page(None).entries + b"]"))


def build(backends: Sequence[Fake], page_size: int) -> Catalog:
    return asyncio.run(built(backends, page_size))


def problems(*backends: Fake) -> list[Problem]:
    with pytest.raises(ConfigError) as refused:
        build(backends, 10)
    return list(refused.value.problems)


def test_the_order_is_that_of_the_back_ends_and_of_what_each_offers() -> None:
    catalog = build(
        [Fake("b", tool("z"), tool("a"), prefix="b__"), Fake("a", tool("m"), prefix="a__")], 10
    )
    assert list(catalog.tools) == ["b__z", "b__a", "a__m"]
    assert [one["name"] for one in entries(catalog.tool_pages)] == ["b__z", "b__a", "a__m"]


def test_tools_and_prompts_get_the_prefix_and_resources_keep_their_uris() -> None:
    offered = (tool("t"), prompt("p"), resource("r:s"), resource("r:{t}"))
    catalog = build([Fake("a", *offered, prefix="x__")], 10)
    assert (list(catalog.tools), list(catalog.prompts)) == (["x__t"], ["x__p"])
    assert [one["name"] for one in entries(catalog.tool_pages) + entries(catalog.prompt_pages)] == [
        "x__t",
        "x__p",
    ]
    assert [one["uri"] for one in entries(catalog.resource_pages)] == ["r:s"]
    assert [one["uriTemplate"] for one in entries(catalog.template_pages)] == ["r:{t}"]
    assert offered[0].definition["name"] == "t"


def test_an_empty_prefix_leaves_names_as_they_are() -> None:
    assert list(build([Fake("a", tool("t"))], 10).tools) == ["t"]


@pytest.mark.parametrize(
    ("prefix", "name"), [("", "n" * 64), ("p" * 40 + "__", "n" * 22), ("a.b-C_9__", "d.e-F_0")]
)
def test_a_name_of_64_characters_is_served(prefix: str, name: str) -> None:
    assert list(build([Fake("a", tool(name), prompt(name), prefix=prefix)], 10).tools) == [
        prefix + name
    ]


@pytest.mark.parametrize(
    ("prefix", "name"),
    [
        ("", "n" * 65),
        ("p" * 40 + "__", "n" * 23),
        ("", ""),
        ("", "a b"),
        ("", "ä"),
        ("", "a/b"),
        ("", "a\n"),
    ],
)
def test_any_other_name_is_refused_with_its_length(prefix: str, name: str) -> None:
    found = problems(Fake("shop", tool(name), prompt(name), prefix=prefix))
    assert [problem.path for problem in found] == ["back end 'shop'"] * 2
    for problem, kind in zip(found, ("tool", "prompt"), strict=True):
        assert f"{kind} name {prefix + name!r} must be 1 to 64 of A-Z" in problem.message
        assert f"it has {len(prefix + name)} characters" in problem.message


@pytest.mark.parametrize(
    ("item", "what"),
    [
        (tool("same"), "tool 'same'"),
        (prompt("same"), "prompt 'same'"),
        (resource("same:uri"), "resource 'same:uri'"),
        (resource("same:{uri}"), "resource template 'same:{uri}'"),
    ],
)
def test_a_collision_is_refused_and_names_both_back_ends(item: Any, what: str) -> None:
    (problem,) = problems(Fake("one", item), Fake("two", item))
    assert problem.path == "back end 'two'"
    assert problem.message == f"{what} is offered by 'one' too"
    assert "another prefix" in problem.remedy


def test_prefixes_may_make_a_collision_and_may_avoid_one() -> None:
    (problem,) = problems(
        Fake("one", tool("b__c"), prefix="a__"), Fake("two", tool("c"), prefix="a__b__")
    )
    assert "tool 'a__b__c' is offered by 'one' too" in problem.message
    catalog = build(
        [Fake("one", tool("t"), prefix="a__"), Fake("two", tool("t"), prefix="b__")], 10
    )
    assert list(catalog.tools) == ["a__t", "b__t"]


def test_one_back_end_may_collide_with_itself() -> None:
    (problem,) = problems(Fake("one", tool("t"), tool("t")))
    assert (problem.path, problem.message) == ("back end 'one'", "tool 't' is offered by 'one' too")


def test_a_tool_and_a_prompt_may_share_a_name() -> None:
    catalog = build([Fake("a", tool("same"), prompt("same"))], 10)
    assert (list(catalog.tools), list(catalog.prompts)) == (["same"], ["same"])


DEEP: dict[str, Any] = {"type": "object"}
for _ in range(40):
    DEEP = {"type": "object", "properties": {"a": DEEP}}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "array"}, 'the input schema must have "type": "object"'),
        ({"properties": {}}, 'the input schema must have "type": "object"'),
        ({"type": ["object"]}, 'the input schema must have "type": "object"'),
        ({"type": "object", "properties": 5}, "not a usable JSON Schema"),
        ({"type": "object", "$ref": "http://127.0.0.1:9/x"}, "Retrieval is disabled"),
        (DEEP, "nested more than 64 levels deep"),
        ({"type": "object", "enum": list(range(60_000))}, "more than 50000 values in it"),
        (
            {"type": "object", "properties": {"a": {"type": "string", "x-mcp-header": "a b"}}},
            "x-mcp-header",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_input_schema_that_cannot_be_used_is_refused_at_start_up(
    schema: dict[str, Any], said: str
) -> None:
    (problem,) = problems(Fake("shop", tool("buy", schema), prefix="shop__"))
    assert problem.path == "back end 'shop', tool 'shop__buy'"
    assert said in problem.message


def test_everything_that_is_wrong_anywhere_is_told_at_once() -> None:
    found = problems(
        Fake("gone", wrong="cannot be imported"),
        Fake("one", tool("t"), tool("bad", {"type": "array"}), prompt("p q"), resource("r:s")),
        Fake("two", tool("t"), resource("r:s")),
    )
    assert len(found) == 5
    assert found[0].message == "cannot be imported"


def catalog() -> Catalog:
    return build(
        [
            Fake(
                "one",
                tool("t"),
                prompt("p", a=complete),
                resource("n://{a}", a=complete),
                resource("n://ann"),
            ),
            Fake("two", resource("n://{+b}"), resource("o://{c}")),
        ],
        10,
    )


@pytest.mark.parametrize(
    ("uri", "template", "values"),
    [
        ("n://ann", None, {}),
        ("n://bob", "n://{a}", {"a": "bob"}),
        ("n://b/c", "n://{+b}", {"b": "b/c"}),
    ],
)
def test_a_uri_is_looked_up_among_resources_first_and_then_in_the_order_of_templates(
    uri: str, template: str | None, values: dict[str, str]
) -> None:
    found, got = catalog().resource(uri)
    assert found.definition.get("uriTemplate") == template
    assert got == values


@pytest.mark.parametrize("uri", ["", "n:", "o://a/b", "O://a", "o://ann?x"])
def test_a_uri_that_nothing_has_is_not_found(uri: str) -> None:
    with pytest.raises(ResourceNotFound) as refused:
        catalog().resource(uri)
    assert refused.value.data == {"uri": uri}


def test_a_name_that_nothing_has_is_an_error_that_repeats_64_characters_of_it() -> None:
    assert catalog().tool("t").name == "t"
    assert catalog().prompt("p").definition == {"name": "p"}
    with pytest.raises(InvalidParams, match=r"^Unknown tool: x{64}$"):
        catalog().tool("x" * 1000)
    with pytest.raises(InvalidParams, match=r"^Unknown prompt: T$"):
        catalog().prompt("T")


def test_completers_are_those_of_a_prompt_or_of_a_template_by_its_text() -> None:
    completers: Mapping[str, Any] = {"a": complete}
    assert catalog().completed(PromptReference(name="p")).complete == completers
    assert catalog().completed(ResourceReference(uri="n://{a}")).complete == completers
    assert catalog().completed(ResourceReference(uri="o://{c}")).complete == {}
    assert catalog().completed(ResourceReference(uri="n://ann")).complete == {}
    with pytest.raises(InvalidParams, match="Unknown resource template: n://bob"):
        catalog().completed(ResourceReference(uri="n://bob"))
    with pytest.raises(InvalidParams, match="Unknown prompt: q"):
        catalog().completed(PromptReference(name="q"))


@pytest.mark.parametrize(
    ("offered", "can"),
    [
        ([tool("t")], False),
        ([prompt("p")], False),
        ([prompt("p", a=complete)], True),
        ([resource("a:{b}")], False),
        ([resource("a:{b}", b=complete)], True),
    ],
)
def test_completion_is_possible_if_anything_can_be_completed(
    offered: Sequence[Any], can: bool
) -> None:
    assert build([Fake("a", *offered)], 10).can_complete is can


def test_pages_together_are_the_whole_list_each_entry_once() -> None:
    names = [f"t{n}" for n in range(7)]
    pages = build([Fake("a", *map(tool, names))], 3).tool_pages
    seen, cursor, count = list[str](), None, 0
    while count == 0 or cursor is not None:
        page = pages.page(cursor)
        seen += [one["name"] for one in json.loads(b"[" + page.entries + b"]")]
        cursor, count = page.next_cursor, count + 1
    assert (seen, count) == (names, 3)
