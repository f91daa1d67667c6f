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
from roundgate.methods.hub import Hub as Hub
from roundgate.methods.hub import Subscription as Subscription
