"""The gateway's URIs for the resources of servers, and the URIs of templates."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from roundgate.backends.mcp.uris import MAX_EXPRESSIONS, MAX_URI, Pattern, Uris
from tests.support.long import examples

NAMED, KEPT = Uris("up", is_named=True), Uris("up", is_named=False)
TEXTS = st.text("ab:/.{}?#%up+- é", max_size=20)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("notes://ann/1", "notes://up/ann/1"),
        ("file:///srv/a.txt", "file://up//srv/a.txt"),
        ("memo:today", "memo:up/today"),
        ("memo:", "memo:up/"),
        ("ui://app/view.html", "ui://up/app/view.html"),
        ("https://up/x", "https://up/up/x"),
        ("data:text/plain,x", "data:up/text/plain,x"),
        ("t:{+path}{?q}", "t:up/{+path}{?q}"),
        ("no scheme", "no scheme"),
        ("", ""),
    ],
)
def test_a_uri_keeps_its_scheme_and_the_server_gets_its_own(theirs: str, ours: str) -> None:
    assert NAMED.ours(theirs) == ours
    assert NAMED.theirs(ours) == theirs
    always = theirs.startswith(("ui://", "skill://"))
    assert KEPT.ours(theirs) == (ours if always else theirs)
    assert KEPT.theirs(theirs) == theirs


@given(TEXTS | st.builds("{}{}".format, st.sampled_from(["s:", "ui://"]), TEXTS | st.text()))
@example("s:up/x")
@example("s:up///x")
@example("s://up/x")
def test_the_way_back_is_exact(uri: str) -> None:
    assert NAMED.theirs(NAMED.ours(uri)) == uri
    assert KEPT.theirs(KEPT.ours(uri)) == uri


@given(TEXTS, TEXTS)
def test_two_uris_never_become_one(one: str, other: str) -> None:
    ours = [NAMED.ours(f"s:{text}") for text in (one, other)]
    assert (ours[0] == ours[1]) == (one == other)


EXPRESSIONS = st.sampled_from(["{a}", "{+a}", "{a*}", "{/a}", "{?a}", "{a:3}"])
TEMPLATES = st.lists(EXPRESSIONS | st.text("ab/?", max_size=3), max_size=6).map("".join)
MEANING = {
    "{a}": "[^/]*",
    "{+a}": ".*",
    "{a*}": ".*",
    "{/a}": "(?:/.*)?",
    "{?a}": r"(?:\?.*)?",
    "{a:3}": "[^/]*",
}


@examples(300)
@given(TEMPLATES, st.text("ab/?", max_size=12))
def test_a_uri_matches_as_a_regular_expression_would_say(template: str, uri: str) -> None:
    parts = re.split(r"(\{[^}]*\})", template)
    pattern = "".join(MEANING.get(part, re.escape(part)) for part in parts)
    expected = re.fullmatch(pattern, uri, re.DOTALL) is not None
    assert (Pattern.parse(template).match(uri) is not None) == expected


@given(st.text("{}ab*:+?/,.", max_size=30))
def test_any_text_is_a_pattern_or_refused(template: str) -> None:
    try:
        pattern = Pattern.parse(template)
    except ValueError:
        return
    assert pattern.match("a/b?a") in (None, {})
    assert all(pattern.variables)


def test_a_template_with_too_many_variables_is_refused() -> None:
    names = [f"a{number}" for number in range(101)]
    assert Pattern.parse(f"t:{{{','.join(names[:100])}}}").variables == names[:100]
    with pytest.raises(ValueError, match="more than 100 variables"):
        Pattern.parse(f"t:{{{','.join(names)}}}")


def test_the_longest_template_matches_the_longest_uri_in_reasonable_time() -> None:
    """Generous, because machines differ: it takes some 50 ms."""
    pattern = Pattern.parse("a" + "{+x}a{y}" * (MAX_EXPRESSIONS // 2) + "b")
    begun = time.process_time()
    assert pattern.match("a" * MAX_URI) is None
    assert pattern.match("a/" * (MAX_URI // 2 - 1) + "ab") is not None
    assert time.process_time() - begun < 5


def test_only_links_and_resources_in_content_change() -> None:
    link = {"type": "resource_link", "uri": "n://1", "name": "n", "k": 1}
    embedded = {"type": "resource", "resource": {"uri": "n://2", "text": "x", "_meta": {}}}
    others = [
        {"type": "text", "text": "n://3"},
        {"type": "resource_link", "uri": 5},
        {"type": "resource", "resource": "n://4"},
    ]
    result = {"content": [link, embedded, *others], "structuredContent": {"uri": "n://5"}}
    changed = NAMED.in_result(result)
    assert changed["content"][0] == {**link, "uri": "n://up/1"}
    assert changed["content"][1]["resource"] == {"uri": "n://up/2", "text": "x", "_meta": {}}
    assert changed["content"][2:] == others
    assert changed["structuredContent"] == {"uri": "n://5"}
    assert KEPT.in_result(result) == result
    assert NAMED.in_result({"content": "odd"}) == {"content": "odd"}
