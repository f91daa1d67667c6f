"""What the gateway says of itself: JSON for programs (`lines`), text for people
(`text`, `frames`, `colours`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roundgate.lazy import face

if TYPE_CHECKING:
    from roundgate.logs.colours import Style as Style
    from roundgate.logs.escaping import escaped as escaped
    from roundgate.logs.frames import innermost as innermost
    from roundgate.logs.frames import place_of as place_of
    from roundgate.logs.lines import JsonFormatter as JsonFormatter
    from roundgate.logs.lines import LogFormat as LogFormat
    from roundgate.logs.lines import RequestLog as RequestLog
    from roundgate.logs.lines import configure as configure
    from roundgate.logs.lines import flush as flush
else:
    __getattr__, __all__ = face(
        __name__,
        {
            ".colours": "Style",
            ".escaping": "escaped",
            ".frames": "innermost place_of",
            ".lines": "JsonFormatter LogFormat RequestLog configure flush",
        },
    )
