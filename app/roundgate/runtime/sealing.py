"""The keys that seal `requestState` and ids (SEP-2322), from the place that the settings name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from roundgate import aws
from roundgate.clock import Clock
from roundgate.config import GatewayConfig
from roundgate.errors import ConfigError, Problem
from roundgate.settings import Settings
from roundgate.tokens import Key, KeyRing, keys


def make_ring(config: GatewayConfig, using: Settings, clock: Clock) -> KeyRing:
    """Return the key ring for everything that the gateway seals.

    Raises:
        ConfigError: there are no keys, or unusable ones.
    """
    return KeyRing(_state_keys(using, clock), config.state.audience)


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
    """Return the keys now; on Lambda, read them when needed and again at intervals, because a
    function lives through rotations and snapshots."""
    return keys.Refreshed(load, clock) if using.on_lambda else load()
