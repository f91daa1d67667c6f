"""Each store that GATEWAY_STORE can name runs every contract."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from roundgate.settings.process import STORES, StoreKind

HERE = Path(__file__).parent
CONTRACTS = {
    re.search(r"^class (\w+Contract)\b", path.read_text(), re.MULTILINE)[1]  # type: ignore[index]
    for path in HERE.glob("*_contract.py")
} - {"TaskQueueContract", "VersionContract"}  # a store has a queue, or versions, if it needs them


@pytest.mark.parametrize("kind", STORES, ids=lambda kind: kind.example)
def test_a_store_runs_every_contract(kind: StoreKind) -> None:
    texts = [path.read_text() for path in HERE.glob("test_*.py")]
    own = "\n".join(text for text in texts if f"from {kind.module}" in text)
    bases = set(re.findall(r"^class Test\w+\((?:\w+\.)?(\w+)\)", own, re.MULTILINE))
    assert CONTRACTS - bases == set()
