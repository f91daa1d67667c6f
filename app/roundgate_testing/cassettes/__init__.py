"""Recordings of conversations with MCP servers, and the replay of either side.

    from roundgate_testing.cassettes import Player, Recorder

    async with Client(url, transport=Recorder("refund.yaml", url)) as client: ...  # records
    async with Client(url, transport=Player("refund.yaml")) as client: ...  # needs no server

Names that this package does not export may change with any release.
"""

from __future__ import annotations

from roundgate_testing.cassettes.files import SCHEMA as SCHEMA
from roundgate_testing.cassettes.files import read as read
from roundgate_testing.cassettes.files import write as write
from roundgate_testing.cassettes.matching import Difference as Difference
from roundgate_testing.cassettes.matching import check_paths as check_paths
from roundgate_testing.cassettes.model import RULES as RULES
from roundgate_testing.cassettes.model import Cassette as Cassette
from roundgate_testing.cassettes.model import Rule as Rule
from roundgate_testing.cassettes.recorder import Proxy as Proxy
from roundgate_testing.cassettes.recorder import Recorder as Recorder
from roundgate_testing.cassettes.standin import Player as Player
from roundgate_testing.cassettes.standin import StandIn as StandIn
from roundgate_testing.cassettes.verify import CassetteVerifier as CassetteVerifier
from roundgate_testing.cassettes.verify import Outcome as Outcome
from roundgate_testing.cassettes.verify import secret_names as secret_names
from roundgate_testing.cassettes.web import IncomingRequest as IncomingRequest
from roundgate_testing.cassettes.web import WebReply as WebReply
from roundgate_testing.cassettes.web import address as address
from roundgate_testing.cassettes.web import serving as serving
