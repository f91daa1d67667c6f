"""What several packages need of asyncio: timers, threads, and work that is done once for many."""

from __future__ import annotations

from roundgate.aio import timers as timers
from roundgate.aio.flight import Flight as Flight
from roundgate.aio.threads import Threads as Threads
from roundgate.aio.threads import in_thread as in_thread
from roundgate.aio.timers import Limit as Limit
from roundgate.aio.timers import of_this_loop as of_this_loop
