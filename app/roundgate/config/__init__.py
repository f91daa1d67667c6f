"""The configuration: the models of gateway.yaml, how it is read, and the
settings of the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roundgate.lazy import face

if TYPE_CHECKING:
    from roundgate.config import settings as settings
    from roundgate.config import yaml_file as yaml_file
    from roundgate.config.base import Model as Model
    from roundgate.config.base import Origin as Origin
    from roundgate.config.base import TaskMode as TaskMode
    from roundgate.config.base import WhenGiven as WhenGiven
    from roundgate.config.base import WithoutTasks as WithoutTasks
    from roundgate.config.environment import KEPT as KEPT
    from roundgate.config.loading import ConfigFile as ConfigFile
    from roundgate.config.loading import Inspected as Inspected
    from roundgate.config.loading import inspect as inspect
    from roundgate.config.loading import load as load
    from roundgate.config.models import AuthorizerConfig as AuthorizerConfig
    from roundgate.config.models import CacheHint as CacheHint
    from roundgate.config.models import CachingConfig as CachingConfig
    from roundgate.config.models import CallersConfig as CallersConfig
    from roundgate.config.models import FallbackConfig as FallbackConfig
    from roundgate.config.models import GatewayConfig as GatewayConfig
    from roundgate.config.models import HttpConfig as HttpConfig
    from roundgate.config.models import JwtAuthConfig as JwtAuthConfig
    from roundgate.config.models import LimitsConfig as LimitsConfig
    from roundgate.config.models import PackageConfig as PackageConfig
    from roundgate.config.models import ServerConfig as ServerConfig
    from roundgate.config.models import SessionsConfig as SessionsConfig
    from roundgate.config.models import StateConfig as StateConfig
    from roundgate.config.models import TasksConfig as TasksConfig
    from roundgate.config.references import kept_at_aws as kept_at_aws
    from roundgate.config.references import read_file as read_file
    from roundgate.config.secret import Reference as Reference
    from roundgate.config.secret import Secret as Secret
    from roundgate.config.secret import checked as checked
    from roundgate.config.secret import found_in as found_in
    from roundgate.config.secret import settings_of as settings_of
    from roundgate.config.settings import Settings as Settings
else:
    __getattr__, __all__ = face(
        __name__,
        {
            ".base": "Model Origin TaskMode WhenGiven WithoutTasks",
            ".environment": "KEPT",
            ".loading": "ConfigFile Inspected inspect load",
            ".models": "AuthorizerConfig CacheHint CachingConfig CallersConfig FallbackConfig "
            "GatewayConfig HttpConfig JwtAuthConfig LimitsConfig PackageConfig ServerConfig "
            "SessionsConfig StateConfig TasksConfig",
            ".references": "kept_at_aws read_file",
            ".secret": "Reference Secret checked found_in settings_of",
            ".settings": "Settings",
        },
        modules="settings yaml_file",
    )
