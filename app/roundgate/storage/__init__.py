"""The ports of storage, for data that outlives a request.

The ports are in `ports` and `tasks`; `sqlite`, `postgres`, `dynamodb` and `sqs`
implement them. Import an implementation from its own package, so that only configured stores are
loaded.
"""

from __future__ import annotations

from roundgate.storage.accounts import Accounts as Accounts
from roundgate.storage.accounts import RowsOf as RowsOf
from roundgate.storage.ports import Message as Message
from roundgate.storage.ports import OnceRecord as OnceRecord
from roundgate.storage.ports import OnceStore as OnceStore
from roundgate.storage.ports import SessionRow as SessionRow
from roundgate.storage.ports import SessionStore as SessionStore
from roundgate.storage.ports import TaskQueue as TaskQueue
from roundgate.storage.ports import write_row as write_row
from roundgate.storage.tasks import ANY as ANY
from roundgate.storage.tasks import ENDING_OF as ENDING_OF
from roundgate.storage.tasks import HIDDEN as HIDDEN
from roundgate.storage.tasks import Drop as Drop
from roundgate.storage.tasks import Ending as Ending
from roundgate.storage.tasks import Found as Found
from roundgate.storage.tasks import Lost as Lost
from roundgate.storage.tasks import Mark as Mark
from roundgate.storage.tasks import OpenTask as OpenTask
from roundgate.storage.tasks import Put as Put
from roundgate.storage.tasks import RecordChange as RecordChange
from roundgate.storage.tasks import RecordPart as RecordPart
from roundgate.storage.tasks import TaskRecord as TaskRecord
from roundgate.storage.tasks import TaskRef as TaskRef
from roundgate.storage.tasks import TaskStore as TaskStore
from roundgate.storage.tasks import Wanted as Wanted
from roundgate.storage.tasks import Work as Work
