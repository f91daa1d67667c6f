"""`requestState`: the journal of a call on its way through the client
(basic/patterns/mrtr, "Server Requirements").

The token contains claims that tie it to one call: its issue and expiry times, the method, the name
or URI, a digest of the arguments, the round, and an id. The gateway compares all of them when the
token returns. Every refusal has the same text; the log has the reason, once per caller and minute.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from roundgate import json
from roundgate.auth import Principal
from roundgate.clock import Clock
from roundgate.errors import ParseError, StateRefused, StateTooLarge
from roundgate.json import digest
from roundgate.tokens.sealed import KeyRing, Refusals, SealBroken, check_dates


class Binding(Struct, frozen=True):
    """The call that a token is bound to: its method, its name or URI, and the digest of its
    arguments."""

    method: str
    target: str
    arguments: str

    @classmethod
    def of(cls, method: str, target: str, arguments: Mapping[str, Any]) -> Binding:
        """Return the binding of a call, independent of the order of the arguments and the spelling
        of numbers (1.0 or 1)."""
        return cls(method, target, digest(arguments))


class FixedTask(Struct, frozen=True, array_like=True):
    """The task that a call must become, because the client sent a key or the task's write is in
    doubt."""

    task_id: str
    ended: Any = None
    """The outcome of the call as JSON, if the call ended but its row could not be written."""


class OpenedState(Struct, frozen=True):
    """The contents of a valid token: its id, the round that it ended (counted from 1), the trace
    context in which the call began, and the journal as JSON."""

    id: str
    round: int
    origin: Mapping[str, str]
    payload: Any
    fixed_task: FixedTask | None = None
    call_id: str | None = None
    """The id of the call in the log."""


class _Claims(Struct, frozen=True, array_like=True):
    """The claims of a token. Earlier versions sealed neither `fixed_task` nor `call_id`."""

    issued_ms: int
    expires_ms: int
    method: str
    target: str
    arguments: str
    round: int
    id: str
    origin: Mapping[str, str]
    payload: Any
    fixed_task: FixedTask | None = None
    call_id: str | None = None


class StateSealer(Struct, frozen=True):
    """The sealer of `requestState`."""

    ring: KeyRing
    clock: Clock
    lifetime_s: float = 900
    max_bytes: int = 64_000
    leeway_s: float = field(default=5)
    """The allowed difference between the clocks of two replicas, in seconds."""
    refusals: Refusals = field(default_factory=Refusals)

    def seal(
        self,
        payload: Any,
        owner: Principal,
        binding: Binding,
        *,
        round_: int,
        origin: Mapping[str, str],
        fixed_task: FixedTask | None = None,
        call_id: str | None = None,
    ) -> str:
        """Return a token for the end of a round.

        Args:
            payload: the journal as JSON.
            owner: the only caller that can use the token.
            binding: the call that the token is bound to.
            round_: the number of the round that ends, counted from 1.
            origin: the trace context in which the call began.
            fixed_task: the task that the call must become, if any.
            call_id: the id of the call in the log.

        Raises:
            StateTooLarge: payload and claims together exceed `max_bytes`.
        """
        now_ms = self.clock.now_ms()
        claims = [
            now_ms,
            now_ms + int(self.lifetime_s * 1000),
            binding.method,
            binding.target,
            binding.arguments,
            round_,
            self.clock.new_id(),
            dict(origin),
            payload,
            None if fixed_task is None else [fixed_task.task_id, fixed_task.ended],
            call_id,
        ]
        plaintext = json.encode(claims)
        if len(plaintext) > self.max_bytes:
            raise StateTooLarge(f"{len(plaintext)} bytes, above the limit of {self.max_bytes}")
        return self.ring.seal(plaintext, owner)

    def open(self, token: Any, owner: Principal, binding: Binding) -> OpenedState:
        """Return the contents of a token.

        Raises:
            StateRefused: the token is not valid for this call. The text is always the same.
        """
        try:
            return self._open(token, owner, binding)
        except SealBroken as error:
            raise self.refused(str(error), owner) from None

    def refused(self, reason: str, owner: Principal) -> StateRefused:
        """Log the reason of a refusal, and return the error to raise."""
        self.refusals.note(reason, owner, self.clock.monotonic_ms())
        return StateRefused()

    def _open(self, token: Any, owner: Principal, binding: Binding) -> OpenedState:
        # base64 makes 4 characters of 3 bytes: the gateway's own tokens are never longer
        if not isinstance(token, str) or len(token) > self.max_bytes * 2:
            raise SealBroken("not a string, or too long")
        try:
            claims = msgspec.convert(json.decode(self.ring.open(token, owner)), _Claims)
        except (ParseError, msgspec.ValidationError):
            raise SealBroken("sealed by an incompatible version") from None
        check_dates(claims.issued_ms, claims.expires_ms, self.clock.now_ms(), self.leeway_s)
        if Binding(claims.method, claims.target, claims.arguments) != binding:
            raise SealBroken("for another method, target or arguments")
        opened = (claims.id, claims.round, claims.origin, claims.payload)
        return OpenedState(*opened, claims.fixed_task, claims.call_id)
