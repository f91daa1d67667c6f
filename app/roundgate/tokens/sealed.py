"""Authenticated encryption under a ring of keys, for one subject at a time (`KeyRing`), and the
`requestState` that it seals (`StateSealer`): the journal of a call on its way through the client
(basic/patterns/mrtr, "Server Requirements").

    token  = "v1." key-id "." base64url(nonce ‖ AES-256-GCM(plaintext))
    key    = HKDF-SHA256(ring key, info = "mcp-gateway/v1" ‖ issuer ‖ subject ‖ client)     RFC 5869
    bound  = version ‖ key-id ‖ audience ‖ view (if any), as associated data

The key is derived for the caller, so a token of one caller cannot be opened for another, even if
the calling code forgets to compare them. No derived key comes near the 2³² messages that random
nonces allow (NIST SP 800-38D section 8.3). Nothing is compressed, because the length of a
compressed token would reveal information about its content.

A `requestState` contains claims that tie it to one call: its issue and expiry times, the method, the
name or URI, a digest of the arguments, the round, and an id. The gateway compares all of them when
the token returns. Every refusal has the same text; the log has the reason, once per caller and
minute.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import logging
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from roundgate import json
from roundgate.auth import Principal
from roundgate.clock import Clock
from roundgate.errors import Inside, ParseError, StateRefused, StateTooLarge, Unavailable
from roundgate.json import digest
from roundgate.observability.metrics import count_seal_refused

if TYPE_CHECKING:
    # imported when the first state is sealed or opened, which makes other cold starts 30 ms faster
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM


VERSION: Final = "v1"
KEY_BYTES: Final = 32
_INFO: Final = "mcp-gateway/v1"
_KEY_ID: Final = b"mcp-gateway key id"
"""Labels with an earlier name of the project. Changing them would invalidate all tokens."""
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16


class SealBroken(Inside):
    """A token cannot be opened. The reason is for the log and is never sent to the caller."""


class Key(Struct, frozen=True):
    """One key of the ring: 256 bits, and an id derived from them that reveals nothing about
    them."""

    secret: bytes
    id: str = ""

    def __post_init__(self) -> None:
        if len(self.secret) != KEY_BYTES:
            raise ValueError(
                f"a state key has {KEY_BYTES} bytes, not {len(self.secret)}; make one: roundgate keys new"
            )
        digest = hashlib.sha256(_KEY_ID + self.secret).digest()
        force_setattr(self, "id", _encode(digest[:6]))

    def __repr__(self) -> str:
        return f"Key(id={self.id!r})"


class KeyRing(Struct, frozen=True):
    """Keys in order: the first key seals, all keys open.

    `audience` separates deployments that share keys, `view` the endpoints of one gateway. A token
    sealed for one audience or view cannot be opened for another."""

    keys: Sequence[Key]
    audience: str = "roundgate"
    view: str = ""
    """The name of a view; empty for the endpoint of all tools."""

    def __post_init__(self) -> None:
        # do not test other sequences: `keys.Refreshed` reads its keys on first use
        if isinstance(self.keys, (list, tuple)) and not self.keys:
            raise ValueError("a key ring needs at least one key; make one: roundgate keys new")

    def seal(self, plaintext: bytes, owner: Principal) -> str:
        """Return a token that only `owner` can open."""
        key, nonce = self.keys[0], os.urandom(_NONCE_BYTES)
        sealed = _cipher(key.secret, owner).encrypt(nonce, plaintext, self._bound(key.id))
        return f"{VERSION}.{key.id}.{_encode(nonce + sealed)}"

    def open(self, token: str, owner: Principal) -> bytes:
        """Return the sealed bytes.

        Raises:
            SealBroken: the token is malformed, altered or another caller's, or its key was removed.
        """
        from cryptography.exceptions import InvalidTag

        version, _, rest = token.partition(".")
        key_id, _, text = rest.partition(".")
        key = next((key for key in self.keys if key.id == key_id), None)
        if version != VERSION or key is None:
            count_seal_refused("unknown")
            raise SealBroken("unknown version or key")
        sealed = _decode(text)
        if len(sealed) < _NONCE_BYTES + _TAG_BYTES:
            raise SealBroken("too short")
        try:
            cipher = _cipher(key.secret, owner)
            return cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], self._bound(key.id))
        except InvalidTag:
            count_seal_refused(key.id)
            raise SealBroken(
                "changed in transit, or sealed for another caller or audience"
            ) from None

    def ids(self) -> list[str] | None:
        """Return the ids of the keys, the one that seals first; `None` if they cannot be read."""
        try:
            return [key.id for key in self.keys]
        except Unavailable:
            return None

    def of_view(self, view: str) -> KeyRing:
        """Return a ring with the same keys for one view."""
        return replace(self, view=view)

    def _bound(self, key_id: str) -> bytes:
        parts = (VERSION, key_id, self.audience)
        return _joined(*parts, self.view) if self.view else _joined(*parts)


def check_dates(issued_ms: int, expires_ms: int, now_ms: int, leeway_s: float) -> None:
    """Raise SealBroken if a token has expired, or was sealed later than now. `leeway_s` is the allowed
    difference between the clocks of two replicas, in seconds."""
    if now_ms - expires_ms > leeway_s * 1000:
        raise SealBroken("expired")
    if issued_ms - now_ms > leeway_s * 1000:
        raise SealBroken("not yet valid: the clock of the replica that sealed it is ahead")


@lru_cache(maxsize=1024)
def _cipher(secret: bytes, owner: Principal) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = _joined(_INFO, owner.issuer, owner.subject, owner.client_id)
    return AESGCM(HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(secret))


def _joined(*parts: str) -> bytes:
    """Join parts, each after its length, so that different lists of parts make different bytes."""
    encoded = [part.encode() for part in parts]
    return b"".join(len(part).to_bytes(4, "big") + part for part in encoded)


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decode(text: str) -> bytes:
    """Decode base64url strictly, accepting only the canonical spelling.

    Raises:
        SealBroken: the text is not canonical base64url.
    """
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise SealBroken("not base64url") from None
    if _encode(data) != text:
        raise SealBroken("not canonical base64url")
    return data


EVERY_MS: Final = 60_000
MAX_CALLERS: Final = 1_000
"""The limit on the callers in `Refusals`. Beyond it, the caller logged longest ago is dropped."""

log = logging.getLogger("roundgate.tokens")


class _Told(Struct):
    at_ms: float
    untold: int = 0


class Refusals:
    """A limiter of log lines about refusals, per caller. `of_sessions` is True for session ids,
    False for states."""

    def __init__(self, *, of_sessions: bool = False) -> None:
        self._of_sessions = of_sessions
        self._told: OrderedDict[str, _Told] = OrderedDict()

    def note(self, reason: str, owner: Principal, at_ms: float) -> None:
        """Log a refusal, unless a refusal of this caller was logged within `EVERY_MS`. `at_ms` is
        on the clock's monotonic scale, in milliseconds."""
        caller = digest([owner.issuer, owner.subject, owner.client_id])
        before = self._told.get(caller)
        if before is not None and at_ms - before.at_ms < EVERY_MS:
            before.untold += 1
            return
        untold = {} if before is None else {"refused_since_then": before.untold}
        self._told[caller] = _Told(at_ms)
        self._told.move_to_end(caller)
        if len(self._told) > MAX_CALLERS:
            self._told.popitem(last=False)
        fields = {"reason": reason, "subject": owner.subject[:200], **untold}
        if self._of_sessions:
            log.warning("session refused", extra={"fields": fields})
        else:
            log.warning("requestState refused", extra={"fields": fields})


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
    protection: str = ""
    """The protection of the tool from a second run (`ServedTool.protection`)."""


class _Claims(Struct, frozen=True, array_like=True):
    """The claims of a token. Earlier versions sealed none of the last three."""

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
    protection: str = ""


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
        protection: str = "",
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
            protection: the protection of the tool from a second run.

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
            protection,
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
        return OpenedState(*opened, claims.fixed_task, claims.call_id, claims.protection)
