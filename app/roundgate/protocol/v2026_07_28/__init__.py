"""Revision 2026-07-28: what it alone has. Validating a request, its headers, its results, its errors.

What all revisions share (JSON-RPC, content, the shapes of tasks, URI templates) is in `roundgate.protocol`. Another
revision is another package beside this one.
"""

from roundgate.protocol.v2026_07_28.headers import ParamHeader
from roundgate.protocol.v2026_07_28.methods import METHODS, PROTOCOL_VERSION
from roundgate.protocol.v2026_07_28.results import Results
from roundgate.protocol.v2026_07_28.validation import validate_request

__all__ = ["METHODS", "PROTOCOL_VERSION", "ParamHeader", "Results", "validate_request"]
