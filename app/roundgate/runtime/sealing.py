"""The keys of this gateway, from wherever the settings say, and what seals with
them (SEP-2322, `requestState`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from roundgate import aws
from roundgate.clock import Clock
from roundgate.config import GatewayConfig
from roundgate.errors import ConfigError, Problem
from roundgate.settings import Settings
from roundgate.tokens import Key, KeyRing, StateSealer, keys


def make_ring(config: GatewayConfig, using: Settings, clock: Clock) -> KeyRing:
    """The keys from wherever the settings say, for all that is given out sealed.

    Raises:
        ConfigError: there are no keys, or unusable ones.
    """
    return KeyRing(_state_keys(using, clock), config.state.audience)


def make_sealer(config: GatewayConfig, ring: KeyRing, clock: Clock) -> StateSealer:
    """What seals `requestState`."""
    return StateSealer(ring, clock, config.state.lifetime_s, config.state.max_bytes)


def _state_keys(using: Settings, clock: Clock) -> Sequence[Key]:
    if using.state_keys is not None:
        return keys.parse(using.state_keys, "GATEWAY_STATE_KEYS")
    secret, encrypted = using.state_keys_secret, using.state_keys_kms
    if secret is not None:
        return _kept_at_aws(lambda: keys.from_secrets_manager(secret, aws.client), using, clock)
    if encrypted is not None:
        return _kept_at_aws(lambda: keys.from_kms(encrypted, aws.client), using, clock)
    if using.on_lambda:
        remedy = (
            "make one with `roundgate keys new` and set GATEWAY_STATE_KEYS, …_SECRET or "
            "…_KMS for every replica"
        )
        message = "replicas need a shared key: a round that one has sealed must open in any other"
        raise ConfigError([Problem("environment", "GATEWAY_STATE_KEYS", message, remedy)])
    return keys.from_file(using.sqlite_path.with_suffix(".key"))


def _kept_at_aws(load: Callable[[], Sequence[Key]], using: Settings, clock: Clock) -> Sequence[Key]:
    """A function is made long before it is asked, and may be frozen into a snapshot: it reads
    keys when it needs them, and again now and then, so that a rotation reaches it. A server
    reads them when it starts."""
    return keys.Refreshed(load, clock) if using.on_lambda else load()
