"""Revision 2026-07-28: what it alone has. Validating a request, its headers, its results, its
errors.

What all revisions share (JSON-RPC, content, the shapes of tasks, URI templates) is in
`roundgate.protocol`. Another revision is another package beside this one. Its functions are those
of the port `protocol.revision.Revision`.
"""

from roundgate.protocol.v2026_07_28.requests import (
    METHODS,
    PROTOCOL_VERSION,
    ParamHeader,
    mirrored_arguments,
    validate_request,
)
from roundgate.protocol.v2026_07_28.results import (
    Results,
    kept_error,
    kept_result,
    look_up,
    render,
    result_format,
)

__all__ = [
    "METHODS",
    "PROTOCOL_VERSION",
    "ParamHeader",
    "Results",
    "kept_error",
    "kept_result",
    "look_up",
    "mirrored_arguments",
    "render",
    "result_format",
    "validate_request",
]
