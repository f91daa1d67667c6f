"""The engine that runs every tool, prompt and resource function.

The engine does not depend on tokens, tables or HTTP.
"""

from __future__ import annotations

from roundgate.replay import engine as engine
from roundgate.replay.asking import ExternalEvent as ExternalEvent
from roundgate.replay.branches import Branch as Branch
from roundgate.replay.branches import Parked as Parked
from roundgate.replay.branches import here as here
from roundgate.replay.branches import inside as inside
from roundgate.replay.context import MAX_STATUS_CHARS as MAX_STATUS_CHARS
from roundgate.replay.context import AnyContext as AnyContext
from roundgate.replay.context import Context as Context
from roundgate.replay.context import call_of as call_of
from roundgate.replay.context import run_of as run_of
from roundgate.replay.engine import Completed as Completed
from roundgate.replay.engine import Failed as Failed
from roundgate.replay.engine import Restarted as Restarted
from roundgate.replay.engine import Suspended as Suspended
from roundgate.replay.engine import number_tasks as number_tasks
from roundgate.replay.journal import DELIVERED as DELIVERED
from roundgate.replay.journal import JOURNAL_VERSION as JOURNAL_VERSION
from roundgate.replay.journal import MAX_DEPTH as MAX_DEPTH
from roundgate.replay.journal import MISSED as MISSED
from roundgate.replay.journal import NOT_JSON as NOT_JSON
from roundgate.replay.journal import TIMED_OUT as TIMED_OUT
from roundgate.replay.journal import VERSION as VERSION
from roundgate.replay.journal import Answered as Answered
from roundgate.replay.journal import Asked as Asked
from roundgate.replay.journal import Began as Began
from roundgate.replay.journal import Cut as Cut
from roundgate.replay.journal import Entry as Entry
from roundgate.replay.journal import Finished as Finished
from roundgate.replay.journal import Journal as Journal
from roundgate.replay.journal import Opened as Opened
from roundgate.replay.journal import Raised as Raised
from roundgate.replay.journal import Remembered as Remembered
from roundgate.replay.journal import Slept as Slept
from roundgate.replay.journal import TimedOutQuestion as TimedOutQuestion
from roundgate.replay.journal import Told as Told
from roundgate.replay.journal import Tried as Tried
from roundgate.replay.journal import before_failure as before_failure
from roundgate.replay.journal import before_step as before_step
from roundgate.replay.journal import find_failed_steps as find_failed_steps
from roundgate.replay.journal import from_row as from_row
from roundgate.replay.journal import plain as plain
from roundgate.replay.journal import row as row
from roundgate.replay.questions import Form as Form
from roundgate.replay.questions import Raw as Raw
from roundgate.replay.questions import Url as Url
from roundgate.replay.questions import form_schema as form_schema
from roundgate.replay.questions import required_capability as required_capability
from roundgate.replay.recording import WATCH as WATCH
from roundgate.replay.recording import StepWatch as StepWatch
from roundgate.replay.run import HOLD_MS as HOLD_MS
from roundgate.replay.run import NAME as NAME
from roundgate.replay.run import Authorize as Authorize
from roundgate.replay.run import Call as Call
from roundgate.replay.run import Cleanup as Cleanup
from roundgate.replay.run import ExternalEvents as ExternalEvents
from roundgate.replay.run import HiddenRound as HiddenRound
from roundgate.replay.run import HiddenRounds as HiddenRounds
from roundgate.replay.run import LongTexts as LongTexts
from roundgate.replay.run import Notify as Notify
from roundgate.replay.run import NotSent as NotSent
from roundgate.replay.run import PageDone as PageDone
from roundgate.replay.run import Publish as Publish
from roundgate.replay.run import Read as Read
from roundgate.replay.run import Run as Run
from roundgate.replay.run import Stop as Stop
from roundgate.replay.run import TextPart as TextPart
from roundgate.replay.sync_context import SyncContext as SyncContext
from roundgate.replay.values import digest_of_value as digest_of_value
