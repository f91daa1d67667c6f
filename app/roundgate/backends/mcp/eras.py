"""Servers of both eras whose tools ask as servers before 2026-07-28 do.

`ctx.elicit` of the Python SDK 2.x and FastMCP 4, and `elicitInput` of the TypeScript SDK 2.x, send a
request to the client. Revision 2026-07-28 has no such requests, so these SDKs refuse to ask in its
calls, although they ask in sessions of older revisions. `server/discover` does not show this, and a
tool of the same server may ask in rounds, which only 2026-07-28 has. So the era belongs to the tool,
and the gateway finds it by the first call that could not ask:

    call 1   2026-07-28   the SDK's refusal ──▶ does the server open an older session? ──▶ tool error: call again
    call 2   a session of the caller, in which the server asks (`mcp.held`)

The gateway never repeats call 1, because the tool ran until it asked.
"""

from __future__ import annotations

import re
from typing import Final

_REFUSED: Final = re.compile(r"server-(?:initiated|to-client) requests", re.IGNORECASE)
"""Texts of the SDKs for a call of 2026-07-28 that sends a request to the client."""


def refuses_to_ask(text: str) -> bool:
    """Return whether the text of an error says that a tool cannot ask in a call of 2026-07-28."""
    return _REFUSED.search(text) is not None
