"""What every test shares: Hypothesis tells the same story every time, and slow machines are no failure."""

import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("repeatable")

EMULATED = {"dynamodb", "emulator", "sqs", "endpoint"}
"""Fixtures behind which a service of AWS is emulated."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what takes minutes and no version of Python changes, for `scripts/test` to leave out where it was run."""
    for item in items:
        if set(getattr(item, "fixturenames", ())) & EMULATED or item.path.name == "test_sqs.py":
            item.add_marker("emulated")
        if item.path.name == "test_crash_points.py":
            item.add_marker("crash_points")
        if "stack" in getattr(item, "fixturenames", ()):
            item.add_marker("stack")
