"""Documents that would read what they must not, or never end."""

from pathlib import Path
from typing import Any

import pytest

from roundgate.backends.openapi.documents import Sources, parsed
from roundgate.errors import UnreadableDocument


def test_nothing_outside_the_allowed_places_is_read(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "inside-out"
    inside.mkdir()
    outside.mkdir()
    (inside / "a.json").write_text("{}")
    (outside / "secret.json").write_text('{"secret": 1}')
    (inside / "link.json").symlink_to(outside / "secret.json")
    sources = Sources([inside.as_uri()])
    assert sources.document((inside / "a.json").as_uri()) == {}
    for uri in (
        (outside / "secret.json").as_uri(),
        f"{inside.as_uri()}/../inside-out/secret.json",
        f"{inside.as_uri()}/%2e%2e/inside-out/secret.json",
        f"{inside.as_uri()}/link.json",
        "http://169.254.169.254/latest/meta-data",
        "ftp://example.com/a",
    ):
        with pytest.raises(UnreadableDocument, match="outside"):
            sources.document(uri)


def test_only_urls_below_the_allowed_ones_are_fetched_and_only_with_a_fetcher() -> None:
    asked: list[str] = []

    def fetch(url: str, max_bytes: int) -> bytes:
        asked.append(url)
        return b'{"a": 1}'

    sources = Sources(["https://example.com/api"], fetch)
    assert sources.document("https://example.com/api/x.json") == {"a": 1}
    assert sources.document("https://example.com/api/x.json") == {"a": 1}
    for url in (
        "https://example.com/apis",
        "https://example.com.evil.org/api/x",
        "https://example.com/api/../etc",
    ):
        with pytest.raises(UnreadableDocument, match="outside"):
            sources.document(url)
    assert asked == ["https://example.com/api/x.json"]
    with pytest.raises(UnreadableDocument, match="roundgate compile"):
        Sources(["https://example.com"]).document("https://example.com/x")


def test_yaml_that_multiplies_is_refused() -> None:
    levels = "\n".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 12))
    with pytest.raises(UnreadableDocument, match="more than"):
        parsed(f"l0: &l0 x\n{levels}".encode(), "file:///bomb.yaml")


def test_yaml_that_contains_itself_is_refused() -> None:
    with pytest.raises(UnreadableDocument, match=r"contains itself|more than"):
        parsed(b"a: &a {b: *a}", "file:///circle.yaml")


def test_yaml_is_that_of_the_specification() -> None:
    found = parsed(
        b"a: no\nb: 2001-01-01\nc: 0o17\nd: 1.5\n200: ~\ntrue: yes\ne: {<<: {f: 1}}",
        "file:///a.yaml",
    )
    expected = {
        "a": "no",
        "b": "2001-01-01",
        "c": 15,
        "d": 1.5,
        "200": None,
        "true": "yes",
        "e": {"f": 1},
    }
    assert found == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("090", 90),
        ("010", 10),
        ("-08", -8),
        ("+7", 7),
        ("0x1F", 31),
        ("0b11", "0b11"),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("0o9", "0o9"),
    ],
)
def test_an_integer_is_one_of_yaml_1_2(text: str, value: Any) -> None:
    assert parsed(f"a: {text}\n{text}: x".encode(), "file:///a.yaml") == {
        "a": value,
        str(value): "x",
    }


def test_json_that_is_nested_without_end_is_refused() -> None:
    with pytest.raises(UnreadableDocument, match="nested too deeply"):
        parsed(b"[" * 200_000, "file:///deep.json")
