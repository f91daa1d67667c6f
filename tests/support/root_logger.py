"""The root logger, lent to a test."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lent() -> Iterator[logging.Logger]:
    """The root logger; afterwards it is as it was before."""
    logger = logging.getLogger()
    level, handlers = logger.level, list(logger.handlers)
    try:
        yield logger
    finally:
        logger.setLevel(level)
        logger.handlers[:] = handlers
