"""Ways to authenticate: a bearer token, client credentials, a login in the browser, and proofs of possession (DPoP).

Names are imported when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roundgate.client.auth.base import Auth as Auth
    from roundgate.client.auth.base import Bearer as Bearer
    from roundgate.client.auth.base import Refusal as Refusal
    from roundgate.client.auth.browser import BrowserLogin as BrowserLogin
    from roundgate.client.auth.machine import ClientCredentials as ClientCredentials
    from roundgate.client.auth.machine import EnterpriseIdentity as EnterpriseIdentity
    from roundgate.client.auth.machine import WorkloadIdentity as WorkloadIdentity
    from roundgate.client.auth.storage import InMemory as InMemory
    from roundgate.client.auth.storage import SystemKeyring as SystemKeyring
    from roundgate.client.auth.storage import TokenStorage as TokenStorage

_HOMES = {
    "base": ("Auth", "Bearer", "Refusal"),
    "browser": ("BrowserLogin",),
    "machine": ("ClientCredentials", "EnterpriseIdentity", "WorkloadIdentity"),
    "storage": ("InMemory", "SystemKeyring", "TokenStorage"),
}
_HOME_OF = {name: f"roundgate.client.auth.{module}" for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'roundgate.client.auth' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value
