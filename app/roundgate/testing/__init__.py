"""What a test of one's tools needs: a gateway in its process, crashes, a clock, a
context without a gateway."""

from __future__ import annotations

from roundgate.errors import Diverged as Diverged
from roundgate.errors import NothingGoesOn as NothingGoesOn
from roundgate.testing.clock import VirtualClock as VirtualClock
from roundgate.testing.contexts import fake_context as fake_context
from roundgate.testing.gateway import Gateway as Gateway
