"""The back ends: the sources of tools, prompts and resources, with a module or package for each
kind."""

from __future__ import annotations

from roundgate.backends import registry as registry
from roundgate.backends.approvals import decision_in as decision_in
from roundgate.backends.approvals import is_approval as is_approval
from roundgate.backends.approvals import log_decision as log_decision
from roundgate.backends.base import Backend as Backend
from roundgate.backends.base import DirectCall as DirectCall
from roundgate.backends.base import Offering as Offering
from roundgate.backends.base import Prompt as Prompt
from roundgate.backends.base import Resource as Resource
from roundgate.backends.base import Returned as Returned
from roundgate.backends.base import Tool as Tool
from roundgate.backends.bounded import KeptTexts as KeptTexts
from roundgate.backends.catalog import Catalog as Catalog
from roundgate.backends.catalog import ServedTool as ServedTool
from roundgate.backends.config import BackendConfig as BackendConfig
from roundgate.backends.config import SearchConfig as SearchConfig
from roundgate.backends.config import ViewConfig as ViewConfig
from roundgate.backends.fallback import Fallback as Fallback
from roundgate.backends.fallback import OwnTool as OwnTool
from roundgate.backends.registry import kind_of as kind_of
from roundgate.backends.service_tasks import MAX_ID_CHARS as MAX_ID_CHARS
from roundgate.backends.service_tasks import TaskSource as TaskSource
from roundgate.backends.serving import CatalogSource as CatalogSource
from roundgate.backends.serving import Serving as Serving
from roundgate.backends.serving import Snapshot as Snapshot
from roundgate.backends.serving import ToolScopes as ToolScopes
from roundgate.backends.serving import ViewSource as ViewSource
