"""Authentication: a bearer token, client credentials, a login in the browser, and proofs of
possession (DPoP)."""

from __future__ import annotations

from roundgate.client.auth.base import Auth as Auth
from roundgate.client.auth.base import AuthRefusal as AuthRefusal
from roundgate.client.auth.base import Bearer as Bearer
from roundgate.client.auth.base import InMemory as InMemory
from roundgate.client.auth.base import SystemKeyring as SystemKeyring
from roundgate.client.auth.base import TokenStorage as TokenStorage
from roundgate.client.auth.base import challenge_parameters as challenge_parameters
from roundgate.client.auth.grants import BrowserLogin as BrowserLogin
from roundgate.client.auth.grants import ClientCredentials as ClientCredentials
from roundgate.client.auth.grants import EnterpriseIdentity as EnterpriseIdentity
from roundgate.client.auth.grants import WorkloadIdentity as WorkloadIdentity
