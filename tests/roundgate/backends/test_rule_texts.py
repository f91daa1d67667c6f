"""URIs of rules: how people write them, and how a server may read a URI that a caller sends."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundgate.policy.texts import UriReadings, UriTexts, template_pattern


@pytest.mark.parametrize(
    ("text", "uri", "denies", "allows"),
    [
        ("file:///secret/*", "file:///secret/a", True, True),
        ("file:///secret/*", "file:///secret", True, True),
        ("file:///secret/*", "file:///secrets", False, False),
        ("file:///secret/", "file:///secret", True, False),
        ("FILE:///secret/*", "file:///secret/a", True, True),
        ("file:///my file*", "file:///my%20file", True, True),
        ("file:///my%20file*", "file:///my%20file", True, True),
        ("docs://é/*", "docs://%C3%A9/a", True, True),
        ("docs://*", "docs://a/b?c#d", True, True),
        ("docs://**", "docs://a/b", True, True),
        ("docs://a/*/c", "docs://a/b/c", True, True),
        ("docs://a", "docs://a/b", False, False),
        ("memo:*", "memo:today", True, True),
        ("docs://[a]/?", "docs://[a]/?", True, True),
        ("docs://[a]/?", "docs://a/b", False, False),
        ("weather://*?unit=c", "weather://oslo?unit=c", True, True),
        # a server may read these as another URI
        ("docs://open/*", "docs://open%2Fa", True, False),
        ("docs://open/*", "docs://open%252Fa", True, False),
        ("docs://ann/*", "docs://Ann/a", True, False),
        ("docs://a", "docs://a?b", True, False),
        ("docs://a", "docs://a#b", True, False),
        ("file://up//srv/*", "file://up/srv/a", True, False),
        ("http://in.example/*", "http://user@in.example/a", True, False),
        ("http://in.example/*", "HTTP://IN.EXAMPLE:80/a", True, False),
        ("http://127.0.0.1/*", "http://2130706433/a", True, False),
    ],
)
def test_a_denial_matches_any_reading_and_an_allowance_all(
    text: str, uri: str, denies: bool, allows: bool
) -> None:
    texts, readings = UriTexts(["x:y", text]), UriReadings.of(uri)
    assert texts.match_any(readings) is denies
    assert texts.match_all(readings) is allows


@st.composite
def spellings(draw: st.DrawFn) -> str:
    """A URI that a server may read as file:///srv/secret/plan."""
    path = "/srv/secret/plan"
    for _ in range(draw(st.integers(0, 3))):
        path = "".join(
            f"%{ord(character):02x}"
            if character == "%" or draw(st.booleans())
            else character * draw(st.integers(1, 2 if character == "/" else 1))
            for character in path
        )
    start = draw(st.sampled_from(["file:///", "FILE:////", "File://localhost/", "file:/"]))
    return start + path.lstrip("/")


@given(spellings())
def test_no_spelling_escapes_a_denial(uri: str) -> None:
    assert UriTexts(["file:///srv/secret/*"]).match_any(UriReadings.of(uri))


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_text_has_readings(text: str, uri: str) -> None:
    texts, readings = UriTexts([text]), UriReadings.of(uri)
    assert texts.match_any(readings) or not texts.match_all(readings)
    assert UriTexts([f"a:{quote(text)}"]).match_any(UriReadings.of(f"a:{quote(text)}"))


@pytest.mark.parametrize(
    ("text", "template", "overlaps", "covers"),
    [
        ("docs://secret/*", "docs://{folder}/{file}", True, False),
        ("docs://*", "docs://{folder}/{file}", True, True),
        ("docs://secret/*", "docs://secret/{file}", True, True),
        ("docs://secret/*", "docs://open/{file}", False, False),
        ("docs://secret/a", "docs://secret/{file}", True, False),
        ("*.md", "docs://{+path}.txt", False, False),
        ("*.md", "docs://{+path}", True, False),
        ("docs://a/b", "docs://{x}/c", False, False),
    ],
)
def test_a_pattern_and_a_template_have_common_uris(
    text: str, template: str, overlaps: bool, covers: bool
) -> None:
    uris = UriReadings.of(template_pattern(template, {}))
    assert UriTexts([text]).overlaps(uris) is overlaps
    assert UriTexts([text]).covers(uris) is covers


def test_known_values_of_a_template_are_in_its_pattern() -> None:
    values = {"folder": "a b/c", "q": "x"}
    assert template_pattern("docs://{folder}/{+file}{?q}", values) == "docs://a%20b/c/**"
