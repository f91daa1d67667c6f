"""Authentication of callers. Depends on no MCP methods, tools or HTTP frameworks."""

from __future__ import annotations

from roundgate.auth.principal import LOCAL as LOCAL
from roundgate.auth.principal import LocalVerifier as LocalVerifier
from roundgate.auth.principal import Principal as Principal
from roundgate.auth.principal import Verifier as Verifier
from roundgate.auth.principal import task_owner as task_owner
