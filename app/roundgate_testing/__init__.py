"""Tools for testing handlers: a gateway in the test's process, crash tests, a clock, and a context
without a gateway."""

from __future__ import annotations

from roundgate.errors import Diverged as Diverged
from roundgate.errors import HistoriesDiverged as HistoriesDiverged
from roundgate.errors import NothingGoesOn as NothingGoesOn
from roundgate_testing.contexts import fake_context as fake_context
from roundgate_testing.gateway import Gateway as Gateway
from roundgate_testing.instances import VirtualClock as VirtualClock
