"""The revisions with sessions: 2025-11-25, 2025-06-18 and 2025-03-26.

A client opens a session with `initialize`; from then on every request carries the session's id. The
three revisions differ in the members of a tool, a block or a question, which a table lists
(`REVISIONS`). Their handlers are the same as for any other revision.
"""

from roundgate.protocol.v2025.requests import SessionOpening, make_inbound
from roundgate.protocol.v2025.results import Results
from roundgate.protocol.v2025.shapes import REVISIONS, VERSIONS, OlderRevision, negotiated

__all__ = [
    "REVISIONS",
    "VERSIONS",
    "OlderRevision",
    "Results",
    "SessionOpening",
    "make_inbound",
    "negotiated",
]
