"""What every test shares: Hypothesis tells the same story every time, and slow machines are no failure."""

import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("repeatable")

EMULATED = {"dynamodb", "emulator", "sqs", "endpoint"}
"""Fixtures behind which a service of AWS is emulated."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`exhaustive` is what takes minutes and no version of Python changes: emulated services, crash points."""
    for item in items:
        needs = set(getattr(item, "fixturenames", ()))
        if needs & EMULATED or item.path.name in ("test_crash_points.py", "test_sqs.py"):
            item.add_marker("exhaustive")
