"""State that leaves the house: sealed so that only its owner can bring it back, for
the request it belongs to.

Knows neither MCP methods nor handlers; what is sealed is bytes.
"""

from __future__ import annotations

from roundgate.tokens import keys as keys
from roundgate.tokens.ids import TaskIds as TaskIds
from roundgate.tokens.ids import TaskPlace as TaskPlace
from roundgate.tokens.request_state import Binding as Binding
from roundgate.tokens.request_state import FixedTask as FixedTask
from roundgate.tokens.request_state import Opened as Opened
from roundgate.tokens.request_state import StateSealer as StateSealer
from roundgate.tokens.sealed import Key as Key
from roundgate.tokens.sealed import KeyRing as KeyRing
