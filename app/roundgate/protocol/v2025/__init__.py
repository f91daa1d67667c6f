"""The revisions with sessions: 2025-11-25, 2025-06-18 and 2025-03-26. What they alone have.

A client opens with `initialize`; from then on every request carries the id of its session. What
differs between the three is a table (`revisions`): which members a tool, a block or a question has.
The handlers behind it are the same as for any other revision.
"""

from roundgate.protocol.v2025.requests import Opening, inbound_of
from roundgate.protocol.v2025.results import Results
from roundgate.protocol.v2025.shapes import REVISIONS, VERSIONS, Revision, negotiated

__all__ = ["REVISIONS", "VERSIONS", "Opening", "Results", "Revision", "inbound_of", "negotiated"]
