"""The methods of the protocol, from a valid request to its result: one table of all methods, and
one module for each group.

The package depends on the catalog and the engine, not on HTTP or the client's revision.
"""

from __future__ import annotations

from roundgate.methods.changes import Changes as Changes
from roundgate.methods.changes import Hub as Hub
from roundgate.methods.changes import OpenSubscription as OpenSubscription
