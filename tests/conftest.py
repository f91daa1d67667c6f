"""Settings of all tests: Hypothesis draws the same examples each time, has no time limit, and fewer in a short run."""

import gc
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("long", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("short", settings.get_profile("long"), max_examples=20)

gc.disable()  # until all tests are collected, which makes no garbage

# A shell that starts a command in the background has it ignore SIGINT, `nohup` has it ignore
# SIGHUP, and every process that is begun from there inherits that. Signals that are handled become
# the default ones in a new program.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long", action="store_true", help="all crash points and Hypothesis examples, not a sample"
    )


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("long" if config.getoption("--long") else "short")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Four more than there are cores for `-n auto`: most of what tests take is waiting for processes and timers."""
    return (os.cpu_count() or 1) + 4


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


LONGEST = {"test_crash_points", "test_model", "test_right_handlers", "test_typical_mistakes"}
"""Modules whose tests take up to minutes each with `--long`."""


@pytest.hookimpl(specname="pytest_collection_modifyitems", trylast=True)
def pytest_begin_with_the_longest(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--long`, have each worker of xdist begin with its part of the longest tests, so that none is alone at the
    end. A worker first gets a block of neighbours."""
    if config.getoption("--long"):
        workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        longest = [item for item in items if item.path.stem in LONGEST]
        others = [item for item in items if item.path.stem not in LONGEST]
        size = -(-len(others) // workers)
        items[:] = [
            item
            for worker in range(workers)
            for item in (*longest[worker::workers], *others[worker * size :][:size])
        ]


STORE = Path(__file__).parents[1] / ".roundgate"
"""The folder of a gateway that was started in the checkout."""


def files_of_store() -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in STORE.glob("*")}


def pytest_collection_finish() -> None:
    """Exempt collected tests from garbage collection, which then takes milliseconds."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="module")
def nothing_is_left() -> Iterator[None]:
    """Fail a module of tests that leaves open files or sockets, or uses the store of the checkout."""
    before = files_of_store()
    yield
    # FastAPI's caches hold the gateways of the last thousand tests, and each collection would look at them.
    if models := sys.modules.get("fastapi.dependencies.models"):
        for member in vars(models).values():
            getattr(member, "cache_clear", lambda: None)()
    gc.collect()  # a ResourceWarning here belongs to this module
    gc.freeze()  # what is left stays, and later collections need not visit it
    assert files_of_store() == before, f"these tests have written to {STORE}"


LEFT = pytest.StashKey[list[str]]()
"""What the last collection found open: what outlived its module belongs to no test that could fail."""


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Collect objects of finished modules too, and fail the session for what they left open."""
    left = session.config.stash.setdefault(LEFT, [])
    before = sys.unraisablehook
    sys.unraisablehook = lambda raised: left.append(f"{raised.object!r}: {raised.exc_value!r}")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            gc.unfreeze()
            gc.collect()
            gc.freeze()  # pytest collects several times more
    finally:
        sys.unraisablehook = before
    left += [f"{each.category.__name__}: {each.message}" for each in caught]
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left"] = left
    elif left and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a worker of xdist found; one that died has no output."""
    output = getattr(node, "workeroutput", {})
    node.config.stash.setdefault(LEFT, []).extend(output.get("left", []))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if left := config.stash.get(LEFT, []):
        terminalreporter.section("left open by a module of tests", red=True)
        for text in left:
            terminalreporter.line(text)


@pytest.hookimpl(specname="pytest_sessionfinish", trylast=True)
def pytest_save_coverage() -> None:
    """Writes down which lines were run, under `scripts/test --cover`: xdist kills a worker that has not ended after ten
    seconds, and what it would have written at its end is lost."""
    if "PYTEST_XDIST_WORKER" in os.environ and "coverage" in sys.modules:
        import coverage

        current = coverage.Coverage.current()
        if current is not None:
            current.save()
