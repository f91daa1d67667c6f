"""The sources of the key ring, and its rotation.

GATEWAY_STATE_KEYS          base64 keys, comma-separated; the first seals
GATEWAY_STATE_KEYS_SECRET   the same text as an AWS Secrets Manager secret (name or ARN)
GATEWAY_STATE_KEYS_KMS      data keys encrypted by AWS KMS, base64, comma-separated; decrypted
                            once per process
(none)                      a file beside the SQLite file: for one machine only
"""

from __future__ import annotations

import base64
import logging
import math
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final, TypeAlias, TypeVar, overload
from weakref import ref

from roundgate.clock import Clock
from roundgate.errors import ConfigError, Problem, Unavailable, UsageError
from roundgate.settings.files import read_regular
from roundgate.tokens.sealed import KEY_BYTES, Key

T = TypeVar("T")

REFRESH_MS: Final = 300_000
UNPADDED: Final = 43
"""The number of base64 characters of a key without padding."""

log = logging.getLogger("roundgate.tokens")

Client: TypeAlias = Callable[[str], Any]
"""Returns boto3's client of the named service."""


def new_key() -> str:
    """Return a new random key in the form of GATEWAY_STATE_KEYS."""
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def parse(text: str, source: str) -> list[Key]:
    """Read keys from comma-separated base64.

    Raises:
        ConfigError: a key is invalid; the message names its position, never its value.
    """
    return [_key(secret, place, source) for place, secret in enumerate(_decoded(text, source), 1)]


def _decoded(ring: str, source: str) -> Iterator[bytes]:
    for place, part in enumerate(ring.split(","), 1):
        try:
            text = part.strip()
            # passwords that Secrets Manager generates have no padding
            yield base64.b64decode(text + "=" * (len(text) == UNPADDED), validate=True)
        except ValueError:
            raise _unusable(source, f"key {place} is not base64") from None


def _key(secret: bytes, place: int, source: str) -> Key:
    try:
        return Key(secret)
    except ValueError as error:
        raise _unusable(source, f"key {place}: {error}") from None


def _unusable(
    source: str, message: str, remedy: str = "make keys with: roundgate keys new"
) -> ConfigError:
    return ConfigError([Problem("environment", source, message, remedy)])


def from_file(
    path: Path, what: str = "the state key file", remedy: str = "set GATEWAY_STATE_KEYS instead"
) -> list[Key]:
    """Read the keys in a file. Create a missing file with one new key and access for its owner
    only.

    Args:
        what: the name of the file in an error.
        remedy: the remedy if the file cannot be used.

    Raises:
        ConfigError: the file can be neither read nor created, or a key is invalid.
    """
    try:
        if not path.exists():
            _make_file(path)
        return parse(read_regular(path, "latin-1"), str(path))
    except OSError as error:
        message = f"{what} cannot be used: {error.strerror or 'unknown error'}"
        raise _unusable(str(path), message, remedy) from None


def _make_file(path: Path) -> None:
    """Write the file under a temporary name, then link it. Only one of several processes succeeds,
    and no process reads a part of a key."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # created with mode 0600
    number, draft = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    with os.fdopen(number, "w") as file:
        file.write(new_key())
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(draft)


def from_secrets_manager(secret_id: str, client: Client) -> list[Key]:
    """Read the keys in the string of a secret of AWS Secrets Manager.

    Raises:
        ConfigError: AWS refused, or a key is invalid.
    """
    source = "GATEWAY_STATE_KEYS_SECRET"
    answer = _ask_aws(source, lambda: client("secretsmanager").get_secret_value(SecretId=secret_id))
    if "SecretString" not in answer:
        raise _unusable(
            source, "the secret is binary", "store the keys as its string: base64, comma-separated"
        )
    return parse(answer["SecretString"], source)


class Refreshed(Sequence[Key]):
    """Keys that are read on first use, and read again when they are `REFRESH_MS` old.

    If reading them again fails, the earlier keys stay in use. If the first reading fails,
    `Unavailable` is raised.

    Args:
        load: reads the keys.
        clock: the clock of the process.
        keys: the keys of a server, which are read by now. A thread reads them again, so that no
            request waits, and a server without requests misses no rotation.
    """

    def __init__(
        self, load: Callable[[], Sequence[Key]], clock: Clock, keys: Sequence[Key] = ()
    ) -> None:
        self._load = load
        self._clock = clock
        self._keys = keys
        self._read_ms = math.inf if keys else -math.inf
        if keys:
            Thread(target=_keep_fresh, args=[ref(self)], name="state keys", daemon=True).start()

    def __len__(self) -> int:
        return len(self._current())

    @overload
    def __getitem__(self, place: int) -> Key: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Key]: ...
    def __getitem__(self, place: int | slice) -> Key | Sequence[Key]:
        return self._current()[place]

    def _current(self) -> Sequence[Key]:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._read_ms > REFRESH_MS:
            self.read()
            self._read_ms = now_ms
        return self._keys

    def read(self) -> None:
        """Read the keys again. Raise Unavailable if that fails and there are no earlier ones."""
        try:
            self._keys = self._load()
        except ConfigError as error:
            log.error("the state keys cannot be read: %s", error)
            if not self._keys:
                raise Unavailable("The keys of requestState cannot be read just now") from error


def _keep_fresh(ring: ref[Refreshed]) -> None:
    pause = Event()
    while (keys := ring()) is not None:
        del keys
        pause.wait(REFRESH_MS / 1000)
        if (keys := ring()) is not None:
            keys.read()


def from_kms(ciphertexts: str, client: Client) -> list[Key]:
    """Decrypt keys with AWS KMS.

    Raises:
        ConfigError: AWS refused, or a key is invalid.
    """
    source = "GATEWAY_STATE_KEYS_KMS"
    encrypted = list(_decoded(ciphertexts, source))

    def decrypt() -> list[bytes]:
        kms = client("kms")
        return [kms.decrypt(CiphertextBlob=ciphertext)["Plaintext"] for ciphertext in encrypted]

    return [
        _key(secret, place, source) for place, secret in enumerate(_ask_aws(source, decrypt), 1)
    ]


def _ask_aws(source: str, ask: Callable[[], T]) -> T:
    try:
        return ask()
    except ConfigError:
        raise
    except Exception as error:  # boto3 makes most of its exception classes at run time
        message = f"{type(error).__name__}: {error}"
        remedy = "check its name, the region, and the permissions of the role"
        raise _unusable(source, message, remedy) from error


def rotate(ring: Sequence[str], stage: int, key: str | None = None) -> list[str]:
    """Return the ring for the next stage of a rotation. Restart every replica between two stages. The
    order of two keys does not tell which is new, so stages 2 and 3 need its id; repeated, they change
    nothing.

    1  adds a new key at the end, so every replica can open its tokens
    2  moves the new key to the front: it seals from now on, the old keys still open
    3  removes the old keys, once their tokens have expired

    Raises:
        UsageError: a rotation has begun (stage 1), the ring has no key of the id `key` (stages 2, 3),
            or this key does not seal yet (stage 3).
        ConfigError: a key is invalid.
    """
    ids = [secret.id for secret in parse(",".join(ring), "GATEWAY_STATE_KEYS")]
    shown = f"the ring has {', '.join(ids)}, and {ids[0]} seals"
    if stage == 1:
        if len(ring) > 1:
            raise UsageError(
                f"a rotation has begun: {shown}; continue with --stage 2 and --key=ID of the new key"
            )
        return [*ring, new_key()]
    if key not in ids:
        raise UsageError(
            f"--stage {stage} needs --key=ID, the id of the new key that stage 1 printed; {shown}"
        )
    place = ids.index(key)
    if stage == 2:
        return [ring[place], *ring[:place], *ring[place + 1 :]]
    if place > 0:
        raise UsageError(
            f"{key} does not seal yet: {shown}; run --stage 2 and restart all replicas first"
        )
    return [ring[0]]
