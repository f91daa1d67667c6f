"""What every test shares: Hypothesis tells the same story every time, and neither a slow machine nor how this one began
its tests is a failure."""

import signal

import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("repeatable")

# A shell that starts a command in the background has it ignore SIGINT, `nohup` has it ignore SIGHUP, and every process
# that is begun from there inherits that. Signals that are handled become the default ones in a new program.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

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
