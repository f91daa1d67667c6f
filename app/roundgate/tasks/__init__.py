"""Calls that outlive their request: created and watched for their owner, run by workers, stored in
a store.

The engine has one journal with two homes: between rounds the journal travels with the client
(`methods.rounds`), in a task it is rows in a store (`tasks.turn`). This package depends on the
catalog, the engine and the ports of storage, but not on HTTP.
"""

from __future__ import annotations

from roundgate.tasks.call import Life as Life
from roundgate.tasks.call import TaskCall as TaskCall
from roundgate.tasks.outcome import Ended as Ended
from roundgate.tasks.outcome import call_outcome as call_outcome
from roundgate.tasks.outcome import ended as ended
from roundgate.tasks.outcome import failure_reason as failure_reason
from roundgate.tasks.outcome import log_failure as log_failure
from roundgate.tasks.outcome import refusal_reason as refusal_reason
from roundgate.tasks.outcome import said_by as said_by
from roundgate.tasks.outcome import tell_refused as tell_refused
from roundgate.tasks.outcome import tool_result as tool_result
from roundgate.tasks.service import NamedTask as NamedTask
from roundgate.tasks.service import NamedTasks as NamedTasks
from roundgate.tasks.service import Tasks as Tasks
from roundgate.tasks.watch import Watch as Watch
