"""Helpers for asyncio: timers, threads, and work that concurrent callers share."""

from __future__ import annotations

from roundgate.aio import timers as timers
from roundgate.aio.threads import Threads as Threads
from roundgate.aio.threads import in_thread as in_thread
from roundgate.aio.timers import Limit as Limit
from roundgate.aio.timers import of_this_loop as of_this_loop
from roundgate.aio.waiting import Flight as Flight
from roundgate.aio.waiting import all_ended as all_ended
from roundgate.aio.waiting import to_its_end as to_its_end
