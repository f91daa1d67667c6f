"""Every refusal is in the log here, however many there are in a minute."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.logs import Seldom


@pytest.fixture(autouse=True)
def told_each_time() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.tokens.request_state._seldom", Seldom(every_s=0))
        yield
