"""FastAPI, imported so that it costs less.

Its models of OpenAPI documents are built for documents that nobody asks a gateway for; to build
them is 7 % of a start (docs/decisions/0045). With pydantic's `defer_build` each is built when it is
first used. pydantic has no setting for all models of somebody else; what the base class has while
they are made, they inherit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import BaseModel, ConfigDict


@contextmanager
def _models_built_when_used() -> Iterator[None]:
    """Of models that are declared within the block."""
    before = BaseModel.model_config
    BaseModel.model_config = ConfigDict(**before, defer_build=True)
    try:
        yield
    finally:
        BaseModel.model_config = before


with _models_built_when_used():
    from fastapi import FastAPI as FastAPI
    from fastapi.telemetry import TelemetryConfig as TelemetryConfig
