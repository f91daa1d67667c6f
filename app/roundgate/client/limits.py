"""How much a server may make the client hold, wait and ask. Each bound ends in
an error that names it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one client; sizes in bytes (of a state: characters), times in seconds.

    `idle_s` is how long a request may wait for the whole head of its answer, and then for anything to
    arrive, `request_s` how long it may take in all. Neither counts the time in which a person thinks about a question.
    `keep_alive_s` is for how long a connection without a request is used again: less than common
    servers keep it (5 s), which would close it as the request is sent.
    """

    connect_s: float = 10.0
    idle_s: float = 60.0
    keep_alive_s: float = 4.0
    request_s: float = 600.0
    max_message: int = 32 * 1024 * 1024
    max_state: int = 1024 * 1024
    max_rounds: int = 10
    max_questions: int = 100
    max_pages: int = 1_000
    max_items: int = 100_000
    max_connections: int = 256
    max_cached: int = 256
    max_poll_s: float = 60.0
