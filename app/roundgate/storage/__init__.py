"""What is kept between requests, where anything is.

The ports are in `once`, `tasks` and `queue`; `sqlite`, `dynamodb` and `sqs` keep their
promises. Who builds a store imports it from the face of its own package, so that nobody loads a
store that is not configured.
"""

from __future__ import annotations

from roundgate.storage.once import OnceRecord as OnceRecord
from roundgate.storage.once import OnceStore as OnceStore
from roundgate.storage.queue import Message as Message
from roundgate.storage.queue import TaskQueue as TaskQueue
from roundgate.storage.sessions import SessionRow as SessionRow
from roundgate.storage.sessions import SessionStore as SessionStore
from roundgate.storage.tasks import NOTHING as NOTHING
from roundgate.storage.tasks import Added as Added
from roundgate.storage.tasks import Answered as Answered
from roundgate.storage.tasks import Cancelled as Cancelled
from roundgate.storage.tasks import Claimed as Claimed
from roundgate.storage.tasks import Ending as Ending
from roundgate.storage.tasks import Found as Found
from roundgate.storage.tasks import Lease as Lease
from roundgate.storage.tasks import Move as Move
from roundgate.storage.tasks import NewTask as NewTask
from roundgate.storage.tasks import NotClaimed as NotClaimed
from roundgate.storage.tasks import OpenTask as OpenTask
from roundgate.storage.tasks import Postponed as Postponed
from roundgate.storage.tasks import TaskRecord as TaskRecord
from roundgate.storage.tasks import TaskRef as TaskRef
from roundgate.storage.tasks import TaskStore as TaskStore
from roundgate.storage.tasks import Wanted as Wanted
from roundgate.storage.tasks import Work as Work
