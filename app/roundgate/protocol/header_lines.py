"""The header fields of one request, as a mapping that is made once and read by every layer.

Headers.of([(b"host", b"a"), (b"accept", b"x"), (b"accept", b"y")])
    {b"host": b"a", b"accept": b"x, y"}, and `repeated` is (b"accept",)
"""

from __future__ import annotations

from collections.abc import Sequence


class Headers(dict[bytes, bytes]):
    """Values by lower-case name. Lines of one name are one list (RFC 9110, section 5.3): a client
    may say in two lines what it accepts."""

    repeated: Sequence[bytes] = ()
    """The names that came on several lines, in the order of their second ones: where a field has
    one value, two readers could take different lines for it."""

    @classmethod
    def of(cls, lines: Sequence[tuple[bytes, bytes]]) -> Headers:
        """From ASGI's pairs of lower-case name and value."""
        headers = cls(lines)
        if len(headers) < len(lines):
            headers._join(lines)
        return headers

    def _join(self, lines: Sequence[tuple[bytes, bytes]]) -> None:
        values: dict[bytes, list[bytes]] = {}
        repeated: dict[bytes, None] = {}
        for name, value in lines:
            if name in values:
                repeated[name] = None
            values.setdefault(name, []).append(value)
        self.update({name: b", ".join(values[name]) for name in repeated})
        self.repeated = tuple(repeated)
