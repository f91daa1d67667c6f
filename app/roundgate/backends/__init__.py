"""Where calls go: the tools, prompts and resources behind the gateway, one
module a kind of back end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roundgate.lazy import face

if TYPE_CHECKING:
    from roundgate.backends import loading as loading
    from roundgate.backends import registry as registry
    from roundgate.backends.base import Backend as Backend
    from roundgate.backends.base import Offering as Offering
    from roundgate.backends.base import Prompt as Prompt
    from roundgate.backends.base import Resource as Resource
    from roundgate.backends.base import Returned as Returned
    from roundgate.backends.base import Tool as Tool
    from roundgate.backends.bounded import KeptTexts as KeptTexts
    from roundgate.backends.catalog import Catalog as Catalog
    from roundgate.backends.catalog import ServedTool as ServedTool
    from roundgate.backends.catalog import build as build
    from roundgate.backends.config import BackendConfig as BackendConfig
    from roundgate.backends.config import SearchConfig as SearchConfig
    from roundgate.backends.config import Selector as Selector
    from roundgate.backends.config import ToolOverride as ToolOverride
    from roundgate.backends.config import ViewConfig as ViewConfig
    from roundgate.backends.fallback import Fallback as Fallback
    from roundgate.backends.fallback import OwnTool as OwnTool
    from roundgate.backends.http.access import Access as Access
    from roundgate.backends.http.secrets import SECRET_NAME as SECRET_NAME
    from roundgate.backends.http.secrets import Redactor as Redactor
    from roundgate.backends.http.service import Service as Service
    from roundgate.backends.openapi.command import compiled as compiled
    from roundgate.backends.openapi.config import OpenApiBackendConfig as OpenApiBackendConfig
    from roundgate.backends.openapi.glance import server_of as server_of
    from roundgate.backends.openapi.index import Index as Index
    from roundgate.backends.openapi.index import write as write
    from roundgate.backends.openapi.requests import request as request
    from roundgate.backends.policy import decision_in as decision_in
    from roundgate.backends.policy import is_approval as is_approval
    from roundgate.backends.policy import log_decision as log_decision
    from roundgate.backends.python.modules import Modules as Modules
    from roundgate.backends.registry import kind_of as kind_of
    from roundgate.backends.serving import CatalogSource as CatalogSource
    from roundgate.backends.serving import Serving as Serving
    from roundgate.backends.serving import Snapshot as Snapshot
    from roundgate.backends.serving import ToolScopes as ToolScopes
    from roundgate.backends.serving import ViewSource as ViewSource
    from roundgate.backends.task_source import MAX_ID_CHARS as MAX_ID_CHARS
    from roundgate.backends.task_source import TaskSource as TaskSource
else:
    __getattr__, __all__ = face(
        __name__,
        {
            ".base": "Backend Offering Prompt Resource Returned Tool",
            ".bounded": "KeptTexts",
            ".catalog": "Catalog ServedTool build",
            ".config": "BackendConfig SearchConfig Selector ToolOverride ViewConfig",
            ".fallback": "Fallback OwnTool",
            ".http.access": "Access",
            ".http.secrets": "Redactor SECRET_NAME",
            ".http.service": "Service",
            ".openapi.command": "compiled",
            ".openapi.config": "OpenApiBackendConfig",
            ".openapi.glance": "server_of",
            ".openapi.index": "Index write",
            ".openapi.requests": "request",
            ".policy": "decision_in is_approval log_decision",
            ".python.modules": "Modules",
            ".registry": "kind_of",
            ".serving": "CatalogSource Serving Snapshot ToolScopes ViewSource",
            ".task_source": "MAX_ID_CHARS TaskSource",
        },
        modules="loading registry",
    )
