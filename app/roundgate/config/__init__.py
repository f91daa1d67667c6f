"""gateway.yaml as a whole: its root model, and how it is read and validated."""

from __future__ import annotations

from roundgate.config.loading import ConfigFile as ConfigFile
from roundgate.config.loading import Inspected as Inspected
from roundgate.config.loading import inspect as inspect
from roundgate.config.loading import load as load
from roundgate.config.models import GatewayConfig as GatewayConfig
