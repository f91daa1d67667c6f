"""Recordings of conversations with MCP servers, and the replay of either side.

    from roundgate.cassettes import Player, Recorder

    async with Client(url, transport=Recorder("refund.yaml", url)) as client: ...  # records
    async with Client(url, transport=Player("refund.yaml")) as client: ...  # needs no server

Names that this package does not export may change with any release.
"""

from __future__ import annotations

from roundgate.cassettes.files import SCHEMA as SCHEMA
from roundgate.cassettes.files import read as read
from roundgate.cassettes.files import write as write
from roundgate.cassettes.matching import Difference as Difference
from roundgate.cassettes.matching import check_paths as check_paths
from roundgate.cassettes.model import RULES as RULES
from roundgate.cassettes.model import Cassette as Cassette
from roundgate.cassettes.model import Rule as Rule
from roundgate.cassettes.recorder import Proxy as Proxy
from roundgate.cassettes.recorder import Recorder as Recorder
from roundgate.cassettes.standin import Player as Player
from roundgate.cassettes.standin import StandIn as StandIn
from roundgate.cassettes.verify import Outcome as Outcome
from roundgate.cassettes.verify import Verifier as Verifier
from roundgate.cassettes.verify import secret_names as secret_names
from roundgate.cassettes.web import IncomingRequest as IncomingRequest
from roundgate.cassettes.web import Reply as Reply
from roundgate.cassettes.web import address as address
from roundgate.cassettes.web import serving as serving
