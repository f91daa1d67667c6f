"""Helpers for asyncio: threads, and work that concurrent callers share."""

from __future__ import annotations

from roundgate.aio.threads import Threads as Threads
from roundgate.aio.threads import in_thread as in_thread
from roundgate.aio.waiting import Flight as Flight
from roundgate.aio.waiting import all_ended as all_ended
from roundgate.aio.waiting import to_its_end as to_its_end
