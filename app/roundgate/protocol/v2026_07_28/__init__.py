"""Revision 2026-07-28: the validation of its requests and headers, its results, and its errors.

`roundgate.protocol` has the parts that all revisions share (JSON-RPC, content, the shapes of tasks,
URI templates). The package's functions implement the port `protocol.revision.Revision`.
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
