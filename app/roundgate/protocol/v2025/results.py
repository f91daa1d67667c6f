"""The results of these revisions, in their shapes and without cache hints.

These revisions have no result that asks for input. `Results.input_required` writes one for the
gateway itself, which asks the client on the stream of the call (`roundgate.http.older.calls`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from roundgate import json
from roundgate.protocol.revision import ResultFormat
from roundgate.protocol.v2025 import shapes
from roundgate.protocol.v2025.shapes import REVISIONS, OlderRevision


class Results:
    """The format of one revision's results."""

    def __init__(self, revision: OlderRevision) -> None:
        self._revision = revision

    def write(self, result: Mapping[str, Any], cache: object = None) -> bytes:
        """Return a result as JSON.

        Raises:
            TypeError, ValueError, RecursionError: a part of it is not JSON.
        """
        return json.encode(shapes.result(self._revision, result))

    def rest(self, cache: object = None) -> bytes:
        """Return the end of a result whose members are serialised already: the last brace."""
        return b"}"

    def entries(self, member: str, entries: bytes) -> bytes:
        """Return the serialised entries of a list in the form of the revision."""
        shape = shapes.ENTRIES[member]
        shaped = [shape(self._revision, entry) for entry in json.decode(b"[%b]" % entries)]
        return json.encode(shaped)[1:-1]

    def input_required(self, requests: Mapping[str, Any], request_state: str) -> bytes:
        """Return the questions by key, if any, and the state of the call, for `read_asked`."""
        return json.encode({"inputRequests": dict(requests), "requestState": request_state})


RESULT_FORMATS: Final[Mapping[str, ResultFormat]] = MappingProxyType(
    {version: Results(revision) for version, revision in REVISIONS.items()}
)
"""The format of results in each revision with sessions, newest first."""


def read_asked(result: bytes) -> tuple[dict[str, Any], str]:
    """Return the questions by key and the state that `Results.input_required` wrote."""
    decoded = json.decode(result)
    return decoded["inputRequests"], decoded["requestState"]
