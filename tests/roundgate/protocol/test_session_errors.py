"""What a client of a session may be answered with has a code that its revision knows."""

from __future__ import annotations

import pytest

from roundgate.errors import AuthError, GatewayError
from roundgate.protocol.v2025 import wire_errors
from tests.roundgate.protocol.v2026_07_28.test_wire_errors import ON_THE_WIRE

KNOWN = {-32700, -32600, -32601, -32602, -32603, -32002}


@pytest.mark.parametrize(
    "error", [error for error, _, _ in ON_THE_WIRE], ids=lambda error: type(error).__name__
)
def test_every_error_that_another_revision_answers_with_is_known_here(error: GatewayError) -> None:
    assert not isinstance(error, AuthError)
    assert wire_errors.look_up(error).code in KNOWN
