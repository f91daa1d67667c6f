"""Which revision a request is of: what its head and its body say, and which of them counts."""

from __future__ import annotations

from typing import Any

import pytest

from roundgate.protocol.jsonrpc import is_older, may_be_older
from tests.support import wire

PLAIN: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
INITIALIZE = {**PLAIN, "method": "initialize"}


def head(**named: str) -> dict[bytes, bytes]:
    return {name.replace("_", "-").encode(): value.encode() for name, value in named.items()}


@pytest.mark.parametrize("version", ["2026-07-28", " 2026-07-28", "2026-07-28\t"])
def test_a_head_of_2026_07_28_leaves_nothing_open(version: str) -> None:
    assert not may_be_older(head(mcp_protocol_version=version, mcp_session_id="x"))


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (head(), INITIALIZE),
        (head(mcp_protocol_version="2025-11-25"), INITIALIZE),
        (head(mcp_session_id="x"), PLAIN),
        (head(mcp_session_id="x"), [PLAIN]),
        (head(mcp_session_id="x"), {"jsonrpc": "2.0", "id": 1, "result": {}}),
        (head(mcp_protocol_version="2025-06-18"), PLAIN),
        (head(mcp_protocol_version="1999-01-01"), PLAIN),
    ],
)
def test_what_opens_a_session_or_belongs_to_one_is_older(
    headers: dict[bytes, bytes], body: Any
) -> None:
    assert may_be_older(headers)
    assert is_older(headers, body)


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (head(), PLAIN),
        (head(), [PLAIN]),
        (head(), 7),
        (head(), wire.message("initialize")),
        (head(mcp_session_id="x"), wire.message("tools/list")),
        (head(mcp_protocol_version="2025-11-25"), wire.message("tools/list")),
        (head(mcp_protocol_version="2025-11-25", mcp_method="tools/list"), PLAIN),
    ],
)
def test_everything_else_is_not(headers: dict[bytes, bytes], body: Any) -> None:
    assert not is_older(headers, body)
