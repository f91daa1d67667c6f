"""Stores for the pages, templates that are compiled once, and a service that is down at the start of
each test."""

from collections.abc import Iterator
from functools import partial

import pytest
from jinja2 import Environment, FileSystemBytecodeCache

from roundgate_console import frame
from tests.support.console_tasks import is_down
from tests.support.dynamodb import dynamodb as dynamodb
from tests.support.postgresql import postgresql as postgresql
from tests.support.postgresql import postgresql_server as postgresql_server


@pytest.fixture(autouse=True, scope="session")
def compiled_templates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Each app has its own environment of Jinja, which would compile the templates again."""
    cache = FileSystemBytecodeCache(str(tmp_path_factory.mktemp("templates")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame, "Environment", partial(Environment, bytecode_cache=cache))
        yield


@pytest.fixture(autouse=True)
def service() -> None:
    """The service that the tool `refund` needs is down."""
    is_down[:] = [True]
