"""Helpers for asyncio: threads, and work that concurrent callers share."""

from __future__ import annotations

from roundgate.aio.threads import FUNCTIONS as FUNCTIONS
from roundgate.aio.threads import ROOM as ROOM
from roundgate.aio.threads import Flight as Flight
from roundgate.aio.threads import Room as Room
from roundgate.aio.threads import RunningFunctions as RunningFunctions
from roundgate.aio.threads import Threads as Threads
from roundgate.aio.threads import after_functions as after_functions
from roundgate.aio.threads import all_ended as all_ended
from roundgate.aio.threads import crowded_room as crowded_room
from roundgate.aio.threads import in_thread as in_thread
from roundgate.aio.threads import run_with_room as run_with_room
from roundgate.aio.threads import to_its_end as to_its_end
from roundgate.aio.watch import TaskWatch as TaskWatch
from roundgate.aio.watch import Until as Until
from roundgate.aio.watch import in_own_context as in_own_context
from roundgate.aio.watch import is_draining as is_draining
