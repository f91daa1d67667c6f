"""From a valid request to its result: one module for each group of methods,
and one table of them all.

    table          method → who serves it, its params, what the client must have declared
    extensions     the table of extensions; `parts` says what one is, `tasks` and `search` are two
    discovery, tools, prompts_and_resources, subscriptions        the groups of the protocol
    scopes, results                                               what several groups use
    rounds, once   a call over several requests; a round that happens once
    hub, changes   the open streams of this process, and what other replicas tell

Knows the catalog and the engine; knows nothing of HTTP and of sockets, and not which
revision the client speaks.
"""

from __future__ import annotations

from roundgate.methods.changes import Changes as Changes
from roundgate.methods.discovery import capabilities as capabilities
from roundgate.methods.discovery import server_info as server_info
from roundgate.methods.extensions import ROUTES as ROUTES
from roundgate.methods.hub import Hub as Hub
from roundgate.methods.hub import Subscription as Subscription
from roundgate.methods.once import Once as Once
from roundgate.methods.once import kept_error as kept_error
from roundgate.methods.once import kept_reply as kept_reply
from roundgate.methods.once import reply_of as reply_of
from roundgate.methods.parts import Parts as Parts
from roundgate.methods.results import Reply as Reply
from roundgate.methods.results import Stream as Stream
from roundgate.methods.rounds import RequestContext as RequestContext
from roundgate.methods.rounds import Rounds as Rounds
from roundgate.methods.table import CurrentMethods as CurrentMethods
from roundgate.methods.table import Methods as Methods
from roundgate.methods.table import Use as Use
from roundgate.methods.tasks import makes_tasks as makes_tasks
