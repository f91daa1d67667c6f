"""Ways to authenticate: a bearer token, client credentials, a login in the browser, and
proofs of possession (DPoP).
"""

from __future__ import annotations

from roundgate.client.auth.base import Auth as Auth
from roundgate.client.auth.base import Bearer as Bearer
from roundgate.client.auth.base import Refusal as Refusal
from roundgate.client.auth.browser import BrowserLogin as BrowserLogin
from roundgate.client.auth.machine import ClientCredentials as ClientCredentials
from roundgate.client.auth.machine import EnterpriseIdentity as EnterpriseIdentity
from roundgate.client.auth.machine import WorkloadIdentity as WorkloadIdentity
from roundgate.client.auth.metadata import challenge_parameters as challenge_parameters
from roundgate.client.auth.storage import InMemory as InMemory
from roundgate.client.auth.storage import SystemKeyring as SystemKeyring
from roundgate.client.auth.storage import TokenStorage as TokenStorage
