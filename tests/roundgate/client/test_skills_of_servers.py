"""Skills through the client library: entries, and files that are verified when they are read."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest

from roundgate.client import Skill
from roundgate.client.types import ReadResult
from roundgate.errors import BadAnswer, ClientError

URI = "skill://acme/refunds/SKILL.md"
OTHER = "skill://acme/refunds/email.md"
TEXT = "---\nname: refunds\ndescription: Refund money.\n---\n\nHow.\n"
FRONTMATTER = {"name": "refunds", "description": "Refund money."}


def listed(uri: str, content: bytes) -> dict[str, Any]:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return {"uri": uri, "digest": digest, "size": len(content)}


def entry(**changes: Any) -> dict[str, Any]:
    files = [listed(URI, TEXT.encode()), listed(OTHER, b"Dear \xff")]
    return {"uri": URI, "frontmatter": FRONTMATTER, "resources": files, **changes}


def contents(uri: str, **content: str) -> ReadResult:
    return ReadResult.read({"contents": [{"uri": uri, **content}]}, 1)


def test_text_and_bytes_that_match_their_entry_are_returned() -> None:
    skill = Skill.read(entry())
    assert (skill.name, skill.description) == ("refunds", "Refund money.")
    assert skill.verified(URI, contents(URI, text=TEXT)) == TEXT.encode()
    blob = base64.b64encode(b"Dear \xff").decode()
    assert skill.verified(OTHER, contents(OTHER, blob=blob)) == b"Dear \xff"


@pytest.mark.parametrize(
    "result",
    [
        pytest.param(contents(URI, text=TEXT.replace("How", "Now")), id="other bytes"),
        pytest.param(contents(URI, text=f"{TEXT}more"), id="more bytes"),
        pytest.param(contents(OTHER, text=TEXT), id="another file"),
        pytest.param(contents(URI, blob="#"), id="not base64"),
        pytest.param(contents(URI, blob="é"), id="not ASCII"),
        pytest.param(contents(URI), id="no content"),
        pytest.param(ReadResult.read({"contents": []}, 1), id="nothing"),
        pytest.param(
            ReadResult.read({"contents": [{"uri": URI, "text": TEXT}] * 2}, 1), id="two contents"
        ),
    ],
)
def test_a_file_that_differs_from_its_entry_is_refused(result: ReadResult) -> None:
    with pytest.raises(BadAnswer):
        Skill.read(entry()).verified(URI, result)


@pytest.mark.parametrize(
    "text",
    [
        TEXT.replace("Refund money.", "Steal money."),
        TEXT.replace("---\n\n", "model: x\n---\n\n"),
        TEXT.replace("---", "--"),
        TEXT.replace("name:", "name: !tag"),
    ],
)
def test_a_frontmatter_that_differs_from_its_entry_is_refused(text: str) -> None:
    honest = Skill.read(entry(resources=[listed(URI, text.encode())]))
    dynamic = Skill.read(entry(resources="dynamic"))
    for skill in (honest, dynamic):
        with pytest.raises(BadAnswer, match="frontmatter"):
            skill.verified(URI, contents(URI, text=text))


def test_a_file_that_the_entry_does_not_list_is_not_asked_for() -> None:
    with pytest.raises(ClientError, match="has no file"):
        Skill.read(entry()).require_listed("skill://acme/refunds/secret.py")
    Skill.read(entry(resources="dynamic")).require_listed("skill://acme/refunds/any.py")


@pytest.mark.parametrize(
    "raw",
    [
        None,
        [],
        entry(uri=1),
        entry(frontmatter=None),
        entry(frontmatter={"name": "refunds"}),
        entry(resources="other"),
        entry(resources=[1]),
        entry(resources=[{"uri": URI, "digest": "sha256:", "size": True}]),
    ],
)
def test_a_malformed_entry_is_refused(raw: Any) -> None:
    with pytest.raises(BadAnswer):
        Skill.read(raw)
