"""Sealed tokens: state that travels outside the gateway and that only its owner can return, for the
request to which it belongs.

This package seals bytes and depends on neither MCP methods nor handlers.
"""

from __future__ import annotations

from roundgate.tokens import keys as keys
from roundgate.tokens.ids import BearerTokens as BearerTokens
from roundgate.tokens.ids import EventPlace as EventPlace
from roundgate.tokens.ids import EventTokens as EventTokens
from roundgate.tokens.ids import TaskIds as TaskIds
from roundgate.tokens.ids import TaskPlace as TaskPlace
from roundgate.tokens.sealed import Binding as Binding
from roundgate.tokens.sealed import FixedTask as FixedTask
from roundgate.tokens.sealed import Key as Key
from roundgate.tokens.sealed import KeyRing as KeyRing
from roundgate.tokens.sealed import OpenedState as OpenedState
from roundgate.tokens.sealed import StateSealer as StateSealer
