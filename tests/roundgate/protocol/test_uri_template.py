"""Templates forwards are RFC 6570 and checked against `uritemplate`; backwards they are
ours and checked by laws."""

from __future__ import annotations

import time
from dataclasses import dataclass
from urllib.parse import unquote

import pytest
import uritemplate
from hypothesis import given
from hypothesis import strategies as st

from roundgate.protocol.uri_template import UriTemplate, Values

# RFC 6570 section 3.2.
RFC_VALUES: Values = {
    "count": ["one", "two", "three"],
    "dom": ["example", "com"],
    "dub": "me/too",
    "hello": "Hello World!",
    "half": "50%",
    "var": "value",
    "who": "fred",
    "base": "http://example.com/home/",
    "path": "/foo/bar",
    "list": ["red", "green", "blue"],
    "v": "6",
    "x": "1024",
    "y": "768",
    "empty": "",
}

# Examples of sections 3.2.2 to 3.2.9 whose values can be had back.
THERE_AND_BACK = [
    ("{var}", "value"),
    ("{hello}", "Hello%20World%21"),
    ("{half}", "50%25"),
    ("O{empty}X", "OX"),
    ("{x,y}", "1024,768"),
    ("{x,hello,y}", "1024,Hello%20World%21,768"),
    ("?{x,empty}", "?1024,"),
    ("{+var}", "value"),
    ("{+hello}", "Hello%20World!"),
    ("{+half}", "50%25"),
    ("{+base}index", "http://example.com/home/index"),
    ("{+path}/here", "/foo/bar/here"),
    ("here?ref={+path}", "here?ref=/foo/bar"),
    ("{+x,hello,y}", "1024,Hello%20World!,768"),
    ("{+path,x}/here", "/foo/bar,1024/here"),
    ("{+list*}", "red,green,blue"),
    ("X{#var}", "X#value"),
    ("{#hello}", "#Hello%20World!"),
    ("{#path,x}/here", "#/foo/bar,1024/here"),
    ("{.who}", ".fred"),
    ("{.half,who}", ".50%25.fred"),
    ("www{.dom*}", "www.example.com"),
    ("X{.var}", "X.value"),
    ("X{.empty}", "X."),
    ("X{.list*}", "X.red.green.blue"),
    ("{/who}", "/fred"),
    ("{/half,who}", "/50%25/fred"),
    ("{/var,empty}", "/value/"),
    ("{/var,x}/here", "/value/1024/here"),
    ("{/list*}", "/red/green/blue"),
    ("{;who}", ";who=fred"),
    ("{;half}", ";half=50%25"),
    ("{;empty}", ";empty"),
    ("{;v,empty,who}", ";v=6;empty;who=fred"),
    ("{;x,y,empty}", ";x=1024;y=768;empty"),
    ("{;list*}", ";list=red;list=green;list=blue"),
    ("{;hello}", ";hello=Hello%20World%21"),
    ("{?who}", "?who=fred"),
    ("{?x,y,empty}", "?x=1024&y=768&empty="),
    ("{?list*}", "?list=red&list=green&list=blue"),
    ("{&who}", "&who=fred"),
    ("?fixed=yes{&x}", "?fixed=yes&x=1024"),
    ("{&x,y,empty}", "&x=1024&y=768&empty="),
    ("{&list*}", "&list=red&list=green&list=blue"),
]


def values_of(template: str) -> Values:
    return {name: RFC_VALUES[name] for name in UriTemplate.parse(template).variables}


@pytest.mark.parametrize(("template", "uri"), THERE_AND_BACK)
def test_an_example_of_the_rfc_expands_and_its_values_come_back(template: str, uri: str) -> None:
    parsed = UriTemplate.parse(template)
    assert parsed.expand(RFC_VALUES) == uri
    assert parsed.match(uri) == values_of(template)


@pytest.mark.parametrize(
    ("template", "uri"),
    [
        ("O{undef}X", "OX"),
        ("{x,undef}", "1024"),
        ("{?x,undef}", "?x=1024"),
        ("{#undef}", ""),
        ("{count}", "one,two,three"),
        ("{/list}", "/red,green,blue"),
        ("{;list}", ";list=red,green,blue"),
        ("{?list}", "?list=red,green,blue"),
        ("up{+path}{var}/here", "up/foo/barvalue/here"),
        ("{/list*,path}", "/red/green/blue/%2Ffoo%2Fbar"),
        ("{dub}", "me%2Ftoo"),
    ],
)
def test_an_example_of_the_rfc_that_has_no_way_back_still_expands(template: str, uri: str) -> None:
    assert UriTemplate.parse(template).expand(RFC_VALUES) == uri


def test_a_template_names_its_variables_in_order_and_its_lists() -> None:
    template = UriTemplate.parse("notes://{owner}{/path*}{?lang,tag*}")
    assert template.variables == ("owner", "path", "lang", "tag")
    assert template.exploded == {"path", "tag"}


@pytest.mark.parametrize(
    ("template", "uri", "values"),
    [
        (
            "notes://{owner}/{+path}{?lang}",
            "notes://ann/2026/may.txt?lang=en",
            ["ann", "2026/may.txt", "en"],
        ),
        ("test://template/{id}/data", "test://template/123/data", ["123"]),
        ("test://template/{id}/data", "test://template//data", [""]),
        ("{name}.{ext}", "a.tar.gz", ["a.tar", "gz"]),
        ("{a}{b}", "everything", ["everything", ""]),
        ("{/dirs*}/{file}", "/a/b/c", [["a", "b"], "c"]),
        ("{/dirs*,file}", "/a/b/c", [["a", "b"], "c"]),
        ("{+path}{?q}{#part}", "a/b?q=1#x?y#z", ["a/b", "1", "x?y#z"]),
        ("{+url}", "http://h/?q=1#f", ["http://h/?q=1#f"]),
        ("x{;a}{;b}/{c}", "x;a=1;b=2/3", ["1", "2", "3"]),
        (";a=1{;a}", ";a=1;a=2", ["2"]),
        ("{?ab,abc}", "?ab=1&abc=2", ["1", "2"]),
        ("{?a%20b,c.d}", "?a%20b=1&c.d=2", ["1", "2"]),
        ("café/{x}", "caf%C3%A9/%E2%82%AC", ["€"]),
        ("it's/{x}", "it's/1", ["1"]),
        ("%41{a}", "%41%42", ["B"]),
        ("{a}41{b}", "%411", None),
        ("{a}", "%2541", ["%41"]),
        ("literal", "literal", []),
        ("", "", []),
        ("", "x", None),
        ("literal", "literally", None),
    ],
)
def test_a_uri_gives_the_values_of_its_template(
    template: str, uri: str, values: list[str | list[str]] | None
) -> None:
    parsed = UriTemplate.parse(template)
    assert parsed.match(uri) == (
        None if values is None else dict(zip(parsed.variables, values, strict=True))
    )


@pytest.mark.parametrize(
    ("uri", "values"),
    [
        ("/s", {}),
        ("/s?q=1", {"q": "1"}),
        ("/s?lang=en&q=1", {"q": "1", "lang": "en"}),
        ("/s?tag=a&q=1&tag=b", {"q": "1", "tag": ["a", "b"]}),
        ("/s?q", {"q": ""}),
        ("/s?q=a%2Fb%26c", {"q": "a/b&c"}),
        ("/s?q=..", {"q": ".."}),
        ("/s?", None),
        ("/s?q=1&", None),
        ("/s?q=1&q=2", None),
        ("/s?other=1", None),
        ("/s?q=1&other=1", None),
        ("/s?query=1", None),
        ("/s?q=a=b", None),
        ("/s?q=a/b", None),
        ("/s&q=1", None),
        ("/s?q=1?lang=en", None),
    ],
)
def test_query_parameters_are_optional_unordered_and_all_known(
    uri: str, values: Values | None
) -> None:
    assert UriTemplate.parse("/s{?q,lang,tag*}").match(uri) == values


@pytest.mark.parametrize(
    ("template", "uri"),
    [
        ("/f/{x}", "/f/a/b"),
        ("/f/{x}", "/f/a:b"),
        ("/f/{x}", "/f/a%2Fb"),
        ("/f/{x}", "/f/a%2fb"),
        ("/f/{x}", "/f/.."),
        ("/f/{x}", "/f/%2E%2e"),
        ("/f/{x}", "/f/."),
        ("/f/{x}/g", "/f/../g"),
        ("/f{/x}", "/f/.."),
        ("/f{/x*}", "/f/a/../b"),
        ("/f{/x*}", "/f/a/%2E%2E/b"),
        ("/f{/x*}", "/f/a%2F..%2Fb"),
        ("/f{/x*}", "/f//etc/passwd"),
        ("/f/a{.x}", "/f/a.%2Fb"),
        ("/f{;x}", "/f;x=.."),
        ("/f{;x}", "/f;x=a%2Fb"),
    ],
)
def test_a_value_that_would_walk_a_path_is_no_match(template: str, uri: str) -> None:
    assert UriTemplate.parse(template).match(uri) is None


def test_a_reserved_value_may_walk_and_its_handler_must_confine_it() -> None:
    assert UriTemplate.parse("file:///{+path}").match("file:///a/../%2Fetc") == {
        "path": "a/..//etc"
    }


@pytest.mark.parametrize(
    "bad", ["%", "%4", "%zz", "%C3", "%C3%28", "%ED%A0%80", "%C0%AF", "é", " ", "{x}", "a\n", "|"]
)
@pytest.mark.parametrize("template", ["{x}", "{+x}", "{#x}", "{/x*}", "{?x}"])
def test_what_is_not_percent_encoded_utf_8_is_no_match(template: str, bad: str) -> None:
    start = UriTemplate.parse(template).expand({"x": "good"})
    assert UriTemplate.parse(template).match(start) is not None
    assert UriTemplate.parse(template).match(start + bad) is None


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        ("a{b", "character 2: '{' is unmatched; add its counterpart, or write %7B"),
        ("a}b", "character 2: '}' is unmatched"),
        ("{a{b}}", "character 1: '{' is unmatched"),
        ("{}", "character 1: '' is not a variable name"),
        ("{a,}", "'' is not a variable name"),
        ("x{=a}", "character 3: '=' is not an operator; use one of + # . / ; ? & or none"),
        ("{|a}", "'|' is not an operator"),
        ("{$a}", "'$' is not an operator"),
        ("{a-b}", "'a-b' is not a variable name; use letters, digits, '_'"),
        ("{a, b}", "' b' is not a variable name"),
        ("{é}", "'é' is not a variable name"),
        ("{a..b}", "'a..b' is not a variable name"),
        ("{/a**}", "'a*' is not a variable name"),
        ("/{a}/{b}{?a}", "character 9: variable 'a' is named twice; rename one of the two"),
        ("{a,a}", "variable 'a' is named twice"),
        ("{a:3}", "the prefix 'a:3' hides the rest of the value; write 'a'"),
        (
            "{a*}",
            "{a*} cannot be exploded; write {+a} for text with '/' in it, {/a*} for a list of segments",
        ),
        ("{#a*}", "{#a*} cannot be exploded"),
        ("{/a*,b*}", "a second exploded list leaves the first without an end; drop one '*'"),
        ("{/a*}/x{/b*}", "character 8: a second exploded list"),
        (
            "{?a}b",
            "the text after the {?} expression could belong to its last value; move it to the end",
        ),
        ("{?a}{+b}", "character 1: the text after"),
        ("{;a}{.b}", "the text after the {;} expression"),
        ("{&a}&b=1", "the text after the {&} expression"),
        ("{?a}?b=1", "the text after the {?} expression"),
        ("{;a}{?b};c=1", "the text after the {?} expression"),
        ("{?a}é", "the text after the {?} expression"),
        ("a b{c}", "character 2: ' ' is not allowed in a URI; percent-encode it"),
        ("{c}%4{d}", "character 4: '%' is not allowed in a URI; percent-encode it ('%' is %25)"),
        ("\ud800", r"'\ud800' is not allowed in a URI"),
    ],
)
def test_a_template_without_a_clear_way_back_is_refused_with_a_remedy(
    template: str, complaint: str
) -> None:
    with pytest.raises(ValueError, match="URI template") as refused:
        UriTemplate.parse(template)
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("template", "uri"),
    [
        ("{a}{b}{c}{d}{e}!", "a" * 100_000),
        ("{+a}{+b}{+c}{+d}/end", "/en" * 33_333),
        ("{a}x{b}x{c}x{d}!", "x" * 100_000),
        ("{+a}%41{+b}%41{+c}!", "%41" * 33_333 + "?"),
        ("{/a*}{/b}{/c}.", "/a" * 50_000),
        ("{+a}{;x*}{;y*}#", ";x=1" * 25_000),
        ("{;x*}{;y*}#", ";x=1;y=2" * 12_500),
        ("{?q*}{&r*}#", "?q=1" + "&q=1&r" * 16_000),
        ("{+a}{?q*}!", "?q=1" * 25_000),
        ("{?q}", "?q" + "=" * 100_000),
        ("{a}", "%" * 100_000),
    ],
)
def test_a_hostile_uri_of_100_kilobytes_is_turned_down_fast(template: str, uri: str) -> None:
    parsed = UriTemplate.parse(template)
    start = time.process_time()
    assert parsed.match(uri) is None
    assert (
        time.process_time() - start < 2
    )  # 0.1 s where this was written; a quadratic matcher needs minutes


@dataclass(frozen=True)
class Case:
    """A template, and values for it that leave only one reading of their expansion."""

    template: str
    values: Values


ANY = st.characters(exclude_categories=["Cs"])
SEGMENT = st.text(ANY).filter(lambda text: "/" not in text and text not in {".", ".."})
LABEL = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="./"))
RESERVED = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="%,!?;&#"))
FRAGMENT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="%,"))
VALUES = {"": SEGMENT, "+": RESERVED, "#": FRAGMENT, ".": LABEL, "/": SEGMENT, ";": SEGMENT}
ANYTHING = st.text(ANY)


def lists(items: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(items, min_size=1, max_size=4).filter(
        lambda items: items == [""] or items[0] != ""
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Expressions apart from each other by text that no value can hold, then perhaps a query and a fragment."""
    path = draw(st.lists(st.sampled_from(["", "+", ".", "/", ";"]), max_size=4))
    template, values = "x:", Values()
    has_list = draw(st.booleans())  # of lists known by their place, a template may have one
    for operator in path + [operator for operator in "?&#" if draw(st.booleans())]:
        specs: list[str] = []
        is_named = operator in {"?", "&", ";"}
        for _ in range(draw(st.integers(1, 3))):
            name = f"v{len(template)}_{len(specs)}"
            is_list = (
                operator not in {"", "#"} and (is_named or not has_list) and draw(st.booleans())
            )
            has_list = has_list or (is_list and not is_named)
            specs.append(name + "*" * is_list)
            one = VALUES.get(operator, ANYTHING)
            if not is_named or draw(st.booleans()):
                values[name] = draw(lists(one)) if is_list else draw(one)
        template += ("/!/" if operator in path else "") + f"{{{operator}{','.join(specs)}}}"
    return Case(template, values)


@given(cases())
def test_what_another_library_expands_gives_its_values_back(case: Case) -> None:
    uri = uritemplate.expand(case.template, {**case.values})
    assert UriTemplate.parse(case.template).match(uri) == case.values


@given(cases())
def test_what_we_expand_gives_its_values_back(case: Case) -> None:
    template = UriTemplate.parse(case.template)
    assert template.match(template.expand(case.values)) == case.values


@given(st.permutations(["a=1", "b=2", "b=3", "c"]), st.sampled_from(";?&"))
def test_parameters_come_in_any_order(pairs: list[str], operator: str) -> None:
    separator = "&" if operator == "?" else operator
    found = UriTemplate.parse(f"{{{operator}a,b*,c,d}}").match(operator + separator.join(pairs))
    assert found is not None
    assert {name: sorted(value) for name, value in found.items()} == {
        "a": ["1"],
        "b": ["2", "3"],
        "c": [],
    }


@given(
    st.lists(
        st.sampled_from(
            ["{a}", "{+b}", "{c,d}", "{+e,f}", "{.g}", "{/h*}", "{/i,j}", "{k}", "x", "ä"]
        ),
        unique=True,
    ),
    st.lists(st.text("xé,:", max_size=4), min_size=11, max_size=11),
)
def test_a_uri_with_several_readings_gets_one_that_expands_to_it(
    parts: list[str], texts: list[str]
) -> None:
    template = UriTemplate.parse("".join(parts))
    uri = template.expand(dict(zip("abcdefghijk", texts, strict=True)))
    found = template.match(uri)
    assert found is not None
    assert unquote(template.expand(found)) == unquote(uri)


MESSY = st.text(st.sampled_from("{}{}+#./;?&,*:=%aab2Eéx \ud800"))


@given(st.one_of(MESSY, st.text()), st.one_of(MESSY, st.text()))
def test_any_text_is_a_template_or_a_value_error_and_any_text_matches_or_does_not(
    text: str, uri: str
) -> None:
    try:
        template = UriTemplate.parse(text)
    except ValueError:
        return
    for candidate in (
        uri,
        template.expand({}),
        template.expand(dict.fromkeys(template.variables, "a2")),
    ):
        found = template.match(candidate)
        assert found is None or found.keys() <= set(template.variables)
