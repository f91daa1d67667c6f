"""From a valid request to its result: one table of all methods, and one module for each group.

Knows the catalog and the engine; knows neither HTTP nor the revision of the client.
"""

from __future__ import annotations

from roundgate.methods.changes import Changes as Changes
from roundgate.methods.changes import Hub as Hub
from roundgate.methods.changes import Subscription as Subscription
