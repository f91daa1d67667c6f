"""docs/troubleshooting.md has every error that a caller can get, under its code, and none that
there is not. Errors that say enough by themselves are in `support/clear_errors.txt` instead."""

from __future__ import annotations

import re

from roundgate import errors
from roundgate.protocol.v2026_07_28 import TABLE
from tests.support.documents import ROOT
from tests.support.said import parents, told

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
CLEAR = ROOT / "tests" / "support" / "clear_errors.txt"
WITHOUT_A_CODE = {
    "AuthError": "HTTP 401",
    "TransportError": "HTTP 4xx",
    "Unavailable": "HTTP 4xx",
    "ToolError": "Tool errors",
}
"""What is no JSON-RPC error of its own: the beginning of its heading."""


def headings() -> dict[str, str]:
    """Class → how the heading begins under which its errors are; others are under that of their parent."""
    codes = {cls.__name__: f"{row.code}: " for cls, row in TABLE.items()}
    return codes | WITHOUT_A_CODE


def section_of(kind: str) -> str:
    """The whole heading of the section for a class."""
    starts = headings()
    while kind not in starts:
        kind = parents()[kind]
    found: list[str] = [
        line
        for line in re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
        if line.startswith(starts[kind])
    ]
    assert len(found) == 1, (
        f"docs/troubleshooting.md: add a section '## {starts[kind]}…' for {kind}"
    )
    return found[0]


def documented() -> list[tuple[str, str]]:
    """Each message with the heading of its section."""
    parts = re.split(r"^## (.*)$", PAGE, flags=re.MULTILINE)[1:]
    pairs = zip(parts[::2], parts[1::2], strict=True)
    tables = r"^\| message \|.*\n\|[-|]+\|\n((?:\|.*\n)+)"
    return [
        (title, message)
        for title, text in pairs
        for table in re.findall(tables, text, re.MULTILINE)
        for message in re.findall(r"^\| `(.+?)` \|", table, re.MULTILINE)
    ]


def clear() -> list[tuple[str, str]]:
    """Each message that needs no explanation, with the heading of its section."""
    _, *parts = re.split(r"^## (.*)\n", CLEAR.read_text(), flags=re.MULTILINE)
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return [(title, message) for title, text in pairs for message in text.split("\n") if message]


def test_every_error_that_a_caller_can_get_is_in_the_documentation() -> None:
    code = {(section_of(said.kind), said.template): said.at for said in told()}
    pages = [*documented(), *clear()]
    missing = [
        f"add to '## {title}' (from {at}): | `{message}` | why, and what to do |"
        for (title, message), at in code.items()
        if (title, message) not in pages
    ]
    surplus = [
        f"take out of '## {title}', no code says it: `{message}`"
        for title, message in pages
        if (title, message) not in code
    ]
    assert not missing + surplus, "\n".join(
        [f"docs/troubleshooting.md or {CLEAR.name} is not what the code says:", *missing, *surplus]
    )
    assert len(pages) == len(set(pages)), (
        "a message stands twice, on the page or in clear_errors.txt"
    )


def test_every_code_that_leaves_the_gateway_has_a_section() -> None:
    codes = {row.code for row in TABLE.values()}
    assert {int(code) for code in re.findall(r"^## (-\d+): ", PAGE, re.MULTILINE)} == codes


def test_the_classes_that_are_read_out_of_the_code_are_those_that_there_are() -> None:
    assert {
        "StateRefused",
        "TaskNotFound",
        "BackendError",
        "Unavailable",
        "InsufficientScope",
    } <= parents().keys()
    assert all(hasattr(errors, name) for name in parents() if parents()[name] == "ToolError")
